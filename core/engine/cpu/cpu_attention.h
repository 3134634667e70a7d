// CPU backend: the stages of a layer that depend on the method, from the layer's queries, keys and values to the output
// of its attention.
#pragma once

#include "base/indexed.h"
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

/// Works on the cache of one session. The selector chooses what is attended; transfers, attention, records and the
/// oracle are the same for all methods. In a layer with a sliding window the method chooses only among the blocks
/// within that window, and a sink that has left the window is not attended. All scratch memory is kept between calls.
class CpuAttention : public Stages {
public:
    struct Oracle {
        OracleObserver* observer = nullptr; // gets the oracle's record of every selection; or null
    };
    /// The context, the selector, the transfers and the clock must outlive this object.
    CpuAttention(const SelectorContext& context, Selector& selector, CpuTransfers& transfers, StageClock& clock,
                 std::optional<Oracle> oracle);

    void append(LayerId layer) override;
    void choose(LayerId layer) override;
    void lookAhead(LayerId layer) override;
    void load(LayerId layer) override;
    void attend(LayerId layer) override;
    void after(LayerId layer) override;
    void measure(LayerId layer) override;

protected:
    /// Called before the first stage of a step. `active` and `record` must live until the last stage; record.layers has
    /// its size already.
    void beginStep(std::span<const ActiveSequence> active, StepRecord& record);
    /// Called at the end of project. Row first + i of `rows` belongs to the i-th active sequence.
    void beginLayer(LayerId layer, const TokenRows& rows, int first = 0);

    std::span<const ActiveSequence> active() const { return active_; }
    LayerRecord& recordOf(LayerId layer) { return record_->layers[index(layer)]; }
    StepRecord& record() { return *record_; }
    StageClock& clock() { return clock_; }

private:
    /// Runs `work` as a stage of the layer. Where every row attends to everything, the time counts for the stage
    /// `attention`.
    template <class Work> void timed(LayerId layer, Stage stage, Work&& work) {
        clock_.run(recordOf(layer), allDense_ ? Stage::Attention : stage, work);
    }

    const SelectorContext& context_;
    Selector& selector_;
    const Abilities needs_;
    CpuTransfers& transfers_;
    StageClock& clock_;
    std::optional<CpuOracle> oracle_;
    ViewAttention attention_;
    Numbered<HeadStep> items_; // [sequence * kvHeads]; those of the step's rows come first

    std::span<const ActiveSequence> active_;
    StepRecord* record_ = nullptr;
    std::span<HeadStep> work_; // of the step's rows in the present layer
    bool allDense_ = true;     // whether all of them attend to everything
    std::vector<PrefetchRequest> requests_;
    std::size_t firstSelection_ = 0; // index of the present layer's first selection in the record
};

} // namespace kvscope
