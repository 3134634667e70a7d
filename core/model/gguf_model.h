// A GGUF model in the words of a Hugging Face checkpoint, so that one reader of configurations and one loader of
// weights serve both: metadata becomes the text of a config.json, tensors get the names they had before the conversion.
#pragma once

#include "core/model/gguf.h"
#include "core/model/text_files.h"

#include <span>
#include <string>
#include <vector>

namespace kvscope {

/// The config.json that the metadata of a model's files (at least one) stands for, for ConfigSource::Gguf. It states
/// every key for which the family has no default. `tensors`: of all files, renamed.
///
/// Converters store the query and key rows of some architectures (llama, minicpm) so that neighbouring channels are
/// rotated together. They stay so: "rope_interleave" asks for that rotation, which gives the same scores as the
/// original order, since queries and keys are permuted alike.
///
/// Keys that change what is computed and that this program does not read are refused (GgufKeys), as those of a
/// config.json are.
/// @param unread gets the keys that this program does not read and that have no effect; null: they are not wanted
/// @throws Error(BadInput | Unsupported) naming the file and the key
std::string ggufConfigJson(std::span<const GgufFile> parts, const TensorTable& tensors,
                           std::vector<std::string>* unread = nullptr);

/// Tensors of all parts under Hugging Face names; an expert is a slice of the tensor that holds all of them.
/// @throws Error(BadInput) for a tensor that two parts have, or parts that do not belong together
TensorTable ggufTensors(std::span<const GgufFile> parts);

/// Tokenizer and chat template in the metadata (`tokenizer.*`). @throws Error(BadInput | Unsupported) naming the file
TextFiles ggufTextFiles(const GgufFile& file);

} // namespace kvscope
