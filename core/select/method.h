// The registry of methods. A method = one file in core/select + one line in registry.cpp.
#pragma once

#include "core/model/model_config.h"
#include "core/plan/selection_spec.h"
#include "core/select/parameters.h"

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

class Model;
class Selector; // core/select/selector.h
struct SelectorContext;

struct MethodEntry {
    std::string name;    // registry id, e.g. "nosa"
    std::string title;   // e.g. "NOSA"
    std::string source;  // paper
    std::string needs;   // what a checkpoint must have, in words; empty: nothing
    std::string summary; // one or two sentences for the form and docs
    bool needsEvictionHead = false;
    bool needsForecastHeads = false;
    bool (*hasOwnWeights)(const Model&) = nullptr; // for weights that only this method knows
    bool ownWindow = false; // sink and window stay the paper's, whatever block counts a checkpoint was trained with
    std::vector<Parameter> parameters;
    SelectionSpec (*make)(const ParameterValues& values, const ModelConfig& config) = nullptr;
    /// For a method that is more than its spec; null, or a null result: SpecSelector. Runs on the CPU backend.
    std::unique_ptr<Selector> (*makeSelector)(const ParameterValues& values, const SelectorContext& context) = nullptr;
};

/// All methods in the order they are shown.
std::span<const MethodEntry> methods();
/// @throws Error(BadInput) listing the known names
const MethodEntry& findMethod(std::string_view name);
/// Declared defaults overridden by what the checkpoint's configuration says.
ParameterValues resolveDefaults(const MethodEntry& method, const ModelConfig& config);
/// Whether the model, or what was learned beside it, has the weights that the method needs.
bool hasWeightsFor(const MethodEntry& method, const Model& model);

} // namespace kvscope
