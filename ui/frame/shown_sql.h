// Writes SQL that returns the numbers that a view shows, to be pasted into sqlite3 or a notebook. It uses the views of
// docs/trace-format.md, and the table `runs` for the bytes of KV heads.
#pragma once

#include "profiler/read/filtered.h"

#include <QString>

namespace kvscope::ui {

/// The limits of a statement; -1: not limited.
struct SqlScope {
    int runId = 0;
    int firstStep = 0, lastStep = 0;
    int layer = -1, sequence = -1, kvHead = -1;
    ReadFilter filter{}; // the parts of the shared filter that the view applies
};

/// Selects step, layer (or step, seq, kv_head) and the metric: one row per cell of the heatmap. `perHead`: the rows are
/// the KV heads of scope.layer instead of whole layers.
QString localitySql(const SqlScope& scope, Metric metric, bool perHead);
/// Selects one row per selection of a KV head with the number of blocks, the hits and the misses. The blocks themselves
/// are in a blob, which SQL cannot read.
QString selectionSql(const SqlScope& scope);
/// Selects hits, misses, bytes and link times per step, only of the filter's layers or KV heads if it names some.
QString transfersSql(const SqlScope& scope);
/// Selects the times of the stages per step.
QString stageStepsSql(const SqlScope& scope);
/// Selects the times of the stages summed over the steps, per phase and layer.
QString stageSumsSql(const SqlScope& scope);
/// SQL for what every denoising forward of a block-diffusion run read and wrote: a row for each position of its block,
/// with the share of the scope's layers and KV heads in which the position was active. `block`: tokens of a block.
QString denoisingSql(const SqlScope& scope, int block);
/// Selects the mean locality of all layers and heads per decode step.
QString stepLocalitySql(const SqlScope& scope);
/// Selects the link time of each layer, summed over the decode steps: all of it, and the exposed part.
QString exposureSql(const SqlScope& scope);

} // namespace kvscope::ui
