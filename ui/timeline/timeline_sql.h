// SQL that gives what the timeline shows, over the views of docs/trace-format.md only.
#pragma once

#include "ui/timeline/timeline_scene.h"

#include <QString>

namespace kvscope::ui {

/// The spans that meet a range of a run, of one track if `track` is not empty.
QString rangeSql(int runId, const TimeRange& range, const std::string& track = {});
/// One span.
QString spanSql(int runId, const TimelineData& data, SpanRef ref);
/// All spans of this name: when, how long.
QString nameSql(int runId, const std::string& name);
/// Calls and total time of the names of a track.
QString trackSql(int runId, const std::string& track);
/// The samples of a curve.
QString curveSql(int runId, const TimelineData& data, int curve);
QString notesSql(int runId);

} // namespace kvscope::ui
