// KV blocks on their way between host and GPU: on demand within a step, or beside it on a stream of their own, one
// kernel a layer or one for the whole step; and what goes to the host beside the steps.
#pragma once

#include "core/cuda/batch_layout.h"
#include "core/cuda/block_choice.h"
#include "core/cuda/choice_order.h"
#include "core/cuda/stage_ranges.h"
#include "core/cuda/step_report.h"
#include "kernels/cuda/device/owners.h"
#include "kernels/cuda/transfer/gather.h"
#include "kernels/cuda/transfer/transfer_loop.h"

#include <vector>

namespace kvscope {

class Transfers {
public:
    using Part = cuda::GatherArgs::Part;

    /// All outlive it. launch: as it is when something is launched. Opens the copy stream.
    /// @throws Error(OutOfMemory | Device)
    Transfers(const CudaEngineOptions& options, const BatchLayout& layout, const std::vector<DeviceLayerState>& layers,
              const ChoiceOrder& order, const BlockChoice& choice, const cuda::Launch& launch, StageRanges& stages);

    /// Transfers go beside the steps. loop: one kernel carries those of a whole step. @throws as above
    void openBeside(bool loop);
    bool hasLoop() const { return loop_; }
    /// Thread blocks of a transfer beside other kernels. Each more of them slows those kernels: as few as keep up
    /// (bench/results, 2026-11-22).
    int blocks() const;
    /// What goes to the host beside the steps: reports, and a prompt's blocks.
    cudaStream_t copyStream() const { return copy_.get(); }
    /// Uploads what the loop reads, once the arena is there.
    void upload(const StepReports& reports);

    /// A layer's choice has its lists: what is missing moves within the step.
    void onDemand(int layer, const StepReport& report);
    /// Or beside it, all of it.
    void besideNow(int layer, const StepReport& report);
    /// The next layer has been chosen while `layer` is at work: its loads start, and the write-backs of `layer` with
    /// them where `writesBack`, whose token is there by now.
    void besideLater(int layer, bool loadsNext, bool writesBack, const StepReport& report);
    /// With the loop: the list of layer `listed` is there; the blocks of layer `awaited` must be. -1: neither.
    void handOver(int listed, int awaited, std::uint64_t* ready) const;
    /// The layer's blocks have arrived. @return how the attention is launched
    cuda::Launch join(int layer) const;
    /// A step ends when everything has moved. any: something is offloaded.
    void joinAll(bool any) const;

    /// The loop of a step that is launched next.
    void startLoop(int entry);
    /// What the copy stream gets from here on follows the loop of the step launched last.
    void copyAfterLoop() const;

    // Device memory
    std::uint32_t* counters = nullptr;                         // [layers + 1][2] blocks loaded, written back
    cuda::GatherArgs* loopGathers[StepReports::kEntries] = {}; // [layers], with the loop
    cuda::TransferFlags flags;                                 // likewise

private:
    cuda::GatherArgs gatherArgs(int layer, const StepReport& report) const;
    cuda::GatherArgs besideArgs(int layer, const StepReport& report, Part part) const;
    cuda::Launch beside() const;
    void fork() const;
    void move(int layer, const StepReport& report, Part part);

    const CudaEngineOptions& options_;
    const BatchLayout& layout_;
    const std::vector<DeviceLayerState>& layers_;
    const ChoiceOrder& order_;
    const BlockChoice& choice_;
    const cuda::Launch& launch_;
    StageRanges& stages_;
    bool loop_ = false;
    std::uint32_t loops_ = 1; // steps with their transfer kernels, and the one that was tried without
    cuda::Event chosen_, loaded_[2];
    cuda::Stream copy_, beside_;
};

} // namespace kvscope
