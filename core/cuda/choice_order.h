// When the blocks of a layer are chosen: in the layer itself or, under a method that looks ahead, in the layer before;
// and whether they travel while the step computes.
#pragma once

#include "core/cuda/device_selector.h"

namespace kvscope {

class ChoiceOrder {
public:
    /// `layers` must outlive this object and be complete before the first question.
    explicit ChoiceOrder(const PerLayer<DeviceLayerState>& layers) : layers_(layers) {}

    void lookAhead() { ahead_ = true; }
    bool looksAhead() const { return ahead_; }
    /// Rows are two halves, of which one computes while blocks of the other travel.
    void inHalves() { halves_ = true; }
    bool isInHalves() const { return halves_; }
    /// Blocks travel on a second stream beside the kernels of the step.
    bool movesBeside() const { return ahead_ || halves_; }
    /// The engine chooses the layer's blocks one layer ahead.
    bool chosenAhead(LayerId layer) const {
        return ahead_ && int(layer) < layers_.count() && of(layer).chosen == Chosen::LayerAhead && !of(layer).ownTier;
    }
    /// A selector with its own device tier chooses for the layer one layer ahead.
    bool ownAhead(LayerId layer) const { return ahead_ && int(layer) < layers_.count() && of(layer).ownTier; }
    /// Kernels of this layer choose something: the layer's own blocks or those of the next layer.
    bool choosesIn(LayerId layer) const {
        return chosenAhead(next(layer)) || ownAhead(next(layer)) || (of(layer).sparse && !chosenAhead(layer));
    }

private:
    const DeviceLayerState& of(LayerId layer) const { return layers_[layer]; }

    const PerLayer<DeviceLayerState>& layers_;
    bool ahead_ = false, halves_ = false;
};

} // namespace kvscope
