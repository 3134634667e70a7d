// InfLLM (Xiao et al., NeurIPS 2024): blocks of distant context, found by a few representative tokens of each and
// attended as if they all lay at the edge of the local window.
#include "base/indexed.h"
#include "core/select/common_parameters.h"
#include "core/select/infllm_budget.h"
#include "core/select/memory_sizes.h"
#include "core/select/token_choice.h"

#include "base/aligned_buffer.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvscope {
namespace {

using select::ContextBudget;
using select::TokenRange;

class InfLlm final : public Selector {
public:
    InfLlm(const SelectorContext& context, const ParameterValues& values);

    void attendPrompt(const PromptPiece& piece) override;
    void prompt(const PromptPiece& piece) override {
        if (together_ > 0) return;
        keepKeys(piece, piece.first, piece.first + piece.n);
        read(piece, piece.first, piece.first + piece.n);
    }
    void promptDone(LayerId layer, RowId sequence, int tokens, std::vector<PrefetchRequest>&) override;
    void append(std::span<HeadStep> heads) override {
        for (const HeadStep& item : heads) {
            Head& head = of(item.layer, item.sequence, item.kvHead);
            keep(head, item.position, item.rows.plainKey);
            for (auto& mass : head.mass) mass.push_back(0);
            represent(head, firstLocal(item.position, item.firstBlock));
        }
    }
    void score(std::span<HeadStep> heads) override;
    void choose(std::span<HeadStep> heads) override;
    bool attend(std::span<HeadStep> heads) override;
    void after(std::span<HeadStep> heads, std::vector<PrefetchRequest>&) override;

private:
    struct Head {
        AlignedBuffer<float> plainKeys;     // [blocks][dim, blockSize] before rotation, laid out as in a KV block
        Numbered<Numbered<double>> mass;    // [group][token] received inside the local window
        std::vector<float> representatives; // [blocks, group, dim]
        int represented = 0;                // blocks
    };
    Head& of(LayerId layer, RowId sequence, KvHeadId kvHead) { return heads_[headAt_.offset(sequence, layer, kvHead)]; }
    /// The oldest block that a query at `position` sees at its true distance.
    int firstLocal(int position, int firstBlock) const {
        return std::max(firstBlock, std::max(0, position + 1 - budget_.localTokens) / context_.spec.blockSize);
    }
    void keep(Head& head, int position, const float* plainKey);
    void keepKeys(const PromptPiece& piece, int begin, int end);
    void read(const PromptPiece& piece, int begin, int end);
    void attendTogether(const PromptPiece& piece, int begin, int end);
    void chooseTogether(const PromptPiece& piece, int begin, int end);
    void place(HeadStep& item, const PromptPiece& piece, int position, KvHeadId kvHead) const;
    void rotateFixed(std::span<HeadStep> heads);
    void represent(Head& head, int blocks);
    void rankCached(std::span<const HeadStep> heads, int first);
    double worthOf(int index, const KvBlockView& view) const;
    void scoreGroup(std::span<HeadStep> group);
    void reserve(int items);
    /// Of plainKeys: [blocks][dim, blockSize].
    Extents<int, int, int> keysAt(int blocks) const {
        return Extents<int, int, int>(blocks, context_.shape.dim, context_.spec.blockSize);
    }
    /// Of representatives: [blocks, group, dim].
    Extents<int, int, int> representativesAt(int blocks) const {
        return Extents<int, int, int>(blocks, context_.group(), context_.shape.dim);
    }
    const float* fixedQuery(int item, int inGroup = 0) const {
        return fixedQueries_.data() + queryAt_.first(item, inGroup);
    }

    const SelectorContext context_;
    const ContextBudget budget_;
    const int representativeTokens_, shared_; // KV heads with one block set
    const int together_;                      // prompt tokens with one choice of blocks; 0: prompts are read in full
    const HeadExtents headAt_;
    std::vector<Head> heads_;
    AlignedBuffer<float> fixedQueries_; // [items, group, dim] rotated as if `local_tokens` after the keys
    Numbered<std::int32_t> fixedRows_;
    Numbered<Numbered<float>> logits_; // [query head] while a prompt is read
    // Attention in two parts.
    Numbered<std::vector<KvBlockView>> nearViews_, farViews_; // [item]
    std::vector<float> farOut_, nearLse_, farLse_;
    // Of the items that there is room for: fixedQueries_ [items, group, dim], farOut_ [items, group, valueDim], and the
    // log-sum-exps [items, group].
    Extents<int, int, int> queryAt_, outAt_;
    Extents<int, int> lseAt_;
    std::vector<AttentionItem> items_;
    // A prompt: its tokens as if they were steps, and their mean query [kvHeads, group, dim].
    Numbered<HeadStep> promptSteps_, togetherSteps_;
    std::vector<float> meanQuery_;
};

InfLlm::InfLlm(const SelectorContext& context, const ParameterValues& values)
    : context_(context), budget_(values), representativeTokens_(values.integer("repr_topk")),
      shared_(values.text("groups") == "layer" ? context.shape.kvHeads : 1),
      together_(values.text("prefill") == "sparse" ? values.integer("exc_block") : 0), headAt_(context.heads()),
      heads_(headAt_.size()), logits_(context.rules.queryHeads) {
    for (const RowId sequence : idsUpTo<RowId>(context.sequences())) {
        const int tokens = context.maxTokensOf(sequence);
        const int blocks = (tokens + context.spec.blockSize - 1) / context.spec.blockSize;
        for (Head& head : headAt_.part(std::span(heads_), sequence)) {
            head.plainKeys = AlignedBuffer<float>(keysAt(blocks).size());
            head.representatives.resize(representativesAt(blocks).size());
            head.mass.resize(context.group());
            for (auto& mass : head.mass) mass.reserve(tokens);
        }
    }
    reserve(context.sequences() * context.shape.kvHeads);
}

/// Makes room for `items` items that attend together.
void InfLlm::reserve(int items) {
    if (items <= lseAt_.length(0)) return;
    queryAt_ = Extents<int, int, int>(items, context_.group(), context_.shape.dim);
    outAt_ = Extents<int, int, int>(items, context_.group(), context_.shape.valueDim);
    lseAt_ = Extents<int, int>(items, context_.group());
    fixedQueries_ = AlignedBuffer<float>(queryAt_.size());
    fixedRows_.resize(items);
    nearViews_.resize(fixedRows_.size());
    farViews_.resize(fixedRows_.size());
    farOut_.resize(outAt_.size());
    nearLse_.resize(lseAt_.size());
    farLse_.resize(lseAt_.size());
}

void InfLlm::keep(Head& head, int position, const float* plainKey) {
    const BlockLayout& layout = context_.cache.layout();
    const int at = int(layout.blockOf(position));
    float* block = head.plainKeys.data() + keysAt(at + 1).first(at);
    layout.writeKey(block, layout.rowOf(position), plainKey);
}

/// Makes the representatives of the first `blocks` blocks, which have left the local window: for each query head the
/// mean key of the block's tokens that received most attention while they were in the window.
void InfLlm::represent(Head& head, int blocks) {
    const Extents<int, int> keyAt(context_.shape.dim, context_.spec.blockSize); // of a block
    Numbered<float> mass;
    std::vector<std::int32_t> order, best;
    for (; head.represented < blocks; ++head.represented) {
        const int block = head.represented, first = block * context_.spec.blockSize;
        const float* keys = head.plainKeys.data() + keysAt(block + 1).first(block);
        for (int h = 0; h < context_.group(); ++h) {
            const auto begin = head.mass[h].begin() + first;
            mass.assign(begin, begin + context_.spec.blockSize);
            const TokenRange rows{0, context_.spec.blockSize};
            select::bestTokens({&rows, 1}, mass, representativeTokens_, order, best);
            float* to = head.representatives.data() + representativesAt(block + 1).first(block, h);
            for (int c = 0; c < context_.shape.dim; ++c) {
                float sum = 0;
                for (const std::int32_t row : best) sum += keys[keyAt.offset(c, row)];
                to[c] = sum / float(best.size());
            }
        }
    }
}

void InfLlm::keepKeys(const PromptPiece& piece, int begin, int end) {
    const KeyExtents keyAt = context_.keys(piece.n);
    context_.forEachKvHead([&](KvHeadId g) {
        Head& head = of(piece.layer, piece.sequence, g);
        for (int position = begin; position < end; ++position)
            keep(head, position, piece.rows.plainK + keyAt.first(position - piece.first, g));
    });
}

/// Adds to `mass` the attention that the prompt tokens [begin, end) gave to the tokens of their local windows.
void InfLlm::read(const PromptPiece& piece, int begin, int end) {
    const QueryExtents queryAt = context_.queries(piece.n);
    const int size = context_.spec.blockSize;
    context_.kernels.forEach(context_.rules.queryHeads, [&](int h) {
        const KvHeadId g{h / context_.group()};
        const int inGroup = h % context_.group();
        Head& head = of(piece.layer, piece.sequence, g);
        auto& mass = head.mass[inGroup];
        auto& logits = logits_[h];
        mass.resize(end, 0.0);
        std::vector<KvBlockView> views;
        for (int position = begin; position < end; ++position) {
            const int firstToken = context_.rules.firstTokenOf(piece.layer, position);
            const int oldest = std::max(firstToken, firstLocal(position, firstToken / size) * size);
            select::storeViews(context_, piece.layer, piece.sequence, g, {oldest, position + 1}, views);
            logits.resize(position + 1 - oldest);
            const float* q = piece.rows.q + queryAt.first(position - piece.first, g, inGroup);
            select::attentionLogits(views, q, context_.shape.dim, size, context_.rules.scale, context_.spec.bias.scale,
                                    logits.data());
            select::softmax(logits);
            for (int j = 0; j < logits.count(); ++j) mass[oldest + j] += double(logits[j]);
        }
    });
}

void InfLlm::promptDone(LayerId layer, RowId sequence, int tokens, std::vector<PrefetchRequest>&) {
    const int firstToken = context_.rules.firstTokenOf(layer, tokens - 1);
    context_.forEachKvHead([&](KvHeadId g) {
        represent(of(layer, sequence, g), firstLocal(tokens - 1, firstToken / context_.spec.blockSize));
    });
}

void InfLlm::scoreGroup(std::span<HeadStep> group) {
    HeadStep& first = group.front();
    const int blocks = firstLocal(first.position, first.firstBlock);
    first.queryAware.assign(blocks, 0.f);
    for (const HeadStep& item : group) {
        const Head& head = of(item.layer, item.sequence, item.kvHead);
        const std::vector<float>& q = item.windowScores;
        const Extents<int, int, int> representativeAt = representativesAt(blocks);
        for (int b = budget_.initBlocks; b < blocks; ++b) {
            const float* keys = head.representatives.data() + representativeAt.first(b);
            float sum = 0;
            for (std::size_t c = 0; c < q.size(); ++c) sum += q[c] * keys[c];
            first.queryAware[b] += sum;
        }
    }
}

/// Rotates the items' queries for a fixed distance and writes them to fixedQueries_. Multiplied with keys that are not
/// rotated they give the logits of keys that all lie at this distance.
void InfLlm::rotateFixed(std::span<HeadStep> heads) {
    const RopeConfig& rope = context_.model.config().rope;
    for (std::size_t i = 0; i < heads.size(); ++i) {
        std::copy_n(heads[i].rows.plainQ, queryAt_.under(0), fixedQueries_.data() + queryAt_.first(int(i)));
        // The tables have no row past the session's end. A shorter session needs none: no token lies beyond the window.
        const int distance = std::min(budget_.localTokens, context_.maxTokensOf(heads[i].sequence) - 1);
        fixedRows_[i] = context_.rope.first(int(heads[i].sequence)) + distance;
    }
    RopeArgs args;
    args.x = fixedQueries_.data();
    args.n = int(heads.size());
    args.heads = context_.group();
    args.dim = context_.shape.dim;
    args.stride = int(queryAt_.under(0));
    args.positions = fixedRows_.data();
    args.cos = context_.rope.cos();
    args.sin = context_.rope.sin();
    args.first = context_.model.config().latent ? context_.model.config().latent->rank : 0;
    args.rotary = rope.dim;
    args.interleaved = rope.interleaved;
    context_.kernels.rope(args);
}

void InfLlm::score(std::span<HeadStep> heads) {
    rotateFixed(heads);
    for (std::size_t i = 0; i < heads.size(); ++i)
        heads[i].windowScores.assign(fixedQuery(int(i)), fixedQuery(int(i)) + queryAt_.under(0));
    forEachGroup(context_.kernels, heads, shared_, [&](std::span<HeadStep> group) { scoreGroup(group); });
}

void InfLlm::choose(std::span<HeadStep> heads) {
    for (NumberedSpan<HeadStep> left = heads; !left.empty(); left = left.from(shared_)) {
        HeadStep& first = left.front();
        const int local = firstLocal(first.position, first.firstBlock);
        const int init = std::min(budget_.initBlocks, local), from = std::max(first.firstBlock, init);
        const TokenRange context{from, std::max(from, local)}; // of blocks
        select::bestTokens({&context, 1}, NumberedSpan<float>(first.queryAware).from(from), budget_.topk, first.order,
                           first.tokens);
        std::vector<SelectedBlock> selected;
        const auto score = [&](int block) { return first.queryAware[block]; };
        for (int block = first.firstBlock; block < init; ++block)
            selected.push_back({block, Origin::Sink, std::numeric_limits<float>::quiet_NaN()});
        for (const std::int32_t block : first.tokens) selected.push_back({block, Origin::QueryAware, score(block)});
        for (int block = local; block <= first.position / context_.spec.blockSize; ++block)
            selected.push_back({block, Origin::Window, std::numeric_limits<float>::quiet_NaN()});
        for (HeadStep& item : left.first(shared_)) {
            item.selected = selected;
            item.wanted.clear();
            for (const SelectedBlock& block : selected) item.wanted.push_back(block.block);
        }
    }
}

/// Reads the piece in runs of at most together_ tokens. The tokens of a run share one choice of blocks, which their
/// mean query makes among the blocks outside the local window of the run's first token. Each token attends to its own
/// local window at true distances, and at the fixed distance to the chosen blocks and to the blocks that left the
/// window within the run.
void InfLlm::attendPrompt(const PromptPiece& piece) {
    for (int begin = piece.first; begin < piece.first + piece.n;) {
        const int end = std::min(piece.first + piece.n, (begin / together_ + 1) * together_);
        // Before attending, because the first tokens of the run can be far from its last ones.
        keepKeys(piece, begin, end);
        attendTogether(piece, begin, end);
        read(piece, begin, end);
        begin = end;
    }
}

void InfLlm::chooseTogether(const PromptPiece& piece, int begin, int end) {
    const QueryExtents queryAt = context_.queries(piece.n);
    meanQuery_.assign(queryAt.under(0), 0.f);
    for (int i = begin - piece.first; i < end - piece.first; ++i) {
        const float* q = piece.rows.plainQ + queryAt.first(i);
        for (std::size_t c = 0; c < meanQuery_.size(); ++c) meanQuery_[c] += q[c] / float(end - begin);
    }
    togetherSteps_.resize(context_.shape.kvHeads);
    for (const KvHeadId g : context_.kvHeads()) {
        HeadStep& item = togetherSteps_[index(g)];
        place(item, piece, begin, g);
        item.rows.plainQ = meanQuery_.data() + queryAt.first(0, g);
        represent(of(piece.layer, piece.sequence, g), firstLocal(begin, item.firstBlock));
    }
    score(togetherSteps_);
    choose(togetherSteps_);
}

void InfLlm::place(HeadStep& item, const PromptPiece& piece, int position, KvHeadId kvHead) const {
    item.layer = piece.layer;
    item.sequence = piece.sequence;
    item.kvHead = kvHead;
    item.position = position;
    item.firstToken = context_.rules.firstTokenOf(piece.layer, position);
    item.firstBlock = item.firstToken / context_.spec.blockSize;
}

void InfLlm::attendTogether(const PromptPiece& piece, int begin, int end) {
    constexpr int kTokens = 64; // attended together
    const int kvHeads = context_.shape.kvHeads, size = context_.spec.blockSize;
    const BlockLayout& layout = context_.cache.layout();
    const QueryExtents queryAt = context_.queries(piece.n), outAt = context_.outputs(piece.n);
    chooseTogether(piece, begin, end);
    reserve(kTokens * kvHeads);
    promptSteps_.resize(kTokens * kvHeads);
    for (int first = begin; first < end; first += kTokens) {
        const NumberedSpan<HeadStep> steps(promptSteps_.data(), std::min(kTokens, end - first) * kvHeads);
        context_.kernels.forEach(steps.count(), [&](int i) {
            HeadStep& item = steps[i];
            const KvHeadId g{i % kvHeads};
            const int position = first + i / kvHeads, row = position - piece.first;
            place(item, piece, position, g);
            item.rows.q = piece.rows.q + queryAt.first(row, g);
            item.rows.plainQ = piece.rows.plainQ + queryAt.first(row, g);
            item.rows.out = piece.rows.out + outAt.first(row, g);
            item.selected = togetherSteps_[index(g)].selected;
            std::erase_if(item.selected, [&](const SelectedBlock& block) { return block.block < item.firstBlock; });
            for (int block = std::max(begin / size + 1, item.firstBlock); block <= position / size; ++block)
                item.selected.push_back({block, Origin::Window, 0});
            const KvHead& head = context_.cache.head(piece.sequence, piece.layer, g);
            item.views.clear();
            for (const SelectedBlock& block : item.selected)
                item.views.push_back(layout.view(context_.cache.storeBlock(head, BlockId{block.block}),
                                                 block.block == position / size ? position % size + 1 : size,
                                                 block.block == item.firstBlock ? item.firstToken % size : 0));
        });
        rotateFixed(steps);
        attend(steps);
    }
}

/// Attends to the blocks in the window with the rotated queries and to the far blocks with the fixed ones, and merges
/// both outputs by their log-sum-exps.
bool InfLlm::attend(std::span<HeadStep> heads) {
    AttentionArgs args{context_.group(),        context_.shape.dim,   context_.spec.blockSize,  context_.shape.dim,
                       context_.shape.valueDim, context_.rules.scale, context_.spec.bias.scale, {},
                       context_.shape.valueDim};
    items_.clear();
    for (std::size_t i = 0; i < heads.size(); ++i) {
        HeadStep& item = heads[i];
        const int local = firstLocal(item.position, item.firstBlock);
        Head& head = of(item.layer, item.sequence, item.kvHead);
        nearViews_[i].clear();
        farViews_[i].clear();
        for (std::size_t b = 0; b < item.selected.size(); ++b) {
            KvBlockView view = item.views[b];
            const std::int32_t id = item.selected[b].block;
            if (id < local) view.keys = head.plainKeys.data() + keysAt(id + 1).first(id);
            (id < local ? farViews_ : nearViews_)[i].push_back(view);
        }
        items_.push_back({item.rows.q, nearViews_[i].data(), std::int32_t(nearViews_[i].size()), item.rows.out,
                          nearLse_.data() + lseAt_.first(int(i))});
    }
    for (std::size_t i = 0; i < heads.size(); ++i)
        if (!farViews_[i].empty())
            items_.push_back({fixedQuery(int(i)), farViews_[i].data(), std::int32_t(farViews_[i].size()),
                              farOut_.data() + outAt_.first(int(i)), farLse_.data() + lseAt_.first(int(i))});
    args.items = items_;
    context_.kernels.blockAttention(args);
    for (std::size_t i = 0; i < heads.size(); ++i)
        for (int h = 0; h < context_.group(); ++h) {
            const std::size_t at = lseAt_.offset(int(i), h);
            const float near = nearLse_[at];
            const float far = farViews_[i].empty() ? -std::numeric_limits<float>::infinity() : farLse_[at];
            const float most = std::max(near, far),
                        total = most + std::log(std::exp(near - most) + std::exp(far - most));
            if (h < heads[i].lse.count()) heads[i].lse[h] = total;
            if (farViews_[i].empty()) continue;
            const float nearShare = std::exp(near - total), farShare = std::exp(far - total);
            float* out = heads[i].rows.out + outAt_.first(0, h);
            const float* other = farOut_.data() + outAt_.first(int(i), h);
            for (int c = 0; c < context_.shape.valueDim; ++c) out[c] = nearShare * out[c] + farShare * other[c];
        }
    return true;
}

/// Adds to `mass` the attention that this step's queries gave to the tokens of the local window.
void InfLlm::after(std::span<HeadStep> heads, std::vector<PrefetchRequest>&) {
    const NumberedSpan<HeadStep> items(heads);
    context_.kernels.forEach(items.count(), [&](int i) {
        HeadStep& item = items[i];
        Head& head = of(item.layer, item.sequence, item.kvHead);
        const int begin =
            std::max(item.firstToken, firstLocal(item.position, item.firstBlock) * context_.spec.blockSize);
        item.windowScores.resize(item.position + 1 - begin);
        for (int h = 0; h < context_.group(); ++h) {
            select::attentionLogits(nearViews_[i], item.rows.q + queryAt_.first(0, h), context_.shape.dim,
                                    context_.spec.blockSize, context_.rules.scale, context_.spec.bias.scale,
                                    item.windowScores.data());
            select::softmax(item.windowScores);
            double* const mass = head.mass[h].data() + begin;
            for (std::size_t j = 0; j < item.windowScores.size(); ++j) mass[j] += double(item.windowScores[j]);
        }
    });
    if (!context_.ranksBlocks || !context_.cache.offloaded(heads[0].layer)) return;
    context_.kernels.forEach(items.count() / shared_, [&](int set) {
        const int first = set * shared_;
        rankCached(items.part(first, shared_), first);
    });
}

/// @return the attention that the query heads of item `index` gave to a block beyond the window, added up
double InfLlm::worthOf(int index, const KvBlockView& view) const {
    Numbered<float> logits(context_.spec.blockSize);
    double worth = 0;
    for (int h = 0; h < context_.group(); ++h) {
        const std::size_t at = lseAt_.offset(index, h);
        const double near = double(nearLse_[at]), far = double(farLse_[at]), most = std::max(near, far),
                     total = most + std::log(std::exp(near - most) + std::exp(far - most));
        const std::size_t tokens =
            select::attentionLogits({&view, 1}, fixedQuery(int(index), h), context_.shape.dim, context_.spec.blockSize,
                                    context_.rules.scale, context_.spec.bias.scale, logits.data());
        for (std::size_t t = 0; t < tokens; ++t) worth += std::exp(double(logits[t]) - total);
    }
    return worth;
}

/// Ranks the resident blocks of a set for the cache policy: blocks beyond the window by what they were worth; blocks
/// inside it leave first, because the paper's cache never held them. heads: of the set; first: number of the first one
/// in the step.
void InfLlm::rankCached(std::span<const HeadStep> heads, int first) {
    const HeadStep& step = heads.front();
    const int local = firstLocal(step.position, step.firstBlock), init = std::min(budget_.initBlocks, local);
    std::size_t far = 0; // of the views beyond the window, which have the order of the selected blocks
    for (const SelectedBlock& block : step.selected) {
        std::int32_t use = kLeavesFirst;
        if (block.block >= init && block.block < local) {
            double worth = 0;
            for (int i = first; i < first + int(heads.size()); ++i) worth += worthOf(i, farViews_[i][far]);
            const double later = double(budget_.usesPerDoubling) * std::log2(worth),
                         now = kFirstUse + double(step.position) * kUsesPerStep;
            use = std::int32_t(std::clamp(std::round(now + later), double(kLeavesFirst + 1), double(kLastUse)));
        }
        far += block.block < local ? 1 : 0;
        for (const HeadStep& item : heads) item.head->device.rank(BlockId{block.block}, use);
    }
}

/// The parameters that say what is attended and what stays on the device.
std::vector<Parameter> budgetParameters() {
    Parameter size = select::blockSize();
    size.defaultValue = "128";
    return {
        size,
        {"init_tokens",
         ParameterType::Integer,
         "128",
         0,
         1 << 20,
         "tokens",
         "First tokens, always attended; rounded up to whole blocks.",
         {},
         [](const SparseConfig& c) { return select::whereBudgeted(c, c.sinkBlocks * c.blockSize); }},
        {"local_tokens",
         ParameterType::Integer,
         "4096",
         1,
         1 << 24,
         "tokens",
         "Local window, attended at true distances; its oldest block is attended whole. Also the distance at which all "
         "other tokens seem to be.",
         {},
         [](const SparseConfig& c) { return select::whereBudgeted(c, std::max(1, c.windowBlocks) * c.blockSize); }},
        {"topk_blocks",
         ParameterType::Integer,
         "16",
         0,
         65536,
         "blocks",
         "Blocks of distant context attended.",
         {},
         [](const SparseConfig& c) { return select::whereBudgeted(c, select::dynamicBlocks(c)); }},
        Parameter{"cached_blocks",
                  ParameterType::Integer,
                  "32",
                  0,
                  65536,
                  "blocks",
                  "Blocks of distant context that stay on the device.",
                  {},
                  [](const SparseConfig& c) { return select::whereBudgeted(c, 2 * select::dynamicBlocks(c)); }}
            .within(ParameterScope::DeviceSlots)};
}

/// The parameters that say how blocks are scored and how a prompt is read.
std::vector<Parameter> scoringParameters() {
    return {
        {"score_decay",
         ParameterType::Number,
         "0.1",
         0.001,
         0.999,
         "",
         "With --cache-policy lru-s: what is left of a cached block's score after each step that does not select it.",
         {}},
        {"repr_topk",
         ParameterType::Integer,
         "4",
         1,
         256,
         "tokens",
         "Representative tokens of a block for each query head.",
         {}},
        {"groups",
         ParameterType::Choice,
         "layer",
         0,
         0,
         "",
         "layer: all heads share one set of blocks; head: one for each KV head.",
         {"layer", "head"}},
        {"prefill",
         ParameterType::Choice,
         "full",
         0,
         0,
         "",
         "full: the prompt is read with full attention; sparse: piece by piece, each with blocks of its own, as the "
         "paper streams long inputs.",
         {"full", "sparse"}},
        {"exc_block",
         ParameterType::Integer,
         "512",
         1,
         512,
         "tokens",
         "Prompt tokens that share one choice of blocks, with prefill sparse.",
         {}}};
}

std::vector<Parameter> infLlmParameters() {
    std::vector<Parameter> all = budgetParameters();
    for (Parameter& parameter : scoringParameters()) all.push_back(std::move(parameter));
    all.push_back(select::bias());
    all.push_back(select::biasScale());
    return all;
}

std::vector<MemoryNeed> infLlmMemory(const MethodUse& use, ContextLength length) {
    const select::Sizes s(use, length);
    std::vector<MemoryNeed> needs{
        select::indexOf("representatives", "representative keys", Per::QueryHead, s.blocks * s.dim * s.number)};
    if (!s.gpu) {
        needs.push_back(select::indexOf("plain_keys", "keys before rotation", Per::KvHead,
                                        s.blocks * s.format.blockTokens * s.dim * s.number));
        needs.push_back(select::indexOf("mass", "attention received", Per::QueryHead, s.tokens * 8));
        needs.push_back(select::scratchOf("prompt_logits", "the prompt's attention", Lifetime::Session, Per::One,
                                          std::int64_t(use.config.queryHeads) * length.prompt * 4));
        return needs;
    }
    const ContextBudget budget(use.values);
    const std::int64_t ring = std::min<std::int64_t>(budget.localBlocks, s.blocks) * s.format.blockTokens;
    needs.push_back(select::asLongest(
        s, select::indexOf("plain_keys", "keys before rotation", Per::KvHead, ring * s.dim * s.number)));
    needs.push_back(select::asLongest(s, select::indexOf("mass", "attention received", Per::QueryHead, ring * 4)));
    return needs;
}

} // namespace

MethodEntry infLlmMethod() {
    MethodEntry entry;
    entry.name = "infllm";
    entry.title = "InfLLM";
    entry.source = "InfLLM: Training-Free Long-Context Extrapolation for LLMs with an Efficient Context Memory";
    entry.summary =
        "First tokens and a local window are always attended. Blocks that left the window are found by the mean key of "
        "their most attended tokens and attended without rotation, all at one fixed distance; a cache of them is "
        "managed by least recent use, or by score (cache policy lru-s). The prompt is read with full attention, or in "
        "pieces by the same rule (prefill sparse).";
    entry.parameters = infLlmParameters();
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        SelectionSpec spec = select::commonSpec(values, config);
        spec.sparsePrefill = false; // attendPrompt reads the prompt sparsely, not the engine
        const ContextBudget budget(values);
        spec.budget = {budget.initBlocks, budget.localBlocks, false, budget.topk, 0};
        spec.deviceSlots = budget.initBlocks + budget.localBlocks + budget.cached;
        spec.rewritesKeys = true; // beyond the window they are not rotated
        spec.ranksBlocks = true;
        return spec;
    };
    entry.makeSelector = [](const ParameterValues& values,
                            const SelectorContext& context) -> std::unique_ptr<Selector> {
        return std::make_unique<InfLlm>(context, values);
    };
    entry.onDevice = KVSCOPE_ON_DEVICE(infllmOnDevice);
    entry.abilities = [](const MethodUse& use) {
        Abilities a = select::usualAbilities(use.backend);
        a.plain = a.prompt = a.scores = a.after = a.ownKeys = true;
        a.promptAttention = use.values.text("prefill") == "sparse";
        a.sparsePrompt = use.backend == Backend::Cpu;
        return a;
    };
    entry.memory = infLlmMemory;
    return entry;
}

} // namespace kvscope
