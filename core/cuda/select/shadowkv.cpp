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
    void prompt(const DevicePromptChunk& chunk) override;
    void promptDone(int layer, int sequence, int tokens, const __nv_bfloat16* blocks, std::int64_t headStride) override;
    std::int64_t storedBytes(int, int sequence) const override {
        return context_.offload
                   ? std::int64_t(counts_[std::size_t(sequence)].chunks) * context_.shape.kvHeads * chunkBytes()
                   : 0;
    }
    void append(const DeviceStep& step) override;
    void choose(const DeviceStep& step, cuda::SelectArgs&) override;
    bool attend(const DeviceStep& step, cuda::DecodeAttentionArgs& args) override;
    void fill(int layer, const char* report, std::span<const int> active, LayerRecord& out, StepRecord& record,
              std::size_t firstSelection) const override;

private:
    struct Layer {
        __nv_bfloat16 *landmarks = nullptr, *u = nullptr, *basis = nullptr, *values = nullptr, *pool = nullptr;
        std::uint8_t* isOutlier = nullptr;
        std::int32_t *outlierChunks = nullptr, *slotChunk = nullptr;
        float* poolScores = nullptr;
        std::vector<std::int32_t> outliers; // copy of outlierChunks on the host
    };
    cuda::ShadowMemory memoryOf(int layer) const;
    cuda::ShadowChoiceArgs choiceOf(int layer) const;
    cuda::ShadowFetchArgs fetchOf(int layer) const;
    /// Bytes of the values of one chunk of one KV head.
    std::int64_t chunkBytes() const {
        return std::int64_t(budget_.chunk) * context_.shape.dim * std::int64_t(sizeof(__nv_bfloat16));
    }
    /// Bytes of a layer's report: what it says of all heads, and its list of chosen chunks.
    std::size_t headBytes() const { return heads_.size() * sizeof(cuda::ShadowHeadReport); }
    std::size_t listBytes() const { return chosenAt_.size() * sizeof(PackedBlock); }
    std::int32_t selectHead(int layer, int sequence, int kvHead, const char* report, StepRecord& record,
                            LayerRecord& out) const;

    const DeviceSelectorContext context_;
    const select::ChunkBudget budget_;
    const int width_, rank_, paddedRank_;
    const Extents<int, int> heads_;          // [sequence, KV head]
    std::vector<cuda::ShadowCounts> counts_; // [sequence]
    int chosen_ = 0, outliers_ = 0, maxChunks_ = 0, maxPoolBlocks_ = 0;
    Extents<int, int, int> chosenAt_, outlierAt_; // [sequence, KV head, chosen_] and [sequence, KV head, outliers_]
    std::vector<std::int64_t> chunkFirst_, tokenFirst_, poolFirst_, poolTokenFirst_;
    std::size_t chunks_ = 0, tokens_ = 0, poolBlocks_ = 0; // of all heads; of all sequences; of all heads
    std::vector<Layer> layers_;
    __nv_bfloat16* store_ = nullptr; // host memory: the values of all layers, where something is offloaded
    cuda::ShadowCounts* countsDevice_ = nullptr;
    std::int64_t *chunkFirstDevice_ = nullptr, *tokenFirstDevice_ = nullptr, *poolFirstDevice_ = nullptr,
                 *poolTokenFirstDevice_ = nullptr;
    // Used for one layer of a prompt.
    __nv_bfloat16 *promptKeys_ = nullptr, *lastQuery_ = nullptr;
    float *gram_ = nullptr, *vectors_ = nullptr, *moved_ = nullptr, *distance_ = nullptr;
    double* products_ = nullptr;
    bool promptRead_ = false;
    // Used for one layer of a step.
    std::int32_t *poolShift_ = nullptr, *missCount_ = nullptr; // poolShift_: from a position to the place in the pool
    cuda::ShadowMiss* misses_ = nullptr;
    float *logits_ = nullptr, *partialSums_ = nullptr, *partial_ = nullptr;
};

DeviceShadowKv::DeviceShadowKv(const ParameterValues& values, const DeviceSelectorContext& context)
    : context_(context), budget_(values), width_(context.shape.kvHeads * context.shape.dim),
      rank_(select::rankOf(values.integer("rank"), width_)), paddedRank_((rank_ + 15) / 16 * 16),
      heads_(context.rows(), context.shape.kvHeads), layers_(std::size_t(context.config.layers)) {
    for (std::size_t s = 0; s < context.maxTokens.size(); ++s) {
        const int tokens = context.promptTokens[s];
        cuda::ShadowCounts& counts = counts_.emplace_back();
        counts.chunks = std::max(0, tokens / budget_.chunk - budget_.local);
        counts.outliers = std::min(budget_.outliers, counts.chunks);
        counts.chosen = std::min(budget_.chosen, counts.chunks - counts.outliers);
        counts.firstLocalToken = counts.chunks * budget_.chunk;
        counts.fixedTokens = (counts.chosen + counts.outliers) * budget_.chunk;
        chosen_ = std::max(chosen_, counts.chosen);
        outliers_ = std::max(outliers_, counts.outliers);
        maxChunks_ = std::max(maxChunks_, counts.chunks);
        const int poolTokens = counts.fixedTokens + context.maxTokens[s] - counts.firstLocalToken;
        const int poolBlocks = (poolTokens + context.shape.blockSize - 1) / context.shape.blockSize;
        maxPoolBlocks_ = std::max(maxPoolBlocks_, poolBlocks);
        tokenFirst_.push_back(std::int64_t(tokens_));
        tokens_ += std::size_t(tokens);
        for (int g = 0; g < context.shape.kvHeads; ++g) {
            chunkFirst_.push_back(std::int64_t(chunks_));
            poolFirst_.push_back(std::int64_t(poolBlocks_));
            poolTokenFirst_.push_back(std::int64_t(poolBlocks_) * context.shape.blockSize);
            chunks_ += std::size_t(counts.chunks);
            poolBlocks_ += std::size_t(poolBlocks);
        }
    }
    chosenAt_ = Extents<int, int, int>(context.rows(), context.shape.kvHeads, chosen_);
    outlierAt_ = Extents<int, int, int>(context.rows(), context.shape.kvHeads, outliers_);
}

void DeviceShadowKv::plan(DeviceArena& arena) {
    const cuda::AttentionShape& shape = context_.shape;
    const auto rows = std::size_t(context_.rows());
    const std::size_t values = chunks_ * std::size_t(chunkBytes()) / sizeof(__nv_bfloat16), heads = heads_.size();
    const Extents<int, int> chosenOf(context_.heads(), std::max(chosen_, 1)),
        outliersOf(context_.heads(), std::max(outliers_, 1)), squareOfWidth(width_, width_), vectorsOf(rank_, width_),
        squareOfRank(rank_, rank_);
    const Extents<int, int, int> basisAt(context_.rows(), width_, paddedRank_);
    constexpr MemoryKind kLandmarks("landmarks", "landmarks", Holds::Index),
        kLowRank("low_rank", "low-rank keys", Holds::Index), kPool("chunk_pool", "KV slots", Holds::Kv);
    constexpr const char* kValues = "chunk_values";
    for (Layer& layer : layers_) {
        arena.plan(layer.landmarks, chunks_ * std::size_t(shape.dim), kLandmarks);
        arena.plan(layer.isOutlier, chunks_, kLandmarks);
        arena.plan(layer.outlierChunks, outliersOf.size(), {"outlier_chunks", "outlier chunks", Holds::Index});
        arena.plan(layer.u, tokens_ * std::size_t(paddedRank_), kLowRank);
        arena.plan(layer.basis, basisAt.size(), kLowRank);
        arena.plan(layer.slotChunk, chosenOf.size(), "slot maps");
        arena.plan(layer.pool, poolBlocks_ * cuda::blockElements(shape.blockSize, shape.dim), kPool);
        if (context_.spec.bias.scale != 0.f)
            arena.plan(layer.poolScores, poolBlocks_ * std::size_t(shape.blockSize), "scores of the slots");
        if (!context_.offload) arena.plan(layer.values, values, {kValues, "resident values", Holds::Kv});
    }
    if (context_.offload) arena.planHost(store_, values * layers_.size(), {kValues, "the values' store", Holds::Kv});
    arena.plan(countsDevice_, rows, "session state");
    arena.plan(chunkFirstDevice_, heads, "session state");
    arena.plan(tokenFirstDevice_, rows, "session state");
    arena.plan(poolFirstDevice_, heads, "session state");
    arena.plan(poolTokenFirstDevice_, heads, "session state");
    const int longest = *std::max_element(context_.promptTokens.begin(), context_.promptTokens.end());
    arena.plan(promptKeys_, Extents<int, int>(longest, width_).size(), "prompt KV");
    arena.plan(lastQuery_, Extents<int, int>(shape.queryHeads, shape.dim).size(), "activations");
    arena.plan(gram_, squareOfWidth.size(), "prompt activations");
    arena.plan(vectors_, vectorsOf.size(), "prompt activations");
    arena.plan(moved_, vectorsOf.size(), "prompt activations");
    arena.plan(products_, squareOfRank.size(), "prompt activations");
    arena.plan(distance_, Extents<int, int>(shape.kvHeads, maxChunks_).size(), "prompt activations");
    const Extents<int, int, int> logitAt(context_.rows(), shape.queryHeads, maxChunks_);
    const Extents<int, int, int, int> sumAt(context_.rows(), shape.queryHeads,
                                            std::max(1, cuda::shadowTiles(maxChunks_)), 2);
    arena.plan(poolShift_, rows, "session state");
    arena.plan(misses_, chosenOf.size(), "selections");
    arena.plan(missCount_, heads, "selections");
    arena.plan(logits_, logitAt.size(), "selections");
    arena.plan(partialSums_, sumAt.size(), "selections");
    arena.plan(partial_, cuda::attentionPartialFloats(context_.launch, shape, context_.rows(), maxPoolBlocks_),
               "activations");
}

void DeviceShadowKv::begin() {
    const auto upload = [](auto* to, const auto& from) {
        cuda::check(cudaMemcpy(to, from.data(), from.size() * sizeof(from[0]), cudaMemcpyHostToDevice),
                    "preparing the session");
    };
    upload(countsDevice_, counts_);
    upload(chunkFirstDevice_, chunkFirst_);
    upload(tokenFirstDevice_, tokenFirst_);
    upload(poolFirstDevice_, poolFirst_);
    upload(poolTokenFirstDevice_, poolTokenFirst_);
    std::vector<std::int32_t> shift;
    for (const cuda::ShadowCounts& counts : counts_) shift.push_back(counts.fixedTokens - counts.firstLocalToken);
    upload(poolShift_, shift);
    const std::size_t layerBytes = chunks_ * std::size_t(chunkBytes());
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        Layer& layer = layers_[i];
        layer.outliers.resize(outlierAt_.size());
        cuda::check(cudaMemset(layer.slotChunk, 0xff,
                               Extents<int, int>(context_.heads(), std::max(chosen_, 1)).size() * sizeof(std::int32_t)),
                    "preparing the slot maps");
        if (!context_.offload || layerBytes == 0) continue;
        void* seen = nullptr;
        cuda::check(cudaHostGetDevicePointer(&seen, store_ + i * layerBytes / sizeof(*store_), 0),
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

cuda::ShadowMemory DeviceShadowKv::memoryOf(int layer) const {
    const Layer& of = layers_[std::size_t(layer)];
    cuda::ShadowMemory memory;
    memory.shape = context_.shape;
    memory.chunkTokens = budget_.chunk;
    memory.paddedRank = paddedRank_;
    memory.chosen = chosen_;
    memory.outliers = outliers_;
    memory.counts = countsDevice_;
    memory.chunkFirst = chunkFirstDevice_;
    memory.tokenFirst = tokenFirstDevice_;
    memory.poolFirst = poolFirstDevice_;
    memory.landmarks = of.landmarks;
    memory.isOutlier = of.isOutlier;
    memory.outlierChunks = of.outlierChunks;
    memory.u = of.u;
    memory.basis = of.basis;
    memory.values = of.values;
    memory.slotChunk = of.slotChunk;
    memory.pool = of.pool;
    memory.poolScores = of.poolScores;
    memory.tokenScores = context_.layers[std::size_t(layer)].index.tokenScores;
    memory.scoreFirst = context_.tokenFirst;
    return memory;
}

cuda::ShadowChoiceArgs DeviceShadowKv::choiceOf(int layer) const {
    cuda::ShadowChoiceArgs args;
    args.memory = memoryOf(layer);
    args.scale = context_.config.attentionScale();
    args.maxChunks = maxChunks_;
    args.logits = logits_;
    args.partial = partialSums_;
    args.misses = misses_;
    args.missCount = missCount_;
    return args;
}

cuda::ShadowFetchArgs DeviceShadowKv::fetchOf(int layer) const {
    cuda::ShadowFetchArgs args;
    args.memory = memoryOf(layer);
    args.misses = misses_;
    args.missCount = missCount_;
    args.interleaved = context_.config.rope.interleaved;
    args.cos = context_.ropeCos;
    args.sin = context_.ropeSin;
    args.ropeFirst = context_.ropeFirst;
    return args;
}

void DeviceShadowKv::prompt(const DevicePromptChunk& chunk) {
    const cuda::AttentionShape& shape = context_.shape;
    const int queries = shape.queryHeads * shape.dim;
    const Extents<int, int> keyAt(chunk.promptTokens, width_), queryAt(chunk.n, queries);
    cuda::keepPlainKeys(context_.launch, chunk.qkv, queries + 2 * width_, queries, width_, chunk.n,
                        promptKeys_ + keyAt.first(chunk.first));
    promptRead_ = true;
    if (chunk.first + chunk.n < chunk.promptTokens) return;
    cuda::check(cudaMemcpyAsync(lastQuery_, chunk.q + queryAt.first(chunk.n - 1),
                                queryAt.under(0) * sizeof(__nv_bfloat16), cudaMemcpyDeviceToDevice,
                                context_.launch.stream),
                "keeping the last query");
}

void DeviceShadowKv::promptDone(int layer, int sequence, int tokens, const __nv_bfloat16* blocks,
                                std::int64_t headStride) {
    const cuda::ShadowCounts& counts = counts_[std::size_t(sequence)];
    Layer& of = layers_[std::size_t(layer)];
    if (counts.chosen > 0) {
        if (!promptRead_) // a filled context has no keys before rotation
            cuda::keepBlockKeys(context_.launch, context_.shape, blocks, headStride, tokens, promptKeys_);
        cuda::ShadowRankArgs rank;
        rank.memory = memoryOf(layer);
        rank.sequence = sequence;
        rank.tokens = tokens;
        rank.rank = rank_;
        rank.tokenFirst = tokenFirst_[std::size_t(sequence)];
        rank.keys = promptKeys_;
        rank.gram = gram_;
        rank.vectors = vectors_;
        rank.moved = moved_;
        rank.products = products_;
        cuda::lowerRank(context_.launch, rank);
    }
    cuda::ShadowPromptArgs enter;
    enter.memory = memoryOf(layer);
    enter.sequence = sequence;
    enter.tokens = tokens;
    enter.counts = counts;
    enter.blocks = blocks;
    enter.headStride = headStride;
    enter.distance = distance_;
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
    choice.firstSequence = sequence;
    choice.q = lastQuery_;
    cuda::chooseChunks(context_.launch, choice);
    cuda::ShadowFetchArgs fetch = fetchOf(layer);
    fetch.rows = 1;
    fetch.firstSequence = sequence;
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
    const Layer& layer = layers_[std::size_t(step.layer)];
    args.shift = poolShift_;
    args.blocks = layer.pool;
    args.headFirst = poolFirstDevice_;
    args.list.block = args.list.slot = args.list.count = nullptr;
    args.maxBlocks = maxPoolBlocks_;
    args.bias.scores = layer.poolScores;
    args.bias.first = poolTokenFirstDevice_;
    args.scratch.partial = partial_;
    return false;
}

/// @return how many of the chunks the step before had selected too; -1 in a sequence's first step
std::int32_t DeviceShadowKv::selectHead(int layer, int sequence, int kvHead, const char* report, StepRecord& record,
                                        LayerRecord& out) const {
    const cuda::ShadowCounts& counts = counts_[std::size_t(sequence)];
    const char* at = report + sizeof(cuda::ShadowReport);
    const cuda::ShadowHeadReport& head =
        reinterpret_cast<const cuda::ShadowHeadReport*>(at)[heads_.offset(sequence, kvHead)];
    const int firstLocal = counts.chunks, newest = head.position / budget_.chunk, local = newest + 1 - firstLocal;
    SelectionRecord selection;
    selection.layer = layer;
    selection.sequence = sequence;
    selection.kvHead = kvHead;
    selection.selected = counts.chosen + counts.outliers + local;
    selection.misses = context_.offload ? head.missed : 0;
    selection.hits = selection.selected - selection.misses;
    selection.first = std::uint32_t(record.blocks.size());
    const bool first = head.position == context_.promptTokens[std::size_t(sequence)];
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
    const std::int32_t* outliers = layers_[std::size_t(layer)].outliers.data() + outlierAt_.first(sequence, kvHead);
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

void DeviceShadowKv::fill(int layer, const char* report, std::span<const int> active, LayerRecord& out,
                          StepRecord& record, std::size_t) const {
    if (report == nullptr) return;
    bool defined = !active.empty();
    int kept = 0;
    for (const int sequence : active)
        for (int g = 0; g < context_.shape.kvHeads; ++g) {
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
