#include "ui/views/shown_sql.h"

#include <QStringList>

namespace kvscope::ui {

namespace {

QString where(const SqlScope& scope, const QString& more = {}) {
    QStringList terms{QStringLiteral("run_id = %1").arg(scope.runId),
                      QStringLiteral("step BETWEEN %1 AND %2").arg(scope.firstStep).arg(scope.lastStep)};
    if (scope.layer >= 0) terms << QStringLiteral("layer = %1").arg(scope.layer);
    if (scope.sequence >= 0) terms << QStringLiteral("seq = %1").arg(scope.sequence);
    if (scope.kvHead >= 0) terms << QStringLiteral("kv_head = %1").arg(scope.kvHead);
    if (!more.isEmpty()) terms << more;
    return QStringLiteral("WHERE ") + terms.join(QStringLiteral(" AND "));
}

/// Of a row of v_layer.
QString layerValue(Metric metric) {
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
        return QStringLiteral("duration_ns / 1e3 AS layer_us");
    case Metric::Mass:
        return QStringLiteral("mass");
    }
    return {};
}

/// Summed over rows of v_locality.
QString headValue(Metric metric, int runId) {
    switch (metric) {
    case Metric::Locality: // selections without a step before them do not count
        return QStringLiteral(
            "sum(kept) * 1.0 / nullif(sum(CASE WHEN kept IS NOT NULL THEN selected END), 0) AS locality");
    case Metric::HitRate:
        return QStringLiteral("sum(hits) * 1.0 / nullif(sum(hits + misses), 0) AS hit_rate");
    case Metric::Misses:
        return QStringLiteral("sum(misses) AS misses");
    case Metric::H2dBytes:
        return QStringLiteral("sum(misses) * (SELECT block_bytes FROM runs WHERE run_id = %1) AS h2d_bytes").arg(runId);
    case Metric::Mass:
        return QStringLiteral("avg(mass) AS mass");
    case Metric::ExposedTime:
    case Metric::LayerTime:
        break; // recorded for whole layers only
    }
    return QStringLiteral("NULL AS undefined_per_head");
}

} // namespace

QString localitySql(const SqlScope& scope, Metric metric, bool perHead) {
    if (perHead)
        return QStringLiteral("SELECT step, seq, kv_head, %1\nFROM v_locality\n%2\nGROUP BY step, seq, kv_head\n"
                              "ORDER BY step, seq, kv_head;")
            .arg(headValue(metric, scope.runId), where(scope));
    if (scope.sequence >= 0 || scope.kvHead >= 0)
        return QStringLiteral(
                   "SELECT step, layer, %1\nFROM v_locality\n%2\nGROUP BY step, layer\nORDER BY step, layer;")
            .arg(headValue(metric, scope.runId), where(scope));
    return QStringLiteral("SELECT step, layer, %1\nFROM v_layer\n%2\nORDER BY step, layer;")
        .arg(layerValue(metric), where(scope));
}

QString selectionSql(const SqlScope& scope) {
    return QStringLiteral(
               "SELECT step, selected, kept, hits, misses, locality, mass\nFROM v_locality\n%1\nORDER BY step;")
        .arg(where(scope));
}

QString transfersSql(const SqlScope& scope) {
    return QStringLiteral("SELECT step, hits, misses, h2d_bytes, d2h_bytes, transfer_ns, exposed_ns\nFROM v_step\n%1\n"
                          "ORDER BY step;")
        .arg(where(scope));
}

QString stageStepsSql(const SqlScope& scope) {
    QStringList sums;
    for (const char* stage : {"qkv_linear", "rope", "compression", "stage1", "pooling", "offloading", "stage2",
                              "attention", "o_linear", "ffn"})
        sums << QStringLiteral("sum(%1_ns) AS %1_ns").arg(QLatin1String(stage));
    return QStringLiteral("SELECT step, %1\nFROM v_layer\n%2\nGROUP BY step\nORDER BY step;")
        .arg(sums.join(QStringLiteral(",\n       ")), where(scope));
}

QString stageSumsSql(const SqlScope& scope) {
    return QStringLiteral("SELECT phase, layer, component, calls, total_ns\nFROM v_breakdown\nWHERE run_id = %1\n"
                          "ORDER BY phase, layer, total_ns DESC;")
        .arg(scope.runId);
}

QString stepLocalitySql(const SqlScope& scope) {
    return QStringLiteral("SELECT step, CAST(kept AS REAL) / nullif(selected, 0) AS locality\nFROM v_step\n%1\n"
                          "ORDER BY step;")
        .arg(where(scope, QStringLiteral("phase = 'decode' AND kept IS NOT NULL")));
}

QString exposureSql(const SqlScope& scope) {
    return QStringLiteral("SELECT layer, sum(h2d_ns) AS transfer_ns, sum(exposed_ns) AS exposed_ns, sum(h2d_blocks) AS "
                          "blocks,\n       sum(h2d_bytes) AS bytes\nFROM v_layer\n%1\nGROUP BY layer\nORDER BY layer;")
        .arg(where(scope, QStringLiteral("phase = 'decode'")));
}

} // namespace kvscope::ui
