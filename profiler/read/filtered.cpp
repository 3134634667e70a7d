#include "profiler/read/filtered.h"

#include "profiler/format/trace_keys.h"
#include "profiler/read/head_bytes.h"
#include "profiler/read/reader_impl.h"
#include "profiler/read/run_knowledge.h"
#include "profiler/read/token_text.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <limits>
#include <map>
#include <set>
#include <tuple>

namespace kvscope {
namespace {

using Ranges = std::vector<std::pair<int, int>>;

bool inside(const Ranges& ranges, int value) {
    return ranges.empty() || std::any_of(ranges.begin(), ranges.end(), [value](const auto& range) {
               return range.first <= value && value <= range.second;
           });
}

/// The ranges as a condition on an SQL expression; numbers only, so nothing needs quoting.
std::string condition(const Ranges& ranges, const char* expression) {
    if (ranges.empty()) return "1";
    std::string sql;
    for (const auto& [first, last] : ranges)
        sql += fmt::format("{}({}) BETWEEN {} AND {}", sql.empty() ? "" : " OR ", expression, first, last);
    return "(" + sql + ")";
}

/// Whether one of the step's tokens holds the pattern bound as ?3; ?1 and ?2 are the first and last step's keys.
std::string textCondition(const ReadFilter& filter, const char* stepKey) {
    if (filter.text.empty()) return "1";
    return fmt::format("{} IN (SELECT id >> 20 FROM token WHERE id BETWEEN ?1 << 20 AND (?2 << 20) | 1048575"
                       " AND text LIKE ?3 ESCAPE '\\')",
                       stepKey);
}

void eraseLeftOut(const TraceReader& reader, int runId, const ReadFilter& filter, auto& rows) {
    if (rows.empty()) return;
    const int first = rows.front().step;
    const auto passes = stepsThatPass(reader, runId, filter, first, rows.back().step);
    std::erase_if(rows, [&](const auto& row) { return !passes[row.step - first]; });
}

constexpr const char* kStageColumns = "l.qkv_linear_ns, l.rope_ns, l.compression_ns, l.stage1_ns, l.pooling_ns,"
                                      " l.offloading_ns, l.stage2_ns, l.attention_ns, l.o_linear_ns, l.ffn_ns";

} // namespace

bool ReadFilter::hasLayer(int layer) const { return inside(layers, layer); }
bool ReadFilter::hasKvHead(int head) const { return inside(kvHeads, head); }
bool ReadFilter::hasStep(int step) const { return inside(steps, step); }

std::string likePattern(const std::string& text) {
    std::string pattern = "%";
    for (const char c : text) {
        if (c == '%' || c == '_' || c == '\\') pattern += '\\';
        pattern += c;
    }
    return pattern + '%';
}

Numbered<bool> stepsThatPass(const TraceReader& reader, int runId, const ReadFilter& filter, int first, int last) {
    Numbered<bool> passes(std::max(last - first + 1, 0));
    if (runId < 1 || runId > trace::kMaxRuns || first < 0 || last > trace::kMaxStep) return passes;
    if (filter.text.empty()) {
        for (int step = first; step <= last; ++step) passes[step - first] = filter.hasStep(step);
        return passes;
    }
    Statement tokens(*ReaderAccess::of(reader).connection, "SELECT DISTINCT id >> 20 FROM token"
                                                           " WHERE id BETWEEN ? AND ? AND text LIKE ? ESCAPE '\\'");
    const auto [low, high] = trace::keysOfSteps(runId, first, last, trace::kTokenShift);
    tokens.bindAll(low, high, std::string_view(likePattern(filter.text)));
    while (tokens.step()) {
        const int step = trace::stepOf(tokens.int64(0), 0);
        if (step >= first && step <= last && filter.hasStep(step)) passes[step - first] = true;
    }
    return passes;
}

Numbered<bool> blocksWithText(const TraceReader& reader, int runId, int sequence, const std::string& text) {
    const auto run = reader.run(runId);
    if (!run || run->blockSize <= 0 || sequence < 0) return {};
    TokenText all(run->blockSize);
    for (const TokenRow& token : reader.prompt(runId, sequence)) all.add(token);
    for (const TokenRow& token : reader.tokens(runId, sequence)) all.add(token);
    const std::vector<std::size_t> matches = all.firstMatches(text);
    Numbered<bool> found;
    found.assign(matches.size(), text.empty());
    for (std::size_t block = 0; block < found.size(); ++block)
        if (matches[block] != TokenText::kNowhere) found[block] = true;
    return found;
}

namespace {

/// Calls visit(row of a step) for each of the statement's rows whose step, its first column, is among these; both
/// ascend.
template <class StepOf, class Visit> void forEachStep(Statement& statement, std::vector<StepOf>& steps, Visit&& visit) {
    auto step = steps.begin();
    while (statement.step()) {
        const int number = trace::stepOf(statement.int64(0), 0);
        while (step != steps.end() && step->step < number) ++step;
        if (step == steps.end()) return;
        if (step->step == number) visit(*step);
    }
}

/// Columns 1 to 4: selected, kept, hits, misses.
void takeBlocks(const Statement& sums, StepRow& row) {
    row.selected = sums.int64(1);
    row.kept = sums.isNull(2) ? -1 : sums.int64(2);
    row.hits = sums.int64(3);
    row.misses = sums.int64(4);
}

/// The rows' sums over the selections of the filter's KV heads and layers.
void sumHeads(const TraceReader& reader, int runId, const ReadFilter& filter, std::vector<StepRow>& rows) {
    const ReaderAccess::Impl& impl = ReaderAccess::of(reader);
    const std::int64_t blockBytes = impl.known(runId).blockBytes;
    for (StepRow& row : rows) row.d2hBytes = row.transferNs = row.exposedNs = -1;
    // A layer's bytes are divided by its heads' misses only where the layer loaded these misses and nothing else. That
    // is not so where a method loads other things than blocks, nor where blocks come ahead of the step that misses
    // them.
    Statement layers(*impl.connection,
                     fmt::format("SELECT DISTINCT id >> 10 FROM layer_step WHERE id BETWEEN ? AND ? AND {}"
                                 " AND h2d_bytes <> misses * {}",
                                 condition(filter.layers, "id & 1023"), blockBytes));
    const auto [firstLayer, lastLayer] =
        trace::keysOfSteps(runId, rows.front().step, rows.back().step, trace::kLayerShift);
    layers.bindAll(firstLayer, lastLayer);
    std::set<int> unknown;
    while (layers.step()) unknown.insert(trace::stepOf(layers.int64(0), 0));
    Statement sums(*impl.connection,
                   fmt::format("SELECT id >> 30, sum(selected),"
                               " CASE WHEN count(CASE WHEN selected > 0 AND kept IS NULL THEN 1 END) = 0 THEN sum(kept)"
                               " END, sum(hits), sum(misses) FROM selection WHERE id BETWEEN ? AND ? AND {} AND {}"
                               " GROUP BY 1 ORDER BY 1",
                               condition(filter.layers, "(id >> 20) & 1023"), condition(filter.kvHeads, "id & 1023")));
    const auto [low, high] = trace::keysOfSteps(runId, rows.front().step, rows.back().step, trace::kSelectionShift);
    sums.bindAll(low, high);
    forEachStep(sums, rows, [&](StepRow& row) {
        takeBlocks(sums, row);
        row.h2dBytes =
            unknown.contains(row.step) ? -1 : std::int64_t(std::uint64_t(row.misses) * std::uint64_t(blockBytes));
    });
}

/// The metric's value, from a row's columns: selected (of selections with a step before), kept, hits, misses, the mean
/// of meanedColumn(), and whether the bytes are those of the misses.
float headValue(const Statement& row, int column, Metric metric, double blockBytes) {
    constexpr float undefined = std::numeric_limits<float>::quiet_NaN();
    const auto share = [&](double part, double whole) { return whole > 0 ? float(part / whole) : undefined; };
    const double hits = row.real(column + 2), misses = row.real(column + 3);
    switch (metric) {
    case Metric::Locality:
        return share(row.real(column + 1), row.real(column));
    case Metric::HitRate:
        return share(hits, hits + misses);
    case Metric::Misses:
        return float(misses);
    case Metric::H2dBytes:
        return row.int64(column + 5) != 0 ? float(misses * blockBytes) : undefined;
    case Metric::Mass:
    case Metric::Recall:
    case Metric::FarMass:
        return row.isNull(column + 4) ? undefined : float(row.real(column + 4));
    case Metric::ExposedTime:
    case Metric::LayerTime:
        break; // recorded for whole layers only
    }
    return undefined;
}

/// The column of layer_step that holds a stage's time; empty: no stage of a layer.
std::string stageColumn(const std::string& component) {
    for (const auto& name : kStageNames)
        if (component == name) return fmt::format("{}_ns", name);
    return {};
}

} // namespace

namespace {

std::vector<StepRow> sumsOfFilteredSteps(const TraceReader& reader, int runId, const ReadFilter& filter, int firstStep,
                                         int lastStep) {
    std::vector<StepRow> rows = reader.steps(runId, firstStep, lastStep);
    eraseLeftOut(reader, runId, filter, rows);
    if (rows.empty() || (filter.layers.empty() && filter.kvHeads.empty())) return rows;
    for (StepRow& row : rows) {
        row.selected = row.hits = row.misses = row.h2dBytes = row.d2hBytes = row.transferNs = row.exposedNs = 0;
        row.kept = -1;
    }
    const ReaderAccess::Impl& impl = ReaderAccess::of(reader);
    if (!filter.kvHeads.empty()) {
        sumHeads(reader, runId, filter, rows);
        return rows;
    }
    Statement sums(*impl.connection,
                   "SELECT l.id >> 10, sum(selected),"
                   " CASE WHEN count(CASE WHEN selected > 0 AND kept IS NULL THEN 1 END) = 0 THEN sum(kept) END,"
                   " sum(hits), sum(misses), sum(h2d_bytes), sum(d2h_bytes), sum(h2d_ns + d2h_ns), sum(exposed_ns)"
                   " FROM layer_step l WHERE l.id BETWEEN ? AND ? AND " +
                       condition(filter.layers, "l.id & 1023") + " GROUP BY 1 ORDER BY 1");
    const auto [low, high] = trace::keysOfSteps(runId, rows.front().step, rows.back().step, trace::kLayerShift);
    sums.bindAll(low, high);
    forEachStep(sums, rows, [&](StepRow& row) {
        takeBlocks(sums, row);
        row.h2dBytes = sums.int64(5);
        row.d2hBytes = sums.int64(6);
        row.transferNs = sums.int64(7);
        row.exposedNs = sums.int64(8);
    });
    return rows;
}

} // namespace

std::vector<StepRow> filteredSteps(const TraceReader& reader, int runId, const ReadFilter& filter, int firstStep,
                                   int lastStep) {
    std::vector<StepRow> rows = sumsOfFilteredSteps(reader, runId, filter, firstStep, lastStep);
    if (rows.empty()) return rows;
    hideUnknown(ReaderAccess::of(reader).known(runId).knows, rows);
    return rows;
}

StepMatrix filteredLayers(const TraceReader& reader, int runId, Metric metric, int sequence, const ReadFilter& filter,
                          int firstStep, int lastStep) {
    const bool byHead = !filter.kvHeads.empty(), byStage = metric == Metric::LayerTime && !filter.component.empty();
    StepMatrix matrix;
    if (byHead || byStage) {
        const ReaderAccess::Impl& impl = ReaderAccess::of(reader);
        const RunRow run = impl.known(runId);
        matrix = impl.emptyMatrix(runId, firstStep, lastStep, run.layers);
        for (int layer = 0; layer < run.layers; ++layer) matrix.rowNames.push_back(fmt::format("layer {}", layer));
        if (matrix.values.empty() || !run.knows.has(neededBy(metric))) return matrix;
        const std::string stage = byStage ? stageColumn(filter.component) : std::string();
        std::string sql;
        if (byHead)
            sql = fmt::format("SELECT c.id >> 20, sum(CASE WHEN kept IS NOT NULL THEN selected END), sum(kept),"
                              " sum(hits), sum(misses), avg({}), {} FROM selection c WHERE c.id BETWEEN ?1 << 20 AND"
                              " (?2 << 20) | 1048575 AND ?3 IN (-1, (c.id >> 10) & 1023) AND {} GROUP BY 1",
                              impl.meanedColumn(metric),
                              metric == Metric::H2dBytes ? bytesAreOfMisses("c", run.blockBytes) : "1",
                              condition(filter.kvHeads, "c.id & 1023"));
        else // a stage outside the layers takes no time in them
            sql = fmt::format("SELECT id, {} / 1e3 FROM layer_step WHERE id BETWEEN ?1 AND ?2 AND ?3 = -1",
                              stage.empty() ? "0" : stage);
        Statement rows(*impl.connection, sql);
        const auto [low, high] =
            trace::keysOfSteps(runId, matrix.firstStep, matrix.firstStep + matrix.steps - 1, trace::kLayerShift);
        rows.bindAll(low, high, sequence);
        while (rows.step()) {
            const int layer = int(rows.int64(0) & 1023);
            const int step = trace::stepOf(rows.int64(0), trace::kLayerShift) - matrix.firstStep;
            if (layer >= matrix.rows || step < 0 || step >= matrix.steps) continue;
            matrix.at(step, layer) = byHead ? headValue(rows, 1, metric, double(run.blockBytes)) : float(rows.real(1));
        }
    } else {
        matrix = reader.layerMatrix(runId, metric, {sequence, -1}, firstStep, lastStep);
    }
    const auto passes = stepsThatPass(reader, runId, filter, matrix.firstStep, matrix.firstStep + matrix.steps - 1);
    for (int step = 0; step < matrix.steps; ++step)
        for (int layer = 0; layer < matrix.rows; ++layer)
            if (!passes[step] || !filter.hasLayer(layer))
                matrix.at(step, layer) = std::numeric_limits<float>::quiet_NaN();
    return matrix;
}

std::vector<BreakdownStep> filteredBreakdownSteps(const TraceReader& reader, int runId, const ReadFilter& filter,
                                                  int firstStep, int lastStep) {
    std::vector<BreakdownStep> steps = reader.breakdownSteps(runId, firstStep, lastStep);
    eraseLeftOut(reader, runId, filter, steps);
    if (steps.empty() || filter.layers.empty()) return steps;
    for (BreakdownStep& step : steps) step = {step.step, 0, {}, {}, 0};
    Statement rows(
        *ReaderAccess::of(reader).connection,
        fmt::format("SELECT l.id >> 10, {} FROM layer_step l WHERE l.id BETWEEN ? AND ? AND {} ORDER BY l.id",
                    kStageColumns, condition(filter.layers, "l.id & 1023")));
    const auto [low, high] = trace::keysOfSteps(runId, steps.front().step, steps.back().step, trace::kLayerShift);
    rows.bindAll(low, high);
    forEachStep(rows, steps, [&](BreakdownStep& step) {
        for (std::size_t i = 0; i < step.stageNs.size(); ++i) {
            const std::int64_t ns = rows.int64(1 + int(i));
            step.stageNs[i] = std::int64_t(std::uint64_t(step.stageNs[i]) + std::uint64_t(ns));
            step.durationNs = std::int64_t(std::uint64_t(step.durationNs) + std::uint64_t(ns));
        }
    });
    return steps;
}

namespace {

/// A breakdown in the making.
class BreakdownSums {
public:
    BreakdownSums(const TraceReader& reader, const ReadFilter& filter) : filter_(filter) {
        Connection& open = *ReaderAccess::of(reader).connection;
        const std::string steps = condition(filter.steps, "s.id & 0x1FFFFFF"), texts = textCondition(filter, "s.id");
        layers_ = Statement(open, fmt::format("SELECT s.phase, l.id & 1023, {} FROM step s CROSS JOIN layer_step l"
                                              " ON l.id BETWEEN s.id << 10 AND (s.id << 10) | 1023"
                                              " WHERE s.id BETWEEN ?1 AND ?2 AND {} AND {} AND {}",
                                              kStageColumns, steps, texts, condition(filter.layers, "l.id & 1023")));
        if (filter.layers.empty())
            steps_ =
                Statement(open, fmt::format("SELECT phase, duration_ns, embed_ns, lm_head_ns, sample_ns FROM step s"
                                            " WHERE s.id BETWEEN ?1 AND ?2 AND {} AND {}",
                                            steps, texts));
    }

    /// Adds those steps of the run, from the first to the last one, that pass the filter.
    void add(int runId, int first, int last) {
        const auto bind = [&](Statement& statement) {
            statement.reset();
            statement.bindAll(trace::stepKey(runId, first), trace::stepKey(runId, last));
            if (!filter_.text.empty()) statement.bind(3, std::string_view(likePattern(filter_.text)));
        };
        bind(layers_);
        while (layers_.step()) {
            const int phase = layers_.int64(0) == 0 ? 0 : 1;
            for (int i = 0; i < kStageCount; ++i) {
                const std::int64_t ns = layers_.int64(2 + i);
                sums_[{phase, layers_.int32(1), i}].add(ns);
                inLayers_[std::size_t(phase)] += std::uint64_t(ns);
            }
        }
        if (!filter_.layers.empty()) return;
        bind(steps_);
        while (steps_.step()) {
            const int phase = steps_.int64(0) == 0 ? 0 : 1;
            auto other = std::uint64_t(steps_.int64(1));
            for (int i = 0; i < kStepStageCount; ++i) {
                sums_[{phase, -1, kStageCount + i}].add(steps_.int64(2 + i));
                other -= std::uint64_t(steps_.int64(2 + i));
            }
            Sum& rest = sums_[{phase, -1, kRest}];
            ++rest.calls;
            rest.ns += other;
        }
    }

    std::vector<BreakdownRow> rows() const {
        std::vector<BreakdownRow> result;
        for (const auto& [key, sum] : sums_) {
            if (sum.calls == 0) continue;
            const auto [phase, layer, component] = key;
            const std::string_view name = component < kStageCount ? kStageNames[std::size_t(component)]
                                          : component < kRest ? kStepStageNames[std::size_t(component - kStageCount)]
                                                              : kOtherName;
            const std::uint64_t ns = component == kRest ? sum.ns - inLayers_[std::size_t(phase)] : sum.ns;
            result.push_back({Phase(phase), std::string(name), layer, sum.calls, std::int64_t(ns)});
        }
        return result;
    }

private:
    static constexpr int kRest = kStageCount + kStepStageCount;
    struct Sum {
        std::int64_t calls = 0;
        std::uint64_t ns = 0; // unsigned: absurd numbers of a damaged file wrap instead of being undefined
        void add(std::int64_t value) { calls += value != 0, ns += std::uint64_t(value); }
    };
    const ReadFilter& filter_;
    Statement layers_, steps_;
    std::map<std::tuple<int, int, int>, Sum> sums_; // phase, layer (-1: outside), component in pipeline order
    std::array<std::uint64_t, 2> inLayers_{};
};

} // namespace

std::vector<BreakdownRow> filteredBreakdown(const TraceReader& reader, int runId, const ReadFilter& filter) {
    if (filter.layers.empty() && filter.steps.empty() && filter.text.empty()) return reader.breakdown(runId);
    BreakdownSums sums(reader, filter);
    sums.add(runId, 0, trace::kMaxStep);
    return sums.rows();
}

std::vector<BreakdownRow> breakdownOf(const TraceReader& reader, int runId, const ReadFilter& filter,
                                      std::span<const int> steps) {
    BreakdownSums sums(reader, filter);
    for (std::size_t first = 0, last = 0; first < steps.size(); first = last + 1) {
        last = first;
        while (last + 1 < steps.size() && steps[last + 1] == steps[last] + 1) ++last;
        sums.add(runId, steps[first], steps[last]);
    }
    return sums.rows();
}

} // namespace kvscope
