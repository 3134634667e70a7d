// Stages stage1 and pooling of a denoising forward with pages: Quest's bound of every complete page for every query of
// the active tokens, the best pages of each query, and their union for each KV head. A page is a KV block.
#pragma once

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/diffusion/block_row.h"

#include <cuda_bf16.h>

namespace kvscope::cuda {

struct PageUnionArgs {
    BlockRows rows;                        // pages are chosen for the sparse ones
    const __nv_bfloat16* q = nullptr;      // [rows*block, queryHeads*dim]
    const __nv_bfloat16* ranges = nullptr; // [blocks, 2, dim] lowest, highest; heads at BlockRows::headFirst
    int maxPages = 0;                      // most of a prefix, an incomplete one included
    int pagesPerQuery = 1;
    // [rows, kvHeads, wordsOf()] pages as bits that belong to every union that is not empty; queries choose among the
    // others. Null: none
    const std::uint32_t* always = nullptr;
    // [rows, kvHeads, queries(), scoreStride()] of complete pages; behind those of a query, at scoreSpan(), the largest
    // ranking key (ranking.cuh) of every 16 pages that it may choose
    float* scores = nullptr;
    // Of every (row, KV head); words and arrivals are zero before and after.
    std::uint32_t* words = nullptr;    // [rows, kvHeads, wordsOf()] pages as bits
    std::uint32_t* arrivals = nullptr; // [rows, kvHeads]
    std::int32_t* pages = nullptr;     // [rows, kvHeads, maxPages] out, ascending; an incomplete last page is in it
    std::int32_t* count = nullptr;     // [rows, kvHeads] out
    std::uint32_t* record = nullptr;   // [rows, kvHeads, wordsOf()] out: the same as bits; or null
    std::uint64_t* scoreMark = nullptr;
    std::uint64_t* unionMark = nullptr;

    int scoreSpan() const { return (maxPages + 3) / 4 * 4; }
    int scoreStride() const { return scoreSpan() + (maxPages + 63) / 64 * 4; }
    int wordsOf() const { return (maxPages + 31) / 32; }
};

/// @throws Error(Unsupported): a thread block's shared memory is too small to choose among so many pages
void checkPageUnion(const Launch& launch, int maxPages);

/// Writes `scores`: for each query and complete page the sum over the channels of max(q lo, q hi), computed as one
/// product of [min(q, 0), max(q, 0)] with [lo, hi], and the largest key of every 16 pages. Earlier forwards have
/// written the ranges of complete pages, and copies alone write the table: the kernel reads them while the kernels
/// before it still run.
void scoreUnionPages(const Launch& launch, const PageUnionArgs& args);
/// Chooses the `pagesPerQuery` best pages of each query, of equal ones the lower, and writes for each KV head the union
/// of its queries' pages.
void unitePages(const Launch& launch, const PageUnionArgs& args);

} // namespace kvscope::cuda
