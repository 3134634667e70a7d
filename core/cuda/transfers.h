// Moves KV blocks between host and GPU: on demand on the stream of the step, by a kernel or by calls of the driver, or
// on a second stream while the step computes, with one kernel for each layer or one for the whole step. Also holds the
// copy stream, on which reports and prompts' blocks go to the host.
#pragma once

#include "core/cuda/batch_layout.h"
#include "core/cuda/block_choice.h"
#include "core/cuda/choice_order.h"
#include "core/cuda/stage_ranges.h"
#include "core/cuda/step_report.h"
#include "kernels/cuda/device/owners.h"
#include "kernels/cuda/transfer/gather.h"
#include "kernels/cuda/transfer/transfer_loop.h"

#include <optional>
#include <vector>

namespace kvscope {

class Transfers {
public:
    using Part = cuda::GatherArgs::Part;

    /// Everything passed must outlive this object; launch is read at every launch, so that it may change until then.
    Transfers(const CudaEngineOptions& options, const BatchLayout& layout, const PerLayer<DeviceLayerState>& layers,
              const ChoiceOrder& order, const BlockChoice& choice, const cuda::Launch& launch, StageRanges& stages);

    /// Says that transfers will be made while a step computes. able: one kernel, the transfer loop, could make all
    /// transfers of a step. asked: whether it shall; nothing: it does unless checkLoop finds that it cannot.
    void planBeside(bool able, std::optional<bool> asked) {
        beside_ = true, loop_ = able && asked.value_or(true), unsure_ = loop_ && !asked;
    }
    /// Asks the arena for counters, and for what the transfer loop reads.
    void plan(DeviceArena& arena);
    /// Opens the copy stream, and the second stream where transfers are made while a step computes.
    /// @throws Error(OutOfMemory | Device)
    void open();
    /// Gives up the transfer loop if nobody asked for it and kernels run one at a time, as under some tools: the loop
    /// would wait for ever. Called once, after the arena has been taken and before the first step.
    void checkLoop();
    bool hasLoop() const { return loop_; }
    /// For one half of the rows, in place of plan() and open(): transfers travel on the second stream of `all`, behind
    /// what is under way there, and are counted in part number `half` of its counters.
    void openHalf(const Transfers& all, int half);
    /// In halves, what `upload` uploads is what both halves say here of their layers: the loads of layer 0 of the first
    /// half, of the second half, of layer 1 and so on. The loop takes each of these for a layer.
    void uploadHalves(int entry, const std::vector<cuda::GatherArgs>& loads) const;
    /// For one half of the rows: the loop of all rows makes its transfers.
    void leaveToLoop() { loop_ = true; }
    cuda::GatherArgs loopArgs(LayerId layer, const StepReport& report) const {
        return besideArgs(layer, report, Part::Loads);
    }
    /// How many thread blocks a transfer beside other kernels has. Every thread block more slows the other kernels, so
    /// these are as few as keep the link busy (bench/results, 2026-11-22).
    int blocks() const;
    /// How many thread blocks beside a batch of so many rows, where the options name no other number.
    static int usualBlocks(int rows) { return rows <= 16 ? 4 : 8; }
    /// The stream on which reports and the blocks of prompts go to the host.
    cudaStream_t copyStream() const { return copy_.get(); }
    /// Uploads what the transfer loop reads, after the arena has been taken.
    void upload(const StepReports& reports);

    /// Loads what the layer's choice has listed, and writes back, on the stream of the step. By calls of the driver the
    /// host waits for the list.
    void onDemand(LayerId layer, const StepReport& report);
    /// Starts the layer's loads and write-backs on the second stream.
    void besideNow(LayerId layer, const StepReport& report);
    /// Called while `layer` is at work. Starts on the second stream the loads of the next layer, if `loadsNext`, and
    /// the write-backs of `layer`, if `writesBack`: by now `layer` has written its token.
    void besideLater(LayerId layer, bool loadsNext, bool writesBack, const StepReport& report);
    /// Where full blocks have a format of their own and the layer looks ahead or is looked ahead for: quantises, on the
    /// stream of the step, the blocks that the step's token has filled, and writes them back. Called between the
    /// layer's append and its attention.
    void quantiseFull(LayerId layer, const StepReport& report) const;
    /// With the transfer loop: tells the loop that the list of layer `listed` is complete, and waits for the blocks of
    /// layer `awaited`, where there is one. ready: the mark at which the wait begins.
    void handOver(LayerId listed, std::optional<LayerId> awaited, std::uint64_t* ready) const;
    /// The same in halves, by places in the list of uploadHalves(); -1: none.
    void handOverHalf(int listed, int awaited, std::uint64_t* ready) const;
    /// Makes the stream of the step wait for the layer's blocks. @return how the attention is launched
    cuda::Launch join(LayerId layer) const;
    /// Makes the end of the step wait for all transfers. any: some layer is offloaded.
    void joinAll(bool any) const;

    /// Starts the transfer loop of the step that is launched next.
    void startLoop(int entry);
    /// Makes what the copy stream gets from now on wait for the transfer loop of the step launched last.
    void copyAfterLoop() const;

    /// The layer's pair of `counters`.
    std::uint32_t* countsOf(LayerId layer) const { return counters + 2 * int(layer); }
    /// How many words of `counters` are zero when a step begins.
    int clearedCounters() const { return int(halves() * halfCounters()) - 2; }

    // Device memory
    std::uint32_t* counters = nullptr;                         // [halves][layers + 1][2] blocks loaded, written back
    cuda::GatherArgs* loopGathers[StepReports::kEntries] = {}; // [layers], with the loop
    cuda::TransferFlags flags;                                 // with the loop

private:
    cuda::GatherArgs gatherArgs(LayerId layer, const StepReport& report) const;
    cuda::GatherArgs besideArgs(LayerId layer, const StepReport& report, Part part) const;
    std::size_t halves() const { return order_.isInHalves() ? 2 : 1; }
    /// For the loop a layer of one half is a layer.
    std::size_t loopLayers() const { return layers_.size() * halves(); }
    int firstOfLoop() const;
    std::size_t halfCounters() const { return layers_.size() * 2 + 2; }
    cuda::Launch onSecond() const;
    void fork() const;
    void move(LayerId layer, const StepReport& report, Part part);
    /// What the host reads of the lists of a layer.
    struct HostLists {
        cuda::BlockMove *loads = nullptr, *writeBacks = nullptr;
        std::uint32_t* counts = nullptr; // [2]
    };
    std::size_t mostLoads() const { return Elements(layout_.heads(), layout_.capacity); }
    void byCalls(LayerId layer, const cuda::GatherArgs& gather);
    void copyEach(std::uint32_t loads, std::uint32_t writeBacks, std::size_t bytes, cudaStream_t stream) const;
    void copyTogether(std::size_t bytes, cudaStream_t stream) const;

    const CudaEngineOptions& options_;
    const BatchLayout& layout_;
    const PerLayer<DeviceLayerState>& layers_;
    const ChoiceOrder& order_;
    const BlockChoice& choice_;
    const cuda::Launch& launch_;
    StageRanges& stages_;
    HostLists lists_;       // host memory, unless a kernel gathers
    std::vector<void*> to_; // of the copies of one layer, loads before write-backs
    std::vector<const void*> from_;
    bool beside_ = false, loop_ = false, unsure_ = false;
    std::uint32_t loops_ = 1; // steps that had a transfer loop, and the trial step, which had none
    cuda::Event chosen_, loaded_[2];
    cuda::Stream copy_, second_;
    int blocksOfAll_ = 0;                 // of a half: blocks() of all rows
    cudaStream_t secondStream_ = nullptr; // second_, or that of all rows
};

} // namespace kvscope
