#include "ui/views/serving/serving_data.h"

#include "base/json_reading.h"
#include "core/trace/run_meta.h"

#include <algorithm>
#include <cmath>

namespace kvscope::ui {
namespace {

constexpr int kLatencyWindows = 400; // over time
constexpr double kSharePerWindow = 20;
constexpr int kIntervals = 60, kMostIntervals = 4000; // of rates

ServingBudgets budgetsOf(TraceReader& reader, int runId) {
    ServingBudgets budgets;
    for (const RunRow& run : reader.runs()) {
        if (run.runId != runId) continue;
        const nlohmann::json serving = parseJson(run.metaOr(run_meta::kServing));
        const auto bytes = [&](const char* key) {
            const nlohmann::json& value = member(serving, key);
            return value.is_number() ? std::max(0.0, value.get<double>()) : 0.0;
        };
        budgets = {bytes("device_kv_bytes"), bytes("host_kv_bytes"), bytes("scratch_bytes")};
    }
    return budgets;
}

} // namespace

double ServingData::end() const {
    double end = 1;
    for (const IterationRow& row : rows.iterations) end = std::max(end, double(row.endNs()));
    for (const RequestSpanRow& span : rows.spans) end = std::max(end, double(span.endNs));
    return end;
}

std::optional<std::size_t> ServingData::indexOf(std::int64_t request) const {
    const auto found = std::lower_bound(rows.requests.begin(), rows.requests.end(), request,
                                        [](const RequestRow& row, std::int64_t n) { return row.number < n; });
    if (found == rows.requests.end() || found->number != request) return std::nullopt;
    return std::size_t(found - rows.requests.begin());
}

int ServingData::servedRow(std::int64_t request) const {
    const auto index = indexOf(request);
    return index ? rows.requests[*index].row : -1;
}

const IterationRow* ServingData::iterationAt(double ns) const {
    auto found = std::upper_bound(rows.iterations.begin(), rows.iterations.end(), ns,
                                  [](double at, const IterationRow& row) { return at < double(row.startNs); });
    if (found == rows.iterations.begin()) return nullptr;
    --found;
    return ns <= double(found->endNs()) ? &*found : nullptr;
}

const IterationRow* ServingData::iterationOf(int number) const {
    const auto found = std::lower_bound(rows.iterations.begin(), rows.iterations.end(), number,
                                        [](const IterationRow& row, int n) { return row.iteration < n; });
    return found == rows.iterations.end() || found->iteration != number ? nullptr : &*found;
}

double ServingData::commonBound(double RequestRow::*bound) const {
    if (rows.requests.empty()) return 0;
    const double first = rows.requests.front().*bound;
    const bool same = std::all_of(rows.requests.begin(), rows.requests.end(),
                                  [&](const RequestRow& row) { return row.*bound == first; });
    return same ? first : 0;
}

ServingData readServingData(TraceReader& reader, int runId, const ServingWish& wish) {
    ServingData data;
    data.serving = isServing(reader, runId);
    if (!data.serving) return data;
    data.rows = readServing(reader, runId, &data.gaps);
    data.budgets = budgetsOf(reader, runId);
    const double end = data.end();
    if (wish.latency) {
        data.windowNs = std::min(end, wish.windowNs > 0 ? wish.windowNs : std::max(1e9, end / kSharePerWindow));
        data.latency = latencyOverTime(data.rows.requests, data.gaps, end, data.windowNs, kLatencyWindows);
    }
    if (wish.classes) {
        data.classes = servedClasses(data.rows.requests, data.gaps);
        data.classes.insert(data.classes.begin(), allClasses(data.classes));
    }
    if (wish.rates) {
        const double wanted = wish.intervalNs > 0 ? std::round(end / wish.intervalNs) : kIntervals;
        const int count = int(std::clamp(wanted, 1.0, double(kMostIntervals)));
        data.rates = ratesOverTime(data.rows, data.gaps, readIterationBytes(reader, runId), end, count);
        const auto pcie = pcieOfIntervals(reader, runId, end, count);
        for (std::size_t i = 0; i < pcie.size(); ++i) data.rates.intervals[i].pcie = pcie[i];
    }
    return data;
}

} // namespace kvscope::ui
