// When the blocks of a layer are chosen: in the layer itself or, under a method that looks ahead, in the layer before.
#pragma once

#include "core/cuda/device_selector.h"

namespace kvscope {

class ChoiceOrder {
public:
    /// `layers` must outlive this object and be complete before the first question.
    explicit ChoiceOrder(const Numbered<DeviceLayerState>& layers) : layers_(layers) {}

    void lookAhead() { ahead_ = true; }
    bool looksAhead() const { return ahead_; }
    /// The engine chooses the layer's blocks one layer ahead.
    bool chosenAhead(int layer) const {
        return ahead_ && layer < layers_.count() && of(layer).chosen == Chosen::LayerAhead && !of(layer).ownTier;
    }
    /// A selector with its own device tier chooses for the layer one layer ahead.
    bool ownAhead(int layer) const { return ahead_ && layer < layers_.count() && of(layer).ownTier; }
    /// Kernels of this layer choose something: the layer's own blocks or those of the next layer.
    bool choosesIn(int layer) const {
        return chosenAhead(layer + 1) || ownAhead(layer + 1) || (of(layer).sparse && !chosenAhead(layer));
    }

private:
    const DeviceLayerState& of(int layer) const { return layers_[layer]; }

    const Numbered<DeviceLayerState>& layers_;
    bool ahead_ = false;
};

} // namespace kvscope
