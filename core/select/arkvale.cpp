// ArkVale (Chen et al., NeurIPS 2024): a budget of resident pages, all attended; important pages come back, the least
// important ones leave.
#include "base/indexed.h"
#include "core/select/arkvale_budget.h"
#include "core/select/common_parameters.h"
#include "core/select/memory_sizes.h"
#include "core/select/next_query.h"
#include "core/select/page_digests.h"
#include "core/select/prompt_states.h"
#include "core/select/range_products.h"

#include "base/error.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <optional>

namespace kvscope {

select::PageBudget::PageBudget(const ParameterValues& values)
    : resident(values.integer("page_budget")), sink(values.integer("sink_blocks")),
      window(values.integer("window_blocks")) {
    const int topk = values.integer("page_topks") > 0 ? values.integer("page_topks") : resident / 2;
    dynamic = std::max(0, topk - sink - (window - 1));
    if (resident < sink + window + dynamic)
        throw Error(ErrorKind::BadInput,
                    fmt::format("page_budget {} does not hold {} sink, {} window and {} selected pages", resident, sink,
                                window, dynamic),
                    "raise page_budget, or lower page_topks or window_blocks");
}

namespace {

using select::Digest;
using select::PageBudget;
using select::PageDigests;

class ArkVale final : public Selector {
public:
    ArkVale(const SelectorContext& context, const ParameterValues& values)
        : context_(context), budget_(values), shared_(values.text("groups") == "layer" ? context.shape.kvHeads : 1),
          ahead_(values.integer("prefetch_layers") > 0), headAt_(context.heads()), lastQueries_(context),
          next_(ahead_ ? context.sequences() * context.shape.kvHeads : 0) {
        const Digest digest = values.text("digest") == "bounds" ? Digest::Bounds : Digest::CuboidMean;
        heads_.resize(headAt_.size());
        for (const RowId sequence : idsUpTo<RowId>(context.sequences()))
            for (const LayerId layer : idsUpTo<LayerId>(context.shape.layers))
                for (const KvHeadId g : context.kvHeads())
                    if (context.plans[layer].sparse)
                        of(layer, sequence, g).digests = PageDigests(context.shape.dim, context.spec.blockSize,
                                                                     context.maxTokensOf(sequence), digest);
    }

    void prompt(const PromptPiece& piece) override {
        if (piece.first + piece.n < piece.promptTokens) return;
        const QueryExtents queryAt = context_.queries(piece.n);
        const float* last = piece.rows.q + queryAt.first(piece.n - 1);
        lastQueries_.of(piece).assign(last, last + queryAt.under(0));
    }
    void promptDone(LayerId layer, RowId sequence, int tokens, std::vector<PrefetchRequest>& seeds) override;
    void append(std::span<HeadStep> heads) override {
        for (const HeadStep& item : heads) of(item.layer, item.sequence, item.kvHead).digests.append(item.rows.key, 1);
    }
    void score(std::span<HeadStep> heads) override {
        if (heads[0].layer != nextLayer_) scoreAll(heads);
    }
    void choose(std::span<HeadStep> heads) override;
    void lookAhead(std::span<HeadStep> heads, std::vector<PrefetchRequest>& requests) override;

private:
    struct Head {
        PageDigests digests;
        std::vector<std::int32_t> resident; // ascending
    };
    Head& of(LayerId layer, RowId sequence, KvHeadId kvHead) { return heads_[headAt_.offset(sequence, layer, kvHead)]; }
    void scoreGroup(std::span<HeadStep> group);
    void chooseGroup(std::span<HeadStep> group);
    void scoreAll(std::span<HeadStep> heads);
    void chooseAll(std::span<HeadStep> heads);

    const SelectorContext context_;
    const PageBudget budget_;
    const int shared_; // KV heads with one page set
    const bool ahead_; // a layer's pages are chosen in the layer before it
    const HeadExtents headAt_;
    select::PromptStates<std::vector<float>> lastQueries_; // of each prompt's last token, [queryHeads, dim]
    std::vector<Head> heads_;
    Numbered<HeadStep> next_;          // choices for layer nextLayer_, in the order of the present layer's items
    std::optional<LayerId> nextLayer_; // the layer for which lookAhead has chosen
    std::vector<float> queries_;       // guessed for nextLayer_, [rows, queryHeads, dim]
};

/// Writes the scores of all pages to the first item's queryAware: of a complete page its bound, averaged over the query
/// heads of all items; of a page without a digest -inf.
void ArkVale::scoreGroup(std::span<HeadStep> group) {
    HeadStep& first = group.front();
    const int dim = context_.shape.dim, pages = first.position / context_.spec.blockSize + 1;
    first.queryAware.assign(pages, -std::numeric_limits<float>::infinity());
    first.windowScores.resize(2 * dim);
    for (const HeadStep& item : group) {
        const PageDigests& digests = of(item.layer, item.sequence, item.kvHead).digests;
        first.queryAgnostic.resize(std::min(pages, digests.pages()));
        select::rangeProducts(item.rows.q, context_.group(), dim, digests.ranges(), first.windowScores,
                              first.queryAgnostic);
        const float share = 1.f / float(int(group.size()) * context_.group());
        for (std::size_t page = 0; page < first.queryAgnostic.size(); ++page) {
            float& score = first.queryAware[page];
            score = (&item == &first ? 0.f : score) + share * first.queryAgnostic[page];
        }
    }
}

/// Makes the pages of the highest scores resident, and takes resident pages of the lowest scores out until the budget
/// is kept. The items attend to all pages that are resident then.
void ArkVale::chooseGroup(std::span<HeadStep> group) {
    HeadStep& first = group.front();
    Head& head = of(first.layer, first.sequence, first.kvHead);
    const int pages = first.position / context_.spec.blockSize + 1;
    const Numbered<float>& scores = first.queryAware;
    const auto visible = [&](int page) { return page >= first.firstBlock; };
    const auto better = [&](std::int32_t a, std::int32_t b) {
        const float left = scores[a], right = scores[b];
        return left != right ? left > right : a < b;
    };
    Numbered<Origin> origins(pages,
                             Origin::QueryAgnostic); // of pages that are resident and were not chosen now
    Numbered<std::uint8_t> pinned(pages, 0);
    const auto pin = [&](int page, Origin origin) {
        if (pinned[page] == 0) pinned[page] = 1, origins[page] = origin;
    };
    for (int page = 0; page < std::min(budget_.sink, pages); ++page)
        if (visible(page)) pin(page, Origin::Sink);
    for (int page = std::max(first.firstBlock, pages - budget_.window); page < pages; ++page) pin(page, Origin::Window);
    std::vector<std::int32_t>& candidates = first.order;
    candidates.clear();
    for (int page = std::max(budget_.sink, first.firstBlock); page < pages - budget_.window + 1; ++page)
        candidates.push_back(page);
    std::sort(candidates.begin(), candidates.end(), better);
    for (std::size_t i = 0; i < std::min<std::size_t>(candidates.size(), Elements(budget_.dynamic)); ++i)
        pin(candidates[i], Origin::QueryAware);

    std::vector<std::int32_t> resident, victims;
    std::erase_if(head.resident, [&](std::int32_t page) { return !visible(page); });
    for (int page = first.firstBlock; page < pages; ++page) {
        const bool was = std::binary_search(head.resident.begin(), head.resident.end(), page);
        if (was || pinned[page] != 0) resident.push_back(page);
        if (was && pinned[page] == 0) victims.push_back(page);
    }
    // Lowest score first, of equals the lower page.
    std::sort(victims.begin(), victims.end(), [&](std::int32_t a, std::int32_t b) {
        const float left = scores[a], right = scores[b];
        return left != right ? left < right : a < b;
    });
    for (std::size_t i = 0; int(resident.size()) > budget_.resident && i < victims.size(); ++i)
        resident.erase(std::lower_bound(resident.begin(), resident.end(), victims[i]));
    for (HeadStep& item : group) {
        of(item.layer, item.sequence, item.kvHead).resident = resident;
        item.wanted = resident;
        item.selected.clear();
        for (const std::int32_t page : resident) {
            const float score = scores[page];
            item.selected.push_back(
                {page, origins[page], std::isfinite(score) ? score : std::numeric_limits<float>::quiet_NaN()});
        }
    }
}

void ArkVale::scoreAll(std::span<HeadStep> heads) {
    forEachGroup(context_.kernels, heads, shared_, [&](std::span<HeadStep> group) {
        if (!group.front().dense) scoreGroup(group);
    });
}

void ArkVale::chooseAll(std::span<HeadStep> heads) {
    forEachGroup(context_.kernels, heads, shared_, [&](std::span<HeadStep> group) {
        if (!group.front().dense) chooseGroup(group);
    });
}

void ArkVale::choose(std::span<HeadStep> heads) {
    if (heads[0].layer != nextLayer_) return chooseAll(heads);
    for (std::size_t i = 0; i < heads.size(); ++i) {
        if (heads[i].dense) continue;
        heads[i].selected.swap(next_[i].selected);
        heads[i].wanted.swap(next_[i].wanted);
    }
    nextLayer_.reset();
}

/// Guesses the next layer's queries by that layer's projection of this layer's input, and chooses the next layer's
/// pages by them. Pages that must be loaded travel while this layer attends.
void ArkVale::lookAhead(std::span<HeadStep> heads, std::vector<PrefetchRequest>& requests) {
    const LayerId target = next(heads[0].layer);
    if (!context_.plans.sparse(target)) return;
    select::nextQueries(context_, target, heads, queries_);
    const std::span<HeadStep> items(next_.data(), heads.size());
    const std::size_t perItem = context_.queries(1).under(1); // numbers of a KV head's queries
    for (std::size_t i = 0; i < heads.size(); ++i) {
        select::placeAhead(context_, target, heads[i], items[i]);
        items[i].rows.q = queries_.data() + i * perItem;
    }
    scoreAll(items);
    chooseAll(items);
    nextLayer_ = target;
    if (!context_.cache.offloaded(target)) return;
    for (const HeadStep& item : items) {
        if (item.dense) continue;
        requests.push_back({target, item.sequence, item.kvHead, item.wanted});
    }
}

/// Makes pages of the prompt resident: those that score best for the query of the last prompt token, as many as the
/// whole budget holds.
void ArkVale::promptDone(LayerId layer, RowId sequence, int tokens, std::vector<PrefetchRequest>& seeds) {
    const BlockLayout& layout = context_.cache.layout();
    const std::vector<float> lastQuery = lastQueries_.take(layer, sequence);
    if (!context_.plans[layer].sparse) return;
    Numbered<HeadStep> items(context_.shape.kvHeads);
    const QueryExtents queryAt = context_.queries(1);
    for (const KvHeadId g : context_.kvHeads()) {
        Head& head = of(layer, sequence, g);
        const KvHead& cached = context_.cache.head(sequence, layer, g);
        for (int token = 0; token < tokens; ++token)
            head.digests.append(context_.cache.storedKey(cached, token), layout.blockSize);
        HeadStep& item = items[index(g)];
        item.layer = layer;
        item.sequence = sequence;
        item.kvHead = g;
        item.position = tokens - 1;
        item.firstToken = context_.rules.firstTokenOf(layer, item.position);
        item.firstBlock = item.firstToken / layout.blockSize;
        item.rows.q = lastQuery.data() + queryAt.first(0, g);
        head.resident.clear();
        for (int page = item.firstBlock; page <= item.position / layout.blockSize; ++page)
            head.resident.push_back(page); // all of the prompt: the choice below leaves the budget's best
    }
    scoreAll(items);
    chooseAll(items);
    for (const HeadStep& item : items) seeds.push_back({layer, sequence, item.kvHead, item.wanted});
}

std::vector<Parameter> arkValeParameters() {
    Parameter pageSize = select::blockSize();
    pageSize.defaultValue = "32";
    return {
        pageSize,
        {"page_budget",
         ParameterType::Integer,
         "128",
         1,
         65536,
         "blocks",
         "Resident pages, all attended.",
         {},
         [](const SparseConfig& c) { return select::whereBudgeted(c, c.totalBlocks); }},
        {"page_topks",
         ParameterType::Integer,
         "0",
         0,
         65536,
         "blocks",
         "Pages that must be resident, sink and window included; 0: half of page_budget.",
         {}},
        {"sink_blocks", ParameterType::Integer, "2", 0, 64, "blocks", "First pages, always resident.", {}},
        {"window_blocks",
         ParameterType::Integer,
         "2",
         1,
         4096,
         "blocks",
         "Most recent pages, always resident, the newest included.",
         {}},
        {"groups",
         ParameterType::Choice,
         "layer",
         0,
         0,
         "",
         "layer: all KV heads share one page set; head: one for each KV head.",
         {"layer", "head"}},
        {"digest",
         ParameterType::Choice,
         "cuboid-mean",
         0,
         0,
         "",
         "cuboid-mean: centre of the keys' ranges and their mean distance from it, as SparseServe uses it too; bounds: "
         "the ranges.",
         {"cuboid-mean", "bounds"}},
        {"skip_layers",
         ParameterType::Integer,
         "2",
         0,
         1024,
         "layers",
         "First layers that use full attention and keep their whole cache on the device.",
         {},
         select::noLayers},
        {"prefetch_layers",
         ParameterType::Integer,
         "0",
         0,
         1,
         "layers",
         "1: a layer's pages are chosen one layer ahead, by its own query projection of the input that the layer "
         "before "
         "has, and recalled while that one attends; 0: in the layer itself, which waits for them.",
         {}},
        select::bias(),
        select::biasScale()};
}

} // namespace

MethodEntry arkValeMethod() {
    MethodEntry entry;
    entry.name = "arkvale";
    entry.title = "ArkVale";
    entry.source = "ArkVale: Efficient Generative LLM Inference with Recallable Key-Value Eviction";
    entry.summary =
        "Keeps a budget of pages on the device and attends to all of them. A digest of every page bounds q.k; the "
        "pages "
        "of the highest bounds are recalled, the resident ones of the lowest leave. One page set for the whole layer.";
    entry.parameters = arkValeParameters();
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        if (config.latent && values.integer("prefetch_layers") > 0)
            throw Error(ErrorKind::Unsupported,
                        "arkvale's prefetch needs the query projection of plain heads, and this model has latent "
                        "attention",
                        "set prefetch_layers=0");
        SelectionSpec spec = select::commonSpec(values, config);
        const PageBudget budget(values);
        spec.budget = {budget.sink, budget.window, false, budget.resident - budget.sink - budget.window, 0};
        spec.denseLayers = values.integer("skip_layers");
        return spec;
    };
    entry.makeSelector = [](const ParameterValues& values,
                            const SelectorContext& context) -> std::unique_ptr<Selector> {
        return std::make_unique<ArkVale>(context, values);
    };
    entry.onDevice = KVSCOPE_ON_DEVICE(arkvaleOnDevice);
    entry.abilities = [](const MethodUse& use) {
        Abilities a = select::usualAbilities(use.backend);
        a.prompt = a.scores = true;
        if (use.values.integer("prefetch_layers") == 0) return a;
        a.input = true;
        a.ahead = Ahead::NextLayer;
        a.latent = false; // the next layer's queries come from the projection of plain heads
        return a;
    };
    entry.memory = [](const MethodUse& use, ContextLength length) -> std::vector<MemoryNeed> {
        const select::Sizes s(use, length);
        std::vector<MemoryNeed> needs{select::digestsOf(s)};
        const int sets = use.values.text("groups") == "layer" ? 1 : use.config.kvHeads;
        if (s.gpu)
            needs.push_back(
                select::asLongest(s, select::indexOf("resident_pages", "resident pages", Per::Row, sets * s.blocks)));
        return needs;
    };
    return entry;
}

} // namespace kvscope
