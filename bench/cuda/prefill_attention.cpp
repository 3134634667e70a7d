#include "bench/cuda/prefill_attention.h"

#include "base/elements.h"
#include "core/cuda/device_memory.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/hopper_prefill.h"
#include "kernels/cuda/token/token.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace kvscope::bench {
namespace {

struct Prompt {
    const char* name;
    cuda::AttentionShape shape;
    int n, first, window; // query tokens, tokens before them
    bool biased;
    double operations() const {
        double pairs = 0;
        for (int i = first + 1; i <= first + n; ++i) pairs += window > 0 ? std::min(i, window) : i;
        return 4.0 * shape.dim * shape.queryHeads * pairs;
    }
};

/// Seconds of one launch in a row of launches that takes about a twentieth of a second.
double secondsOf(Gpu& gpu, const cuda::PrefillAttentionArgs& args, const cuda::Launch& how) {
    const double once = gpu.seconds([&] { cuda::prefillAttention(how, args); }, 1);
    const int launches = std::clamp(int(0.05 / once), 1, 200);
    return gpu.seconds(
               [&] {
                   for (int i = 0; i < launches; ++i) cuda::prefillAttention(how, args);
               },
               5) /
           launches;
}

} // namespace

nlohmann::ordered_json prefillAttention(Gpu& gpu, const Log& log) {
    nlohmann::ordered_json out;
    const cuda::AttentionShape llama{32, 8, 128, 64}, wide{32, 2, 128, 64}, narrow{32, 8, 64, 64};
    const Prompt prompts[] = {{"4k", llama, 4096, 0, 0, false},
                              {"16k", llama, 16384, 0, 0, false},
                              {"32k", llama, 32768, 0, 0, false},
                              {"2k_after_14k", llama, 2048, 14336, 0, false},
                              {"256_after_8k", llama, 256, 8192, 0, false},
                              {"512", llama, 512, 0, 0, false},
                              {"16k_biased", wide, 16384, 0, 0, true},
                              {"16k_window_4k", llama, 16384, 0, 4096, false},
                              {"16k_dim_64", narrow, 16384, 0, 0, false}};
    for (const Prompt& prompt : prompts) {
        const int blocks = (prompt.first + prompt.n + 63) / 64, kvHeads = prompt.shape.kvHeads;
        const Elements width(prompt.shape.queryHeads, prompt.shape.dim),
            store(kvHeads, blocks, cuda::blockElements(prompt.shape));
        __nv_bfloat16 *q = nullptr, *kv = nullptr, *attended = nullptr;
        float* bias = nullptr;
        DeviceArena arena;
        arena.plan(q, {prompt.n, width}, "a benchmark");
        arena.plan(attended, {prompt.n, width}, "a benchmark");
        arena.plan(kv, store, "a benchmark");
        arena.plan(bias, {kvHeads, blocks, 64}, "a benchmark");
        arena.take();
        cuda::fillNormal(q, Elements(prompt.n, width), 1, 1);
        cuda::fillNormal(kv, store, 1, 2);
        cuda::fillScores(bias, Elements(kvHeads, blocks, 64), 3);
        cuda::PrefillAttentionArgs args;
        args.shape = prompt.shape;
        args.n = prompt.n;
        args.firstPosition = prompt.first;
        args.window = prompt.window;
        args.q = q;
        args.blocks = kv;
        args.headStride = std::int64_t(blocks) * std::int64_t(cuda::blockElements(prompt.shape));
        args.tokenBias = prompt.biased ? bias : nullptr;
        args.biasStride = std::int64_t(blocks) * 64;
        args.scale = 1 / std::sqrt(float(prompt.shape.dim));
        args.biasScale = 1;
        args.out = attended;
        cuda::Launch earlier = gpu.launch; // what a GPU without clusters, before Hopper, would run
        earlier.clusters = false;
        const double now = prompt.operations() / secondsOf(gpu, args, gpu.launch) * 1e-12,
                     before = prompt.operations() / secondsOf(gpu, args, earlier) * 1e-12;
        const bool own = cuda::hopperPrefillFits(gpu.launch, args);
        out[fmt::format("prefill_attention_{}_tflops", prompt.name)] = now;
        out[fmt::format("prefill_attention_{}_kernel_of_all_gpus_tflops", prompt.name)] = before;
        log(fmt::format("prefill attention, {:13}: {:4.0f} TFLOP/s{}, the kernel of all GPUs {:4.0f}", prompt.name, now,
                        own ? " by warpgroup products" : "", before));
    }
    return out;
}

} // namespace kvscope::bench
