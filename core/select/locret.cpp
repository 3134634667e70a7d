// Locret (Huang et al., 2024): trained retaining heads score every token once; each KV head keeps the best of what it
// has read so far, chunk by chunk, and forgets the rest for good.
#include "base/indexed.h"
#include "core/select/common_parameters.h"
#include "core/select/memory_sizes.h"
#include "core/select/retaining_heads.h"
#include "core/select/token_choice.h"

#include "base/aligned_buffer.h"
#include "base/error.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>

namespace kvscope {
namespace {

using select::TokenRange;

constexpr int kPromptQueriesTogether = 64; // of the prompt, attended in one call

class Locret final : public Selector {
public:
    Locret(const SelectorContext& context, const ParameterValues& values)
        : context_(context), weights_(*select::findRetainingHeads(context.model)),
          budget_(values.integer("budget_tokens")), chunk_(values.integer("prefill_chunk")),
          stabilizers_(values.integer("stabilizers")), local_(values.integer("local_len")), headAt_(context.heads()),
          heads_(headAt_.size()), views_(context.shape.kvHeads), gathered_(views_.size()) {}

    void attendPrompt(const PromptPiece& piece) override;
    void promptDone(LayerId layer, RowId sequence, int, std::vector<PrefetchRequest>&) override {
        for (const KvHeadId g : context_.kvHeads()) evict(of(layer, sequence, g), stabilizers_);
    }
    void append(std::span<HeadStep> heads) override;
    void choose(std::span<HeadStep> heads) override;

private:
    struct Head {
        Numbered<std::int32_t> tokens; // retained, ascending
        Numbered<float> scores;        // of each
    };
    Head& of(LayerId layer, RowId sequence, KvHeadId kvHead) { return heads_[headAt_.offset(sequence, layer, kvHead)]; }
    void scoreRows(LayerId layer, const float* q, const float* k, const float* v, int n);
    void evict(Head& head, int recent) const;
    void attendPiece(const PromptPiece& piece, int begin, int end);
    void gather(const PromptPiece& piece, KvHeadId kvHead, int tokens);

    const SelectorContext context_;
    const select::RetainingHeads weights_;
    const int budget_, chunk_, stabilizers_, local_;
    const HeadExtents headAt_;
    std::vector<Head> heads_;
    Numbered<float> rows_, hidden_, scores_; // [n, inputs], [n, width], [n, kvHeads]
    // [KV head] The tokens that were retained of the chunks before the present one, packed into blocks.
    Numbered<std::vector<KvBlockView>> views_;
    std::vector<AlignedBuffer<float>> gathered_;
};

/// Writes the scores of n tokens to scores_. q, k, v: their projections before rotation, one row a token.
void Locret::scoreRows(LayerId layer, const float* q, const float* k, const float* v, int n) {
    const auto inputs = std::size_t(weights_.inputs), kv = std::size_t(context_.shape.kvHeads * context_.shape.dim);
    const std::size_t width = inputs - 2 * kv; // of the queries
    rows_.resize(Elements(n, inputs));
    scores_.resize(Elements(n, context_.shape.kvHeads));
    for (std::size_t i = 0; i < std::size_t(n); ++i) {
        float* to = rows_.data() + i * inputs;
        std::copy_n(q + i * width, width, to);
        std::copy_n(k + i * kv, kv, to + width);
        std::copy_n(v + i * kv, kv, to + width + kv);
    }
    weights_.score(context_.kernels, layer, rows_.data(), n, hidden_, scores_.data());
}

/// Evicts tokens until the head has budget_ tokens: the last `recent` ones stay, and of the others those of the highest
/// scores, of equal ones the older.
void Locret::evict(Head& head, int recent) const {
    const int count = int(head.tokens.size());
    if (count <= budget_) return;
    std::vector<std::int32_t> order, kept;
    const TokenRange others{0, count - recent};
    select::bestTokens({&others, 1}, NumberedSpan<float>(head.scores).first(count - recent), budget_ - recent, order,
                       kept);
    for (int i = count - recent; i < count; ++i) kept.push_back(i);
    for (std::size_t i = 0; i < kept.size(); ++i) {
        head.tokens[i] = head.tokens[kept[i]];
        head.scores[i] = head.scores[kept[i]];
    }
    head.tokens.resize(kept.size());
    head.scores.resize(kept.size());
}

/// Every prompt token attends to its own chunk and to the tokens that were retained of the chunks before.
void Locret::attendPrompt(const PromptPiece& piece) {
    for (int begin = piece.first; begin < piece.first + piece.n;) {
        const int end = std::min(piece.first + piece.n, (begin / chunk_ + 1) * chunk_);
        if (begin > 0 && begin % chunk_ == 0)
            for (const KvHeadId g : context_.kvHeads()) evict(of(piece.layer, piece.sequence, g), stabilizers_);
        attendPiece(piece, begin, end);
        begin = end;
    }
}

/// Attends with the tokens [begin, end), which belong to one of the method's chunks, and scores them.
void Locret::attendPiece(const PromptPiece& piece, int begin, int end) {
    const QueryExtents queryAt = context_.queries(piece.n), outAt = context_.outputs(piece.n);
    const KeyExtents keyAt = context_.keys(piece.n);
    const int size = context_.spec.blockSize, ownChunk = begin / chunk_ * chunk_;
    context_.forEachKvHead([&](KvHeadId g) { gather(piece, g, ownChunk); });
    Numbered<std::vector<KvBlockView>> lists(kPromptQueriesTogether * context_.shape.kvHeads);
    std::vector<AttentionItem> items;
    for (int first = begin; first < end; first += kPromptQueriesTogether) {
        items.clear();
        for (int position = first; position < std::min(end, first + kPromptQueriesTogether); ++position)
            for (const KvHeadId g : context_.kvHeads()) {
                auto& list = lists[items.size()];
                const int oldest = context_.rules.firstTokenOf(piece.layer, position);
                const auto own = TokenRange{std::max(ownChunk, oldest), position + 1};
                select::storeViews(context_, piece.layer, piece.sequence, g, own, list);
                const auto& kept = of(piece.layer, piece.sequence, g).tokens;
                const auto& packed = views_[index(g)];
                const int hidden = int(std::lower_bound(kept.begin(), kept.end(), oldest) - kept.begin());
                for (std::size_t b = std::size_t(hidden / size); b < packed.size(); ++b) {
                    KvBlockView view = packed[b];
                    if (b == std::size_t(hidden / size)) view.begin = hidden % size;
                    if (view.begin < view.tokens) list.push_back(view);
                }
                const int row = position - piece.first;
                items.push_back({piece.rows.q + queryAt.first(row, g), list.data(), std::int32_t(list.size()),
                                 piece.rows.out + outAt.first(row, g), nullptr});
            }
        context_.kernels.blockAttention({context_.group(), context_.shape.dim, size, context_.shape.dim,
                                         context_.shape.valueDim, context_.rules.scale, context_.spec.bias.scale, items,
                                         context_.shape.valueDim});
    }
    for (const KvHeadId g : context_.kvHeads()) {
        Head& head = of(piece.layer, piece.sequence, g);
        const int most = std::min(budget_ + chunk_, context_.maxTokensOf(piece.sequence));
        head.tokens.reserve(most);
        head.scores.reserve(most);
    }
    const int from = begin - piece.first;
    scoreRows(piece.layer, piece.rows.plainQ + queryAt.first(from), piece.rows.plainK + keyAt.first(from),
              piece.rows.v + keyAt.first(from), end - begin);
    const Extents<int, KvHeadId> scoreAt(end - begin, context_.shape.kvHeads);
    for (int position = begin; position < end; ++position)
        for (const KvHeadId g : context_.kvHeads()) {
            Head& head = of(piece.layer, piece.sequence, g);
            head.tokens.push_back(position);
            head.scores.push_back(scores_[scoreAt.offset(position - begin, g)]);
        }
}

/// Packs the tokens before position `tokens` that the head keeps into blocks.
void Locret::gather(const PromptPiece& piece, KvHeadId kvHead, int tokens) {
    const std::vector<std::int32_t>& kept = of(piece.layer, piece.sequence, kvHead).tokens;
    const int count = int(std::lower_bound(kept.begin(), kept.end(), tokens) - kept.begin());
    select::packStored(context_, piece.layer, piece.sequence, kvHead,
                       NumberedSpan<const std::int32_t>(kept).first(count), gathered_[index(kvHead)],
                       views_[index(kvHead)]);
}

void Locret::append(std::span<HeadStep> heads) {
    const auto kvHeads = std::size_t(context_.shape.kvHeads);
    for (std::size_t i = 0; i < heads.size();
         i += kvHeads) { // heads[i] is the first KV head, and its rows are followed by those of the others
        scoreRows(heads[i].layer, heads[i].rows.plainQ, heads[i].rows.plainKey, heads[i].rows.value, 1);
        for (const KvHeadId g : context_.kvHeads()) {
            Head& head = of(heads[i].layer, heads[i].sequence, g);
            head.tokens.push_back(heads[i].position);
            head.scores.push_back(scores_[index(g)]);
            evict(head, local_);
        }
    }
}

void Locret::choose(std::span<HeadStep> heads) {
    for (HeadStep& item : heads) {
        const Head& head = of(item.layer, item.sequence, item.kvHead);
        const auto visible = std::lower_bound(head.tokens.begin(), head.tokens.end(), item.firstToken);
        item.tokens.assign(visible, head.tokens.end());
        const std::size_t recent = std::min(item.tokens.size(), std::size_t(local_));
        select::chooseTokens(item, NumberedSpan<const float>(head.scores).from(int(visible - head.tokens.begin())),
                             Origin::QueryAgnostic, item.tokens[item.tokens.size() - recent]);
    }
}

/// Prompt tokens that are scored together at most: those of a piece of the engine's.
constexpr int kScoredTogether = 512;

std::vector<Parameter> locretParameters() {
    return {
        select::blockSize(),
        {"budget_tokens",
         ParameterType::Integer,
         "6000",
         2,
         1 << 24,
         "tokens",
         "Tokens each KV head keeps.",
         {},
         [](const SparseConfig& c) { return select::shareOfDynamicTokens(c, 1, 1); }},
        {"prefill_chunk",
         ParameterType::Integer,
         "3072",
         1,
         1 << 24,
         "tokens",
         "Prompt tokens read before the next eviction; they all see each other.",
         {},
         [](const SparseConfig& c) { return select::shareOfDynamicTokens(c, 64, 125); } /* the paper's 3072 of 6000 */},
        {"stabilizers",
         ParameterType::Integer,
         "2500",
         0,
         1 << 24,
         "tokens",
         "Last tokens of a chunk that stay whatever their score; fewer than budget_tokens.",
         {},
         [](const SparseConfig& c) { return select::shareOfDynamicTokens(c, 5, 12); } /* 2500 of 6000 */},
        {"local_len",
         ParameterType::Integer,
         "100",
         1,
         1 << 24,
         "tokens",
         "Most recent tokens that stay while text is generated; at most budget_tokens.",
         {}},
        select::bias(),
        select::biasScale()};
}

} // namespace

MethodEntry locretMethod() {
    MethodEntry entry;
    entry.name = "locret";
    entry.title = "Locret";
    entry.source = "Locret: Enhancing Eviction in Long-Context LLM Inference with Trained Retaining Heads";
    entry.needs = "retaining heads (locret.safetensors, which kvscope-cli calibrate makes)";
    entry.hasOwnWeights = select::hasRetainingHeads;
    entry.summary =
        "A small trained network scores each token once from its query, key and value. The prompt is read in chunks; "
        "after each one a KV head keeps its last tokens and the best-scored others, and what is evicted is gone for "
        "the rest of the prompt too. Nothing is transferred.";
    entry.parameters = locretParameters();
    entry.blocksTravel = false;
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        if (config.latent)
            throw Error(ErrorKind::Unsupported, "locret scores values of their own (latent attention has none)",
                        "choose another method for this checkpoint");
        SelectionSpec spec = select::commonSpec(values, config);
        const int budget = values.integer("budget_tokens");
        if (values.integer("stabilizers") >= budget || values.integer("local_len") > budget)
            throw Error(ErrorKind::BadInput,
                        fmt::format("budget_tokens {} does not hold {} stabilizers or {} local tokens", budget,
                                    values.integer("stabilizers"), values.integer("local_len")),
                        "raise budget_tokens, or lower stabilizers or local_len");
        select::setTokenBudget(spec, budget);
        return spec;
    };
    entry.makeSelector = [](const ParameterValues& values,
                            const SelectorContext& context) -> std::unique_ptr<Selector> {
        return std::make_unique<Locret>(context, values);
    };
    entry.onDevice = KVSCOPE_ON_DEVICE(locretOnDevice);
    entry.abilities = [](const MethodUse& use) {
        Abilities a = select::usualAbilities(use.backend);
        a.plain = a.prompt = a.promptAttention = true;
        a.latent = false; // latent attention has no values apart from keys that the heads could score
        a.headNorms = use.backend == Backend::Cpu;
        return a;
    };
    entry.memory = [](const MethodUse& use, ContextLength length) -> std::vector<MemoryNeed> {
        const select::Sizes s(use, length);
        const std::int64_t budget = s.atMost(use.values.integer("budget_tokens"));
        if (s.gpu) return select::retainedTokens(s, budget, 8);
        // All tokens of a chunk are kept until the chunk is read, and the tokens kept of earlier chunks lie packed
        // beside it.
        const std::int64_t listed =
            s.atMost(std::int64_t(use.values.integer("budget_tokens")) + use.values.integer("prefill_chunk"));
        const std::int64_t packed = s.blocksOf(listed) * (s.format.blockBytes() + std::int64_t(sizeof(KvBlockView)));
        std::vector<MemoryNeed> needs{
            select::indexOf("retained_tokens", "lists of retained tokens", Per::KvHead, listed * 8),
            select::chosenTokens(s, budget, budget),
            select::scratchOf("packed_prompt", "retained tokens of the prompt", Lifetime::Session, Per::One,
                              use.config.kvHeads * packed)};
        if (use.model == nullptr) return needs;
        if (const auto heads = select::findRetainingHeads(*use.model)) {
            const std::int64_t rows = std::min({length.prompt, kScoredTogether, use.values.integer("prefill_chunk")});
            needs.push_back(select::scratchOf("retaining_heads", "retaining heads", Lifetime::Session, Per::One,
                                              std::int64_t(heads->in.size() + heads->out.size()) * 4));
            needs.push_back(select::scratchOf("scored_rows", "scored tokens", Lifetime::Session, Per::One,
                                              rows * (heads->inputs + heads->width + heads->kvHeads) * 4));
        }
        return needs;
    };
    return entry;
}

} // namespace kvscope
