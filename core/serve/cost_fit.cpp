#include "core/serve/cost_fit.h"

#include "core/serve/serving_metrics.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <utility>

namespace kvscope::serve {
namespace {

constexpr double kNsOfMs = 1e6;

/// The median: one sample that took long by accident does not change it.
double medianOf(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return percentile(values, 0.5);
}

/// The value at which half of the weight lies below; 0 where there is no weight.
double weightedMedian(std::vector<std::pair<double, double>> valuesAndWeights) {
    std::sort(valuesAndWeights.begin(), valuesAndWeights.end());
    double left = 0;
    for (const auto& each : valuesAndWeights) left += each.second / 2;
    for (const auto& [value, weight] : valuesAndWeights)
        if ((left -= weight) <= 0) return value;
    return 0;
}

} // namespace

void CostFit::add(const IterationReport& report, const MemoryShape& shape, bool chunks,
                  std::span<const int> promptTokens, std::span<const int> admittedTokens) {
    std::int64_t work = report.decodeNs;
    for (std::size_t i = 0; i < report.plan.segments.size(); ++i) {
        const PrefillSegment& segment = report.plan.segments[i];
        work += report.segmentNs[i];
        if (report.segmentNs[i] == 0) continue;
        Prefill sample;
        sample.ms = double(report.segmentNs[i]) / kNsOfMs;
        const auto piece = [&](double from, double to) {
            sample.tokens += to - from, sample.squares += to * to - from * from;
        };
        if (chunks) {
            for (int layer = 0; layer < shape.layers; ++layer) piece(segment.from.token, segment.to.token);
        } else {
            for (int layer = segment.from.layer; layer < shape.layers && layer <= segment.to.layer; ++layer)
                piece(layer == segment.from.layer ? segment.from.token : 0,
                      layer == segment.to.layer ? segment.to.token : promptTokens[i]);
        }
        prefills_.push_back(sample);
    }
    const int rows = report.plan.decodeRows();
    const double host = double(report.endNs - report.beginNs - work) / kNsOfMs;
    if (admittedTokens.empty())
        quiet_.push_back({{1, double(rows)}, host});
    else
        admitting_.push_back({{double(rows), double(admittedTokens.size()),
                               std::accumulate(admittedTokens.begin(), admittedTokens.end(), 0.0)},
                              host});
    if (report.gapNs >= 0) {
        const double gap = double(report.gapNs) / kNsOfMs, gapRows = report.gapRows;
        if (report.gapRequests == 0)
            quietGaps_.push_back({{1, gapRows}, gap});
        else
            requestGaps_.push_back({{gapRows, double(report.gapRequests)}, gap});
    }
    if (rows == 0) return;
    ++decodes_;
    steps_[rows].push_back(
        {double(report.contextTokens), double(report.missedBytes), double(report.decodeNs) / kNsOfMs});
    selected_ += double(report.hits + report.misses), missed_ += double(report.misses);
}

/// Least squares of ms = perToken * tokens + perSquare * squares. Where perSquare would not be positive, or all prompts
/// have one length, perToken is fitted alone.
CostFit::PrefillCost CostFit::leastSquares(const std::vector<Prefill>& prefills) {
    double tt = 0, tq = 0, qq = 0, tm = 0, qm = 0;
    for (const Prefill& p : prefills) {
        tt += p.tokens * p.tokens, tq += p.tokens * p.squares, qq += p.squares * p.squares;
        tm += p.tokens * p.ms, qm += p.squares * p.ms;
    }
    if (tt <= 0) return {};
    const double determinant = tt * qq - tq * tq;
    if (determinant > 1e-9 * tt * qq) {
        const double both = (tm * qq - qm * tq) / determinant, square = (tt * qm - tq * tm) / determinant;
        if (both > 0 && square > 0) return {both, square};
    }
    return {tm / tt, 0};
}

/// Fits the cost of prompts. The first prompt waits while libraries and kernels are loaded, and now and then another
/// program has the processor. Least squares over all prompts would then make every prompt seem slow. So a prompt is
/// left out if its time, divided by its fitted time, is more than kTooLong times the median of these ratios; the others
/// are fitted again.
CostFit::PrefillCost CostFit::prefillCost() const {
    constexpr double kTooLong = 3;
    std::vector<Prefill> prefills = prefills_;
    for (;;) {
        const PrefillCost cost = leastSquares(prefills);
        const auto ratio = [&](const Prefill& p) {
            return p.ms / std::max(1e-9, cost.perToken * p.tokens + cost.perSquare * p.squares);
        };
        if (prefills.empty()) return cost;
        std::vector<double> ratios(prefills.size());
        std::ranges::transform(prefills, ratios.begin(), ratio);
        const double limit = kTooLong * medianOf(std::move(ratios));
        if (std::erase_if(prefills, [&](const Prefill& p) { return ratio(p) > limit; }) == 0) return cost;
    }
}

/// Milliseconds for each token of context: the median of the slopes between steps of equally many rows, each of the
/// shorter half with one of the longer half, so that a few steps that took long by accident do not tilt it. A slope
/// counts by its distance, and only where one context is longer by a quarter, because between contexts of nearly one
/// length there is nothing but noise. 0 where all contexts are such.
double CostFit::contextSlope() const {
    constexpr double kApart = 1.25;
    std::vector<std::pair<double, double>> slopes;
    for (const auto& entry : steps_) {
        std::vector<Step> steps = entry.second;
        std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.context < b.context; });
        const std::size_t half = steps.size() / 2;
        for (std::size_t i = 0; i < half; ++i)
            if (const double longer = steps[i + half].context - steps[i].context;
                longer > 0 && steps[i + half].context >= kApart * steps[i].context)
                slopes.emplace_back((steps[i + half].ms - steps[i].ms) / longer, longer);
    }
    return std::max(0.0, weightedMedian(std::move(slopes)));
}

/// Fits the host's time. Iterations that admit nobody show what every iteration takes; what the others take beyond that
/// is the cost of their admissions.
void CostFit::fitHost(ServiceCosts& costs) const {
    if (quiet_.empty() && admitting_.empty()) return;
    const std::array<double, 3> every = leastDeviations(quiet_);
    costs.planMs = 0, costs.gapMs = every[0], costs.gapUsPerRow = every[1] * 1e3;
    std::vector<Deviation> admissions;
    for (const Deviation& each : admitting_)
        admissions.push_back({{each.x[1], each.x[2]}, each.y - costs.overhead(int(each.x[0]))});
    const std::array<double, 3> admission = leastDeviations(admissions);
    costs.admitMs = admission[0], costs.admitUsPerToken = admission[1] * 1e3;
    fitGaps(costs);
}

/// Fits the time between iterations in the same way: what is beyond that of quiet ones comes from requests.
void CostFit::fitGaps(ServiceCosts& costs) const {
    if (quietGaps_.empty() && requestGaps_.empty()) return;
    const std::array<double, 3> every = leastDeviations(quietGaps_);
    costs.betweenMs = every[0], costs.betweenUsPerRow = every[1] * 1e3;
    std::vector<Deviation> requests;
    for (const Deviation& each : requestGaps_)
        requests.push_back({{each.x[1]}, each.y - costs.between(int(each.x[0]))});
    costs.requestMs = leastDeviations(requests)[0];
}

ServiceCosts CostFit::fit(ServiceCosts costs, const SchedulerOptions& options) const {
    if (const PrefillCost cost = prefillCost(); cost.perToken > 0) {
        costs.prefillUsPerToken = cost.perToken * 1e3;
        costs.prefillPsPerToken2 = cost.perSquare * 1e9;
    }
    if (!steps_.empty()) {
        const double slope = contextSlope();
        costs.decodeUsPerKtoken = slope * 1e6;
        costs.decodeMs.points.clear();
        for (const auto& [rows, steps] : steps_) {
            std::vector<double> rest;
            for (const Step& step : steps) rest.push_back(std::max(0.0, step.ms - slope * step.context));
            costs.decodeMs.points.emplace_back(rows, medianOf(std::move(rest)));
        }
        if (options.offload) { // the times of the steps include what offloading costs, loads too
            std::ranges::fill(costs.linkGbps, std::numeric_limits<double>::infinity());
            std::ranges::fill(costs.offloadMs, 0), std::ranges::fill(costs.offloadUsPerRow, 0);
        }
    }
    fitHost(costs);
    // Only a server that offloads has misses, by which the share of hits can be told.
    if (selected_ > 0 && options.offload && options.cache == CachePlan::Partition)
        costs.partitionHits = Curve{
            {{double(costs.shape.partitionBlocks(options)) / costs.shape.selectedBlocks, 1 - missed_ / selected_}}};
    return costs;
}

std::vector<std::string> CostFit::fittedKeys(const SchedulerOptions& options) const {
    std::vector<std::string> keys;
    if (prefillCost().perToken > 0) keys.insert(keys.end(), {"prefill_us_per_token", "prefill_ps_per_token2"});
    if (!steps_.empty()) keys.insert(keys.end(), {"decode_ms", "decode_us_per_ktoken"});
    if (!steps_.empty() && options.offload)
        keys.insert(keys.end(), {"link_gbps", "offload_ms", "offload_us_per_row"}); // decode_ms holds them
    if (!quiet_.empty() || !admitting_.empty())
        keys.insert(keys.end(), {"plan_ms", "gap_ms", "gap_us_per_row", "admit_ms", "admit_us_per_token"});
    if (!quietGaps_.empty() || !requestGaps_.empty())
        keys.insert(keys.end(), {"between_ms", "between_us_per_row", "request_ms"});
    if (selected_ > 0 && options.offload && options.cache == CachePlan::Partition) keys.emplace_back("partition_hits");
    return keys;
}

ServiceCosts CostFit::fitOffload(ServiceCosts costs, const SchedulerOptions& options) const {
    fitHost(costs);
    std::vector<Deviation> beyond;
    for (const auto& [rows, steps] : steps_)
        for (const Step& step : steps)
            beyond.push_back({{1, step.missedBytes, double(rows)},
                              step.ms - costs.residentDecode(rows, std::int64_t(step.context))});
    if (beyond.empty()) return costs;
    double& gbps = costs.linkGbps[std::size_t(options.transfers)];
    const bool missed = isApart(beyond, 1);
    if (!missed)
        for (Deviation& step : beyond) step.y -= step.x[1] / (gbps * 1e6), step.x[1] = 0;
    const auto [perStep, perByte, perRow] = leastDeviations(beyond);
    if (missed) gbps = perByte > 0 ? 1 / (perByte * 1e6) : std::numeric_limits<double>::infinity();
    costs.offloadMs[std::size_t(options.transfers)] = perStep;
    costs.offloadUsPerRow[std::size_t(options.transfers)] = perRow * 1e3;
    return costs;
}

} // namespace kvscope::serve
