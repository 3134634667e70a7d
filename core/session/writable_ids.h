// Which ids a model that denoises may write.
#pragma once

#include "core/model/model.h"

#include <cstdint>
#include <vector>

namespace kvscope {

/// [vocab] nonzero: may be written. The mask is no token, and neither are the rows of the vocabulary that pad it: those
/// which the tokenizer does not name or, where there is no tokenizer and the mask is the last token, those behind it.
/// @throws Error(BadInput) where nothing is left
std::vector<std::uint8_t> writableIds(const Model& model);

} // namespace kvscope
