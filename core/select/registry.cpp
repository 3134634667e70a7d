// The registry: one line per method. The command line, the session form, docs/methods.md and the tests read this table.
#include "core/select/method.h"

#include "base/error.h"
#include "base/nearest_name.h"
#include "core/model/model.h"
#include "core/select/forecast.h"

#include <array>
#include <fmt/format.h>
#include <fmt/ranges.h>

/// The functions that make the entries, in the order in which methods are shown.
#define KVSCOPE_METHODS(method)                                                                                        \
    method(fullMethod) method(streamingMethod) method(questMethod) method(infllmV2Method) method(dmaMethod)            \
        method(nosaMethod) method(doubleSparsityMethod) method(asyncTlsMethod) method(h2oMethod) method(snapKvMethod)  \
            method(arkValeMethod) method(infLlmMethod) method(shadowKvMethod) method(dmaTokenMethod)                   \
                method(locretMethod) method(spardaMethod) method(infinigenMethod) method(infinigenTokenMethod)         \
                    method(dsaMethod) method(msaMethod) method(losaMethod) method(sparsedMethod)                       \
                        method(sparseDllmMethod)

namespace kvscope {

#define KVSCOPE_DECLARE(maker) MethodEntry maker();
KVSCOPE_METHODS(KVSCOPE_DECLARE)
#undef KVSCOPE_DECLARE

std::span<const MethodEntry> methods() {
#define KVSCOPE_CALL(maker) maker(),
    static const std::array table{KVSCOPE_METHODS(KVSCOPE_CALL)};
#undef KVSCOPE_CALL
    return table;
}

const MethodEntry* knownMethod(std::string_view name) {
    for (const MethodEntry& entry : methods())
        if (entry.name == name) return &entry;
    return nullptr;
}

std::string methodTitle(std::string_view name) {
    const MethodEntry* entry = knownMethod(name);
    return entry != nullptr ? entry->title : std::string(name);
}

const MethodEntry& findMethod(std::string_view name) {
    if (const MethodEntry* entry = knownMethod(name)) return *entry;
    std::vector<std::string> known;
    for (const MethodEntry& entry : methods()) known.push_back(entry.name);
    throw Error(ErrorKind::BadInput, fmt::format("unknown method '{}'{}", name, didYouMean(name, known)),
                fmt::format("known methods: {}", fmt::join(known, ", ")));
}

const std::vector<Parameter>& parametersFor(const MethodEntry& method, const ModelConfig& config) {
    if (!config.diffusion) return method.parameters;
    const std::vector<Parameter>& denoising = denoisingParametersFor(method, *config.diffusion);
    return denoising.empty() ? method.parameters : denoising;
}

const std::vector<Parameter>& denoisingParametersFor(const MethodEntry& method, const BlockDiffusion& diffusion) {
    if (!diffusion.canvas) return method.denoisingParameters;
    return diffusion.shifted ? method.shiftedCanvasParameters : method.canvasParameters;
}

ParameterValues resolveDefaults(const MethodEntry& method, const ModelConfig& config) {
    ParameterValues values;
    const std::vector<Parameter>& declared = parametersFor(method, config);
    for (const Parameter& parameter : declared) {
        const auto scaled =
            config.sparse && parameter.scale != nullptr ? parameter.scale(*config.sparse) : std::nullopt;
        values.set(declared, parameter.key, scaled ? *scaled : parameter.defaultValue);
    }
    if (config.indexer && values.has("index_topk")) values.assign("index_topk", std::to_string(config.indexer->tokens));
    if (config.blockIndexer && values.has("index_topk_blocks")) {
        values.assign("block_size", std::to_string(config.blockIndexer->blockTokens));
        values.assign("index_topk_blocks", std::to_string(config.blockIndexer->blocks));
        values.assign("index_local_blocks", std::to_string(config.blockIndexer->localBlocks));
    }
    if (config.diffusion && values.has("block")) values.assign("block", std::to_string(config.diffusion->blockLength));
    return values;
}

SelectionSpec specOf(const MethodEntry& method, std::span<const std::pair<std::string, std::string>> settings,
                     const ModelConfig& config) {
    ParameterValues values = resolveDefaults(method, config);
    for (const auto& [key, value] : settings) values.set(parametersFor(method, config), key, value);
    return method.make(values, config);
}

bool hasWeightsFor(const MethodEntry& method, const Model& model) {
    return (!method.needsEvictionHead || model.hasEvictionHead()) &&
           (!method.needsForecastHeads || model.hasForecastHeads()) &&
           (method.hasOwnWeights == nullptr || method.hasOwnWeights(model)) &&
           (method.hasIndexer == nullptr || method.hasIndexer(model.config()));
}

std::optional<Error> findLack(const MethodEntry& method, const ParameterValues& values, const Model& model) {
    if (!method.takesForecast(values) || model.hasForecastHeads()) return std::nullopt;
    const auto& [key, with, without] = *method.forecast;
    return Error(ErrorKind::Unsupported,
                 fmt::format("method {} with {}={} needs {}, and {} has none", method.name, key, with,
                             select::kForecastHeads, model.name()),
                 fmt::format("use {}={}, or learn them with kvscope-cli calibrate", key, without));
}

Abilities dataAbilities(const SelectionSpec& spec) {
    Abilities a;
    a.scores = spec.queryScore != QueryScore::None;
    a.latent = a.pastWindow = a.headNorms = a.sparsePrompt = a.quantisedKv = a.rowsIndependent = true;
    return a;
}

Abilities abilitiesOf(const MethodEntry& method, const MethodUse& use) {
    return method.abilities != nullptr ? method.abilities(use) : dataAbilities(use.spec);
}

} // namespace kvscope
