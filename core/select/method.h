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

/// How a session uses a method: its checked parameters, the specification that they make, and the backend.
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
    /// Null in a build without CUDA. If it returns null, the method is data on the GPU.
    DeviceSelectorMaker make = nullptr;
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
    /// For a method that needs no Forecast heads: the parameter with which it chooses by them in models that have them.
    /// Nothing: it never chooses by them.
    std::optional<ForecastSetting> forecast;
    /// Whether a model has the weights that only this method knows; null: the method has no such weights.
    bool (*hasOwnWeights)(const Model&) = nullptr;
    /// Whether a model has the indexer that the method chooses with, for methods of models that are trained with one.
    /// Null: the method needs no indexer.
    bool (*hasIndexer)(const ModelConfig&) = nullptr;
    std::vector<Parameter> parameters;
    /// The parameters on block-diffusion models, on models that denoise a canvas, and on those of the latter that read
    /// a token from the position before it (Dream). Empty: the method does not run on such models.
    std::vector<Parameter> denoisingParameters;
    std::vector<Parameter> canvasParameters;
    std::vector<Parameter> shiftedCanvasParameters;
    bool decodesTokens = true; // false: the method runs only on models that denoise
    bool blocksTravel = true;  // false: no block ever crosses the link, with offloading as without
    SelectionSpec (*make)(const ParameterValues& values, const ModelConfig& config) = nullptr;
    /// Makes the selector on the CPU backend, for a method that SelectionSpec does not describe completely. Null, or a
    /// null result: SpecSelector is used.
    std::unique_ptr<Selector> (*makeSelector)(const ParameterValues& values, const SelectorContext& context) = nullptr;
    DeviceHalf onDevice; // makes the selector on the GPU
    /// Whether the parameters make a method that has makeSelector plain data: both makers then return null. Null: no
    /// parameters do.
    bool (*isDataWith)(const ParameterValues& values) = nullptr;
    /// Whether the selector on the GPU must be called for a prompt layer by layer. False: it needs only the prompt's
    /// blocks when all of them are there, so prompts can be read in chunks.
    bool readsWholePrompts = true;
    /// What the method can do. Every method with makeSelector has this function. Null: the method is data
    /// (dataAbilities).
    Abilities (*abilities)(const MethodUse& use) = nullptr;
    /// Tokens that a KV head attends to at most in a step. Null: the budget of the spec.
    std::int64_t (*attendsAtMost)(const MethodUse& use, ContextLength length) = nullptr;
    /// The memory that the method takes for a sequence, besides that of tierNeeds (core/session/kv_estimate.h); on a
    /// GPU without scratch memory. Null: none.
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

/// The method that is used where nobody names one.
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
/// The parameters that the method has on models that denoise in this way; empty: it does not run on them.
const std::vector<Parameter>& denoisingParametersFor(const MethodEntry& method, const BlockDiffusion& diffusion);
/// Declared defaults, overridden by what the checkpoint's configuration says (Parameter::scale).
ParameterValues resolveDefaults(const MethodEntry& method, const ModelConfig& config);
/// What the method chooses, as data, with these settings (key, value); all other parameters have their defaults.
/// @throws Error(BadInput)
SelectionSpec specOf(const MethodEntry& method, std::span<const std::pair<std::string, std::string>> settings,
                     const ModelConfig& config);
/// Whether the model, or a calibration beside it, has the weights that the method needs.
bool hasWeightsFor(const MethodEntry& method, const Model& model);
/// Says which weights the model lacks, if these parameters of the method need weights that its default parameters do
/// not need; nothing where the model has them.
std::optional<Error> findLack(const MethodEntry& method, const ParameterValues& values, const Model& model);

/// The abilities of a method that is data: the common code of both backends executes it, on every model.
Abilities dataAbilities(const SelectionSpec& spec);
Abilities abilitiesOf(const MethodEntry& method, const MethodUse& use);

} // namespace kvscope
