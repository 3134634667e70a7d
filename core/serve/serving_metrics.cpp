#include "core/serve/serving_metrics.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvscope::serve {
namespace {

/// Index of the last change of the backlog at or before `ns`; -1: `ns` is before the first one.
std::ptrdiff_t placeAt(const Backlog& backlog, std::int64_t ns) {
    return std::upper_bound(backlog.ns.begin(), backlog.ns.end(), ns) - backlog.ns.begin() - 1;
}

} // namespace

double percentile(std::span<const double> samples, double p) {
    const double place = p * double(samples.size() - 1);
    const auto below = std::size_t(place);
    if (below + 1 >= samples.size()) return samples.back();
    return samples[below] + (place - double(below)) * (samples[below + 1] - samples[below]);
}

std::pair<int, int> percentileRanks(int samples, double p) {
    // How many of n samples lie below the percentile has the binomial distribution: mean n p, variance n p (1 - p).
    const double mean = samples * p, spread = 1.96 * std::sqrt(mean * (1 - p));
    const auto low = int(std::lround(mean - spread)), high = int(std::lround(mean + spread));
    return {std::max(low, 0), std::min(high, samples + 1)};
}

std::optional<Percentile> shownPercentile(std::span<const double> ascending, double p) {
    const auto n = double(ascending.size());
    if (n == 0 || n * (1 - p) < 10 - 1e-9) return std::nullopt; // 1 - 0.99 is not exact
    const auto ranks = percentileRanks(int(ascending.size()), p);
    Percentile out{p, percentile(ascending, p), ascending.front(), ascending.back()};
    if (ranks.first >= 1) out.low = ascending[std::size_t(ranks.first - 1)];
    if (ranks.second <= int(ascending.size())) out.high = ascending[std::size_t(ranks.second - 1)];
    return out;
}

std::optional<double> RequestOutcome::tpotMs() const {
    if (gapsMs.empty()) return std::nullopt;
    double sum = 0;
    for (const float gap : gapsMs) sum += gap;
    return sum / double(gapsMs.size());
}

bool isGood(const RequestOutcome& outcome, const Slo& slo) {
    if (outcome.status != Status::Finished || outcome.ttftMs() > slo.ttftMs) return false;
    if (outcome.gapsMs.empty()) return true;
    if (slo.tpot) return *outcome.tpotMs() <= slo.tbtMs;
    std::vector<double> gaps(outcome.gapsMs.begin(), outcome.gapsMs.end());
    std::sort(gaps.begin(), gaps.end());
    return percentile(gaps, 0.99) <= slo.tbtMs;
}

double Backlog::mean(std::int64_t fromNs, std::int64_t toNs) const {
    if (toNs <= fromNs) return 0;
    double area = 0;
    std::int64_t at = fromNs;
    for (std::ptrdiff_t i = placeAt(*this, fromNs); at < toNs; ++i) {
        const bool more = i + 1 < std::ptrdiff_t(ns.size());
        const std::int64_t next = more ? std::min(ns[i + 1], toNs) : toNs;
        if (i >= 0) area += double(requests[i]) * double(next - at);
        at = next;
    }
    return area / double(toNs - fromNs);
}

Trend trendOf(const Backlog& backlog, std::int64_t fromNs, std::int64_t toNs) {
    constexpr int kParts = 20;
    constexpr double kStudent = 2.101; // 97.5 % of Student's distribution with 18 degrees of freedom
    if (toNs - fromNs < kParts) return {};
    const double seconds = double(toNs - fromNs) / 1e9 / kParts, middle = (kParts - 1) / 2.0;
    const auto placeOf = [&](int i) { return fromNs + (toNs - fromNs) / kParts * i; };
    Numbered<double> values;
    double mean = 0;
    for (int i = 0; i < kParts; ++i) {
        values.push_back(backlog.mean(placeOf(i), i + 1 < kParts ? placeOf(i + 1) : toNs));
        mean += values.back() / kParts;
    }
    double xy = 0, xx = 0;
    for (int i = 0; i < kParts; ++i) {
        const double x = i - middle;
        xy += x * (values[i] - mean), xx += x * x;
    }
    const double slope = xy / xx;
    double residual = 0;
    for (int i = 0; i < kParts; ++i) {
        const double off = values[i] - mean - slope * (i - middle);
        residual += off * off;
    }
    const double error = kStudent * std::sqrt(residual / (kParts - 2) / xx);
    return {slope / seconds, (slope - error) / seconds, (slope + error) / seconds};
}

int warmUpByMser5(std::span<const double> samples) {
    constexpr int kBatch = 5;
    const auto batches = int(samples.size()) / kBatch;
    Numbered<double> means;
    for (int b = 0; b < batches; ++b) {
        double sum = 0;
        for (int i = 0; i < kBatch; ++i) sum += samples[std::size_t(b * kBatch + i)];
        means.push_back(sum / kBatch);
    }
    int best = 0;
    double least = std::numeric_limits<double>::infinity(), sum = 0, squares = 0;
    for (int cut = batches - 1; cut >= 0; --cut) {
        const double value = means[cut];
        sum += value, squares += value * value;
        const int left = batches - cut;
        if (cut > batches / 2 || left < 2) continue;
        const double spread = std::max(0.0, squares - sum * sum / left) / (double(left) * left);
        if (spread <= least) least = spread, best = cut;
    }
    return best * kBatch;
}

} // namespace kvscope::serve
