#include "profiler/read/summary.h"

#include "profiler/format/trace_keys.h"
#include "profiler/read/reader_impl.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>

namespace kvscope {
namespace {

constexpr int kPieceSteps = 8192; // read at once: a megabyte of their numbers

/// The components in the order of the pipeline: embed, the stages of a layer, what follows the layers, the rest of the
/// step.
std::string_view pipelineName(int component) {
    if (component == 0) return kStepStageNames[0];
    if (component <= kStageCount) return kStageNames[std::size_t(component - 1)];
    if (component < kStageCount + kStepStageCount) return kStepStageNames[std::size_t(component - kStageCount)];
    return kOtherName;
}

std::int64_t pipelineNs(const BreakdownStep& step, int component) {
    if (component == 0) return step.stepStageNs[0];
    if (component <= kStageCount) return step.stageNs[std::size_t(component - 1)];
    if (component < kStageCount + kStepStageCount) return step.stepStageNs[std::size_t(component - kStageCount)];
    return step.otherNs;
}

void add(std::uint64_t& sum, std::int64_t value) { sum += std::uint64_t(value); }

} // namespace

void SummarySums::read(const TraceReader& reader, int runId, int first, int last, const TakeStep& take) {
    const std::vector<BreakdownStep> stages = reader.breakdownSteps(runId, first, last);
    const std::vector<StepRow> steps = reader.steps(runId, first, last);
    const StepMarks marks(reader, ReaderAccess::of(reader).known(runId));
    auto of = stages.begin(); // both are in the order of the steps
    for (const StepRow& step : steps) {
        while (of != stages.end() && of->step < step.step) ++of;
        if (of == stages.end()) break;
        if (of->step != step.step) continue;
        const StepMark mark = marks.of(step);
        addStep(step, mark, &*of);
        addStages(step.phase, *of);
        if (take) take(step, mark, *of);
    }
    addSelections(reader, runId, first, last);
}

void SummarySums::addStep(const StepRow& step, const StepMark& mark, const BreakdownStep* stages) {
    PhaseSums& phase = phases_[step.phase == Phase::Prefill ? 0 : 1];
    ++phase.steps;
    add(phase.tokens, step.phase == Phase::Prefill ? step.tokens : step.decodeTokens());
    if (step.mixed()) {
        add(phases_[0].tokens, step.promptTokens);
        ++mixedSteps_;
    }
    phase.durationNs += double(step.durationNs);
    add(selected_, step.selected);
    add(hits_, step.hits);
    add(misses_, step.misses);
    add(h2dBytes_, step.h2dBytes);
    add(d2hBytes_, step.d2hBytes);
    transferNs_ += double(step.transferNs);
    exposedNs_ += double(step.exposedNs);
    if (step.phase == Phase::Prefill) return;
    const std::int64_t end = std::int64_t(std::uint64_t(step.startNs) + std::uint64_t(step.durationNs));
    firstStartNs_ = decode_.steps == 0 ? step.startNs : std::min(firstStartNs_, step.startNs);
    lastEndNs_ = decode_.steps == 0 ? end : std::max(lastEndNs_, end);
    decode_.add(step, stages);
    const auto cold = rule_.next(mark);
    for (std::size_t i = 0; i < cold.size(); ++i)
        if (cold[i]) cold_[i].add(step, stages);
}

void SummarySums::RateSums::add(const StepRow& step, const BreakdownStep* stages) {
    ++steps;
    kvscope::add(tokens, step.decodeTokens());
    kvscope::add(hits, step.hits);
    kvscope::add(misses, step.misses);
    kvscope::add(h2dBytes, step.h2dBytes);
    durationNs += double(step.durationNs);
    exposedNs += double(step.exposedNs);
    for (int c = 0; stages && c < kComponents; ++c) kvscope::add(componentNs[std::size_t(c)], pipelineNs(*stages, c));
}

SummarySums::RateSums SummarySums::RateSums::without(const RateSums& other) const {
    RateSums rest = *this;
    rest.steps -= other.steps;
    rest.tokens -= other.tokens;
    rest.hits -= other.hits;
    rest.misses -= other.misses;
    rest.h2dBytes -= other.h2dBytes;
    rest.durationNs -= other.durationNs;
    rest.exposedNs -= other.exposedNs;
    for (std::size_t c = 0; c < rest.componentNs.size(); ++c) rest.componentNs[c] -= other.componentNs[c];
    return rest;
}

void SummarySums::addStages(Phase phase, const BreakdownStep& step) {
    PhaseSums& sums = phases_[phase == Phase::Prefill ? 0 : 1];
    for (int c = 0; c < kComponents; ++c) {
        const std::int64_t ns = pipelineNs(step, c);
        add(sums.componentNs[std::size_t(c)], ns);
        sums.took[std::size_t(c)] |= ns != 0 || c == kComponents - 1; // every step has a rest, if only of nothing
    }
}

void SummarySums::addSelections(const TraceReader& reader, int runId, int first, int last) {
    Statement locality(*ReaderAccess::of(reader).connection,
                       "SELECT total(kept IS NOT NULL AND selected > 0 AND opens_block = 0),"
                       " total(kept IS NULL), total(kept IS NOT NULL AND opens_block <> 0),"
                       " total(CASE WHEN opens_block = 0 THEN CAST(kept AS REAL) / nullif(selected, 0) END),"
                       " min(CASE WHEN opens_block = 0 THEN CAST(kept AS REAL) / nullif(selected, 0) END)"
                       " FROM selection WHERE id BETWEEN ? AND ?");
    const auto [low, high] = trace::keysOfSteps(runId, first, last, trace::kSelectionShift);
    locality.bindAll(low, high);
    if (!locality.step()) return;
    if (!locality.isNull(4))
        localityMin_ = localityCount_ > 0 ? std::min(localityMin_, locality.real(4)) : locality.real(4);
    localityCount_ += std::int64_t(locality.real(0));
    localityUndefined_ += std::int64_t(locality.real(1));
    localityOpening_ += std::int64_t(locality.real(2));
    localitySum_ += locality.real(3);
}

RunSummary SummarySums::summary(const RunRow& run) const {
    constexpr double undefined = std::numeric_limits<double>::quiet_NaN();
    const PhaseSums &prefill = phases_[0], &decode = phases_[1];
    RunSummary summary;
    summary.runId = run.runId;
    summary.droppedSteps = run.droppedSteps;
    summary.timing = run.timing;
    summary.promptTokens = std::int64_t(prefill.tokens);
    summary.prefillMs = prefill.durationNs / 1e6;
    summary.decodeSteps = std::int64_t(decode.steps);
    summary.decodedTokens = std::int64_t(decode.tokens);
    summary.decodeMs = decode.durationNs / 1e6;
    summary.gapsMs = std::max(0.0, (double(lastEndNs_) - double(firstStartNs_) - decode.durationNs) / 1e6);
    summary.knows = run.knows;
    summary.promptSteps = std::int64_t(prefill.steps);
    summary.mixedSteps = mixedSteps_;
    summary.coldSteps = std::int64_t(cold().steps) - mixedSteps_;
    const bool leaveOut = kvscope::coldSteps() == ColdSteps::LeftOut && cold().steps < decode_.steps;
    const RateSums counted = leaveOut ? decode_.without(cold()) : decode_;
    const auto rate = [&](double amount, double over, Known needed) {
        return over > 0 && run.knows.has(needed) ? amount / over : undefined;
    };
    const auto steps = double(counted.steps), tokens = double(std::int64_t(counted.tokens));
    const auto signedSum = [](std::uint64_t value) { return double(std::int64_t(value)); };
    summary.countedSteps = std::int64_t(counted.steps);
    summary.tokensPerSecond = rate(tokens * 1e9, counted.durationNs, Known::StepTimes);
    summary.tokensPerSecondWithGaps = rate(tokens * 1e9, counted.durationNs + summary.gapsMs * 1e6, Known::StepTimes);
    summary.stepMs = rate(counted.durationNs / 1e6, steps, Known::StepTimes);
    summary.hitRate = rate(signedSum(counted.hits), signedSum(counted.hits) + signedSum(counted.misses), Known::Hits);
    summary.missesPerStep = rate(signedSum(counted.misses), steps, Known::Hits);
    summary.h2dBytesPerStep = rate(signedSum(counted.h2dBytes), steps, Known::Bytes);
    summary.exposedMsPerStep = rate(counted.exposedNs / 1e6, steps, Known::ExposedTimes);
    summary.selected = std::int64_t(selected_);
    summary.hits = std::int64_t(hits_);
    summary.misses = std::int64_t(misses_);
    summary.h2dBytes = std::int64_t(h2dBytes_);
    summary.d2hBytes = std::int64_t(d2hBytes_);
    summary.transferMs = transferNs_ / 1e6;
    summary.exposedMs = exposedNs_ / 1e6;
    summary.localityCount = localityCount_;
    summary.localityUndefined = localityUndefined_;
    summary.localityOpening = localityOpening_;
    summary.localityMean = localityCount_ > 0 ? localitySum_ / double(localityCount_) : undefined;
    summary.localityMin = localityCount_ > 0 ? localityMin_ : undefined;
    for (const Phase phase : {Phase::Prefill, Phase::Decode}) {
        const PhaseSums& sums = phases_[phase == Phase::Prefill ? 0 : 1];
        const auto& shared = phase == Phase::Prefill ? sums.componentNs : counted.componentNs;
        double whole = 0;
        for (const std::uint64_t ns : shared) whole += signedSum(ns);
        for (int c = 0; c < kComponents; ++c) {
            if (!sums.took[std::size_t(c)]) continue;
            const auto ns = std::int64_t(sums.componentNs[std::size_t(c)]);
            const double share = whole > 0 ? signedSum(shared[std::size_t(c)]) / whole : 0;
            summary.components.push_back({phase, std::string(pipelineName(c)), ns, share});
        }
    }
    return summary;
}

bool RunSummary::gapsMatter() const {
    constexpr double kMuch = 0.05;
    return std::isfinite(tokensPerSecond) && std::isfinite(tokensPerSecondWithGaps) &&
           tokensPerSecondWithGaps < (1 - kMuch) * tokensPerSecond;
}

std::string RunSummary::ratesCount() const {
    if (coldSteps + mixedSteps == 0) return "all steps";
    std::string which = coldSteps > 0 ? fmt::format("{} cold", coldSteps) : std::string();
    if (mixedSteps > 0) which += fmt::format("{}{} mixed", which.empty() ? "" : " and ", mixedSteps);
    const bool one = coldSteps + mixedSteps == 1;
    return countedSteps < decodeSteps ? fmt::format("{} {} left out", which, one ? "step" : "steps")
                                      : fmt::format("all steps, {} {} among them", which, one ? "one" : "ones");
}

RunSummary summarize(const TraceReader& reader, int runId, const Progress& progress, const TakeStep& take) {
    const RunRow run = ReaderAccess::of(reader).known(runId);
    SummarySums sums;
    const int steps = reader.stepCount(runId);
    for (int first = 0; first < steps; first += kPieceSteps) {
        // Visits recorded steps only, because a trace may have large gaps between the numbers of its steps.
        first = ReaderAccess::of(reader).nextStep(runId, first);
        report(progress, double(first) / steps, "reading steps");
        sums.read(reader, runId, first, std::min(first + kPieceSteps, steps) - 1, take);
    }
    return sums.summary(run);
}

RunSummary summarize(const TraceReader& reader, int runId) { return summarize(reader, runId, {}); }

} // namespace kvscope
