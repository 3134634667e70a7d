// A decode step at short context reads every weight once: its floor is the weights' bytes over the read bandwidth.
#include "bench/bench.h"
#include "bench/machine.h"
#include "bench/workload.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvscope::bench {

nlohmann::ordered_json cpuDecode(const Log& log) {
    constexpr int kPrompt = 64, kSteps = 100, kRounds = 7;
    const auto model = Model::load(kDefaultModel);
    const ModelConfig& config = model->config();
    const int threads = hardwareThreads();
    NullSink sink;
    DecodeSession tiny(model, {std::vector<std::int32_t>(kPrompt, 5)}, greedy("full", 1 + kSteps * (kRounds + 1)),
                       sink);
    tiny.prefill();
    for (int i = 0; i < kSteps; ++i) tiny.step(); // warm up
    double bestStep = 1e30, sameSize = 0, large = 0;
    std::vector<double> shares, rates;
    for (int round = 0; round < kRounds; ++round) { // interleaved, so that neighbours disturb both alike
        const double stream = streamingReadBytesPerSecond(model->weightBytes(), threads, 20);
        large = std::max(large, streamingReadBytesPerSecond(std::size_t(512) << 20, threads, 2));
        sameSize = std::max(sameSize, stream);
        const double perStep = seconds([&] {
                                   for (int i = 0; i < kSteps; ++i) tiny.step();
                               }) /
                               kSteps;
        bestStep = std::min(bestStep, perStep);
        rates.push_back(1 / perStep);
        const double context = kPrompt + kSteps * (round + 1.5);
        const double bytes =
            double(model->weightBytes()) + context * config.layers * config.kvHeads * config.headDim * 8.0;
        shares.push_back(bytes / perStep / stream);
        log(fmt::format("{:.0f} tokens/s, {:.1f} GB/s of {:.1f} GB/s read", 1 / perStep, bytes / perStep / 1e9,
                        stream / 1e9));
    }
    constexpr int kMiddleRound = kRounds / 2;
    const double kvBytes =
        (kPrompt + kSteps * (kMiddleRound + 1.5)) * config.layers * config.kvHeads * config.headDim * 8.0;
    const double bytes = double(model->weightBytes()) + kvBytes;
    return {{"model", model->name()},
            {"method", "full"},
            {"threads", threads},
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
