// All attention and transfer kernels: how the KV cache lies in GPU memory and in pinned host memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvscope::cuda {

/// Numbers every attention kernel needs.
struct AttentionShape {
    int queryHeads = 0, kvHeads = 0, dim = 0, blockSize = 0;
    int latentValue = 0; // latent attention: a token's value is this many first channels of its key; 0: not latent
    int group() const { return queryHeads / kvHeads; }
    int valueDim() const { return latentValue > 0 ? latentValue : dim; }
};

/// Most query heads that share a KV head; most of them with latent attention.
constexpr int kMostGroup = 32, kMostLatentHeads = 64;

/// dim 64 or 128, or latent attention (attention_latent.h) with one KV head; group 1..kMostGroup, or
/// ..kMostLatentHeads; blockSize a multiple of 16 up to 256. @throws Error(Unsupported) otherwise
void checkAttentionShape(const AttentionShape& shape);

/// Division by a number that is known at launch, as one multiplication: exact for 0 <= n < 2^24 and divisors up to 256.
struct Divider {
    std::uint32_t magic = 0; // 0: divide by 1
    int divisor = 1;
    Divider() = default;
    explicit Divider(int by)
        : magic(by > 1 ? std::uint32_t(((std::uint64_t(1) << 32) + unsigned(by) - 1) / unsigned(by)) : 0), divisor(by) {
    }
#ifdef __CUDACC__
    __device__ int operator()(int n) const { return magic == 0 ? n : int(__umulhi(unsigned(n), magic)); }
#endif
};

/// Elements of one KV block of one KV head, bf16, contiguous: keys [blockSize, dim], then values transposed
/// [dim, blockSize]. In this order 16 neighbouring bytes of a key are a tensor-core operand of the product with the
/// queries, and 16 neighbouring bytes of a value's channel one of the product with the probabilities.
constexpr std::size_t blockElements(int blockSize, int dim) {
    return std::size_t(2) * std::size_t(blockSize) * std::size_t(dim);
}
/// With latent attention keys alone: [blockSize, dim].
constexpr std::size_t blockElements(const AttentionShape& shape) {
    return std::size_t(shape.latentValue > 0 ? 1 : 2) * std::size_t(shape.blockSize) * std::size_t(shape.dim);
}
constexpr std::size_t blockBytes(const AttentionShape& shape) { return blockElements(shape) * 2; }
constexpr std::size_t blockBytes(int blockSize, int dim) { return blockElements(blockSize, dim) * 2; }

} // namespace kvscope::cuda
