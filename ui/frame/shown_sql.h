// The SQL that gives what a view shows, to be pasted into sqlite3 or a notebook: the views of docs/trace-format.md
// only.
#pragma once

#include "profiler/read/filtered.h"

#include <QString>

namespace kvscope::ui {

/// What a statement is limited to; -1: not limited.
struct SqlScope {
    int runId = 0;
    int firstStep = 0, lastStep = 0;
    int layer = -1, sequence = -1, kvHead = -1;
    ReadFilter filter{}; // the parts of the shared filter that the view applies
};

/// step, layer (or layer, seq, kv_head) and the metric: one row per cell of the heatmap.
/// `perHead`: the KV heads of scope.layer instead of whole layers.
QString localitySql(const SqlScope& scope, Metric metric, bool perHead);
/// One row per selection of one KV head: which blocks there are is in a blob, so their count, hits and misses.
QString selectionSql(const SqlScope& scope);
/// Hits, misses, bytes and link times per step; of the filter's layers or KV heads where it names some.
QString transfersSql(const SqlScope& scope);
/// Times of the stages per step.
QString stageStepsSql(const SqlScope& scope);
/// Times of the stages summed over the steps, per phase and layer.
QString stageSumsSql(const SqlScope& scope);
/// Mean locality of all layers and heads per decode step.
QString stepLocalitySql(const SqlScope& scope);
/// Link time of each layer over the decode steps, exposed and in all.
QString exposureSql(const SqlScope& scope);

} // namespace kvscope::ui
