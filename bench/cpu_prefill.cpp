// Reading a prompt is matrix multiplication: the work of projections grows with the prompt's length, that of attention
// with the square of its length.
#include "bench/bench.h"
#include "bench/machine.h"
#include "bench/workload.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvscope::bench {
namespace {

/// Floating-point operations of a causal prefill, two for each multiply-add. Only the last position goes through the
/// output head.
double prefillFlops(const ModelConfig& c, double tokens) {
    const double perLayer = 2.0 * c.hidden * (c.queryHeads + 2 * c.kvHeads) * c.headDim +
                            2.0 * c.queryHeads * c.headDim * c.hidden + 3 * 2.0 * c.hidden * c.ffn;
    const double attention = 4.0 * c.queryHeads * c.headDim * tokens * (tokens + 1) / 2;
    return c.layers * (perLayer * tokens + attention) + 2.0 * c.hidden * c.vocab;
}

} // namespace

nlohmann::ordered_json cpuPrefill(const Log& log) {
    const auto model = Model::load(kDefaultModel);
    const int threads = hardwareThreads();
    nlohmann::ordered_json out{{"model", model->name()}, {"threads", threads}};
    double fma = 0, blas = 0;
    std::map<int, double> best{{600, 1e30}, {2048, 1e30}, {9000, 1e30}};
    for (int round = 0; round < 3; ++round) {
        fma = std::max(fma, registerFmaFlops(threads));
        blas = std::max(blas, openBlasFlops(512, 2048, 2048, 5).value_or(0));
        for (auto& [tokens, time] : best) {
            NullSink sink;
            DecodeSession session(model, {needlePrompt(*model, tokens)}, greedy("full", 1), sink);
            session.prefill();
            time = std::min(time, double(session.summary().prefillNs) / 1e9);
        }
    }
    const double peak = blas > 0 ? std::max(blas, 1.0) : fma;
    out["fma_peak_gflops"] = fma / 1e9;
    out["openblas_gemm_512x2048x2048_gflops"] =
        blas > 0 ? nlohmann::ordered_json(blas / 1e9) : nlohmann::ordered_json(nullptr);
    for (const auto& [tokens, time] : best) {
        const double rate = prefillFlops(model->config(), tokens) / time;
        const std::string prefix = fmt::format("prompt_{}_", tokens);
        out[prefix + "tokens_per_s"] = tokens / time;
        out[prefix + "gflops"] = rate / 1e9;
        out[prefix + "share_of_gemm_peak"] = rate / peak;
        out[prefix + "share_of_fma_peak"] = fma > 0 ? rate / fma : 0;
        log(fmt::format("{} tokens in {:.0f} ms: {:.0f} GFLOP/s, {:.0f} % of the GEMM peak", tokens, time * 1e3,
                        rate / 1e9, 100 * rate / peak));
    }
    return out;
}

} // namespace kvscope::bench
