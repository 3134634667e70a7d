// Tables of a report about time: key numbers, how sure they are, breakdown, slowest steps.
#include "profiler/read/denoising.h"
#include "profiler/report/ratio.h"
#include "profiler/report/report.h"
#include "profiler/report/step_intervals.h"
#include "profiler/report/wide_table.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>

namespace kvscope::reports {
namespace {

constexpr std::size_t kSlowest = 10;

template <class Value> std::vector<double> series(const RunData& run, Value&& value) {
    std::vector<double> out;
    for (const StepRow& step : run.countedSteps()) out.push_back(double(value(step)));
    return out;
}

const StepRow* slowestOf(const RunData& run) {
    const auto slowest = std::max_element(run.steps.begin(), run.steps.end(), [](const StepRow& a, const StepRow& b) {
        return a.durationNs < b.durationNs;
    });
    return slowest == run.steps.end() ? nullptr : &*slowest;
}

/// Adds lines that say how many of the blocks asked for ahead were used, wasted or late, if a run has such numbers.
void addLookahead(WideTable& table, const std::vector<RunData>& runs) {
    if (std::none_of(runs.begin(), runs.end(), [](const RunData& run) { return run.lookahead.has_value(); })) return;
    const auto ahead = [&](const char* name, const char* note, std::int64_t LookaheadTotals::*blocks) {
        table.add(name, note, [=](const RunData& r) { return r.lookahead ? count((*r.lookahead).*blocks) : Cell{}; });
    };
    ahead("Blocks asked for ahead", "of the attention that needs them", &LookaheadTotals::predicted);
    ahead("Used, of those asked for ahead", "selected in the end", &LookaheadTotals::used);
    ahead("Wasted, of those asked for ahead", "transferred and not selected", &LookaheadTotals::wasted);
    ahead("Late, of those asked for ahead", "still on their way when the attention needed them",
          &LookaheadTotals::late);
    table.add("Stale", "blocks a query wanted that a method lagging one step could not attend",
              [](const RunData& r) { return r.lookahead && r.lookahead->stale ? count(*r.lookahead->stale) : Cell{}; });
    table.add("Hidden transfer time", "busy and not exposed, all decode steps", [&](const RunData& r) {
        return r.ifKnown(Known::TransferTimes,
                         whole(r.decodeSum(&StepRow::transferNs) - r.decodeSum(&StepRow::exposedNs),
                               Quantity::Nanoseconds, basisOf(r.row.timing)));
    });
}

/// What the GPU's counters say of the link, where a run has them.
void addPcie(WideTable& table, const std::vector<RunData>& runs) {
    if (std::none_of(runs.begin(), runs.end(), [](const RunData& run) { return run.pcie.has_value(); })) return;
    const auto counted = [&](const char* name, const char* note, std::int64_t PcieTraffic::*bytes,
                             std::int64_t PcieTraffic::*engine) {
        table.add(name, note, [=](const RunData& r) {
            return r.pcie ? whole((*r.pcie).*bytes - (engine ? (*r.pcie).*engine : 0), Quantity::Bytes) : Cell{};
        });
    };
    table.add("PCIe counter is", "see the table of PCIe bytes for what the two count",
              [](const RunData& r) { return r.pcie ? text(r.pcie->sampled ? "PM sampling" : "NVML") : Cell{}; });
    counted("PCIe counter, to device", "the GPU's own; decode steps", &PcieTraffic::countedToDevice, nullptr);
    counted("PCIe counter minus engine, to device", "packet headers, launches, whatever else used the link",
            &PcieTraffic::countedToDevice, &PcieTraffic::engineToDevice);
    counted("PCIe counter, to host", "likewise", &PcieTraffic::countedToHost, nullptr);
    counted("PCIe counter minus engine, to host", "likewise, and the steps' reports", &PcieTraffic::countedToHost,
            &PcieTraffic::engineToHost);
}

} // namespace

Table keyNumbers(const std::vector<RunData>& runs) {
    WideTable table(runs, "key_numbers", "Key numbers",
                    "The numbers asked for first. Times are wall time of the computer that ran it; link time says for "
                    "each run whether it was measured or modelled.");
    const auto timing = [](const RunData& run) { return basisOf(run.row.timing); };
    const bool coldCounts = coldSteps() == ColdSteps::Counted;
    const char* rates = coldCounts ? "all decode steps" : "decode steps, cold ones left out";
    table.add("Decode speed, tokens per second", fmt::format("all sequences, wall time of the steps; {}", rates),
              [](const RunData& r) {
                  return r.ifKnown(Known::StepTimes,
                                   real(r.summary.tokensPerSecond, Quantity::PerSecond, Basis::Measured));
              });
    if (std::any_of(runs.begin(), runs.end(), [](const RunData& run) { return run.summary.gapsMatter(); }))
        table.add("Decode speed with the time between steps", "the same tokens; pauses and other work count too",
                  [](const RunData& r) {
                      return r.ifKnown(Known::StepTimes,
                                       real(r.summary.tokensPerSecondWithGaps, Quantity::PerSecond, Basis::Measured));
                  });
    table.add("Decode steps", "recorded", [](const RunData& r) { return count(r.summary.decodeSteps); });
    table.add("Cold steps",
              coldCounts ? "a sequence selects for the first time; counted in rates and means"
                         : "a sequence selects for the first time; left out of rates and means, counted in totals",
              [](const RunData& r) { return count(r.summary.coldSteps); });
    if (std::any_of(runs.begin(), runs.end(), [](const RunData& r) { return r.row.prompts.inPieces(); })) {
        table.add("Mixed steps",
                  coldCounts ? "of the decode steps: they read pieces of prompts as well; counted in rates and means"
                             : "of the decode steps: they read pieces of prompts as well; left out of rates and means, "
                               "counted in totals",
                  [](const RunData& r) { return count(r.summary.mixedSteps); });
        table.add("Prompt steps", "they read prompts only", [](const RunData& r) {
            return r.row.serves() ? notKnown(Quantity::Count) : count(r.summary.promptSteps);
        });
    }
    table.add("Tokens decoded", "all sequences", [](const RunData& r) {
        return r.tokensBroken ? notKnown(Quantity::Count) : count(r.summary.decodedTokens);
    });
    // The iterations of a serving run read its prompts, and are no steps.
    table.add("Prompt tokens", "all sequences", [](const RunData& r) {
        return r.row.serves() || r.tokensBroken ? notKnown(Quantity::Count) : count(r.summary.promptTokens);
    });
    table.add("Prefill time", "", [](const RunData& r) {
        if (denoisesCanvas(r.row)) return text("none: every forward reads the prompt");
        return r.row.serves() ? notKnown(Quantity::Nanoseconds)
                              : r.ifKnown(Known::StepTimes, nanoseconds(r.summary.prefillMs * 1e6));
    });
    table.add("Decode time", "all decode steps", [](const RunData& r) {
        return r.ifKnown(Known::StepTimes,
                         whole(r.decodeSum(&StepRow::durationNs), Quantity::Nanoseconds, Basis::Measured));
    });
    table.add("Mean step", rates, [&](const RunData& r) {
        return r.ifKnown(Known::StepTimes, nanoseconds(r.summary.stepMs * 1e6, Basis::Measured));
    });
    table.add("Slowest step", "decode steps; the steps are listed further down", [](const RunData& r) {
        const StepRow* slowest = slowestOf(r);
        return r.ifKnown(Known::StepTimes, slowest ? whole(slowest->durationNs, Quantity::Nanoseconds, Basis::Measured)
                                                   : nanoseconds(kUndefined, Basis::Measured));
    });
    const char* perHead = "per step, layer, sequence and KV head; steps that open a block left out";
    table.add("Locality γ, mean", perHead,
              [](const RunData& r) { return real(r.summary.localityMean, Quantity::Ratio); });
    table.add("Locality γ, smallest", perHead,
              [](const RunData& r) { return real(r.summary.localityMin, Quantity::Ratio); });
    table.add("Hit rate", fmt::format("hits of selected blocks; {}", rates),
              [](const RunData& r) { return r.ifKnown(Known::Hits, real(r.summary.hitRate, Quantity::Share)); });
    const auto total = [&](const char* name, const char* note, Known what, std::int64_t RunSummary::*member,
                           Quantity quantity) {
        table.add(name, note, [=](const RunData& r) { return r.ifKnown(what, whole(r.summary.*member, quantity)); });
    };
    const auto linkTime = [&](const char* name, const char* note, Known what, double RunSummary::*ms) {
        table.add(name, note, [=](const RunData& r) {
            return r.ifKnown(what, whole(std::llround(r.summary.*ms * 1e6), Quantity::Nanoseconds, timing(r)));
        });
    };
    total("Hits", "blocks, every step", Known::Hits, &RunSummary::hits, Quantity::Count);
    total("Misses", "blocks, every step", Known::Hits, &RunSummary::misses, Quantity::Count);
    table.add("Misses of the first decode step", "blocks; its slots are still empty", [](const RunData& r) {
        return r.ifKnown(Known::Hits, count(r.steps.empty() ? 0 : r.steps.front().misses));
    });
    total("To device", "every step", Known::Bytes, &RunSummary::h2dBytes, Quantity::Bytes);
    total("To host", "every step, the prefill too", Known::Bytes, &RunSummary::d2hBytes, Quantity::Bytes);
    linkTime("Transfer time", "link busy, every step, the prefill too", Known::TransferTimes, &RunSummary::transferMs);
    linkTime("Exposed transfer time", "of that, on the critical path", Known::ExposedTimes, &RunSummary::exposedMs);
    table.add("Exposed per step", rates, [&](const RunData& r) {
        return r.ifKnown(Known::ExposedTimes, nanoseconds(r.summary.exposedMsPerStep * 1e6, timing(r)));
    });
    addLookahead(table, runs);
    addPcie(table, runs);
    return table.take();
}

Table intervals(const std::vector<RunData>& runs) {
    Table table{
        "intervals",
        "How sure the means are",
        fmt::format("Means over decode steps, {}, with 95 % intervals from a block bootstrap that keeps neighbouring "
                    "steps together, because they resemble each other. They say how much the mean would move "
                    "with other steps of this run, not with another machine or prompt. Fewer than {} steps "
                    "give no interval.",
                    coldSteps() == ColdSteps::Counted ? "cold ones too" : "cold ones left out",
                    StepIntervals::kFewestSteps),
        {{"run", "Run", "", false},
         {"quantity", "Quantity", "", false},
         {"mean", "Mean", "", false},
         {"low", "95 % from", "", false},
         {"high", "to", "", false},
         {"unit", "Unit", "", true},
         {"basis", "Basis", "", true},
         {"steps", "Steps", "", false},
         {"block_steps", "Kept together", "steps drawn at a time by the bootstrap", false}},
        {}};
    for (const RunData& run : runs) {
        if (run.steps.empty()) continue;
        const StepIntervals sure(run);
        const auto add = [&](const char* name, Interval interval, Quantity quantity, Basis basis, Known needed) {
            if (!run.row.knows.has(needed)) return;
            table.rows.push_back({text(run.row.name), text(name), real(interval.value, quantity, basis),
                                  real(interval.low, quantity, basis), real(interval.high, quantity, basis),
                                  text(std::string(unitOf(quantity))), text(std::string(nameOf(basis))),
                                  count(run.summary.countedSteps),
                                  sure.possible() ? count(sure.blockLength()) : Cell{}});
        };
        const auto of = [&](auto&& value) { return series(run, value); };
        add("Step time", sure.mean(of([](const StepRow& s) { return s.durationNs; })), Quantity::Nanoseconds,
            Basis::Measured, Known::StepTimes);
        if (!run.tokensBroken)
            add("Tokens per second", tokensPerSecond(run, sure), Quantity::PerSecond, Basis::Measured,
                Known::StepTimes);
        add("Hit rate", sure.ratio(of([](const StepRow& s) { return s.hits; }), of([](const StepRow& s) {
                                       return s.hits + s.misses;
                                   })),
            Quantity::Share, Basis::Plain, Known::Hits);
        add("Misses per step", sure.mean(of([](const StepRow& s) { return s.misses; })), Quantity::Count, Basis::Plain,
            Known::Hits);
        add("Bytes to device per step", sure.mean(of([](const StepRow& s) { return s.h2dBytes; })), Quantity::Bytes,
            Basis::Plain, Known::Bytes);
        add("Exposed transfer time per step", sure.mean(of([](const StepRow& s) { return s.exposedNs; })),
            Quantity::Nanoseconds, basisOf(run.row.timing), Known::ExposedTimes);
    }
    return table;
}

Table breakdown(const std::vector<RunData>& runs) {
    Table table{"breakdown",
                "Where the time goes",
                fmt::format("Measured wall time by component. All components, the rest (other) included, add up to the "
                            "wall time of the phase, every step counted; modelled link time is not in it. Shares and "
                            "means per step {}, as the key numbers do; a mean has a 95 % interval where the steps are "
                            "enough for one.",
                            coldSteps() == ColdSteps::Counted ? "count cold steps"
                            : haveMixed(runs)                 ? "leave cold and mixed steps out"
                                                              : "leave cold steps out"),
                {{"run", "Run", "", false},
                 {"phase", "Phase", "", false},
                 {"component", "Component", "", false},
                 {"total_ns", "Total", "", false},
                 {"share", "Share", "of the phase's wall time; of decode steps as the means", false},
                 {"mean_ns", "Mean per step", "", false},
                 {"mean_low_ns", "95 % from", "", false},
                 {"mean_high_ns", "to", "", false}},
                {}};
    for (const RunData& run : runs) {
        const StepIntervals sure(run);
        std::vector<ComponentShare> parts = run.summary.components;
        std::stable_partition(parts.begin(), parts.end(), // decoding is what people ask about
                              [](const ComponentShare& part) { return part.phase == Phase::Decode; });
        for (const ComponentShare& part : parts) {
            Interval interval{kUndefined, kUndefined, kUndefined};
            if (part.phase == Phase::Decode && !run.stepParts.empty()) {
                std::vector<double> values;
                for (std::size_t i = 0; i < run.stepParts.size(); ++i)
                    if (run.counts(i)) values.push_back(double(partOf(run.stepParts[i], part.component)));
                interval = sure.mean(values);
            }
            table.rows.push_back({text(run.row.name), text(nameOf(part.phase)), text(part.component),
                                  whole(part.totalNs, Quantity::Nanoseconds, Basis::Measured),
                                  real(part.share, Quantity::Share, Basis::Measured), nanoseconds(interval.value),
                                  nanoseconds(interval.low), nanoseconds(interval.high)});
        }
    }
    return table;
}

Table slowestSteps(const std::vector<RunData>& runs) {
    Table table{"slowest_steps",
                "The slowest steps",
                fmt::format("The {} slowest decode steps of each run, and what was special about them.", kSlowest),
                {{"run", "Run", "", false},
                 {"step", "Step", "", false},
                 {"duration_ns", "Wall time", "", false},
                 {"of_mean", "Of the mean", "wall time divided by the mean step of the key numbers", false},
                 {"misses", "Misses", "blocks", false},
                 {"h2d_bytes", "To device", "", false},
                 {"exposed_ns", "Exposed", "transfer time on the critical path", false},
                 {"timing", "Link time is", "", true},
                 {"remark", "Remark", "", false}},
                {}};
    for (const RunData& run : runs) {
        if (!run.row.knows.has(Known::StepTimes)) continue;
        std::vector<StepRow> order = run.steps;
        const std::size_t shown = std::min(kSlowest, order.size());
        std::partial_sort(order.begin(), order.begin() + std::ptrdiff_t(shown), order.end(),
                          [](const StepRow& a, const StepRow& b) {
                              return a.durationNs != b.durationNs ? a.durationNs > b.durationNs : a.step < b.step;
                          });
        const double mean = run.summary.stepMs * 1e6;
        for (std::size_t i = 0; i < shown; ++i) {
            const StepRow& step = order[i];
            std::string remark = step.step == run.steps.front().step ? "first decode step" : "";
            if (step.opensBlock) remark += remark.empty() ? "opens a block" : ", opens a block";
            table.rows.push_back({text(run.row.name), count(step.step),
                                  whole(step.durationNs, Quantity::Nanoseconds, Basis::Measured),
                                  real(ratio(double(step.durationNs), mean), Quantity::Ratio),
                                  run.ifKnown(Known::Hits, count(step.misses)),
                                  run.ifKnown(Known::Bytes, whole(step.h2dBytes, Quantity::Bytes)),
                                  run.ifKnown(Known::ExposedTimes,
                                              whole(step.exposedNs, Quantity::Nanoseconds, basisOf(run.row.timing))),
                                  text(run.row.timing.text()), text(remark)});
        }
    }
    return table;
}

} // namespace kvscope::reports
