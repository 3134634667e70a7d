#include "ui/timeline/timeline_sql.h"

#include "ui/timeline/timeline_curves.h"

#include <cmath>

namespace kvscope::ui {

namespace {

QString quoted(const std::string& text) {
    return QLatin1Char('\'') + QString::fromStdString(text).replace(QLatin1Char('\''), QStringLiteral("''")) +
           QLatin1Char('\'');
}

const QString kColumns = QStringLiteral("track, depth, name, step, layer, start_ns, duration_ns");

} // namespace

QString rangeSql(int runId, const TimeRange& range, const std::string& track) {
    QString text = QStringLiteral("SELECT %1\nFROM v_span\nWHERE run_id = %2 AND start_ns < %3 AND start_ns + "
                                  "duration_ns > %4")
                       .arg(kColumns)
                       .arg(runId)
                       .arg(qint64(std::ceil(range.to)))
                       .arg(qint64(std::floor(range.from)));
    if (!track.empty()) text += QStringLiteral(" AND track = ") + quoted(track);
    return text + QStringLiteral("\nORDER BY start_ns, depth;");
}

QString spanSql(int runId, const TimelineData& data, SpanRef ref) {
    const SpanLane lane = data.index.lane(ref.lane);
    const TimelineSpan span = data.index.at(ref);
    return QStringLiteral(
               "SELECT %1\nFROM v_span\nWHERE run_id = %2 AND start_ns = %3 AND duration_ns = %4 AND depth = "
               "%5\n  AND track = %6 AND name = %7;")
        .arg(kColumns)
        .arg(runId)
        .arg(span.startNs)
        .arg(span.durationNs)
        .arg(lane.depth)
        .arg(quoted(data.index.tracks()[lane.track]), quoted(data.index.names()[span.name]));
}

QString nameSql(int runId, const std::string& name) {
    return QStringLiteral("SELECT %1\nFROM v_span\nWHERE run_id = %2 AND name = %3\nORDER BY start_ns;")
        .arg(kColumns)
        .arg(runId)
        .arg(quoted(name));
}

QString trackSql(int runId, const std::string& track) {
    return QStringLiteral("SELECT name, count(*) AS spans, sum(duration_ns) AS total_ns, avg(duration_ns) AS mean_ns,\n"
                          "       max(duration_ns) AS longest_ns\nFROM v_span\nWHERE run_id = %1 AND track = %2\nGROUP "
                          "BY name\nORDER BY total_ns DESC;")
        .arg(runId)
        .arg(quoted(track));
}

QString curveSql(int runId, const TimelineData& data, int curve) {
    if (isGauge(curve)) {
        const GaugeInfo& info = data.gauges[curve - StepCounters::kCount].info;
        if (info.source == GaugeInfo::Source::Interval)
            return QStringLiteral("SELECT start_ns, duration_ns, value, value * 1e9 / nullif(duration_ns, 0) AS "
                                  "per_second\nFROM v_counter\nWHERE run_id = %1 AND track = %2\nORDER BY start_ns;")
                .arg(runId)
                .arg(quoted(info.track));
        if (info.source == GaugeInfo::Source::Oracle)
            return QStringLiteral("SELECT o.step, s.start_ns, s.duration_ns, 100 * avg(o.recall) AS recall_percent,\n"
                                  "       100 * (1 - avg(o.mass)) AS lost_mass_percent\nFROM v_oracle o JOIN v_step s "
                                  "USING (run_id, step)\nWHERE run_id = %1\nGROUP BY o.step\nORDER BY o.step;")
                .arg(runId);
        if (info.source == GaugeInfo::Source::Held)
            return QStringLiteral("SELECT time_ns, value\nFROM v_gauge\nWHERE run_id = %1 AND track = %2\nORDER BY "
                                  "time_ns;")
                .arg(runId)
                .arg(quoted(info.track));
    }
    return QStringLiteral("SELECT step, phase, start_ns, duration_ns, tokens, hits, misses, h2d_bytes, d2h_bytes,\n"
                          "       tokens * 1e9 / nullif(duration_ns, 0) AS tokens_per_second,\n"
                          "       hits * 1.0 / nullif(hits + misses, 0) AS hit_rate\nFROM v_step\nWHERE run_id = %1\n"
                          "ORDER BY step;")
        .arg(runId);
}

QString notesSql(int runId) {
    return QStringLiteral("SELECT start_ns, duration_ns, text, created_utc\nFROM note\nWHERE run_id = %1\nORDER BY "
                          "start_ns;")
        .arg(runId);
}

} // namespace kvscope::ui
