#include "ui/frame/shown_sql.h"

#include "profiler/format/trace_keys.h"

#include <QStringList>

#include <algorithm>
#include <array>
#include <limits>

namespace kvscope::ui {

namespace {

constexpr std::array<const char*, 10> kStages{"qkv_linear", "rope",   "compression", "stage1",   "pooling",
                                              "offloading", "stage2", "attention",   "o_linear", "ffn"};

QString sqlText(const std::string& text) {
    return QLatin1Char('\'') + QString::fromStdString(text).replace(QLatin1Char('\''), QLatin1String("''")) +
           QLatin1Char('\'');
}

/// A condition such as "(layer BETWEEN 0 AND 3 OR layer = 7)"; empty if `ranges` is empty, which stands for all.
QString inRanges(const char* column, const std::vector<std::pair<int, int>>& ranges) {
    QStringList terms;
    for (const auto& [first, last] : ranges)
        terms << (first == last ? QStringLiteral("%1 = %2").arg(QLatin1String(column)).arg(first)
                  : last == std::numeric_limits<int>::max()
                      ? QStringLiteral("%1 >= %2").arg(QLatin1String(column)).arg(first)
                      : QStringLiteral("%1 BETWEEN %2 AND %3").arg(QLatin1String(column)).arg(first).arg(last));
    if (terms.size() < 2) return terms.value(0);
    return QLatin1Char('(') + terms.join(QStringLiteral(" OR ")) + QLatin1Char(')');
}

/// The conditions for the filter's steps: by number, and by the text of their tokens.
QStringList stepTerms(const SqlScope& scope) {
    QStringList terms{inRanges("step", scope.filter.steps)};
    if (!scope.filter.text.empty())
        terms << QStringLiteral("step IN (SELECT step FROM v_token WHERE run_id = %1 AND text LIKE %2 ESCAPE '\\')")
                     .arg(QString::number(scope.runId), sqlText(likePattern(scope.filter.text)));
    terms.removeAll(QString());
    return terms;
}

/// What the rows are about: steps, layers, or heads. This decides which columns they have besides run_id and step.
enum class Has { Steps, Layers, Heads };

QString where(const SqlScope& scope, Has has, const QString& more = {}) {
    QStringList terms{QStringLiteral("run_id = %1").arg(scope.runId),
                      QStringLiteral("step BETWEEN %1 AND %2").arg(scope.firstStep).arg(scope.lastStep)};
    if (scope.layer >= 0) terms << QStringLiteral("layer = %1").arg(scope.layer);
    if (scope.sequence >= 0) terms << QStringLiteral("seq = %1").arg(scope.sequence);
    if (scope.kvHead >= 0) terms << QStringLiteral("kv_head = %1").arg(scope.kvHead);
    terms << stepTerms(scope);
    if (has != Has::Steps) terms << inRanges("layer", scope.filter.layers);
    if (has == Has::Heads) terms << inRanges("kv_head", scope.filter.kvHeads);
    terms << more;
    terms.removeAll(QString());
    return QStringLiteral("WHERE ") + terms.join(QStringLiteral("\n  AND "));
}

bool isStage(const std::string& component) {
    return std::any_of(kStages.begin(), kStages.end(), [&](const char* stage) { return component == stage; });
}

/// The SQL for a metric of a row of v_layer.
QString layerValue(Metric metric, const std::string& component) {
    switch (metric) {
    case Metric::Locality:
        return QStringLiteral("CAST(kept AS REAL) / nullif(selected, 0) AS locality");
    case Metric::HitRate:
        return QStringLiteral("CAST(hits AS REAL) / nullif(hits + misses, 0) AS hit_rate");
    case Metric::Misses:
        return QStringLiteral("misses");
    case Metric::H2dBytes:
        return QStringLiteral("h2d_bytes");
    case Metric::ExposedTime:
        return QStringLiteral("exposed_ns / 1e3 AS exposed_us");
    case Metric::LayerTime:
        if (component.empty()) return QStringLiteral("duration_ns / 1e3 AS layer_us");
        return isStage(component) ? QStringLiteral("%1_ns / 1e3 AS layer_us").arg(QString::fromStdString(component))
                                  : QStringLiteral("0 AS layer_us");
    case Metric::Mass:
        return QStringLiteral("mass");
    case Metric::Recall:
    case Metric::FarMass:
        break; // recorded per head: see headValue
    }
    return {};
}

/// The SQL for the bytes of heads, summed over rows of v_locality h: the bytes of the heads' misses. The result is NULL
/// if one of the layers loaded something else too.
QString headBytes(int runId) {
    const QString blockBytes = QStringLiteral("(SELECT block_bytes FROM runs WHERE run_id = %1)").arg(runId);
    return QStringLiteral(
               "CASE WHEN max((step, layer) IN (SELECT step, layer FROM v_layer\n"
               "                  WHERE run_id = %2 AND h2d_bytes <> misses * %1)) = 0 THEN sum(misses) * %1 END")
        .arg(blockBytes)
        .arg(runId);
}

/// The SQL for a metric of heads, summed over rows of v_locality h.
QString headValue(Metric metric, int runId) {
    switch (metric) {
    case Metric::Locality: // a selection without a previous one does not count
        return QStringLiteral(
            "sum(kept) * 1.0 / nullif(sum(CASE WHEN kept IS NOT NULL THEN selected END), 0) AS locality");
    case Metric::HitRate:
        return QStringLiteral("sum(hits) * 1.0 / nullif(sum(hits + misses), 0) AS hit_rate");
    case Metric::Misses:
        return QStringLiteral("sum(misses) AS misses");
    case Metric::H2dBytes:
        return headBytes(runId) + QStringLiteral(" AS h2d_bytes");
    case Metric::Mass:
        return QStringLiteral("avg(mass) AS mass");
    case Metric::Recall:
        return QStringLiteral("avg(recall) AS recall");
    case Metric::FarMass:
        return QStringLiteral("avg(far_mass) AS far_mass");
    case Metric::ExposedTime:
    case Metric::LayerTime:
        break; // recorded for whole layers only
    }
    return QStringLiteral("NULL AS undefined_per_head");
}

} // namespace

QString localitySql(const SqlScope& scope, Metric metric, bool perHead) {
    const bool byHead = scope.sequence >= 0 || scope.kvHead >= 0 || !scope.filter.kvHeads.empty() || isOfOracle(metric);
    const auto from = isOfOracle(metric) ? QStringLiteral("v_oracle") : QStringLiteral("v_locality");
    if (perHead)
        return QStringLiteral("SELECT step, seq, kv_head, %1\nFROM %3 h\n%2\nGROUP BY step, seq, kv_head\n"
                              "ORDER BY step, seq, kv_head;")
            .arg(headValue(metric, scope.runId), where(scope, Has::Heads), from);
    if (byHead)
        return QStringLiteral("SELECT step, layer, %1\nFROM %3 h\n%2\nGROUP BY step, layer\nORDER BY step, layer;")
            .arg(headValue(metric, scope.runId), where(scope, Has::Heads), from);
    return QStringLiteral("SELECT step, layer, %1\nFROM v_layer\n%2\nORDER BY step, layer;")
        .arg(layerValue(metric, scope.filter.component), where(scope, Has::Layers));
}

QString selectionSql(const SqlScope& scope) {
    return QStringLiteral(
               "SELECT step, selected, kept, hits, misses, locality, mass\nFROM v_locality\n%1\nORDER BY step;")
        .arg(where(scope, Has::Heads));
}

QString denoisingSql(const SqlScope& scope, int block) {
    SqlScope tokens = scope;
    tokens.layer = tokens.kvHead = -1;
    return QStringLiteral("WITH layers(forward, active_set, density) AS MATERIALIZED (\n"
                          "  SELECT step, active_set, density FROM v_denoise_layer\n%1)\n"
                          "SELECT step, seq, position, input_id, token_id, confidence, written,\n"
                          "  avg(active_set >> (position % %2) & 1) AS active, avg(density) AS density\n"
                          "FROM v_denoise_token LEFT JOIN layers ON forward = step\n%3\n"
                          "GROUP BY step, position\nORDER BY step, position;")
        .arg(where(scope, Has::Heads), QString::number(std::max(block, 1)), where(tokens, Has::Steps));
}

QString transfersSql(const SqlScope& scope) {
    if (!scope.filter.kvHeads.empty()) // times, and bytes to the host, are recorded for whole layers only
        return QStringLiteral("SELECT step, sum(hits) AS hits, sum(misses) AS misses,\n"
                              "       %1 AS h2d_bytes\nFROM v_locality h\n%2\nGROUP BY step\nORDER BY step;")
            .arg(headBytes(scope.runId), where(scope, Has::Heads));
    if (!scope.filter.layers.empty())
        return QStringLiteral("SELECT step, sum(hits) AS hits, sum(misses) AS misses, sum(h2d_bytes) AS h2d_bytes,\n"
                              "       sum(d2h_bytes) AS d2h_bytes, sum(h2d_ns + d2h_ns) AS transfer_ns,\n"
                              "       sum(exposed_ns) AS exposed_ns\nFROM v_layer\n%1\nGROUP BY step\nORDER BY step;")
            .arg(where(scope, Has::Layers));
    return QStringLiteral("SELECT step, hits, misses, h2d_bytes, d2h_bytes, transfer_ns, exposed_ns\nFROM v_step\n%1\n"
                          "ORDER BY step;")
        .arg(where(scope, Has::Steps));
}

QString stageStepsSql(const SqlScope& scope) {
    const std::string& only = scope.filter.component;
    // This component lies outside the layers, so with a filter for layers there are no rows.
    if (!only.empty() && !isStage(only) && only != kOtherName)
        return QStringLiteral("SELECT step, %1_ns\nFROM v_step\n%2\nORDER BY step;")
            .arg(QString::fromStdString(only),
                 where(scope, Has::Steps, scope.filter.layers.empty() ? QString() : QStringLiteral("0")));
    if (only == kOtherName) { // the time that belongs to no named component
        QStringList named;
        for (const char* stage : kStages) named << QStringLiteral("%1_ns").arg(QLatin1String(stage));
        return QStringLiteral("SELECT step, duration_ns - embed_ns - lm_head_ns - sample_ns -\n"
                              "       (SELECT sum(%1)\n        FROM v_layer l WHERE l.run_id = s.run_id AND l.step = "
                              "s.step) AS other_ns\nFROM v_step s\n%2\nORDER BY step;")
            .arg(named.join(QStringLiteral(" + ")),
                 where(scope, Has::Steps, scope.filter.layers.empty() ? QString() : QStringLiteral("0")));
    }
    QStringList sums;
    for (const char* stage : kStages)
        if (only.empty() || only == stage) sums << QStringLiteral("sum(%1_ns) AS %1_ns").arg(QLatin1String(stage));
    return QStringLiteral("SELECT step, %1\nFROM v_layer\n%2\nGROUP BY step\nORDER BY step;")
        .arg(sums.join(QStringLiteral(",\n       ")), where(scope, Has::Layers));
}

QString stageSumsSql(const SqlScope& scope) {
    const ReadFilter& filter = scope.filter;
    if (filter.steps.empty() && filter.text.empty()) {
        QStringList terms{QStringLiteral("run_id = %1").arg(scope.runId), inRanges("layer", filter.layers)};
        if (!filter.component.empty()) terms << QStringLiteral("component = %1").arg(sqlText(filter.component));
        terms.removeAll(QString());
        return QStringLiteral("SELECT phase, layer, component, calls, total_ns\nFROM v_breakdown\nWHERE %1\n"
                              "ORDER BY phase, layer, total_ns DESC;")
            .arg(terms.join(QStringLiteral(" AND ")));
    }
    // v_breakdown sums over all steps. To sum over the filter's steps only, the rest of the function uses v_layer and
    // v_step.
    SqlScope all = scope;
    all.firstStep = 0;
    all.lastStep = trace::kMaxStep;
    QStringList parts;
    for (const char* stage : kStages)
        if (filter.component.empty() || filter.component == stage)
            parts << QStringLiteral("SELECT phase, layer, '%1' AS component, count(nullif(%1_ns, 0)) AS calls,\n"
                                    "       sum(%1_ns) AS total_ns\nFROM v_layer\n%2\nGROUP BY phase, layer")
                         .arg(QLatin1String(stage), where(all, Has::Layers));
    if (filter.layers.empty())
        for (const char* stage : {"embed", "lm_head", "sample"})
            if (filter.component.empty() || filter.component == stage)
                parts << QStringLiteral("SELECT phase, -1 AS layer, '%1' AS component, count(nullif(%1_ns, 0)) AS "
                                        "calls,\n       sum(%1_ns) AS total_ns\nFROM v_step\n%2\n"
                                        "GROUP BY phase")
                             .arg(QLatin1String(stage), where(all, Has::Steps));
    if (filter.layers.empty() && (filter.component.empty() || filter.component == kOtherName))
        parts
            << QStringLiteral(
                   "SELECT phase, -1 AS layer, 'other' AS component, sum(calls) AS calls, sum(ns) AS total_ns FROM (\n"
                   "  SELECT phase, 1 AS calls, duration_ns - embed_ns - lm_head_ns - sample_ns AS ns\n"
                   "  FROM v_step\n%1\n  UNION ALL\n  SELECT phase, 0, -duration_ns FROM v_layer\n%2)\n"
                   "GROUP BY phase")
                   .arg(where(all, Has::Steps), where(all, Has::Layers));
    if (parts.isEmpty()) return {};
    return QStringLiteral("SELECT * FROM (\n%1)\nWHERE calls > 0\nORDER BY phase, layer, total_ns DESC;")
        .arg(parts.join(QStringLiteral("\nUNION ALL\n")));
}

QString stepLocalitySql(const SqlScope& scope) {
    return QStringLiteral("SELECT step, CAST(kept AS REAL) / nullif(selected, 0) AS locality\nFROM v_step\n%1\n"
                          "ORDER BY step;")
        .arg(where(scope, Has::Steps, QStringLiteral("phase = 'decode' AND kept IS NOT NULL")));
}

QString exposureSql(const SqlScope& scope) {
    return QStringLiteral("SELECT layer, sum(h2d_ns) AS transfer_ns, sum(exposed_ns) AS exposed_ns, sum(h2d_blocks) AS "
                          "blocks,\n       sum(h2d_bytes) AS bytes\nFROM v_layer\n%1\nGROUP BY layer\nORDER BY layer;")
        .arg(where(scope, Has::Layers, QStringLiteral("phase = 'decode'")));
}

} // namespace kvscope::ui
