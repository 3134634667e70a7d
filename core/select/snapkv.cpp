// SnapKV (Li et al., NeurIPS 2024): the last tokens of the prompt vote once for what is kept of it.
#include "base/indexed.h"
#include "core/select/common_parameters.h"
#include "core/select/memory_sizes.h"
#include "core/select/prompt_states.h"
#include "core/select/token_choice.h"

#include "base/error.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>

namespace kvscope {
namespace {

using select::TokenRange;

class SnapKv final : public Selector {
public:
    SnapKv(const SelectorContext& context, const ParameterValues& values)
        : context_(context), capacity_(values.integer("capacity_tokens")), window_(values.integer("window_tokens")),
          kernel_(values.integer("pooling_kernel")), average_(values.text("pooling") == "avg"),
          headAt_(context.heads()), heads_(headAt_.size()), queries_(context) {}

    void prompt(const PromptPiece& piece) override;
    void promptDone(LayerId layer, RowId sequence, int tokens, std::vector<PrefetchRequest>&) override {
        const std::vector<float> queries = queries_.take(layer, sequence);
        context_.forEachKvHead([&](KvHeadId g) { vote(queries, layer, sequence, g, tokens); });
    }
    void append(std::span<HeadStep> heads) override {
        for (const HeadStep& item : heads) {
            Head& head = of(item.layer, item.sequence, item.kvHead);
            head.tokens.push_back(item.position);
            head.scores.push_back(std::numeric_limits<float>::quiet_NaN());
        }
    }
    void choose(std::span<HeadStep> heads) override {
        for (HeadStep& item : heads) {
            Head& head = of(item.layer, item.sequence, item.kvHead);
            const auto visible = std::lower_bound(head.tokens.begin(), head.tokens.end(), item.firstToken);
            item.tokens.assign(visible, head.tokens.end());
            select::chooseTokens(item, NumberedSpan<const float>(head.scores).from(int(visible - head.tokens.begin())),
                                 Origin::QueryAgnostic, head.firstRecent);
        }
    }

private:
    struct Head {
        Numbered<std::int32_t> tokens; // retained, ascending
        Numbered<float> scores;        // votes; NaN for the window and what was generated
        std::int32_t firstRecent = 0;
    };
    Head& of(LayerId layer, RowId sequence, KvHeadId kvHead) { return heads_[headAt_.offset(sequence, layer, kvHead)]; }
    void vote(const std::vector<float>& queries, LayerId layer, RowId sequence, KvHeadId kvHead, int tokens);
    Numbered<float> pooled(const Numbered<float>& votes) const;

    const SelectorContext context_;
    const int capacity_, window_, kernel_;
    const bool average_;
    const HeadExtents headAt_;
    std::vector<Head> heads_;
    select::PromptStates<std::vector<float>> queries_; // [window, queryHeads, dim], the prompt's last token last
};

void SnapKv::prompt(const PromptPiece& piece) {
    const QueryExtents from = context_.queries(piece.n), to = context_.queries(window_);
    auto& queries = queries_.of(piece);
    queries.resize(to.size());
    for (int i = 0; i < piece.n; ++i) {
        const int row = piece.first + i - (piece.promptTokens - window_);
        if (row >= 0) std::copy_n(piece.rows.q + from.first(i), from.under(0), queries.data() + to.first(row));
    }
}

void SnapKv::vote(const std::vector<float>& queries, LayerId layer, RowId sequence, KvHeadId kvHead, int tokens) {
    Head& head = of(layer, sequence, kvHead);
    const QueryExtents queryAt = context_.queries(window_);
    const int dim = context_.shape.dim, window = std::min(window_, tokens);
    const int before = tokens - window; // the tokens that are voted for
    head.firstRecent = before;
    const int maxTokens = context_.maxTokensOf(sequence);
    head.tokens.reserve(std::min(maxTokens, capacity_ + maxTokens - tokens));
    head.scores.reserve(head.tokens.capacity());
    std::vector<std::int32_t> order;
    if (tokens <= capacity_) {
        for (int token = 0; token < before; ++token) head.tokens.push_back(token);
        head.scores.assign(before, std::numeric_limits<float>::quiet_NaN());
    } else {
        Numbered<float> votes(before, 0.f), logits;
        std::vector<KvBlockView> views;
        for (int row = window_ - window; row < window_; ++row) {
            const int end = tokens - window_ + row + 1, begin = context_.rules.firstTokenOf(layer, end - 1);
            select::storeViews(context_, layer, sequence, kvHead, {begin, end}, views);
            logits.resize(end - begin);
            for (int h = 0; h < context_.group(); ++h) {
                const float* q = queries.data() + queryAt.first(row, kvHead, h);
                select::attentionLogits(views, q, dim, context_.spec.blockSize, context_.rules.scale,
                                        context_.spec.bias.scale, logits.data());
                select::softmax(logits);
                for (int token = begin; token < before; ++token) votes[token] += logits[token - begin];
            }
        }
        const Numbered<float> scores = pooled(votes);
        const TokenRange all{0, before};
        select::bestTokens({&all, 1}, scores, capacity_ - window_, order, head.tokens);
        for (const std::int32_t token : head.tokens) head.scores.push_back(scores[token]);
    }
    for (int token = before; token < tokens; ++token) {
        head.tokens.push_back(token);
        head.scores.push_back(std::numeric_limits<float>::quiet_NaN());
    }
}

/// Pools over kernel_ neighbouring tokens. Beyond the ends of the list the mean counts zeros and the maximum counts
/// nothing, as in the framework of the public code.
Numbered<float> SnapKv::pooled(const Numbered<float>& votes) const {
    Numbered<float> result(votes.size());
    const int count = int(votes.size()), half = kernel_ / 2;
    for (int i = 0; i < count; ++i) {
        float sum = 0, largest = -std::numeric_limits<float>::infinity();
        for (int j = std::max(0, i - half); j <= std::min(count - 1, i + half); ++j) {
            sum += votes[j];
            largest = std::max(largest, votes[j]);
        }
        result[i] = average_ ? sum / float(kernel_) : largest;
    }
    return result;
}

} // namespace

MethodEntry snapKvMethod() {
    MethodEntry entry;
    entry.name = "snapkv";
    entry.title = "SnapKV";
    entry.source = "SnapKV: LLM Knows What You are Looking for Before Generation";
    entry.summary =
        "The attention of the prompt's last tokens, pooled over neighbours, chooses once for each KV head what is kept "
        "of the prompt; what is generated is kept as well. Nothing is transferred and nothing comes back.";
    entry.parameters = {
        select::blockSize(),
        {"capacity_tokens",
         ParameterType::Integer,
         "1024",
         1,
         1 << 24,
         "tokens",
         "Prompt tokens each KV head keeps, the observation window included.",
         {}},
        {"window_tokens",
         ParameterType::Integer,
         "32",
         1,
         4096,
         "tokens",
         "Observation window: the last prompt tokens, whose queries vote; always kept.",
         {}},
        {"pooling_kernel", ParameterType::Integer, "7", 1, 255, "tokens", "Neighbours pooled into one vote; odd.", {}},
        {"pooling", ParameterType::Choice, "max", 0, 0, "", "How votes are pooled.", {"max", "avg"}},
        select::bias(),
        select::biasScale()};
    entry.blocksTravel = false;
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        SelectionSpec spec = select::commonSpec(values, config);
        const int capacity = values.integer("capacity_tokens"), window = values.integer("window_tokens");
        if (window >= capacity)
            throw Error(
                ErrorKind::BadInput,
                fmt::format("window_tokens {} leaves nothing of capacity_tokens {} to choose", window, capacity),
                "raise capacity_tokens, or lower window_tokens");
        if (values.integer("pooling_kernel") % 2 == 0)
            throw Error(ErrorKind::BadInput, fmt::format("pooling_kernel {} is even", values.integer("pooling_kernel")),
                        "use an odd number, so that the pool is centred");
        select::setTokenBudget(spec, capacity);
        spec.traceBudget = -1;
        return spec;
    };
    entry.makeSelector = [](const ParameterValues& values,
                            const SelectorContext& context) -> std::unique_ptr<Selector> {
        return std::make_unique<SnapKv>(context, values);
    };
    entry.onDevice = KVSCOPE_ON_DEVICE(snapKvOnDevice);
    entry.abilities = [](const MethodUse& use) {
        Abilities a = select::usualAbilities(use.backend);
        a.prompt = true;
        a.logSums = use.backend == Backend::Cuda;
        return a;
    };
    entry.attendsAtMost = [](const MethodUse& use, ContextLength length) {
        return std::int64_t(std::min(use.values.integer("capacity_tokens"), length.prompt)) + length.added;
    };
    entry.memory = [](const MethodUse& use, ContextLength length) -> std::vector<MemoryNeed> {
        const select::Sizes s(use, length);
        const std::int64_t kept = s.atMost(std::int64_t(use.values.integer("capacity_tokens")) + length.added);
        std::vector<MemoryNeed> needs = select::retainedTokens(s, kept, 8);
        if (!s.gpu)
            needs.push_back(
                select::scratchOf("window_queries", "the observation window", Lifetime::Prompt, Per::One,
                                  use.values.integer("window_tokens") * use.config.queryHeads * s.dim * s.number));
        return needs;
    };
    return entry;
}

} // namespace kvscope
