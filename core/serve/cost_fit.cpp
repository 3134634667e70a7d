#include "core/serve/cost_fit.h"

#include "core/serve/serving_metrics.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace kvscope::serve {
namespace {

constexpr double kNsOfMs = 1e6;

/// The median: one sample that took long by accident does not change it.
double medianOf(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return percentile(values, 0.5);
}

} // namespace

void CostFit::add(const IterationReport& report, const MemoryShape& shape, bool chunks,
                  const std::vector<int>& promptTokens) {
    ++iterations_;
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
    overheadMs_ += double(report.endNs - report.beginNs - work) / kNsOfMs;
    if (report.plan.decodeRows() == 0) return;
    ++decodes_;
    steps_[report.plan.decodeRows()].push_back({double(report.contextTokens), double(report.decodeNs) / kNsOfMs});
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

/// A first prompt loads libraries and kernels, and now and then another program has the processor. Least squares alone
/// would make every prompt dear for it: a prompt whose time over its fitted time is kTooLong times the median of these
/// ratios is left out, and the others are fitted again.
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

ServiceCosts CostFit::fit(ServiceCosts costs, const SchedulerOptions& options) const {
    if (const PrefillCost cost = prefillCost(); cost.perToken > 0) {
        costs.prefillUsPerToken = cost.perToken * 1e3;
        costs.prefillPsPerToken2 = cost.perSquare * 1e9;
    }
    // The slope over the context: the median of the slopes between steps of equally many rows, each of the shorter half
    // with one of the longer half, so that a few steps that took long by accident do not tilt it.
    std::vector<double> slopes;
    for (const auto& entry : steps_) {
        std::vector<Step> steps = entry.second;
        std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) { return a.context < b.context; });
        const std::size_t half = steps.size() / 2;
        for (std::size_t i = 0; i < half; ++i)
            if (const double longer = steps[i + half].context - steps[i].context; longer > 0)
                slopes.push_back((steps[i + half].ms - steps[i].ms) / longer);
    }
    const double slope = slopes.empty() ? 0 : std::max(0.0, medianOf(std::move(slopes)));
    if (!steps_.empty()) {
        costs.decodeUsPerKtoken = slope * 1e6;
        costs.decodeMs.points.clear();
        for (const auto& [rows, steps] : steps_) {
            std::vector<double> rest;
            for (const Step& step : steps) rest.push_back(std::max(0.0, step.ms - slope * step.context));
            costs.decodeMs.points.emplace_back(rows, medianOf(std::move(rest)));
        }
        std::ranges::fill(costs.linkGbps, std::numeric_limits<double>::infinity()); // the steps hold their loads
    }
    if (iterations_ > 0) costs.planMs = 0, costs.gapMs = overheadMs_ / double(iterations_);
    // Where everything stays on the device, nothing is a miss, and no slots have been asked.
    if (selected_ > 0 && options.offload && options.cache == CachePlan::Partition)
        costs.partitionHits = Curve{
            {{double(costs.shape.partitionBlocks(options)) / costs.shape.selectedBlocks, 1 - missed_ / selected_}}};
    return costs;
}

} // namespace kvscope::serve
