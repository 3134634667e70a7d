// What each layer of a session does: worked out once, before anything is allocated, and asked by both engines, the
// selectors, the memory estimate and the benchmarks.
#pragma once

#include "base/ids.h"
#include "base/indexed.h"
#include "core/model/model_config.h"
#include "core/plan/abilities.h"
#include "core/plan/selection_spec.h"

#include <vector>

namespace kvscope {

/// Where the choice of what a layer attends to is made.
enum class Chosen : std::uint8_t { Never, InLayer, LayerAhead, StepAhead };

struct LayerPlan {
    bool sparse = false;    // the method chooses what is attended; false: everything is
    bool offloaded = false; // blocks wait on the host, and chosen ones are loaded into slots on the device
    bool ownTier = false;   // the method keeps what is on the device itself (SelectionSpec::ownDeviceTier)
    bool indexed = false;   // the method, or the common block index, remembers something of every token
    Chosen chosen = Chosen::Never;
    int window = 0; // tokens that a query sees, itself included; 0: all that any sequence will have
};

/// The choices of the session that decide plans, beside the method's specification.
struct PlanChoices {
    bool offload = true;     // false: nothing leaves the device
    bool remembers = false;  // the method has a selector of its own, which is told of every token
    Ahead ahead = Ahead::No; // as the method says (Abilities)
    int longest = 0;         // tokens that the longest sequence may reach; 0: not known, every window counts
};

class LayerPlans {
public:
    LayerPlans() = default;
    /// Plans of layers that see the whole context.
    LayerPlans(int layers, const SelectionSpec& spec, const PlanChoices& choices);
    /// Plans of a model's layers, with the sliding windows that a sequence of choices.longest tokens grows past.
    LayerPlans(const ModelConfig& config, const SelectionSpec& spec, const PlanChoices& choices);

    const LayerPlan& operator[](LayerId layer) const { return plans_[index(layer)]; }
    int size() const { return int(plans_.size()); }
    auto begin() const { return plans_.begin(); }
    auto end() const { return plans_.end(); }

    /// Whether the layer chooses what is attended. False also for the layer behind the last one, so that a layer can
    /// ask about the next one.
    bool sparse(LayerId layer) const { return int(layer) < size() && plans_[index(layer)].sparse; }
    int sparse() const { return count(&LayerPlan::sparse); }
    int dense() const { return size() - sparse(); }
    int offloaded() const { return count(&LayerPlan::offloaded); }
    int ownTiers() const { return count(&LayerPlan::ownTier); }
    /// Layers whose blocks all stay on the device, in the common store.
    int resident() const { return size() - offloaded() - ownTiers(); }
    /// The longest of the windows; 0 where no layer has one.
    int longestWindow() const;

private:
    int count(bool LayerPlan::*which) const;
    Numbered<LayerPlan> plans_;
};

} // namespace kvscope
