// InfiniGen, in the form for grouped queries that SparDA measures itself against: the next layer's query projection
// applied to this layer's input, in the few directions along which queries of that layer vary most.
//   InfiniGen: Efficient Generative Inference of Large Language Models with Dynamic KV Cache Management; the grouped
//   form is SparDA's baseline. The original picks tokens for every query head: infinigen_token.cpp.
#include "base/indexed.h"
#include "core/math/symmetric_eigen.h"
#include "core/select/common_parameters.h"
#include "core/select/lookahead.h"
#include "core/select/memory_sizes.h"
#include "core/select/next_query.h"

#include "base/error.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope {
namespace {

/// The memory of one (sequence, layer, KV head) on the device: the directions, and every key along them.
struct PartialKeys {
    std::vector<double> gram; // [dim, dim] of the group's mean queries of the first prompt tokens; freed afterwards
    std::vector<float> skew;  // [dims, dim]
    Numbered<float> keys;     // [tokens, dims]
};

class InfinigenSelector final : public LookaheadSelector {
public:
    InfinigenSelector(const SelectorContext& context, int dims, int warmUp)
        : LookaheadSelector(context), dims_(std::size_t(dims)), warmUp_(warmUp), headAt_(context.heads()),
          heads_(headAt_.size()) {}

    void prompt(const PromptPiece& piece) override;
    void promptDone(LayerId layer, RowId sequence, int tokens, std::vector<PrefetchRequest>&) override;
    void append(std::span<HeadStep> heads) override;

private:
    int queryWidth() const override { return context_.rules.queryHeads * context_.shape.dim; }
    PoolingGrid grid() const override { return {1, 1, context_.spec.blockSize}; } // every token is a window

    PartialKeys& keysOf(LayerId layer, RowId sequence, KvHeadId kvHead) {
        return heads_[headAt_.offset(sequence, layer, kvHead)];
    }
    void predict(LayerId target, bool ownInput, const float* input, int n, std::span<const std::int32_t> ropeRows,
                 float* out) override;
    void scoreWindows(HeadStep& item, const float* query) const override;
    void appendKey(PartialKeys& partial, const float* key) const;

    const std::size_t dims_;
    const int warmUp_;
    const HeadExtents headAt_;
    std::vector<PartialKeys> heads_;
};

void InfinigenSelector::prompt(const PromptPiece& piece) {
    const std::size_t dim = std::size_t(context_.shape.dim), group = std::size_t(context_.group());
    const QueryExtents queryAt = context_.queries(piece.n);
    const int upTo = std::min(piece.n, warmUp_ - piece.first);
    if (!context_.plans[piece.layer].sparse || upTo <= 0) return;
    context_.forEachKvHead([&](KvHeadId g) {
        auto& gram = keysOf(piece.layer, piece.sequence, g).gram;
        gram.resize(dim * dim);
        std::vector<double> mean(dim);
        for (int token = 0; token < upTo; ++token) {
            const float* q = piece.rows.q + queryAt.first(token, g);
            for (std::size_t c = 0; c < dim; ++c) {
                mean[c] = 0;
                for (std::size_t h = 0; h < group; ++h) mean[c] += double(q[h * dim + c]) / double(group);
            }
            for (std::size_t a = 0; a < dim; ++a)
                for (std::size_t b = 0; b <= a; ++b) gram[a * dim + b] += mean[a] * mean[b];
        }
    });
}

/// Makes the directions of each KV head, the strongest right singular vectors of the sampled queries, and the partial
/// keys of the prompt along them. The vectors are the eigenvectors of the queries' Gram matrix.
void InfinigenSelector::promptDone(LayerId layer, RowId sequence, int tokens, std::vector<PrefetchRequest>&) {
    if (!context_.plans[layer].sparse) return;
    const std::size_t dim = std::size_t(context_.shape.dim);
    context_.forEachKvHead([&](KvHeadId g) {
        PartialKeys& partial = keysOf(layer, sequence, g);
        for (std::size_t a = 0; a < dim; ++a)
            for (std::size_t b = a + 1; b < dim; ++b) partial.gram[a * dim + b] = partial.gram[b * dim + a];
        const SymmetricEigen eigen = symmetricEigen(partial.gram, int(dim));
        partial.skew.resize(dims_ * dim);
        for (std::size_t i = 0; i < dims_ * dim; ++i) partial.skew[i] = float(eigen.vectors[i]);
        partial.gram = {};
        partial.keys.reserve(std::size_t(context_.maxTokensOf(sequence)) * dims_);
        const KvHead& head = context_.cache.head(sequence, layer, g);
        const BlockLayout& layout = context_.cache.layout();
        std::vector<float> key(dim);
        for (int token = 0; token < tokens; ++token) {
            layout.readKey(context_.cache.storeBlock(head, layout.blockOf(token)), layout.rowOf(token), key.data());
            appendKey(partial, key.data());
        }
    });
}

void InfinigenSelector::appendKey(PartialKeys& partial, const float* key) const {
    const std::size_t dim = std::size_t(context_.shape.dim);
    for (std::size_t i = 0; i < dims_; ++i) {
        float sum = 0;
        for (std::size_t c = 0; c < dim; ++c) sum += partial.skew[i * dim + c] * key[c];
        partial.keys.push_back(sum);
    }
}

void InfinigenSelector::append(std::span<HeadStep> heads) {
    LookaheadSelector::append(heads);
    forEachItem(context_.kernels, heads,
                [&](HeadStep& item) { appendKey(keysOf(item.layer, item.sequence, item.kvHead), item.rows.key); });
}

void InfinigenSelector::predict(LayerId target, bool, const float* input, int n, std::span<const std::int32_t> ropeRows,
                                float* out) {
    select::nextQueries(context_, target, input, n, ropeRows, out);
}

/// A token's score is the sum over the group of the products of query and key along the directions, without a softmax.
/// The newest token has no score, because its key is not there yet; its block is forced.
void InfinigenSelector::scoreWindows(HeadStep& item, const float* query) const {
    const std::size_t dim = std::size_t(context_.shape.dim), group = std::size_t(context_.group());
    const PartialKeys& partial = heads_[headAt_.offset(item.sequence, item.layer, item.kvHead)];
    const float* own = query + context_.queries(1).first(0, item.kvHead);
    std::vector<float> sum(dims_); // the scores are linear in the query: one query for the group
    for (std::size_t i = 0; i < dims_; ++i)
        for (std::size_t h = 0; h < group; ++h) {
            const float* q = own + h * dim;
            for (std::size_t c = 0; c < dim; ++c) sum[i] += partial.skew[i * dim + c] * q[c];
        }
    const std::size_t tokens = partial.keys.size() / dims_;
    item.windowScores.resize(tokens);
    for (std::size_t token = 0; token < tokens; ++token) {
        float product = 0;
        for (std::size_t i = 0; i < dims_; ++i) product += sum[i] * partial.keys[token * dims_ + i];
        item.windowScores[token] = product;
    }
}

} // namespace

MethodEntry infinigenMethod() {
    MethodEntry entry;
    entry.name = "infinigen";
    entry.title = "InfiniGen";
    entry.source =
        "InfiniGen: Efficient Generative Inference of Large Language Models with Dynamic KV Cache Management";
    entry.summary = "Guesses the next layer's query from this layer's input and scores every key along the few "
                    "directions in which queries vary most; the chosen blocks travel one layer ahead. The first layer "
                    "attends to everything.";
    entry.parameters = {select::blockSize(),
                        select::sinkBlocks(),
                        select::windowBlocks(16),
                        select::windowAddsCurrent(),
                        select::totalBlocks(),
                        {"partial_dims",
                         ParameterType::Integer,
                         "32",
                         1,
                         1024,
                         "channels",
                         "Directions of every key kept on the device for scoring; the public port keeps 32 of 128.",
                         {}},
                        {"warmup_tokens",
                         ParameterType::Integer,
                         "2048",
                         1,
                         1 << 20,
                         "tokens",
                         "First prompt tokens whose queries say along which directions keys are compared.",
                         {}},
                        {"dense_layers",
                         ParameterType::Integer,
                         "1",
                         1,
                         1024,
                         "layers",
                         "First layers that attend to everything: they have no layer before them to guess from.",
                         {}},
                        select::denseLen(0),
                        select::bias(),
                        select::biasScale()};
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        if (config.latent)
            throw Error(ErrorKind::Unsupported,
                        "infinigen needs the query projection of plain heads, and this model "
                        "has latent attention",
                        "use another method");
        SelectionSpec spec = select::commonSpec(values, config);
        spec.denseLayers = values.integer("dense_layers");
        spec.budget.queryAware = select::remainingBlocks(values, spec, 0);
        if (values.integer("partial_dims") > config.headDim)
            throw Error(ErrorKind::BadInput,
                        fmt::format("partial_dims {} is more than the {} channels of a head",
                                    values.integer("partial_dims"), config.headDim),
                        fmt::format("use at most {}", config.headDim));
        return spec;
    };
    entry.makeSelector = [](const ParameterValues& values,
                            const SelectorContext& context) -> std::unique_ptr<Selector> {
        return std::make_unique<InfinigenSelector>(context, values.integer("partial_dims"),
                                                   values.integer("warmup_tokens"));
    };
    entry.onDevice = KVSCOPE_ON_DEVICE(infinigenOnDevice);
    entry.abilities = [](const MethodUse& use) {
        Abilities a = select::usualAbilities(use.backend);
        a.input = a.prompt = a.scores = true;
        a.ahead = Ahead::NextLayer;
        a.latent = false; // the next layer's queries come from the projection of plain heads
        return a;
    };
    entry.memory = [](const MethodUse& use, ContextLength length) -> std::vector<MemoryNeed> {
        const select::Sizes s(use, length);
        const std::int64_t dims = use.values.integer("partial_dims");
        const auto partial = [](std::int64_t bytes) {
            return select::indexOf("partial_keys", "partial keys", Per::KvHead, bytes);
        };
        if (s.gpu) // a GPU pads the directions to pieces of 16 bytes, and keeps them in float32
            return {partial((s.blocks * s.format.blockTokens * s.number + s.dim * 4) * ((dims + 7) / 8 * 8))};
        std::vector<MemoryNeed> needs{partial((s.tokens + s.dim) * dims * s.number)};
        // Products of the sampled queries, until the layer's directions are known; and the scores of a step's keys.
        needs.push_back(select::scratchOf("query_products", "products of queries", Lifetime::Prompt, Per::One,
                                          use.config.kvHeads * 3 * s.dim * s.dim * 8));
        needs.push_back(
            select::scratchOf("token_scores", "scores of tokens", Lifetime::Step, Per::KvHead, s.tokens * 4));
        return needs;
    };
    return entry;
}

} // namespace kvscope
