// Decides which differences keep two runs from being compared, and which the reader is only told.
#include "profiler/compare/common_steps.h"
#include "profiler/compare/compare.h"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvscope {
namespace {

constexpr int kContextShare = 100; // contexts that differ by 1 % count as equal: prompts are cut between words

class Obstacles {
public:
    void add(std::string what, bool mayBeIgnored, bool untilItEnds = false) {
        const auto same = [&](const Obstacle& o) { return o.what == what; };
        if (std::none_of(list.begin(), list.end(), same)) list.push_back({std::move(what), mayBeIgnored, untilItEnds});
    }
    template <class Value> void require(const char* name, const Value& a, const Value& b, bool mayBeIgnored = false) {
        if (a != b) add(fmt::format("{} {} against {}", name, a, b), mayBeIgnored);
    }
    std::vector<Obstacle> list;
};

bool isRecording(const RunSample& sample) { return sample.run.status == RunStatus::Running && !sample.run.stale; }

void checkAlone(const RunSample& sample, Obstacles& out) {
    const RunRow& run = sample.run;
    const std::string name = fmt::format("run {} of {}", run.runId, sample.path);
    if (run.status != RunStatus::Finished)
        out.add(fmt::format("{} is {}, not finished{}", name,
                            run.stale ? "unfinished, its writer is gone" : run.status.text(),
                            run.error.empty() ? "" : ": " + run.error),
                true, isRecording(sample));
    if (!run.knows.has(Known::StepTimes)) out.add(fmt::format("{} does not know how long its steps took", name), false);
    if (run.droppedSteps > 0)
        out.add(fmt::format("{} lacks {} steps that were dropped while recording", name, run.droppedSteps), true);
}

/// What the trace says of the shape; 0 is a part that it does not say.
std::string shapeOf(const RunRow& run) {
    if (run.queryHeads > 0 && run.headDim > 0)
        return fmt::format("{} layers, {} query and {} KV heads of {}", run.layers, run.queryHeads, run.kvHeads,
                           run.headDim);
    return fmt::format("{} layers, {} KV heads{}, {}", run.layers, run.kvHeads,
                       run.headDim > 0 ? fmt::format(" of {}", run.headDim) : ", their size not known",
                       run.queryHeads > 0 ? fmt::format("{} query heads", run.queryHeads)
                                          : "the number of query heads not known");
}

/// Whether runs have different shapes, whatever one of them does not say.
bool shapesDiffer(const RunRow& a, const RunRow& b) {
    const auto differ = [](int left, int right) { return left > 0 && right > 0 && left != right; };
    return a.layers != b.layers || a.kvHeads != b.kvHeads || differ(a.queryHeads, b.queryHeads) ||
           differ(a.headDim, b.headDim);
}

std::string deviceOf(const RunRow& run) { return run.device.empty() ? "not known" : run.device; }

void checkPair(const RunSample& a, const RunSample& b, Obstacles& out) {
    out.require("model shape", shapeOf(a.run), shapeOf(b.run), !shapesDiffer(a.run, b.run));
    out.require("batch", a.run.sequences, b.run.sequences);
    out.require("backend", a.run.backend.text(), b.run.backend.text());
    if (a.run.knows.has(Known::TransferTimes) && b.run.knows.has(Known::TransferTimes))
        out.require("link times", a.run.timing.text(), b.run.timing.text());
    const auto ofSequence = [](const RunSample& sample) { // on average
        return sample.summary.promptTokens / std::max(1, sample.run.sequences);
    };
    if ((ofSequence(a) == 0) != (ofSequence(b) == 0))
        out.add("one run's trace lacks its prompt, so its context length is not known", true);
    else if (std::abs(ofSequence(a) - ofSequence(b)) * kContextShare > std::max(ofSequence(a), ofSequence(b)))
        out.require("context length", ofSequence(a), ofSequence(b), true);
    out.require("device", deviceOf(a.run), deviceOf(b.run), true);
    if (a.oracle != b.oracle)
        out.add("one run measured the attention mass (--oracle) inside its steps, the other did not", true);
}

nlohmann::json parametersOf(const RunRow& run) {
    auto parameters = nlohmann::json::parse(run.paramsJson, nullptr, false);
    return parameters.is_object() ? parameters : nlohmann::json::object();
}

std::string text(const nlohmann::json& object, const std::string& key) {
    if (!object.contains(key)) return "-";
    const auto& value = object[key];
    return value.is_string() ? value.get<std::string>() : value.dump();
}

} // namespace

std::vector<SettingDifference> settingDifferences(const RunRow& a, const RunRow& b) {
    std::vector<SettingDifference> result;
    const auto add = [&](const std::string& key, const std::string& left, const std::string& right) {
        if (left != right) result.push_back({key, left, right});
    };
    add("model", a.model, b.model);
    add("method", a.method, b.method);
    const auto left = parametersOf(a), right = parametersOf(b);
    auto all = left;
    all.update(right);
    for (const auto& [key, value] : all.items()) add(key, text(left, key), text(right, key));
    add("device_slots", std::to_string(a.deviceSlots), std::to_string(b.deviceSlots));
    add("link", a.link, b.link);
    add("device", a.device, b.device);
    add("record", a.level.text(), b.level.text());
    return result;
}

std::vector<Obstacle> findObstacles(std::span<const RunSample> a, std::span<const RunSample> b) {
    Obstacles out;
    for (const auto side : {a, b})
        for (const RunSample& sample : side) {
            checkAlone(sample, out);
            checkPair(side.front(), sample, out);
            for (const SettingDifference& d : settingDifferences(side.front().run, sample.run))
                if (d.key != "device")
                    out.add(fmt::format("repeats of one side have {} {} and {}", d.key, d.a, d.b), false);
        }
    checkPair(a.front(), b.front(), out);
    const CommonSteps common = commonSteps(a, b);
    const auto steps = common.steps.size();
    if (int(steps) < kFewestSteps)
        out.add(fmt::format("{} common, a verdict needs {}",
                            steps == 1 ? "1 decode step is" : fmt::format("{} decode steps are", steps), kFewestSteps),
                false, std::any_of(a.begin(), a.end(), isRecording) || std::any_of(b.begin(), b.end(), isRecording));
    return out.list;
}

} // namespace kvscope
