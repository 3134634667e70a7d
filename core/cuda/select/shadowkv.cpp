#include "core/cuda/device_selector.h"

#include "base/extents.h"
#include "core/select/shadowkv_budget.h"
#include "kernels/cuda/methods/shadow.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvscope {
namespace {

class DeviceShadowKv final : public DeviceSelector {
public:
    DeviceShadowKv(const ParameterValues& values, const DeviceSelectorContext& context);

    void plan(DeviceArena& arena) override;
    void begin() override;
    std::size_t reportBytes() const override;
    void prompt(const DevicePromptPiece& piece) override;
    void promptDone(LayerId layer, RowId sequence, int tokens, const __nv_bfloat16* blocks,
                    std::int64_t headStride) override;
    std::int64_t storedBytes(LayerId, RowId sequence) const override {
        return context_.offload ? std::int64_t(tables_.counts[sequence].chunks) * context_.shape.kvHeads * chunkBytes()
                                : 0;
    }
    void append(const DeviceStep& step) override;
    void choose(const DeviceStep& step, cuda::SelectArgs&) override;
    bool attend(const DeviceStep& step, cuda::DecodeAttentionArgs& args) override;
    void fill(LayerId layer, const char* report, std::span<const RowId> active, LayerRecord& out, StepRecord& record,
              std::size_t firstSelection) const override;

private:
    struct Layer {
        __nv_bfloat16 *landmarks = nullptr, *u = nullptr, *basis = nullptr, *values = nullptr, *pool = nullptr;
        std::uint8_t* isOutlier = nullptr;
        std::int32_t *outlierChunks = nullptr, *slotChunk = nullptr;
        float* poolScores = nullptr;
        std::vector<std::int32_t> outliers; // copy of outlierChunks on the host
    };
    /// Where the parts of a sequence or of a head begin in the arrays of a layer.
    struct Tables {
        PerRow<cuda::ShadowCounts> counts;
        std::vector<std::int64_t> chunkFirst, poolFirst; // [sequence, KV head]
        PerRow<std::int64_t> tokenFirst;
        std::vector<std::int64_t> poolTokenFirst; // [sequence, KV head]
    };
    struct TablesOnDevice { // the same in device memory
        cuda::ShadowCounts* counts = nullptr;
        std::int64_t *chunkFirst = nullptr, *tokenFirst = nullptr, *poolFirst = nullptr, *poolTokenFirst = nullptr;
        std::int32_t* poolShift = nullptr; // [sequence] from a position to the place in the pool
    };
    struct Most { // of any sequence
        int chosen = 0, outliers = 0, chunks = 0, poolBlocks = 0;
    };
    struct Totals {
        std::int64_t chunks = 0, tokens = 0, poolBlocks = 0; // of all heads; of all sequences; of all heads
    };
    struct PromptScratch { // device memory for one layer of a prompt
        __nv_bfloat16 *keys = nullptr, *lastQuery = nullptr;
        float *gram = nullptr, *vectors = nullptr, *moved = nullptr, *distance = nullptr;
        double* products = nullptr;
        bool read = false; // whether `keys` was written
    };
    struct StepScratch { // device memory for one layer of a step
        std::int32_t* missCount = nullptr;
        cuda::ShadowMiss* misses = nullptr;
        float *logits = nullptr, *partialSums = nullptr, *partial = nullptr;
    };
    cuda::ShadowMemory memoryOf(LayerId layer) const;
    cuda::ShadowChoiceArgs choiceOf(LayerId layer) const;
    cuda::ShadowFetchArgs fetchOf(LayerId layer) const;
    /// Bytes of the values of one chunk of one KV head.
    std::int64_t chunkBytes() const { return std::int64_t(chunkValues() * sizeof(__nv_bfloat16)); }
    Elements chunkValues() const { return {budget_.chunk, context_.shape.dim}; }
    /// Bytes of a layer's report: what it says of all heads, and its list of chosen chunks.
    std::size_t headBytes() const { return heads_.size() * sizeof(cuda::ShadowHeadReport); }
    std::size_t listBytes() const { return chosenAt_.size() * sizeof(PackedBlock); }
    std::int32_t selectHead(LayerId layer, RowId sequence, KvHeadId kvHead, const char* report, StepRecord& record,
                            LayerRecord& out) const;

    const DeviceSelectorContext context_;
    const select::ChunkBudget budget_;
    const int width_, rank_, paddedRank_;
    const Extents<RowId, KvHeadId> heads_;
    Tables tables_;
    TablesOnDevice onDevice_;
    Most most_;
    Totals totals_;
    Extents<RowId, KvHeadId, int> chosenAt_, outlierAt_; // the last is of most_.chosen, of most_.outliers
    PerLayer<Layer> layers_;
    __nv_bfloat16* store_ = nullptr; // host memory: the values of all layers, where something is offloaded
    PromptScratch promptScratch_;
    StepScratch stepScratch_;
};

DeviceShadowKv::DeviceShadowKv(const ParameterValues& values, const DeviceSelectorContext& context)
    : context_(context), budget_(values), width_(context.shape.kvHeads * context.shape.dim),
      rank_(select::rankOf(values.integer("rank"), width_)), paddedRank_((rank_ + 15) / 16 * 16),
      heads_(context.rows(), context.shape.kvHeads), layers_(context.config.layers) {
    for (const RowId s : context.maxTokens.ids()) {
        const int tokens = context.promptTokens[s];
        cuda::ShadowCounts& counts = tables_.counts.emplace_back();
        counts.chunks = std::max(0, tokens / budget_.chunk - budget_.local);
        counts.outliers = std::min(budget_.outliers, counts.chunks);
        counts.chosen = std::min(budget_.chosen, counts.chunks - counts.outliers);
        counts.firstLocalToken = counts.chunks * budget_.chunk;
        counts.fixedTokens = (counts.chosen + counts.outliers) * budget_.chunk;
        most_.chosen = std::max(most_.chosen, counts.chosen);
        most_.outliers = std::max(most_.outliers, counts.outliers);
        most_.chunks = std::max(most_.chunks, counts.chunks);
        const int poolTokens = counts.fixedTokens + context.maxTokens[s] - counts.firstLocalToken;
        const int poolBlocks = (poolTokens + context.shape.blockSize - 1) / context.shape.blockSize;
        most_.poolBlocks = std::max(most_.poolBlocks, poolBlocks);
        tables_.tokenFirst.push_back(totals_.tokens);
        totals_.tokens += tokens;
        for (int g = 0; g < context.shape.kvHeads; ++g) {
            tables_.chunkFirst.push_back(totals_.chunks);
            tables_.poolFirst.push_back(totals_.poolBlocks);
            tables_.poolTokenFirst.push_back(totals_.poolBlocks * context.shape.blockSize);
            totals_.chunks += counts.chunks;
            totals_.poolBlocks += poolBlocks;
        }
    }
    chosenAt_ = Extents<RowId, KvHeadId, int>(context.rows(), context.shape.kvHeads, most_.chosen);
    outlierAt_ = Extents<RowId, KvHeadId, int>(context.rows(), context.shape.kvHeads, most_.outliers);
}

void DeviceShadowKv::plan(DeviceArena& arena) {
    const cuda::AttentionShape& shape = context_.shape;
    const int rows = context_.rows();
    const std::size_t values = Elements(totals_.chunks, chunkValues()), heads = heads_.size();
    const Extents<int, int> chosenOf(context_.heads(), std::max(most_.chosen, 1)),
        outliersOf(context_.heads(), std::max(most_.outliers, 1)), squareOfWidth(width_, width_),
        vectorsOf(rank_, width_), squareOfRank(rank_, rank_);
    const Extents<int, int, int> basisAt(context_.rows(), width_, paddedRank_);
    constexpr MemoryKind kLandmarks("landmarks", "landmarks", Holds::Index),
        kLowRank("low_rank", "low-rank keys", Holds::Index), kPool("chunk_pool", "KV slots", Holds::Kv);
    constexpr const char* kValues = "chunk_values";
    for (Layer& layer : layers_) {
        arena.plan(layer.landmarks, {totals_.chunks, shape.dim}, kLandmarks);
        arena.plan(layer.isOutlier, totals_.chunks, kLandmarks);
        arena.plan(layer.outlierChunks, outliersOf.size(), {"outlier_chunks", "outlier chunks", Holds::Index});
        arena.plan(layer.u, {totals_.tokens, paddedRank_}, kLowRank);
        arena.plan(layer.basis, basisAt.size(), kLowRank);
        arena.plan(layer.slotChunk, chosenOf.size(), "slot maps");
        arena.plan(layer.pool, {totals_.poolBlocks, cuda::blockElements(shape.blockSize, shape.dim)}, kPool);
        if (context_.spec.bias.scale != 0.f)
            arena.plan(layer.poolScores, {totals_.poolBlocks, shape.blockSize}, "scores of the slots");
        if (!context_.offload) arena.plan(layer.values, values, {kValues, "resident values", Holds::Kv});
    }
    if (context_.offload) arena.planHost(store_, values * layers_.size(), {kValues, "the values' store", Holds::Kv});
    arena.plan(onDevice_.counts, rows, "session state");
    arena.plan(onDevice_.chunkFirst, heads, "session state");
    arena.plan(onDevice_.tokenFirst, rows, "session state");
    arena.plan(onDevice_.poolFirst, heads, "session state");
    arena.plan(onDevice_.poolTokenFirst, heads, "session state");
    const int longest = *std::max_element(context_.promptTokens.begin(), context_.promptTokens.end());
    arena.plan(promptScratch_.keys, Extents<int, int>(longest, width_).size(), "prompt KV");
    arena.plan(promptScratch_.lastQuery, Extents<int, int>(shape.queryHeads, shape.dim).size(), "activations");
    arena.plan(promptScratch_.gram, squareOfWidth.size(), "prompt activations");
    arena.plan(promptScratch_.vectors, vectorsOf.size(), "prompt activations");
    arena.plan(promptScratch_.moved, vectorsOf.size(), "prompt activations");
    arena.plan(promptScratch_.products, squareOfRank.size(), "prompt activations");
    arena.plan(promptScratch_.distance, Extents<int, int>(shape.kvHeads, most_.chunks).size(), "prompt activations");
    const Extents<int, int, int> logitAt(context_.rows(), shape.queryHeads, most_.chunks);
    const Extents<int, int, int, int> sumAt(context_.rows(), shape.queryHeads,
                                            std::max(1, cuda::shadowTiles(most_.chunks)), 2);
    arena.plan(onDevice_.poolShift, rows, "session state");
    arena.plan(stepScratch_.misses, chosenOf.size(), "selections");
    arena.plan(stepScratch_.missCount, heads, "selections");
    arena.plan(stepScratch_.logits, logitAt.size(), "selections");
    arena.plan(stepScratch_.partialSums, sumAt.size(), "selections");
    arena.plan(stepScratch_.partial,
               cuda::attentionPartialFloats(context_.launch, shape, context_.rows(), most_.poolBlocks), "activations");
}

void DeviceShadowKv::begin() {
    const auto upload = [](auto* to, const auto& from) {
        cuda::check(cudaMemcpy(to, from.data(), from.size() * sizeof(from[0]), cudaMemcpyHostToDevice),
                    "preparing the session");
    };
    upload(onDevice_.counts, tables_.counts);
    upload(onDevice_.chunkFirst, tables_.chunkFirst);
    upload(onDevice_.tokenFirst, tables_.tokenFirst);
    upload(onDevice_.poolFirst, tables_.poolFirst);
    upload(onDevice_.poolTokenFirst, tables_.poolTokenFirst);
    std::vector<std::int32_t> shift;
    for (const cuda::ShadowCounts& counts : tables_.counts)
        shift.push_back(counts.fixedTokens - counts.firstLocalToken);
    upload(onDevice_.poolShift, shift);
    const Elements layerValues(totals_.chunks, chunkValues());
    for (const LayerId i : layers_.ids()) {
        Layer& layer = layers_[i];
        layer.outliers.resize(outlierAt_.size());
        cuda::check(
            cudaMemset(layer.slotChunk, 0xff,
                       Extents<int, int>(context_.heads(), std::max(most_.chosen, 1)).size() * sizeof(std::int32_t)),
            "preparing the slot maps");
        if (!context_.offload || layerValues == 0) continue;
        void* seen = nullptr;
        cuda::check(cudaHostGetDevicePointer(&seen, RowsOf(store_, layerValues)[int(i)], 0),
                    "mapping the values' store");
        layer.values = static_cast<__nv_bfloat16*>(seen);
    }
}

std::size_t DeviceShadowKv::reportBytes() const {
    std::size_t bytes = sizeof(cuda::ShadowReport) + headBytes();
    if (context_.level != RecordLevel::Counters) bytes += listBytes();
    if (context_.level == RecordLevel::Full) bytes += listBytes();
    return (bytes + 15) / 16 * 16;
}

cuda::ShadowMemory DeviceShadowKv::memoryOf(LayerId layer) const {
    const Layer& of = layers_[layer];
    cuda::ShadowMemory memory;
    memory.shape = context_.shape;
    memory.chunkTokens = budget_.chunk;
    memory.paddedRank = paddedRank_;
    memory.chosen = most_.chosen;
    memory.outliers = most_.outliers;
    memory.counts = onDevice_.counts;
    memory.chunkFirst = onDevice_.chunkFirst;
    memory.tokenFirst = onDevice_.tokenFirst;
    memory.poolFirst = onDevice_.poolFirst;
    memory.landmarks = of.landmarks;
    memory.isOutlier = of.isOutlier;
    memory.outlierChunks = of.outlierChunks;
    memory.u = of.u;
    memory.basis = of.basis;
    memory.values = of.values;
    memory.slotChunk = of.slotChunk;
    memory.pool = of.pool;
    memory.poolScores = of.poolScores;
    memory.tokenScores = context_.layers[layer].index.tokenScores;
    memory.scoreFirst = context_.tables.tokenFirst;
    return memory;
}

cuda::ShadowChoiceArgs DeviceShadowKv::choiceOf(LayerId layer) const {
    cuda::ShadowChoiceArgs args;
    args.memory = memoryOf(layer);
    args.scale = context_.config.attentionScale();
    args.maxChunks = most_.chunks;
    args.logits = stepScratch_.logits;
    args.partial = stepScratch_.partialSums;
    args.misses = stepScratch_.misses;
    args.missCount = stepScratch_.missCount;
    return args;
}

cuda::ShadowFetchArgs DeviceShadowKv::fetchOf(LayerId layer) const {
    cuda::ShadowFetchArgs args;
    args.memory = memoryOf(layer);
    args.misses = stepScratch_.misses;
    args.missCount = stepScratch_.missCount;
    args.interleaved = context_.config.rope.interleaved;
    args.cos = context_.tables.ropeCos;
    args.sin = context_.tables.ropeSin;
    args.ropeFirst = context_.tables.ropeFirst;
    return args;
}

void DeviceShadowKv::prompt(const DevicePromptPiece& piece) {
    const cuda::AttentionShape& shape = context_.shape;
    const int queries = shape.queryHeads * shape.dim;
    const Extents<int, int> keyAt(piece.promptTokens, width_), queryAt(piece.n, queries);
    cuda::keepPlainKeys(context_.launch, piece.qkv, queries + 2 * width_, queries, width_, piece.n,
                        promptScratch_.keys + keyAt.first(piece.first));
    promptScratch_.read = true;
    if (piece.first + piece.n < piece.promptTokens) return;
    cuda::check(cudaMemcpyAsync(promptScratch_.lastQuery, piece.q + queryAt.first(piece.n - 1),
                                queryAt.under(0) * sizeof(__nv_bfloat16), cudaMemcpyDeviceToDevice,
                                context_.launch.stream),
                "keeping the last query");
}

void DeviceShadowKv::promptDone(LayerId layer, RowId sequence, int tokens, const __nv_bfloat16* blocks,
                                std::int64_t headStride) {
    const cuda::ShadowCounts& counts = tables_.counts[sequence];
    Layer& of = layers_[layer];
    if (counts.chosen > 0) {
        if (!promptScratch_.read) // a filled context has no keys before rotation
            cuda::keepBlockKeys(context_.launch, context_.shape, blocks, headStride, tokens, promptScratch_.keys);
        cuda::ShadowRankArgs rank;
        rank.memory = memoryOf(layer);
        rank.sequence = int(sequence);
        rank.tokens = tokens;
        rank.rank = rank_;
        rank.tokenFirst = tables_.tokenFirst[sequence];
        rank.keys = promptScratch_.keys;
        rank.gram = promptScratch_.gram;
        rank.vectors = promptScratch_.vectors;
        rank.moved = promptScratch_.moved;
        rank.products = promptScratch_.products;
        cuda::lowerRank(context_.launch, rank);
    }
    cuda::ShadowPromptArgs enter;
    enter.memory = memoryOf(layer);
    enter.sequence = int(sequence);
    enter.tokens = tokens;
    enter.counts = counts;
    enter.blocks = blocks;
    enter.headStride = headStride;
    enter.distance = promptScratch_.distance;
    cuda::enterPrompt(context_.launch, enter);
    if (counts.outliers > 0) { // the records need these; the engine waits for the layer before it reads them
        const std::span<std::int32_t> outliers = outlierAt_.part(std::span(of.outliers), sequence);
        cuda::check(cudaMemcpyAsync(outliers.data(), of.outlierChunks + outlierAt_.first(sequence),
                                    outliers.size_bytes(), cudaMemcpyDeviceToHost, context_.launch.stream),
                    "reading the outliers");
    }
    // The device tier gets the chunks that the query of the last prompt token chooses.
    cuda::ShadowChoiceArgs choice = choiceOf(layer);
    choice.rows = 1;
    choice.firstSequence = int(sequence);
    choice.q = promptScratch_.lastQuery;
    cuda::chooseChunks(context_.launch, choice);
    cuda::ShadowFetchArgs fetch = fetchOf(layer);
    fetch.rows = 1;
    fetch.firstSequence = int(sequence);
    cuda::fetchChunks(context_.launch, fetch);
}

void DeviceShadowKv::append(const DeviceStep& step) {
    cuda::ShadowAppendArgs args;
    args.memory = memoryOf(step.layer);
    args.rows = context_.rows();
    args.position = step.position;
    args.active = step.active;
    args.newKey = step.newKey;
    args.newValue = step.newValue;
    cuda::appendToPool(context_.launch, args);
}

void DeviceShadowKv::choose(const DeviceStep& step, cuda::SelectArgs&) {
    cuda::ShadowChoiceArgs choice = choiceOf(step.layer);
    choice.rows = context_.rows();
    choice.position = step.position;
    choice.active = step.active;
    choice.q = step.q;
    choice.scoreMark = step.stage1Mark;
    choice.chooseMark = step.poolingMark;
    cuda::ShadowFetchArgs fetch = fetchOf(step.layer);
    if (step.report != nullptr) {
        choice.report = fetch.report = reinterpret_cast<cuda::ShadowReport*>(step.report);
        char* at = step.report + sizeof(cuda::ShadowReport);
        choice.reportHeads = reinterpret_cast<cuda::ShadowHeadReport*>(at);
        at += headBytes();
        if (context_.level != RecordLevel::Counters) choice.reportChunks = reinterpret_cast<PackedBlock*>(at);
        if (context_.level == RecordLevel::Full) choice.reportScores = reinterpret_cast<float*>(at + listBytes());
    }
    cuda::chooseChunks(context_.launch, choice);
    fetch.rows = context_.rows();
    fetch.active = step.active;
    fetch.mark = step.offloadingMark;
    cuda::fetchChunks(context_.launch, fetch);
}

bool DeviceShadowKv::attend(const DeviceStep& step, cuda::DecodeAttentionArgs& args) {
    const Layer& layer = layers_[step.layer];
    args.shift = onDevice_.poolShift;
    args.blocks = layer.pool;
    args.headFirst = onDevice_.poolFirst;
    args.list.block = args.list.slot = args.list.count = nullptr;
    args.maxBlocks = most_.poolBlocks;
    args.bias.scores = layer.poolScores;
    args.bias.first = onDevice_.poolTokenFirst;
    args.scratch.partial = stepScratch_.partial;
    return false;
}

/// @return how many of the chunks the step before had selected too; -1 in a sequence's first step
std::int32_t DeviceShadowKv::selectHead(LayerId layer, RowId sequence, KvHeadId kvHead, const char* report,
                                        StepRecord& record, LayerRecord& out) const {
    const cuda::ShadowCounts& counts = tables_.counts[sequence];
    const char* at = report + sizeof(cuda::ShadowReport);
    const cuda::ShadowHeadReport& head =
        reinterpret_cast<const cuda::ShadowHeadReport*>(at)[heads_.offset(sequence, kvHead)];
    const int firstLocal = counts.chunks, newest = head.position / budget_.chunk, local = newest + 1 - firstLocal;
    SelectionRecord selection;
    selection.layer = int(layer);
    selection.sequence = int(sequence);
    selection.kvHead = int(kvHead);
    selection.selected = counts.chosen + counts.outliers + local;
    selection.misses = context_.offload ? head.missed : 0;
    selection.hits = selection.selected - selection.misses;
    selection.first = std::uint32_t(record.blocks.size());
    const bool first = head.position == context_.promptTokens[sequence];
    const bool opens = head.position % budget_.chunk == 0;
    if (!first) selection.kept = head.stayed + counts.outliers + local - (opens ? 1 : 0);
    out.selected += selection.selected;
    out.hits += selection.hits;
    out.misses += selection.misses;
    record.selections.push_back(selection);
    if (context_.level == RecordLevel::Counters) return selection.kept;

    at += headBytes();
    const std::size_t firstChosen = chosenAt_.first(sequence, kvHead);
    const auto* chosen = reinterpret_cast<const PackedBlock*>(at) + firstChosen;
    const float* scores =
        context_.level == RecordLevel::Full ? reinterpret_cast<const float*>(at + listBytes()) + firstChosen : nullptr;
    const std::int32_t* outliers = layers_[layer].outliers.data() + outlierAt_.first(sequence, kvHead);
    const auto add = [&](std::int32_t chunk, Origin origin, bool hit, float score) {
        record.blocks.emplace_back(chunk, origin, hit);
        if (scores != nullptr) record.scores.push_back(score);
    };
    const float none = std::numeric_limits<float>::quiet_NaN();
    for (int i = 0, j = 0; i < counts.chosen || j < counts.outliers;) { // both lists ascend and have no chunk in common
        const std::int32_t chunk = i < counts.chosen ? chosen[i].id() : std::numeric_limits<std::int32_t>::max();
        if (j < counts.outliers && outliers[j] < chunk) {
            add(outliers[j++], Origin::QueryAgnostic, true, none);
            continue;
        }
        add(chunk, Origin::QueryAware, !context_.offload || chosen[i].hit(), scores ? scores[i] : none);
        ++i;
    }
    for (int chunk = firstLocal; chunk <= newest; ++chunk) add(chunk, Origin::Window, true, none);
    return selection.kept;
}

void DeviceShadowKv::fill(LayerId layer, const char* report, std::span<const RowId> active, LayerRecord& out,
                          StepRecord& record, std::size_t) const {
    if (report == nullptr) return;
    bool defined = !active.empty();
    int kept = 0;
    for (const RowId sequence : active)
        for (const KvHeadId g : idsUpTo<KvHeadId>(context_.shape.kvHeads)) {
            const std::int32_t mine = selectHead(layer, sequence, g, report, record, out);
            defined &= mine >= 0;
            kept += std::max(mine, 0);
        }
    out.kept = defined ? kept : -1;
    if (!context_.offload) return;
    out.h2dBlocks = out.misses;
    out.h2dBytes = out.misses * chunkBytes();
    const auto& times = *reinterpret_cast<const cuda::ShadowReport*>(report);
    if (times.valuesDone <= times.begun) return;
    out.transferNs = std::int64_t(times.valuesDone - times.begun);
    // Exposed is the time of the transfer after the keys have been rebuilt.
    const auto rebuilt = std::max(times.keysDone, times.begun);
    out.exposedNs = times.valuesDone > rebuilt ? std::int64_t(times.valuesDone - rebuilt) : 0;
}

} // namespace

std::unique_ptr<DeviceSelector> shadowKvOnDevice(const ParameterValues& values, const DeviceSelectorContext& context) {
    return std::make_unique<DeviceShadowKv>(values, context);
}

} // namespace kvscope
