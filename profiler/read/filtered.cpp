#include "profiler/read/filtered.h"

#include "profiler/read/reader_impl.h"
#include "profiler/store/trace_keys.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <map>
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

constexpr const char* kStageColumns = "l.qkv_linear_ns, l.rope_ns, l.compression_ns, l.stage1_ns, l.pooling_ns,"
                                      " l.offloading_ns, l.stage2_ns, l.attention_ns, l.o_linear_ns, l.ffn_ns";

} // namespace

bool ReadFilter::hasStep(int step) const { return inside(steps, step); }

std::vector<StepRow> filteredSteps(const TraceReader& reader, int runId, const ReadFilter& filter, int firstStep,
                                   int lastStep) {
    std::vector<StepRow> rows = reader.steps(runId, firstStep, lastStep);
    std::erase_if(rows, [&](const StepRow& row) { return !filter.hasStep(row.step); });
    if (rows.empty() || filter.layers.empty()) return rows;
    for (StepRow& row : rows) {
        row.selected = row.hits = row.misses = row.h2dBytes = row.d2hBytes = row.transferNs = row.exposedNs = 0;
        row.kept = -1;
    }
    const ReaderAccess::Impl& impl = ReaderAccess::of(reader);
    Statement sums(*impl.connection,
                   "SELECT l.id >> 10, sum(selected),"
                   " CASE WHEN count(CASE WHEN selected > 0 AND kept IS NULL THEN 1 END) = 0 THEN sum(kept) END,"
                   " sum(hits), sum(misses), sum(h2d_bytes), sum(d2h_bytes), sum(h2d_ns + d2h_ns), sum(exposed_ns)"
                   " FROM layer_step l WHERE l.id BETWEEN ? AND ? AND " +
                       condition(filter.layers, "l.id & 1023") + " GROUP BY 1 ORDER BY 1");
    const auto [low, high] = trace::keysOfSteps(runId, rows.front().step, rows.back().step, trace::kLayerShift);
    sums.bindAll(low, high);
    auto row = rows.begin();
    while (sums.step()) {
        const int step = trace::stepOf(sums.int64(0), 0);
        while (row != rows.end() && row->step < step) ++row;
        if (row == rows.end()) break;
        if (row->step != step) continue;
        row->selected = sums.int64(1);
        row->kept = sums.isNull(2) ? -1 : sums.int64(2);
        row->hits = sums.int64(3);
        row->misses = sums.int64(4);
        row->h2dBytes = sums.int64(5);
        row->d2hBytes = sums.int64(6);
        row->transferNs = sums.int64(7);
        row->exposedNs = sums.int64(8);
    }
    return rows;
}

std::vector<BreakdownStep> filteredBreakdownSteps(const TraceReader& reader, int runId, const ReadFilter& filter,
                                                  int firstStep, int lastStep) {
    std::vector<BreakdownStep> steps = reader.breakdownSteps(runId, firstStep, lastStep);
    std::erase_if(steps, [&](const BreakdownStep& step) { return !filter.hasStep(step.step); });
    if (steps.empty() || filter.layers.empty()) return steps;
    for (BreakdownStep& step : steps) step = {step.step, 0, {}, {}, 0};
    Statement rows(
        *ReaderAccess::of(reader).connection,
        fmt::format("SELECT l.id >> 10, {} FROM layer_step l WHERE l.id BETWEEN ? AND ? AND {} ORDER BY l.id",
                    kStageColumns, condition(filter.layers, "l.id & 1023")));
    const auto [low, high] = trace::keysOfSteps(runId, steps.front().step, steps.back().step, trace::kLayerShift);
    rows.bindAll(low, high);
    auto step = steps.begin();
    while (rows.step()) {
        const int number = trace::stepOf(rows.int64(0), 0);
        while (step != steps.end() && step->step < number) ++step;
        if (step == steps.end()) break;
        if (step->step != number) continue;
        for (std::size_t i = 0; i < step->stageNs.size(); ++i) {
            const std::int64_t ns = rows.int64(1 + int(i));
            step->stageNs[i] = std::int64_t(std::uint64_t(step->stageNs[i]) + std::uint64_t(ns));
            step->durationNs = std::int64_t(std::uint64_t(step->durationNs) + std::uint64_t(ns));
        }
    }
    return steps;
}

std::vector<BreakdownRow> filteredBreakdown(const TraceReader& reader, int runId, const ReadFilter& filter) {
    if (filter.empty()) return reader.breakdown(runId);
    struct Sum {
        std::int64_t calls = 0;
        std::uint64_t ns = 0; // unsigned: absurd numbers of a damaged file wrap instead of being undefined
        void add(std::int64_t value) { calls += value != 0, ns += std::uint64_t(value); }
    };
    using Key = std::tuple<int, int, int>; // phase, layer (-1: outside), component in pipeline order
    std::map<Key, Sum> sums;
    Connection& open = *ReaderAccess::of(reader).connection;
    const auto [low, high] = trace::keysOfSteps(runId, 0, trace::kMaxStep, trace::kLayerShift);
    Statement layers(open, fmt::format("SELECT s.phase, l.id & 1023, {} FROM step s CROSS JOIN layer_step l"
                                       " ON l.id BETWEEN s.id << 10 AND (s.id << 10) | 1023"
                                       " WHERE s.id BETWEEN ? AND ? AND {} AND {}",
                                       kStageColumns, condition(filter.steps, "s.id & 0x1FFFFFF"),
                                       condition(filter.layers, "l.id & 1023")));
    layers.bindAll(low >> trace::kLayerShift, high >> trace::kLayerShift);
    std::array<std::uint64_t, 2> inLayers{};
    while (layers.step()) {
        const int phase = layers.int64(0) == 0 ? 0 : 1;
        for (int i = 0; i < kStageCount; ++i) {
            const std::int64_t ns = layers.int64(2 + i);
            sums[{phase, layers.int32(1), i}].add(ns);
            inLayers[std::size_t(phase)] += std::uint64_t(ns);
        }
    }
    if (filter.layers.empty()) {
        Statement steps(open, fmt::format("SELECT phase, duration_ns, embed_ns, lm_head_ns, sample_ns FROM step s"
                                          " WHERE s.id BETWEEN ? AND ? AND {}",
                                          condition(filter.steps, "s.id & 0x1FFFFFF")));
        steps.bindAll(low >> trace::kLayerShift, high >> trace::kLayerShift);
        while (steps.step()) {
            const int phase = steps.int64(0) == 0 ? 0 : 1;
            auto other = std::uint64_t(steps.int64(1));
            for (int i = 0; i < kStepStageCount; ++i) {
                sums[{phase, -1, kStageCount + i}].add(steps.int64(2 + i));
                other -= std::uint64_t(steps.int64(2 + i));
            }
            Sum& rest = sums[{phase, -1, kStageCount + kStepStageCount}];
            ++rest.calls;
            rest.ns += other;
        }
        for (int phase = 0; phase < 2; ++phase)
            if (const auto rest = sums.find({phase, -1, kStageCount + kStepStageCount}); rest != sums.end())
                rest->second.ns -= inLayers[std::size_t(phase)];
    }
    std::vector<BreakdownRow> result;
    for (const auto& [key, sum] : sums) {
        if (sum.calls == 0) continue;
        const auto [phase, layer, component] = key;
        const std::string_view name = component < kStageCount ? kStageNames[std::size_t(component)]
                                      : component < kStageCount + kStepStageCount
                                          ? kStepStageNames[std::size_t(component - kStageCount)]
                                          : kOtherName;
        result.push_back({nameOf(Phase(phase)), std::string(name), layer, sum.calls, std::int64_t(sum.ns)});
    }
    return result;
}

} // namespace kvscope
