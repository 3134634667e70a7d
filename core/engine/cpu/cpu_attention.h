// The stages of the CPU backend that a method changes: from a layer's queries, keys and values to its attention output.
#pragma once

#include "core/engine/cpu/cpu_oracle.h"
#include "core/engine/cpu/cpu_transfers.h"
#include "core/engine/cpu/view_attention.h"
#include "core/engine/step_order.h"
#include "core/session/engine.h"
#include "core/session/stage_clock.h"

#include <optional>
#include <span>
#include <vector>

namespace kvscope {

/// Works on one session's cache. What is attended is the selector's choice; transfers, attention, records and the
/// oracle are the same for all methods. In a layer with a sliding window only the blocks within it exist for the
/// method: it chooses among those, and a sink that has left the window is not attended. All scratch memory is kept
/// between calls.
class CpuAttention : public Stages {
public:
    struct Oracle {
        OracleObserver* observer = nullptr; // told of every selection, or null
    };
    /// The context, the selector, the transfers and the clock outlive the object.
    CpuAttention(const SelectorContext& context, Selector& selector, CpuTransfers& transfers, StageClock& clock,
                 std::optional<Oracle> oracle);

    void append(int layer) override;
    void choose(int layer) override;
    void lookAhead(int layer) override;
    void load(int layer) override;
    void attend(int layer) override;
    void after(int layer) override;
    void measure(int layer) override;

protected:
    /// Before the step's first stage. `active` lasts until its last one, and so does `record`, which has its layers.
    void beginStep(std::span<const ActiveSequence> active, StepRecord& record);
    /// At the end of project: row i of `rows` belongs to the i-th active sequence.
    void beginLayer(int layer, const TokenRows& rows);

    std::span<const ActiveSequence> active() const { return active_; }
    LayerRecord& recordOf(int layer) { return record_->layers[std::size_t(layer)]; }
    StepRecord& record() { return *record_; }
    StageClock& clock() { return clock_; }

private:
    /// Runs `work` as that stage of the layer; where every row attends to everything, it is a part of `attention`.
    template <class Work> void timed(int layer, Stage stage, Work&& work) {
        clock_.run(recordOf(layer), allDense_ ? Stage::Attention : stage, work);
    }

    const SelectorContext& context_;
    Selector& selector_;
    const Abilities needs_;
    CpuTransfers& transfers_;
    StageClock& clock_;
    std::optional<CpuOracle> oracle_;
    ViewAttention attention_;
    std::vector<HeadStep> items_; // [sequence * kvHeads]; those of the step's rows come first

    std::span<const ActiveSequence> active_;
    StepRecord* record_ = nullptr;
    std::span<HeadStep> work_; // of the step's rows in the present layer
    bool allDense_ = true;     // all of them attend to everything
    std::vector<PrefetchRequest> requests_;
    std::size_t firstSelection_ = 0; // of the present layer in the record
};

} // namespace kvscope
