// Reads the selections of a run step by step.
#pragma once

#include "profiler/format/trace_keys.h"
#include "profiler/read/reader_impl.h"

#include <span>
#include <tuple>
#include <vector>

namespace kvscope {

/// In order of layer, sequence, KV head.
class StepSelections {
public:
    StepSelections(const TraceReader& reader, int runId)
        : impl_(ReaderAccess::of(reader)), runId_(runId),
          rows_(*impl_.connection,
                "SELECT id, selected, kept, hits, misses, mass, blocks FROM selection WHERE id BETWEEN ? AND ?"
                " ORDER BY id",
                true) {}
    /// Valid until the next call. @throws Error(BadInput) if a selection is damaged, Error(Cancelled | Storage)
    std::span<const SelectionRow> of(int step) {
        rows_.reset();
        const auto [low, high] = trace::keysOfSteps(runId_, step, step, trace::kSelectionShift);
        rows_.bindAll(low, high);
        std::size_t count = 0;
        for (; rows_.step(); ++count) {
            if (count == selections_.size()) selections_.emplace_back();
            impl_.readSelection(rows_, {}, selections_[count]);
        }
        return std::span(selections_).first(count);
    }

private:
    const ReaderAccess::Impl& impl_;
    int runId_;
    Statement rows_;
    /// As many as the largest step had, so that each keeps its memory for the next step.
    std::vector<SelectionRow> selections_;
};

inline auto placeOf(const SelectionRow& row) { return std::tuple(row.layer, row.sequence, row.kvHead); }

} // namespace kvscope
