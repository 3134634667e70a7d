#include "profiler/compare/verdict_text.h"

#include <cmath>
#include <fmt/format.h>

namespace kvscope {
namespace {

std::string percent(double share) {
    const double value = 100 * std::abs(share);
    return fmt::format("{:.{}f} %", value, value < 1 ? 2 : value < 20 ? 1 : 0);
}

std::string moreOrLess(double ratio) {
    return ratio == 1 ? "no more" : fmt::format("{} {}", percent(ratio - 1), ratio > 1 ? "more" : "less");
}

std::string milliseconds(double ns) { return fmt::format("{:.4g} ms", ns / 1e6); }

} // namespace

std::string sentenceOf(const Comparison& c) {
    const std::string interval = fmt::format("{:g} % confidence: from {} to {}", 100 * c.confidence,
                                             moreOrLess(c.ratio.low), moreOrLess(c.ratio.high));
    const std::string size =
        fmt::format("{} takes {} time than A in the median decode step", c.other, moreOrLess(c.ratio.value));
    switch (c.verdict) {
    case Verdict::Faster:
        return fmt::format("Faster: {} ({})", size, interval);
    case Verdict::Slower:
        return fmt::format("Slower: {} ({})", size, interval);
    case Verdict::WithinThreshold:
        return fmt::format("Slower, but not beyond {} and noise: {} ({})", percent(c.threshold), size, interval);
    case Verdict::CannotTell:
        return fmt::format("Cannot tell: the steps vary too much ({}; {})", size, interval);
    case Verdict::NoDifference:
        break;
    }
    return fmt::format("No difference within noise: {} ({})", size, interval);
}

std::vector<std::string> notesOf(std::span<const RunSample> a, std::span<const RunSample> b, const Comparison& c) {
    std::vector<std::string> notes;
    const RunSample &left = a.front(), &right = b.front();
    if (c.aRuns == 1 && c.bRuns == 1) {
        if (left.path == right.path && left.run.runId == right.run.runId)
            notes.push_back(fmt::format("A and {} are the same run", c.other));
        else
            notes.push_back(
                fmt::format("one run a side: what differs from process to process (clock, memory, other load) is not "
                            "in the interval; repeats of A or {} put it there",
                            c.other));
    }
    if (c.verdict != Verdict::Slower && c.threshold > 0 && c.ratio.high > 1 + c.threshold)
        notes.push_back(fmt::format("a slowdown of {} cannot be excluded: the interval reaches {}",
                                    percent(c.threshold), moreOrLess(c.ratio.high)));
    const bool meanSlower = c.meanRatio.low > 1, meanFaster = c.meanRatio.high < 1;
    if ((meanSlower && c.ratio.high < 1) || (meanFaster && c.ratio.low > 1) ||
        ((c.verdict == Verdict::NoDifference || c.verdict == Verdict::CannotTell) && (meanSlower || meanFaster)))
        notes.push_back(fmt::format(
            "the mean step says otherwise: {} takes {} time (from {} to {}); some steps take much "
            "longer than most",
            c.other, moreOrLess(c.meanRatio.value), moreOrLess(c.meanRatio.low), moreOrLess(c.meanRatio.high)));
    for (const auto& [side, name] : {std::pair(a, std::string_view("A")), std::pair(b, std::string_view(c.other))})
        for (const RunSample& sample : side)
            if (!sample.brokenRules.empty())
                notes.push_back(fmt::format("rows of run {} of {} break rules of the trace format, so the numbers"
                                            " concerned, other than times, are left out: {}",
                                            sample.run.runId, name, sample.brokenRules));
    if (c.openingKept)
        notes.emplace_back("steps that open a KV block are in the comparison, because without them too few are left");
    if (c.unpaired > 0)
        notes.push_back(fmt::format("{} decode steps are not in all runs and were left out", c.unpaired));
    if (left.promptStart != right.promptStart)
        notes.emplace_back("the prompts differ: so do the blocks that are worth selecting");
    if (left.run.timing == Timing::Modelled && !std::isnan(c.exposed.aNs))
        notes.push_back(fmt::format("link times are modelled and in no step's time: {} exposed per step in A, {} in {}",
                                    milliseconds(c.exposed.aNs), milliseconds(c.exposed.bNs), c.other));
    if (left.summary.coldSteps + right.summary.coldSteps > 0)
        notes.emplace_back(coldSteps() == ColdSteps::Counted
                               ? "rates and means of the whole run count cold steps"
                               : "rates and means of the whole run leave cold steps out; totals count them");
    if (left.summary.mixedSteps + right.summary.mixedSteps > 0)
        notes.emplace_back(coldSteps() == ColdSteps::Counted
                               ? "steps that read pieces of prompts and decode count like others"
                               : "steps that read pieces of prompts and decode are in no rate, mean or pair of steps");
    return notes;
}

} // namespace kvscope
