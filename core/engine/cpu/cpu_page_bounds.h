// Which pages of a prefix the queries of a diffusion block choose, by Quest's bound of a query's product with a page.
#pragma once

#include "kernels/kernels.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

/// Queries are listed head by head: add() for each query of a head, then endHead(). Memory is kept between lists.
class CpuPageBounds {
public:
    /// dim: channels of a query
    CpuPageBounds(Kernels& kernels, int dim) : kernels_(kernels), dim_(dim) {}

    /// Begins a new list.
    void clear();
    /// A query and the ranges of the `pages` pages that it chooses among, [pages, 2, dim]. Both last until score().
    void add(const float* query, const float* ranges, int pages) { items_.push_back({query, ranges, pages, nullptr}); }
    void endHead() { firstOf_.push_back(items_.size()); }
    /// Computes the bounds of all listed queries.
    void score();
    /// Sets in `chosen`, [pages], the pages that each query of a head chooses, and those that are `always` chosen,
    /// [pages] or empty, among which no query chooses.
    void choose(std::size_t head, int pagesPerQuery, std::span<const std::uint8_t> always,
                std::span<std::uint8_t> chosen);

private:
    Kernels& kernels_;
    const int dim_;
    std::vector<RangeBoundItem> items_; // one for each query
    std::vector<std::size_t> firstOf_;  // [heads + 1] where each head's part of items_ begins
    std::vector<float> scores_;         // of all items, one after the other
    std::vector<std::int32_t> order_;
};

} // namespace kvscope
