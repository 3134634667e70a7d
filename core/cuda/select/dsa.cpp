// DSA on the GPU (core/select/dsa.cpp). The keys of the lightning indexers are kept as bf16 for every token. The latent
// keys lie token by token in pinned host memory, or on the device where nothing is offloaded; where they are on the
// host, the device keeps the tokens that were chosen lately. Steps and prompts attend to the chosen tokens where they
// lie, as to blocks of one token.
#include "base/elements.h"
#include "core/cuda/row_table.h"
#include "core/cuda/select/token_report.h"
#include "core/cuda/select/token_store.h"
#include "kernels/cuda/attention/attention_latent.h"
#include "kernels/cuda/choice/token_choice.h"
#include "kernels/cuda/linear/experts.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/methods/lightning_index.h"
#include "kernels/cuda/methods/token_slots.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvscope {
namespace {

constexpr int kChosenTogether = 128; // of a prompt, tokens whose choices are made in one launch

class DsaOnDevice final : public DeviceSelector {
public:
    DsaOnDevice(const ParameterValues& values, const DeviceSelectorContext& context);

    void plan(DeviceArena& arena) override;
    void begin() override;
    std::size_t reportBytes() const override { return context_.record ? hitsAt() + hitBytes() : 0; }
    std::int64_t storedBytes(LayerId, RowId sequence) const override { return store_.storedBytes(sequence); }
    bool attendPrompt(const DevicePromptPiece& piece, const cuda::PrefillAttentionArgs& args) override;
    void promptDone(LayerId layer, RowId sequence, int tokens, const __nv_bfloat16* blocks,
                    std::int64_t headStride) override;
    void append(const DeviceStep& step) override;
    void choose(const DeviceStep& step, cuda::SelectArgs&) override;
    bool attend(const DeviceStep& step, cuda::DecodeAttentionArgs& args) override;
    void fill(LayerId layer, const char* report, std::span<const RowId> active, LayerRecord& out, StepRecord& record,
              std::size_t firstSelection) const override;

private:
    struct Layer {
        __nv_bfloat16* keys = nullptr; // [tokens, indexer's dim]; null where the layer has no indexer
        cuda::DeviceTokenSlots slots;  // with offloading
        __nv_bfloat16* pool = nullptr; // [rows, slots_, dim] the tokens in the slots
        std::int32_t *previous = nullptr, *previousCount = nullptr;
    };
    /// Tokens whose queries, keys or choices are made together, and what the projections made of them.
    struct Placed {
        cuda::IndexedTokens tokens;
        const float* x = nullptr;   // [n, hidden] the residual stream
        const float* qkv = nullptr; // [n, queryRank + dim]
    };
    bool runsIn(LayerId layer) const { return indexer_.runsIn(int(layer)); }
    bool shares() const { return std::count(indexer_.shared.begin(), indexer_.shared.end(), true) > 0; }
    int dim() const { return context_.shape.dim; }
    int togetherRows() const { return std::max(context_.rows(), std::min(context_.pieceTokens, kChosenTogether)); }
    std::size_t missingAt() const { return report_.bytes(); } // where the counts of missing tokens lie in a report
    std::size_t hitsAt() const { return missingAt() + (Elements(context_.rows()) * 4 + 15) / 16 * 16; }
    std::size_t hitBytes() const {
        return context_.offload && context_.level != RecordLevel::Counters
                   ? (Elements(context_.rows(), budget_) + 15) / 16 * 16
                   : 0;
    }
    cuda::LightningIndex indexOf(LayerId layer) const {
        return {indexer_.heads, indexer_.dim, context_.tables.tokenFirst, layers_[layer].keys};
    }
    void place(LayerId layer, const Placed& placed, bool asks);
    void score(LayerId layer, const cuda::IndexedTokens& tokens, int maxTokens, std::uint64_t* mark);
    void chooseBest(const cuda::IndexedTokens& tokens, int maxTokens, std::int32_t* list, float* scores,
                    std::uint64_t* mark);
    std::int32_t* listsOf(int position) const;
    cuda::AdmitTokensArgs admission(LayerId layer) const;
    void bring(const DeviceStep& step);

    const DeviceSelectorContext context_;
    const LightningIndexer& indexer_;
    const int mostTokens_, mostPrompt_, budget_, slots_; // slots_: of a row in a layer
    const cuda::AttentionShape byToken_;                 // as if every token were a block
    const TokenReport report_;
    TokenStore store_;
    PerLayer<Layer> layers_;
    // What the projections make of some tokens: of the key [n, dim], of the queries [n, heads*dim], of what their heads
    // weigh [n, heads]; then the queries as they are multiplied, and the scores, [n, mostTokens_].
    float *projectedKey_ = nullptr, *projectedQuery_ = nullptr, *weights_ = nullptr, *scores_ = nullptr;
    __nv_bfloat16* queries_ = nullptr;
    // The choice of the last layer with an indexer, [n, budget_] and [n]: of a step's rows, or of tokens of a prompt.
    std::int32_t *tokens_ = nullptr, *count_ = nullptr;
    float* chosenScores_ = nullptr;
    // Where layers share: [prompt tokens from budget_ on, budget_], what the last layer with an indexer chose for a
    // prompt. Earlier tokens see no more than the budget.
    std::int32_t* promptLists_ = nullptr;
    const std::int32_t* lastList_ = nullptr; // what the prompt's last token chose in the layer that was read last
    std::int32_t* counting_ = nullptr;       // [mostTokens_ + 1] 0, 1, 2, ...
    std::int32_t *place_ = nullptr, *fetch_ = nullptr, *freed_ = nullptr; // see AdmitTokensArgs
    std::int32_t *missing_ = nullptr, *madeSlot_ = nullptr;
    std::int64_t* poolFirst_ = nullptr; // [rows] a row's first slot; the first is 0
    float* partial_ = nullptr;
};

int slotsWanted(const ParameterValues& values) {
    const int stated = values.integer("device_tokens");
    return stated > 0 ? stated : 2 * values.integer("index_topk");
}

DsaOnDevice::DsaOnDevice(const ParameterValues& values, const DeviceSelectorContext& context)
    : context_(context), indexer_(*context.config.indexer),
      mostTokens_(*std::max_element(context.maxTokens.begin(), context.maxTokens.end())),
      mostPrompt_(*std::max_element(context.promptTokens.begin(), context.promptTokens.end())),
      budget_(std::min(values.integer("index_topk"), mostTokens_)),
      slots_(std::min(slotsWanted(values), mostTokens_)), byToken_{context.shape.queryHeads, 1, context.shape.dim, 1,
                                                                   context.shape.latentValue},
      report_(context_, budget_), store_(context_), layers_(context.layers.size()) {}

void DsaOnDevice::plan(DeviceArena& arena) {
    constexpr const char *kQueries = "the indexer's queries", *kChoice = "selections";
    const int rows = context_.rows(), n = togetherRows();
    const Elements chosen(rows, budget_), rowsOfSlots(rows, slots_), queries(n, indexer_.heads, indexer_.dim);
    std::size_t tokens = 0;
    for (const int most : context_.maxTokens)
        tokens += Elements(context_.spec.grid.blocks(most), context_.spec.blockSize);
    store_.plan(arena);
    for (const LayerId i : layers_.ids()) {
        if (!context_.layers[i].ownTier) continue;
        Layer& layer = layers_[i];
        if (runsIn(i))
            arena.plan(layer.keys, {tokens, indexer_.dim}, {"index_keys", "the indexer's keys", Holds::Index});
        if (context_.offload) {
            constexpr MemoryKind kSlots("token_slots", "lists of the device's tokens", Holds::Index);
            layer.slots.slots = slots_;
            layer.slots.maxTokens = mostTokens_;
            arena.plan(layer.slots.slotOf, {rows, mostTokens_}, kSlots);
            arena.plan(layer.slots.tokenIn, rowsOfSlots, kSlots);
            arena.plan(layer.slots.last, rowsOfSlots, kSlots);
            arena.plan(layer.slots.turns, {rows, 2}, kSlots);
            arena.plan(layer.pool, {rowsOfSlots, dim()}, {"device_tokens", "chosen tokens", Holds::Kv});
        }
        if (!context_.record) continue;
        arena.plan(layer.previous, chosen, "recorder state");
        arena.plan(layer.previousCount, rows, "recorder state");
    }
    arena.plan(projectedKey_, {n, indexer_.dim}, kQueries);
    arena.plan(projectedQuery_, queries, kQueries);
    arena.plan(weights_, {n, indexer_.heads}, kQueries);
    arena.plan(queries_, queries, kQueries);
    arena.plan(scores_, {n, mostTokens_}, kChoice);
    arena.plan(tokens_, {n, budget_}, kChoice);
    arena.plan(chosenScores_, chosen, kChoice);
    arena.plan(count_, n, kChoice);
    if (shares() && mostPrompt_ > budget_)
        arena.plan(promptLists_, {mostPrompt_ - budget_, budget_}, "prompt's selections");
    arena.plan(counting_, Elements(mostTokens_) + 1, "session state");
    if (context_.offload) {
        arena.plan(place_, chosen, kChoice);
        arena.plan(fetch_, chosen, kChoice);
        arena.plan(freed_, {rows, budget_ + 1}, kChoice);
        arena.plan(missing_, rows, kChoice);
        arena.plan(madeSlot_, rows, kChoice);
    }
    arena.plan(poolFirst_, rows, "session state");
    std::size_t partial = 0;
    for (int together = 1; together <= n; ++together) // how a list is cut depends on how many there are
        partial = std::max(partial, cuda::latentPartialFloats(context_.launch, byToken_, together, budget_));
    arena.plan(partial_, partial, "activations");
}

void DsaOnDevice::begin() {
    const auto upload = [](auto* to, const auto& from) {
        cuda::check(cudaMemcpy(to, from.data(), from.size() * sizeof(from[0]), cudaMemcpyHostToDevice),
                    "preparing the session");
    };
    std::vector<std::int32_t> counting(Elements(mostTokens_) + 1);
    std::iota(counting.begin(), counting.end(), 0);
    upload(counting_, counting);
    std::vector<std::int64_t> first;
    for (std::int64_t row = 0; row < context_.rows(); ++row) first.push_back(row * slots_);
    upload(poolFirst_, first);
    upload(count_, Numbered<std::int32_t>(togetherRows(), budget_));
    store_.begin();
}

/// Puts the keys of some tokens into the index. asks: makes their queries and what the heads of these weigh, too
void DsaOnDevice::place(LayerId layer, const Placed& placed, bool asks) {
    const ModelConfig& config = context_.config;
    const DeviceLayer& layerWeights = context_.weights.layers[layer];
    const DeviceLightningIndexer& weights = layerWeights.indexer;
    const int n = placed.tokens.n, width = config.latent->queryRank + dim();
    const cuda::Norm before{layerWeights.inputNorm, config.streamNormEps()};
    context_.linear->run(weights.key, placed.x, config.hidden, n, before,
                         {projectedKey_, indexer_.dim, false, nullptr, nullptr});
    if (asks) {
        context_.linear->run(weights.query, placed.qkv, width, n,
                             {layerWeights.latent.queryNorm, config.latent->normEps},
                             {projectedQuery_, indexer_.heads * indexer_.dim, false, nullptr, nullptr});
        cuda::routeTokens(context_.launch,
                          {placed.x, n, config.hidden, before, weights.headWeight, indexer_.heads, weights_});
    }
    cuda::LightningPlaceArgs args;
    args.index = indexOf(layer);
    args.tokens = placed.tokens;
    args.key = projectedKey_;
    args.query = asks ? projectedQuery_ : nullptr;
    args.keyNorm = weights.keyNorm;
    args.keyShift = weights.keyShift;
    args.eps = indexer_.normEps;
    args.rotated = indexer_.ropeDim;
    args.interleaved = indexer_.interleaved;
    args.cos = context_.tables.ropeCos;
    args.sin = context_.tables.ropeSin;
    args.angles = tableAngles(config);
    args.ropeFirst = context_.tables.ropeFirst;
    args.queries = queries_;
    cuda::placeInLightningIndex(context_.launch, args);
}

/// maxTokens: that the tokens see at most
void DsaOnDevice::score(LayerId layer, const cuda::IndexedTokens& tokens, int maxTokens, std::uint64_t* mark) {
    cuda::LightningScoreArgs args;
    args.index = indexOf(layer);
    args.tokens = tokens;
    args.queries = queries_;
    args.weights = weights_;
    args.scale = 1.f / std::sqrt(float(indexer_.dim)) / std::sqrt(float(indexer_.heads));
    args.maxTokens = maxTokens;
    args.scores = scores_;
    args.stride = mostTokens_;
    args.mark = mark;
    cuda::scoreTokensByIndex(context_.launch, args);
}

/// Lists the best tokens of the scores. list: [tokens.n, budget_]; scores: likewise, or null
void DsaOnDevice::chooseBest(const cuda::IndexedTokens& tokens, int maxTokens, std::int32_t* list, float* scores,
                             std::uint64_t* mark) {
    cuda::TokenChoiceArgs args;
    args.rows = tokens.n;
    args.kvHeads = 1;
    args.active = tokens.active;
    args.scores = scores_;
    args.stride = mostTokens_;
    args.position = tokens.position;
    args.maxLength = maxTokens;
    args.wanted = args.capacity = budget_;
    args.tokens = list;
    args.tokenScores = scores;
    args.count = count_;
    args.mark = mark;
    cuda::chooseTokens(context_.launch, args);
}

/// Where the choices of a prompt's tokens from `position` on are listed; they see more tokens than the budget.
std::int32_t* DsaOnDevice::listsOf(int position) const {
    return promptLists_ == nullptr ? tokens_ : RowsOf(promptLists_, budget_)[position - budget_];
}

bool DsaOnDevice::attendPrompt(const DevicePromptPiece& piece, const cuda::PrefillAttentionArgs& args) {
    if (!context_.layers[piece.layer].ownTier) return false;
    const RowsOf streams(piece.x, context_.config.hidden);
    const RowsOf projected(piece.qkv, context_.config.latent->queryRank + dim());
    const RowsOf queries(args.q, {byToken_.queryHeads, dim()});
    const RowsOf attended(args.out, {byToken_.queryHeads, byToken_.valueDim()});
    // The first tokens see no more than they may choose.
    const int dense = std::clamp(budget_ - piece.first, 0, piece.n);
    lastList_ = nullptr;
    for (int start = 0; start < piece.n;) {
        const bool chooses = start >= dense;
        const int count = std::min(kChosenTogether, (chooses ? piece.n : dense) - start), first = piece.first + start;
        const cuda::IndexedTokens tokens{count, counting_ + first, nullptr, true, int(piece.sequence)};
        std::int32_t* const lists = chooses ? listsOf(first) : nullptr;
        if (runsIn(piece.layer)) {
            place(piece.layer, {tokens, streams[start], projected[start]}, chooses);
            if (chooses) {
                score(piece.layer, tokens, first + count, nullptr);
                chooseBest(tokens, first + count, lists, nullptr, nullptr);
            }
        }
        if (chooses) {
            cuda::DecodeAttentionArgs attend;
            attend.shape = byToken_;
            attend.rows = count;
            attend.position = tokens.position;
            attend.q = queries[start];
            attend.blocks = piece.blocks;
            attend.headFirst = poolFirst_; // 0
            attend.oneSequence = true;
            attend.list.block = lists;
            attend.list.count = count_;
            attend.list.capacity = budget_;
            attend.maxBlocks = budget_;
            attend.scale = args.scale;
            attend.out = attended[start];
            attend.scratch.partial = partial_;
            cuda::latentDecodeAttention(context_.launch, attend);
            lastList_ = RowsOf(lists, budget_)[count - 1];
        }
        start += count;
    }
    if (dense == 0) return true;
    cuda::PrefillAttentionArgs all = args;
    all.n = dense;
    cuda::prefillAttention(context_.launch, all);
    return true;
}

/// Stores the prompt. With offloading, fills the slots with what the prompt's last token chose.
void DsaOnDevice::promptDone(LayerId layer, RowId sequence, int tokens, const __nv_bfloat16* blocks,
                             std::int64_t headStride) {
    if (!context_.layers[layer].ownTier) return;
    store_.promptDone(layer, sequence, tokens, blocks, headStride);
    if (!context_.offload) return;
    const int row = int(sequence);
    cuda::AdmitTokensArgs admit = admission(layer);
    cuda::DeviceTokenSlots& slots = admit.slots;
    const auto clear = [&](std::int32_t*& of, int count, int byte) {
        of = RowsOf(of, count)[row];
        cuda::check(cudaMemsetAsync(of, byte, Elements(count) * sizeof *of, context_.launch.stream),
                    "preparing the slots of tokens");
    };
    clear(slots.slotOf, mostTokens_, 0xff);
    clear(slots.tokenIn, slots_, 0xff);
    clear(slots.last, slots_, 0);
    clear(slots.turns, 2, 0);
    admit.rows = 1;
    admit.active = nullptr;
    admit.position = counting_ + tokens - 1;
    const int chosen = std::min(tokens, budget_); // of a context that nobody has read, the newest tokens
    admit.tokens = tokens > budget_ && lastList_ != nullptr ? lastList_ : counting_ + tokens - chosen;
    admit.count = counting_ + chosen;
    cuda::admitTokens(context_.launch, admit);
    cuda::FetchTokenSlotsArgs fetch;
    fetch.admitted = admit;
    fetch.dim = dim();
    fetch.store = blocks;
    fetch.newKey = RowsOf(blocks, dim())[tokens - 1];
    fetch.pool = RowsOf(layers_[layer].pool, {slots_, dim()})[row];
    cuda::fetchTokenSlots(context_.launch, fetch);
    lastList_ = nullptr;
}

void DsaOnDevice::append(const DeviceStep& step) {
    if (!context_.layers[step.layer].ownTier) return;
    cuda::StoreTokenArgs args;
    args.rows = context_.rows();
    args.dim = dim();
    args.position = step.position;
    args.active = step.active;
    args.newKey = step.newKey;
    args.store = store_.of(step.layer);
    args.first = context_.tables.tokenFirst;
    cuda::storeTokens(context_.launch, args);
    if (runsIn(step.layer)) place(step.layer, {{context_.rows(), step.position, step.active}, step.x, step.qkv}, true);
}

/// A layer without an indexer keeps what the layer before it chose.
void DsaOnDevice::choose(const DeviceStep& step, cuda::SelectArgs&) {
    const cuda::IndexedTokens tokens{context_.rows(), step.position, step.active};
    const auto stamp = [&](std::uint64_t* mark) {
        if (mark != nullptr) cuda::stampNow(context_.launch, mark);
    };
    if (runsIn(step.layer)) {
        score(step.layer, tokens, mostTokens_, step.stage1Mark);
        chooseBest(tokens, mostTokens_, tokens_, chosenScores_, step.poolingMark);
    } else {
        stamp(step.stage1Mark);
        stamp(step.poolingMark);
    }
    const Layer& layer = layers_[step.layer];
    report_.compare(context_, step, {tokens_, chosenScores_, count_, layer.previous, layer.previousCount});
    if (context_.offload)
        bring(step);
    else
        stamp(step.offloadingMark);
}

/// Admission of the step's choice to the slots of a layer.
cuda::AdmitTokensArgs DsaOnDevice::admission(LayerId layer) const {
    cuda::AdmitTokensArgs args;
    args.slots = layers_[layer].slots;
    args.rows = context_.rows();
    args.tokens = tokens_;
    args.count = count_;
    args.capacity = budget_;
    args.place = place_;
    args.fetch = fetch_;
    args.missing = missing_;
    args.madeSlot = madeSlot_;
    args.freed = freed_;
    return args;
}

/// Brings the chosen tokens that have no slot from the host.
void DsaOnDevice::bring(const DeviceStep& step) {
    cuda::AdmitTokensArgs admit = admission(step.layer);
    admit.position = step.position;
    admit.active = step.active;
    admit.mark = step.offloadingMark;
    if (step.report != nullptr) {
        admit.missingRecord = reinterpret_cast<std::int32_t*>(step.report + missingAt());
        if (hitBytes() > 0) admit.hitRecord = reinterpret_cast<std::uint8_t*>(step.report + hitsAt());
    }
    cuda::admitTokens(context_.launch, admit);
    cuda::FetchTokenSlotsArgs fetch;
    fetch.admitted = admit;
    fetch.dim = dim();
    fetch.store = store_.of(step.layer);
    fetch.first = context_.tables.tokenFirst;
    fetch.newKey = step.newKey;
    fetch.pool = layers_[step.layer].pool;
    cuda::fetchTokenSlots(context_.launch, fetch);
}

bool DsaOnDevice::attend(const DeviceStep& step, cuda::DecodeAttentionArgs& args) {
    args.shape = byToken_;
    args.blocks = context_.offload ? layers_[step.layer].pool : store_.of(step.layer);
    args.headFirst = context_.offload ? poolFirst_ : context_.tables.tokenFirst;
    args.list.block = tokens_;
    args.list.slot = context_.offload ? place_ : nullptr;
    args.list.count = count_;
    args.list.capacity = budget_;
    args.maxBlocks = budget_;
    args.scratch.partial = partial_;
    cuda::latentDecodeAttention(context_.launch, args);
    return true;
}

void DsaOnDevice::fill(LayerId layer, const char* report, std::span<const RowId> active, LayerRecord& out,
                       StepRecord& record, std::size_t firstSelection) const {
    report_.fill(layer, report, active, out, record, Origin::TokenLevel,
                 [](RowId, std::int32_t newest) { return newest + 1; });
    if (!context_.offload || report == nullptr) return;
    const auto* missing = reinterpret_cast<const std::int32_t*>(report + missingAt());
    const RowsOf hits(reinterpret_cast<const std::uint8_t*>(report + hitsAt()), budget_);
    out.hits = out.misses = 0;
    for (std::size_t i = firstSelection; i < record.selections.size(); ++i) {
        SelectionRecord& selection = record.selections[i];
        selection.misses = missing[selection.sequence];
        selection.hits = selection.selected - selection.misses;
        out.hits += selection.hits;
        out.misses += selection.misses;
        if (hitBytes() == 0) continue;
        const std::uint8_t* hit = hits[selection.sequence];
        for (PackedBlock& token : std::span(record.blocks).subspan(selection.first, Elements(selection.selected)))
            token = token.withHit(*hit++ != 0);
    }
    out.h2dBlocks = out.misses;
    out.h2dBytes = out.misses * store_.tokenBytes();
    out.d2hBytes = std::int64_t(active.size()) * store_.tokenBytes();
    out.transferNs = out.exposedNs = out.stageNs[Stage::Offloading]; // the attention waits for the whole transfer
}

} // namespace

std::unique_ptr<DeviceSelector> dsaOnDevice(const ParameterValues& values, const DeviceSelectorContext& context) {
    return std::make_unique<DsaOnDevice>(values, context);
}

} // namespace kvscope
