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
/// To be called on a worker thread. Parts of the result are empty if the span has no step or layer, or if the trace
/// does not have them.
SpanContext readSpanContext(const TraceReader& reader, int runId, const SpanPlace& place, int step, int layer,
                            const SpanRows* rows = nullptr);

/// The place of a span in the file, by which it is found again after the index has changed; and the span at a place,
/// absent while it is not read.
SpanPlace placeOfSpan(const SpanIndex& index, SpanRef ref);
std::optional<SpanRef> spanAtPlace(const SpanIndex& index, const SpanPlace& place);
/// The recorded flows as arrows from or to `ref`, as far as their other ends are read.
std::vector<SpanFlow> arrowsOf(const SpanIndex& index, SpanRef ref, const std::vector<RecordedFlow>& flows);

/// What a run says of its link.
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

/// What a component does, such as "attention over the selected blocks" for stage2; empty if that is not known.
QString meaningOf(std::string_view component);

} // namespace kvscope::ui
