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
        : stateAt_(context.sequences(), context.shape.layers), states_(stateAt_.size()) {}

    /// The state of the piece's prompt in the piece's layer. The first piece makes a new one.
    State& of(const PromptPiece& piece) {
        State& state = at(piece.layer, piece.sequence);
        if (piece.first == 0) state = {};
        return state;
    }
    /// Moves the state of a row and layer out of here, when the layer is read.
    State take(LayerId layer, RowId row) { return std::exchange(at(layer, row), {}); }

private:
    State& at(LayerId layer, RowId row) { return states_[stateAt_.offset(row, layer)]; }

    Extents<RowId, LayerId> stateAt_;
    std::vector<State> states_;
};

} // namespace kvscope::select
