// The part of TraceReader that fills heatmaps and reads selections.
#include "base/error.h"
#include "profiler/format/selection_blob.h"
#include "profiler/format/trace_keys.h"
#include "profiler/read/head_bytes.h"
#include "profiler/read/reader_impl.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <utility>

namespace kvscope {
namespace {

constexpr float kUndefined = std::numeric_limits<float>::quiet_NaN();
constexpr std::size_t kMostCells = std::size_t(1) << 26; // 256 MiB: more than any screen or trace of ours needs

const char* layerExpression(Metric metric) {
    switch (metric) {
    case Metric::Locality:
        return "CASE WHEN kept BETWEEN 0 AND selected THEN CAST(kept AS REAL) / nullif(selected, 0) END";
    case Metric::HitRate:
        return "CASE WHEN hits >= 0 AND misses >= 0 THEN CAST(hits AS REAL) / nullif(hits + misses, 0) END";
    case Metric::Misses:
        return "misses";
    case Metric::H2dBytes:
        return "h2d_bytes";
    case Metric::ExposedTime:
        return "CASE WHEN exposed_ns >= 0 THEN exposed_ns / 1e3 END";
    case Metric::LayerTime:
        return "(qkv_linear_ns + rope_ns + compression_ns + stage1_ns + pooling_ns + offloading_ns + stage2_ns + "
               "attention_ns"
               " + o_linear_ns + ffn_ns) / 1e3";
    case Metric::Mass:
        return "mass";
    case Metric::Recall:
        return "(SELECT avg(recall) FROM oracle o WHERE o.id BETWEEN layer_step.id << 20 AND"
               " (layer_step.id << 20) | 1048575)";
    case Metric::FarMass:
        return "(SELECT avg(far_mass) FROM oracle o WHERE o.id BETWEEN layer_step.id << 20 AND"
               " (layer_step.id << 20) | 1048575)";
    }
    return "NULL";
}

/// Sums over selection rows, and what a metric makes of them.
struct HeadSums {
    double kept = 0, comparable = 0, hits = 0, misses = 0, meaned = 0;
    int rows = 0, defined = 0;
    bool bytesKnown = true; // whether every row states the bytes of its misses

    /// Columns of `row` from `column` on: selected, kept, hits, misses, meanedColumn(), whether the bytes are those of
    /// the misses.
    void add(const Statement& row, int column) {
        ++rows;
        bytesKnown &= row.int64(column + 5) != 0;
        const bool possible = row.int64(column + 1) >= 0 && row.int64(column + 1) <= row.int64(column);
        if (!row.isNull(column + 1) && possible) { // otherwise the row breaks a rule of the format
            comparable += row.real(column);
            kept += row.real(column + 1);
        }
        hits += row.real(column + 2);
        misses += row.real(column + 3);
        if (!row.isNull(column + 4)) meaned += row.real(column + 4), ++defined;
    }
    float value(Metric metric, double blockBytes) const {
        if (rows == 0) return kUndefined;
        switch (metric) {
        case Metric::Locality:
            return comparable > 0 ? float(kept / comparable) : kUndefined;
        case Metric::HitRate:
            return hits + misses > 0 ? float(hits / (hits + misses)) : kUndefined;
        case Metric::Misses:
            return float(misses);
        case Metric::H2dBytes:
            return bytesKnown ? float(misses * blockBytes) : kUndefined;
        case Metric::Mass:
        case Metric::Recall:
        case Metric::FarMass:
            return defined > 0 ? float(meaned / defined) : kUndefined;
        case Metric::ExposedTime:
        case Metric::LayerTime:
            break; // recorded for whole layers only
        }
        return kUndefined;
    }
};

} // namespace

std::string TraceReader::Impl::meanedColumn(Metric metric) const {
    if (metric == Metric::Mass) return "c.mass";
    if (!isOfOracle(metric) || !hasTable("oracle")) return "NULL";
    return fmt::format("(SELECT {} FROM oracle o WHERE o.id = c.id)", metric == Metric::Recall ? "recall" : "far_mass");
}

std::string TraceReader::Impl::headColumns(Metric metric, std::int64_t blockBytes) const {
    return fmt::format("c.id, c.selected, c.kept, c.hits, c.misses, {}, {}", meanedColumn(metric),
                       metric == Metric::H2dBytes ? bytesAreOfMisses("c", blockBytes) : "1");
}

bool TraceReader::Impl::hasTable(std::string_view name) const {
    Statement there(*connection, "SELECT 1 FROM sqlite_schema WHERE type='table' AND name=?");
    there.bind(1, name);
    return there.step();
}

StepMatrix TraceReader::Impl::emptyMatrix(int runId, int firstStep, int lastStep, int rows) const {
    const StepRange steps = range(runId, firstStep, lastStep);
    StepMatrix matrix;
    matrix.firstStep = steps.first;
    matrix.steps = steps.count();
    matrix.rows = rows;
    const std::size_t cells = matrix.extents().size();
    if (cells > kMostCells)
        throw Error(ErrorKind::Unsupported,
                    fmt::format("{} steps x {} rows of {} do not fit into one picture", matrix.steps, rows, path),
                    "choose a shorter range of steps");
    matrix.values.assign(cells, kUndefined);
    return matrix;
}

StepMatrix TraceReader::layerMatrix(int runId, Metric metric, HeadFilter filter, int firstStep, int lastStep) const {
    const RunRow run = impl_->known(runId);
    StepMatrix matrix = impl_->emptyMatrix(runId, firstStep, lastStep, run.layers);
    for (int layer = 0; layer < run.layers; ++layer) matrix.rowNames.push_back(fmt::format("layer {}", layer));
    if (matrix.values.empty() || !run.knows.has(neededBy(metric))) return matrix;
    const int last = matrix.firstStep + matrix.steps - 1;
    const auto cell = [&](int step, int layer) -> float* {
        if (layer >= matrix.rows) return nullptr; // a row of a layer the run says it does not have
        return &matrix.at(step - matrix.firstStep, layer);
    };

    if (filter.sequence < 0 && filter.kvHead < 0) {
        if (isOfOracle(metric) && !impl_->hasTable("oracle")) return matrix;
        const auto [low, high] = trace::keysOfSteps(runId, matrix.firstStep, last, trace::kLayerShift);
        Statement rows(*impl_->connection,
                       fmt::format("SELECT id, {} FROM layer_step WHERE id BETWEEN ? AND ?", layerExpression(metric)));
        rows.bindAll(low, high);
        while (rows.step()) {
            const std::int64_t id = rows.int64(0);
            float* value = cell(trace::stepOf(id, trace::kLayerShift), int(id & 1023));
            if (value && !rows.isNull(1)) *value = float(rows.real(1));
        }
        return matrix;
    }

    // One sequence, or one head of it: a look-up per (step, layer), whatever the batch. Else a scan that the filter
    // thins out.
    const bool single = filter.sequence >= 0 && filter.kvHead >= 0;
    const char* from = single ? "layer_step l CROSS JOIN selection c ON c.id = (l.id << 20) | (?3 << 10) | ?4"
                                " WHERE l.id BETWEEN ?1 AND ?2"
                       : filter.sequence >= 0
                           ? "layer_step l CROSS JOIN selection c ON c.id BETWEEN (l.id << 20) | (?3 << 10) AND"
                             " (l.id << 20) | (?3 << 10) | 1023 WHERE l.id BETWEEN ?1 AND ?2 AND ?4 < 0"
                           : "selection c WHERE c.id BETWEEN ?1 << 20 AND (?2 << 20) | 1048575"
                             " AND ?3 IN (-1, (c.id >> 10) & 1023) AND ?4 IN (-1, c.id & 1023)";
    Statement rows(*impl_->connection,
                   fmt::format("SELECT {} FROM {}", impl_->headColumns(metric, run.blockBytes), from));
    const auto [low, high] = trace::keysOfSteps(runId, matrix.firstStep, last, trace::kLayerShift);
    rows.bindAll(low, high, std::clamp(filter.sequence, -1, trace::kMaxSequences - 1),
                 std::clamp(filter.kvHead, -1, trace::kMaxKvHeads - 1));
    HeadSums sums;
    std::int64_t current = -1; // layer key being summed; keys ascend
    const auto store = [&] {
        if (current < 0) return;
        if (float* value = cell(trace::stepOf(current, trace::kLayerShift), int(current & 1023)))
            *value = sums.value(metric, double(run.blockBytes));
    };
    while (rows.step()) {
        const std::int64_t key = rows.int64(0) >> 20;
        if (key != current) {
            store();
            sums = {};
            current = key;
        }
        sums.add(rows, 1);
    }
    store();
    return matrix;
}

StepMatrix TraceReader::headMatrix(int runId, Metric metric, int layer, int firstStep, int lastStep) const {
    const RunRow run = impl_->known(runId);
    StepMatrix matrix = impl_->emptyMatrix(runId, firstStep, lastStep, run.sequences * run.kvHeads);
    for (int sequence = 0; sequence < run.sequences; ++sequence)
        for (int head = 0; head < run.kvHeads; ++head)
            matrix.rowNames.push_back(run.sequences > 1 ? fmt::format("sequence {}, head {}", sequence, head)
                                                        : fmt::format("head {}", head));
    if (matrix.values.empty() || layer < 0 || layer >= trace::kMaxLayers || !run.knows.has(neededBy(metric)))
        return matrix;
    Statement rows(*impl_->connection,
                   fmt::format("SELECT {} FROM step s CROSS JOIN selection c ON c.id BETWEEN (s.id << 30) | (?3 << 20)"
                               " AND (s.id << 30) | (?3 << 20) | 1048575 WHERE s.id BETWEEN ?1 AND ?2",
                               impl_->headColumns(metric, run.blockBytes)));
    rows.bindAll(trace::stepKey(runId, matrix.firstStep), trace::stepKey(runId, matrix.firstStep + matrix.steps - 1),
                 layer);
    const Extents<int, int, int> cells(matrix.steps, run.sequences, run.kvHeads);
    while (rows.step()) {
        const std::int64_t id = rows.int64(0);
        const int sequence = int((id >> 10) & 1023), head = int(id & 1023);
        if (sequence >= run.sequences || head >= run.kvHeads) continue;
        HeadSums sums;
        sums.add(rows, 1);
        const int step = trace::stepOf(id, trace::kSelectionShift) - matrix.firstStep;
        matrix.values[cells.offset(step, sequence, head)] = sums.value(metric, double(run.blockBytes));
    }
    return matrix;
}

void TraceReader::Impl::readSelection(const Statement& row, Knowledge knows, SelectionRow& into) const {
    const std::int64_t id = row.int64(0);
    into.step = trace::stepOf(id, trace::kSelectionShift);
    into.layer = int((id >> 20) & 1023);
    into.sequence = int((id >> 10) & 1023);
    into.kvHead = int(id & 1023);
    const std::int64_t selected = row.int64(1);
    into.selected = int(std::clamp<std::int64_t>(selected, 0, std::numeric_limits<int>::max()));
    into.kept = row.isNull(2) ? -1 : row.int32(2);
    into.hits = row.int32(3);
    into.misses = row.int32(4);
    into.mass = row.isNull(5) ? kUndefined : float(row.real(5));
    into.knowsHits = knows.has(Known::Hits);
    into.blocks.clear();
    into.scores.clear();
    if (row.isNull(6)) return;
    if (!decodeSelection(row.blob(6), into.blocks, into.scores) || std::int64_t(into.blocks.size()) != selected)
        damaged(fmt::format("the selection of step {}, layer {}, sequence {}, KV head {} cannot be decoded", into.step,
                            into.layer, into.sequence, into.kvHead));
}

void TraceReader::Impl::eachSelection(int runId, int layer, int sequence, int kvHead, int firstStep, int lastStep,
                                      const std::function<void(SelectionRow& row)>& visit) const {
    const bool inside = layer >= 0 && layer < trace::kMaxLayers && sequence >= 0 && sequence < trace::kMaxSequences &&
                        kvHead >= 0 && kvHead < trace::kMaxKvHeads;
    const StepRange steps = range(runId, firstStep, lastStep);
    if (!inside || steps.count() == 0) return;
    Statement rows(*connection, "SELECT c.id, c.selected, c.kept, c.hits, c.misses, c.mass, c.blocks FROM step s"
                                " CROSS JOIN selection c ON c.id = (s.id << 30) | ?3 WHERE s.id BETWEEN ?1 AND ?2");
    rows.bindAll(trace::stepKey(runId, steps.first), trace::stepKey(runId, steps.last),
                 trace::selectionKey(0, 0, layer, sequence, kvHead));
    const Knowledge knows = known(runId).knows;
    SelectionRow row;
    while (rows.step()) {
        readSelection(rows, knows, row);
        visit(row);
    }
}

std::vector<SelectionRow> TraceReader::selections(int runId, int layer, int sequence, int kvHead, int firstStep,
                                                  int lastStep) const {
    std::vector<SelectionRow> result;
    impl_->eachSelection(runId, layer, sequence, kvHead, firstStep, lastStep,
                         [&](SelectionRow& row) { result.push_back(std::exchange(row, {})); });
    return result;
}

std::optional<SelectionRow> TraceReader::selection(int runId, int step, int layer, int sequence, int kvHead) const {
    auto rows = step < 0 ? std::vector<SelectionRow>{} : selections(runId, layer, sequence, kvHead, step, step);
    if (rows.empty()) return std::nullopt;
    return std::move(rows.front());
}

} // namespace kvscope
