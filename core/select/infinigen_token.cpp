// InfiniGen in its original form: every query head fetches tokens of its own, as many as matter, one layer ahead.
//   InfiniGen: Efficient Generative Inference of Large Language Models with Dynamic KV Cache Management (Lee et al.,
//   2024)
#include "base/indexed.h"
#include "core/math/symmetric_eigen.h"
#include "core/select/common_parameters.h"
#include "core/select/memory_sizes.h"
#include "core/select/next_query.h"
#include "core/select/prompt_states.h"
#include "core/select/token_choice.h"

#include "base/aligned_buffer.h"
#include "base/error.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace kvscope {
namespace {

using select::TokenRange;

class InfinigenToken final : public Selector {
public:
    InfinigenToken(const SelectorContext& context, const ParameterValues& values)
        : context_(context), alpha_(float(values.number("alpha"))), maxTokens_(values.integer("max_num_kv")),
          warmUp_(values.integer("warmup_tokens")),
          columns_(std::max(1, int(values.number("partial_ratio") * context.shape.dim))),
          headAt_(context.sequences(), context.shape.layers, context.shape.kvHeads, context.group()),
          heads_(headAt_.size()), promptQueries_(context), chosen_(context.sequences() * context.rules.queryHeads),
          unions_(context.sequences() * context.shape.kvHeads), attended_(chosen_.size()) {}

    void prompt(const PromptPiece& piece) override;
    void promptDone(LayerId layer, RowId sequence, int tokens, std::vector<PrefetchRequest>&) override;
    void append(std::span<HeadStep> heads) override;
    void lookAhead(std::span<HeadStep> heads, std::vector<PrefetchRequest>& requests) override;
    void choose(std::span<HeadStep> heads) override;
    Loads load(std::span<HeadStep> heads) override;
    std::int64_t storedBytes(LayerId, int tokens) const override {
        return context_.offload ? tokens * context_.shape.kvHeads * select::tokenBytes(context_.cache.layout()) : 0;
    }
    bool attend(std::span<HeadStep> heads) override;

private:
    /// The memory of one (sequence, layer, query head) on the device.
    struct Partial {
        std::vector<float> basis; // [columns, dim]: directions along which the head's queries are largest
        Numbered<float> keys;     // [tokens, columns]: every key along these directions
    };
    /// queryHead: of the KV head's group.
    Partial& of(LayerId layer, RowId sequence, KvHeadId kvHead, int queryHead) {
        return heads_[headAt_.offset(sequence, layer, kvHead, queryHead)];
    }
    std::vector<float> directions(const std::vector<float>& queries, KvHeadId kvHead, int queryHead, int tokens) const;
    void appendKey(Partial& partial, const float* key) const;
    std::vector<float> scores(const Partial& partial, const float* query, int firstToken) const;

    const SelectorContext context_;
    const float alpha_;
    const int maxTokens_, warmUp_;
    const int columns_;
    const Extents<RowId, LayerId, KvHeadId, int> headAt_;
    std::vector<Partial> heads_;
    select::PromptStates<std::vector<float>> promptQueries_; // [tokens, queryHeads, dim]
    // What lookAhead chose for the next layer, in the order of the present layer's items: chosen_ has the tokens of
    // each query head, unions_ the tokens that any query head of an item's group chose.
    Numbered<std::vector<std::int32_t>> chosen_, unions_;
    Numbered<std::vector<std::int32_t>> attended_; // chosen_ of the layer that attends now
    std::vector<float> queries_;
    Numbered<AlignedBuffer<float>> gathered_; // [item * group + head]
};

void InfinigenToken::prompt(const PromptPiece& piece) {
    if (!context_.plans[piece.layer].sparse) return;
    auto& queries = promptQueries_.of(piece);
    queries.reserve(context_.queries(piece.promptTokens).size());
    queries.insert(queries.end(), piece.rows.q, piece.rows.q + context_.queries(piece.n).size());
}

/// @return the directions of a query head, [columns, dim]: of the right singular vectors of its first warmUp_ queries
/// those along which the prompt's queries are longest, added up over the prompt
std::vector<float> InfinigenToken::directions(const std::vector<float>& queries, KvHeadId kvHead, int queryHead,
                                              int tokens) const {
    const auto dim = std::size_t(context_.shape.dim);
    const QueryExtents queryAt = context_.queries(tokens);
    const auto query = [&](int token) { return queries.data() + queryAt.first(token, kvHead, queryHead); };
    std::vector<double> gram(dim * dim, 0.0);
    for (int token = 0; token < std::min(tokens, warmUp_); ++token) {
        const float* q = query(token);
        for (std::size_t a = 0; a < dim; ++a)
            for (std::size_t b = 0; b < dim; ++b) gram[a * dim + b] += double(q[a]) * double(q[b]);
    }
    const SymmetricEigen eigen = symmetricEigen(gram, int(dim));
    std::vector<float> size(dim, 0.f);
    for (std::size_t i = 0; i < dim; ++i) {
        double sum = 0;
        for (int token = 0; token < tokens; ++token) {
            double along = 0;
            const float* q = query(token);
            for (std::size_t c = 0; c < dim; ++c) along += eigen.vectors[i * dim + c] * double(q[c]);
            sum += std::abs(along);
        }
        size[i] = float(sum);
    }
    std::vector<std::int32_t> order, kept;
    const TokenRange all{0, int(dim)};
    select::bestTokens({&all, 1}, size, columns_, order, kept);
    std::vector<float> basis;
    for (const std::int32_t i : kept)
        for (std::size_t c = 0; c < dim; ++c) basis.push_back(float(eigen.vectors[std::size_t(i) * dim + c]));
    return basis;
}

void InfinigenToken::promptDone(LayerId layer, RowId sequence, int tokens, std::vector<PrefetchRequest>&) {
    if (!context_.plans[layer].sparse) return;
    const BlockLayout& layout = context_.cache.layout();
    const std::vector<float> queries = promptQueries_.take(layer, sequence);
    context_.kernels.forEach(context_.rules.queryHeads, [&](int h) {
        const KvHeadId g{h / context_.group()};
        const int inGroup = h % context_.group();
        Partial& partial = of(layer, sequence, g, inGroup);
        partial.basis = directions(queries, g, inGroup, tokens);
        partial.keys.clear();
        partial.keys.reserve(Elements(context_.maxTokensOf(sequence), columns_));
        const KvHead& head = context_.cache.head(sequence, layer, g);
        Numbered<float> key(context_.shape.dim);
        for (int token = 0; token < tokens; ++token) {
            layout.readKey(context_.cache.storeBlock(head, layout.blockOf(token)), layout.rowOf(token), key.data());
            appendKey(partial, key.data());
        }
    });
}

void InfinigenToken::appendKey(Partial& partial, const float* key) const {
    const int dim = context_.shape.dim;
    for (int i = 0; i < columns_; ++i)
        partial.keys.push_back(std::inner_product(key, key + dim, partial.basis.data() + i * dim, 0.f));
}

void InfinigenToken::append(std::span<HeadStep> heads) {
    forEachItem(context_.kernels, heads, [&](HeadStep& item) {
        for (int h = 0; h < context_.group(); ++h)
            appendKey(of(item.layer, item.sequence, item.kvHead, h), item.rows.key);
    });
}

/// @return the estimated logits of the keys from `firstToken` on: products along the head's directions, scaled like
/// logits
std::vector<float> InfinigenToken::scores(const Partial& partial, const float* query, int firstToken) const {
    const int dim = context_.shape.dim;
    std::vector<float> along, result;
    for (int i = 0; i < columns_; ++i)
        along.push_back(context_.rules.scale *
                        std::inner_product(query, query + dim, partial.basis.data() + i * dim, 0.f));
    const int tokens = int(partial.keys.size() / Elements(columns_));
    const RowsOf keys(partial.keys.data(), columns_);
    for (int token = firstToken; token < tokens; ++token)
        result.push_back(std::inner_product(along.begin(), along.end(), keys[token], 0.f));
    return result;
}

/// Chooses the next layer's tokens by guessed queries, and sends them ahead. Every query head of the step takes the
/// same number of tokens: the mean, over these heads, of how many tokens score within alpha of the head's best.
void InfinigenToken::lookAhead(std::span<HeadStep> heads, std::vector<PrefetchRequest>& requests) {
    const LayerId target = next(heads[0].layer);
    if (!context_.plans.sparse(target)) return;
    const NumberedSpan<HeadStep> items(heads);
    const Extents<int, int> headAt(items.count(), context_.group()); // of an item's query heads
    select::nextQueries(context_, target, heads, queries_);
    const auto firstTokenOf = [&](const HeadStep& item) { return context_.rules.firstTokenOf(target, item.position); };
    const RowsOf queries(queries_.data(), context_.shape.dim);
    Numbered<std::vector<float>> scored(headAt.size());
    Numbered<std::int64_t> near(scored.size());
    context_.kernels.forEach(scored.count(), [&](int i) {
        const HeadStep& item = items[i / context_.group()];
        auto& mine = scored[i];
        mine = scores(of(target, item.sequence, item.kvHead, i % context_.group()), queries[i], firstTokenOf(item));
        if (mine.empty()) return;
        const float limit = *std::max_element(mine.begin(), mine.end()) - alpha_;
        near[i] = std::count_if(mine.begin(), mine.end(), [&](float s) { return s > limit; });
    });
    const std::int64_t mean = std::accumulate(near.begin(), near.end(), std::int64_t(0)) / std::int64_t(near.size());
    const int count = int(std::clamp<std::int64_t>(mean, 1, maxTokens_));
    context_.kernels.forEach(items.count(), [&](int i) {
        const HeadStep& item = items[i];
        std::vector<std::int32_t> order;
        auto& all = unions_[i];
        all.assign(1, item.position); // the newest token is at hand
        for (int h = 0; h < context_.group(); ++h) {
            const std::size_t at = headAt.offset(i, h);
            const TokenRange range{firstTokenOf(item), firstTokenOf(item) + int(scored[at].size())};
            select::bestTokens({&range, 1}, scored[at], count, order, chosen_[at]);
            all.insert(all.end(), chosen_[at].begin(), chosen_[at].end());
            chosen_[at].push_back(item.position);
        }
        std::sort(all.begin(), all.end());
        all.erase(std::unique(all.begin(), all.end()), all.end());
    });
    if (!context_.offload) return;
    for (std::size_t i = 0; i < heads.size(); ++i)
        requests.push_back({target,
                            heads[i].sequence,
                            heads[i].kvHead,
                            {},
                            std::int64_t(unions_[i].size() - 1) * select::tokenBytes(context_.cache.layout())});
}

void InfinigenToken::choose(std::span<HeadStep> heads) {
    attended_.swap(chosen_); // lookAhead writes the next layer's choice to chosen_ before this layer attends
    for (std::size_t i = 0; i < heads.size(); ++i) {
        HeadStep& item = heads[i];
        item.tokens = unions_[i];
        item.queryAgnostic.assign(item.tokens.size(), std::numeric_limits<float>::quiet_NaN());
        select::chooseTokens(item, item.queryAgnostic, Origin::TokenLevel, item.position);
    }
}

/// Counts the chosen tokens. The device keeps none of them from step to step: all but the newest are fetched in every
/// step, and lookAhead has sent them ahead.
Selector::Loads InfinigenToken::load(std::span<HeadStep> heads) {
    Loads loads;
    if (!context_.offload) return loads;
    const std::int64_t bytes = select::tokenBytes(context_.cache.layout());
    for (HeadStep& item : heads) {
        for (std::size_t i = 0; i < item.tokens.size(); ++i)
            item.loads.hit[i] = item.tokens[i] == item.position ? 1 : 0;
        loads.units += std::int64_t(item.tokens.size()) - 1;
        loads.storedBytes += bytes;
    }
    loads.bytes = loads.units * bytes;
    return loads;
}

/// Lets each query head attend to its own tokens, which lie among the tokens gathered for its group.
bool InfinigenToken::attend(std::span<HeadStep> heads) {
    const int group = context_.group(), dim = context_.shape.dim, valueDim = context_.shape.valueDim;
    const NumberedSpan<HeadStep> steps(heads);
    const BlockLayout& layout = context_.cache.layout();
    const int size = layout.blockSize;
    gathered_.resize(std::max(gathered_.count(), steps.count() * group));
    Numbered<std::vector<KvBlockView>> views(steps.count() * group);
    context_.kernels.forEach(views.count(), [&](int i) {
        const HeadStep& item = steps[i / group];
        const auto& own = attended_[i];
        auto& buffer = gathered_[i];
        const int count = int(own.size());
        const Elements floats((count + size - 1) / size, layout.floats());
        if (buffer.size() < floats) buffer = AlignedBuffer<float>(floats);
        const RowsOf<float> blocks(buffer.data(), layout.floats());
        const RowsOf<const float> sources(item.gathered.data(), layout.floats());
        auto next = item.tokens.begin(); // of the group's tokens
        int t = 0;
        for (const std::int32_t token : own) {
            next = std::find(next, item.tokens.end(), token);
            const int from = int(next - item.tokens.begin());
            layout.copyToken(sources[from / size], from % size, blocks[t / size], t % size);
            if (t % size == 0) views[i].push_back(layout.view(blocks[t / size], std::min(size, count - t)));
            ++t;
        }
    });
    std::vector<AttentionItem> items;
    for (int i = 0; i < views.count(); ++i) {
        HeadStep& item = steps[i / group];
        const int h = i % group;
        items.push_back({item.rows.q + h * dim, views[i].data(), std::int32_t(views[i].size()),
                         item.rows.out + h * valueDim, item.lse.empty() ? nullptr : item.lse.data() + h});
    }
    context_.kernels.blockAttention(
        {1, dim, size, dim, valueDim, context_.rules.scale, context_.spec.bias.scale, items, int(valueDim)});
    return true;
}

} // namespace

MethodEntry infinigenTokenMethod() {
    MethodEntry entry;
    entry.name = "infinigen-token";
    entry.title = "InfiniGen by token";
    entry.source =
        "InfiniGen: Efficient Generative Inference of Large Language Models with Dynamic KV Cache Management";
    entry.summary = "The original form: each query head guesses its next query, scores every key along the few "
                    "directions that matter to it and fetches the best tokens one layer ahead, as many as come near "
                    "the best on average. Nothing is cached. The first layer attends to everything.";
    entry.parameters = {
        select::blockSize(),
        {"partial_ratio",
         ParameterType::Number,
         "0.2",
         0.001,
         1,
         "",
         "Share of a head's directions along which queries and keys are compared; at least one.",
         {}},
        {"alpha",
         ParameterType::Number,
         "4",
         0,
         1000,
         "",
         "A token counts when its score comes within alpha of its query head's best; the paper uses 4, and 5 where "
         "accuracy matters.",
         {}},
        {"max_num_kv", ParameterType::Integer, "400", 1, 1 << 24, "tokens", "Tokens a query head fetches at most.", {}},
        {"warmup_tokens",
         ParameterType::Integer,
         "2048",
         1,
         1 << 20,
         "tokens",
         "First prompt tokens whose queries say which directions there are.",
         {}},
        {"dense_layers",
         ParameterType::Integer,
         "1",
         1,
         1024,
         "layers",
         "First layers that attend to everything: they have no layer before them to guess from.",
         {}},
        select::bias(),
        select::biasScale()};
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        if (config.latent)
            throw Error(ErrorKind::Unsupported,
                        "infinigen-token needs the query projection of plain heads, and this model has latent "
                        "attention",
                        "use another method");
        SelectionSpec spec = select::commonSpec(values, config);
        spec.denseLayers = values.integer("dense_layers");
        // A group has most tokens if no two of its query heads choose the same one. The cap is for damaged traces,
        // which can state any number of heads.
        const std::int64_t most = std::int64_t(values.integer("max_num_kv")) * config.group() + 1;
        select::setTokenBudget(spec, int(std::min<std::int64_t>(most, 1 << 30)));
        return spec;
    };
    entry.makeSelector = [](const ParameterValues& values,
                            const SelectorContext& context) -> std::unique_ptr<Selector> {
        return std::make_unique<InfinigenToken>(context, values);
    };
    entry.onDevice = KVSCOPE_ON_DEVICE(infinigenTokenOnDevice);
    entry.abilities = [](const MethodUse& use) {
        Abilities a = select::usualAbilities(use.backend);
        a.input = a.prompt = true;
        a.ahead = Ahead::NextLayer;
        a.latent = false;          // the next layer's queries come from the projection of plain heads
        a.rowsIndependent = false; // all sequences of a batch fetch the same number of tokens
        return a;
    };
    entry.memory = [](const MethodUse& use, ContextLength length) -> std::vector<MemoryNeed> {
        const select::Sizes s(use, length);
        auto columns = std::max<std::int64_t>(1, std::int64_t(use.values.number("partial_ratio") * double(s.dim)));
        const auto partial = [](std::int64_t bytes) {
            return select::indexOf("partial_keys", "partial keys", Per::QueryHead, bytes);
        };
        if (s.gpu) { // a GPU pads the columns to pieces of 16 bytes, and keeps the directions in float32
            columns = (columns + 7) / 8 * 8;
            return {select::asLongest(s, partial(((s.tokens + 7) / 8 * 8 * s.number + s.dim * 4) * columns)),
                    select::storeOf("token_store", use, s.kvBytes(s.tokens))};
        }
        std::vector<MemoryNeed> needs{partial((s.tokens + s.dim) * columns * s.number)};
        needs.push_back(select::scratchOf("prompt_queries", "the prompt's queries", Lifetime::Prompt, Per::One,
                                          length.prompt * use.config.queryHeads * s.dim * s.number));
        // Each query head's own tokens, packed from those that are gathered for its group.
        const std::int64_t own = s.atMost(use.values.integer("max_num_kv") + 1);
        needs.push_back(select::chosenTokens(s, s.atMost(own * use.config.group()), 0));
        needs.push_back(select::scratchOf("head_tokens", "a step's tokens by query head", Lifetime::Step,
                                          Per::QueryHead,
                                          s.blocksOf(own) * s.format.blockBytes() + own * 8 + s.tokens * 4));
        return needs;
    };
    return entry;
}

} // namespace kvscope
