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

/// The architecture of a file's parts (at least one), told further by what its tensors say: experts make a llama a
/// Mixtral, a bias on the choice of experts (or sigmoid scores) makes a deepseek2 a DeepSeek-V3.
/// @throws Error(BadInput | Unsupported) naming the file, and the architecture where it is unknown
GgufArchitecture ggufArchitecture(std::span<const GgufFile> parts);

/// Adds a tensor to `table` under the name the architecture's checkpoints give it, experts one by one as slices of the
/// tensor that holds them all; a tensor nobody knows keeps its own name. `className`: as above.
/// @throws Error(BadInput) when the name is taken
void insertRenamed(const std::string& className, const std::string& name, const TensorView& view, TensorTable& table);

} // namespace kvscope
