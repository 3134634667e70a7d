// Runs of the real engine with clocks that do not depend on the machine: what was selected, hit, missed and moved, and
// the modelled link times, are the engine's; wall times of the stages are replaced by fixed ones.
#pragma once

#include "core/prompt/prompts.h"
#include "core/session/decode_session.h"
#include "profiler/insights/insight.h"
#include "profiler/record/recorder.h"
#include "profiler/store/trace_store.h"
#include "tests/profiler/temporary_folder.h"

#include <functional>
#include <gtest/gtest.h>
#include <memory>
#include <string>
#include <vector>

namespace kvscope::test {

inline constexpr std::int64_t kStageNs = 25'000; // of every stage that ran; about a laptop's step of nosa-tiny

struct EngineRun {
    std::string method = "nosa";
    int promptTokens = 1500, newTokens = 40, sequences = 1;
    Link link = {};
    std::function<void(SessionOptions&)> with = [](SessionOptions&) {};
};

inline CollectingSink decode(const EngineRun& run) {
    static const std::shared_ptr<const Model> model = Model::load(kDefaultModel);
    std::vector<std::vector<std::int32_t>> prompts;
    for (int s = 0; s < run.sequences; ++s) {
        NeedleOptions needle;
        needle.tokens = std::max(run.promptTokens, 300);
        needle.seed = std::uint64_t(s) + 1;
        prompts.push_back(model->tokenizer().encode(makeNeedlePrompt(model->tokenizer(), needle).text));
        prompts.back().resize(std::size_t(run.promptTokens));
    }
    SessionOptions options;
    options.method = run.method;
    options.maxNewTokens = run.newTokens;
    options.stopAtEos = false;
    options.link = run.link;
    options.threads = 1;
    run.with(options);
    CollectingSink sink(RecordLevel::Selections);
    DecodeSession session(model, prompts, options, sink);
    session.prefill();
    while (session.step()) {
    }
    session.end(RunStatus::Finished);
    return sink;
}

/// Lays the stages of every step one after the other, each as long as `length` says.
using StageLength = std::function<std::int64_t(const StepRecord&, int layer, Stage)>;
inline void retime(std::vector<StepRecord>& steps, const StageLength& length = {}) {
    std::int64_t now = 0;
    for (StepRecord& step : steps) {
        step.startNs = now;
        for (std::int64_t& stage : step.stepStageNs) now += stage = kStageNs;
        for (std::size_t layer = 0; layer < step.layers.size(); ++layer) {
            LayerRecord& row = step.layers[layer];
            row.startNs = now;
            for (int stage = 0; stage < kStageCount; ++stage) {
                std::int64_t& ns = row.stageNs[std::size_t(stage)];
                if (ns > 0) ns = length ? length(step, int(layer), Stage(stage)) : kStageNs;
                now += ns;
            }
        }
        step.durationNs = now - step.startNs;
    }
}

/// Appends a run to a trace. dropped: what the file says was lost.
inline void write(const std::string& file, const RunInfo& info, const std::vector<StepRecord>& steps,
                  const std::vector<SpanRecord>& spans = {}, std::int64_t dropped = 0) {
    TraceStore store(file, false);
    store.beginRun(info, RecordLevel::Selections);
    store.addPrompts(info.prompts);
    for (const StepRecord& step : steps) store.addStep(step);
    store.addSpans(spans);
    store.setHealth(dropped, 0, "");
    store.endRun(RunStatus::Finished, "");
    store.commit();
    store.finish();
}

inline void record(const std::string& file, const EngineRun& run, const StageLength& length = {}) {
    CollectingSink sink = decode(run);
    retime(sink.steps, length);
    write(file, sink.info, sink.steps);
}

inline const Insight* find(const InsightReport& report, const std::string& id) {
    for (const Insight& insight : report.insights)
        if (insight.id == id) return &insight;
    return nullptr;
}

/// The report as text, for messages of failed tests.
inline std::string listed(const InsightReport& report) {
    std::string text = report.exposure.headline + "\n";
    for (const Insight& insight : report.insights)
        text += std::string(nameOf(insight.severity)) + " " + insight.id + " " + std::to_string(insight.impact) + ": " +
                insight.title + "\n";
    return text;
}

inline double figure(const Insight& insight, const std::string& name) {
    for (const Figure& each : insight.figures)
        if (each.name == name) return each.value;
    ADD_FAILURE() << insight.id << " has no figure " << name;
    return 0;
}

} // namespace kvscope::test
