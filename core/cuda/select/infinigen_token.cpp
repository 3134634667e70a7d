// InfiniGen in its original form on the GPU (core/select/infinigen_token.cpp). For every query head of the next layer
// the query is guessed, every key is scored along directions of that head, and tokens are chosen, all one layer ahead.
// The tokens that the query heads of a KV head chose are fetched together while this layer computes, and each query
// head attends to its own tokens.
#include "base/extents.h"
#include "core/cuda/device_copy.h"
#include "core/cuda/select/attended_mass.h"
#include "core/cuda/select/guessed_queries.h"
#include "core/cuda/select/side_stream.h"
#include "core/cuda/select/token_report.h"
#include "core/cuda/select/token_store.h"
#include "core/math/symmetric_eigen.h"
#include "kernels/cuda/choice/token_choice.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/methods/head_tokens.h"
#include "kernels/cuda/methods/partial_keys.h"
#include "kernels/cuda/methods/token_pack.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <thread>
#include <utility>

namespace kvscope {
namespace {

using Bf16 = __nv_bfloat16;

/// Times of the GPU's timer: when the transfer of a layer's tokens began and ended, and when the layer's attention
/// could have begun without waiting for the tokens.
struct alignas(16) FetchMarks {
    std::uint64_t begin = 0, end = 0, ready = 0;
};

class InfinigenTokenOnDevice final : public DeviceSelector {
public:
    InfinigenTokenOnDevice(const ParameterValues& values, const DeviceSelectorContext& context);

    void plan(DeviceArena& arena) override;
    void begin() override;
    std::size_t reportBytes() const override { return massesAt() + mass_.bytes(); }
    std::int64_t storedBytes(LayerId, RowId sequence) const override { return store_.storedBytes(sequence); }
    void prompt(const DevicePromptPiece& piece) override;
    void promptDone(LayerId layer, RowId sequence, int tokens, const Bf16* blocks, std::int64_t headStride) override;
    void append(const DeviceStep& step) override;
    void choose(const DeviceStep&, cuda::SelectArgs&) override {
    } // dense_layers is at least 1, so all layers are chosen ahead
    void lookAhead(const DeviceStep& step, LayerId target, cuda::SelectArgs&) override;
    bool attend(const DeviceStep& step, cuda::DecodeAttentionArgs& args) override;
    void after(const DeviceStep& step) override {
        if (own(step.layer) && step.report != nullptr) mass_.measure(step, step.report + massesAt());
    }
    void fill(LayerId layer, const char* report, std::span<const RowId> active, LayerRecord& out, StepRecord& record,
              std::size_t firstSelection) const override;

private:
    struct Layer {
        cuda::PartialKeys partial;
        std::int32_t *previous = nullptr, *previousCount = nullptr;
    };
    struct Lists { // there are two: one layer's are written while the other's are attended to
        std::int32_t *united = nullptr, *unitedCount = nullptr; // [heads, united], [heads]
        std::int32_t *own = nullptr, *places = nullptr, *ownCount = nullptr;
        Bf16* fetched = nullptr; // [heads, united, 2*dim]
    };
    /// The prompt and layer that are being read. All pointers are device memory.
    struct Sampled {
        double* gram = nullptr;                       // [queryHeads, dim, dim] of the sampled queries
        Bf16* queries = nullptr;                      // [sampled tokens, queryHeads*dim] until directions are known
        float *vectors = nullptr, *lengths = nullptr; // directions; how far the queries of all tokens reach along them
        std::vector<float> solved;                    // copy of `vectors` on the host; empty until they are known
        std::optional<std::pair<LayerId, RowId>> of;
    };
    struct Choosing { // device memory of one choice
        float* scores = nullptr;
        std::int32_t *length = nullptr, *wanted = nullptr;
        std::uint64_t* total = nullptr;
        std::uint32_t* arrived = nullptr;
        std::int32_t *tokens = nullptr, *count = nullptr; // [query heads, most_], [query heads]
    };
    struct Packed { // device memory: the tokens that a layer's query heads attend to, as KV blocks
        Bf16* blocks = nullptr;
        float* bias = nullptr;
        std::int64_t *first = nullptr, *placeFirst = nullptr; // first block of a query head; first token
    };
    struct SourceFirst { // device memory: where a query head's tokens begin, fetched or in the store
        std::int64_t *fetched = nullptr, *store = nullptr;
    };
    bool own(LayerId layer) const { return context_.layers[layer].ownTier; }
    const Lists& listsOf(LayerId layer) const { return lists_[int(layer) % 2]; }
    int unitedMost() const { return most_ * context_.shape.group() + 1; }
    bool biased() const { return context_.spec.bias.scale != 0.f; }
    std::size_t massesAt() const { return report_.bytes() + sizeof(FetchMarks); } // where the masses lie in a report
    FetchMarks* marksIn(char* report) const {
        return report != nullptr ? reinterpret_cast<FetchMarks*>(report + report_.bytes()) : nullptr;
    }
    void solve(int tokens);
    std::vector<float> directions(bool sampled) const;
    void fetch(const DeviceStep& step, LayerId target);
    cuda::Launch arrived(const DeviceStep& step);

    const DeviceSelectorContext context_;
    const float alpha_;
    // blocks_: number of blocks that hold the chosen tokens of a query head
    const int mostTokens_, most_, warmUp_, dims_, width_, blocks_;
    const cuda::AttentionShape byHead_; // as if every query head were a KV head
    const TokenReport report_;
    AttendedMass mass_; // query heads attend to different tokens
    GuessedQueries guess_;
    TokenStore store_;
    SideStream side_;
    PerLayer<Layer> layers_;
    Lists lists_[2];
    Sampled sampled_;
    Choosing choosing_;
    Packed packed_;
    SourceFirst sourceFirst_;
    cuda::SplitScratch scratch_;
};

int mostOf(const std::vector<int>& tokens) { return *std::max_element(tokens.begin(), tokens.end()); }

InfinigenTokenOnDevice::InfinigenTokenOnDevice(const ParameterValues& values, const DeviceSelectorContext& context)
    : context_(context), alpha_(float(values.number("alpha"))), mostTokens_(mostOf(context.maxTokens)),
      most_(std::min(values.integer("max_num_kv"), mostTokens_)), warmUp_(values.integer("warmup_tokens")),
      dims_(std::max(1, int(values.number("partial_ratio") * context.shape.dim))), width_(cuda::partialWidth(dims_)),
      blocks_((most_ + context.shape.blockSize) / context.shape.blockSize), byHead_{context.shape.queryHeads,
                                                                                    context.shape.queryHeads,
                                                                                    context.shape.dim,
                                                                                    context.shape.blockSize},
      report_(context, unitedMost()), mass_(context_), guess_(context_), store_(context_),
      layers_(context.config.layers) {}

void InfinigenTokenOnDevice::plan(DeviceArena& arena) {
    constexpr MemoryKind kPartial("partial_keys", "partial keys", Holds::Index);
    constexpr const char *kGuess = "guesses", *kChoice = "selections";
    const cuda::AttentionShape& shape = context_.shape;
    const int rows = context_.rows(), stride = (mostTokens_ + 7) / 8 * 8;
    const Extents<int, int> headAt(rows, shape.queryHeads), kvHeadAt(rows, shape.kvHeads),
        channelAt(shape.queryHeads, shape.dim);
    const Extents<int, int, int> unitedAt(rows, shape.kvHeads, unitedMost()), ownAt(rows, shape.queryHeads, most_ + 1),
        scoreAt(rows, shape.queryHeads, stride), chosenAt(rows, shape.queryHeads, most_),
        matrixAt(shape.queryHeads, shape.dim, shape.dim), blockAt(rows, shape.queryHeads, blocks_);
    const Extents<int, int, int, int> directionAt(rows, shape.queryHeads, shape.dim, width_),
        partialKeyAt(rows, shape.queryHeads, stride, width_), biasAt(rows, shape.queryHeads, blocks_, shape.blockSize);
    const std::size_t heads = headAt.size(), kvHeads = kvHeadAt.size();
    for (const LayerId i : layers_.ids()) {
        if (!context_.layers[i].ownTier) continue;
        Layer& layer = layers_[i];
        layer.partial.width = width_;
        layer.partial.sharing = context_.shape.group();
        layer.partial.stride = stride;
        arena.plan(layer.partial.directions, directionAt.size(), kPartial);
        arena.plan(layer.partial.keys, partialKeyAt.size(), kPartial);
        if (!context_.record) continue;
        arena.plan(layer.previous, unitedAt.size(), "recorder state");
        arena.plan(layer.previousCount, kvHeads, "recorder state");
    }
    const int sampled = std::min(mostOf(context_.promptTokens), warmUp_ + context_.pieceTokens);
    arena.plan(sampled_.gram, matrixAt.size(), kGuess);
    arena.plan(sampled_.queries, Extents<int, int, int>(sampled, shape.queryHeads, shape.dim).size(), kGuess);
    arena.plan(sampled_.vectors, matrixAt.size(), kGuess);
    arena.plan(sampled_.lengths, channelAt.size(), kGuess);
    guess_.plan(arena, kGuess);
    store_.plan(arena);
    for (Lists& lists : lists_) {
        arena.plan(lists.united, unitedAt.size(), kChoice);
        arena.plan(lists.unitedCount, kvHeads, kChoice);
        arena.plan(lists.own, ownAt.size(), kChoice);
        arena.plan(lists.places, ownAt.size(), kChoice);
        arena.plan(lists.ownCount, heads, kChoice);
        if (context_.offload)
            arena.plan(lists.fetched, unitedAt.size() * cuda::tokenElements(shape.dim), "chosen tokens");
    }
    arena.plan(choosing_.scores, scoreAt.size(), kChoice);
    arena.plan(choosing_.length, heads, kChoice);
    arena.plan(choosing_.wanted, 1, kChoice);
    arena.plan(choosing_.total, 1, kChoice);
    arena.plan(choosing_.arrived, 1, kChoice);
    arena.plan(choosing_.tokens, chosenAt.size(), kChoice);
    arena.plan(choosing_.count, heads, kChoice);
    arena.plan(packed_.blocks, blockAt.size() * cuda::blockElements(byHead_), "chosen tokens");
    if (biased()) arena.plan(packed_.bias, biasAt.size(), "chosen tokens");
    for (std::int64_t** first : {&packed_.first, &packed_.placeFirst, &sourceFirst_.fetched, &sourceFirst_.store})
        arena.plan(*first, heads, "session state");
    arena.plan(scratch_.partial, cuda::attentionPartialFloats(context_.launch, byHead_, context_.rows(), blocks_),
               "activations");
    arena.plan(scratch_.arrivals, cuda::attentionArrivals(byHead_, context_.rows()), "session state");
    mass_.plan(arena);
}

void InfinigenTokenOnDevice::begin() {
    const cuda::AttentionShape& shape = context_.shape;
    const Extents<RowId, int, int> blockAt(context_.rows(), shape.queryHeads, blocks_);
    const Extents<RowId, KvHeadId, int> unitedAt(context_.rows(), shape.kvHeads, unitedMost());
    const Extents<RowId, int, int, int> placeAt(context_.rows(), shape.queryHeads, blocks_, shape.blockSize);
    std::vector<std::int64_t> packed, places, fetched, stored;
    for (const RowId row : idsUpTo<RowId>(context_.rows()))
        for (int h = 0; h < shape.queryHeads; ++h) {
            const KvHeadId g{h / shape.group()};
            packed.push_back(std::int64_t(blockAt.first(row, h)));
            places.push_back(std::int64_t(placeAt.first(row, h)));
            fetched.push_back(std::int64_t(unitedAt.first(row, g)));
            stored.push_back(store_.firstOf(row, g));
        }
    for (const auto& [to, from] : {std::pair{packed_.first, &packed},
                                   {packed_.placeFirst, &places},
                                   {sourceFirst_.fetched, &fetched},
                                   {sourceFirst_.store, &stored}})
        cuda::check(cudaMemcpy(to, from->data(), from->size() * sizeof(std::int64_t), cudaMemcpyHostToDevice),
                    "preparing the session");
    store_.begin();
    if (context_.offload) side_.open();
}

void InfinigenTokenOnDevice::prompt(const DevicePromptPiece& piece) {
    if (!own(piece.layer)) return;
    const auto clear = [&](auto* what, Elements count) {
        clearOnStream(what, count, context_.launch.stream, "preparing partial keys");
    };
    if (piece.first == 0) {
        clear(sampled_.gram, {context_.queryWidth(), context_.shape.dim});
        clear(sampled_.lengths, context_.queryWidth());
        sampled_.solved.clear();
        sampled_.of = {piece.layer, piece.sequence};
    }
    if (!sampled_.solved.empty()) {
        cuda::addLengthsAlong(context_.launch, {byHead_, piece.q, piece.n, sampled_.vectors, sampled_.lengths});
        return;
    }
    cuda::addQueryGram(context_.launch,
                       {byHead_, piece.q, std::clamp(warmUp_ - piece.first, 0, piece.n), sampled_.gram});
    copyOnStream(RowsOf(sampled_.queries, context_.queryWidth())[piece.first], piece.q,
                 {piece.n, context_.queryWidth()}, cudaMemcpyDeviceToDevice, context_.launch.stream, "keeping queries");
    const int read = piece.first + piece.n;
    if (read >= std::min(warmUp_, piece.promptTokens)) solve(read);
}

/// Computes the right singular vectors of every query head's sampled queries, and how far the queries of the first
/// `tokens` tokens reach along these vectors.
void InfinigenTokenOnDevice::solve(int tokens) {
    const int heads = context_.shape.queryHeads, dim = context_.shape.dim;
    const Extents<int, int, int> matrixAt(heads, dim, dim);
    std::vector<double> gram(matrixAt.size());
    copyOnStream(gram.data(), sampled_.gram, gram.size(), cudaMemcpyDeviceToHost, context_.launch.stream,
                 "reading the prompt's queries");
    cuda::check(cudaStreamSynchronize(context_.launch.stream), "reading the prompt's queries");
    sampled_.solved.resize(gram.size());
    {
        std::vector<std::jthread> team;
        const int threads = std::clamp(int(std::thread::hardware_concurrency()), 1, heads);
        for (int t = 0; t < threads; ++t)
            team.emplace_back([&, t] {
                for (int h = t; h < heads; h += threads) {
                    const SymmetricEigen eigen = symmetricEigen(matrixAt.part(std::span(gram), h), dim);
                    const std::span<float> solved = matrixAt.part(std::span(sampled_.solved), h);
                    std::transform(eigen.vectors.begin(), eigen.vectors.begin() + std::ptrdiff_t(solved.size()),
                                   solved.begin(), [](double x) { return float(x); });
                }
            });
    }
    copyOnStream(sampled_.vectors, sampled_.solved.data(), sampled_.solved.size(), cudaMemcpyHostToDevice,
                 context_.launch.stream, "keeping directions");
    cuda::addLengthsAlong(context_.launch, {byHead_, sampled_.queries, tokens, sampled_.vectors, sampled_.lengths});
}

/// @return the directions [queryHeads, dim, width] along which the sums of the prompt's queries are largest
std::vector<float> InfinigenTokenOnDevice::directions(bool sampled) const {
    const int heads = context_.shape.queryHeads, dim = context_.shape.dim;
    const Extents<int, int> channelAt(heads, dim);
    const Extents<int, int, int> directionAt(heads, dim, width_), vectorAt(heads, dim, dim);
    std::vector<float> lengths(channelAt.size()), result(directionAt.size(), 0.f);
    if (sampled) {
        copyOnStream(lengths.data(), sampled_.lengths, lengths.size(), cudaMemcpyDeviceToHost, context_.launch.stream,
                     "reading the prompt's queries");
        cuda::check(cudaStreamSynchronize(context_.launch.stream), "reading the prompt's queries");
    }
    for (int h = 0; h < heads; ++h) {
        const NumberedSpan<float> mine(channelAt.part(std::span(lengths), h));
        Numbered<int> order(dim, 0);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return mine[a] > mine[b]; });
        std::sort(order.begin(), order.begin() + dims_);
        for (int i = 0; i < dims_; ++i)
            for (int c = 0; c < dim; ++c) // a filled context has no queries; it gets the first channels
                result[directionAt.offset(h, c, i)] = sampled  ? sampled_.solved[vectorAt.offset(h, order[i], c)]
                                                      : c == i ? 1.f
                                                               : 0.f;
    }
    return result;
}

void InfinigenTokenOnDevice::promptDone(LayerId layer, RowId sequence, int tokens, const Bf16* blocks,
                                        std::int64_t headStride) {
    if (!own(layer)) return;
    const cuda::PartialKeys& partial = layers_[layer].partial;
    const std::vector<float> kept = directions(sampled_.of == std::pair(layer, sequence));
    copyOnStream(RowsOf(partial.directions, kept.size())[int(sequence)], kept.data(), kept.size(),
                 cudaMemcpyHostToDevice, context_.launch.stream, "keeping directions");
    cuda::check(cudaStreamSynchronize(context_.launch.stream), "keeping directions");
    cuda::keepPartialPrompt(context_.launch, {context_.shape, int(sequence), tokens, blocks, headStride, partial});
    store_.promptDone(layer, sequence, tokens, blocks, headStride);
}

void InfinigenTokenOnDevice::append(const DeviceStep& step) {
    if (!own(step.layer)) return;
    cuda::appendPartialKey(context_.launch, {context_.shape, context_.rows(), step.position, step.active, step.newKey,
                                             layers_[step.layer].partial});
    const Lists& lists = listsOf(step.layer);
    cuda::PlaceNewestArgs args;
    args.shape = context_.shape;
    args.rows = context_.rows();
    args.position = step.position;
    args.active = step.active;
    args.newKey = step.newKey;
    args.newValue = step.newValue;
    args.store = store_.of(step.layer);
    args.first = context_.tables.tokenFirst;
    args.fetched = lists.fetched;
    args.count = lists.unitedCount;
    args.capacity = unitedMost();
    cuda::placeNewest(context_.launch, args);
}

void InfinigenTokenOnDevice::lookAhead(const DeviceStep& step, LayerId target, cuda::SelectArgs&) {
    const std::int64_t stride = layers_[target].partial.stride;
    cuda::PartialTokenScoreArgs score;
    score.shape = context_.shape;
    score.rows = context_.rows();
    score.position = step.position;
    score.active = step.active;
    score.q = guess_.make(step, target);
    score.partial = layers_[target].partial;
    score.scale = context_.config.attentionScale();
    score.maxTokens = mostTokens_;
    score.scores = choosing_.scores;
    score.stride = stride;
    cuda::scorePartialTokens(context_.launch, score);
    cuda::NearCountArgs near;
    near.rows = context_.rows();
    near.heads = context_.shape.queryHeads;
    near.position = step.position;
    near.active = step.active;
    near.scores = choosing_.scores;
    near.stride = stride;
    near.alpha = alpha_;
    near.most = most_;
    near.length = choosing_.length;
    near.wanted = choosing_.wanted;
    near.total = choosing_.total;
    near.arrived = choosing_.arrived;
    cuda::countNear(context_.launch, near);
    cuda::TokenChoiceArgs choice;
    choice.rows = context_.rows();
    choice.kvHeads = context_.shape.queryHeads;
    choice.active = step.active;
    choice.scores = choosing_.scores;
    choice.stride = stride;
    choice.length = choosing_.length;
    choice.maxLength = mostTokens_;
    choice.wanted = choice.capacity = most_;
    choice.fewer = choosing_.wanted;
    choice.tokens = choosing_.tokens;
    choice.count = choosing_.count;
    choice.mark = step.poolingMark;
    cuda::chooseTokens(context_.launch, choice);
    const Lists& lists = listsOf(target);
    cuda::UniteArgs unite;
    unite.shape = context_.shape;
    unite.rows = context_.rows();
    unite.maxTokens = mostTokens_;
    unite.position = step.position;
    unite.active = step.active;
    unite.tokens = choosing_.tokens;
    unite.count = choosing_.count;
    unite.capacity = most_;
    unite.united = lists.united;
    unite.unitedCount = lists.unitedCount;
    unite.unitedCapacity = unitedMost();
    unite.own = lists.own;
    unite.places = lists.places;
    unite.ownCount = lists.ownCount;
    cuda::uniteHeads(context_.launch, unite);
    if (!own(step.layer) && step.offloadingMark != nullptr) cuda::stampNow(context_.launch, step.offloadingMark);
    if (context_.offload) fetch(step, target);
}

/// Fetches the tokens that the next layer's query heads chose, while this layer goes on.
void InfinigenTokenOnDevice::fetch(const DeviceStep& step, LayerId target) {
    const Lists& lists = listsOf(target);
    cuda::FetchTokensArgs args;
    args.shape = context_.shape;
    args.rows = context_.rows();
    args.active = step.active;
    args.tokens = lists.united;
    args.count = lists.unitedCount;
    args.capacity = unitedMost();
    args.store = store_.of(target);
    args.first = context_.tables.tokenFirst;
    args.to = lists.fetched;
    if (FetchMarks* marks = marksIn(step.report)) { // moved on to the next layer's report
        marks = reinterpret_cast<FetchMarks*>(reinterpret_cast<char*>(marks) + reportBytes());
        args.mark = &marks->begin;
        args.endMark = &marks->end;
    }
    // Tokens are small, and a whole thread block reads each of them, so this needs more thread blocks than a transfer
    // of KV blocks.
    const int blocks = context_.rows() <= 8 ? 8 : context_.rows() <= 16 ? 16 : 32;
    cuda::fetchTokens(side_.fork(context_.launch), args, blocks);
}

/// @return how the kernels that read the layer's fetched tokens are launched
cuda::Launch InfinigenTokenOnDevice::arrived(const DeviceStep& step) {
    if (!context_.offload) return context_.launch;
    if (FetchMarks* marks = marksIn(step.report)) cuda::stampNow(context_.launch, &marks->ready);
    return side_.join(context_.launch);
}

bool InfinigenTokenOnDevice::attend(const DeviceStep& step, cuda::DecodeAttentionArgs& args) {
    const Layer& layer = layers_[step.layer];
    const Lists& lists = listsOf(step.layer);
    const cuda::TokenChoiceRecord record = report_.at(step);
    const bool last = int(step.layer) + 1 == context_.config.layers; // the last layer chooses for no other layer
    if (last && step.stage1Mark != nullptr)
        cuda::stampNow(context_.launch, step.stage1Mark), cuda::stampNow(context_.launch, step.poolingMark);
    report_.compare(context_, step, {lists.united, nullptr, lists.unitedCount, layer.previous, layer.previousCount});

    cuda::PackArgs pack;
    pack.shape = byHead_;
    pack.rows = context_.rows();
    pack.active = step.active;
    pack.tokens = context_.offload ? lists.places : lists.own;
    pack.count = lists.ownCount;
    pack.capacity = most_ + 1;
    pack.store = context_.offload ? lists.fetched : store_.of(step.layer);
    pack.first = context_.offload ? sourceFirst_.fetched : sourceFirst_.store;
    if (biased()) pack.bias = context_.layers[step.layer].index.tokenScores;
    pack.biasTokens = lists.own;
    pack.biasFirst = sourceFirst_.store;
    pack.packed = packed_.blocks;
    pack.packedBias = packed_.bias;
    pack.packedBlocks = blocks_;
    pack.mark = record.marks[2];
    cuda::packTokens(arrived(step), pack);

    args.shape = byHead_;
    args.blocks = packed_.blocks;
    args.headFirst = packed_.first;
    args.packedTokens = lists.ownCount;
    args.maxBlocks = blocks_;
    args.bias.scores = packed_.bias;
    args.bias.first = packed_.placeFirst;
    args.scratch = scratch_;
    args.logSums = mass_.logSums();
    return false;
}

void InfinigenTokenOnDevice::fill(LayerId layer, const char* report, std::span<const RowId> active, LayerRecord& out,
                                  StepRecord& record, std::size_t firstSelection) const {
    report_.fill(layer, report, active, out, record, Origin::TokenLevel,
                 [](RowId, std::int32_t newest) { return newest; });
    if (report != nullptr) mass_.fill(report + massesAt(), record, firstSelection);
    if (!context_.offload) return;
    out.h2dBlocks = out.misses;
    out.h2dBytes = out.misses * store_.tokenBytes();
    out.d2hBytes = std::int64_t(active.size()) * context_.shape.kvHeads * store_.tokenBytes();
    if (report == nullptr || out.misses == 0) return;
    const auto& marks = *reinterpret_cast<const FetchMarks*>(report + report_.bytes());
    const auto between = [](std::uint64_t from, std::uint64_t to) { return to > from ? std::int64_t(to - from) : 0; };
    out.exposedNs = between(marks.ready, marks.end);
    out.transferNs = std::max(between(marks.begin, marks.end), out.exposedNs);
}

} // namespace

std::unique_ptr<DeviceSelector> infinigenTokenOnDevice(const ParameterValues& values,
                                                       const DeviceSelectorContext& context) {
    return std::make_unique<InfinigenTokenOnDevice>(values, context);
}

} // namespace kvscope
