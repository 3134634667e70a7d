// Choosing a layer's blocks one layer ahead: they travel on a second stream of the step while this layer attends and
// runs its feed-forward, and the attention that needs them joins that stream.
#include "core/cuda/cuda_engine.h"

#include <algorithm>

namespace kvscope {

namespace {

using Part = cuda::GatherArgs::Part;

} // namespace

/// Layers that follow each other have lists of their own: one is written while the other is attended.
CudaEngine::Lists CudaEngine::listsOf(int index) const {
    const std::size_t heads = std::size_t(layout_.selectRows) * std::size_t(layout_.kvHeads),
                      capacity = std::size_t(std::max(layout_.capacity, 1));
    const std::size_t first = order_.looksAhead() && index % 2 == 1 ? heads : 0;
    // A lookahead's write-backs wait until the token is there: by then the next but one layer may have chosen.
    const std::size_t writeBacks = order_.looksAhead() ? std::size_t(index * layout_.rows * layout_.kvHeads) : 0;
    return {listBlock_ + first * capacity, listSlot_ + first * capacity, listCount_ + first, loads_ + first * capacity,
            writeBacks_ + writeBacks};
}

cuda::GatherArgs CudaEngine::gatherArgs(int index, const StepReport& report) const {
    const Layer& layer = layers_[std::size_t(index)];
    const Lists lists = listsOf(index);
    cuda::GatherArgs gather;
    gather.shape = layout_.shape;
    // Past the layers' pairs of counters is one that nobody raises.
    gather.moves = {lists.loads, lists.writeBacks, options_.moveBlocks ? layer.counts : counters_ + 2 * layers_.size()};
    gather.store = layer.store;
    gather.storeOut = const_cast<__nv_bfloat16*>(layer.store);
    gather.pool = layer.blocks;
    if (options_.record) gather.recordCounts = report.counts + 2 * index;
    return gather;
}

/// What the second stream gets from here on follows what the first has so far.
void CudaEngine::fork() {
    cuda::check(cudaEventRecord(chosen_.get(), stream_.get()), "starting a transfer");
    cuda::check(cudaStreamWaitEvent(aheadStream_.get(), chosen_.get()), "starting a transfer");
}

cuda::GatherArgs CudaEngine::besideArgs(int index, const StepReport& report, Part part) const {
    cuda::GatherArgs gather = gatherArgs(index, report);
    gather.part = part;
    gather.beside = true;
    const bool loads = part != Part::WriteBacks;
    gather.mark = report.mark(index, loads ? kGather : kBack);
    gather.endMark = report.mark(index, loads ? kLoaded : kBackEnd);
    if (options_.record && loads) {
        gather.ready = report.mark(index, kReady);
        gather.begin = report.mark(kEmbed);
        gather.late = report.heads + std::size_t(index) * std::size_t(layout_.rows * layout_.kvHeads);
        gather.slots = options_.slots;
    }
    return gather;
}

/// Thread blocks of a transfer. Each more of them slows the kernels beside it: as few as keep up (bench/results,
/// 2026-11-22).
int CudaEngine::besideBlocks() const {
    if (options_.aheadBlocks > 0) return options_.aheadBlocks;
    return layout_.rows <= 16 ? 4 : 8;
}

void CudaEngine::moveBeside(int index, const StepReport& report, Part part) {
    cuda::Launch beside = launch_;
    beside.stream = aheadStream_.get();
    beside.joined = true;
    stages_.at(index, Stage::Offloading);
    cuda::gatherBlocks(beside, besideArgs(index, report, part), besideBlocks());
    if (part != Part::WriteBacks)
        cuda::check(cudaEventRecord(loaded_[index % 2].get(), aheadStream_.get()), "starting a transfer");
}

/// The next layer's choice and transfers, between this layer's own choice and its attention.
void CudaEngine::lookAhead(int index, const StepReport& report) {
    if (!order_.looksAhead()) return;
    const Layer& layer = layers_[std::size_t(index)];
    const int target = index + 1;
    if (order_.ownAhead(target)) { // lists and transfers are the selector's
        stages_.at(index, Stage::Stage1);
        cuda::SelectArgs none;
        return selector_->lookAhead(deviceStep(index, report), target, none);
    }
    const bool prepared = order_.chosenAhead(index), writesBack = prepared && layer.offloaded;
    if (order_.chosenAhead(target)) {
        cuda::SelectArgs select = decodeSelectArgs(target, report);
        select.unseen = 1;
        select.newKey = select.newValue = nullptr; // the layer itself writes them
        DeviceStep step = deviceStep(index, report);
        if (prepared || !layer.sparse) // else the marks are those of this layer's own choice
            select.marks[2] = step.offloadingMark;
        else
            step.stage1Mark = step.poolingMark = step.offloadingMark = nullptr;
        if (!transferLoop_) select.endMark = report.mark(index, kReady);
        stages_.at(index, Stage::Stage1);
        selector_->lookAhead(step, target, select);
        cuda::selectBlocksOnDevice(launch_, select);
        if (transferLoop_) return handOver(target, layer.offloaded ? index : -1, report.mark(index, kReady));
        if (layers_[std::size_t(target)].offloaded || writesBack) fork();
        if (layers_[std::size_t(target)].offloaded) moveBeside(target, report, Part::Loads);
    } else if (layer.sparse) {
        if (transferLoop_) return handOver(target, index, report.mark(index, kReady));
        if (options_.record) cuda::stampNow(launch_, report.mark(index, kReady));
        if (writesBack) fork();
    }
    if (writesBack) moveBeside(index, report, Part::WriteBacks);
}

/// The layer's blocks have arrived. @return how the attention is launched
cuda::Launch CudaEngine::join(int index) {
    cuda::Launch how = launch_;
    if (!order_.looksAhead() || transferLoop_ || !layers_[std::size_t(index)].offloaded) return how;
    cuda::check(cudaStreamWaitEvent(stream_.get(), loaded_[index % 2].get()), "waiting for a transfer");
    how.joined = true;
    return how;
}

/// One kernel carries the transfers of all layers of a step, in place of a launch and a join for each. It is no part of
/// the graph, whose kernels then follow each other without forks: lists and arrivals are handed over in device memory.
void CudaEngine::startTransferLoop(int entry) {
    if (!transferLoop_) return;
    if (loops_ > 1) // its write-backs come before the next step uses their slots
        cuda::check(cudaStreamWaitEvent(stream_.get(), chosen_.get()), "waiting for a transfer");
    cuda::Launch beside = launch_;
    beside.stream = aheadStream_.get();
    beside.joined = true;
    cuda::TransferLoopArgs args;
    args.gathers = loopGathers_[entry];
    args.layers = int(layers_.size());
    while (!layers_[std::size_t(args.first)].offloaded) ++args.first;
    args.blockSize = layout_.shape.blockSize;
    args.dim = layout_.shape.dim;
    args.step = ++loops_;
    args.flags = flags_;
    cuda::runTransferLoop(beside, args, besideBlocks());
    cuda::check(cudaEventRecord(chosen_.get(), aheadStream_.get()), "starting a transfer");
}

/// The list of layer `listed` is there; the blocks of layer `awaited` must be. -1: neither.
void CudaEngine::handOver(int listed, int awaited, std::uint64_t* ready) {
    cuda::handOver(launch_, flags_, listed, awaited, besideBlocks(), ready);
}

/// A step ends when everything has moved.
void CudaEngine::joinAll() {
    if (!order_.looksAhead() || transferLoop_ || storeBytes_ == 0) return;
    cuda::check(cudaEventRecord(chosen_.get(), aheadStream_.get()), "waiting for a transfer");
    cuda::check(cudaStreamWaitEvent(stream_.get(), chosen_.get()), "waiting for a transfer");
}

} // namespace kvscope
