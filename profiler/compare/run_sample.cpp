#include "profiler/compare/compare.h"

#include "base/error.h"
#include "profiler/check/check.h"
#include "profiler/read/needle_evidence.h"
#include "profiler/read/reader_impl.h"
#include "profiler/read/recorded_oracle.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <utility>

namespace kvscope {
namespace {

constexpr int kPromptStart = 1024;   // so many first tokens of a sequence are compared
constexpr int kMostSequences = 1024; // the format's limit: a damaged number may be larger

StepSample sampleOf(const StepRow& row, const StepMark& mark, const BreakdownStep& stages) {
    StepSample step;
    step.step = row.step;
    step.mark = mark;
    step.durationNs = row.durationNs;
    step.exposedNs = row.exposedNs;
    for (std::size_t c = 0; c < kStageCount; ++c) step.componentNs[c] = stages.stageNs[c];
    for (std::size_t c = 0; c < kStepStageCount; ++c) step.componentNs[kStageCount + c] = stages.stepStageNs[c];
    step.componentNs.back() = stages.otherNs;
    return step;
}

RunRow knownRun(const TraceReader& reader, int runId) {
    auto run = reader.run(runId);
    if (!run) throw Error(ErrorKind::BadInput, fmt::format("{} has no run {}", reader.path(), runId));
    return *std::move(run);
}

void readPromptStart(RunSample& sample, const TraceReader& reader) {
    for (int sequence = 0; sequence < std::min(sample.run.sequences, kMostSequences); ++sequence)
        for (const TokenRow& token : reader.prompt(sample.run.runId, sequence, 0, kPromptStart))
            sample.promptStart.push_back(token.id);
}

} // namespace

std::string_view componentName(int component) {
    if (component < kStageCount) return kStageNames[std::size_t(component)];
    component -= kStageCount;
    return component < kStepStageCount ? kStepStageNames[std::size_t(component)] : kOtherName;
}

RunSample loadRunSample(const TraceReader& reader, int runId, const Progress& progress) {
    constexpr int kPieceSteps = 8192;
    RunSample sample;
    while (!extendRunSample(sample, reader, runId, kPieceSteps))
        report(progress, double(sample.nextStep) / sample.run.steps, "reading steps");
    return sample;
}

bool extendRunSample(RunSample& sample, const TraceReader& reader, int runId, int mostSteps) {
    sample.path = reader.path();
    sample.run = knownRun(reader, runId);
    const int next = ReaderAccess::of(reader).nextStep(runId, sample.nextStep), end = reader.stepCount(runId);
    const int last = mostSteps < 0 ? end - 1 : std::min(end - 1, next + mostSteps - 1);
    if (next <= last) {
        sample.sums.read(reader, runId, next, last,
                         [&](const StepRow& row, const StepMark& mark, const BreakdownStep& stages) {
                             if (row.phase == Phase::Decode) sample.steps.push_back(sampleOf(row, mark, stages));
                         });
        sample.nextStep = last + 1;
    }
    if (sample.promptStart.empty()) readPromptStart(sample, reader); // a live run's prompts are written after its row
    if (last < end - 1) return false;
    sample.oracle = recordedOracle(reader, runId);
    sample.answer = answersText(needleAnswers(reader, sample.run));
    sample.summary = sample.sums.summary(sample.run);
    return true;
}

void refuseBroken(RunSample& sample, const RunCheck& check) {
    if (check.violations() == 0) return;
    sample.brokenRules = check.sentence();
    constexpr std::pair<Concern, Known> groups[] = {{Concern::Selection, Known::Selections},
                                                    {Concern::Hits, Known::Hits},
                                                    {Concern::Bytes, Known::Bytes},
                                                    {Concern::Transfer, Known::TransferTimes},
                                                    {Concern::Exposed, Known::ExposedTimes}};
    for (const auto& [concern, known] : groups)
        if (check.concerns(concern)) sample.run.knows = sample.run.knows.without(known);
    RunSummary& summary = sample.summary = sample.sums.summary(sample.run);
    constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
    if (check.concerns(Concern::Tokens)) summary.tokensPerSecond = summary.tokensPerSecondWithGaps = kUnknown;
    if (check.concerns(Concern::Selection)) {
        summary.localityMean = summary.localityMin = kUnknown;
        summary.localityCount = 0;
    }
}

RunSample glanceAtRun(const TraceReader& reader, int runId, const EvenSteps& which) {
    RunSample sample;
    sample.path = reader.path();
    sample.run = knownRun(reader, runId);
    const std::vector<StepRow> rows = reader.steps(runId);
    const StepMarks marks(reader, sample.run);
    for (const StepRow& row : rows) {
        const StepMark mark = marks.of(row);
        sample.sums.addStep(row, mark);
        if (row.phase != Phase::Decode || row.step > which.last || (row.step - 1) % which.stride != 0) continue;
        for (const BreakdownStep& stages : reader.breakdownSteps(runId, row.step, row.step))
            sample.steps.push_back(sampleOf(row, mark, stages));
    }
    readPromptStart(sample, reader);
    sample.oracle = recordedOracle(reader, runId);
    sample.answer = answersText(needleAnswers(reader, sample.run));
    sample.summary = sample.sums.summary(sample.run);
    return sample;
}

EvenSteps evenSteps(int shortestRun, int wanted) {
    const int stride = std::max(1, shortestRun / std::max(1, wanted));
    return {stride | 1, shortestRun - 1};
}

} // namespace kvscope
