// Which ids a model that denoises may write.
#pragma once

#include "core/model/model.h"

#include <cstdint>
#include <vector>

namespace kvscope {

/// [vocab] nonzero: the id may be written. Neither the mask may be written nor the rows that only pad the vocabulary:
/// those that the tokenizer does not name or, where there is no tokenizer and the mask is the last token, those behind
/// the mask.
/// @throws Error(BadInput) where no id is left
std::vector<std::uint8_t> writableIds(const Model& model);

} // namespace kvscope
