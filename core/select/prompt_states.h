// What a method keeps of a prompt in one layer until that layer is read.
#pragma once

#include "core/select/selector.h"

#include <utility>
#include <vector>

namespace kvscope::select {

/// One State for each row and layer, so that prompts can be read in turns, and a prompt in chunks that go through all
/// layers: what is kept between two pieces is touched neither by other prompts nor by other layers. Memory is held only
/// for layers that are being read.
template <class State> class PromptStates {
public:
    explicit PromptStates(const SelectorContext& context)
        : layers_(context.shape.layers), states_(std::size_t(context.sequences() * context.shape.layers)) {}

    /// The state of the chunk's prompt in the chunk's layer; a new one with the first piece.
    State& of(const PromptChunk& chunk) {
        State& state = at(chunk.layer, chunk.sequence);
        if (chunk.first == 0) state = {};
        return state;
    }
    /// Gives the state of a row and layer away: the layer is read.
    State take(int layer, int row) { return std::exchange(at(layer, row), {}); }

private:
    State& at(int layer, int row) { return states_[std::size_t(row * layers_ + layer)]; }

    int layers_;
    std::vector<State> states_; // [row][layer]
};

} // namespace kvscope::select
