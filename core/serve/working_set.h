// The working set of a request: which blocks its last w steps selected (SparseServe).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope::serve {

/// Counts, for one (row, layer, KV head), the blocks that any of the last w steps selected: one byte per block with the
/// step of its last selection, which is what a selection kernel can keep beside its choice.
class WorkingSet {
public:
    /// window: w, 1 to 64 steps. @throws Error(BadInput) outside of that
    explicit WorkingSet(int window);

    /// A step selected these blocks, each of them at most once, ids from 0 on.
    void step(std::span<const std::int32_t> blocks);
    /// Blocks in the union of the last w steps, or of all steps while there are fewer.
    int blocks() const { return size_; }
    /// Of the last step's blocks those that no step of the union before it had selected.
    int surprises() const { return surprises_; }
    /// Steps that were counted, at most w.
    int steps() const { return steps_; }
    /// Forgets everything, for another request.
    void clear();

private:
    int window_, steps_ = 0, size_ = 0, surprises_ = 0;
    std::uint8_t now_ = 0;           // the last step's number: 1 to 2w, and then 1 again
    std::vector<std::uint8_t> last_; // [block] number of the step that selected it last; 0: none of the window
    std::vector<std::vector<std::int32_t>> recent_; // [step % w] what it selected
};

} // namespace kvscope::serve
