// Times whole prompts of a published model shape: from the ids on the host to the first token on the host. The second
// prompt of a session is what counts; the first one also loads libraries and kernels, unless a rehearsal has.
#include "bench/bench.h"
#include "bench/cuda/decode_job.h"
#include "bench/settings.h"
#include "bench/workload.h"
#include "core/cuda/cuda_engine.h"
#include "core/cuda/rehearsal.h"
#include "core/model/model_shape.h"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

namespace kvscope::bench {
namespace {

using Json = nlohmann::ordered_json;

/// Floating-point operations of a prompt: two for each weight of the layers and token, and the causal half of the
/// scores and sums of every query head. The output head multiplies the last token only.
double operationsOf(const ModelConfig& config, double tokens) {
    const double hidden = config.hidden, heads = config.queryHeads, dim = config.headDim;
    const double weights = config.layers * hidden * (2 * heads * dim + 2.0 * config.kvHeads * dim + 3.0 * config.ffn);
    return 2 * tokens * weights + 4 * dim * heads * config.layers * tokens * (tokens + 1) / 2;
}

/// A round of one session, in milliseconds on the host's clock; the stages on the GPU's.
struct Round {
    double ms = 0;
    std::array<double, kStageCount> stageMs{};
};

Round readOnce(CudaEngine& engine, const std::vector<std::int32_t>& prompt) {
    StepRecord record;
    Round round;
    const auto begin = std::chrono::steady_clock::now();
    engine.prefill({prompt}, record, {}, {});
    round.ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    for (const LayerRecord& layer : record.layers)
        for (std::size_t s = 0; s < round.stageMs.size(); ++s) round.stageMs[s] += double(layer.stageNs[s]) * 1e-6;
    return round;
}

Json measureLength(DecodeJob job, int tokens, int rounds, bool rehearse,
                   const std::shared_ptr<const DeviceModel>& model, const Log& log) {
    job.context = tokens, job.steps = 1;
    PlantedSteps changes;
    CudaEngineOptions options = engineOptions(job, *model, changes);
    options.maxPrompt = tokens; // engineOptions() is for decode, which reads no prompt
    double rehearsalMs = 0;
    if (rehearse) {
        Rehearsal rehearsal(model, options);
        rehearsal.finish();
        rehearsalMs = rehearsal.ms();
        log(fmt::format("{:6} tokens: rehearsed in {:.1f} ms {}", tokens, rehearsalMs, rehearsal.problem()));
    }
    CudaEngine engine(model, options);
    const double first = readOnce(engine, randomPrompt(tokens, model->config.vocab, 1)).ms;
    std::vector<Round> all;
    for (int i = 0; i < rounds; ++i)
        all.push_back(readOnce(engine, randomPrompt(tokens, model->config.vocab, unsigned(2 + i))));
    const double second = all.front().ms;
    std::ranges::sort(all, {}, &Round::ms);
    const Round& middle = all[all.size() / 2];
    const double tflops = operationsOf(model->config, tokens) / middle.ms * 1e-9;
    Json stages;
    std::string text;
    for (std::size_t s = 0; s < middle.stageMs.size(); ++s) {
        if (middle.stageMs[s] <= 0) continue;
        stages[std::string(nameOf(Stage(s)))] = middle.stageMs[s];
        text += fmt::format(", {} {:.1f}", nameOf(Stage(s)), middle.stageMs[s]);
    }
    log(fmt::format("{:6} tokens: {:.1f} ms ({:.1f} to {:.1f}), the first prompt {:.1f}, {:.1f} more than the "
                    "second; {:.0f} TFLOP/s, {:.0f} tokens/s; on the GPU{}",
                    tokens, middle.ms, all.front().ms, all.back().ms, first, first - second, tflops,
                    tokens / middle.ms * 1e3, text));
    return {{"tokens", tokens},
            {"prefill_ms", middle.ms},
            {"least_ms", all.front().ms},
            {"most_ms", all.back().ms},
            {"rehearsal_ms", rehearsalMs},
            {"first_prompt_ms", first},
            {"first_minus_second_ms", first - second},
            {"tflops", tflops},
            {"gpu_stage_ms", std::move(stages)}};
}

} // namespace

/// Settings: shape, method, offload as for `decode`; lengths=4096,16384,32768 prompt tokens; rounds of each length;
/// rehearse=true: as a session does before its first prompt.
Json prefill(const Settings& given, const Log& log) {
    const SettingsReader settings(given, {"shape", "method", "offload", "lengths", "rounds", "rehearse"});
    DecodeJob job;
    job.shape = settings.text("shape", "llama3.2-3b");
    job.method = settings.text("method", "full");
    job.offload = settings.flag("offload", false);
    const int rounds = settings.integer("rounds", 5, 1, 1000);
    const bool rehearse = settings.flag("rehearse", false);
    const ModelShape& shape = findModelShape(job.shape);
    const auto model = DeviceModel::random(configOf(shape, 131072), shape.evictionHead, 1, true);
    Json out{{"shape", job.shape}, {"method", job.method}, {"offload", job.offload}, {"prompts", Json::array()}};
    std::istringstream lengths(settings.text("lengths", "4096,16384,32768"));
    for (std::string word; std::getline(lengths, word, ',');) {
        const int tokens = SettingsReader({{"lengths", word}}, {"lengths"}).integer("lengths", 1, 64, 1 << 17);
        out["prompts"].push_back(measureLength(job, tokens, rounds, rehearse, model, log));
    }
    return out;
}

} // namespace kvscope::bench
