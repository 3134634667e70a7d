// H2O (Zhang et al., NeurIPS 2023): heavy hitters by accumulated attention, and recent tokens. The rest is gone.
#include "base/indexed.h"
#include "core/select/common_parameters.h"
#include "core/select/memory_sizes.h"
#include "core/select/prompt_attention.h"
#include "core/select/prompt_states.h"
#include "core/select/token_choice.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace kvscope {
namespace {

using select::TokenRange;

class H2o final : public Selector {
public:
    H2o(const SelectorContext& context, const ParameterValues& values)
        : context_(context), heavyTokens_(values.integer("heavy_tokens")),
          recentTokens_(values.integer("recent_tokens")), heavyRatio_(values.number("heavy_ratio")),
          recentRatio_(values.number("recent_ratio")), headAt_(context.heads()), heads_(headAt_.size()),
          promptMass_(context), full_(context_) {}

    void attendPrompt(const PromptPiece& piece) override;
    void promptDone(LayerId layer, RowId sequence, int tokens, std::vector<PrefetchRequest>&) override;
    void append(std::span<HeadStep> heads) override {
        for (const HeadStep& item : heads) {
            Head& head = of(item.layer, item.sequence, item.kvHead);
            head.tokens.push_back(item.position);
            head.mass.push_back(0);
        }
    }
    void choose(std::span<HeadStep> heads) override;
    void after(std::span<HeadStep> heads, std::vector<PrefetchRequest>&) override {
        forEachItem(context_.kernels, heads, [&](HeadStep& item) { accumulate(item); });
    }

private:
    struct Head {
        Numbered<std::int32_t> tokens; // retained, ascending
        Numbered<double> mass;         // attention that each token has received from all query heads of the group
        int heavy = 0, recent = 0;
    };
    Head& of(LayerId layer, RowId sequence, KvHeadId kvHead) { return heads_[headAt_.offset(sequence, layer, kvHead)]; }
    void accumulate(HeadStep& item);
    static void evict(Head& head);

    const SelectorContext context_;
    const int heavyTokens_, recentTokens_;
    const double heavyRatio_, recentRatio_;
    const HeadExtents headAt_;
    std::vector<Head> heads_;
    using PromptMass = std::vector<std::vector<double>>; // [query head][token]
    select::PromptStates<PromptMass> promptMass_;
    select::PromptAttention full_;
    std::vector<float> maxima_, sums_; // [token of the piece][query head]
};

/// Does full attention, and then goes over the keys a second time to add up the attention that every token received:
/// the sum of a softmax is known only after the first pass.
void H2o::attendPrompt(const PromptPiece& piece) {
    const Elements heads(context_.rules.queryHeads), queries(piece.n, heads);
    PromptMass& masses = promptMass_.of(piece);
    masses.resize(heads);
    std::vector<double*> received;
    for (auto& mass : masses) {
        mass.resize(Elements(piece.promptTokens));
        received.push_back(mass.data());
    }
    maxima_.resize(queries);
    sums_.resize(queries);
    PrefillAttentionArgs args = full_.of(piece);
    args.maxima = maxima_.data();
    args.sums = sums_.data();
    context_.kernels.prefillAttention(args);
    context_.kernels.attentionReceived(args, received);
}

void H2o::promptDone(LayerId layer, RowId sequence, int tokens, std::vector<PrefetchRequest>&) {
    const PromptMass masses = promptMass_.take(layer, sequence);
    const Extents<KvHeadId, int> queryHeadAt(context_.shape.kvHeads, context_.group());
    const auto share = [&](int count, double ratio) { return std::max(1, count > 0 ? count : int(ratio * tokens)); };
    for (const KvHeadId g : context_.kvHeads()) {
        Head all; // of the prompt's tokens
        all.heavy = share(heavyTokens_, heavyRatio_);
        all.recent = share(recentTokens_, recentRatio_);
        all.mass.assign(tokens, 0.0);
        all.tokens.resize(tokens);
        std::iota(all.tokens.begin(), all.tokens.end(), 0);
        for (int h = 0; h < context_.group(); ++h) {
            const std::vector<double>& received = masses[queryHeadAt.offset(g, h)];
            for (std::size_t token = 0; token < received.size(); ++token) all.mass[token] += received[token];
        }
        evict(all);
        // A step first adds its token and then evicts one.
        const int most = std::min(all.heavy + all.recent + 1, context_.maxTokensOf(sequence));
        Head& head = of(layer, sequence, g);
        head.heavy = all.heavy;
        head.recent = all.recent;
        head.tokens.reserve(most);
        head.mass.reserve(most);
        head.tokens.assign(all.tokens.begin(), all.tokens.end());
        head.mass.assign(all.mass.begin(), all.mass.end());
    }
}

/// Evicts tokens until heavy + recent are left: the last `recent` ones stay, and of the others the `heavy` ones that
/// received most attention, of equal ones the older.
void H2o::evict(Head& head) {
    while (head.tokens.count() > head.heavy + head.recent) {
        const int others = head.tokens.count() - head.recent;
        if (others > head.heavy + 1) { // after the prompt many tokens are evicted at once
            Numbered<float> mass(head.mass.begin(), head.mass.begin() + others);
            std::vector<std::int32_t> order, kept;
            const TokenRange all{0, others};
            select::bestTokens({&all, 1}, mass, head.heavy, order, kept);
            for (int i = others; i < head.tokens.count(); ++i) kept.push_back(i);
            for (std::size_t i = 0; i < kept.size(); ++i) {
                head.tokens[i] = head.tokens[kept[i]];
                head.mass[i] = head.mass[kept[i]];
            }
            head.tokens.resize(kept.size());
            head.mass.resize(kept.size());
            return;
        }
        int least = 0;
        for (int i = 1; i < others; ++i)
            if (head.mass[i] <= head.mass[least]) least = i;
        head.tokens.erase(head.tokens.begin() + least);
        head.mass.erase(head.mass.begin() + least);
    }
}

void H2o::choose(std::span<HeadStep> heads) {
    for (HeadStep& item : heads) {
        Head& head = of(item.layer, item.sequence, item.kvHead);
        while (head.tokens.front() < item.firstToken) { // left a sliding window for good
            head.tokens.erase(head.tokens.begin());
            head.mass.erase(head.mass.begin());
        }
        item.tokens.assign(head.tokens.begin(), head.tokens.end());
        item.queryAgnostic.assign(head.mass.begin(), head.mass.end());
        const std::size_t recent = std::min<std::size_t>(item.tokens.size(), Elements(head.recent + 1));
        select::chooseTokens(item, item.queryAgnostic, Origin::QueryAgnostic, item.tokens[item.tokens.size() - recent]);
    }
}

/// Adds the attention that this step's queries gave to each retained token, and then evicts one token.
void H2o::accumulate(HeadStep& item) {
    Head& head = of(item.layer, item.sequence, item.kvHead);
    item.windowScores.resize(item.tokens.size());
    for (int h = 0; h < context_.group(); ++h) {
        const float* q = item.rows.q + h * context_.shape.dim;
        select::attentionLogits(item.views, q, context_.shape.dim, context_.spec.blockSize, context_.rules.scale,
                                context_.spec.bias.scale, item.windowScores.data());
        select::softmax(item.windowScores);
        for (std::size_t i = 0; i < head.mass.size(); ++i) head.mass[i] += double(item.windowScores[i]);
    }
    evict(head);
}

/// @return how many tokens a KV head attends to: heavy hitters, recent tokens and the newest token
std::int64_t attendedTokens(const ParameterValues& values, int promptTokens) {
    const auto share = [&](const char* count, const char* ratio) {
        const int asked = values.integer(count);
        return std::max<std::int64_t>(1, asked > 0 ? asked : std::int64_t(values.number(ratio) * promptTokens));
    };
    return share("heavy_tokens", "heavy_ratio") + share("recent_tokens", "recent_ratio") + 1;
}

} // namespace

MethodEntry h2oMethod() {
    MethodEntry entry;
    entry.name = "h2o";
    entry.title = "H2O";
    entry.source = "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models";
    entry.summary =
        "Keeps the tokens that received most attention so far, prompt included, and the most recent ones; one token "
        "is evicted per step and never comes back. Nothing is transferred.";
    entry.parameters = {
        select::blockSize(),
        {"heavy_ratio", ParameterType::Number, "0.1", 0, 1, "", "Heavy hitters, as a share of the prompt.", {}},
        {"recent_ratio", ParameterType::Number, "0.1", 0, 1, "", "Recent tokens, as a share of the prompt.", {}},
        {"heavy_tokens",
         ParameterType::Integer,
         "0",
         0,
         1 << 24,
         "tokens",
         "Heavy hitters as a number; 0: by heavy_ratio, at least 1.",
         {}},
        {"recent_tokens",
         ParameterType::Integer,
         "0",
         0,
         1 << 24,
         "tokens",
         "Recent tokens as a number; 0: by recent_ratio, at least 1.",
         {}},
        select::bias(),
        select::biasScale()};
    entry.blocksTravel = false;
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        SelectionSpec spec = select::commonSpec(values, config);
        const int heavy = values.integer("heavy_tokens"), recent = values.integer("recent_tokens");
        select::setTokenBudget(spec, heavy + recent + 1); // the newest token is attended before one is evicted
        if (heavy == 0 || recent == 0) spec.traceBudget = -1;
        return spec;
    };
    entry.makeSelector = [](const ParameterValues& values,
                            const SelectorContext& context) -> std::unique_ptr<Selector> {
        return std::make_unique<H2o>(context, values);
    };
    entry.onDevice = KVSCOPE_ON_DEVICE(h2oOnDevice);
    entry.abilities = [](const MethodUse& use) {
        Abilities a = select::usualAbilities(use.backend);
        a.prompt = a.after = a.promptAttention = true;
        a.logSums = use.backend == Backend::Cuda;
        return a;
    };
    entry.attendsAtMost = [](const MethodUse& use, ContextLength length) {
        return attendedTokens(use.values, length.prompt);
    };
    entry.memory = [](const MethodUse& use, ContextLength length) -> std::vector<MemoryNeed> {
        const select::Sizes s(use, length);
        std::vector<MemoryNeed> needs =
            select::retainedTokens(s, s.atMost(attendedTokens(use.values, length.prompt)), s.gpu ? 16 : 12);
        if (!s.gpu) // what every token of the prompt being read receives from each query head
            needs.push_back(select::scratchOf("prompt_mass", "the prompt's attention", Lifetime::Prompt, Per::One,
                                              std::int64_t(use.config.queryHeads) * length.prompt * 8));
        return needs;
    };
    return entry;
}

} // namespace kvscope
