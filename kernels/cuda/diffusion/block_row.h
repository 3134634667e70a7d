// Block diffusion on a GPU: the sequences of a forward, and how the queries of a block are counted.
#pragma once

#include "kernels/cuda/device/kv_shape.h"

#include <cstdint>

namespace kvscope::cuda {

constexpr int kMostDenoised = 64; // tokens of a block: a set of them is one 64-bit number

/// One sequence of a forward, in device memory: `block` tokens from `first` on. A prompt that is read has one for each
/// of its blocks.
struct BlockRow {
    enum Flag : std::uint32_t {
        kTaken = 1,        // the row has a forward; without this flag kernels leave all of it alone
        kSparse = 2,       // its active tokens attend to chosen pages of the prefix, the others keep their outputs
        kEveryToken = 4,   // every token is active
        kCompares = 8,     // its queries are compared with those of the forward before
        kClean = 16,       // keys and values become part of the prefix
        kChoosesOnce = 32, // its attention to the prefix decides what the block's forwards that follow attend to
        // Pages are asked for before the forward begins, by the queries of the forward before: those of tokens that
        // were written since, or with kAsksAll of all tokens; with kAsksAgain the pages of the forward before, too.
        kAsks = 64,
        kAsksAll = 128,
        kAsksAgain = 256,
    };
    std::int32_t sequence = 0;
    std::int32_t first = 0; // position of the block's first token
    std::int32_t keys = 0;  // tokens that blockAttention attends to: [0, keys)
    std::uint32_t flags = 0;
    std::int32_t writes = 0; // candidates that the forward writes on the device
    std::int32_t kept = 0;   // with kChoosesOnce: tiles or pages that are kept of the prefix
#ifdef __CUDACC__
    __device__ bool is(Flag flag) const { return (flags & flag) != 0; }
#endif
};

/// The sequences' KV blocks of one layer. Queries of a KV head are counted by active token, then by query head of the
/// group: query i is head i % group of active token i / group.
struct BlockRows {
    AttentionShape shape;
    int rows = 0, block = 0;
    const BlockRow* table = nullptr;                      // [rows]
    const std::uint64_t* active = nullptr;                // [rows, kvHeads] tokens that attend; null: all of each block
    const std::int64_t* headFirst = nullptr;              // [sequence*kvHeads + g] first KV block of the head
    int queries() const { return block * shape.group(); } // most of a (row, KV head)
    int items() const { return rows * shape.kvHeads; }
};

} // namespace kvscope::cuda
