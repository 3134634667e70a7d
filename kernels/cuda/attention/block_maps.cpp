#include "kernels/cuda/attention/block_maps.h"

#include "kernels/cuda/device/check.h"

#include <array>
#include <fmt/format.h>

namespace kvscope::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

/// The driver's function that makes tensor maps. It is looked up at run time: the program links only the CUDA runtime,
/// so that it also starts on machines without a driver.
Encode encoder() {
    static const Encode encode = [] {
        void* entry = nullptr;
        cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
        check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
              "asking the driver for block copies");
#else
        check(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &entry, cudaEnableDefault, &found),
              "asking the driver for block copies");
#endif
        if (found != cudaDriverEntryPointSuccess)
            throw Error(ErrorKind::Device, "the GPU's driver is too old to copy KV blocks",
                        "install a driver for CUDA 12 or later, or use --backend cpu");
        return reinterpret_cast<Encode>(entry);
    }();
    return encode;
}

/// How many blocks a map is said to have. The bulk-copy engine refuses places beyond a map's end; no block lies there.
constexpr cuuint64_t kMostBlocks = cuuint64_t(1) << 31;

template <std::size_t kRank>
CUtensorMap encode(const __nv_bfloat16* from, std::array<cuuint64_t, kRank> size,
                   std::array<cuuint64_t, kRank - 1> strideBytes, std::array<cuuint32_t, kRank> copied,
                   CUtensorMapSwizzle swizzle) {
    std::array<cuuint32_t, kRank> steps;
    steps.fill(1);
    CUtensorMap map;
    const CUresult code =
        encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, kRank, const_cast<__nv_bfloat16*>(from), size.data(),
                  strideBytes.data(), copied.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                  CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code != CUDA_SUCCESS)
        throw Error(ErrorKind::Device, fmt::format("the GPU's driver refuses to copy KV blocks (code {})", int(code)),
                    "update the driver, or use --backend cpu and report it");
    return map;
}

} // namespace

BlockMaps blockMaps(const AttentionShape& shape, const __nv_bfloat16* blocks) {
    const auto tokens = cuuint32_t(shape.blockSize), dim = cuuint32_t(shape.dim);
    const cuuint64_t blockBytes = cuda::blockBytes(shape), rowBytes = cuuint64_t(dim) * 2;
    const CUtensorMapSwizzle byRow = tokens == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : tokens == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                    : CU_TENSOR_MAP_SWIZZLE_32B;
    return {encode<4>(blocks, {64, tokens, dim / 64, kMostBlocks}, {rowBytes, 128, blockBytes}, {64, tokens, 1, 1},
                      CU_TENSOR_MAP_SWIZZLE_128B),
            encode<3>(blocks + std::size_t(tokens) * dim, {tokens, dim, kMostBlocks},
                      {cuuint64_t(tokens) * 2, blockBytes}, {tokens, dim, 1}, byRow)};
}

TileMaps tileMaps(const AttentionShape& shape, const __nv_bfloat16* blocks) {
    const auto tokens = cuuint32_t(shape.blockSize), dim = cuuint32_t(shape.dim), rows = dim * tokens / 64,
               together = 64 / tokens;
    const cuuint64_t blockBytes = cuda::blockBytes(shape), rowBytes = cuuint64_t(dim) * 2;
    const __nv_bfloat16* const values = blocks + std::size_t(tokens) * dim;
    const auto valueMap = [&](cuuint32_t blocksOfCopy) {
        return encode<3>(values, {64, rows, kMostBlocks}, {128, blockBytes}, {64, rows, blocksOfCopy},
                         CU_TENSOR_MAP_SWIZZLE_128B);
    };
    return {encode<4>(blocks, {64, tokens, kMostBlocks, dim / 64}, {rowBytes, blockBytes, 128},
                      {64, tokens, together, dim / 64}, CU_TENSOR_MAP_SWIZZLE_128B),
            valueMap(together), blockMaps(shape, blocks).keys, valueMap(1)};
}

CUtensorMap queryMap(const AttentionShape& shape, const __nv_bfloat16* queries, int n, int rows) {
    const auto width = cuuint64_t(shape.queryHeads) * cuuint64_t(shape.dim);
    return encode<3>(queries, {64, width / 64, cuuint64_t(n)}, {128, width * 2}, {64, 1, cuuint32_t(rows)},
                     CU_TENSOR_MAP_SWIZZLE_128B);
}

} // namespace kvscope::cuda
