// DMA in its original form: an eviction head chooses single tokens, whatever the query (methods 9.2).
#include "core/select/common_parameters.h"
#include "core/select/memory_sizes.h"
#include "core/select/token_choice.h"

#include <cmath>

namespace kvscope {
namespace {

using select::TokenRange;

class DmaToken final : public Selector {
public:
    DmaToken(const SelectorContext& context, const ParameterValues& values)
        : context_(context), budget_(values.integer("budget_tokens")), exponential_(values.text("bias") == "dma"),
          headAt_(context.heads()), scores_(headAt_.size()) {
        for (const RowId sequence : idsUpTo<RowId>(context.sequences()))
            for (std::vector<float>& scores : headAt_.part(std::span(scores_), sequence))
                scores.reserve(Elements(context.maxTokensOf(sequence)));
    }

    void prompt(const PromptPiece& piece) override {
        const Extents<int, KvHeadId> scoreAt(piece.n, context_.shape.kvHeads);
        for (int token = 0; token < piece.n; ++token)
            for (const KvHeadId g : context_.kvHeads())
                add(of(piece.layer, piece.sequence, g), piece.rows.score[scoreAt.offset(token, g)]);
    }
    void append(std::span<HeadStep> heads) override {
        for (const HeadStep& item : heads) add(of(item.layer, item.sequence, item.kvHead), item.rows.score);
    }
    /// A token that is left out never comes back, because the lowest score that is kept only grows.
    void choose(std::span<HeadStep> heads) override {
        forEachItem(context_.kernels, heads, [&](HeadStep& item) {
            const TokenRange visible{item.firstToken, item.position + 1};
            const NumberedSpan<const float> all(of(item.layer, item.sequence, item.kvHead));
            const NumberedSpan<const float> scores = all.from(item.firstToken);
            select::bestTokens({&visible, 1}, scores, budget_, item.order, item.tokens);
            item.queryAgnostic.clear();
            for (const std::int32_t token : item.tokens) item.queryAgnostic.push_back(scores[token - item.firstToken]);
            select::chooseTokens(item, item.queryAgnostic, Origin::QueryAgnostic, item.position + 1);
        });
    }

private:
    std::vector<float>& of(LayerId layer, RowId sequence, KvHeadId kvHead) {
        return scores_[headAt_.offset(sequence, layer, kvHead)];
    }
    void add(std::vector<float>& scores, float score) const {
        scores.push_back(exponential_ ? std::exp(score) : score);
    }

    const SelectorContext context_;
    const int budget_;
    const bool exponential_;
    const HeadExtents headAt_;
    std::vector<std::vector<float>> scores_; // [sequence, layer, KV head][token]
};

} // namespace

MethodEntry dmaTokenMethod() {
    MethodEntry entry;
    entry.name = "dma-token";
    entry.title = "DMA by token";
    entry.source = "Trainable Dynamic Mask Sparse Attention";
    entry.needs = "an eviction head (self_attn.A and self_attn.delta.weight)";
    entry.needsEvictionHead = true;
    entry.summary =
        "The tokens of the highest eviction score are attended, each KV head its own; below the budget that is full "
        "attention. What is left out never comes back, so nothing is transferred.";
    entry.parameters = {select::blockSize(),
                        {"budget_tokens",
                         ParameterType::Integer,
                         "2048",
                         1,
                         1 << 24,
                         "tokens",
                         "Tokens each KV head attends.",
                         {},
                         [](const SparseConfig& c) { return select::shareOfDynamicTokens(c, 1, 1); }},
                        select::bias(),
                        select::biasScale()};
    entry.blocksTravel = false;
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        SelectionSpec spec = select::commonSpec(values, config);
        select::setTokenBudget(spec, values.integer("budget_tokens"));
        return spec;
    };
    entry.makeSelector = [](const ParameterValues& values,
                            const SelectorContext& context) -> std::unique_ptr<Selector> {
        return std::make_unique<DmaToken>(context, values);
    };
    entry.onDevice = KVSCOPE_ON_DEVICE(dmaTokenOnDevice);
    entry.abilities = [](const MethodUse& use) {
        Abilities a = select::usualAbilities(use.backend);
        a.prompt = true;
        return a;
    };
    entry.memory = [](const MethodUse& use, ContextLength length) -> std::vector<MemoryNeed> {
        const select::Sizes s(use, length);
        const std::int64_t budget = s.atMost(use.values.integer("budget_tokens"));
        std::vector<MemoryNeed> needs;
        if (s.gpu)
            needs = select::retainedTokens(s, budget, 8);
        else // the CPU backend ranks all tokens anew in every step
            needs.push_back(select::chosenTokens(s, budget, s.tokens));
        if (!s.gpu) // a GPU session keeps the scores itself wherever the model has an eviction head
            needs.push_back(select::indexOf("token_scores", "eviction scores", Per::KvHead, s.tokens * 4));
        return needs;
    };
    return entry;
}

} // namespace kvscope
