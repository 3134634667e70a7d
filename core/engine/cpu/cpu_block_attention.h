// Attention of several tokens that see the same keys: those of a diffusion block.
#pragma once

#include "base/extents.h"
#include "base/ids.h"
#include "base/indexed.h"
#include "core/engine/cpu/cpu_projections.h"
#include "kernels/kernels.h"

#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace kvscope {

/// To the kernel the query heads of many tokens are one group, so that it reads each key once for all of them. Scratch
/// memory is kept between calls.
class CpuBlockAttention {
public:
    struct Shape {
        int queryHeads = 0, kvHeads = 0, dim = 0, valueDim = 0;
        int blockSize = 0; // of the views
        float scale = 1;
    };
    /// The queries that some tokens of a block have for one KV head. `out` and `lse` are written for these tokens
    /// alone.
    struct Work {
        const float* q = nullptr; // [block, queryHeads, dim]
        KvHeadId kvHead{};
        std::uint64_t tokens = 0; // bit i: token i of the block
        std::span<const KvBlockView> views;
        float* out = nullptr; // [block, queryHeads, valueDim]
        float* lse = nullptr; // [block, queryHeads] natural logarithm of the softmax denominator
    };

    CpuBlockAttention(Kernels& kernels, const Shape& shape) : kernels_(kernels), shape_(shape) {}

    /// Bytes of scratch memory of a call whose work has all query heads of so many tokens.
    static std::int64_t scratchBytes(const Shape& shape, std::int64_t tokens) {
        return tokens * shape.queryHeads * (shape.dim + shape.valueDim + 1) * std::int64_t(sizeof(float));
    }

    /// Without views a token gets zeros and a log sum of -inf.
    void run(std::span<const Work> work);

private:
    struct Piece { // tokens of one work that are one item to the kernel
        const Work* work = nullptr;
        std::vector<int> tokens;
        int at = 0; // scratch row of the first token
    };
    int group() const { return shape_.queryHeads / shape_.kvHeads; }
    /// Queries of tokens, or outputs with other channels: [tokens, KV heads, query heads of a group, channels].
    Extents<int, KvHeadId, int, int> rows(int tokens, int channels) const {
        return Extents<int, KvHeadId, int, int>(tokens, shape_.kvHeads, group(), channels);
    }
    void cut(std::span<const Work> work);
    void gather(const Piece& piece);
    void scatter(const Piece& piece);

    Kernels& kernels_;
    const Shape shape_;
    Numbered<Piece> pieces_;
    // Of the scratch rows: [tokens of all pieces, group, channels], and without channels.
    Extents<int, int, int> queryAt_, outAt_;
    Extents<int, int> lseAt_;
    std::vector<float> q_, out_, lse_;
    std::map<std::size_t, std::vector<AttentionItem>> items_; // [tokens of an item]: a call has items of one size
};

} // namespace kvscope
