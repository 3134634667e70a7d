// Makes the arguments with which a layer chooses its blocks, and says to which lists the choice is written: in a decode
// step, and for a prompt whose tokens choose blocks too (SelectionSpec::sparsePrefill).
#pragma once

#include "core/cuda/batch_layout.h"
#include "core/cuda/choice_order.h"
#include "core/cuda/row_table.h"
#include "core/cuda/step_buffers.h"
#include "kernels/cuda/choice/select.h"

#include <memory>
#include <vector>

namespace kvscope {

/// Lists in device memory: the chosen blocks, their slots and their number for each head, and the blocks to load and to
/// write back.
struct ChoiceLists {
    std::int32_t *block = nullptr, *slot = nullptr, *count = nullptr;
    cuda::BlockMove *loads = nullptr, *writeBacks = nullptr;
};

class BlockChoice {
public:
    /// Everything passed must outlive this object. selector: null where the method is data.
    BlockChoice(const ModelConfig& config, const CudaEngineOptions& options, const BatchLayout& layout,
                const PerLayer<DeviceLayerState>& layers, const ChoiceOrder& order, const RowTable& rows,
                const StepBuffers& buffers, const std::unique_ptr<DeviceSelector>& selector)
        : config_(config), options_(options), spec_(options.spec), layout_(layout), layers_(layers), order_(order),
          rows_(rows), buffers_(buffers), selector_(selector) {}

    /// Asks the arena for the lists.
    void plan(DeviceArena& arena);
    /// The arguments that are the same in a step and in a prompt.
    cuda::SelectArgs layerArgs(LayerId layer) const;
    /// The arguments of a decode step's choice; the caller sets the marks.
    cuda::SelectArgs stepArgs(LayerId layer, const StepReport& report) const;
    ChoiceLists listsOf(LayerId layer) const;
    /// What the choice lists for the transfers.
    cuda::MoveList movesOf(LayerId layer) const;
    /// Lists of write-backs of each head.
    int writeBackLists() const { return order_.movesBeside() ? config_.layers : 1; }
    /// Bytes of one head's bitmap, which has the blocks that the step before chose.
    int previousBytes() const;
    /// See Abilities::valuesByToken.
    bool valuesByToken(LayerId layer) const {
        return selector_ && options_.method.abilities.valuesByToken && layers_[layer].sparse;
    }

    ChoiceLists lists; // for all layers; DeviceArena::take sets the pointers

private:
    cuda::SelectSlots slotsOf(LayerId layer) const;

    const ModelConfig& config_;
    const CudaEngineOptions& options_;
    const SelectionSpec& spec_;
    const BatchLayout& layout_;
    const PerLayer<DeviceLayerState>& layers_;
    const ChoiceOrder& order_;
    const RowTable& rows_;
    const StepBuffers& buffers_;
    const std::unique_ptr<DeviceSelector>& selector_;
};

} // namespace kvscope
