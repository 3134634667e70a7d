#include "core/plan/layer_plan.h"

#include <algorithm>

namespace kvscope {

LayerPlans::LayerPlans(int layers, const SelectionSpec& spec, const PlanChoices& choices) {
    const bool blockIndex = spec.queryScore != QueryScore::None || spec.agnosticScore != AgnosticScore::None;
    const int dense = spec.denseOf(layers);
    plans_.resize(std::max(0, layers));
    for (int i = dense; i < layers; ++i) {
        LayerPlan& plan = plans_[index(LayerId{i})];
        plan.sparse = true;
        plan.ownTier = spec.ownDeviceTier;
        plan.offloaded = choices.offload && !plan.ownTier && !(spec.keepsLayer0 && i == 0);
        plan.chosen = choices.ahead == Ahead::NextStep             ? Chosen::StepAhead
                      : choices.ahead == Ahead::NextLayer && i > 0 ? Chosen::LayerAhead
                                                                   : Chosen::InLayer;
        plan.indexed = blockIndex || choices.remembers;
    }
}

LayerPlans::LayerPlans(const ModelConfig& config, const SelectionSpec& spec, const PlanChoices& choices)
    : LayerPlans(config.layers, spec, choices) {
    for (int i = 0; i < config.layers; ++i) {
        const int window = config.windowOf(i);
        if (spec.denseWithoutIndexer && config.blockIndexer && !config.blockIndexer->runsIn(i))
            plans_[index(LayerId{i})] = {};
        if (choices.longest == 0 || choices.longest > window) plans_[index(LayerId{i})].window = window;
    }
}

int LayerPlans::longestWindow() const {
    int longest = 0;
    for (const LayerPlan& plan : plans_) longest = std::max(longest, plan.window);
    return longest;
}

int LayerPlans::count(bool LayerPlan::*which) const {
    return int(std::count_if(plans_.begin(), plans_.end(), [&](const LayerPlan& plan) { return plan.*which; }));
}

} // namespace kvscope
