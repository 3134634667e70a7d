// The first run against each other one: numbers side by side, the verdict on step times, and which component changed.
#include "base/error.h"
#include "profiler/compare/compare.h"
#include "profiler/report/ratio.h"
#include "profiler/report/report.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>
#include <limits>
#include <optional>
#include <span>

namespace kvscope::reports {
namespace {

constexpr const char* kJudging = "comparing step times";

struct Measure {
    const char* name;
    Quantity quantity;
    bool linkTime; // known as the run's link times are
    Known needed;
    std::function<double(const RunData&)> value;
};

const std::vector<Measure>& measures() {
    static const auto of = [](double RunSummary::*rate, double factor = 1) {
        return [rate, factor](const RunData& run) { return run.summary.*rate * factor; };
    };
    static const std::vector<Measure> list{
        {"Step time", Quantity::Nanoseconds, false, Known::StepTimes, of(&RunSummary::stepMs, 1e6)},
        {"Tokens per second", Quantity::PerSecond, false, Known::StepTimes, of(&RunSummary::tokensPerSecond)},
        {"Locality γ", Quantity::Ratio, false, Known::Selections, of(&RunSummary::localityMean)},
        {"Hit rate", Quantity::Share, false, Known::Hits, of(&RunSummary::hitRate)},
        {"Misses per step", Quantity::Count, false, Known::Hits, of(&RunSummary::missesPerStep)},
        {"Bytes to device per step", Quantity::Bytes, false, Known::Bytes, of(&RunSummary::h2dBytesPerStep)},
        {"Exposed transfer time per step", Quantity::Nanoseconds, true, Known::ExposedTimes,
         of(&RunSummary::exposedMsPerStep, 1e6)},
    };
    return list;
}

/// The verdict on two runs, or why there is none.
struct Judgement {
    std::optional<Comparison> comparison;
    std::vector<std::string> notes;
};

RunSample sampleOf(const RunData& run, const Progress& progress) {
    RunSample sample = loadRunSample(TraceReader(run.path), run.row.runId, progress);
    sample.run.name = run.row.name; // as the report tells runs apart
    return sample;
}

Judgement judge(std::span<const RunSample> a, std::span<const RunSample> b) {
    Judgement result;
    bool refused = false;
    for (const Obstacle& obstacle : findObstacles(a, b)) {
        result.notes.push_back(obstacle.what);
        refused |= !obstacle.mayBeIgnored;
    }
    if (refused) return result;
    result.comparison = compareRuns(a, b);
    for (const std::string& note : result.comparison->notes) result.notes.push_back(note);
    return result;
}

} // namespace

Table comparison(const std::vector<RunData>& runs) {
    Table table{"comparison",
                "The first run against the others",
                coldSteps() == ColdSteps::Counted ? "Means over all decode steps, cold ones too, side by side."
                                                  : "Means over the decode steps, cold ones left out, side by side.",
                {{"run", "Run", "", false},
                 {"quantity", "Quantity", "", false},
                 {"base", "First run", "", false},
                 {"value", "This run", "", false},
                 {"change", "Change", "of the first run's value", false},
                 {"unit", "Unit", "", true},
                 {"basis", "Basis", "first run / this run", true}},
                {}};
    for (std::size_t other = 1; other < runs.size(); ++other)
        for (const Measure& measure : measures()) {
            const auto basis = [&](const RunData& run) {
                if (measure.linkTime) return basisOf(run.row.timing);
                const bool clock = measure.quantity == Quantity::Nanoseconds || measure.quantity == Quantity::PerSecond;
                return clock ? Basis::Measured : Basis::Plain;
            };
            const RunData &first = runs.front(), &run = runs[other];
            const double a = measure.value(first), b = measure.value(run);
            std::string bases{nameOf(basis(first))};
            if (basis(first) != basis(run)) bases += " / " + std::string(nameOf(basis(run)));
            // A measured time is not compared with a modelled one.
            const double change = basis(first) == basis(run) ? ratio(b, a) - 1 : kUndefined;
            table.rows.push_back({text(run.row.name), text(measure.name),
                                  first.ifKnown(measure.needed, real(a, measure.quantity, basis(first))),
                                  run.ifKnown(measure.needed, real(b, measure.quantity, basis(run))),
                                  real(change, Quantity::Share), text(std::string(unitOf(measure.quantity))),
                                  text(bases)});
        }
    return table;
}

std::vector<Table> verdicts(const std::vector<RunData>& runs, const Progress& progress) {
    Table verdict{"verdict",
                  "Verdict on the step times",
                  fmt::format("Whether the decode steps of a run take longer than those of the first one, beyond what "
                              "chance explains: the median over common steps of this run's time over the first run's "
                              "in the same step. {} left out.",
                              coldSteps() == ColdSteps::Counted ? "Cold steps are counted; steps that open a block are"
                                                                : "Cold steps and steps that open a block are"),
                  {{"run", "Run", "", false},
                   {"verdict", "Verdict", "", false},
                   {"ratio", "Time ratio", "this run / first run", false},
                   {"ratio_low", "95 % from", "", false},
                   {"ratio_high", "to", "", false},
                   {"steps", "Steps", "compared", false},
                   {"sentence", "In words", "", true},
                   {"note", "Note", "", false}},
                  {}};
    Table components{
        "component_changes",
        "Which component changed",
        "Mean time per compared step; the interval belongs to the difference. The changes of the components "
        "add up to that of the step.",
        {{"run", "Run", "", false},
         {"component", "Component", "", false},
         {"base_ns", "First run", "", false},
         {"value_ns", "This run", "", false},
         {"change_ns", "Change", "", false},
         {"change_low_ns", "95 % from", "", false},
         {"change_high_ns", "to", "", false}},
        {}};
    const auto load = [&](std::size_t run) {
        const Progress share = [&](double fraction, std::string_view) {
            report(progress, (double(run) + fraction) / double(runs.size()), kJudging);
        };
        report(share, 0, kJudging); // short runs say nothing themselves
        return sampleOf(runs[run], share);
    };
    if (runs.size() < 2) return {std::move(verdict), std::move(components)};
    const RunSample first = load(0);
    for (std::size_t other = 1; other < runs.size(); ++other) {
        const RunSample second = load(other);
        const Judgement judged = judge({&first, 1}, {&second, 1});
        const std::string note = fmt::format("{}", fmt::join(judged.notes, "; "));
        const std::string& name = runs[other].row.name;
        if (!judged.comparison) {
            const Cell none{{}, Quantity::Ratio, Basis::Plain};
            verdict.rows.push_back({text(name), text("not comparable"), none, none, none, Cell{{}, Quantity::Count},
                                    text("There is no verdict on " + name + ": " + note), text(note)});
            continue;
        }
        const Comparison& c = *judged.comparison;
        verdict.rows.push_back({text(name), text(nameOf(c.verdict)), real(c.ratio.value, Quantity::Ratio),
                                real(c.ratio.low, Quantity::Ratio), real(c.ratio.high, Quantity::Ratio), count(c.steps),
                                text(c.sentence), text(note)});
        const auto add = [&](const ComponentDelta& delta, const std::string& shown, Basis basis) {
            components.rows.push_back({text(name), text(shown), nanoseconds(delta.aNs, basis),
                                       nanoseconds(delta.bNs, basis), nanoseconds(delta.deltaNs.value, basis),
                                       nanoseconds(delta.deltaNs.low, basis), nanoseconds(delta.deltaNs.high, basis)});
        };
        for (const ComponentDelta& delta : c.components) add(delta, delta.component, Basis::Measured);
        add(c.step, "step", Basis::Measured);
        if (!std::isnan(c.exposed.aNs))
            add(c.exposed, "exposed transfer time, beside the step", basisOf(runs[other].row.timing));
    }
    return {std::move(verdict), std::move(components)};
}

} // namespace kvscope::reports
