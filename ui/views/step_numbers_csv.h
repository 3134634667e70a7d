// Exports of views over steps: runs one after the other, a part of their steps at a time.
#pragma once

#include "profiler/read/trace_reader.h"
#include "ui/frame/numbers.h"
#include "ui/frame/workspace.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace kvscope::ui {

/// A field of text, quoted.
inline std::string csvText(const std::string& text) {
    std::string field = "\"";
    for (const char c : text) field += c == '"' ? std::string("\"\"") : std::string(1, c);
    return field + '"';
}

/// write(reader, index of the run, first step, last step) for the steps [first, last] of every run that has them.
template <class Write>
void forEachPart(const std::vector<std::pair<RunKey, std::string>>& runs, int first, int last, NumberSink& sink,
                 const Write& write) {
    constexpr int steps = 512; // short enough to be stopped soon
    for (std::size_t run = 0; run < runs.size(); ++run) {
        TraceReader reader(runs[run].first.path.toStdString());
        reader.setInterrupt(sink.interrupt());
        const int end = std::min(last, reader.stepCount(runs[run].first.runId) - 1);
        for (int from = first; from <= end; from += steps) {
            const int to = std::min(from + steps - 1, end);
            write(reader, run, from, to);
            sink.progress((double(run) + double(to + 1 - first) / double(end - first + 1)) / double(runs.size()));
        }
    }
}

} // namespace kvscope::ui
