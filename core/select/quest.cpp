// Quest (Tang et al., ICML 2024): per-channel key ranges bound q.k of a block from above.
#include "core/select/common_parameters.h"
#include "core/select/denoising.h"
#include "core/select/memory_sizes.h"
#include "core/select/page_digests.h"
#include "core/select/range_products.h"

#include "base/error.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace kvscope {
namespace {

using select::Digest;
using select::PageDigests;

/// Bounds q.k of a block by products of the queries' positive and negative parts with two vectors of the block. With a
/// digest these are PageDigests, which only complete blocks have; without one they are the key ranges of the block
/// index, which the newest block has too.
class QuestProducts : public Selector {
public:
    QuestProducts(const SelectorContext& context, std::optional<Digest> digest)
        : context_(context), headAt_(context.heads()) {
        if (!digest) return;
        digests_.resize(headAt_.size());
        for (const RowId sequence : idsUpTo<RowId>(context.sequences()))
            for (const LayerId layer : idsUpTo<LayerId>(context.shape.layers))
                for (const KvHeadId g : context.kvHeads())
                    if (context.plans[layer].sparse)
                        of(layer, sequence, g) = PageDigests(context.shape.dim, context.spec.blockSize,
                                                             context.maxTokensOf(sequence), *digest);
    }

    void promptDone(LayerId layer, RowId sequence, int tokens, std::vector<PrefetchRequest>&) override {
        if (!context_.plans[layer].sparse) return;
        const int stride = context_.cache.layout().blockSize;
        context_.forEachKvHead([&](KvHeadId g) {
            const KvHead& head = context_.cache.head(sequence, layer, g);
            for (int token = 0; token < tokens; ++token)
                of(layer, sequence, g).append(context_.cache.storedKey(head, token), stride);
        });
    }
    void append(std::span<HeadStep> heads) override {
        for (const HeadStep& item : heads)
            if (digests_.empty())
                item.head->index.append(item.rows.key, item.rows.score);
            else
                of(item.layer, item.sequence, item.kvHead).append(item.rows.key, 1);
    }
    void score(std::span<HeadStep> heads) override {
        forEachItem(context_.kernels, heads, [&](HeadStep& item) {
            if (!item.dense) scoreOne(item);
        });
    }
    void choose(std::span<HeadStep> heads) override {
        for (HeadStep& item : heads)
            if (!item.dense) chooseBlocks(context_.spec, item);
    }

protected:
    /// Writes to `scores` the bounds of every block up to the item's own, added up over the `queries` query heads from
    /// q on; -inf for a block without the two vectors.
    void bound(HeadStep& item, const float* q, int queries, Numbered<float>& scores) {
        const int dim = context_.shape.dim, blocks = item.position / context_.spec.blockSize + 1;
        const bool ofIndex = digests_.empty();
        const PageDigests* pages = ofIndex ? nullptr : &of(item.layer, item.sequence, item.kvHead);
        scores.assign(blocks, -std::numeric_limits<float>::infinity());
        item.windowScores.resize(2 * dim);
        select::rangeProducts(q, queries, dim, ofIndex ? item.head->index.ranges() : pages->ranges(), item.windowScores,
                              NumberedSpan<float>(scores.data(), ofIndex ? blocks : std::min(blocks, pages->pages())));
    }

    const SelectorContext context_;

private:
    PageDigests& of(LayerId layer, RowId sequence, KvHeadId kvHead) {
        return digests_[headAt_.offset(sequence, layer, kvHead)];
    }
    void scoreOne(HeadStep& item) {
        if (context_.spec.rangeReduce == GroupReduce::Sum)
            return bound(item, item.rows.q, context_.group(), item.queryAware);
        bound(item, item.rows.q, 1, item.queryAware);
        for (int h = 1; h < context_.group(); ++h) { // one query head at a time
            bound(item, item.rows.q + h * context_.shape.dim, 1, item.queryAgnostic);
            for (std::size_t b = 0; b < item.queryAware.size(); ++b)
                item.queryAware[b] = std::max(item.queryAware[b], item.queryAgnostic[b]);
        }
        item.queryAgnostic.clear();
    }

    const HeadExtents headAt_;
    std::vector<PageDigests> digests_; // empty: the block index has the ranges
};

/// As in the paper, every query head chooses blocks for itself. The device holds the union of the blocks that the query
/// heads of a group chose, and each query head attends to its own blocks.
class QuestPerHead final : public QuestProducts {
public:
    QuestPerHead(const SelectorContext& context, std::optional<Digest> digest, int dynamicBlocks)
        : QuestProducts(context, digest), perHead_(context.spec),
          chosen_(context.sequences() * context.rules.queryHeads) {
        perHead_.budget.queryAware = dynamicBlocks;
    }

    void score(std::span<HeadStep>) override {} // choose() scores each query head before it chooses for it
    void choose(std::span<HeadStep> heads) override {
        const NumberedSpan<HeadStep> items(heads);
        context_.kernels.forEach(items.count(), [&](int i) {
            if (!items[i].dense) chooseOne(items[i], i * context_.group());
        });
    }
    bool attend(std::span<HeadStep> heads) override {
        const int group = context_.group(), dim = context_.shape.dim, valueDim = context_.shape.valueDim;
        const NumberedSpan<HeadStep> steps(heads);
        Numbered<std::vector<KvBlockView>> views(steps.count() * group);
        std::vector<AttentionItem> items;
        for (int i = 0; i < views.count(); ++i) {
            HeadStep& item = steps[i / group];
            const int h = i % group;
            for (std::size_t b = 0; b < item.selected.size(); ++b) // views: one for each selected block
                if (std::binary_search(chosen_[i].begin(), chosen_[i].end(), item.selected[b].block))
                    views[i].push_back(item.views[b]);
            items.push_back({item.rows.q + h * dim, views[i].data(), std::int32_t(views[i].size()),
                             item.rows.out + h * valueDim, item.lse.empty() ? nullptr : item.lse.data() + h});
        }
        context_.kernels.blockAttention({1, dim, context_.spec.blockSize, dim, valueDim, context_.rules.scale,
                                         context_.spec.bias.scale, items, valueDim, context_.cache.format()});
        return true;
    }

private:
    void chooseOne(HeadStep& item, int firstHead) {
        std::vector<SelectedBlock> all;
        for (int h = 0; h < context_.group(); ++h) {
            bound(item, item.rows.q + h * context_.shape.dim, 1, item.queryAware);
            chooseBlocks(perHead_, item);
            chosen_[firstHead + h] = item.wanted;
            all.insert(all.end(), item.selected.begin(), item.selected.end());
        }
        std::stable_sort(all.begin(), all.end(),
                         [](const SelectedBlock& a, const SelectedBlock& b) { return a.block < b.block; });
        item.selected.clear();
        item.wanted.clear();
        for (const SelectedBlock& block : all) {
            if (!item.selected.empty() && item.selected.back().block == block.block) {
                item.selected.back().score = std::max(item.selected.back().score, block.score);
                continue;
            }
            item.selected.push_back(block);
            item.wanted.push_back(block.block);
        }
    }

    SelectionSpec perHead_;                      // one query head's share of the budget
    Numbered<std::vector<std::int32_t>> chosen_; // [item, query head of the group], ascending
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
    Parameter page = select::blockSize(), sink = select::sinkBlocks();
    page.defaultValue = "16";
    sink.defaultValue = "0"; // the paper forces the newest page only
    entry.parameters = {page,
                        sink,
                        select::windowBlocks(0),
                        select::windowAddsCurrent(),
                        select::totalBlocks(),
                        {"skip_layers",
                         ParameterType::Integer,
                         "2",
                         0,
                         1024,
                         "layers",
                         "First layers that use full attention and keep their whole cache on the device.",
                         {},
                         select::noLayers},
                        {"group",
                         ParameterType::Choice,
                         "sum",
                         0,
                         0,
                         "",
                         "How the bounds of the query heads that share a KV head are combined; per_query_head: not at "
                         "all, each takes blocks of its own, and what the device holds is their union.",
                         {"sum", "max", "per_query_head"}},
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
    entry.denoisingParameters = select::pageDenoisingParameters(false);
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        if (config.diffusion) return select::denoisingSpec(values);
        SelectionSpec spec = select::commonSpec(values, config);
        const bool products = values.text("bound") != "max", perHead = values.text("group") == "per_query_head";
        spec.queryScore = products ? QueryScore::None : QueryScore::RangeBound;
        if ((products || perHead) && spec.sparsePrefill)
            throw Error(ErrorKind::BadInput,
                        (products ? "bound=" + values.text("bound") : "group=per_query_head") +
                            " reads prompts with full attention",
                        "leave prefill=sparse out, or use bound=max with group=sum or max");
        spec.rangeReduce = values.text("group") == "max" ? GroupReduce::Max : GroupReduce::Sum;
        spec.denseLayers = values.integer("skip_layers");
        spec.budget.queryAware = select::remainingBlocks(values, spec, 0);
        if (perHead) spec.budget.queryAware *= config.group(); // the most that the union of a group's choices has
        spec.givesBlockScores = !perHead;
        return spec;
    };
    entry.makeSelector = [](const ParameterValues& values,
                            const SelectorContext& context) -> std::unique_ptr<Selector> {
        std::optional<Digest> digest;
        if (values.text("bound") == "product") digest = Digest::Bounds;
        if (values.text("bound") == "cuboid-mean") digest = Digest::CuboidMean;
        if (values.text("group") == "per_query_head")
            return std::make_unique<QuestPerHead>(context, digest, select::remainingBlocks(values, context.spec, 0));
        if (!digest) return nullptr; // the method is data then
        return std::make_unique<QuestProducts>(context, digest);
    };
    entry.onDevice = KVSCOPE_ON_DEVICE(questOnDevice);
    entry.readsWholePrompts = false;
    entry.abilities = [](const MethodUse& use) {
        if (use.config.diffusion) return dataAbilities(use.spec);
        const bool products = use.values.text("bound") != "max";
        if (!products && use.values.text("group") != "per_query_head") return dataAbilities(use.spec);
        Abilities a = select::usualAbilities(use.backend);
        a.scores = a.pastWindow = true;
        a.quantisedKv = use.backend == Backend::Cpu;
        a.prompt = products;
        return a;
    };
    entry.memory = [](const MethodUse& use, ContextLength length) -> std::vector<MemoryNeed> {
        if (use.config.diffusion || use.values.text("bound") == "max") return {}; // the ranges of the block index
        return {select::digestsOf(select::Sizes(use, length))};
    };
    return entry;
}

} // namespace kvscope
