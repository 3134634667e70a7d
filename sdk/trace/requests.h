// The requests that a run works for, by the row of the batch that each has, and what the steps say of them.
#pragma once

#include "core/trace/trace_sink.h"
#include "profiler/format/engine_event.h"
#include "sdk/trace/kvscope_trace.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace kvscope::sdk {

/// Used by one thread at a time. What it returns is to be written: a request as it is now.
class Requests {
public:
    explicit Requests(int rows) : rows_(rows) {}

    /// now: for KVTRACE_NOW. row: set to the one that the request gets. @throws Refusal
    EngineRequest begin(const kvtrace_request& given, std::int64_t now, std::int32_t& row);
    /// @throws Refusal: no request has the row, or it cannot end like that
    EngineRequest end(std::int32_t row, std::int32_t outcome, std::string reason, std::int64_t endNs);
    /// Takes note of a step that has its number. timed: the run knows the times of steps; otherwise now counts. Returns
    /// the requests that the step was the first one of, or that made their first token in it.
    std::vector<EngineRequest> take(const StepRecord& step, bool timed, std::int64_t now);
    /// All requests that have not ended, for the end of the run.
    std::vector<EngineRequest> open() const;

private:
    struct Worked {
        bool decodes = false;
        std::int32_t tokens = 0;
        std::int64_t hits = 0, misses = 0;
    };
    std::map<std::int32_t, Worked> workedFor(const StepRecord& step) const;

    const int rows_;
    std::int64_t next_ = 0;                      // number of the next request
    std::map<std::int32_t, EngineRequest> open_; // [row]; their spans are left empty
};

} // namespace kvscope::sdk
