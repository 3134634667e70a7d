// The CUDA kernels one by one, each beside the ceiling it works under.
#include "base/elements.h"
#include "base/indexed.h"
#include "bench/bench.h"
#include "bench/cuda/attention_time.h"
#include "bench/cuda/gpu.h"
#include "bench/cuda/linear_layers.h"
#include "bench/cuda/model_kernels.h"
#include "bench/cuda/prefill_attention.h"
#include "bench/settings.h"
#include "kernels/cuda/choice/select.h"
#include "kernels/cuda/testing/probe.h"
#include "kernels/cuda/token/sample.h"
#include "kernels/cuda/token/token.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

namespace kvscope::bench {
namespace {

using Json = nlohmann::ordered_json;
using Bf16 = __nv_bfloat16;

/// The memory and the arguments of a selection from random scores.
class SelectionJob {
public:
    static constexpr int kNodes = 32, kMarks = 4;

    SelectionJob(int rows, int blocks) : heads_(rows * 2) {
        constexpr int kCapacity = 64;
        const Elements heads(heads_), windows(heads, blocks, 4);
        const char* what = "a benchmark";
        arena_.plan(q_, {rows, 32, 128}, what);
        arena_.plan(keys_, windows * 128, what);
        arena_.plan(scores_, windows, what);
        arena_.plan(pool_, heads * kCapacity * cuda::blockElements(64, 128), what);
        arena_.plan(fresh_, heads * 128, what);
        for (auto** firsts : {&windowFirst_, &blockFirst_}) arena_.plan(*firsts, heads, what);
        arena_.plan(position_, rows, what);
        for (auto** list : {&listBlock_, &listSlot_, &map_}) arena_.plan(*list, heads * kCapacity, what);
        arena_.plan(listCount_, heads, what);
        arena_.plan(loads_, heads * kCapacity * 64, what);
        arena_.plan(backs_, heads * 64, what);
        arena_.plan(counts_, 2, what);
        arena_.plan(marks_, kNodes * kMarks, what);
        arena_.take();
        fill(rows, blocks, kCapacity);
        setArguments(rows, blocks, kCapacity);
    }

    int heads() const { return heads_; }
    void run(const cuda::Launch& launch) const { cuda::selectBlocksOnDevice(launch, args_); }
    /// Runs the selection and writes the times of its phases as those of node number `node`.
    void runMarked(const cuda::Launch& launch, int node) const {
        cuda::SelectArgs marked = args_;
        std::uint64_t* const marks = marks_ + node * kMarks;
        marked.marks = {marks, marks + 1, marks + 2, marks + 3};
        cuda::selectBlocksOnDevice(launch, marked);
    }
    /// Mean microseconds of scores, choice and lists over the nodes that were marked.
    std::array<double, kMarks - 1> phases() const {
        std::vector<std::uint64_t> times(kNodes * kMarks);
        cuda::check(cudaMemcpy(times.data(), marks_, times.size() * sizeof(std::uint64_t), cudaMemcpyDeviceToHost),
                    "reading a benchmark's times");
        std::array<double, kMarks - 1> phases{};
        for (std::size_t i = 0; i < kNodes; ++i)
            for (std::size_t m = 0; m + 1 < kMarks; ++m)
                phases[m] += double(times[i * kMarks + m + 1] - times[i * kMarks + m]) * 1e-3 / kNodes;
        return phases;
    }

private:
    void fill(int rows, int blocks, int capacity) {
        const Elements heads(heads_), windows(heads, blocks, 4);
        upload(counts_, std::vector<std::uint32_t>(2, 0));
        upload(marks_, std::vector<std::uint64_t>(kNodes * kMarks, 0));
        cuda::fillNormal(q_, Elements(rows, 32, 128), 1, 1);
        cuda::fillNormal(keys_, windows * 128, 1, 2);
        cuda::fillScores(scores_, windows, 3);
        std::vector<std::int64_t> firstWindows, firstBlocks;
        for (int h = 0; h < heads_; ++h)
            firstWindows.push_back(std::int64_t(h) * blocks * 4), firstBlocks.push_back(std::int64_t(h) * blocks);
        cuda::check(cudaMemset(map_, 0xff, Elements(heads, capacity) * sizeof(std::int32_t)), "preparing a benchmark");
        upload(windowFirst_, firstWindows);
        upload(blockFirst_, firstBlocks);
        upload(position_, Numbered<std::int32_t>(rows, blocks * 64 - 2));
    }
    void setArguments(int rows, int blocks, int capacity) {
        cuda::SelectArgs& a = args_;
        a.shape = {32, 2, 128, 64};
        a.rows = rows;
        a.position = position_;
        a.q = q_;
        a.index.pooledKeys = keys_;
        a.index.pooledScores = scores_;
        a.index.windowFirst = windowFirst_;
        a.index.blockFirst = blockFirst_;
        a.maxBlocks = blocks;
        a.score = cuda::SelectArgs::Score::PooledSoftmax;
        a.agnostic = true;
        a.budget = {1, 16, true, 15, 31};
        a.scale = 0.088f;
        a.capacity = a.slots.count = capacity;
        a.list = {listBlock_, listSlot_, listCount_};
        a.slots.map = map_;
        a.slots.pool = pool_;
        a.slots.newKey = a.slots.newValue = fresh_;
        a.slots.storeFirst = blockFirst_;
        a.slots.moves = {loads_, backs_, counts_};
    }

    const int heads_; // rows * KV heads
    DeviceArena arena_;
    Bf16 *q_ = nullptr, *keys_ = nullptr, *pool_ = nullptr, *fresh_ = nullptr;
    float* scores_ = nullptr;
    std::int64_t *windowFirst_ = nullptr, *blockFirst_ = nullptr;
    std::int32_t *position_ = nullptr, *listBlock_ = nullptr, *listSlot_ = nullptr, *listCount_ = nullptr,
                 *map_ = nullptr;
    cuda::BlockMove *loads_ = nullptr, *backs_ = nullptr;
    std::uint32_t* counts_ = nullptr;
    std::uint64_t* marks_ = nullptr;
    cuda::SelectArgs args_;
};

Json selection(Gpu& gpu, int only, const Log& log) {
    constexpr int kNodes = SelectionJob::kNodes;
    Json out;
    for (const int rows : only > 0 ? std::vector{only} : std::vector{1, 4, 16})
        for (const int blocks : {256, 2048}) {
            const SelectionJob job(rows, blocks);
            const int heads = job.heads();
            const double busy = gpu.graphSeconds([&] {
                for (int i = 0; i < kNodes; ++i) job.run(gpu.launch);
            });
            gpu.graphSeconds( // once more, now with the times of the phases
                [&] {
                    for (int i = 0; i < kNodes; ++i) job.runMarked(gpu.launch, i);
                },
                1);
            const auto phases = job.phases();
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
        const AttentionTime attention = timeAttention(gpu, {32, 2, 128, 64}, rows, 0.088f);
        const double us = attention.seconds * 1e6, share = double(attention.bytes) / readRate / attention.seconds;
        out[fmt::format("attention_batch_{}_share_of_read", rows)] = share;
        out[fmt::format("attention_batch_{}_us", rows)] = us;
        log(fmt::format("attention, batch {:2}, 64 scattered blocks: {:.2f} us, {:.3f} of the read probe", rows, us,
                        share));
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
            const Elements count(rows, vocab);
            arena.plan(logits, count, "a benchmark");
            arena.plan(draws, rows, "a benchmark");
            for (auto** numbers : {&first, &position, &next}) arena.plan(*numbers, rows, "a benchmark");
            arena.take();
            std::mt19937 random(5);
            std::normal_distribution<float> normal(0, 2.5f); // as spread as those of a trained model
            std::vector<float> values(count);
            for (float& value : values) value = normal(random);
            upload(logits, values);
            upload(draws, Numbered<double>(rows, 0.6));
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

} // namespace

Json gpuKernels(const Settings& given, const Log& log) {
    const SettingsReader settings(given, {"only", "rows", "type", "layer", "peer", "python"});
    const int rows = settings.integer("rows", 0, 0, 256); // 0: several
    const std::string only = settings.text("only", "");
    const std::vector<std::string> parts{"select",    "attention", "sample", "linear",
                                         "quantised", "experts",   "latent", "prefill"};
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
    if (wanted("linear"))
        out.update(linearLayers(
            read, {settings.text("layer", ""), settings.text("peer", ""), settings.text("python", "python3")}, log));
    if (wanted("quantised"))
        out.update(quantisedLayers(gpu, read, settings.text("type", ""), settings.text("layer", ""), log));
    if (wanted("experts")) out.update(expertLayers(gpu, read, log));
    if (wanted("latent")) out.update(latentAttention(gpu, read, log));
    if (wanted("prefill")) out.update(prefillAttention(gpu, log));
    return out;
}

} // namespace kvscope::bench
