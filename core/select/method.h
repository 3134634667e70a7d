// The registry of methods. A method = one file in core/select + one line in registry.cpp; where it has kernels of its
// own on the GPU, one file in core/cuda/select more.
#pragma once

#include "base/error.h"
#include "core/model/model_config.h"
#include "core/plan/abilities.h"
#include "core/plan/backend.h"
#include "core/plan/kv_format.h"
#include "core/plan/memory_need.h"
#include "core/plan/selection_spec.h"
#include "core/select/parameters.h"

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvscope {

class Model;
class Selector; // core/select/selector.h
struct SelectorContext;
class DeviceSelector; // core/cuda/device_selector.h
struct DeviceSelectorContext;

/// How a session uses a method: its checked parameters, what they came to, and where it runs.
struct MethodUse {
    const ParameterValues& values;
    const SelectionSpec& spec;
    const ModelConfig& config;
    Backend backend = Backend::Cpu;
    bool offload = true;               // false: nothing leaves the device
    const Model* model = nullptr;      // for weights that only the method knows; null: they are not counted
    std::optional<KvType> kvType = {}; // of full KV blocks; nothing: the backend's own
};

using DeviceSelectorMaker = std::unique_ptr<DeviceSelector> (*)(const ParameterValues&, const DeviceSelectorContext&);

/// A method's kernels on the GPU. Every build knows whether they exist.
struct DeviceHalf {
    bool exists = false;
    DeviceSelectorMaker make = nullptr; // null in a build without CUDA. A null result: the method is data there
};

/// The DeviceHalf whose selector the function `maker` makes; it is defined in core/cuda/select/.
#ifdef KVSCOPE_HAVE_CUDA
#define KVSCOPE_ON_DEVICE(maker)                                                                                       \
    [] {                                                                                                               \
        std::unique_ptr<DeviceSelector> maker(const ParameterValues&, const DeviceSelectorContext&);                   \
        return DeviceHalf{true, maker};                                                                                \
    }()
#else
#define KVSCOPE_ON_DEVICE(maker)                                                                                       \
    DeviceHalf { true, nullptr }
#endif

struct MethodEntry {
    std::string name;    // registry id, e.g. "nosa"
    std::string title;   // e.g. "NOSA"
    std::string source;  // paper
    std::string needs;   // what a checkpoint must have, in words; empty: nothing
    std::string summary; // one or two sentences for the form and docs
    bool needsEvictionHead = false;
    bool needsForecastHeads = false;
    /// How a method that does without Forecast heads chooses by them where the model has them; nothing: it never does.
    std::optional<ForecastSetting> forecast;
    bool (*hasOwnWeights)(const Model&) = nullptr; // for weights that only this method knows
    /// For a method that a checkpoint is trained with, whose indexer it brings: whether this one does. Null: none is
    /// needed.
    bool (*hasIndexer)(const ModelConfig&) = nullptr;
    std::vector<Parameter> parameters;
    std::vector<Parameter>
        denoisingParameters;                 // in their place, on block-diffusion models; empty: it does not run there
    std::vector<Parameter> canvasParameters; // on models that denoise a canvas; empty: it does not run there
    std::vector<Parameter> shiftedCanvasParameters; // on those of them that read a token from the position before it
    bool decodesTokens = true;                      // false: it runs on models that denoise alone
    bool blocksTravel = true;                       // false: no block ever crosses the link, with offloading as without
    SelectionSpec (*make)(const ParameterValues& values, const ModelConfig& config) = nullptr;
    /// Makes the selector of a method that is more than its specification, on the CPU backend. Null, or a null result:
    /// SpecSelector is used.
    std::unique_ptr<Selector> (*makeSelector)(const ParameterValues& values, const SelectorContext& context) = nullptr;
    DeviceHalf onDevice; // makes the selector on the GPU
    /// Whether a method with makeSelector is data under these parameters: both makers then give null. Null: it never
    /// is.
    bool (*isDataWith)(const ParameterValues& values) = nullptr;
    /// Whether the selector on the GPU follows a prompt layer by layer. False: it needs no more of a prompt than its
    /// blocks when all of them are there, so that prompts can be read in chunks.
    bool readsWholePrompts = true;
    /// What the method can do. Every method with makeSelector has this function. Null: the method is data, see
    /// dataAbilities.
    Abilities (*abilities)(const MethodUse& use) = nullptr;
    /// Tokens that a KV head attends to at most in a step. Null: the budget of the spec.
    std::int64_t (*attendsAtMost)(const MethodUse& use, ContextLength length) = nullptr;
    /// What the method takes for a sequence, beyond tierNeeds (core/session/kv_estimate.h) and, on a GPU, without
    /// scratch. Null: nothing.
    std::vector<MemoryNeed> (*memory)(const MethodUse& use, ContextLength length) = nullptr;

    /// Whether the method has a selector of its own under these parameters.
    bool hasSelector(const ParameterValues& values) const {
        return makeSelector != nullptr && (isDataWith == nullptr || !isDataWith(values));
    }
    /// The maker of the selector on the GPU; null where the method has none under these parameters.
    DeviceSelectorMaker deviceMaker(const ParameterValues& values) const {
        return hasSelector(values) ? onDevice.make : nullptr;
    }
    /// Whether the method chooses by Forecast heads under these parameters, and does without them under others.
    bool takesForecast(const ParameterValues& values) const {
        return forecast && values.has(forecast->key) && values.text(forecast->key) == forecast->with;
    }
    /// A method without a selector of its own runs wherever the common kernels do.
    bool runsOnCuda() const { return makeSelector == nullptr || onDevice.exists; }
};

/// The method where nobody names one.
inline constexpr const char* kDefaultMethod = "nosa";

/// All methods in the order they are shown.
std::span<const MethodEntry> methods();
/// @throws Error(BadInput) listing the known names
const MethodEntry& findMethod(std::string_view name);
/// Null for a name that is not in the registry: traces of other engines name methods that this program does not have.
const MethodEntry* knownMethod(std::string_view name);
/// The title of a method of the registry; of any other, its name as it is.
std::string methodTitle(std::string_view name);
/// The parameters that the method has on a model.
const std::vector<Parameter>& parametersFor(const MethodEntry& method, const ModelConfig& config);
/// The parameters that the method has on models that denoise so; empty: it does not run on them.
const std::vector<Parameter>& denoisingParametersFor(const MethodEntry& method, const BlockDiffusion& diffusion);
/// Declared defaults, overridden by what the checkpoint's configuration says (Parameter::scale).
ParameterValues resolveDefaults(const MethodEntry& method, const ModelConfig& config);
/// What the method chooses under these settings (key, value); the other parameters have their defaults. @throws
/// Error(BadInput)
SelectionSpec specOf(const MethodEntry& method, std::span<const std::pair<std::string, std::string>> settings,
                     const ModelConfig& config);
/// Whether the model, or what was learned beside it, has the weights that the method needs.
bool hasWeightsFor(const MethodEntry& method, const Model& model);
/// Why the method cannot run on the model with these parameters for want of weights that its defaults do without;
/// nothing where it can.
std::optional<Error> findLack(const MethodEntry& method, const ParameterValues& values, const Model& model);

/// The abilities of a method that is data: the common code of both backends executes it, on every model.
Abilities dataAbilities(const SelectionSpec& spec);
Abilities abilitiesOf(const MethodEntry& method, const MethodUse& use);

} // namespace kvscope
