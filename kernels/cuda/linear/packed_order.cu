// Brings weights from the file's order into the packed one, and packed weights into plain rows of bf16 or float32.
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/linear/packed_formats.cuh"

#include <algorithm>

namespace kvscope::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

__device__ inline std::uint32_t twoBytes(const std::uint8_t* at) { return at[0] | std::uint32_t(at[1]) << 8; }
__device__ inline std::uint32_t nibbleOf32(const std::uint8_t* at, int i) { return at[i % 16] >> i / 16 * 4 & 15; }
__device__ inline std::uint32_t bitOf(const std::uint8_t* at, int i) { return at[i / 8] >> i % 8 & 1; }

/// The stored integer of weight `col` of a row, as ggml defines the formats; of bf16 its bits.
template <DType kType> __device__ std::uint32_t storedAt(const std::uint8_t* row, int col) {
    const std::uint8_t* block = row + std::size_t(col / blockOf(kType).weights) * blockOf(kType).bytes;
    const int i = col % blockOf(kType).weights;
    if constexpr (kType == DType::BF16) return twoBytes(block);
    if constexpr (kType == DType::Q8_0) return block[2 + i];
    if constexpr (kType == DType::Q4_0) return nibbleOf32(block + 2, i);
    if constexpr (kType == DType::Q4_1) return nibbleOf32(block + 4, i);
    if constexpr (kType == DType::Q5_0) return nibbleOf32(block + 6, i) | bitOf(block + 2, i) << 4;
    if constexpr (kType == DType::Q5_1) return nibbleOf32(block + 8, i) | bitOf(block + 4, i) << 4;
    if constexpr (kType == DType::Q4_K) return block[16 + i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15;
    if constexpr (kType == DType::Q5_K)
        return (block[48 + i / 64 * 32 + i % 32] >> i / 32 % 2 * 4 & 15) |
               (std::uint32_t(block[16 + i % 32]) >> i / 32 & 1) << 4;
    if constexpr (kType == DType::Q6_K) {
        const int part = i / 128, in = i % 128;
        return (block[64 * part + in % 64] >> in / 64 * 4 & 15) |
               (std::uint32_t(block[128 + 32 * part + in % 32]) >> in / 32 * 2 & 3) << 4;
    }
    return 0;
}

/// Where a lane puts a stored integer: pair and element e as in packed_formats.cuh.
template <class Format>
__device__ void place(std::uint32_t stored, int block, int half, int pair, int e, std::uint32_t* quants,
                      std::uint32_t* high) {
    const int word = block * 2 + half;
    if constexpr (Format::kDType == DType::BF16) {
        quants[word * 4 + pair] |= stored << 16 * e;
    } else if constexpr (Format::kDType == DType::Q8_0) {
        quants[word * 2 + pair / 2] |= stored << (16 * e + pair % 2 * 8);
    } else {
        quants[word] |= (stored & 15) << (4 * pair + 16 * e);
        if constexpr (Format::kDType == DType::Q6_K)
            high[word / 2] |= stored >> 4 << ((word % 2 * 4 + pair) * 2 + 16 * e);
        else if constexpr (Format::kHigh > 0)
            high[word / 4] |= stored >> 4 << (word % 4 * 4 + pair + 16 * e);
    }
}

/// Writes the scales of one row of the chunk into the row's half of the words of its row pair.
template <class Format>
__device__ void placeScales(const std::uint8_t* row, int firstCol, int cols, int half, std::uint32_t* words,
                            std::uint32_t& blockScales) {
    constexpr DType kType = Format::kDType;
    if constexpr (Format::kScales == 0) return;
    if constexpr (blockOf(kType).weights == 32) {
        for (int block = 0; block < Format::kBlocks && firstCol + block * 32 < cols; ++block) {
            const std::uint8_t* at = row + std::size_t(firstCol / 32 + block) * blockOf(kType).bytes;
            for (int which = 0; which < Format::kScales; ++which)
                words[which * 4 + half * 2 + block / 2] |= twoBytes(at + which * 2) << block % 2 * 16;
        }
    }
    if constexpr (kType == DType::Q4_K || kType == DType::Q5_K) {
        const std::uint8_t *at = row + std::size_t(firstCol / 256) * blockOf(kType).bytes, *packed = at + 4;
        std::uint32_t* to = words + half * 4;
        to[0] = twoBytes(at) | twoBytes(at + 2) << 16;
        for (int block = 0; block < 8; ++block) {
            const std::uint32_t scale =
                block < 4 ? packed[block] & 63 : (packed[block + 4] & 15) | packed[block - 4] >> 6 << 4;
            const std::uint32_t least =
                block < 4 ? packed[block + 4] & 63 : packed[block + 4] >> 4 | packed[block] >> 6 << 4;
            const std::uint32_t field = scale | least << 6;
            if (block < 6) {
                to[1 + block / 2] |= field << block % 2 * 12;
            } else {
                to[1 + block - 6] |= (field & 0xff) << 24;
                to[3] |= field >> 8 << (block == 6 ? 24 : 28);
            }
        }
    }
    if constexpr (kType == DType::Q6_K) {
        const std::uint8_t* at = row + std::size_t(firstCol / 256) * blockOf(kType).bytes;
        for (int i = 0; i < 16; ++i)
            words[half * 4 + i / 4] |= std::uint32_t(std::uint8_t(at[192 + i] ^ 0x80)) << i % 4 * 8;
        blockScales |= twoBytes(at + 208) << half * 16;
    }
}

/// A warp per chunk.
template <class Format>
__global__ void __launch_bounds__(kThreads) packKernel(const std::uint8_t* low, const std::uint8_t* high, int rows,
                                                       int cols, int chunks, std::int64_t units, std::byte* packed) {
    const std::int64_t unit = std::int64_t(blockIdx.x) * kWarps + threadIdx.x / kWarp;
    letNextKernelStart();
    waitForEarlierKernels();
    if (unit >= units) return;
    const int lane = threadIdx.x % kWarp, group = lane / 4, quad = lane % 4, chunk = int(unit % chunks);
    const std::int64_t tile = unit / chunks;
    const std::size_t rowSize = rowBytes(Format::kDType, cols);
    const std::uint8_t* row[2] = {};
    for (int half = 0; half < 2; ++half) {
        const std::int64_t at = high == nullptr ? tile * 16 + half * 8 + group : tile * 8 + group;
        if (at < (high == nullptr ? rows : rows / 2))
            row[half] = (high != nullptr && half == 1 ? high : low) + std::size_t(at) * rowSize;
    }
    std::uint32_t quants[Format::kQuants * 4] = {}, highs[Format::kHigh > 0 ? Format::kHigh : 1] = {},
                                           scales[Format::kScales > 0 ? Format::kScales * 4 : 1] = {}, blockScales = 0;
    const int firstCol = chunk * Format::kCols;
    for (int half = 0; half < 2; ++half) {
        if (row[half] == nullptr) continue;
        for (int block = 0; block < Format::kBlocks && firstCol + block * 32 < cols; ++block)
            for (int pair = 0; pair < 4; ++pair)
                for (int e = 0; e < 2; ++e) {
                    const int col = firstCol + block * 32 + pair / 2 * 16 + quad * 4 + pair % 2 * 2 + e;
                    place<Format>(storedAt<Format::kDType>(row[half], col), block, half, pair, e, quants, highs);
                }
        placeScales<Format>(row[half], firstCol, cols, half, scales, blockScales);
    }
    std::byte* to = packed + std::size_t(unit) * Format::kBytes;
    for (int i = 0; i < Format::kQuants; ++i)
        reinterpret_cast<uint4*>(to)[i * kWarp + lane] =
            make_uint4(quants[i * 4], quants[i * 4 + 1], quants[i * 4 + 2], quants[i * 4 + 3]);
    if constexpr (Format::kHigh == 2) {
        reinterpret_cast<uint2*>(to + Format::kHighAt)[lane] = make_uint2(highs[0], highs[1]);
    } else {
        for (int i = 0; i < Format::kHigh / 4; ++i)
            reinterpret_cast<uint4*>(to + Format::kHighAt)[i * kWarp + lane] =
                make_uint4(highs[i * 4], highs[i * 4 + 1], highs[i * 4 + 2], highs[i * 4 + 3]);
    }
    if (quad != 0) return; // one lane of the four writes the scales of a row pair
    for (int i = 0; i < Format::kScales; ++i)
        reinterpret_cast<uint4*>(to + Format::kScalesAt)[i * 8 + group] =
            make_uint4(scales[i * 4], scales[i * 4 + 1], scales[i * 4 + 2], scales[i * 4 + 3]);
    if constexpr (Format::kBlockScales)
        reinterpret_cast<std::uint32_t*>(to + Format::kBlockScalesAt)[group] = blockScales;
}

/// The four weights at columns 16*t + 4*quad of a block of one of the lane's rows.
template <class Format> __device__ float4 weightsAt(const PackedPiece<Format>& piece, int block, int t, int half) {
    const std::uint32_t low = Format::fragment(piece, block, half, t * 2),
                        high = Format::fragment(piece, block, half, t * 2 + 1);
    const ScaleAndLeast s = Format::scaleOf(piece, block, t, half);
    const auto weight = [&](float number) { return fmaf(s.scale, number - Format::kBase, s.least); };
    return make_float4(weight(lowHalf(low)), weight(highHalf(low)), weight(lowHalf(high)), weight(highHalf(high)));
}

/// A warp per chunk.
template <class Format>
__global__ void __launch_bounds__(kThreads)
    unpackKernel(const std::byte* packed, int cols, int chunks, int rows, std::int64_t units, Bf16* out) {
    const std::int64_t unit = std::int64_t(blockIdx.x) * kWarps + threadIdx.x / kWarp;
    letNextKernelStart();
    if (unit >= units) return;
    const int lane = threadIdx.x % kWarp, chunk = int(unit % chunks);
    PackedPiece<Format> piece;
    loadPiece<Format>(packed + std::size_t(unit) * Format::kBytes, piece);
    waitForEarlierKernels(); // until here an earlier product may read `out`
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const std::int64_t row = unit / chunks * 16 + half * 8 + lane / 4;
        if (row >= rows) continue;
#pragma unroll
        for (int block = 0; block < Format::kBlocks; ++block)
#pragma unroll
            for (int t = 0; t < 2; ++t) {
                const int col = chunk * Format::kCols + block * 32 + t * 16 + lane % 4 * 4;
                if (col >= cols) continue;
                const float4 w = weightsAt<Format>(piece, block, t, half);
                *reinterpret_cast<uint2*>(out + std::size_t(row) * cols + col) =
                    make_uint2(packBf16(w.x, w.y), packBf16(w.z, w.w));
            }
    }
}

/// Grid (tokens). Of every warp the four lanes that hold the row write its columns.
template <class Format>
__global__ void __launch_bounds__(kThreads)
    embedPackedKernel(const std::byte* packed, int cols, int chunks, const std::int32_t* ids, float* x, float scale,
                      std::uint32_t* clear, int clearCount, std::uint64_t* mark) {
    letNextKernelStart();
    waitForEarlierKernels();
    if (blockIdx.x == 0) {
        if (threadIdx.x == 0) stamp(mark);
        for (int i = threadIdx.x; i < clearCount; i += kThreads) clear[i] = 0;
    }
    const int row = ids[blockIdx.x], lane = threadIdx.x % kWarp, half = row % 16 / 8;
    const std::byte* tile = packed + std::size_t(row / 16) * chunks * Format::kBytes;
    float* to = x + std::size_t(blockIdx.x) * cols;
    for (int chunk = threadIdx.x / kWarp; chunk < chunks; chunk += kWarps) {
        PackedPiece<Format> piece;
        loadPiece<Format>(tile + std::size_t(chunk) * Format::kBytes, piece);
        if (lane / 4 != row % 8) continue;
#pragma unroll
        for (int block = 0; block < Format::kBlocks; ++block)
#pragma unroll
            for (int t = 0; t < 2; ++t) {
                const int col = chunk * Format::kCols + block * 32 + t * 16 + lane % 4 * 4;
                if (col >= cols) continue;
                const float4 w =
                    half == 0 ? weightsAt<Format>(piece, block, t, 0) : weightsAt<Format>(piece, block, t, 1);
                *reinterpret_cast<float4*>(to + col) = make_float4(scale * w.x, scale * w.y, scale * w.z, scale * w.w);
            }
    }
}

unsigned blocksFor(std::int64_t units) { return unsigned((units + kWarps - 1) / kWarps); }

} // namespace

void packRows(const Launch& how, DType type, const void* low, const void* high, int rows, int cols, std::byte* packed) {
    const int chunks = packedChunks(type, cols);
    const std::int64_t units = std::int64_t(packedTiles(rows)) * chunks;
    if (units == 0) return;
    forFormat(type, [&](auto format) {
        launch(how, {dim3(blocksFor(units)), dim3(kThreads)}, packKernel<decltype(format)>, "packing the weights",
               static_cast<const std::uint8_t*>(low), static_cast<const std::uint8_t*>(high), rows, cols, chunks, units,
               packed);
    });
}

void unpackRows(const Launch& how, DType type, const std::byte* packed, int cols, int firstRow, int rows, Bf16* out) {
    const int chunks = packedChunks(type, cols);
    const std::int64_t units = std::int64_t(packedTiles(rows)) * chunks;
    if (units == 0) return;
    const std::byte* from =
        packed + std::size_t(firstRow / 16) * std::size_t(chunks) * std::size_t(packedChunk(type).bytes);
    forFormat(type, [&](auto format) {
        launch(how, {dim3(blocksFor(units)), dim3(kThreads)}, unpackKernel<decltype(format)>, "unpacking the weights",
               from, cols, chunks, rows, units, out);
    });
}

void embedPacked(const Launch& how, DType type, const std::byte* packed, int cols, const std::int32_t* ids, int n,
                 float* x, float scale, std::uint32_t* clear, int clearCount, std::uint64_t* mark) {
    if (n == 0) return;
    forFormat(type, [&](auto format) {
        launch(how, {dim3(unsigned(n)), dim3(kThreads)}, embedPackedKernel<decltype(format)>, "embedding tokens",
               packed, cols, packedChunks(type, cols), ids, x, scale, clear, clearCount, mark);
    });
}

} // namespace kvscope::cuda
