// dLLM-Cache: which tokens of a sequence a layer computed in its last forward, and in the one before it.
#pragma once

#include <cstdint>
#include <vector>

namespace kvscope {

struct ComputedTokens {
    std::vector<std::int32_t> positions; // ascending
    /// How many of them the forward before computed, too. -1: it was of another block, or computed all tokens.
    int kept = -1;

    /// Begins a forward: no token is computed yet.
    void begin() {
        before_.swap(positions);
        positions.clear();
    }
    /// Adds the positions [first, end).
    void add(int first, int end);
    /// The forward's positions are complete. Comparable are the forwards of one block that do not compute all tokens.
    /// block: position of the first token of the block that is being written; tokens: of the sequence.
    void compare(int block, int tokens);
    /// Bit i: token i of the `tokens` from position `first` on was computed; of the first 64.
    std::uint64_t among(int first, int tokens) const;

private:
    std::vector<std::int32_t> before_;
    int block_ = -1;
    bool comparable_ = false; // `before_` will be of a forward that did not compute all
};

} // namespace kvscope
