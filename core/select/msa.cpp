// MiniMax sparse attention (MiniMax-M3): an indexer with a small key for each token scores blocks by their best key,
// and each KV head attends to the best blocks, in prompts as in decode steps.
//   transformers 5.17, models/minimax_m3_vl
#include "core/select/common_parameters.h"
#include "core/select/indexed_blocks.h"
#include "core/select/memory_sizes.h"
#include "core/select/prompt_attention.h"
#include "core/select/token_choice.h"

#include "base/error.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope {
namespace {

constexpr int kQueriesAtOnce = 8; // queries of a prompt, whose blocks are attended in one call
constexpr int kPieceTokens = 512; // prompt tokens that the engine gives in one piece at most

class Msa final : public Selector {
public:
    explicit Msa(const SelectorContext& context)
        : context_(context), index_(context_), full_(context_), itemAt_(kQueriesAtOnce, context.shape.kvHeads),
          steps_(itemAt_.size()), views_(itemAt_.size()) {}

    void attendPrompt(const PromptPiece& piece) override;
    void append(std::span<HeadStep> heads) override;
    void score(std::span<HeadStep> heads) override;
    void choose(std::span<HeadStep> heads) override;

private:
    void attendQueries(const PromptPiece& piece, int first, int count);

    const SelectorContext context_;
    select::IndexedBlocks index_;
    select::PromptAttention full_;
    // [query, KV head] of the queries of a prompt that attend together
    const Extents<int, KvHeadId> itemAt_;
    std::vector<HeadStep> steps_;
    std::vector<std::vector<KvBlockView>> views_;
};

void Msa::attendPrompt(const PromptPiece& piece) {
    index_.append(piece.layer, piece.sequence, piece.first, piece.n, piece.rows.input);
    // A query before this position sees no more blocks than it may choose.
    const int sparseFrom = context_.spec.budgetBlocks() * context_.spec.blockSize;
    if (piece.first + piece.n <= sparseFrom) {
        context_.kernels.prefillAttention(full_.of(piece));
        return;
    }
    index_.ask(piece.layer, piece.sequence, piece.first, piece.n, piece.rows.input);
    for (int first = 0; first < piece.n; first += kQueriesAtOnce)
        attendQueries(piece, first, std::min(kQueriesAtOnce, piece.n - first));
}

/// Attends with `count` queries of the piece, from its row `first` on.
void Msa::attendQueries(const PromptPiece& piece, int first, int count) {
    const QueryExtents queryAt = context_.queries(piece.n), outAt = context_.outputs(piece.n);
    const int size = context_.spec.blockSize;
    std::vector<AttentionItem> items;
    for (int i = 0; i < count; ++i) {
        const int row = first + i, position = piece.first + row;
        index_.multiply(row, position + 1);
        context_.forEachKvHead([&](KvHeadId g) {
            const std::size_t at = itemAt_.offset(i, g);
            HeadStep& step = steps_[at];
            step.position = position;
            index_.score(g, step.queryAware);
            chooseBlocks(context_.spec, step);
            select::storeViews(context_, piece.layer, piece.sequence, g, {0, position + 1}, views_[at]);
            for (std::size_t b = 0; b < step.wanted.size(); ++b) // ascending: no view is read after it was written
                views_[at][b] = views_[at][std::size_t(step.wanted[b])];
            views_[at].resize(step.wanted.size());
        });
        for (const KvHeadId g : context_.kvHeads()) {
            const std::vector<KvBlockView>& views = views_[itemAt_.offset(i, g)];
            items.push_back({piece.rows.q + queryAt.first(row, g), views.data(), std::int32_t(views.size()),
                             piece.rows.out + outAt.first(row, g), nullptr});
        }
    }
    const KvShape& shape = context_.shape;
    context_.kernels.blockAttention({context_.group(), shape.dim, size, shape.dim, shape.valueDim, context_.rules.scale,
                                     context_.spec.bias.scale, items, shape.valueDim});
}

void Msa::append(std::span<HeadStep> heads) {
    for (const HeadStep& item : heads) // the heads of a sequence share the keys
        if (item.kvHead == KvHeadId{0} && index_.runsIn(item.layer))
            index_.append(item.layer, item.sequence, item.position, 1, item.rows.input);
}

void Msa::score(std::span<HeadStep> heads) {
    for (std::size_t begin = 0; begin < heads.size();) {
        const HeadStep& one = heads[begin];
        std::size_t end = begin + 1;
        while (end < heads.size() && heads[end].sequence == one.sequence) ++end;
        index_.ask(one.layer, one.sequence, one.position, 1, one.rows.input);
        index_.multiply(0, one.position + 1);
        forEachItem(context_.kernels, heads.subspan(begin, end - begin),
                    [&](HeadStep& item) { index_.score(item.kvHead, item.queryAware); });
        begin = end;
    }
}

void Msa::choose(std::span<HeadStep> heads) {
    forEachItem(context_.kernels, heads, [&](HeadStep& item) {
        if (!item.dense) chooseBlocks(context_.spec, item);
    });
}

std::vector<Parameter> msaParameters() {
    Parameter block = select::blockSize();
    block.defaultValue = "128";
    return {block,
            {"index_topk_blocks",
             ParameterType::Integer,
             "16",
             1,
             65536,
             "blocks",
             "Blocks each query attends, the forced ones among them; a checkpoint states how many it was trained with.",
             {}},
            {"index_local_blocks",
             ParameterType::Integer,
             "1",
             1,
             65536,
             "blocks",
             "Newest blocks, which every query attends.",
             {}}};
}

std::vector<MemoryNeed> msaMemory(const MethodUse& use, ContextLength length) {
    if (!use.config.blockIndexer) return {}; // a shape without weights
    const select::Sizes s(use, length);
    // On the CPU keys are float32, on a GPU bf16 for whole blocks.
    const std::int64_t bytes = s.gpu ? select::IndexedBlocks::keyBytes(use.config, s.blocks * use.spec.blockSize) / 2
                                     : select::IndexedBlocks::keyBytes(use.config, s.tokens);
    MemoryNeed keys = select::indexOf("index_keys", "the indexer's keys", Per::Row, bytes);
    keys.layers = LayerSet::None; // keyBytes counts all layers that have an indexer
    if (s.gpu) return {keys};
    const std::int64_t rows = std::min(length.prompt, kPieceTokens);
    return {keys,
            select::scratchOf("index_queries", "the indexer's queries", Lifetime::Session, Per::One,
                              select::IndexedBlocks::scratchBytes(use.config, rows, s.tokens)),
            select::scratchOf("prompt_blocks", "chosen blocks of the prompt", Lifetime::Session, Per::One,
                              kQueriesAtOnce * use.config.kvHeads * s.blocks *
                                  std::int64_t(sizeof(KvBlockView) + sizeof(SelectedBlock) + 3 * sizeof(float)))};
}

} // namespace

MethodEntry msaMethod() {
    MethodEntry entry;
    entry.name = "msa";
    entry.title = "MiniMax sparse attention";
    entry.source = "MiniMax-M3";
    entry.needs = "a block indexer (self_attn.index_q_proj and the like, in checkpoints of MiniMax-M3)";
    entry.hasIndexer = [](const ModelConfig& config) { return config.blockIndexer.has_value(); };
    entry.summary = "A trained indexer with a small key of its own for each token scores blocks by their best key, and "
                    "each KV head "
                    "attends to the best blocks and the newest ones, in prompts too. Layers without an indexer attend "
                    "to everything.";
    entry.parameters = msaParameters();
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        SelectionSpec spec = select::commonSpec(values, config);
        const int blocks = values.integer("index_topk_blocks"), local = values.integer("index_local_blocks");
        if (local > blocks)
            throw Error(ErrorKind::BadInput,
                        fmt::format("index_local_blocks {} is more than index_topk_blocks {}", local, blocks),
                        "raise index_topk_blocks or lower index_local_blocks");
        spec.budget = {
            .sink = 0, .window = local, .windowAddsCurrent = false, .queryAware = blocks - local, .queryAgnostic = 0};
        spec.denseWithoutIndexer = spec.sparsePrefill = true;
        if (config.blockIndexer) {
            const std::vector<bool>& layers = config.blockIndexer->layers;
            spec.denseLayers = int(std::find(layers.begin(), layers.end(), true) - layers.begin());
        }
        return spec;
    };
    entry.makeSelector = [](const ParameterValues&, const SelectorContext& context) -> std::unique_ptr<Selector> {
        return std::make_unique<Msa>(context);
    };
    entry.onDevice = KVSCOPE_ON_DEVICE(msaOnDevice);
    entry.abilities = [](const MethodUse& use) {
        Abilities a = select::usualAbilities(use.backend);
        a.input = a.scores = a.promptAttention = true;
        a.latent = a.pastWindow = false; // models with a block indexer have neither
        a.quantisedKv = use.backend == Backend::Cpu;
        return a;
    };
    entry.memory = msaMemory;
    return entry;
}

} // namespace kvscope
