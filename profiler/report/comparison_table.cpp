// The first run against each other one, with the noise of both.
#include "profiler/report/bootstrap.h"
#include "profiler/report/report.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace kvscope::reports {
namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

struct Measure {
    const char* name;
    Quantity quantity;
    bool linkTime; // known as the run's link times are
    std::function<double(const StepRow&)> part, whole;
};

const std::vector<Measure>& measures() {
    static const auto one = [](const StepRow&) { return 1.0; };
    static const std::vector<Measure> list{
        {"Step time", Quantity::Nanoseconds, false, [](const StepRow& s) { return double(s.durationNs); }, one},
        {"Tokens per second", Quantity::PerSecond, false, [](const StepRow& s) { return double(s.tokens); },
         [](const StepRow& s) { return double(s.durationNs) / 1e9; }},
        {"Hit rate", Quantity::Share, false, [](const StepRow& s) { return double(s.hits); },
         [](const StepRow& s) { return double(s.hits + s.misses); }},
        {"Misses per step", Quantity::Count, false, [](const StepRow& s) { return double(s.misses); }, one},
        {"Bytes to device per step", Quantity::Bytes, false, [](const StepRow& s) { return double(s.h2dBytes); }, one},
        {"Exposed transfer time per step", Quantity::Nanoseconds, true,
         [](const StepRow& s) { return double(s.exposedNs); }, one},
    };
    return list;
}

struct Estimate {
    double value = kUndefined;
    std::vector<double> resampled; // empty: too few steps
};

Estimate estimate(const RunData& run, const Measure& measure, std::uint64_t seed) {
    std::vector<double> part, whole;
    double partSum = 0, wholeSum = 0;
    for (const StepRow& step : run.steps) {
        partSum += part.emplace_back(measure.part(step));
        wholeSum += whole.emplace_back(measure.whole(step));
    }
    Estimate result;
    if (wholeSum <= 0) return result;
    result.value = partSum / wholeSum;
    const StepBootstrap bootstrap(run.steps.size(), seed);
    result.resampled = bootstrap.sums(part);
    const std::vector<double> below = bootstrap.sums(whole);
    for (std::size_t i = 0; i < result.resampled.size(); ++i) result.resampled[i] /= below[i];
    return result;
}

} // namespace

Table comparison(const std::vector<RunData>& runs) {
    Table table{"comparison",
                "The first run against the others",
                "Means over decode steps. The interval of the change comes from resampling the steps of both runs; "
                "where it holds 0, the steps of these two runs do not show a difference.",
                {{"run", "Run", "", false},
                 {"quantity", "Quantity", "", false},
                 {"base", "First run", "", false},
                 {"value", "This run", "", false},
                 {"change", "Change", "of the first run's value", false},
                 {"change_low", "95 % from", "", false},
                 {"change_high", "to", "", false},
                 {"unit", "Unit", "", true},
                 {"basis", "Basis", "first run / this run", true},
                 {"verdict", "Shown by the steps", "", false}},
                {}};
    if (runs.empty()) return table;
    for (std::size_t other = 1; other < runs.size(); ++other)
        for (const Measure& measure : measures()) {
            const auto basis = [&](const RunData& run) {
                if (measure.linkTime) return basisOf(run.row.timing);
                const bool clock = measure.quantity == Quantity::Nanoseconds || measure.quantity == Quantity::PerSecond;
                return clock ? Basis::Measured : Basis::Plain;
            };
            const RunData &first = runs.front(), &run = runs[other];
            const Estimate a = estimate(first, measure, 1), b = estimate(run, measure, 2); // drawn independently
            const bool comparable = basis(first) == basis(run); // a measured time is not compared with a modelled one
            double change = kUndefined;
            Interval interval{kUndefined, kUndefined};
            if (comparable && a.value > 0) {
                change = b.value / a.value - 1;
                std::vector<double> changes;
                for (std::size_t i = 0; i < std::min(a.resampled.size(), b.resampled.size()); ++i)
                    if (a.resampled[i] > 0) changes.push_back(b.resampled[i] / a.resampled[i] - 1);
                interval = middle95(std::move(changes));
            }
            const char* verdict = !comparable                ? "not compared: one is measured, one modelled"
                                  : std::isnan(interval.low) ? "too few steps to say"
                                  : interval.low > 0         ? "higher"
                                  : interval.high < 0        ? "lower"
                                                             : "no difference shown";
            std::string bases{nameOf(basis(first))};
            if (basis(first) != basis(run)) bases += " / " + std::string(nameOf(basis(run)));
            table.rows.push_back({text(run.row.name), text(measure.name), real(a.value, measure.quantity, basis(first)),
                                  real(b.value, measure.quantity, basis(run)), real(change, Quantity::Share),
                                  real(interval.low, Quantity::Share), real(interval.high, Quantity::Share),
                                  text(std::string(unitOf(measure.quantity))), text(bases), text(verdict)});
        }
    return table;
}

} // namespace kvscope::reports
