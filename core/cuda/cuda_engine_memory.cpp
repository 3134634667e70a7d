// The memory of a session: plans the GPU memory, compares the sum with what is free and takes it in one piece; then
// takes the pinned host memory.
#include "core/cuda/cuda_engine.h"
#include "kernels/cuda/transfer/gather.h"

#include <algorithm>

namespace kvscope {

namespace {

using Bf16 = __nv_bfloat16;

} // namespace

void CudaEngine::planMemory() {
    const ModelConfig& config = model_->config;
    const auto rows = std::size_t(layout_.rows), chunk = std::size_t(layout_.chunk),
               heads = rows * std::size_t(layout_.kvHeads);
    const auto qWidth = std::size_t(config.queryHeads * layout_.dim),
               kvWidth = std::size_t(layout_.kvHeads * layout_.dim);
    const auto plainWidth = std::size_t(config.queryHeads * config.queryDim());
    const int queryRank = config.latent ? config.latent->queryRank : 0;
    const bool anyOffloaded = options_.plans.offloaded() > 0 || spec_.ownDeviceTier;
    const auto bitmapBytes = std::size_t(cuda::selectionBitmapBytes(layout_.maxBlocks));

    for (int i = 0; i < config.layers; ++i) {
        Layer& layer = layers_[std::size_t(i)];
        if (options_.oracle && layer.sparse && spec_.tiersLackKeys())
            arena_.plan(layer.allKeys, std::size_t(layout_.blocksTotal) * layout_.blockElements, "the oracle");
        if (layer.offloaded) {
            arena_.plan(layer.blocks, heads * std::size_t(options_.slots) * layout_.blockElements, "KV slots");
            arena_.plan(layer.map, heads * std::size_t(options_.slots), "slot maps");
            if (options_.leastRecentlyUsed)
                arena_.plan(layer.lastUse, heads * std::size_t(options_.slots), "slot maps");
        } else if (!layer.ownTier) { // a layer with ownTier has its blocks in memory of the selector
            arena_.plan(layer.blocks, std::size_t(layout_.blocksTotal) * layout_.blockElements, "resident KV cache");
        }
        cuda::DeviceIndex& index = layer.index;
        index.kernel = spec_.grid.kernel;
        index.stride = spec_.grid.stride;
        index.exponentiates = spec_.agnosticScore == AgnosticScore::ExpEviction;
        if (layer.indexed && spec_.queryScore == QueryScore::PooledSoftmax) {
            arena_.plan(index.recentKeys, heads * std::size_t(index.kernel) * std::size_t(layout_.dim), "block index");
            arena_.plan(index.pooledKeys, std::size_t(layout_.windowsTotal) * std::size_t(layout_.dim), "block index");
        }
        if (layer.indexed && spec_.agnosticScore != AgnosticScore::None) {
            arena_.plan(index.recentScores, heads * std::size_t(index.kernel), "block index");
            arena_.plan(index.pooledScores, std::size_t(layout_.windowsTotal), "block index");
        }
        if (layer.indexed && spec_.queryScore == QueryScore::RangeBound)
            arena_.plan(index.ranges, std::size_t(layout_.blocksTotal) * 2 * std::size_t(layout_.dim), "block index");
        if (model_->evictionHead) arena_.plan(index.tokenScores, std::size_t(layout_.tokensTotal), "eviction scores");
        if (layer.sparse && options_.record) {
            arena_.plan(layer.previous, heads * bitmapBytes, "recorder state");
            arena_.plan(layer.hasPrevious, heads, "recorder state");
        }
    }
    arena_.plan(buffers_.x, rows * std::size_t(config.hidden), "activations");
    arena_.plan(prompts_.x, std::size_t(options_.maxPrompt) * std::size_t(config.hidden), "prompt activations");
    arena_.plan(prompts_.ids, std::size_t(options_.maxPrompt), "prompt activations");
    arena_.plan(prompts_.positions, std::size_t(options_.maxPrompt), "prompt activations");
    arena_.plan(buffers_.qkv, chunk * ((queryRank > 0 ? std::size_t(queryRank) : plainWidth) + 2 * kvWidth),
                "activations");
    if (queryRank > 0) arena_.plan(buffers_.plainQ, chunk * plainWidth, "activations");
    if (config.latent)
        arena_.plan(buffers_.output, chunk * std::size_t(config.queryHeads * config.outputDim()), "activations");
    arena_.plan(buffers_.q, chunk * qWidth, "activations");
    arena_.plan(buffers_.attended, chunk * std::size_t(config.queryHeads * layout_.shape.valueDim()), "activations");
    const int widest = config.experts ? std::max(config.ffn, config.experts->sharedWidth) : config.ffn;
    arena_.plan(buffers_.hidden, chunk * std::size_t(widest), "activations");
    passes_.plan(arena_);
    arena_.plan(buffers_.newKey, rows * kvWidth, "activations");
    arena_.plan(buffers_.newValue, rows * kvWidth, "activations");
    for (float*& logits : buffers_.logits) arena_.plan(logits, rows * std::size_t(config.vocab), "activations");
    if (anyOffloaded)
        for (Bf16*& scratch : prompts_.scratch)
            arena_.plan(scratch, std::size_t(layout_.kvHeads) * std::size_t(layout_.maxBlocks) * layout_.blockElements,
                        "prompt KV");
    arena_.plan(rows_.position, rows, "session state");
    arena_.plan(rows_.ropeFirst, rows, "session state");
    const std::size_t angles = std::size_t(rows_.rope.rows()) * std::size_t(config.rope.dim / 2);
    arena_.plan(rows_.ropeCos, angles, "rotary tables");
    arena_.plan(rows_.ropeSin, angles, "rotary tables");
    arena_.plan(rows_.next, rows, "session state");
    arena_.plan(rows_.active, rows, "session state");
    if (options_.sampling.temperature > 0) {
        arena_.plan(rows_.draws, rows * std::size_t(rows_.drawsPerRow), "session state");
        arena_.plan(rows_.firstSampled, rows, "session state");
    }
    const std::size_t lists =
        std::size_t(layout_.selectRows) * std::size_t(layout_.kvHeads) * (order_.looksAhead() ? 2 : 1);
    arena_.plan(choice_.lists.block, lists * std::size_t(std::max(layout_.capacity, 1)), "selections");
    arena_.plan(choice_.lists.slot, lists * std::size_t(std::max(layout_.capacity, 1)), "selections");
    arena_.plan(choice_.lists.count, lists, "selections");
    if (options_.oracle)
        arena_.plan(buffers_.blockLogSums, rows * std::size_t(config.queryHeads) * std::size_t(layout_.maxUnits),
                    "the oracle");
    arena_.plan(choice_.lists.loads, lists * std::size_t(std::max(layout_.capacity, 1)), "selections");
    arena_.plan(choice_.lists.writeBacks, heads * (order_.looksAhead() ? std::size_t(config.layers) : 1), "selections");
    arena_.plan(transfers_.counters, std::size_t(config.layers) * 2 + 2, "session state");
    if (transfers_.hasLoop()) {
        for (cuda::GatherArgs*& gathers : transfers_.loopGathers)
            arena_.plan(gathers, std::size_t(config.layers), "session state");
        arena_.plan(transfers_.flags.listed, std::size_t(config.layers) + 1, "session state");
        arena_.plan(transfers_.flags.loaded, std::size_t(config.layers), "session state");
    }
    arena_.plan(buffers_.partial, layout_.partialFloats(launch_), "activations");
    arena_.plan(buffers_.arrivals, cuda::attentionArrivals(layout_.shape, layout_.selectRows), "session state");
    if (selector_) selector_->plan(arena_);
    if (selector_ && options_.abilities.logSums)
        arena_.plan(prompts_.logSums, chunk * std::size_t(config.queryHeads), "activations");
    reports_.layOut(reportNeeds());
    arena_.plan(reports_.region(), reports_.deviceBytes(), "recorder's buffer");
    arena_.plan(rows_.blockFirst, heads, "session state");
    arena_.plan(rows_.windowFirst, heads, "session state");
    arena_.plan(rows_.tokenFirst, heads, "session state");
    arena_.plan(rows_.poolFirst, heads, "session state");
    passes_.open(options_.useLibrary);
    arena_.take();

    rows_.upload();
    openStore();
    prompts_.open();
    reports_.open();
    transfers_.upload(reports_);
}

/// Takes the host store of all offloaded layers in one piece, sets the pointers that each layer's kernels use, and
/// empties the slot maps.
void CudaEngine::openStore() {
    const std::size_t layerElements = std::size_t(layout_.blocksTotal) * layout_.blockElements;
    const auto offloadedLayers = std::size_t(options_.plans.offloaded());
    storeBytes_ = offloadedLayers * layerElements * sizeof(Bf16);
    const bool borrowed = options_.store != nullptr && options_.store->bytes() >= storeBytes_;
    if (!borrowed) store_ = PinnedMemory(storeBytes_, "the KV store");
    Bf16* const store = static_cast<Bf16*>(borrowed ? options_.store->data() : store_.data());
    std::size_t next = 0;
    for (int i = 0; i < int(layers_.size()); ++i) {
        Layer& layer = layers_[std::size_t(i)];
        layer.counts = transfers_.counters + 2 * i;
        layer.index.windowFirst = rows_.windowFirst;
        layer.index.blockFirst = rows_.blockFirst;
        layer.index.tokenFirst = rows_.tokenFirst;
        if (!layer.offloaded) continue;
        layer.storeHost = store + next++ * layerElements;
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
