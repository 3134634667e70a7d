#include "core/engine/cpu/cpu_page_bounds.h"

#include "core/diffusion/locality.h"

#include <limits>

namespace kvscope {

void CpuPageBounds::clear() {
    items_.clear();
    firstOf_.assign(1, 0);
}

void CpuPageBounds::score() {
    std::size_t scores = 0;
    for (const RangeBoundItem& item : items_) scores += std::size_t(item.blocks);
    scores_.resize(scores);
    float* next = scores_.data();
    for (RangeBoundItem& item : items_) {
        item.scores = next;
        next += item.blocks;
    }
    RangeBoundArgs args;
    args.group = 1;
    args.dim = args.qStride = dim_;
    args.items = items_;
    kernels_.rangeBound(args);
}

void CpuPageBounds::choose(std::size_t head, int pagesPerQuery, std::span<const std::uint8_t> always,
                           std::span<std::uint8_t> chosen) {
    for (std::size_t page = 0; page < always.size(); ++page) chosen[page] |= always[page];
    for (std::size_t i = firstOf_[head]; i < firstOf_[head + 1]; ++i) {
        float* const scores = items_[i].scores;
        for (std::size_t page = 0; page < always.size(); ++page)
            if (always[page] != 0) scores[page] = -std::numeric_limits<float>::infinity();
        choosePages({scores, chosen.size()}, pagesPerQuery, chosen, order_);
    }
}

} // namespace kvscope
