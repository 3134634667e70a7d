#include "bench/cuda/model_kernels.h"

#include "base/elements.h"
#include "base/extents.h"
#include "base/indexed.h"
#include "bench/cuda/attention_time.h"
#include "core/cuda/device_memory.h"
#include "kernels/cuda/attention/attention_latent.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/packed.h"
#include "kernels/cuda/token/token.h"

#include <algorithm>
#include <fmt/format.h>
#include <numeric>
#include <random>
#include <vector>

namespace kvscope::bench {

using Json = nlohmann::ordered_json;
using Bf16 = __nv_bfloat16;

/// Weights as GGUF's blocks, in the packed order: what counts is the share of the bandwidth their own bytes need.
Json quantisedLayers(Gpu& gpu, double readRate, const std::string& onlyType, const std::string& onlyLayer,
                     const Log& log) {
    Json out;
    const struct {
        const char* name;
        int rows, cols;
        bool gated;
    } layers[] = {{"8b_o", 4096, 4096, false}, {"8b_gate_up", 28672, 4096, true}, {"8b_down", 4096, 14336, false}};
    for (const DType type :
         {DType::Q4_0, DType::Q4_1, DType::Q5_0, DType::Q5_1, DType::Q8_0, DType::Q4_K, DType::Q5_K, DType::Q6_K})
        for (const auto& layer : layers)
            for (const int n : {1, 4, 16}) {
                if (!onlyType.empty() && onlyType != nameOf(type)) continue;
                if (!onlyLayer.empty() && onlyLayer != layer.name) continue;
                const std::size_t bytes = cuda::packedBytes(type, layer.rows, layer.cols);
                const int copies = int(std::max<std::size_t>(4, (std::size_t(512) << 20) / bytes)); // cold weights
                std::byte* w = nullptr;
                Bf16* hidden = nullptr;
                float *x = nullptr, *y = nullptr, *norm = nullptr;
                DeviceArena arena;
                arena.plan(w, {bytes, copies}, "a benchmark"); // zeros: the values change nothing
                arena.plan(x, {n, layer.cols}, "a benchmark");
                arena.plan(y, {n, layer.rows}, "a benchmark");
                arena.plan(hidden, {n, layer.rows}, "a benchmark");
                arena.plan(norm, layer.cols, "a benchmark");
                arena.take();
                cuda::Linear product(gpu.launch, n, layer.cols);
                const double time = gpu.graphSeconds([&] {
                    for (int i = 0; i < copies; ++i) {
                        const cuda::DeviceMatrix matrix{nullptr, layer.rows, layer.cols, type, RowsOf(w, bytes)[i]};
                        product.run(matrix, x, layer.cols, n, {norm, 1e-5f},
                                    layer.gated ? cuda::LinearOutput{nullptr, 0, false, nullptr, hidden}
                                                : cuda::LinearOutput{y, layer.rows, false, nullptr, nullptr});
                    }
                }) / copies;
                const std::string name = fmt::format("quantised_{}_{}_inputs_{}", nameOf(type), layer.name, n);
                out[name + "_gb_per_s"] = double(bytes) / time * 1e-9;
                out[name + "_share_of_read"] = double(bytes) / readRate / time;
                log(fmt::format("{} {:10} {:2} inputs: {:7.2f} us, {:4.0f} GB/s, {:.3f} of the read probe",
                                nameOf(type), layer.name, n, time * 1e6, double(bytes) / time * 1e-9,
                                double(bytes) / readRate / time));
            }
    return out;
}

/// DeepSeek-V2-Lite's experts, 6 of 64 for every token: both products, against the weights of the experts in use.
Json expertLayers(Gpu& gpu, double readRate, const Log& log) {
    constexpr int kExperts = 64, kUsed = 6, kHidden = 2048, kWidth = 1408;
    Json out;
    for (const DType type : {DType::BF16, DType::Q4_K})
        for (const int n : {1, 4, 16, 64}) {
            const int width = type == DType::Q4_K ? 1536 : kWidth; // whole blocks
            const std::size_t upBytes = cuda::packedBytes(type, 2 * width, kHidden),
                              downBytes = cuda::packedBytes(type, kHidden, width);
            constexpr int kLayers = 4; // cold weights
            std::byte *up = nullptr, *down = nullptr;
            Bf16 *x = nullptr, *hidden = nullptr;
            float* y = nullptr;
            std::int32_t *counts = nullptr, *pairs = nullptr;
            DeviceArena arena;
            arena.plan(up, upBytes * kExperts * kLayers, "a benchmark");
            arena.plan(down, downBytes * kExperts * kLayers, "a benchmark");
            arena.plan(x, {n, kHidden}, "a benchmark");
            arena.plan(hidden, {n, kUsed, width}, "a benchmark");
            arena.plan(y, {n, kUsed, kHidden}, "a benchmark");
            arena.plan(counts, kExperts, "a benchmark");
            arena.plan(pairs, {kExperts, n}, "a benchmark");
            arena.take();
            std::mt19937 random(5);
            const Extents<int, int> chosen(kExperts, n); // [expert][token that chose it]
            Numbered<std::int32_t> count(kExperts, 0), order(kExperts);
            std::vector<std::int32_t> list(chosen.size());
            std::iota(order.begin(), order.end(), 0);
            for (int token = 0; token < n; ++token) {
                std::shuffle(order.begin(), order.end(), random);
                for (int k = 0; k < kUsed; ++k) {
                    const int expert = order[k];
                    list[chosen.offset(expert, count[expert]++)] = token * kUsed + k;
                }
            }
            upload(counts, count);
            upload(pairs, list);
            const auto busy = std::size_t(std::count_if(count.begin(), count.end(), [](int c) { return c > 0; }));
            const double time = gpu.graphSeconds([&] {
                for (int layer = 0; layer < kLayers * 4; ++layer) {
                    cuda::PackedProduct p;
                    p.type = type;
                    p.n = n;
                    p.w = RowsOf(up, {upBytes, kExperts})[layer % kLayers];
                    p.rows = 2 * width;
                    p.cols = kHidden;
                    p.xHalf = x;
                    p.hidden = hidden;
                    p.groups = {counts, pairs, kExperts, n, kUsed, false, upBytes};
                    cuda::multiplyPacked(gpu.launch, p);
                    p.w = RowsOf(down, {downBytes, kExperts})[layer % kLayers];
                    p.rows = kHidden;
                    p.cols = width;
                    p.xHalf = hidden;
                    p.hidden = nullptr;
                    p.y = y;
                    p.stride = kHidden;
                    p.groups.inputPerPair = true;
                    p.groups.bytes = downBytes;
                    cuda::multiplyPacked(gpu.launch, p);
                }
            }) / (kLayers * 4);
            const double share = double(busy * (upBytes + downBytes)) / readRate / time;
            out[fmt::format("experts_{}_tokens_{}_share_of_read", nameOf(type), n)] = share;
            log(fmt::format("experts in {}, {:2} tokens ({} experts): {:.2f} us, {:.3f} of the read probe",
                            nameOf(type), n, busy, time * 1e6, share));
        }
    return out;
}

/// Decode attention over latent keys, 64 scattered blocks of 64 tokens.
Json latentAttention(Gpu& gpu, double readRate, const Log& log) {
    Json out;
    const cuda::AttentionShape shape{16, 1, cuda::kLatentDim, 64, cuda::latentValueOf(cuda::kLatentDim)};
    for (const int rows : {1, 4, 16, 64}) {
        const AttentionTime attention = timeAttention(gpu, shape, rows, 0.05f);
        const double us = attention.seconds * 1e6, share = double(attention.bytes) / readRate / attention.seconds;
        out[fmt::format("latent_attention_batch_{}_us", rows)] = us;
        out[fmt::format("latent_attention_batch_{}_share_of_read", rows)] = share;
        log(fmt::format("latent attention, batch {:2}, 64 scattered blocks: {:.2f} us, {:.3f} of the read probe", rows,
                        us, share));
    }
    return out;
}

} // namespace kvscope::bench
