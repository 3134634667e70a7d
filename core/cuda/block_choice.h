// The arguments of a layer's choice of blocks, and the lists in which it leaves them: in a step, and for a prompt that
// is read sparsely.
#pragma once

#include "core/cuda/batch_layout.h"
#include "core/cuda/choice_order.h"
#include "core/cuda/row_table.h"
#include "core/cuda/step_buffers.h"
#include "kernels/cuda/choice/select.h"

#include <memory>
#include <vector>

namespace kvscope {

/// Device memory: what is attended, and what moves.
struct ChoiceLists {
    std::int32_t *block = nullptr, *slot = nullptr, *count = nullptr;
    cuda::BlockMove *loads = nullptr, *writeBacks = nullptr;
};

class BlockChoice {
public:
    /// All outlive it. selector: null where the method is data.
    BlockChoice(const ModelConfig& config, const CudaEngineOptions& options, const BatchLayout& layout,
                const std::vector<DeviceLayerState>& layers, const ChoiceOrder& order, const RowTable& rows,
                const StepBuffers& buffers, const std::unique_ptr<DeviceSelector>& selector)
        : config_(config), options_(options), spec_(options.spec), layout_(layout), layers_(layers), order_(order),
          rows_(rows), buffers_(buffers), selector_(selector) {}

    /// What a step and a prompt have in common.
    cuda::SelectArgs layerArgs(int layer) const;
    /// A step's, but for the marks.
    cuda::SelectArgs stepArgs(int layer, const StepReport& report) const;
    ChoiceLists listsOf(int layer) const;
    /// See Abilities::valuesByToken.
    bool valuesByToken(int layer) const {
        return selector_ && options_.abilities.valuesByToken && layers_[std::size_t(layer)].sparse;
    }

    ChoiceLists lists; // of all layers; an arena fills them in

private:
    const ModelConfig& config_;
    const CudaEngineOptions& options_;
    const SelectionSpec& spec_;
    const BatchLayout& layout_;
    const std::vector<DeviceLayerState>& layers_;
    const ChoiceOrder& order_;
    const RowTable& rows_;
    const StepBuffers& buffers_;
    const std::unique_ptr<DeviceSelector>& selector_;
};

} // namespace kvscope
