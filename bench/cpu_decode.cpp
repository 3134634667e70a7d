// A decode step with a short context reads every weight once. The least time for it is the weights' bytes over the read
// bandwidth.
#include "bench/bench.h"
#include "bench/machine.h"
#include "bench/workload.h"

#include "base/error.h"

#include <charconv>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvscope::bench {

namespace {

int countOr(const Settings& settings, const char* key, int fallback, int most) {
    const auto found = settings.find(key);
    if (found == settings.end()) return fallback;
    int value = 0;
    const std::string& text = found->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > most)
        throw Error(ErrorKind::BadInput, fmt::format("cannot use --set {}={}", key, text),
                    fmt::format("give a whole number from 1 to {}", most));
    return value;
}

/// Ids spread over the whole vocabulary, so that rows of the embedding come from memory as they would for text.
std::vector<std::int32_t> spreadPrompt(int tokens, int vocab) {
    std::vector<std::int32_t> ids;
    for (int i = 0; i < tokens; ++i) ids.push_back(std::int32_t(std::int64_t(i + 1) * 7919 % vocab));
    return ids;
}

} // namespace

/// Settings: model (embedded name, folder or file), prompt (tokens read before decoding), steps (per round), rounds.
nlohmann::ordered_json cpuDecode(const Settings& settings, const Log& log) {
    const int prompt = countOr(settings, "prompt", 64, 1 << 20), steps = countOr(settings, "steps", 100, 1 << 20),
              rounds = countOr(settings, "rounds", 7, 1000);
    for (const auto& [key, value] : settings)
        if (key != "model" && key != "prompt" && key != "steps" && key != "rounds")
            throw Error(ErrorKind::BadInput, fmt::format("cpu-decode has no setting '{}'", key),
                        "known settings: model, prompt, steps, rounds");
    const auto named = settings.find("model");
    const auto model = Model::load(named == settings.end() ? kDefaultModel : named->second);
    const ModelConfig& config = model->config();
    const int threads = hardwareThreads();
    NullSink sink;
    DecodeSession tiny(model, {spreadPrompt(prompt, config.vocab)}, greedy("full", 1 + steps * (rounds + 1)), sink);
    tiny.prefill();
    const double promptSeconds = double(tiny.summary().prefillNs) / 1e9;
    for (int i = 0; i < steps; ++i) tiny.step(); // warm up
    double bestStep = 1e30, sameSize = 0, large = 0;
    std::vector<double> shares, rates;
    for (int round = 0; round < rounds; ++round) { // in turns, so that other programs disturb all of them alike
        const double stream = streamingReadBytesPerSecond(model->weightBytes(), threads, 20);
        large = std::max(large, streamingReadBytesPerSecond(std::size_t(512) << 20, threads, 2));
        sameSize = std::max(sameSize, stream);
        const double perStep = seconds([&] {
                                   for (int i = 0; i < steps; ++i) tiny.step();
                               }) /
                               steps;
        bestStep = std::min(bestStep, perStep);
        rates.push_back(1 / perStep);
        const double context = prompt + steps * (round + 1.5);
        const double bytes =
            double(model->weightBytes()) + context * config.layers * config.kvHeads * config.headDim * 8.0;
        shares.push_back(bytes / perStep / stream);
        log(fmt::format("{:.0f} tokens/s, {:.1f} GB/s of {:.1f} GB/s read", 1 / perStep, bytes / perStep / 1e9,
                        stream / 1e9));
    }
    const int middleRound = rounds / 2;
    const double kvBytes =
        (prompt + steps * (middleRound + 1.5)) * config.layers * config.kvHeads * config.headDim * 8.0;
    const double bytes = double(model->weightBytes()) + kvBytes;
    return {{"model", model->name()},
            {"method", "full"},
            {"weights", nameOf(model->weightType())},
            {"threads", threads},
            {"prompt_tokens", prompt},
            {"prompt_tokens_per_s", prompt / promptSeconds},
            {"device", tiny.runInfo().device},
            {"tokens_per_s_median", median(rates)},
            {"tokens_per_s_best", 1 / bestStep},
            {"weight_bytes_per_token", model->weightBytes()},
            {"kv_bytes_per_token", std::int64_t(kvBytes)},
            {"read_gb_per_s_of_a_buffer_as_large_as_the_weights", sameSize / 1e9},
            {"read_gb_per_s_of_512_mib", large / 1e9},
            {"share_of_same_size_read_median", median(shares)},
            {"share_of_same_size_read_best", bytes / bestStep / sameSize},
            {"share_of_512_mib_read", bytes / bestStep / large}};
}

} // namespace kvscope::bench
