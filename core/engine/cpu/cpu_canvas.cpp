// Masked diffusion on the CPU backend: all tokens of a canvas through all layers, each seeing every other one.
#include "base/indexed.h"
#include "core/session/canvas_engine.h"

#include "core/diffusion/kept_tokens.h"
#include "core/diffusion/locality.h"
#include "core/engine/cpu/cpu_block_attention.h"
#include "core/engine/cpu/cpu_canvas_features.h"
#include "core/engine/cpu/cpu_canvas_tiles.h"
#include "core/engine/cpu/cpu_layer_passes.h"
#include "core/engine/cpu/cpu_memory.h"
#include "core/kv/block_layout.h"
#include "core/plan/memory_plan.h"
#include "core/session/canvas_record.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

namespace kvscope {
namespace {

constexpr int kBlock = 64;   // tokens of a KV block that is no tile
constexpr int kQueries = 64; // that attend together

std::size_t longestOf(const CanvasSetup& setup) {
    return std::size_t(*std::max_element(setup.maxTokens.begin(), setup.maxTokens.end()));
}

std::size_t allOf(const CanvasSetup& setup) {
    return std::size_t(std::accumulate(setup.maxTokens.begin(), setup.maxTokens.end(), 0));
}

int blockTokens(const CanvasOptions& options) { return options.tiles() ? options.tile : kBlock; }

int blocksOf(int tokens, int size) { return (tokens + size - 1) / size; }

/// How many tokens a block attends to when the others are evicted: the kept ones and its own. tokens: of the sequence.
int attendedOf(const CanvasOptions& options, int tokens) {
    return options.keptOf(tokens - options.block) + options.block;
}

BlockLayout layoutOf(const CanvasSetup& setup) {
    const ModelConfig& config = setup.model->config();
    return {blockTokens(setup.options), config.headDim, false, config.storedValueDim()};
}

/// Floats of the kept tokens of all sequences; 0 where nothing is evicted.
std::int64_t keptFloats(const CanvasSetup& setup) {
    if (setup.options.cache != CanvasCache::Evicted) return 0;
    const ModelConfig& c = setup.model->config();
    std::int64_t blocks = 0;
    for (const int tokens : setup.maxTokens) blocks += blocksOf(attendedOf(setup.options, tokens), kBlock);
    return blocks * c.layers * c.kvHeads * std::int64_t(layoutOf(setup).floats());
}

CpuBlockAttention::Shape attentionShapeOf(const CanvasSetup& setup) {
    const ModelConfig& c = setup.model->config();
    return {c.queryHeads, c.kvHeads, c.headDim, c.valueDim(), layoutOf(setup).blockSize, c.attentionScale()};
}

} // namespace

MemoryPlan cpuCanvasMemory(const CanvasSetup& setup) {
    const ModelConfig& c = setup.model->config();
    const std::int64_t number = sizeof(float), rows = std::int64_t(longestOf(setup));
    std::int64_t blocks = 0;
    const auto all = std::int64_t(allOf(setup));
    const int size = blockTokens(setup.options);
    for (const int tokens : setup.maxTokens) blocks += blocksOf(tokens, size);
    MemoryPlan plan;
    const auto add = [&](const char* key, const char* what, Holds holds, std::int64_t bytes) {
        plan.add({key, what, MemoryTier::Host, holds, Lifetime::Session, Per::One, bytes, LayerSet::None});
    };
    add("kv_store", "keys and values", Holds::Kv, blocks * size * c.kvNumbersPerToken() * number);
    if (const std::int64_t floats = keptFloats(setup); floats > 0)
        add("kept_kv", "keys and values of kept tokens", Holds::Kv, floats * number);
    if (setup.options.tiles())
        add("tile_masks", "masks of tiles, and the queries that attend under them", Holds::Index,
            CpuCanvasTiles::bytes(c, setup.options, setup.maxTokens));
    if (setup.options.cache == CanvasCache::Features) {
        add("features", "what layers added to tokens", Holds::Kv,
            CpuCanvasFeatures::bytes(c, setup.options, setup.promptTokens, setup.maxTokens));
        add("computed_rows", "streams of computed tokens", Holds::Scratch, 2 * rows * c.hidden * number);
    }
    add("hidden", "hidden states", Holds::Scratch, all * c.hidden * number);
    add("attention_rows", "queries and outputs in the order of the attention", Holds::Scratch,
        CpuBlockAttention::scratchBytes(attentionShapeOf(setup), rows) + rows * c.queryHeads * number);
    plan.add(cpuActivations(c, Abilities(), rows, std::int64_t(setup.mostWanted), std::max(1, setup.threads)));
    add("rotary_tables", "rotary tables", Holds::Scratch,
        (c.rope.dependsOnLength() ? all : rows) * c.rope.dim * number);
    return plan;
}

namespace {

class CpuCanvas final : public CanvasEngine {
public:
    explicit CpuCanvas(const CanvasSetup& setup)
        : model_(setup.model), config_(model_->config()), promptTokens_(setup.promptTokens),
          maxTokens_(setup.maxTokens), kernels_(makeCpuKernels(setup.threads)),
          rope_(config_.rope, setup.promptTokens, setup.maxTokens), layout_(layoutOf(setup)), options_(setup.options),
          recordsRows_(setup.level != RecordLevel::Counters), clock_(steadyNowNs()),
          x_(allOf(setup) * std::size_t(config_.hidden)), wanted_(setup.mostWanted * std::size_t(config_.hidden)),
          logits_(setup.mostWanted * std::size_t(config_.vocab)),
          passes_(*kernels_, *model_, longestOf(setup), Abilities(), clock_),
          attention_(*kernels_, attentionShapeOf(setup)), sums_(longestOf(setup) * std::size_t(config_.queryHeads)) {
        for (const RowId sequence : idsUpTo<RowId>(int(maxTokens_.size())))
            store_.emplace_back(storeOf(sequence).size() * layout_.floats());
        if (options_.tiles()) tiles_.emplace(*kernels_, config_, options_, setup.promptTokens, maxTokens_);
        if (options_.cache == CanvasCache::Features)
            features_.emplace(*kernels_, config_, options_, setup.promptTokens, maxTokens_, rope_, passes_, clock_);
        if (options_.cache != CanvasCache::Evicted) return;
        for (const RowId sequence : idsUpTo<RowId>(int(maxTokens_.size())))
            for (int layer = 0; layer < config_.layers; ++layer)
                kept_.emplace_back(keptStoreOf(sequence).size() * layout_.floats());
    }

    std::string description() const override { return kernels_->description(); }
    void forward(std::span<const CanvasRow> rows, StepRecord& record) override;
    std::span<const float> logits(int row, int index) const override {
        const Extents<int, int> at(wantedCount_, config_.vocab);
        return {logits_.data() + at.first(firstWanted_[row] + index), at.under(0)};
    }

private:
    /// Where a block of a layer of a sequence lies.
    using BlockAt = std::function<float*(KvHeadId kvHead, BlockId block)>;
    /// The tokens that a layer keeps of a sequence while a block is written.
    struct Kept {
        explicit Kept(std::size_t floats) : store(floats) {}
        AlignedBuffer<float> store;          // [kvHeads, blocks]: the kept tokens, behind them the block
        std::vector<std::int32_t> positions; // ascending
        bool used = false;                   // some forward attended to them
    };
    /// What a KV head's selection in the trace has.
    struct Chosen {
        std::vector<std::int32_t> ids;
        std::uint64_t active = 0;
        float density = 0;
        int kept = -1; // of the ids, those of the forward before; -1: there is none to compare with
    };

    void runLayer(LayerId layer, const CanvasRow& row, float* x, LayerRecord& times);
    void runFeatures(LayerId layer, const CanvasRow& row, float* x, LayerRecord& times);
    void choose(LayerId layer, const CanvasRow& row);
    std::vector<double> importance(const CanvasRow& row);
    void attend(LayerId layer, const CanvasRow& row, LayerRecord& times);
    void attendToKept(LayerId layer, const CanvasRow& row);
    void writeRow(const CanvasRow& row, int first, const BlockAt& blockAt);
    void view(int end, const BlockAt& blockAt);
    void attendToViews(int n);
    bool isDense(LayerId layer, const CanvasRow& row) const;
    void recordHead(LayerId layer, KvHeadId kvHead, const CanvasRow& row, StepRecord& record);
    Chosen chosenBy(LayerId layer, KvHeadId kvHead, const CanvasRow& row) const;
    void recordTiles(LayerId layer, const CanvasRow& row, KvHeadId kvHead, DenoiseLayer& out,
                     DenoiseStep& denoise) const;
    void recordChangesOf(LayerId layer, const CanvasRow& row, DenoiseLayer& out, StepRecord& record) const;
    void keepWanted(const CanvasRow& row, const float* x);
    using StoreExtents = Extents<LayerId, KvHeadId, BlockId>;
    StoreExtents storeOf(RowId sequence) const {
        return StoreExtents(config_.layers, config_.kvHeads, blocksOf(maxTokens_[index(sequence)], layout_.blockSize));
    }
    BlockAt allBlocks(RowId sequence, LayerId layer) {
        return [this, sequence, layer](KvHeadId g, BlockId block) { return blockOf(sequence, layer, g, block); };
    }
    float* blockOf(RowId sequence, LayerId layer, KvHeadId kvHead, BlockId block) {
        return store_[index(sequence)].data() + storeOf(sequence).offset(layer, kvHead, block) * layout_.floats();
    }
    using KeptExtents = Extents<KvHeadId, BlockId>;
    KeptExtents keptStoreOf(RowId sequence) const {
        return KeptExtents(config_.kvHeads, blocksOf(attendedOf(options_, maxTokens_[index(sequence)]), kBlock));
    }
    Kept& keptOf(RowId sequence, LayerId layer) {
        return kept_[Extents<RowId, LayerId>(int(maxTokens_.size()), config_.layers).offset(sequence, layer)];
    }
    float* keptBlock(RowId sequence, LayerId layer, KvHeadId kvHead, BlockId block) {
        return keptOf(sequence, layer).store.data() + keptStoreOf(sequence).offset(kvHead, block) * layout_.floats();
    }

    const std::shared_ptr<const Model> model_;
    const ModelConfig& config_;
    const std::vector<int> promptTokens_, maxTokens_;
    const std::unique_ptr<Kernels> kernels_;
    const RopeTables rope_;
    const BlockLayout layout_;
    const CanvasOptions options_;
    const bool recordsRows_; // densities of rows of tiles, and how much values changed
    StageClock clock_;
    AlignedBuffer<float> x_;      // of all rows, [tokens, hidden]
    AlignedBuffer<float> wanted_; // of all rows, [wanted, hidden]
    AlignedBuffer<float> logits_; // likewise, [wanted, vocab]
    CpuLayerPasses passes_;
    CpuBlockAttention attention_;
    std::optional<CpuCanvasTiles> tiles_;
    std::optional<CpuCanvasFeatures> features_;
    AlignedBuffer<float> sums_;                // [tokens of a row, query heads]; nobody reads them
    std::vector<AlignedBuffer<float>> store_;  // [sequence] [layers, kvHeads, blocks]
    std::vector<Kept> kept_;                   // [sequence, layers]; empty where nothing is evicted
    Numbered<std::vector<KvBlockView>> views_; // [KV head] of the present row and layer
    std::vector<CpuBlockAttention::Work> work_;
    std::vector<float*> rowAt_; // [row] in x_
    Numbered<int> firstWanted_; // [row] among the logits
    int wantedCount_ = 0;
};

void CpuCanvas::forward(std::span<const CanvasRow> rows, StepRecord& record) {
    record.layers.resize(config_.layers);
    clock_.beginStep();
    record.startNs = clock_.stepStartNs();
    firstWanted_.clear();
    wantedCount_ = 0;
    rowAt_.clear();
    const Extents<int, int> hiddenAt(int(x_.size()) / config_.hidden, config_.hidden);
    int tokens = 0;
    for (const CanvasRow& row : rows) {
        rowAt_.push_back(x_.data() + hiddenAt.first(tokens));
        clock_.run(record, StepStage::Embed, [&] { passes_.embed(row.ids, rowAt_.back()); });
        tokens += int(row.ids.size());
    }
    for (const LayerId layer : idsUpTo<LayerId>(config_.layers)) {
        LayerRecord& times = record.layers[index(layer)];
        clock_.beginLayer(times);
        for (std::size_t row = 0; row < rows.size(); ++row) runLayer(layer, rows[row], rowAt_[row], times);
    }
    for (std::size_t row = 0; row < rows.size(); ++row) keepWanted(rows[row], rowAt_[row]);
    clock_.run(record, StepStage::LmHead, [&] {
        if (wantedCount_ > 0) passes_.head(wanted_.data(), wantedCount_, logits_.data());
    });
    for (const LayerId layer : idsUpTo<LayerId>(config_.layers))
        for (const CanvasRow& row : rows) {
            for (const KvHeadId g : idsUpTo<KvHeadId>(config_.kvHeads)) recordHead(layer, g, row, record);
            if (row.keys == CanvasRow::Keys::Kept) keptOf(row.sequence, layer).used = true;
        }
    record.durationNs = clock_.endStep();
}

/// x: the row's tokens.
void CpuCanvas::runLayer(LayerId layer, const CanvasRow& row, float* x, LayerRecord& times) {
    if (row.keys == CanvasRow::Keys::Computed) return runFeatures(layer, row, x, times);
    const int n = int(row.ids.size());
    for (int i = 0; i < n; ++i) passes_.rotateAs(i, rope_, rope_.first(int(row.sequence)) + row.first + i);
    passes_.project(layer, x, n, times);
    if (row.keys == CanvasRow::Keys::AllAndChoose && !tiles_)
        clock_.run(times, Stage::Stage1, [&] { choose(layer, row); });
    if (row.keys == CanvasRow::Keys::Kept)
        clock_.run(times, Stage::Stage2, [&] { attendToKept(layer, row); });
    else
        attend(layer, row, times);
    passes_.finish(layer, x, n, times);
}

/// Runs a layer of which only some tokens are computed (CanvasCache::Features).
void CpuCanvas::runFeatures(LayerId layer, const CanvasRow& row, float* x, LayerRecord& times) {
    const bool first = layer == LayerId{0};
    CpuCanvasFeatures::Pass pass;
    pass.layer = layer, pass.sequence = row.sequence, pass.block = row.block;
    pass.wholePrompt = first || row.wholePrompt, pass.wholeCanvas = first || row.wholeCanvas;
    pass.x = x;
    pass.blockAt = allBlocks(row.sequence, layer);
    pass.attend = [&](int n) {
        view(int(row.ids.size()), pass.blockAt);
        attendToViews(n);
    };
    features_->run(pass, layout_, times);
}

/// Writes the keys and values of the row's tokens to the places from `first` on of a sequence's blocks.
void CpuCanvas::writeRow(const CanvasRow& row, int first, const BlockAt& blockAt) {
    const TokenRows made = passes_.rows();
    const int n = int(row.ids.size());
    const KeyExtents keyAt(n, config_.kvHeads, config_.headDim);
    kernels_->forEach(config_.kvHeads, [&](int i) {
        const KvHeadId g{i};
        for (int token = 0; token < n; ++token) {
            const std::size_t at = keyAt.first(token, g);
            const int place = first + token;
            layout_.write(blockAt(g, layout_.blockOf(place)), layout_.rowOf(place), made.k + at, made.v + at, 0.f);
        }
    });
}

/// Makes `views_` show the places [0, end) of a sequence's blocks.
void CpuCanvas::view(int end, const BlockAt& blockAt) {
    const int size = layout_.blockSize;
    views_.resize(config_.kvHeads);
    for (const KvHeadId g : idsUpTo<KvHeadId>(config_.kvHeads)) {
        std::vector<KvBlockView>& views = views_[index(g)];
        views.clear();
        for (const BlockId block : idsUpTo<BlockId>(blocksOf(end, size)))
            views.push_back(layout_.view(blockAt(g, block), std::min(size, end - int(block) * size)));
    }
}

/// Replaces the keys and values at the row's positions by those of its tokens, makes the masks where the row asks for
/// them, and lets its queries attend to all positions or to the tiles of the masks.
void CpuCanvas::attend(LayerId layer, const CanvasRow& row, LayerRecord& times) {
    const BlockAt blockAt = allBlocks(row.sequence, layer);
    const TokenRows made = passes_.rows();
    const bool masked = row.keys == CanvasRow::Keys::Masked;
    clock_.run(times, masked ? Stage::Stage2 : Stage::Attention, [&] {
        writeRow(row, row.first, blockAt);
        view(maxTokens_[index(row.sequence)], blockAt);
        if (masked)
            tiles_->attend(layer, row.sequence, made.q, views_, made.out, sums_.data());
        else
            attendToViews(int(row.ids.size()));
    });
    if (tiles_ && row.keys == CanvasRow::Keys::AllAndChoose)
        clock_.run(times, Stage::Stage1, [&] { tiles_->make(layer, row.sequence, made.q, views_); });
}

/// Lets the first n queries attend to what `views_` shows.
void CpuCanvas::attendToViews(int n) {
    const TokenRows made = passes_.rows();
    work_.clear();
    const QueryExtents queryAt(n, config_.kvHeads, config_.group(), config_.headDim),
        outAt(n, config_.kvHeads, config_.group(), config_.valueDim());
    const Extents<int, int> sumAt(n, config_.queryHeads);
    for (int from = 0; from < n; from += kQueries)
        for (const KvHeadId g : idsUpTo<KvHeadId>(config_.kvHeads))
            work_.push_back({made.q + queryAt.first(from), g, allTokens(std::min(kQueries, n - from)), views_[index(g)],
                             made.out + outAt.first(from), sums_.data() + sumAt.first(from)});
    attention_.run(work_);
}

/// @return for each token outside the block, ascending, how well it agrees with the block: the mean, over the query
/// heads and the block's tokens, of the products of their queries with the token's key, without a scale. The row has
/// all tokens.
std::vector<double> CpuCanvas::importance(const CanvasRow& row) {
    const TokenRows made = passes_.rows();
    const int n = int(row.ids.size()), group = config_.group(), dim = config_.headDim, end = row.block + options_.block;
    const QueryExtents queryAt(n, config_.kvHeads, group, dim);
    const KeyExtents keyAt(n, config_.kvHeads, dim);
    const Extents<KvHeadId, int> meanAt(config_.kvHeads, dim);
    std::vector<double> query(meanAt.size(), 0.0); // of the group's heads together
    for (int token = row.block; token < end; ++token)
        for (const KvHeadId g : idsUpTo<KvHeadId>(config_.kvHeads))
            for (int h = 0; h < group; ++h)
                for (int c = 0; c < dim; ++c)
                    query[meanAt.offset(g, c)] += double(made.q[queryAt.offset(token, g, h, c)]);
    std::vector<double> values;
    for (int token = 0; token < n; ++token) {
        if (token >= row.block && token < end) continue;
        const float* const key = made.k + keyAt.first(token);
        double sum = 0;
        for (std::size_t at = 0; at < query.size(); ++at) sum += query[at] * double(key[at]);
        values.push_back(sum / (double(config_.queryHeads) * double(options_.block)));
    }
    return values;
}

/// Chooses which tokens outside the block are kept, and copies their keys and values.
void CpuCanvas::choose(LayerId layer, const CanvasRow& row) {
    Kept& kept = keptOf(row.sequence, layer);
    const std::vector<double> values = importance(row);
    kept.positions = keptTokens(values, options_.kernel, options_.keptOf(int(values.size())));
    for (std::int32_t& position : kept.positions)
        if (position >= row.block) position += options_.block;
    kept.used = false;
    const TokenRows made = passes_.rows();
    const KeyExtents keyAt(int(row.ids.size()), config_.kvHeads, config_.headDim);
    kernels_->forEach(config_.kvHeads, [&](int i) {
        const KvHeadId g{i};
        int place = 0;
        for (const std::int32_t position : kept.positions) {
            const std::size_t at = keyAt.first(position, g);
            layout_.write(keptBlock(row.sequence, layer, g, layout_.blockOf(place)), layout_.rowOf(place), made.k + at,
                          made.v + at, 0.f);
            ++place;
        }
    });
}

/// Called for a row that is a block: lets its queries attend to the kept tokens and to the block itself, which lies
/// behind them.
void CpuCanvas::attendToKept(LayerId layer, const CanvasRow& row) {
    const int kept = int(keptOf(row.sequence, layer).positions.size()), n = int(row.ids.size());
    const BlockAt blockAt = [&](KvHeadId g, BlockId block) { return keptBlock(row.sequence, layer, g, block); };
    writeRow(row, kept, blockAt);
    view(kept + n, blockAt);
    attendToViews(n);
}

/// Whether the layer chose nothing: neither what its tokens attended to nor which were computed.
bool CpuCanvas::isDense(LayerId layer, const CanvasRow& row) const {
    if (row.keys == CanvasRow::Keys::Computed)
        return features_->computed(layer, row.sequence).positions.size() == row.ids.size();
    return row.keys != CanvasRow::Keys::Kept && row.keys != CanvasRow::Keys::Masked;
}

/// Adds the KV head's row of the trace to the record, and its selection where something was chosen: tokens that were
/// kept, tiles of the masks, or tokens that were computed.
void CpuCanvas::recordHead(LayerId layer, KvHeadId kvHead, const CanvasRow& row, StepRecord& record) {
    DenoiseLayer out;
    out.layer = int(layer), out.sequence = int(row.sequence), out.kvHead = int(kvHead);
    if (row.keys == CanvasRow::Keys::Computed) recordChangesOf(layer, row, out, record);
    if (isDense(layer, row)) {
        record.denoise.layers.push_back(out);
        return;
    }
    if (row.keys == CanvasRow::Keys::Masked && recordsRows_) recordTiles(layer, row, kvHead, out, record.denoise);
    const Chosen chosen = chosenBy(layer, kvHead, row);
    recordChosen(out, {chosen.ids, chosen.active, chosen.density, chosen.kept}, record);
}

CpuCanvas::Chosen CpuCanvas::chosenBy(LayerId layer, KvHeadId kvHead, const CanvasRow& row) const {
    const int tokens = maxTokens_[index(row.sequence)];
    Chosen chosen;
    chosen.active = allTokens(options_.block);
    if (row.keys == CanvasRow::Keys::Kept) {
        const Kept& kept =
            kept_[Extents<RowId, LayerId>(int(maxTokens_.size()), config_.layers).offset(row.sequence, layer)];
        chosen.ids.assign(kept.positions.begin(), kept.positions.end());
        chosen.density = float(double(chosen.ids.size()) / (tokens - options_.block));
        if (kept.used) chosen.kept = int(chosen.ids.size()); // the kept tokens stay the same until the block is written
    } else if (row.keys == CanvasRow::Keys::Masked) {
        chosen.ids = tiles_->united(layer, row.sequence, kvHead);
        int kept = 0;
        for (const std::int32_t tile : chosen.ids) kept += std::min(options_.tile, tokens - tile * options_.tile);
        chosen.density = float(double(kept) / tokens);
        if (row.maskUsed) chosen.kept = int(chosen.ids.size()); // the masks stay the same to the end of the run
    } else {
        const ComputedTokens& computed = features_->computed(layer, row.sequence);
        chosen.ids = computed.positions;
        chosen.density = float(double(chosen.ids.size()) / tokens);
        chosen.kept = computed.kept;
        chosen.active = computed.among(row.block, options_.block);
    }
    return chosen;
}

/// Records the share of prompt and canvas that each query head keeps for each row of tiles.
void CpuCanvas::recordTiles(LayerId layer, const CanvasRow& row, KvHeadId kvHead, DenoiseLayer& out,
                            DenoiseStep& denoise) const {
    const TileMask& mask = tiles_->mask(layer, row.sequence);
    out.firstRow = std::int64_t(denoise.rowDensities.size());
    out.rows = config_.group() * mask.rows();
    const int first = int(kvHead) * config_.group(); // of the group's query heads
    for (int head = first; head < first + config_.group(); ++head)
        for (int tileRow = 0; tileRow < mask.rows(); ++tileRow)
            denoise.rowDensities.push_back(mask.density(head, tileRow));
}

/// Records how much the values of the block's tokens changed, once for all KV heads.
void CpuCanvas::recordChangesOf(LayerId layer, const CanvasRow& row, DenoiseLayer& out, StepRecord& record) const {
    const auto changes = features_->changes(layer, row.sequence);
    if (changes.empty() || !recordsRows_ || out.kvHead > 0) return;
    recordChanges(
        changes.subspan(std::size_t(row.block - promptTokens_[index(row.sequence)]), std::size_t(options_.block)), out,
        record);
}

void CpuCanvas::keepWanted(const CanvasRow& row, const float* x) {
    const int wanted = int(row.wanted.size());
    const Extents<int, int> from(int(row.ids.size()), config_.hidden), to(wantedCount_ + wanted, config_.hidden);
    firstWanted_.push_back(wantedCount_);
    for (const std::int32_t position : row.wanted)
        std::copy_n(x + from.first(position - row.first), from.under(0), wanted_.data() + to.first(wantedCount_++));
}

} // namespace

std::unique_ptr<CanvasEngine> makeCpuCanvas(const CanvasSetup& setup) {
    refuseTooLarge(cpuCanvasMemory(setup));
    return std::make_unique<CpuCanvas>(setup);
}

} // namespace kvscope
