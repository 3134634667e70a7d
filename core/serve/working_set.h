// The working set of a request: which blocks its last w steps selected (SparseServe).
#pragma once

#include "base/indexed.h"
#include "kernels/packed_block.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope::serve {

/// Counts the blocks that any of the last w steps selected for one (row, layer, KV head). For each block it keeps one
/// byte, the number of the step that selected it last; a selection kernel can write such a byte beside its choice.
class WorkingSet {
public:
    /// window: w, 1 to 64 steps. @throws Error(BadInput) outside of that
    explicit WorkingSet(int window);

    /// Counts a step that selected these blocks, each at most once; ids begin at 0.
    void step(std::span<const PackedBlock> blocks);
    /// How many blocks the union of the last w steps has; of all steps while there are fewer than w.
    int blocks() const { return size_; }
    /// How many blocks of the last step were not in the union of the steps before it.
    int surprises() const { return surprises_; }
    /// How many steps were counted, at most w.
    int steps() const { return steps_; }
    /// Forgets all steps, so that another request can be counted.
    void clear();

private:
    int window_, steps_ = 0, size_ = 0, surprises_ = 0;
    std::uint8_t now_ = 0;        // number of the last step: 1 to 2w, then 1 again
    Numbered<std::uint8_t> last_; // [block] number of the step that selected it last; 0: no step of the window
    Numbered<std::vector<PackedBlock>> recent_; // [step % w] what it selected
};

} // namespace kvscope::serve
