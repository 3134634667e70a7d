// dLLM-Cache: which tokens of a sequence a layer computed in its last forward, and in the one before it.
#pragma once

#include <cstdint>
#include <vector>

namespace kvscope {

struct ComputedTokens {
    std::vector<std::int32_t> positions; // ascending
    /// How many of `positions` the forward before computed too. -1: one of the two forwards computed all tokens, or
    /// they were of different blocks.
    int kept = -1;

    /// Begins a forward: no token is computed yet.
    void begin() {
        before_.swap(positions);
        positions.clear();
    }
    /// Adds the positions [first, end).
    void add(int first, int end);
    /// Called when the forward's positions are complete: counts `kept`. block: position of the first token of the block
    /// that is being written; tokens: of the sequence.
    void compare(int block, int tokens);
    /// Bit i: token i of the `tokens` from position `first` on was computed; of the first 64.
    std::uint64_t among(int first, int tokens) const;

private:
    std::vector<std::int32_t> before_;
    int block_ = -1;
    bool comparable_ = false; // the last forward did not compute all tokens, so the next one can be compared with it
};

} // namespace kvscope
