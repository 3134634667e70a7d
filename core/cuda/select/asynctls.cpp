// AsyncTLS on the GPU (core/select/asynctls.cpp). The labels of all tokens are on the device, and blocks are in the
// engine's slots. With a lag the candidates of a step are the blocks that the block filter chose in the step before;
// the blocks that it chooses in this step have until the same layer of the next step to arrive.
#include "base/error.h"
#include "base/extents.h"
#include "core/cuda/device_copy.h"
#include "core/cuda/select/attended_mass.h"
#include "core/cuda/select/first_slots.h"
#include "core/cuda/select/lagging_transfers.h"
#include "core/cuda/select/token_labels.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/methods/candidate_attention.h"
#include "kernels/cuda/methods/candidates.h"
#include "kernels/cuda/transfer/gather.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope {
namespace {

using Bf16 = __nv_bfloat16;

class AsyncTls final : public DeviceSelector {
public:
    AsyncTls(const ParameterValues& values, const DeviceSelectorContext& context);

    void plan(DeviceArena& arena) override;
    void begin() override;
    std::size_t reportBytes() const override { return context_.record ? massesAt() + mass_.bytes() : 0; }
    void prompt(const DevicePromptPiece& piece) override;
    void promptDone(LayerId layer, RowId sequence, int tokens, const Bf16* blocks, std::int64_t headStride) override;
    void append(const DeviceStep& step) override;
    void choose(const DeviceStep& step, cuda::SelectArgs& args) override;
    bool attend(const DeviceStep& step, cuda::DecodeAttentionArgs& args) override;
    void after(const DeviceStep& step) override;
    void fill(LayerId layer, const char* report, std::span<const RowId> active, LayerRecord& out, StepRecord& record,
              std::size_t firstSelection) const override;

private:
    struct Layer {
        cuda::BlockLists candidates;      // of this step; then, chosen by this step, of the next one
        cuda::BlockMove* loads = nullptr; // the loads that fetch the candidates
        std::uint32_t *counts = nullptr, *published = nullptr;
        std::uint16_t* chosen = nullptr; // chosen tokens, see CandidateAttentionArgs
        Bf16* q = nullptr;               // [rows, queryHeads*dim] copy of the layer's queries
        std::uint32_t* previous = nullptr;
        std::uint8_t* hasPrevious = nullptr;
    };
    Layer& at(LayerId layer) { return layers_[layer]; }
    template <class T> std::size_t headBytes() const { return (Elements(context_.heads()) * sizeof(T) + 15) / 16 * 16; }
    static std::size_t lagsAt() { return sizeof(cuda::LagLayer); } // where the LagHeads lie in a report
    std::size_t massesAt() const { return lagsAt() + headBytes<cuda::LagHead>(); }
    /// Whether the step before has left the complete list of the layer's blocks: with a lag and without slots.
    bool knows(LayerId layer) const { return lag_ && !context_.layers[layer].offloaded; }
    bool fetches(LayerId layer) const { return lag_ && context_.layers[layer].offloaded; }
    /// Whether the layer's attention waits for a transfer that the step before has chosen (LaggingTransfers::crosses).
    bool awaits(LayerId layer) const { return fetches(layer) && transfers_.crosses(layer); }
    std::int64_t blockBytes() const { return std::int64_t(cuda::blockBytes(context_.shape)); }

    void chooseNextBlocks(const cuda::Launch& launch, LayerId layer);
    void settle(const cuda::Launch& launch, const DeviceStep& step);
    void fetch(const cuda::Launch& launch, LayerId layer);

    const DeviceSelectorContext context_;
    const bool lag_;
    const int tokens_;
    TokenLabels labels_;
    AttendedMass mass_;
    PerLayer<Layer> layers_;
    LaggingTransfers transfers_;
    SideStream beside_;
    cuda::SelectArgs taken_; // the arguments with which the engine would have chosen the layer's blocks
    // Belongs to the prompt that is being read.
    Bf16* lastQuery_ = nullptr;
    std::int32_t* lastPosition_ = nullptr;
    // Belongs to the layer that is being launched.
    cuda::BlockLists next_;
    std::int32_t *list_ = nullptr, *slots_ = nullptr; // the blocks that the block filter lists
    cuda::BlockMove* writeBacks_ = nullptr;
    float* logits_ = nullptr;
    cuda::LagMarks* marks_ = nullptr;    // [layer]
    std::uint64_t* stepMarks_ = nullptr; // [2] when the step began, and when all of it but its transfers was done
};

AsyncTls::AsyncTls(const ParameterValues& values, const DeviceSelectorContext& context)
    : context_(context), lag_(values.text("lag") == "1"),
      tokens_(std::min(values.integer("k_t"), context.capacity * context.shape.blockSize)),
      labels_(context_, values.integer("d_c"), std::stoi(values.text("label_bits")),
              select::ChannelRule::ProductOfMaxima),
      mass_(context_), layers_(context.config.layers) {
    if (const int most = cuda::mostCandidateBlocks(context.launch, context.shape); context.capacity > most)
        throw Error(ErrorKind::Unsupported,
                    fmt::format("asynctls chooses tokens in at most {} blocks on this GPU, and the candidates are {}",
                                most, context.capacity),
                    "lower k_b, or use --backend cpu");
}

void AsyncTls::plan(DeviceArena& arena) {
    const int heads = context_.heads();
    const Elements lists(heads, context_.capacity);
    labels_.plan(arena);
    for (const LayerId i : layers_.ids()) {
        if (!context_.layers[i].sparse) continue;
        Layer& layer = layers_[i];
        arena.plan(layer.candidates.blocks, lists, "selections");
        arena.plan(layer.candidates.ids, lists, "selections");
        arena.plan(layer.candidates.count, heads, "selections");
        arena.plan(layer.candidates.heads, heads, "selections");
        arena.plan(layer.loads, lists, "selections");
        arena.plan(layer.counts, 2, "session state");
        arena.plan(layer.published, 2, "session state");
        arena.plan(layer.q, {context_.rows(), context_.shape.queryHeads, context_.shape.dim}, "selections");
        if (!context_.record) continue;
        arena.plan(layer.chosen, {lists, context_.shape.blockSize / 16}, "selections");
        arena.plan(layer.previous, {heads, (context_.maxBlocks + 31) / 32}, "recorder state");
        arena.plan(layer.hasPrevious, heads, "recorder state");
    }
    arena.plan(lastQuery_, context_.queryWidth(), "activations");
    arena.plan(lastPosition_, 1, "session state");
    arena.plan(next_.blocks, lists, "selections");
    arena.plan(next_.count, heads, "selections");
    arena.plan(next_.heads, heads, "selections");
    arena.plan(list_, lists, "selections");
    arena.plan(slots_, lists, "selections");
    arena.plan(writeBacks_, heads, "selections");
    if (const std::size_t logits =
            cuda::candidateLogitFloats(context_.launch, context_.shape, context_.rows(), context_.capacity);
        logits > 0)
        arena.plan(logits_, logits, "activations");
    mass_.plan(arena);
    arena.plan(marks_, layers_.size(), "session state");
    arena.plan(stepMarks_, 2, "session state");
}

void AsyncTls::begin() {
    labels_.begin();
    if (lag_) beside_.open();
    std::vector<LayerId> fetching;
    for (const LayerId i : idsUpTo<LayerId>(context_.config.layers))
        if (fetches(i)) fetching.push_back(i);
    transfers_.open(std::move(fetching), context_.transferBlocks);
}

void AsyncTls::prompt(const DevicePromptPiece& piece) {
    if (!context_.layers[piece.layer].sparse) return;
    labels_.prompt(piece);
    if (piece.first + piece.n < piece.promptTokens) return;
    const RowsOf queries(piece.q, context_.queryWidth());
    copyOnStream(lastQuery_, queries[piece.n - 1], queries.width(), cudaMemcpyDeviceToDevice, context_.launch.stream,
                 "keeping the last query");
}

/// Makes the labels of the prompt, and lets the query of the last prompt token choose the candidates of the first step:
/// the prompt has left their blocks on the device, where they stay.
void AsyncTls::promptDone(LayerId index, RowId sequence, int tokens, const Bf16* blocks, std::int64_t headStride) {
    const DeviceLayerState& state = context_.layers[index];
    if (!state.sparse) return;
    Layer& layer = at(index);
    labels_.promptDone(index, sequence, tokens, blocks, headStride);
    if (!lag_) return;

    const std::int32_t last = tokens - 1;
    cuda::check(cudaMemcpyAsync(lastPosition_, &last, sizeof(last), cudaMemcpyHostToDevice, context_.launch.stream),
                "copying a position");
    cuda::SelectArgs select;
    select.shape = context_.shape;
    select.rows = 1;
    select.position = lastPosition_;
    select.q = lastQuery_;
    select.oneSequence = true;
    select.sequence = int(sequence);
    select.index = state.index;
    select.maxBlocks = context_.maxBlocks;
    select.score = cuda::SelectArgs::Score::RangeBound;
    select.rangeReduce = context_.spec.rangeReduce;
    select.budget = context_.spec.budget;
    select.capacity = context_.capacity;
    select.list = {list_, nullptr, next_.count};
    select.record.blocks = next_.blocks;
    cuda::selectBlocksOnDevice(context_.launch, select);
    const Extents<RowId, KvHeadId, int> listAt(context_.rows(), context_.shape.kvHeads, context_.capacity);
    const std::size_t list = listAt.first(sequence);
    const int head = int(sequence) * context_.shape.kvHeads;
    cuda::SettleArgs settle;
    settle.shape = context_.shape;
    settle.rows = 1;
    settle.firstSequence = int(sequence);
    settle.capacity = context_.capacity;
    settle.maxBlocks = context_.maxBlocks;
    settle.position = lastPosition_;
    settle.candidates = {layer.candidates.blocks + list, layer.candidates.ids + list, layer.candidates.count + head,
                         layer.candidates.heads + head};
    settle.next = {next_.blocks, nullptr, next_.count, nullptr};
    cuda::settleCandidates(context_.launch, settle);
    if (state.offloaded)
        fillFirstSlots(context_, index, sequence, tokens, blocks, headStride, next_.blocks, next_.count);
}

/// In the first offloaded layer of a step, starts the transfers that cross from the step before (LaggingTransfers).
/// Labels are not made here: a token gets its label in the kernel that attends to it.
void AsyncTls::append(const DeviceStep& step) {
    if (!transfers_.any() || step.layer != transfers_.layers().front()) return;
    if (context_.record) cuda::stampNow(context_.launch, stepMarks_);
    for (const LayerId layer : transfers_.layers())
        if (transfers_.crosses(layer)) fetch(context_.launch, layer);
}

/// The engine gives the candidates their slots and writes the new token to its block. Nothing of the candidates is
/// recorded yet.
void AsyncTls::choose(const DeviceStep& step, cuda::SelectArgs& args) {
    taken_ = args;
    if (knows(step.layer)) return;
    args.record = {};
    if (!lag_) args.record.blocks = next_.blocks; // with a flag for those that must be loaded now
    args.marks.stage1 = step.stage1Mark;
    args.marks.offloading = nullptr;
    if (context_.record) args.marks.end = &marks_[int(step.layer)].listed;
    if (!lag_) return;
    args.score = cuda::SelectArgs::Score::None;
    args.planted.share = -1;
    args.chosen = {at(step.layer).candidates.blocks, at(step.layer).candidates.count, nullptr};
}

/// Chooses the candidates of the next step (M_t in the paper). This step has attended by now, so slots of blocks that
/// are no longer chosen may be filled.
void AsyncTls::chooseNextBlocks(const cuda::Launch& launch, LayerId index) {
    Layer& layer = at(index);
    cuda::SelectArgs select = taken_;
    select.q = layer.q;
    select.slots.newKey = select.slots.newValue = nullptr;
    // The engine's own choice lists the full blocks, this one does not.
    select.slots.moves = {layer.loads, writeBacks_, layer.counts};
    select.list = {list_, slots_, next_.count};
    select.record = {};
    select.record.heads = next_.heads;
    select.record.blocks = next_.blocks;
    select.marks = {};
    cuda::selectBlocksOnDevice(launch, select);
}

void AsyncTls::settle(const cuda::Launch& launch, const DeviceStep& step) {
    Layer& layer = at(step.layer);
    if (!lag_ && !context_.record) return;
    cuda::SettleArgs args;
    args.shape = context_.shape;
    args.rows = context_.rows();
    args.capacity = context_.capacity;
    args.maxBlocks = context_.maxBlocks;
    args.position = step.position;
    args.active = step.active;
    if (lag_) {
        args.candidates = layer.candidates;
        args.next = next_;
        if (!fetches(step.layer)) args.next.heads = nullptr; // no block travels, so no block counts as predicted
        args.counts = layer.counts;
        args.published = layer.published;
    } else {
        args.candidates = {next_.blocks, nullptr, taken_.list.count, nullptr};
    }
    if (context_.record) {
        args.chosen = layer.chosen;
        args.q = layer.q;
        args.index = context_.layers[step.layer].index;
        args.previous = layer.previous;
        args.hasPrevious = layer.hasPrevious;
        args.head = taken_.record.heads;
        args.blocks = taken_.record.blocks;
        args.scores = taken_.record.scores;
        if (step.report != nullptr) {
            if (lag_) args.lag = reinterpret_cast<cuda::LagHead*>(step.report + lagsAt());
            args.layer = reinterpret_cast<cuda::LagLayer*>(step.report);
            args.marks = marks_ + int(step.layer);
        }
    }
    cuda::settleCandidates(launch, args);
}

/// Starts the loads of the layer's next candidates that have no slot yet.
void AsyncTls::fetch(const cuda::Launch& launch, LayerId index) {
    const DeviceLayerState& state = context_.layers[index];
    Layer& layer = at(index);
    cuda::GatherArgs gather;
    gather.shape = context_.shape;
    gather.moves = {layer.loads, writeBacks_, layer.published};
    gather.store = state.store;
    gather.storeOut = const_cast<Bf16*>(state.store);
    gather.pool = state.blocks;
    gather.part = cuda::GatherArgs::Part::Loads;
    gather.beside = true;
    if (context_.record) {
        gather.mark = &marks_[int(index)].begin;
        gather.endMark = &marks_[int(index)].end;
        gather.ready = transfers_.crosses(index) ? &marks_[int(index)].ready : stepMarks_ + 1;
        gather.begin = stepMarks_;
        gather.late = layer.candidates.heads;
        gather.slots = context_.slots;
    }
    transfers_.send(launch, index, gather);
}

bool AsyncTls::attend(const DeviceStep& step, cuda::DecodeAttentionArgs& args) {
    Layer& layer = at(step.layer);
    args.logSums = mass_.logSums();
    cuda::CandidateAttentionArgs candidates;
    if (knows(step.layer)) {
        args.list.block = layer.candidates.ids;
        args.list.count = layer.candidates.count;
        args.list.capacity = context_.capacity;
        candidates.listedBefore = true;
    }
    candidates.attend = args;
    candidates.labels = labels_.of(step.layer);
    candidates.newKey = step.newKey;
    candidates.wanted = tokens_;
    candidates.chosen = layer.chosen;
    candidates.keptQ = layer.q;
    candidates.logits = logits_;
    candidates.marks[1] = step.poolingMark;
    candidates.marks[2] = step.offloadingMark;
    if (context_.record) candidates.marks[0] = knows(step.layer) ? step.stage1Mark : &marks_[int(step.layer)].scored;
    const bool awaited = awaits(step.layer);
    if (awaited && context_.record) cuda::stampNow(context_.launch, &marks_[int(step.layer)].ready);
    cuda::attendCandidates(awaited ? transfers_.join(context_.launch, step.layer) : context_.launch, candidates);
    return true;
}

/// Chooses the next step's candidates while the kernels after the attention run.
void AsyncTls::after(const DeviceStep& step) {
    const cuda::Launch launch = lag_ ? beside_.fork(context_.launch) : context_.launch;
    if (lag_) chooseNextBlocks(launch, step.layer);
    settle(launch, step);
    if (fetches(step.layer) && !awaits(step.layer)) fetch(launch, step.layer);
    if (step.report != nullptr) mass_.measure(step, step.report + massesAt());
    if (!lag_ || int(step.layer) + 1 < context_.config.layers) return;
    cuda::stampNow(beside_.join(context_.launch), context_.record ? stepMarks_ + 1 : nullptr);
    if (!transfers_.any()) return;
    // The blocks whose transfers started in this step have arrived when the step ends.
    auto* report = reinterpret_cast<cuda::LagLayer*>(step.report);
    cuda::reportWait(transfers_.joinAll(context_.launch), marks_, int(transfers_.firstCrossing()), stepMarks_ + 1,
                     report != nullptr ? &report->waitedNs : nullptr);
}

void AsyncTls::fill(LayerId index, const char* report, std::span<const RowId>, LayerRecord& out, StepRecord& record,
                    std::size_t firstSelection) const {
    if (report == nullptr) return;
    const auto& layer = *reinterpret_cast<const cuda::LagLayer*>(report);
    const cuda::LagMarks& marks = layer.marks;
    const auto* lags = reinterpret_cast<const cuda::LagHead*>(report + lagsAt());
    mass_.fill(report + massesAt(), record, firstSelection); // the mass of the chosen tokens, not of their blocks
    for (std::size_t i = firstSelection; lag_ && i < record.selections.size(); ++i) {
        SelectionRecord& selection = record.selections[i];
        const int head = selection.sequence * context_.shape.kvHeads + selection.kvHead;
        const cuda::LagHead& lag = lags[head];
        selection.predicted = lag.predicted;
        selection.used = lag.used;
        selection.wasted = lag.wasted;
        selection.late = lag.late;
        selection.stale = lag.stale;
    }
    const auto between = [](std::uint64_t from, std::uint64_t to) { return to > from ? std::int64_t(to - from) : 0; };
    if (out.h2dBlocks + out.d2hBlocks > 0) // loads on demand: the choice of tokens waited for them
        out.transferNs = out.exposedNs = between(marks.listed, awaits(index) ? marks.ready : marks.scored);
    if (!fetches(index)) return;
    std::int64_t exposed = std::int64_t(layer.waitedNs);
    if (layer.loads > 0) {
        out.h2dBlocks += std::int32_t(layer.loads);
        out.h2dBytes += std::int64_t(layer.loads) * blockBytes();
        out.transferNs += between(marks.begin, marks.end);
        if (awaits(index) && marks.end > marks.ready) exposed += between(marks.ready, marks.scored);
    }
    out.exposedNs += exposed;
    out.transferNs = std::max(out.transferNs, out.exposedNs);
}

} // namespace

std::unique_ptr<DeviceSelector> asyncTlsOnDevice(const ParameterValues& values, const DeviceSelectorContext& context) {
    return std::make_unique<AsyncTls>(values, context);
}

} // namespace kvscope
