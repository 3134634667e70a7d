// Quest (Tang et al., ICML 2024): per-channel key ranges bound q.k of a block from above.
#include "core/select/common_parameters.h"
#include "core/select/page_digests.h"
#include "core/select/range_products.h"

#include "kernels/base/error.h"

#include <limits>

namespace kvscope {
namespace {

using select::Digest;
using select::PageDigests;

/// Bounds as products of the queries' negative and positive parts with two vectors per complete block. The newest block
/// has none until it is full; the window attends to it.
class QuestProducts final : public Selector {
public:
    QuestProducts(const SelectorContext& context, Digest digest) : context_(context) {
        for (const int tokens : context.maxTokens)
            for (int i = 0; i < context.shape.layers * context.shape.kvHeads; ++i)
                digests_.emplace_back(context.shape.dim, context.spec.blockSize, tokens, digest);
    }

    Needs needs() const override { return {.prompt = true}; }
    void promptDone(int layer, int sequence, int tokens, std::vector<PrefetchRequest>&) override {
        if (layer < context_.spec.denseLayers) return;
        const int size = context_.cache.layout().blockSize;
        context_.kernels.forEach(context_.shape.kvHeads, [&](int g) {
            KvHead& head = context_.cache.head(sequence, layer, g);
            for (int token = 0; token < tokens; ++token)
                of(layer, sequence, g)
                    .append(context_.cache.storeBlock(head, token / size) + token % size, std::size_t(size));
        });
    }
    void append(std::span<HeadStep> heads) override {
        for (const HeadStep& item : heads) of(item.layer, item.sequence, item.kvHead).append(item.key, 1);
    }
    void score(std::span<HeadStep> heads) override {
        context_.kernels.forEach(int(heads.size()), [&](int i) {
            if (!heads[std::size_t(i)].dense) scoreOne(heads[std::size_t(i)]);
        });
    }
    void choose(std::span<HeadStep> heads) override {
        for (HeadStep& item : heads)
            if (!item.dense) chooseBlocks(context_.spec, item);
    }

private:
    PageDigests& of(int layer, int sequence, int kvHead) {
        return digests_[std::size_t((sequence * context_.shape.layers + layer) * context_.shape.kvHeads + kvHead)];
    }
    void scoreOne(HeadStep& item) {
        const PageDigests& digests = of(item.layer, item.sequence, item.kvHead);
        const int dim = context_.shape.dim, blocks = item.position / context_.spec.blockSize + 1;
        const auto complete = std::size_t(std::min(blocks, digests.pages()));
        item.queryAware.assign(std::size_t(blocks), -std::numeric_limits<float>::infinity());
        item.windowScores.resize(2 * std::size_t(dim));
        const std::span scores(item.queryAware.data(), complete);
        if (context_.spec.rangeReduce == GroupReduce::Sum) {
            select::rangeProducts(item.q, context_.group(), dim, digests.ranges(), item.windowScores, scores);
            return;
        }
        item.queryAgnostic.resize(complete); // of one query head at a time
        for (int h = 0; h < context_.group(); ++h) {
            select::rangeProducts(item.q + std::size_t(h * dim), 1, dim, digests.ranges(), item.windowScores,
                                  item.queryAgnostic);
            for (std::size_t b = 0; b < complete; ++b) scores[b] = std::max(scores[b], item.queryAgnostic[b]);
        }
        item.queryAgnostic.clear();
    }

    const SelectorContext context_;
    std::vector<PageDigests> digests_;
};

} // namespace

MethodEntry questMethod() {
    MethodEntry entry;
    entry.name = "quest";
    entry.title = "Quest";
    entry.source = "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference";
    entry.summary =
        "Keeps the smallest and largest key of every channel per block and takes the blocks whose upper bound of "
        "q.k is highest, scores of a group's heads combined. The first layers attend to everything.";
    entry.parameters = {select::blockSize(),
                        select::sinkBlocks(),
                        select::windowBlocks(1),
                        select::windowAddsCurrent(),
                        select::totalBlocks(),
                        {"skip_layers",
                         ParameterType::Integer,
                         "2",
                         0,
                         1024,
                         "layers",
                         "First layers that use full attention and keep their whole cache on the device.",
                         {}},
                        {"group",
                         ParameterType::Choice,
                         "sum",
                         0,
                         0,
                         "",
                         "How the bounds of the query heads that share a KV head are combined.",
                         {"sum", "max"}},
                        {"bound",
                         ParameterType::Choice,
                         "max",
                         0,
                         0,
                         "",
                         "max: the larger product of every channel with the range's ends; product: the same sum as two "
                         "matrix products, over complete blocks; cuboid-mean: likewise, with the centre of the ranges "
                         "less and plus the keys' mean distance from it, as ArkVale has it.",
                         {"max", "product", "cuboid-mean"}},
                        select::bias(),
                        select::biasScale(),
                        select::prefill()};
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        SelectionSpec spec = select::commonSpec(values, config);
        const bool products = values.text("bound") != "max";
        spec.queryScore = products ? QueryScore::None : QueryScore::RangeBound;
        if (products && spec.sparsePrefill)
            throw Error(ErrorKind::BadInput, "bound=" + values.text("bound") + " reads prompts with full attention",
                        "leave prefill=sparse out, or use bound=max");
        spec.rangeReduce = values.text("group") == "max" ? GroupReduce::Max : GroupReduce::Sum;
        spec.denseLayers = values.integer("skip_layers");
        spec.budget.queryAware = select::remainingBlocks(values, spec, 0);
        return spec;
    };
    entry.makeSelector = [](const ParameterValues& values,
                            const SelectorContext& context) -> std::unique_ptr<Selector> {
        if (values.text("bound") == "max") return nullptr; // is data
        return std::make_unique<QuestProducts>(context,
                                               values.text("bound") == "product" ? Digest::Bounds : Digest::CuboidMean);
    };
    return entry;
}

} // namespace kvscope
