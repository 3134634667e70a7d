#include "core/cuda/cuda_sequences.h"

#include "core/cuda/gpu_device.h"
#include "kernels/cuda/attention/attention_latent.h"
#include "kernels/cuda/transfer/gather.h"

#include <algorithm>
#include <cstdlib>
#include <fmt/format.h>
#include <optional>
#include <string_view>

namespace kvscope {
namespace {

using Bf16 = __nv_bfloat16;

/// What caller and environment say about the transfer loop; nothing: what is best.
std::optional<bool> loopAskedFor(const CudaEngineOptions& options) {
    if (options.transfers.loop) return options.transfers.loop;
    if (const char* said = std::getenv("KVSCOPE_TRANSFER_LOOP")) return std::string_view(said) != "0";
    // A trace of single kernels shows the transfers of each layer where these have a kernel each.
    if (options.trace != nullptr) return false;
    return std::nullopt;
}

/// Whether no layer behind the first offloaded one stays on the device: the transfer loop visits all of them.
bool offloadsFromOneLayerOn(const LayerPlans& plans) {
    bool before = false, gap = false;
    for (const LayerPlan& plan : plans) {
        gap |= before && !plan.offloaded;
        before |= plan.offloaded;
    }
    return !gap;
}

} // namespace

CudaSequences::CudaSequences(const CudaSequencesParts& parts)
    : p_(parts), spec_(p_.options.spec), order(layers), rows(p_.model.config, p_.options, p_.layout),
      choice(p_.model.config, p_.options, p_.layout, layers, order, rows, p_.buffers, selector),
      reader(p_.model.config, p_.options, p_.layout, layers, order, p_.clock, selector),
      prompts({p_.model, p_.options, p_.layout, layers, selector, rows, p_.buffers, choice, transfers, p_.clock,
               p_.launch, p_.passes, p_.ranges}),
      transfers(p_.options, p_.layout, layers, order, choice, p_.launch, p_.ranges),
      stages({p_.model, p_.options, p_.layout, layers, selector, order, rows, p_.buffers, choice, p_.launch, p_.passes,
              transfers, p_.ranges}) {
    refuseUnsupported();
    for (const LayerPlan& plan : p_.options.plans) static_cast<LayerPlan&>(layers.emplace_back()) = plan;
    if (p_.options.method.makeSelector != nullptr) makeSelector();
    const bool offloads = p_.options.plans.offloaded() > 0;
    if (p_.options.halves && !selector && offloads && p_.layout.rows > 1) {
        order.inHalves();
        transfers.planBeside(p_.launch.clusters && offloadsFromOneLayerOn(p_.options.plans), loopAskedFor(p_.options));
        leaveRoomForTransfers();
    }
    if (!selector || p_.options.method.abilities.ahead != Ahead::NextLayer) return;
    order.lookAhead();
    transfers.planBeside(offloads && p_.launch.clusters && !p_.options.sharesSteps, loopAskedFor(p_.options));
    leaveRoomForTransfers();
}

void CudaSequences::leaveRoomForTransfers() {
    // Transfers occupy some multiprocessors. A kernel with a thread block for each multiprocessor would have thread
    // blocks that wait for those, so kernels count on fewer. They count on as few where nothing is transferred, so
    // that with and without offloading the same sums are made in the same order.
    p_.launch.multiprocessors -= std::min(transfers.blocks(), p_.launch.multiprocessors / 2);
}

void CudaSequences::refuseUnsupported() const {
    cuda::checkAttentionShape(p_.layout.shape);
    if (spec_.grid.kernel > 256 || spec_.grid.stride < 1)
        throw Error(ErrorKind::Unsupported,
                    fmt::format("windows of {} tokens are too long for the GPU backend", spec_.grid.kernel),
                    "use --backend cpu, or windows of at most 256 tokens");
    if (p_.model.config.latent && p_.launch.blockShared < cuda::kLatentSharedBytes)
        throw Error(ErrorKind::Unsupported,
                    fmt::format("latent attention needs {} KiB of a multiprocessor's shared memory; {} has {}",
                                cuda::kLatentSharedBytes >> 10, usableGpu().name, p_.launch.blockShared >> 10),
                    "use --backend cpu, or a data-centre GPU of the Hopper generation or later");
}

void CudaSequences::makeSelector() {
    const CudaEngineOptions& options = p_.options;
    PerLayer<cuda::HeadNorms> norms;
    for (const DeviceLayer& layer : p_.model.layers) norms.push_back(layer.headNorms);
    const RecordLevel level = // the oracle needs the chosen blocks of every step
        options.oracle ? std::max(options.level, RecordLevel::Selections) : options.level;
    selector = options.method.makeSelector(options.method.parameters,
                                           {p_.launch,
                                            p_.model.config,
                                            options.model,
                                            spec_,
                                            p_.layout.shape,
                                            options.maxTokens,
                                            options.promptTokens.empty() ? options.maxTokens : options.promptTokens,
                                            norms,
                                            p_.layout.maxBlocks,
                                            p_.layout.capacity,
                                            p_.layout.pieceTokens,
                                            options.slots,
                                            options.offload,
                                            options.ranksBlocks,
                                            transfers.blocks(),
                                            options.record,
                                            options.oracle,
                                            level,
                                            options.store,
                                            layers,
                                            {rows.blockFirst, rows.windowFirst, rows.tokenFirst, rows.poolFirst,
                                             rows.ropeCos, rows.ropeSin, rows.ropeFirst},
                                            p_.model,
                                            p_.passes.linear()});
}

void CudaSequences::plan(DeviceArena& arena, DeviceArena& prompt) {
    for (DeviceLayerState& layer : layers) planLayer(arena, layer);
    storeBytes = Elements(p_.options.plans.offloaded(), p_.layout.blocksTotal,
                          p_.options.fullBlockBytes(p_.layout.blockElements));
    arena.planStore(store_, storeBytes / sizeof(Bf16), {"kv_store", "the KV store", Holds::Kv}, p_.options.store);
    if (!p_.options.planted.empty()) arena.plan(planted_, layers.size(), "session state");
    prompts.plan(prompt);
    rows.plan(arena);
    choice.plan(arena);
    transfers.plan(arena);
    if (selector) selector->plan(arena);
    reports.plan(arena, reportNeeds());
}

void CudaSequences::planSteps(DeviceArena& arena) {
    for (DeviceLayerState& layer : layers) describeIndex(layer);
    choice.plan(arena);
    transfers.plan(arena);
    reports.plan(arena, reportNeeds());
}

void CudaSequences::openSteps() {
    reports.open();
    for (const LayerId i : layers.ids()) layers[i].counts = transfers.countsOf(i);
}

void CudaSequences::open() {
    rows.upload();
    openStore();
    if (!p_.options.planted.empty()) {
        cuda::check(
            cudaMemcpy(planted_, p_.options.planted.data(), layers.size() * sizeof *planted_, cudaMemcpyHostToDevice),
            "preparing planted selections");
        for (const LayerId i : layers.ids()) layers[i].planted = planted_ + int(i);
    }
    prompts.open();
    reports.open();
    transfers.upload(reports);
    if (selector) selector->begin();
    rows.setAll(true);
}

LayerArrays::LayerArrays(const LayerPlan& layer, const CudaEngineOptions& options, const DeviceModel& model)
    : pooledKeys(layer.indexed && options.spec.queryScore == QueryScore::PooledSoftmax),
      pooledScores(layer.indexed && options.spec.agnosticScore != AgnosticScore::None),
      ranges(layer.indexed && options.spec.queryScore == QueryScore::RangeBound), tokenScores(model.evictionHead),
      lastUse(layer.offloaded && options.leastRecentlyUsed), previous(layer.sparse && options.record) {}

void CudaSequences::describeIndex(DeviceLayerState& layer) const {
    layer.index.kernel = spec_.grid.kernel;
    layer.index.stride = spec_.grid.stride;
    layer.index.exponentiates = spec_.agnosticScore == AgnosticScore::ExpEviction;
}

/// Declares the tiers and the index of a layer. tierNeeds (core/session/kv_estimate.h) states the same sizes for builds
/// without CUDA. Where rows share steps, an array begins at a multiple of what kernels count in (a block, a key),
/// because RowPlaces states the array's place as such a count.
void CudaSequences::planLayer(DeviceArena& arena, DeviceLayerState& layer) {
    const LayerArrays has(layer, p_.options, p_.model);
    const auto unit = [&](std::size_t bytes) {
        return p_.options.sharesSteps ? std::max(bytes, DeviceArena::kAlignment) : DeviceArena::kAlignment;
    };
    const BatchLayout& layout = p_.layout;
    const Elements heads = layout.heads(), blocks(layout.blocksTotal, layout.blockElements),
                   slots(heads, p_.options.slots), windows(layout.windowsTotal);
    const std::size_t keyBytes = Elements(layout.dim) * sizeof(Bf16);
    if (p_.options.oracle && layer.sparse && spec_.tiersLackKeys())
        arena.plan(layer.allKeys, blocks, {"oracle_keys", "the oracle's keys", Holds::Scratch});
    if (layer.offloaded && p_.options.pooled) {
        arena.plan(layer.map, {heads, layout.maxBlocks}, "slot maps");
    } else if (layer.offloaded) {
        const Elements bytes(p_.options.fullBlockBytes(layout.blockElements));
        arena.plan(layer.blocks, Elements(slots, bytes) / sizeof(Bf16), {"kv_slots", "KV slots", Holds::Kv},
                   unit(bytes));
        if (p_.options.quantised)
            arena.plan(layer.newest, {heads, layout.blockElements},
                       {"kv_tails", "KV blocks that are being written", Holds::Kv});
        arena.plan(layer.map, slots, "slot maps");
        if (has.lastUse) arena.plan(layer.lastUse, slots, "slot maps");
    } else if (!layer.ownTier) { // a layer with ownTier has its blocks in memory of the selector
        arena.plan(layer.blocks, blocks, {"kv_resident", "resident KV cache", Holds::Kv},
                   unit(cuda::blockBytes(layout.shape)));
    }
    constexpr MemoryKind kIndex("block_index", "block index", Holds::Index);
    describeIndex(layer);
    cuda::DeviceIndex& index = layer.index;
    if (has.pooledKeys) {
        arena.plan(index.recentKeys, {heads, index.kernel, layout.dim}, kIndex);
        arena.plan(index.pooledKeys, {windows, layout.dim}, kIndex, unit(keyBytes));
    }
    if (has.pooledScores) {
        arena.plan(index.recentScores, {heads, index.kernel}, kIndex);
        arena.plan(index.pooledScores, windows, kIndex);
    }
    if (has.ranges) arena.plan(index.ranges, {layout.blocksTotal, 2, layout.dim}, kIndex, unit(2 * keyBytes));
    if (has.tokenScores)
        arena.plan(index.tokenScores, layout.tokensTotal, {"token_scores", "eviction scores", Holds::Index});
    if (has.previous) {
        arena.plan(layer.previous, {heads, choice.previousBytes()}, "recorder state");
        arena.plan(layer.hasPrevious, heads, "recorder state");
    }
}

/// Sets the pointers into the host store that each offloaded layer's kernels use, and empties the slot maps.
void CudaSequences::openStore() {
    const BatchLayout& layout = p_.layout;
    const Elements layerBytes(layout.blocksTotal, p_.options.fullBlockBytes(layout.blockElements)),
        places(layout.heads(), p_.options.pooled ? layout.maxBlocks : p_.options.slots);
    const RowsOf stores(store_, layerBytes / sizeof(Bf16));
    const std::size_t mapBytes = places * sizeof(std::int32_t);
    int stored = 0;
    for (const LayerId i : layers.ids()) {
        DeviceLayerState& layer = layers[i];
        layer.counts = transfers.countsOf(i);
        layer.index.windowFirst = rows.windowFirst;
        layer.index.blockFirst = rows.blockFirst;
        layer.index.tokenFirst = rows.tokenFirst;
        if (!layer.offloaded) continue;
        layer.storeHost = stores[stored++];
        void* seen = nullptr;
        cuda::check(cudaHostGetDevicePointer(&seen, layer.storeHost, 0), "mapping the KV store");
        layer.store = static_cast<const Bf16*>(seen);
        cuda::check(cudaMemset(layer.map, 0xff, mapBytes), "preparing the slot maps");
        if (layer.lastUse != nullptr) cuda::check(cudaMemset(layer.lastUse, 0xff, mapBytes), "preparing the slot maps");
    }
}

ReportNeeds CudaSequences::reportNeeds() const {
    const CudaEngineOptions& options = p_.options;
    const bool selections =
        options.record && !spec_.dense && (options.level != RecordLevel::Counters || options.oracle);
    ReportNeeds needs;
    needs.rows = p_.layout.rows;
    needs.kvHeads = p_.layout.kvHeads;
    needs.layers = p_.model.config.layers;
    needs.capacity = Elements(p_.layout.capacity);
    needs.recorded = options.record;
    needs.blocks = selections;
    needs.scores = selections && options.level == RecordLevel::Full;
    if (options.oracle) needs.units = Elements(p_.layout.maxUnits);
    needs.halves = order.isInHalves() ? 2 : 1;
    needs.ownBytes = selector && options.record ? selector->reportBytes() : 0;
    return needs;
}

namespace {

constexpr const char* kActivations = "activations";

} // namespace

void planSharedBuffers(DeviceArena& arena, StepBuffers& buffers, const ModelConfig& config, const BatchLayout& layout) {
    const int rows = layout.rows, together = layout.pieceTokens;
    const Elements kvWidth(layout.kvHeads, layout.dim), plainWidth(config.queryHeads, config.queryDim());
    const int queryRank = config.latent ? config.latent->queryRank : 0;
    arena.plan(buffers.x, {rows, config.hidden}, kActivations);
    arena.plan(buffers.qkv, {together, (queryRank > 0 ? Elements(queryRank) : plainWidth) + 2 * kvWidth}, kActivations);
    if (queryRank > 0) arena.plan(buffers.plainQ, {together, plainWidth}, kActivations);
    if (config.latent) arena.plan(buffers.output, {together, config.queryHeads, config.outputDim()}, kActivations);
    arena.plan(buffers.q, {together, config.queryHeads, layout.dim}, kActivations);
    arena.plan(buffers.attended, {together, config.queryHeads, layout.shape.valueDim()}, kActivations);
    const int widest = config.experts ? std::max(config.ffn, config.experts->sharedWidth) : config.ffn;
    arena.plan(buffers.hidden, {together, widest}, kActivations);
    arena.plan(buffers.newKey, {rows, kvWidth}, kActivations);
    arena.plan(buffers.newValue, {rows, kvWidth}, kActivations);
    for (float*& logits : buffers.logits) arena.plan(logits, {rows, config.vocab}, kActivations);
}

void planAttentionBuffers(DeviceArena& arena, StepBuffers& buffers, const ModelConfig& config,
                          const BatchLayout& layout, const cuda::Launch& launch, bool oracle) {
    if (oracle) arena.plan(buffers.blockLogSums, {layout.rows, config.queryHeads, layout.maxUnits}, "the oracle");
    arena.plan(buffers.partial, layout.partialFloats(launch), kActivations);
    arena.plan(buffers.arrivals, cuda::attentionArrivals(layout.shape, layout.selectRows), "session state");
}

} // namespace kvscope
