// The CUDA kernels one by one, each beside the ceiling it works under.
#include "bench/bench.h"
#include "bench/cuda/gpu.h"
#include "bench/cuda/model_kernels.h"
#include "bench/cuda/settings.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/choice/select.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/testing/probe.h"
#include "kernels/cuda/token/sample.h"
#include "kernels/cuda/token/token.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <vector>

namespace kvscope::bench {
namespace {

using Json = nlohmann::ordered_json;
using Bf16 = __nv_bfloat16;

template <class T> void upload(T* to, const std::vector<T>& from) {
    cuda::check(cudaMemcpy(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice), "preparing a benchmark");
}

Json selection(Gpu& gpu, int only, const Log& log) {
    Json out;
    for (const int rows : only > 0 ? std::vector{only} : std::vector{1, 4, 16})
        for (const int blocks : {256, 2048}) {
            const cuda::AttentionShape shape{32, 2, 128, 64};
            const int heads = rows * 2, windows = blocks * 4, capacity = 64;
            Bf16 *q = nullptr, *keys = nullptr, *pool = nullptr, *fresh = nullptr;
            float* scores = nullptr;
            std::int64_t *windowFirst = nullptr, *blockFirst = nullptr;
            std::int32_t *position = nullptr, *listBlock = nullptr, *listSlot = nullptr, *listCount = nullptr,
                         *map = nullptr;
            cuda::BlockMove *loads = nullptr, *backs = nullptr;
            std::uint32_t* counts = nullptr;
            std::uint64_t* marks = nullptr;
            constexpr int kNodes = 32, kMarks = 4;
            DeviceArena arena;
            arena.plan(q, std::size_t(rows) * 32 * 128, "a benchmark");
            arena.plan(keys, std::size_t(heads) * std::size_t(windows) * 128, "a benchmark");
            arena.plan(scores, std::size_t(heads) * std::size_t(windows), "a benchmark");
            arena.plan(pool, std::size_t(heads) * capacity * cuda::blockElements(64, 128), "a benchmark");
            arena.plan(fresh, std::size_t(heads) * 128, "a benchmark");
            arena.plan(windowFirst, std::size_t(heads), "a benchmark");
            arena.plan(blockFirst, std::size_t(heads), "a benchmark");
            arena.plan(position, std::size_t(rows), "a benchmark");
            for (auto** list : {&listBlock, &listSlot}) arena.plan(*list, std::size_t(heads) * capacity, "a benchmark");
            arena.plan(listCount, std::size_t(heads), "a benchmark");
            arena.plan(map, std::size_t(heads) * capacity, "a benchmark");
            arena.plan(loads, std::size_t(heads) * capacity * 64, "a benchmark");
            arena.plan(backs, std::size_t(heads) * 64, "a benchmark");
            arena.plan(counts, 2, "a benchmark");
            arena.plan(marks, kNodes * kMarks, "a benchmark");
            arena.take();
            upload(counts, std::vector<std::uint32_t>(2, 0));
            upload(marks, std::vector<std::uint64_t>(kNodes * kMarks, 0));
            cuda::fillNormal(q, std::size_t(rows) * 32 * 128, 1, 1);
            cuda::fillNormal(keys, std::size_t(heads) * std::size_t(windows) * 128, 1, 2);
            cuda::fillScores(scores, std::size_t(heads) * std::size_t(windows), 3);
            std::vector<std::int64_t> w, b;
            for (int h = 0; h < heads; ++h)
                w.push_back(std::int64_t(h) * windows), b.push_back(std::int64_t(h) * blocks);
            cuda::check(cudaMemset(map, 0xff, std::size_t(heads) * capacity * sizeof(std::int32_t)),
                        "preparing a benchmark");
            upload(windowFirst, w);
            upload(blockFirst, b);
            upload(position, std::vector<std::int32_t>(std::size_t(rows), blocks * 64 - 2));
            cuda::SelectArgs a;
            a.shape = shape;
            a.rows = rows;
            a.position = position;
            a.q = q;
            a.index.pooledKeys = keys;
            a.index.pooledScores = scores;
            a.index.windowFirst = windowFirst;
            a.index.blockFirst = blockFirst;
            a.maxBlocks = blocks;
            a.score = cuda::SelectArgs::Score::PooledSoftmax;
            a.agnostic = true;
            a.budget = {1, 16, true, 15, 31};
            a.scale = 0.088f;
            a.capacity = a.slots = capacity;
            a.listBlock = listBlock;
            a.listSlot = listSlot;
            a.listCount = listCount;
            a.map = map;
            a.pool = pool;
            a.newKey = a.newValue = fresh;
            a.storeFirst = blockFirst;
            a.moves = {loads, backs, counts};
            const double busy = gpu.graphSeconds([&] {
                for (int i = 0; i < kNodes; ++i) cuda::selectBlocksOnDevice(gpu.launch, a);
            });
            gpu.graphSeconds( // again, with the times of the phases
                [&] {
                    for (int i = 0; i < kNodes; ++i) {
                        cuda::SelectArgs marked = a;
                        for (int m = 0; m < 3; ++m) marked.marks[m] = marks + i * kMarks + m;
                        marked.endMark = marks + i * kMarks + 3;
                        cuda::selectBlocksOnDevice(gpu.launch, marked);
                    }
                },
                1);
            std::vector<std::uint64_t> times(kNodes * kMarks);
            cuda::check(cudaMemcpy(times.data(), marks, times.size() * sizeof(std::uint64_t), cudaMemcpyDeviceToHost),
                        "reading a benchmark's times");
            double phases[kMarks - 1] = {};
            for (std::size_t i = 0; i < kNodes; ++i)
                for (std::size_t m = 0; m + 1 < kMarks; ++m)
                    phases[m] += double(times[i * kMarks + m + 1] - times[i * kMarks + m]) * 1e-3 / kNodes;
            const double empty = gpu.graphSeconds([&] {
                for (int i = 0; i < kNodes; ++i) cuda::emptyNode(gpu.launch, heads);
            });
            const double above = (busy - empty) / kNodes * 1e6;
            out[fmt::format("select_rows_{}_blocks_{}_us_above_empty_node", heads, blocks)] = above;
            out[fmt::format("select_rows_{}_blocks_{}_phases_us", heads, blocks)] = phases;
            log(fmt::format(
                "selection of {} rows, {} blocks: {:.2f} us above an empty node of {:.2f} us; scores {:.2f}, "
                "choice {:.2f}, lists {:.2f} us",
                heads, blocks, above, empty / kNodes * 1e6, phases[0], phases[1], phases[2]));
        }
    return out;
}

Json attention(Gpu& gpu, double readRate, int only, const Log& log) {
    Json out;
    for (const int rows : only > 0 ? std::vector{only} : std::vector{1, 4, 16, 64}) {
        const cuda::AttentionShape shape{32, 2, 128, 64};
        const int heads = rows * 2, count = 64,
                  layers = std::max(2, 256 / rows); // cold: more than the cache between uses
        const std::size_t element = cuda::blockElements(64, 128), layerElements = std::size_t(heads) * count * element;
        Bf16 *q = nullptr, *pool = nullptr, *attended = nullptr;
        std::int64_t* first = nullptr;
        std::int32_t *position = nullptr, *ids = nullptr, *slots = nullptr, *counts = nullptr;
        float* partial = nullptr;
        std::uint32_t* arrivals = nullptr;
        DeviceArena arena;
        arena.plan(q, std::size_t(rows) * 32 * 128, "a benchmark");
        arena.plan(attended, std::size_t(rows) * 32 * 128, "a benchmark");
        arena.plan(pool, layerElements * std::size_t(layers), "a benchmark");
        arena.plan(first, std::size_t(heads), "a benchmark");
        arena.plan(position, std::size_t(rows), "a benchmark");
        arena.plan(ids, std::size_t(heads) * count, "a benchmark");
        arena.plan(slots, std::size_t(heads) * count, "a benchmark");
        arena.plan(counts, std::size_t(heads), "a benchmark");
        arena.plan(partial, cuda::attentionPartialFloats(gpu.launch, shape, rows, count), "a benchmark");
        arena.plan(arrivals, cuda::attentionArrivals(shape, rows), "a benchmark");
        arena.take();
        cuda::fillNormal(q, std::size_t(rows) * 32 * 128, 1, 1);
        cuda::fillNormal(pool, layerElements * std::size_t(layers), 1, 2);
        std::vector<std::int64_t> f;
        std::vector<std::int32_t> id, slot, order(static_cast<std::size_t>(count));
        std::iota(order.begin(), order.end(), 0);
        std::mt19937 random(5);
        for (int h = 0; h < heads; ++h) {
            f.push_back(std::int64_t(h) * count);
            std::shuffle(order.begin(), order.end(), random);
            for (int i = 0; i < count; ++i) id.push_back(4 * i), slot.push_back(order[std::size_t(i)]);
        }
        upload(first, f);
        upload(ids, id);
        upload(slots, slot);
        upload(counts, std::vector<std::int32_t>(std::size_t(heads), count));
        upload(position, std::vector<std::int32_t>(std::size_t(rows), 4 * count * 64));
        cuda::DecodeAttentionArgs a;
        a.shape = shape;
        a.rows = rows;
        a.position = position;
        a.q = q;
        a.headFirst = first;
        a.listBlock = ids;
        a.listSlot = slots;
        a.listCount = counts;
        a.capacity = a.maxBlocks = count;
        a.scale = 0.088f;
        a.out = attended;
        a.partial = partial;
        a.arrivals = arrivals;
        const int nodes = std::max(layers, 32); // so that launching the graph does not count
        const double time = gpu.graphSeconds([&] {
            for (int i = 0; i < nodes; ++i) {
                a.blocks = pool + std::size_t(i % layers) * layerElements;
                cuda::decodeAttention(gpu.launch, a);
            }
        }) / nodes;
        const double share = double(layerElements) * 2 / readRate / time;
        out[fmt::format("attention_batch_{}_share_of_read", rows)] = share;
        out[fmt::format("attention_batch_{}_us", rows)] = time * 1e6;
        log(fmt::format("attention, batch {:2}, 64 scattered blocks: {:.2f} us, {:.3f} of the read probe", rows,
                        time * 1e6, share));
    }
    return out;
}

Json sampling(Gpu& gpu, int only, const Log& log) {
    Json out;
    const struct {
        const char* name;
        double temperature, topP;
        int topK;
    } settings[] = {{"greedy", 0, 1, 0}, {"temperature", 1, 1, 0}, {"top_p", 1, 0.95, 0}, {"top_k_top_p", 1, 0.95, 50}};
    for (const int vocab : {73448, 151936})
        for (const int rows : only > 0 ? std::vector{only} : std::vector{1, 16}) {
            float* logits = nullptr;
            double* draws = nullptr;
            std::int32_t *first = nullptr, *position = nullptr, *next = nullptr;
            DeviceArena arena;
            const std::size_t count = std::size_t(rows) * std::size_t(vocab);
            arena.plan(logits, count, "a benchmark");
            arena.plan(draws, std::size_t(rows), "a benchmark");
            for (auto** numbers : {&first, &position, &next}) arena.plan(*numbers, std::size_t(rows), "a benchmark");
            arena.take();
            std::mt19937 random(5);
            std::normal_distribution<float> normal(0, 2.5f); // as spread as those of a trained model
            std::vector<float> values(count);
            for (float& value : values) value = normal(random);
            upload(logits, values);
            upload(draws, std::vector<double>(std::size_t(rows), 0.6));
            cuda::NextTokenArgs a;
            a.logits = logits;
            a.rows = rows;
            a.vocab = vocab;
            a.next = next;
            a.position = position;
            constexpr int kNodes = 32;
            for (const auto& setting : settings) {
                a.sampling = {setting.temperature, setting.topP, setting.topK, draws, first, 1};
                const double time = gpu.graphSeconds([&] {
                    for (int i = 0; i < kNodes; ++i) cuda::nextTokens(gpu.launch, a);
                }) / kNodes;
                out[fmt::format("next_token_{}_vocabulary_{}_rows_{}_us", setting.name, vocab, rows)] = time * 1e6;
                log(fmt::format("next token of {:2} x {:6}, {:11}: {:6.1f} us", rows, vocab, setting.name, time * 1e6));
            }
        }
    return out;
}

Json linear(Gpu& gpu, double readRate, const Log& log) {
    Json out;
    const struct {
        const char* name;
        int rows, cols;
        bool gated;
    } layers[] = {{"8b_qkv", 4608, 4096, false},   {"8b_o", 4096, 4096, false},    {"8b_gate_up", 32768, 4096, true},
                  {"8b_down", 4096, 16384, false}, {"1b_qkv", 2560, 2048, false},  {"1b_gate_up", 12288, 2048, true},
                  {"1b_down", 2048, 6144, false},  {"lm_head", 73448, 4096, false}};
    for (const int n : {1, 4, 16, 64})
        for (const auto& layer : layers) {
            const std::size_t size = std::size_t(layer.rows) * std::size_t(layer.cols);
            const int copies = int(std::max<std::size_t>(4, (std::size_t(1) << 30) / size / 2)); // cold weights
            Bf16 *w = nullptr, *hidden = nullptr;
            float *x = nullptr, *y = nullptr, *norm = nullptr;
            DeviceArena arena;
            arena.plan(w, size * std::size_t(copies), "a benchmark");
            arena.plan(x, std::size_t(n) * std::size_t(layer.cols), "a benchmark");
            arena.plan(y, std::size_t(n) * std::size_t(layer.rows), "a benchmark");
            arena.plan(hidden, std::size_t(n) * std::size_t(layer.rows), "a benchmark");
            arena.plan(norm, std::size_t(layer.cols), "a benchmark");
            arena.take();
            cuda::fillNormal(w, size * std::size_t(copies), 0.02f, 1);
            cuda::Linear product(gpu.launch, n, layer.cols);
            const double time = gpu.graphSeconds([&] {
                for (int i = 0; i < copies; ++i)
                    product.run({w + std::size_t(i) * size, layer.rows, layer.cols}, x, layer.cols, n, {norm, 1e-5f},
                                layer.gated ? cuda::LinearOutput{nullptr, 0, false, nullptr, hidden}
                                            : cuda::LinearOutput{y, layer.rows, false, nullptr, nullptr});
            }) / copies;
            const double share = double(size) * 2 / readRate / time;
            out[fmt::format("linear_{}_inputs_{}_share_of_read", layer.name, n)] = share;
            log(fmt::format("linear {:10} {:2} inputs: {:7.2f} us, {:.3f} of the read probe", layer.name, n, time * 1e6,
                            share));
        }
    return out;
}

} // namespace

Json gpuKernels(const Settings& given, const Log& log) {
    const SettingsReader settings(given, {"only", "rows", "type", "layer"});
    const int rows = settings.integer("rows", 0, 0, 256); // 0: several
    const std::string only = settings.text("only", "");
    const std::vector<std::string> parts{"select", "attention", "sample", "linear", "quantised", "experts", "latent"};
    if (!only.empty() && std::find(parts.begin(), parts.end(), only) == parts.end())
        throw Error(ErrorKind::BadInput, fmt::format("gpu-kernels has no part {}", only),
                    fmt::format("give only={}; block transfers have a benchmark of their own, transfers",
                                fmt::join(parts, ", ")));
    Gpu gpu;
    const double read = gpu.readBytesPerSecond();
    log(fmt::format("read probe {:.0f} GB/s", read * 1e-9));
    Json out{{"read_gb_per_s", read * 1e-9}};
    const auto wanted = [&](const char* part) { return only.empty() || only == part; };
    if (wanted("select")) out.update(selection(gpu, rows, log));
    if (wanted("attention")) out.update(attention(gpu, read, rows, log));
    if (wanted("sample")) out.update(sampling(gpu, rows, log));
    if (wanted("linear")) out.update(linear(gpu, read, log));
    if (wanted("quantised"))
        out.update(quantisedLayers(gpu, read, settings.text("type", ""), settings.text("layer", ""), log));
    if (wanted("experts")) out.update(expertLayers(gpu, read, log));
    if (wanted("latent")) out.update(latentAttention(gpu, read, log));
    return out;
}

} // namespace kvscope::bench
