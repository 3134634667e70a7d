#include "profiler/compare/compare.h"
#include "profiler/read/recorded_oracle.h"

#include <algorithm>
#include <unordered_map>

namespace kvscope {
namespace {

constexpr int kPromptStart = 1024;   // tokens of a sequence that are compared
constexpr int kMostSequences = 1024; // the format's limit, in case of a damaged number

} // namespace

std::string_view componentName(int component) {
    if (component < kStageCount) return kStageNames[std::size_t(component)];
    component -= kStageCount;
    return component < kStepStageCount ? kStepStageNames[std::size_t(component)] : kOtherName;
}

RunSample loadRunSample(const TraceReader& reader, int runId) {
    RunSample sample;
    sample.path = reader.path();
    sample.summary = summarize(reader, runId); // names the run if it is not there
    sample.run = *reader.run(runId);
    std::unordered_map<int, BreakdownStep> breakdown;
    for (BreakdownStep& step : reader.breakdownSteps(runId)) breakdown.emplace(step.step, std::move(step));
    for (const StepRow& row : reader.steps(runId)) {
        if (row.phase != Phase::Decode) continue;
        StepSample& step = sample.steps.emplace_back();
        step.step = row.step;
        step.opensBlock = row.opensBlock;
        step.durationNs = row.durationNs;
        step.exposedNs = row.exposedNs;
        const auto parts = breakdown.find(row.step);
        if (parts == breakdown.end()) { // a live run has grown between the two reads
            sample.steps.pop_back();
            break;
        }
        for (int c = 0; c < kStageCount; ++c) step.componentNs[std::size_t(c)] = parts->second.stageNs[std::size_t(c)];
        for (int c = 0; c < kStepStageCount; ++c)
            step.componentNs[std::size_t(kStageCount + c)] = parts->second.stepStageNs[std::size_t(c)];
        step.componentNs.back() = parts->second.otherNs;
    }
    for (int sequence = 0; sequence < std::min(sample.run.sequences, kMostSequences); ++sequence)
        for (const TokenRow& token : reader.prompt(runId, sequence, 0, kPromptStart))
            sample.promptStart.push_back(token.id);
    sample.oracle = recordedOracle(reader, runId);
    return sample;
}

} // namespace kvscope
