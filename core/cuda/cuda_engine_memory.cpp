// What a session takes of both memories: planned, compared with what is free, and only then taken.
#include "core/cuda/cuda_engine.h"
#include "core/session/sampler.h"

#include <algorithm>
#include <numeric>

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
        } else if (!layer.ownTier) { // those are the selector's affair
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
    arena_.plan(x_, rows * std::size_t(config.hidden), "activations");
    arena_.plan(promptX_, std::size_t(options_.maxPrompt) * std::size_t(config.hidden), "prompt activations");
    arena_.plan(promptIds_, std::size_t(options_.maxPrompt), "prompt activations");
    arena_.plan(promptPositions_, std::size_t(options_.maxPrompt), "prompt activations");
    arena_.plan(qkv_, chunk * ((queryRank > 0 ? std::size_t(queryRank) : plainWidth) + 2 * kvWidth), "activations");
    if (queryRank > 0) arena_.plan(plainQ_, chunk * plainWidth, "activations");
    if (config.latent) arena_.plan(output_, chunk * std::size_t(config.queryHeads * config.outputDim()), "activations");
    arena_.plan(q_, chunk * qWidth, "activations");
    arena_.plan(attended_, chunk * std::size_t(config.queryHeads * layout_.shape.valueDim()), "activations");
    const int widest = config.experts ? std::max(config.ffn, config.experts->sharedWidth) : config.ffn;
    arena_.plan(hidden_, chunk * std::size_t(widest), "activations");
    planExperts();
    arena_.plan(newKey_, rows * kvWidth, "activations");
    arena_.plan(newValue_, rows * kvWidth, "activations");
    for (float*& logits : logits_) arena_.plan(logits, rows * std::size_t(config.vocab), "activations");
    if (anyOffloaded)
        for (Bf16*& scratch : scratch_)
            arena_.plan(scratch, std::size_t(layout_.kvHeads) * std::size_t(layout_.maxBlocks) * layout_.blockElements,
                        "prompt KV");
    arena_.plan(position_, rows, "session state");
    arena_.plan(ropeFirst_, rows, "session state");
    const std::size_t angles = std::size_t(ropeTables_.rows()) * std::size_t(config.rope.dim / 2);
    arena_.plan(ropeCos_, angles, "rotary tables");
    arena_.plan(ropeSin_, angles, "rotary tables");
    arena_.plan(next_, rows, "session state");
    arena_.plan(active_, rows, "session state");
    if (options_.sampling.temperature > 0) {
        for (std::size_t s = 0; s < rows; ++s)
            drawsPerRow_ = std::max(drawsPerRow_, options_.maxTokens[s] - options_.promptTokens[s]);
        arena_.plan(draws_, rows * std::size_t(drawsPerRow_), "session state");
        arena_.plan(firstSampled_, rows, "session state");
    }
    const std::size_t lists =
        std::size_t(layout_.selectRows) * std::size_t(layout_.kvHeads) * (order_.looksAhead() ? 2 : 1);
    arena_.plan(listBlock_, lists * std::size_t(std::max(layout_.capacity, 1)), "selections");
    arena_.plan(listSlot_, lists * std::size_t(std::max(layout_.capacity, 1)), "selections");
    arena_.plan(listCount_, lists, "selections");
    if (options_.oracle)
        arena_.plan(blockLogSums_, rows * std::size_t(config.queryHeads) * std::size_t(layout_.maxUnits), "the oracle");
    arena_.plan(loads_, lists * std::size_t(std::max(layout_.capacity, 1)), "selections");
    arena_.plan(writeBacks_, heads * (order_.looksAhead() ? std::size_t(config.layers) : 1), "selections");
    arena_.plan(counters_, std::size_t(config.layers) * 2 + 2, "session state");
    if (transferLoop_) {
        for (cuda::GatherArgs*& gathers : loopGathers_)
            arena_.plan(gathers, std::size_t(config.layers), "session state");
        arena_.plan(flags_.listed, std::size_t(config.layers) + 1, "session state");
        arena_.plan(flags_.loaded, std::size_t(config.layers), "session state");
    }
    arena_.plan(partial_, layout_.partialFloats(launch_), "activations");
    arena_.plan(arrivals_, cuda::attentionArrivals(layout_.shape, layout_.selectRows), "session state");
    if (selector_) selector_->plan(arena_);
    if (selector_ && options_.abilities.logSums)
        arena_.plan(promptLogSums_, chunk * std::size_t(config.queryHeads), "activations");
    reports_.layOut(reportNeeds());
    arena_.plan(reports_.region(), reports_.deviceBytes(), "recorder's buffer");
    arena_.plan(blockFirstDevice_, heads, "session state");
    arena_.plan(windowFirstDevice_, heads, "session state");
    arena_.plan(tokenFirstDevice_, heads, "session state");
    arena_.plan(poolFirstDevice_, heads, "session state");
    linear_ =
        std::make_unique<cuda::Linear>(launch_, layout_.chunk, std::max(config.hidden, queryRank), options_.useLibrary);
    linear_->prepare(layers_.empty() ? cuda::DeviceMatrix{} : model_->layers.front().mlp.gateUp, layout_.chunk,
                     {nullptr, 0, false, nullptr, hidden_ == nullptr ? reinterpret_cast<Bf16*>(1) : hidden_});
    arena_.take();

    const auto copy = [](auto* to, const auto* from, std::size_t count) {
        cuda::check(cudaMemcpy(to, from, count * sizeof(*to), cudaMemcpyHostToDevice), "preparing the session");
    };
    copy(ropeCos_, ropeTables_.cos(), angles);
    copy(ropeSin_, ropeTables_.sin(), angles);
    std::vector<std::int32_t> ropeFirst;
    for (int s = 0; s < layout_.rows; ++s) ropeFirst.push_back(ropeTables_.first(s));
    copy(ropeFirst_, ropeFirst.data(), rows);

    if (draws_ != nullptr) drawNumbers();

    // The host store of the offloaded layers, in one piece.
    const std::size_t layerElements = std::size_t(layout_.blocksTotal) * layout_.blockElements;
    const auto offloadedLayers = std::size_t(options_.plans.offloaded());
    storeBytes_ = offloadedLayers * layerElements * sizeof(Bf16);
    const bool borrowed = options_.store != nullptr && options_.store->bytes() >= storeBytes_;
    if (!borrowed) store_ = PinnedMemory(storeBytes_, "the KV store");
    Bf16* const store = static_cast<Bf16*>(borrowed ? options_.store->data() : store_.data());
    std::size_t next = 0;
    for (int i = 0; i < config.layers; ++i) {
        Layer& layer = layers_[std::size_t(i)];
        layer.counts = counters_ + 2 * i;
        layer.index.windowFirst = windowFirstDevice_;
        layer.index.blockFirst = blockFirstDevice_;
        layer.index.tokenFirst = tokenFirstDevice_;
        if (!layer.offloaded) continue;
        layer.storeHost = store + next++ * layerElements;
        void* seen = nullptr;
        cuda::check(cudaHostGetDevicePointer(&seen, layer.storeHost, 0), "mapping the KV store");
        layer.store = static_cast<const Bf16*>(seen);
        cuda::check(cudaMemset(layer.map, 0xff, heads * std::size_t(options_.slots) * sizeof(std::int32_t)),
                    "preparing the slot maps");
        if (layer.lastUse != nullptr)
            cuda::check(cudaMemset(layer.lastUse, 0xff, heads * std::size_t(options_.slots) * sizeof(std::int32_t)),
                        "preparing the slot maps");
    }
    const auto upload = [&](std::int64_t* to, const std::vector<std::int64_t>& from) {
        cuda::check(cudaMemcpy(to, from.data(), from.size() * sizeof(std::int64_t), cudaMemcpyHostToDevice),
                    "preparing the session");
    };
    upload(blockFirstDevice_, layout_.blockFirst);
    upload(windowFirstDevice_, layout_.windowFirst);
    upload(tokenFirstDevice_, layout_.tokenFirst);
    std::vector<std::int64_t> pool(heads);
    for (std::size_t i = 0; i < heads; ++i) pool[i] = std::int64_t(i) * options_.slots;
    upload(poolFirstDevice_, pool);
    std::vector<std::int32_t> counting(std::size_t(options_.maxPrompt));
    std::iota(counting.begin(), counting.end(), 0);
    cuda::check(
        cudaMemcpy(promptPositions_, counting.data(), counting.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice),
        "preparing the session");

    // The host's copy of what steps report, and the prompt's marks.
    reports_.open();
    for (int i = 0; i < kEntries && transferLoop_; ++i) {
        std::vector<cuda::GatherArgs> gathers(layers_.size());
        for (int layer = 0; layer < config.layers; ++layer)
            if (layers_[std::size_t(layer)].offloaded)
                gathers[std::size_t(layer)] = besideArgs(layer, reports_.device(i), cuda::GatherArgs::Part::Loads);
        copy(loopGathers_[i], gathers.data(), gathers.size());
    }
    const std::size_t chunks =
        std::size_t((options_.maxPrompt + BatchLayout::kPrefillChunk - 1) / BatchLayout::kPrefillChunk);
    promptReport_ =
        PinnedMemory(std::size_t(config.layers) * chunks * kMarks * sizeof(std::uint64_t), "the recorder's buffer");
    for (int i = 0; i < config.layers; ++i)
        promptMarks_.push_back(static_cast<std::uint64_t*>(promptReport_.data()) + std::size_t(i) * chunks * kMarks);
}

/// The numbers that the session's samplers would draw, all of them now: a step then needs nothing from the host.
void CudaEngine::drawNumbers() {
    std::vector<double> draws;
    std::vector<std::int32_t> first;
    for (int s = 0; s < layout_.rows; ++s) {
        Sampler sampler(options_.sampling, s);
        for (int i = 0; i < drawsPerRow_; ++i) draws.push_back(sampler.draw());
        first.push_back(options_.promptTokens[std::size_t(s)] - 1);
    }
    cuda::check(cudaMemcpy(draws_, draws.data(), draws.size() * sizeof(double), cudaMemcpyHostToDevice),
                "preparing the session");
    cuda::check(cudaMemcpy(firstSampled_, first.data(), first.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice),
                "preparing the session");
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
