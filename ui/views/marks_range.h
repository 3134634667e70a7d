// A part of a run's time that a person has marked, for whoever can do something with it.
#pragma once

#include "profiler/export/export.h"

#include <optional>

namespace kvscope::ui {

/// A View may be one too.
class MarksRange {
public:
    virtual ~MarksRange() = default;
    /// Of the current run; absent: nothing is marked.
    virtual std::optional<ExportRange> markedRange() const = 0;
};

} // namespace kvscope::ui
