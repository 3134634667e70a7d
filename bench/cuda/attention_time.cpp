#include "bench/cuda/attention_time.h"

#include "base/elements.h"
#include "base/indexed.h"
#include "core/cuda/device_memory.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/token/token.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace kvscope::bench {

AttentionTime timeAttention(Gpu& gpu, const cuda::AttentionShape& shape, int rows, float scale) {
    constexpr int kCount = 64; // blocks of a KV head
    const int heads = rows * shape.kvHeads, layers = std::max(2, 256 / rows);
    const Elements layerElements(heads, kCount, cuda::blockElements(shape)), queries(rows, shape.queryHeads);
    __nv_bfloat16 *q = nullptr, *pool = nullptr, *attended = nullptr;
    std::int64_t* first = nullptr;
    std::int32_t *position = nullptr, *ids = nullptr, *slots = nullptr, *counts = nullptr;
    float* partial = nullptr;
    std::uint32_t* arrivals = nullptr;
    DeviceArena arena;
    arena.plan(q, {queries, shape.dim}, "a benchmark");
    arena.plan(attended, {queries, shape.valueDim()}, "a benchmark");
    arena.plan(pool, {layerElements, layers}, "a benchmark");
    arena.plan(first, heads, "a benchmark");
    arena.plan(position, rows, "a benchmark");
    for (auto** list : {&ids, &slots}) arena.plan(*list, {heads, kCount}, "a benchmark");
    arena.plan(counts, heads, "a benchmark");
    arena.plan(partial, cuda::attentionPartialFloats(gpu.launch, shape, rows, kCount), "a benchmark");
    arena.plan(arrivals, cuda::attentionArrivals(shape, rows), "a benchmark");
    arena.take();
    cuda::fillNormal(q, Elements(queries, shape.dim), 1, 1);
    cuda::fillNormal(pool, Elements(layerElements, layers), 1, 2);
    std::vector<std::int64_t> firsts;
    std::vector<std::int32_t> id, slot, order(kCount);
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 random(5);
    for (int h = 0; h < heads; ++h) {
        firsts.push_back(std::int64_t(h) * kCount);
        std::shuffle(order.begin(), order.end(), random);
        for (int i = 0; i < kCount; ++i) id.push_back(4 * i);
        slot.insert(slot.end(), order.begin(), order.end());
    }
    upload(first, firsts);
    upload(ids, id);
    upload(slots, slot);
    upload(counts, Numbered<std::int32_t>(heads, kCount));
    upload(position, Numbered<std::int32_t>(rows, 4 * kCount * 64));
    cuda::DecodeAttentionArgs a;
    a.shape = shape;
    a.rows = rows;
    a.position = position;
    a.q = q;
    a.headFirst = first;
    a.list.block = ids;
    a.list.slot = slots;
    a.list.count = counts;
    a.list.capacity = a.maxBlocks = kCount;
    a.scale = scale;
    a.out = attended;
    a.scratch.partial = partial;
    a.scratch.arrivals = arrivals;
    const RowsOf<__nv_bfloat16> ofLayer(pool, layerElements);
    const int nodes = std::max(layers, 32); // so that launching the graph does not count
    const double seconds = gpu.graphSeconds([&] {
        for (int i = 0; i < nodes; ++i) {
            a.blocks = ofLayer[i % layers];
            cuda::decodeAttention(gpu.launch, a);
        }
    }) / nodes;
    return {seconds, layerElements * sizeof(__nv_bfloat16)};
}

} // namespace kvscope::bench
