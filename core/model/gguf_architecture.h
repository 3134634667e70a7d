// Which architecture a GGUF file holds, and what a checkpoint calls its tensors.
#pragma once

#include "core/model/gguf.h"
#include "core/model/safetensors.h"

#include <span>
#include <string>

namespace kvscope {

/// One of the architectures that converters name in `general.architecture`.
struct GgufArchitecture {
    const char* name;      // in the file; the metadata keys begin with it
    const char* className; // entry of `architectures` in the config.json it stands for
    const char* modelType;
    bool interleaved; // query and key rows in the order of neighbouring channels
};

/// The architecture of a model whose file has these parts (at least one). Where the name in the file stands for
/// several, tensors and keys decide: a llama with experts is a Mixtral; a deepseek2 with a bias on the choice of
/// experts, or with sigmoid scores, is a DeepSeek-V3.
/// @throws Error(BadInput | Unsupported) naming the file, and the architecture where it is unknown
GgufArchitecture ggufArchitecture(std::span<const GgufFile> parts);

/// Adds a tensor to `table` under the name that checkpoints of the class `className` give it. A tensor with all experts
/// is added expert by expert, as slices. A tensor that no checkpoint has keeps its name in the file.
/// @throws Error(BadInput) when the name is taken
void insertRenamed(const std::string& className, const std::string& name, const TensorView& view, TensorTable& table);

} // namespace kvscope
