// Block diffusion on the CPU backend: prompts by whole blocks, then forwards through CpuDenoiseStages.
#include "core/engine/cpu/cpu_denoise_stages.h"
#include "core/engine/cpu/cpu_memory.h"
#include "core/engine/cpu/cpu_prompt_reader.h"

#include "core/cache/cache_policy.h"
#include "core/diffusion/locality.h"
#include "core/engine/cpu/prompt_lengths.h"
#include "core/kv/block_index.h"
#include "core/plan/kv_format.h"

#include <algorithm>

namespace kvscope {
namespace {

LayerPlans plansOf(const DenoiseSetup& setup) {
    return {setup.model->config().layers, setup.spec, {.offload = setup.slots > 0}};
}

KvCacheOptions cacheOptionsOf(const DenoiseSetup& setup) {
    const ModelConfig& config = setup.model->config();
    KvCacheOptions options;
    options.shape = {config.layers, config.kvHeads, config.headDim, config.valueDim()};
    options.layout = {setup.spec.blockSize, config.headDim, false, config.storedValueDim()};
    options.maxTokens = setup.maxTokens;
    options.slots = setup.slots;
    options.plans = plansOf(setup);
    return options;
}

/// Tokens of a prompt that go through a layer together: whole blocks.
int pieceTokens(int block) { return kPromptPieceTokens / block * block; }

/// Tokens that go through a layer together: a forward's, or a piece of a prompt.
std::size_t mostRows(const DenoiseSetup& setup) {
    return std::max(setup.prompts.size() * std::size_t(setup.options.block),
                    std::size_t(pieceTokens(setup.options.block)));
}

CpuBlockAttention::Shape attentionShapeOf(const DenoiseSetup& setup) {
    const ModelConfig& c = setup.model->config();
    return {c.queryHeads, c.kvHeads, c.headDim, c.valueDim(), setup.spec.blockSize, c.attentionScale()};
}

/// What every forward keeps or works with beyond activations: of one layer at a time, but for `block_memory` and
/// `block_changes`. longest: most positions of a sequence.
std::vector<MemoryNeed> blockNeeds(const DenoiseSetup& setup, std::int64_t longest) {
    const ModelConfig& c = setup.model->config();
    const std::int64_t number = sizeof(float), queries = std::int64_t(c.queryHeads) * c.headDim,
                       values = std::int64_t(c.queryHeads) * c.valueDim(),
                       tokens = std::int64_t(setup.prompts.size()) * setup.options.block, size = setup.spec.blockSize,
                       pages = (longest + size - 1) / size, heads = std::int64_t(setup.prompts.size()) * c.kvHeads;
    const BlockLayout layout = cacheOptionsOf(setup).layout;
    std::vector<MemoryNeed> needs;
    const auto add = [&](const char* key, const char* what, std::int64_t bytes) {
        needs.push_back(
            {key, what, MemoryTier::Host, Holds::Scratch, Lifetime::Session, Per::One, bytes, LayerSet::None});
    };
    add("block_memory", "queries and outputs of the blocks",
        tokens * c.layers * (queries + values + c.queryHeads) * number);
    if (CpuDenoiseStages::recordsKv(setup))
        add("block_changes", "keys and values of the blocks' forwards before", tokens * c.kvNumbersPerToken() * number);
    add("own_blocks", "keys and values of the blocks",
        heads * ((setup.options.block + size - 1) / size) * layout.bytes());
    add("own_attention", "attention within the blocks", tokens * (values + c.queryHeads) * number);
    const std::int64_t piece = pieceTokens(setup.options.block);
    add("attention_rows", "queries and outputs in the order of the attention",
        CpuBlockAttention::scratchBytes(attentionShapeOf(setup), tokens) +
            CpuBlockAttention::scratchBytes(attentionShapeOf(setup), piece) + piece * c.queryHeads * number);
    add("views", "lists of what is attended to",
        std::int64_t(sizeof(KvBlockView)) * pages * (heads + piece / setup.options.block * c.kvHeads));
    if (!setup.options.pages || setup.options.tiles) return needs;
    add("page_scores", "scores of pages",
        tokens * c.queryHeads * (pages * number + std::int64_t(sizeof(RangeBoundItem))));
    add("page_lists", "chosen pages", heads * pages * (std::int64_t(sizeof(std::int32_t)) + 2));
    if (setup.options.agnosticPages > 0) add("agnostic_pages", "pages chosen once a block", heads * c.layers * pages);
    return needs;
}

} // namespace

MemoryPlan cpuDenoiserMemory(const DenoiseSetup& setup) {
    const ModelConfig& c = setup.model->config();
    const std::int64_t number = sizeof(float), rows = std::int64_t(mostRows(setup)),
                       tokens = std::int64_t(setup.prompts.size()) * setup.options.block;
    MemoryPlan plan(c, plansOf(setup));
    std::int64_t longest = 0, all = 0, longestPrompt = 0, index = 0, masks = 0;
    for (std::size_t s = 0; s < setup.prompts.size(); ++s) {
        longest = std::max<std::int64_t>(longest, setup.maxTokens[s]);
        longestPrompt = std::max<std::int64_t>(longestPrompt, std::int64_t(setup.prompts[s].size()));
        all += setup.maxTokens[s];
        if (setup.options.tiles)
            masks += std::int64_t(setup.spec.grid.blocks(setup.maxTokens[s])) * CpuTiles::rowsOf(setup.options) *
                     c.layers * c.queryHeads;
        else if (setup.options.pages)
            index += std::int64_t(setup.spec.grid.blocks(setup.maxTokens[s])) * 2 * c.headDim * number * c.layers *
                     c.kvHeads;
    }
    const auto add = [&](const char* key, const char* what, Holds holds, Lifetime life, std::int64_t bytes) {
        plan.add({key, what, MemoryTier::Host, holds, life, Per::One, bytes, LayerSet::None});
    };
    add("kv_store", "KV blocks", Holds::Kv, Lifetime::Session, KvCache::storeBytes(cacheOptionsOf(setup)));
    if (setup.slots > 0)
        add("kv_slots", "device slots", Holds::Kv, Lifetime::Session, KvCache::poolBytes(cacheOptionsOf(setup)));
    add("block_index", "key ranges", Holds::Index, Lifetime::Session, index);
    add("tile_masks", "masks of tiles", Holds::Index, Lifetime::Session, masks);
    plan.add(blockNeeds(setup, longest));
    plan.add(cpuActivations(c, Abilities(), rows, tokens, std::max(1, setup.threads)));
    add("prompt_stream", "a prompt's residual stream", Holds::Scratch, Lifetime::Prompt,
        longestPrompt * c.hidden * number);
    add("rotary_tables", "rotary tables", Holds::Scratch, Lifetime::Session,
        (c.rope.dependsOnLength() ? all : longest) * c.rope.dim * number);
    return plan;
}

namespace {

class CpuDenoiser final : public DenoiseEngine {
public:
    explicit CpuDenoiser(const DenoiseSetup& setup)
        : model_(setup.model), prompts_(setup.prompts), block_(setup.options.block),
          kernels_(makeCpuKernels(setup.threads)),
          rope_(model_->config().rope, lengthsOf(setup.prompts), setup.maxTokens),
          cache_(cacheOptionsOf(setup), setup.spec, findCachePolicy(setup.cachePolicy)), clock_(steadyNowNs()),
          x_(Extents<int, int, int>(int(setup.prompts.size()), block_, model_->config().hidden).size()),
          logits_(Extents<int, int, int>(int(setup.prompts.size()), block_, model_->config().vocab).size()),
          passes_(*kernels_, *model_, mostRows(setup), Abilities(), clock_),
          stages_(setup, *kernels_, cache_, rope_, passes_, clock_, {x_.data(), logits_.data()}),
          promptAttention_(*kernels_, attentionShapeOf(setup)) {}

    std::string description() const override { return kernels_->description(); }
    void prefill(StepRecord& record, const Progress& progress, const std::stop_token& stop) override;
    void forward(std::span<const DenoiseRow> rows, StepRecord& record) override;
    std::span<const float> logits(int row, int token) const override { return stages_.logits(row, token); }

private:
    struct Read { // how far the prompts are
        std::int64_t done = 0, all = 0;
    };
    int promptTokens(RowId sequence) const { return int(prompts_[index(sequence)].size()) / block_ * block_; }
    void readPrompt(RowId sequence, StepRecord& record, Read& read, const Progress& progress,
                    const std::stop_token& stop);
    void readPiece(RowId sequence, LayerId layer, int first, int n, float* x, LayerRecord& record);

    const std::shared_ptr<const Model> model_;
    const std::vector<std::vector<std::int32_t>>& prompts_;
    const int block_;
    const std::unique_ptr<Kernels> kernels_;
    const RopeTables rope_;
    KvCache cache_;
    StageClock clock_;
    AlignedBuffer<float> x_, logits_; // of a forward: [rows * block, hidden], [rows * block, vocab]
    CpuLayerPasses passes_;
    CpuDenoiseStages stages_;
    CpuBlockAttention promptAttention_;
    std::vector<std::vector<KvBlockView>> views_; // of a piece: [diffusion block, KV head]
    std::vector<CpuBlockAttention::Work> work_;
    std::vector<float> sums_; // of a piece: [tokens, query heads]; nobody reads them
};

void CpuDenoiser::prefill(StepRecord& record, const Progress& progress, const std::stop_token& stop) {
    const int layers = model_->config().layers;
    record.layers.resize(layers);
    clock_.beginStep();
    record.startNs = clock_.stepStartNs();
    // also in a step in which no prompt fills a block
    for (LayerRecord& layer : record.layers) clock_.beginLayer(layer);
    Read read;
    const auto sequences = idsUpTo<RowId>(int(prompts_.size()));
    for (const RowId sequence : sequences) read.all += std::int64_t(promptTokens(sequence)) * layers;
    for (const RowId sequence : sequences) readPrompt(sequence, record, read, progress, stop);
    record.durationNs = clock_.endStep();
}

/// Reads a prompt layer by layer, and in each layer piece by piece.
void CpuDenoiser::readPrompt(RowId sequence, StepRecord& record, Read& read, const Progress& progress,
                             const std::stop_token& stop) {
    const int tokens = promptTokens(sequence);
    if (tokens == 0) return;
    const Extents<int, int> streamAt(tokens, model_->config().hidden);
    AlignedBuffer<float> x(streamAt.size());
    clock_.run(record, StepStage::Embed,
               [&] { passes_.embed(std::span(prompts_[index(sequence)]).first(std::size_t(tokens)), x.data()); });
    for (const LayerId layer : idsUpTo<LayerId>(model_->config().layers)) {
        if (sequence == RowId{0}) clock_.beginLayer(record.layers[index(layer)]);
        for (int first = 0; first < tokens; first += pieceTokens(block_)) {
            throwIfCancelled(stop);
            report(progress, double(read.done) / double(read.all), "reading the prompt");
            const int n = std::min(pieceTokens(block_), tokens - first);
            readPiece(sequence, layer, first, n, x.data() + streamAt.first(first), record.layers[index(layer)]);
            read.done += n;
        }
    }
}

/// Reads the tokens [first, first + n) of a prompt in one layer. Every token sees its own block and the blocks before
/// it.
void CpuDenoiser::readPiece(RowId sequence, LayerId layer, int first, int n, float* x, LayerRecord& record) {
    const ModelConfig& config = model_->config();
    for (int i = 0; i < n; ++i) passes_.rotateAs(i, rope_, rope_.first(int(sequence)) + first + i);
    passes_.project(layer, x, n, record);
    const TokenRows rows = passes_.rows();
    clock_.run(record, Stage::Offloading, [&] {
        stages_.keep(layer, sequence, first, n, rows.k, rows.v);
        stages_.accountStored(record);
    });
    clock_.run(record, Stage::Attention, [&] {
        const QueryExtents queryAt(n, config.kvHeads, config.group(), config.headDim),
            outAt(n, config.kvHeads, config.group(), config.valueDim());
        const Extents<int, int> sumAt(n, config.queryHeads);
        const Extents<int, KvHeadId> viewsAt(n / block_, config.kvHeads);
        if (views_.size() < viewsAt.size()) views_.resize(viewsAt.size());
        sums_.resize(sumAt.size());
        work_.clear();
        for (int from = 0; from < n; from += block_)
            for (const KvHeadId g : idsUpTo<KvHeadId>(config.kvHeads)) {
                std::vector<KvBlockView>& views = views_[viewsAt.offset(from / block_, g)];
                stages_.viewPrefix(layer, sequence, g, first + from + block_, views);
                work_.push_back({rows.q + queryAt.first(from), g, allTokens(block_), views,
                                 rows.out + outAt.first(from), sums_.data() + sumAt.first(from)});
            }
        promptAttention_.run(work_);
    });
    passes_.finish(layer, x, n, record);
}

void CpuDenoiser::forward(std::span<const DenoiseRow> rows, StepRecord& record) {
    record.layers.resize(model_->config().layers);
    clock_.beginStep();
    record.startNs = clock_.stepStartNs();
    stages_.begin(rows, record);
    runStep(stages_, model_->config().layers);
    record.durationNs = clock_.endStep();
}

} // namespace

std::unique_ptr<DenoiseEngine> makeCpuDenoiser(const DenoiseSetup& setup) {
    refuseTooLarge(cpuDenoiserMemory(setup));
    return std::make_unique<CpuDenoiser>(setup);
}

} // namespace kvscope
