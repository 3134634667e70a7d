// Facts about a span in words and numbers, for the panel below the timeline and the tooltip over it.
#pragma once

#include "ui/timeline/timeline_scene.h"

#include "profiler/read/recorded_flows.h"
#include "profiler/read/span_detail.h"
#include "profiler/read/span_kind.h"
#include "profiler/read/trace_reader.h"

#include <QStringList>

#include <optional>
#include <utility>
#include <vector>

namespace kvscope::ui {

/// The facts about a span's step and layer that the trace has beyond the span itself.
struct SpanContext {
    std::optional<StepRow> step;
    std::optional<LayerRecord> layer;
    std::vector<RecordedFlow> flows; // where the trace has calls, or was imported
    SpanDetail detail;               // of imported runs
    std::optional<SpanKind> kind;    // of what is read so far; readSpanContext does not know it
};
/// Worker thread. Empty parts where the span has no step or layer, or they were not recorded.
SpanContext readSpanContext(const TraceReader& reader, int runId, const SpanPlace& place, int step, int layer,
                            const SpanRows* rows = nullptr);

/// Where a span lies, and back: the span may not be read yet, or be another by now.
SpanPlace placeOfSpan(const SpanIndex& index, SpanRef ref);
std::optional<SpanRef> spanAtPlace(const SpanIndex& index, const SpanPlace& place);
/// The recorded flows as arrows from or to `ref`, as far as their other ends are read.
std::vector<SpanFlow> arrowsOf(const SpanIndex& index, SpanRef ref, const std::vector<RecordedFlow>& flows);

/// The run's knowledge of its link.
struct LinkKnowledge {
    QString timing;  // "measured" or "modelled"
    double gbps = 0; // 10^9 bytes a second at most; 0: not known
    Knowledge knows; // of the run
};

using SpanFacts = std::vector<std::pair<QString, QString>>; // name, value

/// The facts in the order in which they are read. flows: the arrows that begin or end at the span.
SpanFacts factsOf(const TimelineData& data, SpanRef ref, const std::vector<SpanFlow>& flows, const SpanContext& context,
                  const LinkKnowledge& link);

/// All names that factsOf can give, in their order.
QStringList spanFactNames();

/// The most telling facts as HTML: those that the span itself has, and what another tool said of it.
QString tooltipOf(const TimelineData& data, SpanRef ref, const SpanDetail& detail = {});

/// "attention over the selected blocks" of stage2; empty: nobody knows.
QString meaningOf(std::string_view component);

} // namespace kvscope::ui
