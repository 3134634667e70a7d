// Views in which a part of a run's time can be marked, for commands that use such a part.
#pragma once

#include "profiler/export/export.h"

#include <optional>

namespace kvscope::ui {

/// A View may be one too.
class MarksRange {
public:
    virtual ~MarksRange() = default;
    /// The marked range of the current run; absent: nothing is marked.
    virtual std::optional<ExportRange> markedRange() const = 0;
};

} // namespace kvscope::ui
