// Joins neighbouring symbols, best pair first and leftmost among equals, until no pair may be joined. A heap over a
// linked list keeps this near-linear in the length of the piece, however long it is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

namespace kvscope::tokenizing {

struct Symbol {
    std::uint32_t begin, size; // bytes of the piece
    std::int32_t id;
};

struct Join {
    double rank; // lowest first
    std::int32_t id;
};

/// find(left, right, join) tells whether the two may be joined, and how.
template <class Find> void mergeSymbols(std::vector<Symbol>& symbols, const Find& find) {
    struct Candidate {
        double rank;
        std::uint32_t left, size;
        std::int32_t id;
        bool operator<(const Candidate& other) const { // the heap keeps the largest on top
            return rank != other.rank ? rank > other.rank : left > other.left;
        }
    };
    constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();
    if (symbols.size() < 2) return;
    const auto count = std::uint32_t(symbols.size());
    thread_local std::vector<std::uint32_t> next, previous;
    thread_local std::vector<Candidate> heap;
    next.resize(count), previous.resize(count), heap.clear();
    for (std::uint32_t i = 0; i < count; ++i)
        next[i] = i + 1 < count ? i + 1 : none, previous[i] = i == 0 ? none : i - 1;
    const auto consider = [&](std::uint32_t left, bool sift) {
        if (left == none || next[left] == none) return;
        const Symbol &a = symbols[left], &b = symbols[next[left]];
        Join join;
        if (!find(a, b, join)) return;
        heap.push_back({join.rank, left, a.size + b.size, join.id});
        if (sift) std::push_heap(heap.begin(), heap.end());
    };
    for (std::uint32_t i = 0; i + 1 < count; ++i) consider(i, false);
    std::make_heap(heap.begin(), heap.end());
    while (!heap.empty()) {
        const Candidate best = heap.front();
        std::pop_heap(heap.begin(), heap.end());
        heap.pop_back();
        const std::uint32_t left = best.left, right = next[left];
        // Symbols only grow, so equal sizes mean that both are as they were.
        if (right == none || symbols[left].size == 0 || symbols[left].size + symbols[right].size != best.size) continue;
        symbols[left].size = best.size;
        symbols[left].id = best.id;
        symbols[right].size = 0;
        next[left] = next[right];
        if (next[left] != none) previous[next[left]] = left;
        consider(previous[left], true);
        consider(left, true);
    }
    std::erase_if(symbols, [](const Symbol& symbol) { return symbol.size == 0; });
    if (heap.capacity() > (1U << 20)) std::vector<Candidate>().swap(heap); // one huge text is no reason to keep it
}

} // namespace kvscope::tokenizing
