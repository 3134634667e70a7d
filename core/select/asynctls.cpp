// AsyncTLS: a block filter chooses the blocks that are on the device, and a step attends to tokens that are chosen
// among those of these blocks. The blocks that the filter chooses by one step's query are loaded for the next step, so
// that their transfers have a whole step.
#include "base/indexed.h"
#include "core/select/common_parameters.h"
#include "core/select/label_index.h"
#include "core/select/memory_sizes.h"
#include "core/select/range_products.h"

#include "base/error.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope {
namespace {

using select::TokenRange;

class AsyncTls final : public Selector {
public:
    AsyncTls(const SelectorContext& context, const ParameterValues& values)
        : context_(context), tokens_(values.integer("k_t")), lag_(values.text("lag") == "1"),
          labels_(context, values.integer("d_c"), std::stoi(values.text("label_bits")),
                  select::ChannelRule::ProductOfMaxima),
          headAt_(context.heads()), heads_(headAt_.size()), lastQueries_(context) {}

    void prompt(const PromptPiece& piece) override;
    void promptDone(LayerId layer, RowId sequence, int tokens, std::vector<PrefetchRequest>& seeds) override;
    void append(std::span<HeadStep> heads) override {
        for (HeadStep& item : heads) item.head->index.append(item.rows.key, item.rows.score);
        labels_.append(heads);
    }
    void score(std::span<HeadStep> heads) override {
        forEachItem(context_.kernels, heads, [&](HeadStep& item) { scoreOne(item); });
    }
    void choose(std::span<HeadStep> heads) override {
        forEachItem(context_.kernels, heads, [&](HeadStep& item) { chooseOne(item); });
    }
    void after(std::span<HeadStep> heads, std::vector<PrefetchRequest>& requests) override {
        for (const HeadStep& item : heads)
            requests.push_back(
                {item.layer, item.sequence, item.kvHead, of(item.layer, item.sequence, item.kvHead).next});
    }

private:
    struct Head {
        std::vector<std::int32_t> next; // blocks that the latest query chose: with a lag, the next step's candidates
        std::vector<std::int32_t> candidates; // blocks among whose tokens this step chooses
        std::vector<TokenRange> ranges;       // the tokens of `candidates`
        Numbered<float> blockScores;
    };
    Head& of(LayerId layer, RowId sequence, KvHeadId kvHead) { return heads_[headAt_.offset(sequence, layer, kvHead)]; }
    void chooseCandidates(HeadStep& item, std::vector<float>& scores, std::vector<std::int32_t>& blocks);
    void scoreOne(HeadStep& item);
    void chooseOne(HeadStep& item);

    const SelectorContext context_;
    const int tokens_;
    const bool lag_;
    select::LabelIndex labels_;
    const HeadExtents headAt_;
    std::vector<Head> heads_;
    select::PromptStates<std::vector<float>> lastQueries_; // of each prompt's last token, [queryHeads, dim]
};

/// Chooses the blocks M_t of the paper for the item's query: sink, window and newest block, and the best others by the
/// bound of q.k, summed over the group. Writes the bounds to `scores`.
void AsyncTls::chooseCandidates(HeadStep& item, std::vector<float>& scores, std::vector<std::int32_t>& blocks) {
    const int dim = context_.shape.dim, count = item.position / context_.spec.blockSize + 1;
    item.windowScores.resize(2 * dim);
    item.queryAware.resize(count);
    select::rangeProducts(item.rows.q, context_.group(), dim, item.head->index.ranges(), item.windowScores,
                          item.queryAware);
    scores = item.queryAware;
    chooseBlocks(context_.spec, item);
    blocks = item.wanted;
}

void AsyncTls::prompt(const PromptPiece& piece) {
    labels_.prompt(piece);
    if (piece.first + piece.n < piece.promptTokens) return;
    const QueryExtents queryAt = context_.queries(piece.n);
    const float* last = piece.rows.q + queryAt.first(piece.n - 1);
    lastQueries_.of(piece).assign(last, last + queryAt.under(0));
}

/// Chooses the first step's candidates by the query of the last prompt token. They stay on the device, where they were
/// computed.
void AsyncTls::promptDone(LayerId layer, RowId sequence, int tokens, std::vector<PrefetchRequest>& seeds) {
    labels_.promptDone(layer, sequence, tokens);
    const std::vector<float> lastQuery = lastQueries_.take(layer, sequence);
    const QueryExtents queryAt = context_.queries(1);
    HeadStep item;
    item.position = tokens - 1;
    item.firstToken = context_.rules.firstTokenOf(layer, item.position);
    item.firstBlock = item.firstToken / context_.spec.blockSize;
    for (const KvHeadId g : context_.kvHeads()) {
        Head& head = of(layer, sequence, g);
        item.head = &context_.cache.head(sequence, layer, g);
        item.rows.q = lastQuery.data() + queryAt.first(0, g);
        chooseCandidates(item, head.blockScores, head.next);
        seeds.push_back({layer, sequence, g, head.next});
    }
}

void AsyncTls::scoreOne(HeadStep& item) {
    Head& head = of(item.layer, item.sequence, item.kvHead);
    const int size = context_.spec.blockSize, current = item.position / size;
    head.candidates.swap(head.next);
    chooseCandidates(item, head.blockScores, head.next);
    if (lag_) {
        std::erase_if(head.candidates, [&](std::int32_t block) { return block < item.firstBlock; });
        if (head.candidates.empty() || head.candidates.back() != current) head.candidates.push_back(current);
        item.stale = 0;
        for (const std::int32_t block : head.next)
            item.stale += std::binary_search(head.candidates.begin(), head.candidates.end(), block) ? 0 : 1;
    } else {
        head.candidates = head.next;
    }
    head.ranges.clear();
    for (const std::int32_t block : head.candidates)
        head.ranges.push_back(
            {std::max(item.firstToken, block * size), std::min(item.position + 1, (block + 1) * size)});
    select::labelScores(labels_.labels(item.layer, item.sequence, item.kvHead),
                        labels_.channels(item.layer, item.sequence, item.kvHead), item.rows.q, context_.group(),
                        context_.shape.dim, context_.rules.scale, 16, head.ranges, item.windowScores, item.queryAware);
}

void AsyncTls::chooseOne(HeadStep& item) {
    const Head& head = of(item.layer, item.sequence, item.kvHead);
    const int size = context_.spec.blockSize;
    select::bestTokens(head.ranges, item.queryAware, tokens_, item.order, item.tokens);
    item.byToken = true;
    item.wanted = head.candidates;
    item.selected.clear();
    for (const std::int32_t token : item.tokens)
        if (item.selected.empty() || item.selected.back().block != token / size)
            item.selected.push_back({token / size, Origin::TokenLevel, head.blockScores[token / size]});
}

} // namespace

MethodEntry asyncTlsMethod() {
    MethodEntry entry;
    entry.name = "asynctls";
    entry.title = "AsyncTLS";
    entry.source = "AsyncTLS, two-level sparse attention with asynchronous offloading";
    entry.summary =
        "Key ranges choose blocks, four-bit labels choose tokens inside them. With a lag of one step the tokens come "
        "from the blocks that the step before chose, so that transfers overlap a whole step; what that misses is "
        "recorded. Channels come from double_sparsity.safetensors beside the model, or else from the prompt.";
    entry.parameters = {
        select::blockSize(),
        {"k_b",
         ParameterType::Integer,
         "128",
         1,
         65536,
         "blocks",
         "Blocks each KV head keeps on the device as candidates, sink and window included; the newest comes on top.",
         {},
         [](const SparseConfig& c) { return select::whereBudgeted(c, c.totalBlocks); }},
        {"k_t", ParameterType::Integer, "512", 1, 1 << 24, "tokens", "Tokens each KV head attends.", {}},
        {"d_c",
         ParameterType::Integer,
         "32",
         1,
         1024,
         "channels",
         "Channels of a key that its label keeps; at most those of a head.",
         {}},
        select::labelBits(),
        {"lag",
         ParameterType::Choice,
         "1",
         0,
         0,
         "steps",
         "1: tokens are chosen among the blocks of the step before; 0: among this step's own, loaded on demand.",
         {"0", "1"}},
        {"sink_blocks", ParameterType::Integer, "0", 0, 64, "blocks", "First blocks that stay candidates.", {}},
        {"window_blocks",
         ParameterType::Integer,
         "0",
         0,
         4096,
         "blocks",
         "Blocks before the newest one that stay candidates.",
         {}},
        select::bias(),
        select::biasScale()};
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        SelectionSpec spec = select::commonSpec(values, config);
        const int blocks = values.integer("k_b"), sink = values.integer("sink_blocks"),
                  window = values.integer("window_blocks");
        if (sink + window > blocks)
            throw Error(
                ErrorKind::BadInput,
                fmt::format("k_b {} is smaller than the {} blocks that sink and window take", blocks, sink + window),
                "raise k_b, or lower sink_blocks or window_blocks");
        spec.queryScore = QueryScore::RangeBound;
        spec.budget = {sink, window, true, blocks - sink - window, 0};
        spec.spareSlots = values.text("lag") == "1"
                              ? 1
                              : 0; // a block that begins in this step joins the blocks that the step before chose
        spec.traceBudget = spec.budgetBlocks() + spec.spareSlots;
        return spec;
    };
    entry.makeSelector = [](const ParameterValues& values,
                            const SelectorContext& context) -> std::unique_ptr<Selector> {
        return std::make_unique<AsyncTls>(context, values);
    };
    entry.onDevice = KVSCOPE_ON_DEVICE(asyncTlsOnDevice);
    entry.abilities = [](const MethodUse& use) {
        Abilities a = select::usualAbilities(use.backend);
        a.prompt = a.scores = true;
        a.valuesByToken = use.backend == Backend::Cuda;
        const bool early = use.values.text("lag") == "1" && (use.backend == Backend::Cuda || use.offload);
        if (early) a.ahead = Ahead::NextStep;
        return a;
    };
    entry.attendsAtMost = [](const MethodUse& use, ContextLength) { // k_t tokens, or as many as the candidates have
        return std::min<std::int64_t>(std::int64_t(use.spec.budgetBlocks()) * use.spec.blockSize,
                                      use.values.integer("k_t"));
    };
    entry.memory = [](const MethodUse& use, ContextLength length) -> std::vector<MemoryNeed> {
        const select::Sizes s(use, length);
        const std::int64_t channels = std::min<std::int64_t>(use.values.integer("d_c"), s.dim);
        std::vector<MemoryNeed> needs{select::labelsOf(s, channels, use.values.text("label_bits") == "4")};
        if (s.gpu) return needs;
        const std::int64_t candidates = s.atMost(std::int64_t(use.spec.budgetBlocks()) * use.spec.blockSize);
        needs.push_back(
            select::indexOf("candidates", "candidate blocks", Per::KvHead, s.blocks * 4 + s.blocksOf(candidates) * 16));
        needs.push_back(
            select::chosenTokens(s, s.atMost(use.values.integer("k_t")), (use.config.group() + 2) * candidates));
        return needs;
    };
    return entry;
}

} // namespace kvscope
