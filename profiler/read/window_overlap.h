// How much of what a step selects the steps before it had selected too, and how many blocks several steps select
// together, for windows of every length. SparseServe sizes its working sets by these numbers.
#pragma once

#include "base/indexed.h"
#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace kvscope {

/// Sums over the pools of a run. A pool is one KV head of one layer, of a sequence or of a served request. Its steps
/// are those that selected blocks for it.
struct WindowOverlap {
    struct Window {
        std::int64_t found = 0; // of `blocks`, those that at least one of the w steps before had selected
        // Over the steps that have w - 1 steps before them:
        std::int64_t steps = 0;
        std::int64_t held = 0; // blocks of the union of the w steps that end with each of these
        std::int64_t last = 0; // blocks of these steps alone
    };
    /// longest: the number of windows.
    explicit WindowOverlap(int longest = 0) : windows(longest) {}

    Numbered<Window> windows; // [w - 1]
    std::int64_t blocks = 0;  // of all steps but the first one of each pool

    /// Share of a step's blocks that at least one of the w steps before had selected. NaN where no pool has two steps.
    double overlap(int w) const;
    /// Blocks of the union of w steps over the blocks of one, 1 or more. NaN where no pool has w steps.
    double workingSet(int w) const;
    /// Mean blocks of the union of w steps in one pool. NaN where no pool has w steps.
    double heldByPool(int w) const;
};

/// Adds the steps of one pool to sums, in their order.
class WindowCounter {
public:
    /// blocks: what the next step selected, without duplicates. `sums` has as many windows at every call.
    void add(std::span<const std::int32_t> blocks, WindowOverlap& sums);

private:
    std::unordered_map<std::int32_t, std::int64_t> lastStep_; // by block: the last step that selected it
    Numbered<std::int64_t> lastIn_;   // [step % windows] blocks whose last step it is, of the last `windows` steps
    Numbered<std::int64_t> returned_; // [distance - 1] blocks of this step that were selected so many steps before
    std::int64_t steps_ = 0;
};

/// The decode steps of a run, whose selected blocks the trace holds; no blocks where it does not. Windows that no pool
/// has steps for are left out. @throws Error as TraceReader does, also for a damaged selection
WindowOverlap readWindowOverlap(const TraceReader& reader, int runId, int longest = 64);

} // namespace kvscope
