// A part of a session's rows that makes a layer's kernels for itself, so that half of the rows computes while blocks of
// the other half travel (core/engine/step_order.h: inHalves). A half has no memory of its own: its tables, tiers, lists
// and reports are those of its rows within what all rows have.
#pragma once

#include "core/cuda/cuda_sequences.h"

namespace kvscope {

class HalfRows {
public:
    /// number: 0 or 1. Everything passed must outlive this object. all: the sequences of which these rows are a part
    HalfRows(const CudaSequencesParts& parts, CudaSequences& all, int number);

    /// Called when the memory of all rows has been taken and their transfers are open.
    void open();
    /// Called when it is certain whether there is a transfer loop.
    void begin();
    /// What the transfer loop is told of a layer of this half. report: of all rows
    cuda::GatherArgs loopArgs(LayerId layer, const StepReport& report) const;
    /// The kernels launched from now on write to this half's part of a report of all rows.
    void begin(const StepReport& report);
    /// Makes queries, keys and values of a layer, chooses its blocks and starts their transfers. awaiting: the half
    /// whose attention in `awaited` is launched next; null: none is
    void choose(LayerId layer, HalfRows* awaiting, LayerId awaited);
    /// Waits for the layer's blocks, and does what is left of the layer.
    void attend(LayerId layer);

private:
    void placeLayer(DeviceLayerState& layer) const;
    StepReport partOf(const StepReport& report) const;
    /// Which of the transfer loop's layers this half's layer is; -1 where it is not offloaded.
    int loopLayer(LayerId layer) const { return layers_[layer].offloaded ? 2 * int(layer) + number_ : -1; }
    bool hasLoop() const { return all_.transfers.hasLoop(); }
    void workOnThese() const { p_.passes.workOn(buffers_, layout_.rows); }

    const CudaSequencesParts p_;
    CudaSequences& all_;
    const int number_;
    BatchLayout layout_;
    StepBuffers buffers_;
    const std::unique_ptr<DeviceSelector> selector_; // null: the method is data
    PerLayer<DeviceLayerState> layers_;
    ChoiceOrder order_;
    RowTable rows_;
    BlockChoice choice_;
    StepReport report_;
    /// The other half's last choice ends at the mark kReady of the layer that attends next or, with a transfer loop,
    /// waits for that layer's blocks.
    bool isAwaited_ = false;
    Transfers transfers_;
    CudaStages stages_;
};

} // namespace kvscope
