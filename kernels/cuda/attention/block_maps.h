// For attention_ring, hopper_prefill and hopper_blocks: the maps by which the bulk-copy engine finds the KV blocks of a
// resident store or slot pool, and a prompt's queries, and lays them out in shared memory.
#pragma once

#include "kernels/cuda/device/kv_shape.h"

#include <cuda.h>
#include <cuda_bf16.h>

namespace kvscope::cuda {

/// Pieces of 16 bytes arrive permuted within 128 bytes, so that the rows a tensor-core fragment is made of lie in
/// different banks (the hardware's "swizzle": bits 4 and up of a piece's place are XORed with bits 7 and up).
struct BlockMaps {
    CUtensorMap keys;   // (64 channels, blockSize tokens, dim / 64 pieces of a row, block): one piece per copy
    CUtensorMap values; // (blockSize tokens, dim channels, block): one block per copy
};

/// Blocks of 16, 32 or 64 tokens, dim a multiple of 64; `blocks` on a multiple of 16 bytes. Needs the Hopper
/// generation.
BlockMaps blockMaps(const AttentionShape& shape, const __nv_bfloat16* blocks);

/// As BlockMaps, but a copy may take all KV blocks of 64 neighbouring tokens, and values come in rows of 128 bytes
/// whatever the block size: [block][dim*blockSize/64 rows][64 numbers], a row the tokens of 64/blockSize neighbouring
/// channels. All are permuted as rows of 128 bytes.
struct TileMaps {
    CUtensorMap keyTile; // (64 channels, blockSize tokens, block, pieces of a row): 64 tokens per copy, piece by piece
    CUtensorMap valueTile; // (64 numbers, rows, block): 64 tokens per copy
    CUtensorMap keys;      // of BlockMaps
    CUtensorMap values;    // (64 numbers, rows, block): one block per copy
};

/// As blockMaps.
TileMaps tileMaps(const AttentionShape& shape, const __nv_bfloat16* blocks);

/// Queries [n, queryHeads*dim]: (64 channels, pieces of a row, query tokens), permuted as keys are. One piece of `rows`
/// tokens per copy; tokens past the last one arrive as zeros. As blockMaps otherwise.
CUtensorMap queryMap(const AttentionShape& shape, const __nv_bfloat16* queries, int n, int rows);

} // namespace kvscope::cuda
