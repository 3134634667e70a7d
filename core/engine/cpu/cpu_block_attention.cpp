#include "core/engine/cpu/cpu_block_attention.h"

#include <algorithm>
#include <limits>

namespace kvscope {
namespace {

constexpr int kMostQueries = 128; // of one group, as the kernel takes them

} // namespace

/// Pieces of as many tokens as fit into one group.
void CpuBlockAttention::cut(std::span<const Work> work) {
    const std::size_t most = std::size_t(std::max(1, kMostQueries / group()));
    pieces_.clear();
    std::size_t rows = 0;
    for (const Work& each : work) {
        bool open = false;
        for (int token = 0; token < 64; ++token) {
            if ((each.tokens >> token & 1) == 0) continue;
            if (!open || pieces_.back().tokens.size() == most) pieces_.push_back({&each, {}, rows});
            open = true;
            pieces_.back().tokens.push_back(token);
            ++rows;
        }
    }
    const std::size_t heads = rows * std::size_t(group());
    q_.resize(heads * std::size_t(shape_.dim));
    out_.resize(heads * std::size_t(shape_.valueDim));
    lse_.resize(heads);
}

void CpuBlockAttention::gather(const Piece& piece) {
    const std::size_t floats = std::size_t(group()) * std::size_t(shape_.dim),
                      row = std::size_t(shape_.queryHeads) * std::size_t(shape_.dim);
    for (std::size_t i = 0; i < piece.tokens.size(); ++i)
        std::copy_n(piece.work->q + std::size_t(piece.tokens[i]) * row + std::size_t(piece.work->kvHead) * floats,
                    floats, q_.data() + (piece.at + i) * floats);
}

void CpuBlockAttention::scatter(const Piece& piece) {
    const std::size_t heads = std::size_t(group()), floats = heads * std::size_t(shape_.valueDim);
    for (std::size_t i = 0; i < piece.tokens.size(); ++i) {
        const std::size_t head = std::size_t(piece.tokens[i] * shape_.queryHeads + piece.work->kvHead * group());
        float* const out = piece.work->out + head * std::size_t(shape_.valueDim);
        float* const lse = piece.work->lse + head;
        if (piece.work->views.empty()) {
            std::fill_n(out, floats, 0.f);
            std::fill_n(lse, heads, -std::numeric_limits<float>::infinity());
        } else {
            std::copy_n(out_.data() + (piece.at + i) * floats, floats, out);
            std::copy_n(lse_.data() + (piece.at + i) * heads, heads, lse);
        }
    }
}

void CpuBlockAttention::run(std::span<const Work> work) {
    cut(work);
    kernels_.forEach(int(pieces_.size()), [&](int i) { gather(pieces_[std::size_t(i)]); });
    for (auto& [tokens, items] : items_) items.clear();
    const std::size_t heads = std::size_t(group());
    for (const Piece& piece : pieces_) {
        if (piece.work->views.empty()) continue;
        const std::size_t first = piece.at * heads;
        items_[piece.tokens.size()].push_back({q_.data() + first * std::size_t(shape_.dim), piece.work->views.data(),
                                               std::int32_t(piece.work->views.size()),
                                               out_.data() + first * std::size_t(shape_.valueDim),
                                               lse_.data() + first});
    }
    for (const auto& [tokens, items] : items_) {
        if (items.empty()) continue;
        kernels_.blockAttention({int(tokens * heads), shape_.dim, shape_.blockSize, shape_.dim, shape_.valueDim,
                                 shape_.scale, 0.f, items, shape_.valueDim});
    }
    kernels_.forEach(int(pieces_.size()), [&](int i) { scatter(pieces_[std::size_t(i)]); });
}

} // namespace kvscope
