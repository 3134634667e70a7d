// What a method keeps of a prompt while one of its layers is read.
#pragma once

#include "core/select/selector.h"

#include <utility>
#include <vector>

namespace kvscope::select {

/// One State for each row, so that prompts can be read in turns: what is kept between two pieces of one prompt is not
/// touched by the pieces of another. Memory is held only for prompts that are being read.
template <class State> class PromptStates {
public:
    explicit PromptStates(int rows) : states_(std::size_t(rows)) {}

    /// The state of the chunk's prompt; a new one with the first piece of a layer.
    State& of(const PromptChunk& chunk) {
        State& state = states_[std::size_t(chunk.sequence)];
        if (chunk.first == 0) state = {};
        return state;
    }
    /// Gives the row's state away: its layer is read.
    State take(int row) { return std::exchange(states_[std::size_t(row)], {}); }

private:
    std::vector<State> states_; // [row]
};

} // namespace kvscope::select
