#include "core/engine/cpu/cpu_block_attention.h"

#include <algorithm>
#include <limits>

namespace kvscope {
namespace {

constexpr int kMostQueries = 128; // queries of one group: the kernel takes no more
constexpr int kMostTokens = 64;   // of a block: bits of Work::tokens

} // namespace

/// Cuts every work into pieces of as many tokens as fit into one group of the kernel, and makes room for their rows.
void CpuBlockAttention::cut(std::span<const Work> work) {
    const std::size_t most = std::size_t(std::max(1, kMostQueries / group()));
    pieces_.clear();
    int rows = 0;
    for (const Work& each : work) {
        bool open = false;
        for (int token = 0; token < kMostTokens; ++token) {
            if ((each.tokens >> token & 1) == 0) continue;
            if (!open || pieces_.back().tokens.size() == most) pieces_.push_back({&each, {}, rows});
            open = true;
            pieces_.back().tokens.push_back(token);
            ++rows;
        }
    }
    queryAt_ = Extents<int, int, int>(rows, group(), shape_.dim);
    outAt_ = Extents<int, int, int>(rows, group(), shape_.valueDim);
    lseAt_ = Extents<int, int>(rows, group());
    q_.resize(queryAt_.size());
    out_.resize(outAt_.size());
    lse_.resize(lseAt_.size());
}

void CpuBlockAttention::gather(const Piece& piece) {
    const auto from = rows(kMostTokens, shape_.dim);
    int row = piece.at;
    for (const int token : piece.tokens)
        std::copy_n(piece.work->q + from.first(token, piece.work->kvHead), queryAt_.under(0),
                    q_.data() + queryAt_.first(row++));
}

void CpuBlockAttention::scatter(const Piece& piece) {
    const auto outputs = rows(kMostTokens, shape_.valueDim), sums = rows(kMostTokens, 1);
    int row = piece.at;
    for (const int token : piece.tokens) {
        float* const out = piece.work->out + outputs.first(token, piece.work->kvHead);
        float* const lse = piece.work->lse + sums.first(token, piece.work->kvHead);
        if (piece.work->views.empty()) {
            std::fill_n(out, outAt_.under(0), 0.f);
            std::fill_n(lse, lseAt_.under(0), -std::numeric_limits<float>::infinity());
        } else {
            std::copy_n(out_.data() + outAt_.first(row), outAt_.under(0), out);
            std::copy_n(lse_.data() + lseAt_.first(row), lseAt_.under(0), lse);
        }
        ++row;
    }
}

void CpuBlockAttention::run(std::span<const Work> work) {
    cut(work);
    kernels_.forEach(int(pieces_.size()), [&](int i) { gather(pieces_[i]); });
    for (auto& [tokens, items] : items_) items.clear();
    for (const Piece& piece : pieces_) {
        if (piece.work->views.empty()) continue;
        items_[piece.tokens.size()].push_back(
            {q_.data() + queryAt_.first(piece.at), piece.work->views.data(), std::int32_t(piece.work->views.size()),
             out_.data() + outAt_.first(piece.at), lse_.data() + lseAt_.first(piece.at)});
    }
    for (const auto& [tokens, items] : items_) {
        if (items.empty()) continue;
        kernels_.blockAttention({int(tokens) * group(), shape_.dim, shape_.blockSize, shape_.dim, shape_.valueDim,
                                 shape_.scale, 0.f, items, shape_.valueDim});
    }
    kernels_.forEach(int(pieces_.size()), [&](int i) { scatter(pieces_[i]); });
}

} // namespace kvscope
