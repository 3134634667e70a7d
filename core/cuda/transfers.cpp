#include "core/cuda/transfers.h"

#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/transfer/gather.h"
#include "kernels/cuda/transfer/quantised_blocks.h"

namespace kvscope {

using enum StepReport::Mark;
using enum StepReport::StepMark;

Transfers::Transfers(const CudaEngineOptions& options, const BatchLayout& layout,
                     const PerLayer<DeviceLayerState>& layers, const ChoiceOrder& order, const BlockChoice& choice,
                     const cuda::Launch& launch, StageRanges& stages)
    : options_(options), layout_(layout), layers_(layers), order_(order), choice_(choice), launch_(launch),
      stages_(stages) {}

void Transfers::plan(DeviceArena& arena) {
    arena.plan(counters, halves() * halfCounters(), "session state");
    if (options_.transfers.plan.loads != TransferPlan::Kernel) {
        constexpr const char* kWhat = "lists of blocks";
        arena.planHost(lists_.loads, mostLoads(), kWhat);
        arena.planHost(lists_.writeBacks, layout_.heads(), kWhat);
        arena.planHost(lists_.counts, 2, kWhat);
    }
    if (!loop_) return;
    for (cuda::GatherArgs*& gathers : loopGathers) arena.plan(gathers, loopLayers(), "session state");
    arena.plan(flags.listed, loopLayers() + 1, "session state");
    arena.plan(flags.loaded, loopLayers(), "session state");
}

void Transfers::open() {
    copy_ = cuda::Stream::make();
    if (!beside_) return;
    for (cuda::Event* event : {&chosen_, &loaded_[0], &loaded_[1]}) *event = cuda::Event::make();
    second_ = cuda::Stream::make(cuda::StreamKind::Urgent);
    secondStream_ = second_.get();
}

void Transfers::openHalf(const Transfers& all, int half) {
    beside_ = true;
    for (cuda::Event* event : {&chosen_, &loaded_[0], &loaded_[1]}) *event = cuda::Event::make();
    secondStream_ = all.secondStream_;
    blocksOfAll_ = all.blocks();
    counters = RowsOf(all.counters, all.halfCounters())[half];
}

void Transfers::checkLoop() {
    if (unsure_ && !cuda::kernelsRunTogether(launch_, onSecond(), flags)) loop_ = false;
}

int Transfers::blocks() const {
    if (options_.transfers.aheadBlocks > 0) return options_.transfers.aheadBlocks;
    if (blocksOfAll_ > 0) return blocksOfAll_;
    return usualBlocks(layout_.rows);
}

void Transfers::upload(const StepReports& reports) {
    if (order_.isInHalves()) return; // the halves say what
    for (int entry = 0; entry < StepReports::kEntries && loop_; ++entry) {
        PerLayer<cuda::GatherArgs> gathers(layers_.size());
        for (const LayerId i : layers_.ids())
            if (layers_[i].offloaded) gathers[i] = besideArgs(i, reports.device(entry), Part::Loads);
        cuda::check(cudaMemcpy(loopGathers[entry], gathers.data(), gathers.size() * sizeof(cuda::GatherArgs),
                               cudaMemcpyHostToDevice),
                    "preparing the session");
    }
}

void Transfers::uploadHalves(int entry, const std::vector<cuda::GatherArgs>& loads) const {
    if (!loop_) return;
    cuda::check(
        cudaMemcpy(loopGathers[entry], loads.data(), loads.size() * sizeof(cuda::GatherArgs), cudaMemcpyHostToDevice),
        "preparing the session");
}

cuda::GatherArgs Transfers::gatherArgs(LayerId index, const StepReport& report) const {
    const DeviceLayerState& layer = layers_[index];
    cuda::GatherArgs gather;
    gather.shape = layout_.shape;
    gather.moves = choice_.movesOf(index);
    gather.store = layer.store;
    gather.storeOut = const_cast<__nv_bfloat16*>(layer.store);
    gather.pool = layer.blocks;
    gather.newest = layer.newest;
    gather.slots = options_.slots;
    if (options_.quantised) gather.formatBytes = int(options_.quantised->blockBytes());
    if (options_.record) gather.recordCounts = report.countsOf(index);
    // After the layers' pairs of counters comes one more pair, which no kernel raises.
    if (options_.changes != nullptr) options_.changes->change(gather, counters + 2 * layers_.size());
    return gather;
}

void Transfers::onDemand(LayerId index, const StepReport& report) {
    cuda::GatherArgs gather = gatherArgs(index, report);
    gather.mark = report.mark(index, kGather);
    gather.endMark = report.mark(index, kLoaded);
    stages_.at(index, Stage::Offloading);
    if (options_.quantised)
        cuda::gatherQuantised(launch_, gather, *options_.quantised);
    else if (options_.transfers.plan.loads == TransferPlan::Kernel)
        cuda::gatherBlocks(launch_, gather);
    else
        byCalls(index, gather);
}

/// Fetches the lists of a layer, waits for them, and has the driver copy the blocks. Kernels that come later start when
/// the copies are done.
void Transfers::byCalls(LayerId index, const cuda::GatherArgs& gather) {
    const cudaStream_t stream = launch_.stream;
    const auto fetch = [&](void* to, const void* from, std::size_t bytes) {
        cuda::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "fetching a list of blocks");
    };
    fetch(lists_.counts, gather.moves.counts, 2 * sizeof(std::uint32_t));
    fetch(lists_.loads, gather.moves.loads, mostLoads() * sizeof(cuda::BlockMove));
    fetch(lists_.writeBacks, gather.moves.writeBacks, layout_.heads() * sizeof(cuda::BlockMove));
    if (gather.recordCounts != nullptr) fetch(gather.recordCounts, gather.moves.counts, 2 * sizeof(std::uint32_t));
    cuda::Launch behindCopies = launch_;
    behindCopies.joined = true;
    cuda::stampNow(behindCopies, gather.mark);
    cuda::check(cudaStreamSynchronize(stream), "waiting for a list of blocks");
    const std::size_t bytes = cuda::blockBytes(layout_.shape);
    // Rows with memory of their own count from address 0, in smaller units.
    const RowsOf store(reinterpret_cast<char*>(layers_[index].storeHost),
                       gather.moves.storeUnits > 1 ? Elements(cuda::kStoreUnit) : Elements(bytes));
    const RowsOf pool(reinterpret_cast<char*>(gather.pool), bytes);
    to_.clear(), from_.clear();
    const std::uint32_t loads = lists_.counts[0], writeBacks = lists_.counts[1];
    for (std::uint32_t i = 0; i < loads; ++i) {
        const cuda::BlockMove move = lists_.loads[i];
        to_.push_back(pool[move.slot]), from_.push_back(store[move.store]);
    }
    for (std::uint32_t i = 0; i < writeBacks; ++i) {
        const cuda::BlockMove move = lists_.writeBacks[i];
        to_.push_back(store[move.store]), from_.push_back(pool[move.slot]);
    }
    if (options_.transfers.plan.loads == TransferPlan::Batched)
        copyTogether(bytes, stream);
    else
        copyEach(loads, writeBacks, bytes, stream);
    cuda::stampNow(behindCopies, gather.endMark);
}

void Transfers::copyEach(std::uint32_t loads, std::uint32_t writeBacks, std::size_t bytes, cudaStream_t stream) const {
    for (std::uint32_t i = 0; i < loads + writeBacks; ++i)
        cuda::check(cudaMemcpyAsync(to_[i], from_[i], bytes,
                                    i < loads ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, stream),
                    "copying a KV block");
}

void Transfers::copyTogether(std::size_t bytes, cudaStream_t stream) const {
    if (to_.empty()) return;
#if CUDART_VERSION >= 13000
    // The runtime declares the lists as it declares them in C; it changes none of them.
    std::vector<std::size_t> sizes(to_.size(), bytes);
    std::vector<const void*> from = from_;
    std::vector<void*> to = to_;
    cudaMemcpyAttributes attributes = {};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    std::size_t first = 0;
    cuda::check(cudaMemcpyBatchAsync(to.data(), from.data(), sizes.data(), to.size(), &attributes, &first, 1, stream),
                "copying KV blocks");
#else
    (void)bytes, (void)stream;
    throw Error(ErrorKind::Unsupported, "this program was built with a CUDA toolkit that has no batched copies",
                "use transfers=calls or transfers=kernel, or build with CUDA 13");
#endif
}

cuda::GatherArgs Transfers::besideArgs(LayerId index, const StepReport& report, Part part) const {
    cuda::GatherArgs gather = gatherArgs(index, report);
    gather.part = part;
    gather.beside = true;
    const bool loads = part != Part::WriteBacks;
    gather.mark = report.mark(index, loads ? kGather : kBack);
    gather.endMark = report.mark(index, loads ? kLoaded : kBackEnd);
    if (options_.record && loads && order_.looksAhead()) {
        gather.ready = report.mark(index, kReady);
        gather.begin = report.mark(kEmbed);
        gather.late = report.headsOf(index);
    }
    return gather;
}

/// How kernels on the second stream are launched.
cuda::Launch Transfers::onSecond() const {
    cuda::Launch how = launch_;
    how.stream = secondStream_;
    how.joined = true;
    return how;
}

/// Makes what the second stream gets from now on wait for everything that the step's stream has so far.
void Transfers::fork() const {
    cuda::check(cudaEventRecord(chosen_.get(), launch_.stream), "starting a transfer");
    cuda::check(cudaStreamWaitEvent(secondStream_, chosen_.get()), "starting a transfer");
}

void Transfers::move(LayerId index, const StepReport& report, Part part) {
    stages_.at(index, Stage::Offloading);
    cuda::gatherBlocks(onSecond(), besideArgs(index, report, part), blocks());
    if (part != Part::WriteBacks)
        cuda::check(cudaEventRecord(loaded_[int(index) % 2].get(), secondStream_), "starting a transfer");
}

void Transfers::besideNow(LayerId index, const StepReport& report) {
    fork();
    move(index, report, options_.quantised ? Part::Loads : Part::Both);
}

void Transfers::besideLater(LayerId index, bool loadsNext, bool writesBack, const StepReport& report) {
    if (options_.quantised) writesBack = false; // quantiseFull has done it
    if (loadsNext || writesBack) fork();
    if (loadsNext) move(next(index), report, Part::Loads);
    if (writesBack) move(index, report, Part::WriteBacks);
}

cuda::Launch Transfers::join(LayerId index) const {
    cuda::Launch how = launch_;
    if (!order_.movesBeside() || loop_ || !layers_[index].offloaded) return how;
    cuda::check(cudaStreamWaitEvent(launch_.stream, loaded_[int(index) % 2].get()), "waiting for a transfer");
    how.joined = true;
    return how;
}

void Transfers::joinAll(bool any) const {
    if (!order_.movesBeside() || loop_ || !any) return;
    cuda::check(cudaEventRecord(chosen_.get(), secondStream_), "waiting for a transfer");
    cuda::check(cudaStreamWaitEvent(launch_.stream, chosen_.get()), "waiting for a transfer");
}

void Transfers::quantiseFull(LayerId index, const StepReport& report) const {
    cuda::GatherArgs gather = gatherArgs(index, report);
    gather.part = Part::WriteBacks;
    gather.mark = report.mark(index, kBack);
    gather.endMark = report.mark(index, kBackEnd);
    cuda::gatherQuantised(launch_, gather, *options_.quantised);
}

/// One kernel makes the transfers of all layers of a step, in place of a launch and a join for each layer. The kernel
/// is not part of the step graph, so the kernels of the graph follow each other without forks. The loop and the kernels
/// of the graph tell each other of lists and arrivals through device memory.
void Transfers::startLoop(int entry) {
    if (!loop_) return;
    if (loops_ > 1) // the write-backs of the loop before must end before this step uses their slots
        cuda::check(cudaStreamWaitEvent(launch_.stream, chosen_.get()), "waiting for a transfer");
    cuda::TransferLoopArgs args;
    args.gathers = loopGathers[entry];
    args.layers = int(loopLayers());
    args.first = firstOfLoop();
    args.blockBytes = int(options_.fullBlockBytes(layout_.blockElements));
    args.writesBack = !options_.quantised;
    args.step = ++loops_;
    args.flags = flags;
    cuda::runTransferLoop(onSecond(), args, blocks());
    cuda::check(cudaEventRecord(chosen_.get(), secondStream_), "starting a transfer");
}

int Transfers::firstOfLoop() const {
    int first = 0;
    while (!layers_[LayerId{first}].offloaded) ++first;
    return first * int(halves());
}

void Transfers::handOverHalf(int listed, int awaited, std::uint64_t* ready) const {
    cuda::handOver(launch_, flags, listed, awaited, blocks(), awaited > firstOfLoop(), ready);
}

void Transfers::handOver(LayerId listed, std::optional<LayerId> awaited, std::uint64_t* ready) const {
    bool loopRuns = false; // some layer before has awaited its blocks
    for (const LayerId i : layers_.ids()) loopRuns = loopRuns || (awaited && i < *awaited && layers_[i].offloaded);
    cuda::handOver(launch_, flags, int(listed), awaited ? int(*awaited) : -1, blocks(), loopRuns, ready);
}

void Transfers::copyAfterLoop() const {
    if (loop_) cuda::check(cudaStreamWaitEvent(copy_.get(), chosen_.get()), "starting a step");
}

} // namespace kvscope
