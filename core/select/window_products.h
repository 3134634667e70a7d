// Plain products of one query with pooled keys: the score of methods that need no softmax.
#pragma once

#include "core/kv/block_index.h"

#include <span>

namespace kvscope {

/// scores[w] = query . pooled key w, for the first scores.size() windows of the index. query: [dim].
void windowProducts(const float* query, const BlockIndex& index, int dim, std::span<float> scores);

} // namespace kvscope
