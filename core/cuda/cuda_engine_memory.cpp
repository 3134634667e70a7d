// The memory of a session: every part of the engine declares its own, here are declared the tiers of keys and values,
// the block index and the buffers that the layers of a step share.
#include "core/cuda/cuda_engine.h"
#include "kernels/cuda/transfer/gather.h"

#include <algorithm>

namespace kvscope {

namespace {

using Bf16 = __nv_bfloat16;

} // namespace

void CudaEngine::planMemory() {
    for (int i = 0; i < model_->config.layers; ++i) planLayer(layers_[std::size_t(i)]);
    storeBytes_ = std::size_t(options_.plans.offloaded()) * std::size_t(layout_.blocksTotal) * layout_.blockElements *
                  sizeof(Bf16);
    arena_.planHost(store_, storeBytes_ / sizeof(Bf16), {"kv_store", "the KV store", Holds::Kv}, options_.store);
    planBuffers();
    prompts_.plan(arena_);
    rows_.plan(arena_);
    choice_.plan(arena_);
    transfers_.plan(arena_);
    passes_.plan(arena_, options_.useLibrary);
    if (selector_) selector_->plan(arena_);
    reports_.plan(arena_, reportNeeds());
}

/// The tiers and the index of a layer, as tierNeeds (core/session/kv_estimate.h) states them for every build.
void CudaEngine::planLayer(Layer& layer) {
    const std::size_t heads = layout_.heads(), dim = std::size_t(layout_.dim),
                      blocks = std::size_t(layout_.blocksTotal) * layout_.blockElements,
                      slots = heads * std::size_t(options_.slots), windows = std::size_t(layout_.windowsTotal);
    if (options_.oracle && layer.sparse && spec_.tiersLackKeys())
        arena_.plan(layer.allKeys, blocks, {"oracle_keys", "the oracle's keys", Holds::Scratch});
    if (layer.offloaded) {
        arena_.plan(layer.blocks, slots * layout_.blockElements, {"kv_slots", "KV slots", Holds::Kv});
        arena_.plan(layer.map, slots, "slot maps");
        if (options_.leastRecentlyUsed) arena_.plan(layer.lastUse, slots, "slot maps");
    } else if (!layer.ownTier) { // a layer with ownTier has its blocks in memory of the selector
        arena_.plan(layer.blocks, blocks, {"kv_resident", "resident KV cache", Holds::Kv});
    }
    constexpr MemoryKind kIndex("block_index", "block index", Holds::Index);
    cuda::DeviceIndex& index = layer.index;
    index.kernel = spec_.grid.kernel;
    index.stride = spec_.grid.stride;
    index.exponentiates = spec_.agnosticScore == AgnosticScore::ExpEviction;
    if (layer.indexed && spec_.queryScore == QueryScore::PooledSoftmax) {
        arena_.plan(index.recentKeys, heads * std::size_t(index.kernel) * dim, kIndex);
        arena_.plan(index.pooledKeys, windows * dim, kIndex);
    }
    if (layer.indexed && spec_.agnosticScore != AgnosticScore::None) {
        arena_.plan(index.recentScores, heads * std::size_t(index.kernel), kIndex);
        arena_.plan(index.pooledScores, windows, kIndex);
    }
    if (layer.indexed && spec_.queryScore == QueryScore::RangeBound)
        arena_.plan(index.ranges, std::size_t(layout_.blocksTotal) * 2 * dim, kIndex);
    if (model_->evictionHead)
        arena_.plan(index.tokenScores, std::size_t(layout_.tokensTotal),
                    {"token_scores", "eviction scores", Holds::Index});
    if (layer.sparse && options_.record) {
        arena_.plan(layer.previous, heads * std::size_t(cuda::selectionBitmapBytes(layout_.maxBlocks)),
                    "recorder state");
        arena_.plan(layer.hasPrevious, heads, "recorder state");
    }
}

void CudaEngine::planBuffers() {
    constexpr const char* kWhat = "activations";
    const ModelConfig& config = model_->config;
    const auto rows = std::size_t(layout_.rows), chunk = std::size_t(layout_.chunk);
    const auto qWidth = std::size_t(config.queryHeads * layout_.dim),
               kvWidth = std::size_t(layout_.kvHeads * layout_.dim);
    const auto plainWidth = std::size_t(config.queryHeads * config.queryDim());
    const int queryRank = config.latent ? config.latent->queryRank : 0;
    arena_.plan(buffers_.x, rows * std::size_t(config.hidden), kWhat);
    arena_.plan(buffers_.qkv, chunk * ((queryRank > 0 ? std::size_t(queryRank) : plainWidth) + 2 * kvWidth), kWhat);
    if (queryRank > 0) arena_.plan(buffers_.plainQ, chunk * plainWidth, kWhat);
    if (config.latent) arena_.plan(buffers_.output, chunk * std::size_t(config.queryHeads * config.outputDim()), kWhat);
    arena_.plan(buffers_.q, chunk * qWidth, kWhat);
    arena_.plan(buffers_.attended, chunk * std::size_t(config.queryHeads * layout_.shape.valueDim()), kWhat);
    const int widest = config.experts ? std::max(config.ffn, config.experts->sharedWidth) : config.ffn;
    arena_.plan(buffers_.hidden, chunk * std::size_t(widest), kWhat);
    arena_.plan(buffers_.newKey, rows * kvWidth, kWhat);
    arena_.plan(buffers_.newValue, rows * kvWidth, kWhat);
    for (float*& logits : buffers_.logits) arena_.plan(logits, rows * std::size_t(config.vocab), kWhat);
    if (options_.oracle)
        arena_.plan(buffers_.blockLogSums, rows * std::size_t(config.queryHeads) * std::size_t(layout_.maxUnits),
                    "the oracle");
    arena_.plan(buffers_.partial, layout_.partialFloats(launch_), kWhat);
    arena_.plan(buffers_.arrivals, cuda::attentionArrivals(layout_.shape, layout_.selectRows), "session state");
}

/// Sets the pointers into the host store that each offloaded layer's kernels use, and empties the slot maps.
void CudaEngine::openStore() {
    const std::size_t layerElements = std::size_t(layout_.blocksTotal) * layout_.blockElements;
    std::size_t next = 0;
    for (int i = 0; i < int(layers_.size()); ++i) {
        Layer& layer = layers_[std::size_t(i)];
        layer.counts = transfers_.counters + 2 * i;
        layer.index.windowFirst = rows_.windowFirst;
        layer.index.blockFirst = rows_.blockFirst;
        layer.index.tokenFirst = rows_.tokenFirst;
        if (!layer.offloaded) continue;
        layer.storeHost = store_ + next++ * layerElements;
        void* seen = nullptr;
        cuda::check(cudaHostGetDevicePointer(&seen, layer.storeHost, 0), "mapping the KV store");
        layer.store = static_cast<const Bf16*>(seen);
        cuda::check(cudaMemset(layer.map, 0xff, layout_.heads() * std::size_t(options_.slots) * sizeof(std::int32_t)),
                    "preparing the slot maps");
        if (layer.lastUse != nullptr)
            cuda::check(
                cudaMemset(layer.lastUse, 0xff, layout_.heads() * std::size_t(options_.slots) * sizeof(std::int32_t)),
                "preparing the slot maps");
    }
}

ReportNeeds CudaEngine::reportNeeds() const {
    const bool selections =
        options_.record && !spec_.dense && (options_.level != RecordLevel::Counters || options_.oracle);
    ReportNeeds needs;
    needs.rows = layout_.rows;
    needs.kvHeads = layout_.kvHeads;
    needs.layers = model_->config.layers;
    needs.capacity = std::size_t(layout_.capacity);
    needs.recorded = options_.record;
    needs.blocks = selections;
    needs.scores = selections && options_.level == RecordLevel::Full;
    needs.units = options_.oracle ? std::size_t(layout_.maxUnits) : 0;
    needs.ownBytes = selector_ && options_.record ? selector_->reportBytes() : 0;
    return needs;
}

} // namespace kvscope
