// What a span is, in words and numbers: for the panel below the timeline and the tooltip over it.
#pragma once

#include "ui/timeline/timeline_scene.h"

#include "profiler/read/trace_reader.h"

#include <QStringList>

#include <optional>
#include <utility>
#include <vector>

namespace kvscope::ui {

/// What the trace knows about a span's step and layer beyond the span itself.
struct SpanContext {
    std::optional<StepRow> step;
    std::optional<LayerRecord> layer;
};
/// Worker thread. Empty parts where the span has no step or layer, or they were not recorded.
SpanContext readSpanContext(const TraceReader& reader, int runId, int step, int layer);

/// Rows "name, value" in the order they are read. `timing`: how the run knows its transfer times.
std::vector<std::pair<QString, QString>> factsOf(const TimelineData& data, SpanRef ref, const SpanContext& context,
                                                 const QString& timing);

/// All names that factsOf can give, in their order.
QStringList spanFactNames();

/// The same in short, as HTML.
QString tooltipOf(const TimelineData& data, SpanRef ref);

} // namespace kvscope::ui
