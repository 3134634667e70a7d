// The stages of a decode step on the CPU backend.
#pragma once

#include "core/engine/cpu/cpu_attention.h"
#include "core/engine/cpu/cpu_layer_passes.h"

#include <cstdint>
#include <span>

namespace kvscope {

class CpuStages final : public CpuAttention {
public:
    /// Memory of a step's rows, [rows, hidden] and [rows, vocab].
    struct Rows {
        float* x = nullptr;
        float* logits = nullptr;
    };
    /// Everything passed must outlive this object.
    CpuStages(const SelectorContext& context, Selector& selector, CpuTransfers& transfers, CpuLayerPasses& passes,
              StageClock& clock, std::optional<Oracle> oracle, Rows rows);

    /// The next step feeds tokens[i] to active[i] and writes to `record`. All three must live until the step is done.
    void begin(std::span<const ActiveSequence> active, std::span<const std::int32_t> tokens, StepRecord& record);

    void embed() override;
    void project(LayerId layer) override;
    void finish(LayerId layer) override;
    void head() override;

private:
    int rowCount() const { return int(active().size()); }

    const RopeTables& rope_;
    CpuLayerPasses& passes_;
    const Rows rows_;
    std::span<const std::int32_t> tokens_;
};

} // namespace kvscope
