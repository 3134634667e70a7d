#include "profiler/compare/compare.h"

#include "kernels/base/error.h"
#include "profiler/read/recorded_oracle.h"

#include <algorithm>
#include <fmt/format.h>
#include <unordered_map>

namespace kvscope {
namespace {

constexpr int kPromptStart = 1024;   // tokens of a sequence that are compared
constexpr int kMostSequences = 1024; // the format's limit, in case of a damaged number

void readSteps(RunSample& sample, const TraceReader& reader, int runId, int first, int last) {
    std::unordered_map<int, BreakdownStep> breakdown;
    for (BreakdownStep& step : reader.breakdownSteps(runId, first, last)) breakdown.emplace(step.step, std::move(step));
    for (const StepRow& row : reader.steps(runId, first, last)) {
        if (row.phase != Phase::Decode) continue;
        const auto parts = breakdown.find(row.step);
        if (parts == breakdown.end()) { // a live run has grown between the two reads
            sample.nextStep = row.step;
            return;
        }
        StepSample& step = sample.steps.emplace_back();
        step.step = row.step;
        step.opensBlock = row.opensBlock;
        step.durationNs = row.durationNs;
        step.exposedNs = row.exposedNs;
        for (int c = 0; c < kStageCount; ++c) step.componentNs[std::size_t(c)] = parts->second.stageNs[std::size_t(c)];
        for (int c = 0; c < kStepStageCount; ++c)
            step.componentNs[std::size_t(kStageCount + c)] = parts->second.stepStageNs[std::size_t(c)];
        step.componentNs.back() = parts->second.otherNs;
    }
    sample.nextStep = last + 1;
}

} // namespace

std::string_view componentName(int component) {
    if (component < kStageCount) return kStageNames[std::size_t(component)];
    component -= kStageCount;
    return component < kStepStageCount ? kStepStageNames[std::size_t(component)] : kOtherName;
}

RunSample loadRunSample(const TraceReader& reader, int runId) {
    RunSample sample;
    extendRunSample(sample, reader, runId);
    return sample;
}

bool extendRunSample(RunSample& sample, const TraceReader& reader, int runId, int mostSteps) {
    const auto run = reader.run(runId);
    if (!run) throw Error(ErrorKind::BadInput, fmt::format("{} has no run {}", reader.path(), runId));
    sample.path = reader.path();
    sample.run = *run;
    const int next = sample.nextStep, end = reader.stepCount(runId);
    const int last = mostSteps < 0 ? end - 1 : std::min(end - 1, next + mostSteps - 1);
    if (next <= last) readSteps(sample, reader, runId, next, last);
    if (sample.promptStart.empty()) // a run is there before its prompts
        for (int sequence = 0; sequence < std::min(sample.run.sequences, kMostSequences); ++sequence)
            for (const TokenRow& token : reader.prompt(runId, sequence, 0, kPromptStart))
                sample.promptStart.push_back(token.id);
    if (last < end - 1) return false;
    sample.oracle = recordedOracle(reader, runId);
    sample.summary = summarize(reader, runId);
    return true;
}

} // namespace kvscope
