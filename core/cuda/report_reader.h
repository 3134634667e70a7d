// Makes the record of a step from the step's report: marks of the GPU's timer become times of the host's clock, and
// counters and lists become selections.
#pragma once

#include "core/cuda/batch_layout.h"
#include "core/cuda/choice_order.h"
#include "core/cuda/gpu_clock.h"
#include "core/cuda/step_report.h"
#include "core/session/engine.h"

#include <memory>
#include <span>
#include <vector>

namespace kvscope {

class ReportReader {
public:
    /// Everything passed must outlive this object. selector: null where the method is data.
    ReportReader(const ModelConfig& config, const CudaEngineOptions& options, const BatchLayout& layout,
                 const PerLayer<DeviceLayerState>& layers, const ChoiceOrder& order, const GpuClock& clock,
                 const std::unique_ptr<DeviceSelector>& selector)
        : config_(config), options_(options), spec_(options.spec), layout_(layout), layers_(layers), order_(order),
          clock_(clock), selector_(selector) {}

    /// active: the step's sequences, ascending.
    void fill(const StepReport& report, StepRecord& record, std::span<const ActiveSequence> active) const;

    /// Fills a record of one row of a step that may have others; in the record the row is sequence 0. row.sequence: the
    /// row's place in the step. alone: the step has no other row, so that all times are this row's. Only for methods
    /// that are data.
    void fillRow(const StepReport& report, const ActiveSequence& row, bool alone, StepRecord& record) const;

private:
    void fillTimes(const StepReport& report, StepRecord& record) const;
    void countTransfers(const StepReport& report, LayerId layer, const ActiveSequence& row, LayerRecord& out) const;
    void fillStages(const StepReport& report, LayerId layer, LayerRecord& out) const;
    void fillHalves(const StepReport& report, StepRecord& record) const;
    void fillTransfers(const StepReport& report, LayerId layer, StepRecord& record) const;
    void fillBeside(const StepReport& report, LayerId layer, StepRecord& record) const;
    void fillSelections(const StepReport& report, LayerId layer, StepRecord& record,
                        std::span<const ActiveSequence> active) const;
    void fillOwnSelections(const StepReport& report, LayerId layer, StepRecord& record,
                           std::span<const ActiveSequence> active) const;
    void complete(const StepReport& report, LayerId layer, StepRecord& record, std::span<const ActiveSequence> active,
                  std::size_t firstSelection) const;
    void measure(const float* masses, LayerId layer, const ActiveSequence& sequence, StepRecord& record,
                 SelectionRecord& selection) const;

    const ModelConfig& config_;
    const CudaEngineOptions& options_;
    const SelectionSpec& spec_;
    const BatchLayout& layout_;
    const PerLayer<DeviceLayerState>& layers_;
    const ChoiceOrder& order_;
    const GpuClock& clock_;
    const std::unique_ptr<DeviceSelector>& selector_;
};

} // namespace kvscope
