// DeepSeek sparse attention: a lightning indexer scores every cached token with a small key of the token's own, and all
// heads of a layer attend to the best ones, in prompts as in decode steps. Layers may share a choice (GLM-5).
//   DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models (DeepSeek-AI, 2025)
#include "core/select/common_parameters.h"
#include "core/select/lightning_index.h"
#include "core/select/memory_sizes.h"
#include "core/select/prompt_attention.h"
#include "core/select/token_choice.h"
#include "core/select/token_slots.h"

#include "base/aligned_buffer.h"
#include "base/error.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope {
namespace {

using select::TokenRange;

constexpr int kAttendedTogether = 8; // queries of a prompt whose chosen tokens are packed and attended in one call
constexpr int kScoredPiece = 512;    // prompt tokens that the engine gives in one piece at most

/// Latent attention has one KV head.
constexpr KvHeadId kOnlyHead{0};

class Dsa final : public Selector {
public:
    Dsa(const SelectorContext& context, const ParameterValues& values);

    void attendPrompt(const PromptPiece& piece) override;
    void promptDone(LayerId layer, RowId sequence, int tokens, std::vector<PrefetchRequest>&) override;
    void append(std::span<HeadStep> heads) override;
    void score(std::span<HeadStep> heads) override;
    void choose(std::span<HeadStep> heads) override;
    Loads load(std::span<HeadStep> heads) override;
    std::int64_t storedBytes(LayerId, int tokens) const override {
        return context_.offload ? tokens * select::tokenBytes(context_.cache.layout()) : 0;
    }

private:
    /// The tokens that a query attends to, and their scores.
    struct Choice {
        std::vector<std::int32_t> tokens;
        std::vector<float> scores;
    };
    bool isShared(LayerId layer) const { // the next layer attends to what this one chose
        return int(layer) + 1 < context_.shape.layers && !index_.runsIn(next(layer));
    }
    void choosePrompt(const PromptPiece& piece, int position, std::vector<std::int32_t>& tokens);
    void attendQueries(const PromptPiece& piece, int first, int count);
    std::span<std::int32_t> keptOf(RowId sequence, int position);

    const SelectorContext context_;
    select::LightningIndex index_;
    const int budget_;
    select::PromptAttention full_;
    PerRow<Choice> chosen_; // of the present step's last layer with an indexer
    // [query, budget] of each sequence: what the last layer with an indexer chose for the prompt's queries, if the
    // layers after it share that choice; of the queries that see more tokens than the budget.
    PerRow<std::vector<std::int32_t>> promptChosen_;
    const Extents<RowId, LayerId> layerAt_;
    std::vector<std::vector<std::int32_t>> lastChosen_; // [sequence, layer], of a prompt's last token
    std::vector<select::TokenSlots> slots_;             // [sequence, layer]; none without offloading
    // [query] of the queries of a prompt that attend together
    Numbered<std::vector<std::int32_t>> tokens_;
    Numbered<AlignedBuffer<float>> packed_;
    Numbered<std::vector<KvBlockView>> views_;
    std::vector<float> scores_;
    std::vector<std::int32_t> order_;
};

Dsa::Dsa(const SelectorContext& context, const ParameterValues& values)
    : context_(context), index_(context_), budget_(values.integer("index_topk")), full_(context_),
      chosen_(context.sequences()), promptChosen_(chosen_.size()), layerAt_(context.sequences(), context.shape.layers),
      lastChosen_(layerAt_.size()), tokens_(kAttendedTogether), packed_(kAttendedTogether), views_(kAttendedTogether) {
    if (!context.offload) return;
    const int wanted = values.integer("device_tokens");
    for (const RowId sequence : idsUpTo<RowId>(context.sequences()))
        for (int layer = 0; layer < context.shape.layers; ++layer) {
            const int most = context.maxTokensOf(sequence);
            slots_.emplace_back(std::min(wanted > 0 ? wanted : 2 * budget_, most + 1), most);
        }
}

/// @return where promptChosen_ has the tokens that a prompt's query at `position` attends to; the query sees more
/// tokens than the budget
std::span<std::int32_t> Dsa::keptOf(RowId sequence, int position) {
    return std::span(promptChosen_[sequence]).subspan(Elements(position - budget_, budget_), Elements(budget_));
}

/// Lists the tokens that the query at `position` attends to: the best ones by the layer's indexer or, in a layer
/// without one, those that the layer before chose.
void Dsa::choosePrompt(const PromptPiece& piece, int position, std::vector<std::int32_t>& tokens) {
    if (!index_.runsIn(piece.layer)) {
        const std::span<const std::int32_t> kept = keptOf(piece.sequence, position);
        tokens.assign(kept.begin(), kept.end());
        return;
    }
    const TokenRange visible{0, position + 1};
    index_.score(position - piece.first, visible.end, scores_);
    select::bestTokens({&visible, 1}, scores_, budget_, order_, tokens);
    if (isShared(piece.layer)) std::copy(tokens.begin(), tokens.end(), keptOf(piece.sequence, position).begin());
}

void Dsa::attendPrompt(const PromptPiece& piece) {
    if (index_.runsIn(piece.layer)) {
        index_.append(piece.layer, piece.sequence, piece.first, piece.n, piece.rows.input);
        index_.ask(piece.layer, piece.sequence, piece.first, piece.n, piece.rows.input, piece.rows.queryLatent);
        if (isShared(piece.layer) && piece.promptTokens > budget_)
            promptChosen_[piece.sequence].resize(Elements(piece.promptTokens - budget_, budget_));
    }
    if (piece.first + piece.n <= budget_) // every query sees at most as many tokens as it may choose
        context_.kernels.prefillAttention(full_.of(piece));
    else
        for (int first = 0; first < piece.n; first += kAttendedTogether)
            attendQueries(piece, first, std::min(kAttendedTogether, piece.n - first));
}

/// Attends with `count` queries of the piece, from its row `first` on.
void Dsa::attendQueries(const PromptPiece& piece, int first, int count) {
    const QueryExtents queryAt = context_.queries(piece.n), outAt = context_.outputs(piece.n);
    for (int i = 0; i < count; ++i) {
        const int position = piece.first + first + i;
        if (position >= budget_) choosePrompt(piece, position, tokens_[i]);
    }
    context_.kernels.forEach(count, [&](int i) {
        const int position = piece.first + first + i;
        if (position < budget_)
            select::storeViews(context_, piece.layer, piece.sequence, kOnlyHead, {0, position + 1}, views_[i]);
        else
            select::packStored(context_, piece.layer, piece.sequence, kOnlyHead, tokens_[i], packed_[i], views_[i]);
    });
    std::vector<AttentionItem> items;
    for (int i = 0; i < count; ++i) {
        const std::vector<KvBlockView>& views = views_[i];
        items.push_back({piece.rows.q + queryAt.first(first + i), views.data(), std::int32_t(views.size()),
                         piece.rows.out + outAt.first(first + i), nullptr});
    }
    const KvShape& shape = context_.shape;
    context_.kernels.blockAttention({context_.group(), shape.dim, context_.spec.blockSize, shape.dim, shape.valueDim,
                                     context_.rules.scale, context_.spec.bias.scale, items, shape.valueDim});
    if (piece.first + first + count == piece.promptTokens && piece.promptTokens > budget_)
        lastChosen_[layerAt_.offset(piece.sequence, piece.layer)] = tokens_[count - 1];
}

/// Fills the device buffer with the tokens that the prompt's last token chose.
void Dsa::promptDone(LayerId layer, RowId sequence, int tokens, std::vector<PrefetchRequest>&) {
    const std::size_t at = layerAt_.offset(sequence, layer);
    if (!slots_.empty()) {
        std::vector<std::int32_t>& last = lastChosen_[at];
        if (last.empty())
            for (int token = 0; token < tokens; ++token) last.push_back(token);
        std::vector<std::uint8_t> hit(last.size());
        slots_[at].admit(last, tokens - 1, hit);
    }
    lastChosen_[at] = {};
    if (!isShared(layer)) promptChosen_[sequence] = {};
}

void Dsa::append(std::span<HeadStep> heads) {
    for (const HeadStep& item : heads)
        if (index_.runsIn(item.layer)) index_.append(item.layer, item.sequence, item.position, 1, item.rows.input);
}

void Dsa::score(std::span<HeadStep> heads) {
    for (HeadStep& item : heads) {
        if (!index_.runsIn(item.layer)) continue;
        index_.ask(item.layer, item.sequence, item.position, 1, item.rows.input, item.rows.queryLatent);
        index_.score(0, item.position + 1, item.queryAware);
    }
}

void Dsa::choose(std::span<HeadStep> heads) {
    forEachItem(context_.kernels, heads, [&](HeadStep& item) {
        Choice& choice = chosen_[item.sequence];
        if (index_.runsIn(item.layer)) {
            const TokenRange visible{0, item.position + 1};
            select::bestTokens({&visible, 1}, item.queryAware, budget_, item.order, choice.tokens);
            choice.scores.clear();
            for (const std::int32_t token : choice.tokens) choice.scores.push_back(item.queryAware[token]);
        }
        item.tokens = choice.tokens;
        select::chooseTokens(item, choice.scores, Origin::TokenLevel, item.position + 1);
    });
}

/// Counts the chosen tokens that are not in the device buffer: their keys and values come from the host. The tokens
/// that were chosen least recently make room for them.
Selector::Loads Dsa::load(std::span<HeadStep> heads) {
    Loads loads;
    if (slots_.empty()) return loads;
    const std::int64_t bytes = select::tokenBytes(context_.cache.layout());
    for (HeadStep& item : heads) {
        loads.units +=
            slots_[layerAt_.offset(item.sequence, item.layer)].admit(item.tokens, item.position, item.loads.hit);
        loads.storedBytes += bytes;
    }
    loads.bytes = loads.units * bytes;
    return loads;
}

std::vector<Parameter> dsaParameters() {
    return {select::blockSize(),
            {"index_topk",
             ParameterType::Integer,
             "2048",
             1,
             1 << 24,
             "tokens",
             "Tokens each query attends; a checkpoint states how many it was trained with.",
             {}},
            Parameter{"device_tokens",
                      ParameterType::Integer,
                      "0",
                      0,
                      1 << 24,
                      "tokens",
                      "Tokens of each layer that the device keeps, the least recently chosen ones leave; more than "
                      "index_topk. 0: twice index_topk.",
                      {}}
                .within(ParameterScope::Offloading)};
}

/// On a GPU: the indexer's keys as bf16 for whole blocks, every token's key, and the tokens that the device keeps.
std::vector<MemoryNeed> dsaMemoryOnGpu(const MethodUse& use, ContextLength length) {
    const select::Sizes s(use, length);
    const int topk = use.values.integer("index_topk"), stated = use.values.integer("device_tokens");
    const std::int64_t slots = s.atMost(stated > 0 ? stated : 2 * topk);
    std::vector<MemoryNeed> needs{select::storeOf("token_store", use, s.blocks * s.format.blockBytes())};
    if (use.config.indexer) {
        MemoryNeed keys =
            select::indexOf("index_keys", "the indexer's keys", Per::Row,
                            select::LightningIndex::keyBytes(use.config, s.blocks * use.spec.blockSize) / 2);
        keys.layers = LayerSet::None; // keyBytes counts all layers that have an indexer
        needs.push_back(keys);
    }
    if (!use.offload) return needs;
    constexpr std::int64_t kCounts = 2; // of a layer's admissions, and of slots that have held a token
    needs.push_back(
        select::asLongest(s, select::indexOf("token_slots", "lists of the device's tokens", Per::KvHead,
                                             (s.tokens + 2 * slots + kCounts) * std::int64_t(sizeof(std::int32_t)))));
    needs.push_back(select::asLongest(
        s, select::kvOf("device_tokens", "chosen tokens", MemoryTier::Device, slots * s.dim * s.number)));
    return needs;
}

std::vector<MemoryNeed> dsaMemory(const MethodUse& use, ContextLength length) {
    if (use.backend == Backend::Cuda) return dsaMemoryOnGpu(use, length);
    const ModelConfig& config = use.config;
    const select::Sizes s(use, length);
    const int topk = use.values.integer("index_topk"), stated = use.values.integer("device_tokens");
    const std::int64_t budget = s.atMost(topk),
                       slots = std::min<std::int64_t>(stated > 0 ? stated : 2 * topk, s.tokens);
    std::vector<MemoryNeed> needs;
    if (use.offload)
        needs.push_back(select::indexOf("token_slots", "lists of the device's tokens", Per::KvHead,
                                        select::TokenSlots::bytes(slots, s.tokens)));
    if (!config.indexer) return needs; // a shape without weights
    MemoryNeed keys = select::indexOf("index_keys", "the indexer's keys", Per::Row,
                                      select::LightningIndex::keyBytes(config, s.tokens));
    keys.layers = LayerSet::None; // keyBytes counts all layers that have an indexer
    needs.push_back(keys);
    const std::int64_t rows = std::min(length.prompt, kScoredPiece);
    needs.push_back(select::scratchOf("index_queries", "the indexer's queries", Lifetime::Session, Per::One,
                                      select::LightningIndex::scratchBytes(config, rows, s.tokens)));
    needs.push_back(select::chosenTokens(s, budget, 2 * (s.tokens + budget)));
    if (length.prompt <= topk) return needs;
    const std::int64_t shared = std::count(config.indexer->shared.begin(), config.indexer->shared.end(), true);
    needs.push_back(select::scratchOf("packed_prompt", "chosen tokens of the prompt", Lifetime::Session, Per::One,
                                      kAttendedTogether * (s.blocksOf(budget) * s.format.blockBytes() + budget * 4) +
                                          s.tokens * 8));
    if (shared > 0)
        needs.push_back(
            select::scratchOf("prompt_choices", "the choices of a prompt that layers share", Lifetime::Prompt, Per::One,
                              std::int64_t(length.prompt - topk) * topk * std::int64_t(sizeof(std::int32_t))));
    return needs;
}

} // namespace

MethodEntry dsaMethod() {
    MethodEntry entry;
    entry.name = "dsa";
    entry.title = "DeepSeek sparse attention";
    entry.source = "DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models";
    entry.needs = "a lightning indexer (self_attn.indexer, in checkpoints of DeepSeek-V3.2 and GLM-5)";
    entry.hasIndexer = [](const ModelConfig& config) { return config.indexer.has_value(); };
    entry.summary =
        "A trained indexer with a small key of its own for each token scores every token, and all heads of a layer "
        "attend to the best ones, in prompts too; layers may share a choice. With offloading, keys and values are on "
        "the host, and the device keeps what was chosen lately.";
    entry.parameters = dsaParameters();
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        SelectionSpec spec = select::commonSpec(values, config);
        const int budget = values.integer("index_topk"), device = values.integer("device_tokens");
        if (device > 0 && device <= budget)
            throw Error(
                ErrorKind::BadInput,
                fmt::format("device_tokens {} does not hold {} chosen tokens and the newest one", device, budget),
                "raise device_tokens, lower index_topk, or leave device_tokens at 0");
        select::setTokenBudget(spec, budget);
        const std::int64_t held = device > 0 ? device : 2 * std::int64_t(budget);
        spec.deviceSlots = int((held + spec.blockSize - 1) / spec.blockSize);
        return spec;
    };
    entry.makeSelector = [](const ParameterValues& values,
                            const SelectorContext& context) -> std::unique_ptr<Selector> {
        return std::make_unique<Dsa>(context, values);
    };
    entry.onDevice = KVSCOPE_ON_DEVICE(dsaOnDevice);
    entry.abilities = [](const MethodUse& use) {
        Abilities a = select::usualAbilities(use.backend);
        a.input = a.prompt = a.promptAttention = a.scores = a.latent = true;
        a.pastWindow = false; // models with an indexer have no windows
        return a;
    };
    entry.memory = dsaMemory;
    return entry;
}

} // namespace kvscope
