#include "core/cuda/select/attended_mass.h"
#include "core/cuda/select/scored_pages.h"

#include "core/select/common_parameters.h"
#include "kernels/cuda/methods/head_blocks.h"

#include <optional>

namespace kvscope {
namespace {

class DeviceQuest final : public DeviceSelector {
public:
    DeviceQuest(const DeviceSelectorContext& context, bool cuboidMean)
        : context_(context),
          pages_(context_, cuboidMean, 1,
                 context.spec.rangeReduce == GroupReduce::Max ? cuda::PageScore::Largest : cuda::PageScore::Sum) {}

    void plan(DeviceArena& arena) override { pages_.plan(arena); }
    void promptDone(LayerId layer, RowId sequence, int tokens, const __nv_bfloat16* blocks,
                    std::int64_t headStride) override {
        if (context_.layers[layer].sparse) pages_.promptDone(layer, sequence, tokens, blocks, headStride);
    }
    void append(const DeviceStep& step) override { pages_.append(step); }
    void choose(const DeviceStep& step, cuda::SelectArgs& args) override {
        pages_.score(step);
        args.score = cuda::SelectArgs::Score::Given;
        args.givenScores = pages_.scores();
        args.marks.pooling = step.poolingMark;
    }

private:
    const DeviceSelectorContext context_;
    ScoredPages pages_;
};

/// Quest with group=per_query_head: every query head chooses its own blocks. The blocks of a group's query heads are
/// united for the transfers, and each query head attends to its own blocks.
class QuestPerHead final : public DeviceSelector {
public:
    QuestPerHead(const DeviceSelectorContext& context, int dynamicBlocks, const std::string& bound)
        : context_(context), dynamicBlocks_(dynamicBlocks), byHead_{context.shape.queryHeads, context.shape.queryHeads,
                                                                    context.shape.dim, context.shape.blockSize},
          mass_(context_) {
        if (bound != "max") pages_.emplace(context_, bound == "cuboid-mean", 1, cuda::PageScore::Each);
    }

    void plan(DeviceArena& arena) override;
    void begin() override;
    void promptDone(LayerId layer, RowId sequence, int tokens, const __nv_bfloat16* blocks,
                    std::int64_t headStride) override {
        if (pages_ && context_.layers[layer].sparse) pages_->promptDone(layer, sequence, tokens, blocks, headStride);
    }
    void append(const DeviceStep& step) override {
        if (pages_) pages_->append(step);
    }
    void choose(const DeviceStep& step, cuda::SelectArgs& args) override;
    bool attend(const DeviceStep& step, cuda::DecodeAttentionArgs& args) override;
    // The report has the mass of what each query head attended to, not of the united blocks.
    std::size_t reportBytes() const override { return mass_.bytes(); }
    void after(const DeviceStep& step) override { mass_.measure(step, step.report); }
    void fill(LayerId, const char* report, std::span<const RowId>, LayerRecord&, StepRecord& record,
              std::size_t firstSelection) const override {
        mass_.fill(report, record, firstSelection);
    }

private:
    const DeviceSelectorContext context_;
    const int dynamicBlocks_;           // blocks that a query head chooses by score
    const cuda::AttentionShape byHead_; // as if every query head were a KV head
    AttendedMass mass_;
    std::optional<ScoredPages> pages_; // empty: the bounds come from the key ranges of the block index
    // For the present layer. Lists are [rows, queryHeads, capacity]; the united list is [rows, kvHeads, capacity].
    std::int32_t *blocks_ = nullptr, *count_ = nullptr, *places_ = nullptr, *slots_ = nullptr, *chosenCount_ = nullptr;
    PackedBlock *listed_ = nullptr, *chosen_ = nullptr;
    std::uint32_t* arrivals_ = nullptr;
    float *scores_ = nullptr, *chosenScores_ = nullptr, *partial_ = nullptr;
    std::int64_t *blockFirst_ = nullptr, *poolFirst_ = nullptr, *tokenFirst_ = nullptr; // [rows*queryHeads]
};

void QuestPerHead::plan(DeviceArena& arena) {
    constexpr const char* kWhat = "selections";
    if (pages_) pages_->plan(arena);
    const Elements kvHeads(context_.heads()), heads(kvHeads, context_.shape.group()),
        kvLists(kvHeads, context_.capacity), lists(heads, context_.capacity);
    for (std::int32_t** list : {&blocks_, &places_, &slots_}) arena.plan(*list, lists, kWhat);
    arena.plan(count_, heads, kWhat);
    arena.plan(listed_, lists, kWhat);
    arena.plan(scores_, lists, kWhat);
    arena.plan(chosen_, kvLists, kWhat);
    arena.plan(chosenScores_, kvLists, kWhat);
    arena.plan(chosenCount_, kvHeads, kWhat);
    for (std::int64_t** first : {&blockFirst_, &poolFirst_, &tokenFirst_}) arena.plan(*first, heads, "session state");
    arena.plan(partial_, cuda::attentionPartialFloats(context_.launch, byHead_, context_.rows(), context_.capacity),
               "activations");
    arena.plan(arrivals_, cuda::attentionArrivals(byHead_, context_.rows()), "session state");
    mass_.plan(arena);
}

/// Uploads for each query head where the blocks, slots and tokens of its KV head begin.
void QuestPerHead::begin() {
    const Elements group(context_.shape.group());
    for (const auto& [to, from] : {std::pair{blockFirst_, context_.tables.blockFirst},
                                   {poolFirst_, context_.tables.poolFirst},
                                   {tokenFirst_, context_.tables.tokenFirst}}) {
        std::vector<std::int64_t> first(Elements(context_.heads())), repeated;
        cuda::check(cudaMemcpy(first.data(), from, first.size() * sizeof(first[0]), cudaMemcpyDeviceToHost),
                    "preparing the session");
        for (const std::int64_t one : first) repeated.insert(repeated.end(), group, one);
        cuda::check(cudaMemcpy(to, repeated.data(), repeated.size() * sizeof(first[0]), cudaMemcpyHostToDevice),
                    "preparing the session");
    }
}

void QuestPerHead::choose(const DeviceStep& step, cuda::SelectArgs& args) {
    cuda::SelectArgs own;
    own.shape = byHead_;
    own.rows = args.rows;
    own.position = args.position;
    own.active = args.active;
    own.q = args.q;
    own.index = args.index;
    own.index.blockFirst = blockFirst_;
    own.maxBlocks = args.maxBlocks;
    own.score = cuda::SelectArgs::Score::RangeBound;
    if (pages_) {
        pages_->score(step);
        own.score = cuda::SelectArgs::Score::Given;
        own.givenScores = pages_->scores();
    }
    own.planted.share = args.planted.share;
    own.slidingWindow = args.slidingWindow;
    own.budget = args.budget;
    own.budget.queryAware = dynamicBlocks_;
    own.capacity = context_.capacity;
    own.list = {blocks_, nullptr, count_};
    own.record.blocks = listed_;
    own.record.scores = scores_;
    own.marks.stage1 = pages_ ? nullptr : step.stage1Mark; // with pages their scores are made first, under this mark
    own.marks.pooling = step.poolingMark;
    cuda::selectBlocksOnDevice(context_.launch, own);
    cuda::UniteBlocksArgs unite;
    unite.shape = context_.shape;
    unite.rows = args.rows;
    unite.maxBlocks = args.maxBlocks;
    unite.active = args.active;
    unite.blocks = listed_;
    unite.scores = scores_;
    unite.count = count_;
    unite.capacity = context_.capacity;
    unite.chosen = chosen_;
    unite.chosenScores = chosenScores_;
    unite.chosenCount = chosenCount_;
    unite.places = places_;
    cuda::uniteBlocks(context_.launch, unite);
    args.score = cuda::SelectArgs::Score::None;
    args.planted.share = -1;
    args.chosen = {chosen_, chosenCount_, chosenScores_};
}

bool QuestPerHead::attend(const DeviceStep& step, cuda::DecodeAttentionArgs& args) {
    if (args.list.slot != nullptr)
        cuda::takeHeadSlots(context_.launch, {context_.shape, context_.rows(), context_.capacity, step.active, places_,
                                              count_, args.list.slot, slots_});
    args.headFirst = args.list.slot != nullptr ? poolFirst_ : blockFirst_;
    args.list.slot = args.list.slot != nullptr ? slots_ : nullptr;
    args.shape = byHead_;
    args.list.block = blocks_;
    args.list.count = count_;
    args.bias.first = tokenFirst_;
    args.scratch.partial = partial_;
    args.scratch.arrivals = arrivals_;
    args.logSums = mass_.logSums();
    return false;
}

} // namespace

std::unique_ptr<DeviceSelector> questOnDevice(const ParameterValues& values, const DeviceSelectorContext& context) {
    const std::string& bound = values.text("bound");
    if (values.text("group") == "per_query_head")
        return std::make_unique<QuestPerHead>(context, select::remainingBlocks(values, context.spec, 0), bound);
    if (bound == "max") return nullptr;
    return std::make_unique<DeviceQuest>(context, bound == "cuboid-mean");
}

} // namespace kvscope
