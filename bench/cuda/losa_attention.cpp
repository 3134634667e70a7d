// Attention of one layer of a block that is denoised, at SDAR-8B's shape: dense, Quest on all tokens, LoSA. Weights are
// random, so the pages that queries choose are planted: every query has its own best pages, and their unions have the
// densities of LoSA's Table 2. Times are of the kernels that an engine launches between rotation and output projection,
// and of LoSA also what the rotation takes longer where it compares queries. A part is what a kernel adds to those
// before it.
#include "base/elements.h"
#include "base/extents.h"
#include "base/indexed.h"
#include "bench/bench.h"
#include "bench/cuda/gpu.h"
#include "bench/settings.h"
#include "kernels/cuda/diffusion/block_attention.h"
#include "kernels/cuda/diffusion/block_place.h"
#include "kernels/cuda/diffusion/page_union.h"
#include "kernels/cuda/token/token.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <vector>

namespace kvscope::bench {
namespace {

using Json = nlohmann::ordered_json;
using Bf16 = __nv_bfloat16;

constexpr cuda::AttentionShape kShape{32, 8, 128, 16}; // query heads, KV heads, channels, tokens of a page
constexpr int kActive = 5;
constexpr const char* kWhat = "a benchmark";

/// Of LoSA's Table 2 (TraDo-8B): shares of the prefix in the union of all tokens and in that of the active ones.
struct Density {
    int budget;
    double quest, losa;
};
constexpr Density kDensities[] = {
    {128, 0.0424, 0.0258}, {256, 0.0808, 0.0504}, {512, 0.1478, 0.0971}, {1024, 0.2566, 0.1823}};

template <class T> std::vector<T> download(const T* from, std::size_t count) {
    std::vector<T> values(count);
    cuda::check(cudaMemcpy(values.data(), from, count * sizeof(T), cudaMemcpyDeviceToHost), "reading a benchmark");
    return values;
}

std::uint16_t toBf16(float value) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    return std::uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// The kernels of a layer in their order.
enum class Part : std::uint8_t { Active, Scores, Union, Attention, Merge };
constexpr const char* kParts[] = {"active", "scores", "union", "attention", "merge"};

/// Device memory of one cell: a layer's cache as often as it takes to find none of it in the GPU's caches.
struct Cell {
    Cell(Gpu& gpu, int blockTokens, int prefixTokens, int sequences)
        : launch(gpu.launch), block(blockTokens), prefix(prefixTokens), batch(sequences),
          pages((prefix + block + 15) / 16), heads(Elements(batch, kShape.kvHeads)),
          layerElements(Elements(heads, pages, cuda::blockElements(kShape))),
          rangeElements(Elements(heads, pages, 2, kShape.dim)) {
        constexpr std::size_t kCold = std::size_t(600) << 20;
        copies = int(std::max<std::size_t>(2, kCold / (layerElements * sizeof(Bf16))));
        const Elements tokens(batch, block), numbers(tokens, kShape.queryHeads, kShape.dim);
        rows.shape = kShape;
        rows.rows = batch;
        rows.block = block;
        splits = cuda::blockSplits(launch, rows, pages * kShape.blockSize);
        arena.plan(kv, {layerElements, copies}, kWhat);
        arena.plan(ranges, {rangeElements, copies}, kWhat);
        arena.plan(q, numbers, kWhat);
        arena.plan(out, numbers, kWhat);
        arena.plan(qkv, {tokens, kShape.queryHeads + 2 * kShape.kvHeads, kShape.dim}, kWhat);
        for (float** floats : {&before, &prefixOut}) arena.plan(*floats, numbers, kWhat);
        arena.plan(prefixSums, {tokens, kShape.queryHeads}, kWhat);
        arena.plan(angles, {prefix + block, kShape.dim / 2}, kWhat);
        arena.plan(ropeFirst, batch, kWhat);
        arena.plan(changes, {tokens, kShape.queryHeads}, kWhat);
        arena.plan(table, batch, kWhat);
        arena.plan(headFirst, heads, kWhat);
        arena.plan(active, heads, kWhat);
        const int queries = rows.queries();
        choice.maxPages = pages;
        arena.plan(scores, {heads, queries, choice.scoreStride()}, kWhat);
        arena.plan(words, {heads, choice.wordsOf()}, kWhat);
        arena.plan(arrivals, heads, kWhat);
        arena.plan(list, {heads, pages}, kWhat);
        arena.plan(count, heads, kWhat);
        arena.plan(partial, {heads, splits, queries, kShape.dim}, kWhat);
        arena.plan(states, {heads, splits, queries}, kWhat);
        arena.take();
        cuda::fillNormal(kv, Elements(layerElements, copies), 1, 1);
        std::vector<std::int64_t> first;
        for (std::size_t head = 0; head < heads; ++head) first.push_back(std::int64_t(head) * pages);
        upload(headFirst, first);
        rows.table = table;
        rows.active = active;
        rows.headFirst = headFirst;
        choice.rows = rows;
        choice.q = q;
        choice.scores = scores, choice.words = words, choice.arrivals = arrivals;
        choice.pages = list, choice.count = count;
    }

    /// The kernels of copy i, up to the one that is named.
    void run(int i, bool sparse, Part last = Part::Merge) {
        const int at = i % copies;
        if (sparse) {
            cuda::nameActive(launch, {rows, changes, false, kActive, false, 0, active, nullptr, nullptr});
            if (last == Part::Active) return;
            choice.ranges = RowsOf(ranges, rangeElements)[at];
            cuda::scoreUnionPages(launch, choice);
            if (last == Part::Scores) return;
            cuda::unitePages(launch, choice);
            if (last == Part::Union) return;
        }
        cuda::BlockAttentionArgs attention;
        attention.rows = rows;
        if (!sparse) attention.rows.active = nullptr;
        attention.q = q;
        attention.blocks = RowsOf(kv, layerElements)[at];
        attention.pages = list;
        attention.pageCount = count;
        attention.capacity = pages;
        attention.scale = 0.088f;
        attention.splits = splits;
        attention.settled = true;
        attention.partial = partial;
        attention.halves = true;
        attention.states = states;
        cuda::blockAttention(launch, attention);
        if (last == Part::Attention) return;
        cuda::BlockMergeArgs merge;
        merge.rows = attention.rows;
        merge.q = q;
        merge.blocks = attention.blocks;
        merge.pageCount = count;
        merge.scale = attention.scale;
        merge.splits = splits;
        merge.partial = partial;
        merge.halves = attention.halves;
        merge.states = states;
        merge.prefix = prefixOut;
        merge.prefixSums = prefixSums;
        merge.out = out;
        cuda::mergeBlocks(launch, merge);
    }
    /// The rotation alone, with and without the comparison of queries.
    void rotate(bool compares) {
        cuda::BlockPlaceArgs args;
        args.rows = rows;
        args.qkv = qkv, args.cos = angles, args.sin = angles, args.ropeFirst = ropeFirst;
        args.q = out, args.blocks = kv;
        args.before = compares ? before : nullptr;
        args.changes = changes;
        cuda::placeBlocks(launch, args);
    }
    void setFlags(std::uint32_t flags) {
        std::vector<cuda::BlockRow> all;
        for (int row = 0; row < batch; ++row) all.push_back({row, prefix, prefix, cuda::BlockRow::kTaken | flags});
        upload(table, all);
    }

    const cuda::Launch launch;
    const int block, prefix, batch, pages;
    const std::size_t heads; // KV heads of all sequences
    const std::size_t layerElements, rangeElements;
    int copies = 1, splits = 1;
    cuda::BlockRows rows;
    cuda::PageUnionArgs choice;
    DeviceArena arena;
    Bf16 *kv = nullptr, *ranges = nullptr, *q = nullptr, *out = nullptr;
    float *qkv = nullptr, *before = nullptr, *prefixOut = nullptr, *prefixSums = nullptr, *angles = nullptr,
          *scores = nullptr, *partial = nullptr;
    float2 *changes = nullptr, *states = nullptr;
    cuda::BlockRow* table = nullptr;
    std::int64_t* headFirst = nullptr;
    std::uint64_t* active = nullptr;
    std::uint32_t *words = nullptr, *arrivals = nullptr;
    std::int32_t *list = nullptr, *count = nullptr, *ropeFirst = nullptr;
};

/// The pages of each query of a KV head: those of active tokens come from `losa` pages and name all of them, the
/// others' name the rest of `all` pages too.
Numbered<std::vector<int>> plantedPages(int complete, int queries, int perQuery, int all, int losa,
                                        std::mt19937& random) {
    Numbered<int> order(complete);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    const int active = kActive * kShape.group();
    Numbered<std::vector<int>> chosen(queries);
    int next = 0;
    for (int i = 0; i < queries; ++i) {
        if (i == active) next = losa; // first those that no active query has
        const int among = i < active ? losa : all;
        for (int p = 0; p < perQuery; ++p, ++next) chosen[i].push_back(order[next % among]);
    }
    return chosen;
}

/// Queries that are orthogonal to each other: rows of a Hadamard matrix.
float queryAt(int query, int channel) { return std::popcount(unsigned(query & channel)) % 2 == 0 ? 1.f : -1.f; }

void setQueries(Cell& cell) {
    std::vector<std::uint16_t> q;
    for (int token = 0; token < cell.batch * cell.block; ++token)
        for (int head = 0; head < kShape.queryHeads; ++head)
            for (int c = 0; c < kShape.dim; ++c)
                q.push_back(toBf16(queryAt(token % cell.block * kShape.group() + head % kShape.group(), c)));
    cuda::check(cudaMemcpy(cell.q, q.data(), q.size() * 2, cudaMemcpyHostToDevice), "preparing a benchmark");
}

/// Ranges around the sum of the queries that are to choose a page, with noise, so that no two bounds are equal. The
/// first kActive tokens are the active ones. All sequences choose the same pages, each of its own cache.
void plant(Cell& cell, int perQuery, double questDensity, double losaDensity) {
    const int complete = cell.prefix / kShape.blockSize, group = kShape.group(), queries = cell.block * group;
    const auto pagesOf = [&](double density, int most) {
        return std::clamp(int(std::lround(density * complete)), std::min(perQuery, complete), std::min(most, complete));
    };
    const int losa = pagesOf(losaDensity, kActive * group * perQuery),
              all = std::max(losa, pagesOf(questDensity, queries * perQuery));
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0, 1.5f);
    std::uniform_real_distribution<float> stretch(1.f, 1.3f);
    const Extents<int, int, int, int> bounds(kShape.kvHeads, cell.pages, 2, kShape.dim);
    const Extents<int, int> channels(cell.pages, kShape.dim);
    std::vector<std::uint16_t> ranges(bounds.size(), 0); // of one sequence
    for (int g = 0; g < kShape.kvHeads; ++g) {
        std::vector<float> points(channels.size(), 0.f);
        const auto chosen = plantedPages(complete, queries, std::min(perQuery, complete), all, losa, random);
        for (int i = 0; i < queries; ++i)
            for (const int page : chosen[i]) {
                const float factor = stretch(random);
                for (int c = 0; c < kShape.dim; ++c) points[channels.offset(page, c)] += factor * queryAt(i, c);
            }
        for (int page = 0; page < cell.pages; ++page)
            for (int c = 0; c < kShape.dim; ++c) {
                const float point = points[channels.offset(page, c)];
                ranges[bounds.offset(g, page, 0, c)] = toBf16(point - std::abs(normal(random)));
                ranges[bounds.offset(g, page, 1, c)] = toBf16(point + std::abs(normal(random)));
            }
    }
    const RowsOf<Bf16> ofSequence(cell.ranges, ranges.size());
    for (int i = 0; i < cell.copies * cell.batch; ++i)
        cuda::check(cudaMemcpy(ofSequence[i], ranges.data(), ranges.size() * 2, cudaMemcpyHostToDevice),
                    "preparing a benchmark");
    std::vector<float2> changes;
    for (int t = 0; t < cell.batch * cell.block; ++t)
        for (int h = 0; h < kShape.queryHeads; ++h) changes.push_back({t % cell.block < kActive ? 2.f : 1.f, 100.f});
    upload(cell.changes, changes);
}

struct Measured {
    double us = 0, density = 0, floorUs = 0;
    std::vector<double> upTo; // us of a layer's kernels up to each Part; dense: from Part::Attention on

    /// What each kernel adds to those before it.
    Json parts() const {
        Json out;
        const std::size_t first = std::size(kParts) - upTo.size();
        for (std::size_t i = 0; i < upTo.size(); ++i) out[kParts[first + i]] = upTo[i] - (i > 0 ? upTo[i - 1] : 0);
        return out;
    }
    std::string text() const {
        std::string text;
        const Json each = parts();
        for (const auto& [name, part] : each.items())
            text += fmt::format("{}{} {:.1f}", text.empty() ? "" : ", ", name, part.get<double>());
        return text;
    }
};

Measured measure(Gpu& gpu, Cell& cell, bool sparse, std::uint32_t flags, double readRate) {
    cell.setFlags(flags);
    const int nodes = std::max(cell.copies, sparse ? 32 : 8);
    Measured out;
    for (const Part last : {Part::Active, Part::Scores, Part::Union, Part::Attention, Part::Merge})
        if (sparse || last >= Part::Attention)
            out.upTo.push_back(gpu.graphSeconds([&] {
                for (int i = 0; i < nodes; ++i) cell.run(i, sparse, last);
            }) / nodes * 1e6);
    out.us = out.upTo.back();
    const double page = double(cuda::blockBytes(kShape)), rangeBytes = 2.0 * kShape.dim * sizeof(Bf16);
    const double complete = double(cell.prefix / kShape.blockSize) * double(cell.heads); // pages
    double pages = complete, bytes = 0;
    if (sparse) {
        const auto counts = download(cell.count, cell.heads);
        pages = double(std::accumulate(counts.begin(), counts.end(), 0));
        bytes = complete * rangeBytes;
    }
    bytes += pages * page;
    out.density = pages / complete;
    out.floorUs = bytes / readRate * 1e6;
    return out;
}

Json cellOf(Gpu& gpu, int block, int prefix, int batch, int onlyBudget, double readRate, const Log& log) {
    Json out;
    Cell cell(gpu, block, prefix, batch);
    setQueries(cell);
    const Measured dense = measure(gpu, cell, false, 0, readRate);
    constexpr int kNodes = 32;
    const auto rotation = [&](bool compares) {
        return gpu.graphSeconds([&] {
            for (int i = 0; i < kNodes; ++i) cell.rotate(compares);
        }) / kNodes *
               1e6;
    };
    const double comparing = std::max(0.0, rotation(true) - rotation(false));
    out["dense_us"] = dense.us;
    out["dense_floor_us"] = dense.floorUs;
    out["dense_over_floor"] = dense.us / dense.floorUs;
    out["dense_parts_us"] = dense.parts();
    out["comparing_queries_us"] = comparing;
    log(fmt::format("block {} prefix {} batch {}: dense {:.1f} us, floor {:.1f}, {:.2f} of it ({}); comparing queries "
                    "{:.2f} us; {} splits",
                    block, prefix, batch, dense.us, dense.floorUs, dense.us / dense.floorUs, dense.text(), comparing,
                    cell.splits));
    for (const Density& density : kDensities) {
        if (onlyBudget > 0 && density.budget != onlyBudget) continue;
        cell.choice.pagesPerQuery = density.budget / kShape.blockSize;
        plant(cell, cell.choice.pagesPerQuery, density.quest, density.losa);
        using enum cuda::BlockRow::Flag;
        const Measured quest = measure(gpu, cell, true, kSparse | kCompares | kEveryToken, readRate);
        Measured losa = measure(gpu, cell, true, kSparse | kCompares, readRate);
        losa.us += comparing;
        Json& to = out[fmt::format("budget_{}", density.budget)];
        for (const auto& [name, m] : {std::pair{"quest", quest}, std::pair{"losa", losa}}) {
            to[fmt::format("{}_us", name)] = m.us;
            to[fmt::format("{}_floor_us", name)] = m.floorUs;
            to[fmt::format("{}_density", name)] = m.density;
            to[fmt::format("{}_parts_us", name)] = m.parts();
        }
        to["dense_over_losa"] = dense.us / losa.us;
        to["dense_over_quest"] = dense.us / quest.us;
        to["quest_over_losa"] = quest.us / losa.us;
        log(fmt::format(
            "  budget {:4}: quest {:.1f} us (floor {:.1f}, density {:.2f} %), losa {:.1f} us (floor {:.1f}, "
            "density {:.2f} %); dense/losa {:.2f}, quest/losa {:.2f}",
            density.budget, quest.us, quest.floorUs, quest.density * 100, losa.us, losa.floorUs, losa.density * 100,
            dense.us / losa.us, quest.us / losa.us));
        log(fmt::format("    quest: {}; losa: {}, comparing {:.1f}", quest.text(), losa.text(), comparing));
    }
    return out;
}

} // namespace

/// Settings: block, prefix, budget: only this one; 0: all. batch: sequences whose blocks are denoised together.
nlohmann::ordered_json losaAttention(const Settings& settings, const Log& log) {
    const SettingsReader reader(settings, {"block", "prefix", "budget", "batch"});
    const int onlyBlock = reader.integer("block", 0, 0, 32), onlyPrefix = reader.integer("prefix", 0, 0, 1 << 20),
              onlyBudget = reader.integer("budget", 0, 0, 1024), batch = reader.integer("batch", 1, 1, 64);
    Gpu gpu;
    const double readRate = gpu.readBytesPerSecond();
    Json out;
    out["read_bytes_per_second"] = readRate;
    out["batch"] = batch;
    log(fmt::format("pure reads: {:.0f} GB/s", readRate * 1e-9));
    for (const int block : onlyBlock > 0 ? std::vector{onlyBlock} : std::vector{16, 32})
        for (const int prefix : onlyPrefix > 0 ? std::vector{onlyPrefix} : std::vector{4096, 8192, 16384, 32768, 65536})
            out[fmt::format("block_{}_prefix_{}", block, prefix)] =
                cellOf(gpu, block, prefix, batch, onlyBudget, readRate, log);
    return out;
}

} // namespace kvscope::bench
