// What another engine tells of a run beside its steps: values over time, spans that flows can name, requests.
#pragma once

#include "core/trace/serving_record.h"
#include "core/trace/trace_sink.h"

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace kvscope {

/// A value that holds until the track's next one: a row of table gauge.
struct HeldValue {
    std::string track;   // with its unit: "KV cache used (bytes)"
    std::int64_t ns = 0; // on the run's clock
    double value = 0;    // a finite number
};

/// A span with a number of the run's own, by which a flow names it. The spans of a run either all have numbers or none.
struct EngineSpan {
    SpanRecord span;
    std::int64_t number = 0;    // from 1 on, each once
    std::string category, args; // table span_detail: a word, and one JSON object; empty: none
};

/// Which numbered span led to which. Both were told before.
struct EngineFlow {
    std::int64_t from = 0, to = 0;
};

/// A request of another engine as it is now; told again, it replaces what was told of its number before.
struct EngineRequest {
    ServedRequest request;
    std::string externalId;                     // the engine's own name of it; empty: none
    std::int32_t firstStep = -1, lastStep = -1; // between which it had its row; -1: none yet
    std::vector<RequestSpan> spans;             // that ended since it was told the last time
};

/// A row of table run_meta, in place of the one with its key. An empty value: there is none any more.
struct MetaRow {
    std::string key, value;
};

using EngineEvent = std::variant<std::vector<HeldValue>, std::vector<CounterSample>, std::vector<EngineSpan>,
                                 EngineFlow, EngineRequest, MetaRow>;

} // namespace kvscope
