// KV blocks in 16, 8 and 4 bits: from float32 blocks, and back. The layout is KvFormat's.
#pragma once

#include "kernels/kv_format.h"

namespace kvscope {

/// Writes a full block in `format`, whose type is not F32. Codes are rounded to nearest, ties to even; a group whose
/// numbers are all 0 has the scale 0. A group with a number that is not finite, or too large for a 16-bit scale, does
/// not read back as finite numbers.
/// @param keys [dim, blockTokens]: transposed, as KvBlockView has them
/// @param values [blockTokens, valueDim]; not read where valueDim is 0
/// @param bias [blockTokens] eviction scores; not read where the format has none
/// @param block [blockBytes]
void quantiseBlock(const KvFormat& format, const float* keys, const float* values, const float* bias, void* block);

/// keys [dim, blockTokens] of a block.
void readKeys(const KvFormat& format, const void* block, float* keys);
/// values [blockTokens, valueDim] of the first `tokens` tokens of a block.
void readValues(const KvFormat& format, const void* block, int tokens, float* values);

} // namespace kvscope
