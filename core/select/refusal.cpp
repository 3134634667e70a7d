#include "core/select/refusal.h"

#include "core/plan/layer_plan.h"
#include "core/select/overlap.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvscope {
namespace {

/// Whether the method is to choose blocks for the tokens of a prompt, too.
bool readsSparsely(const ParameterValues& values) {
    return values.has("prefill") && values.text("prefill") == "sparse";
}

struct Reason {
    std::string what; // follows the method's name
    std::string mend; // what to change in the session; empty: nothing would help but another method
};

std::optional<Reason> reasonAgainst(const MethodEntry& method, const MethodUse& use, int longest) {
    const bool cuda = use.backend == Backend::Cuda;
    if (use.config.diffusion && denoisingParametersFor(method, *use.config.diffusion).empty())
        return Reason{fmt::format("does not run on {}", deniedModels(*use.config.diffusion)), {}};
    const KvType own = ownKvType(use.backend), wanted = use.kvType.value_or(own);
    if (use.config.diffusion && wanted != own)
        return Reason{fmt::format("denoises with KV blocks of type {} alone", nameOf(own)),
                      fmt::format("--kv-type {}", nameOf(own))};
    if (use.config.diffusion) return std::nullopt;
    if (method.hasIndexer != nullptr && !method.hasIndexer(use.config))
        return Reason{fmt::format("needs {}", method.needs), {}};
    if (cuda && !method.runsOnCuda()) return Reason{"does not run there", {}};
    if (select::overlapsHalves(use.values) && !cuda)
        return Reason{"has nothing that computes while blocks travel: overlap=halves is for a GPU", "overlap=none"};
    if (select::overlapsHalves(use.values) && method.hasSelector(use.values))
        return Reason{"chooses for all sequences at once under these parameters, so that they make no halves",
                      "overlap=none"};
    const Abilities can = abilitiesOf(method, use);
    if (use.config.latent && !can.latent)
        return Reason{"needs KV heads with keys and values of their own, and the model's attention is latent", {}};
    const int window = LayerPlans(use.config, use.spec, {.longest = longest}).longestWindow();
    if (window > 0 && !can.pastWindow)
        return Reason{fmt::format("stays within sliding windows, and {} tokens are more than the model's window of {}",
                                  longest, window),
                      "a shorter context"};
    if (use.config.queryKeyNorm && !can.headNorms)
        return Reason{"does not run with models that normalise queries and keys", {}};
    if (wanted != own) {
        if (cuda && (wanted == KvType::F32 || use.config.latent))
            return Reason{fmt::format("does not keep KV blocks as {}{}", nameOf(wanted),
                                      use.config.latent ? " with latent attention" : ""),
                          "--kv-type bf16"};
        if (!can.quantisedKv)
            return Reason{
                fmt::format("reads single keys and values of its KV blocks, which are kept as {} alone", nameOf(own)),
                fmt::format("--kv-type {}", nameOf(own))};
    }
    if (readsSparsely(use.values) && !can.sparsePrompt)
        return Reason{"reads prompts with full attention", "prefill=full"};
    return std::nullopt;
}

/// The method with its own parameters for a model, and what they come to; nothing where it is not made for the model.
struct Defaults {
    ParameterValues values;
    SelectionSpec spec;
};

std::optional<Defaults> defaultsOf(const MethodEntry& method, const ModelConfig& config, bool sparsePrompt) {
    try {
        Defaults defaults{resolveDefaults(method, config), {}};
        if (sparsePrompt) {
            if (!defaults.values.has("prefill")) return std::nullopt;
            defaults.values.set(method.parameters, "prefill", "sparse");
        }
        defaults.spec = method.make(defaults.values, config);
        return defaults;
    } catch (const Error&) {
        return std::nullopt;
    }
}

bool couldRunInstead(const MethodEntry& method, const MethodUse& use, int longest, const Model* model) {
    if (model != nullptr && !hasWeightsFor(method, *model)) return false;
    const auto defaults = defaultsOf(method, use.config, readsSparsely(use.values));
    return defaults &&
           !reasonAgainst(method,
                          {defaults->values, defaults->spec, use.config, use.backend, use.offload, nullptr, use.kvType},
                          longest);
}

} // namespace

DenoisingReach denoisingReach(const MethodEntry& method) {
    DenoisingReach reach;
    const std::vector<Parameter>& parameters = method.denoisingParameters;
    reach.blocks = !parameters.empty();
    reach.canvases = !method.canvasParameters.empty() || !method.shiftedCanvasParameters.empty();
    reach.prefixOnHost = std::any_of(parameters.begin(), parameters.end(),
                                     [](const Parameter& parameter) { return parameter.key == "page"; });
    return reach;
}

std::optional<Error> findRefusal(const MethodEntry& method, const MethodUse& use, int longest, const Model* model) {
    const std::optional<Reason> reason = reasonAgainst(method, use, longest);
    if (!reason) return std::nullopt;
    std::vector<std::string> ways;
    MethodUse onCpu = use;
    onCpu.backend = Backend::Cpu;
    if (use.backend == Backend::Cuda && !reasonAgainst(method, onCpu, longest)) ways.push_back("--backend cpu");
    if (!reason->mend.empty()) ways.push_back(reason->mend);
    if (couldRunInstead(method, use, longest, model))
        ways.push_back(fmt::format("the parameters that {} has by default", method.name));
    std::vector<std::string> able;
    for (const MethodEntry& other : methods())
        if (other.name != method.name && couldRunInstead(other, use, longest, model)) able.push_back(other.name);
    if (!able.empty()) ways.push_back(fmt::format("another method: {}", fmt::join(able, ", ")));
    return Error(ErrorKind::Unsupported,
                 fmt::format("method {} on the {} backend {}", method.name,
                             use.backend == Backend::Cuda ? "CUDA" : "CPU", reason->what),
                 ways.empty() ? std::string("use another checkpoint")
                              : fmt::format("use {}", fmt::join(ways, ", or ")));
}

void refuseUnable(const MethodEntry& method, const MethodUse& use, int longest, const Model* model) {
    if (const std::optional<Error> refusal = findRefusal(method, use, longest, model)) throw *refusal;
}

std::string_view deniedModels(const BlockDiffusion& diffusion) {
    return diffusion.canvas ? "models that denoise a canvas" : "block-diffusion models";
}

Error refusalOnDenoisers(const MethodEntry& method, const BlockDiffusion& diffusion, const std::string& model) {
    std::vector<std::string> able;
    for (const MethodEntry& other : methods())
        if (!denoisingParametersFor(other, diffusion).empty()) able.push_back(other.name);
    return {ErrorKind::Unsupported,
            fmt::format("method {} does not run on {}, and {} is one", method.name, deniedModels(diffusion), model),
            fmt::format("use method {}", fmt::join(able, ", "))};
}

std::vector<KvType> kvTypesOf(const MethodEntry& method, Backend backend) {
    ModelConfig config;
    config.headDim = 64, config.queryHeads = config.kvHeads = 1;
    const auto defaults = defaultsOf(method, config, false);
    std::vector<KvType> types;
    for (int i = 0; i < int(std::size(kKvTypeNames)); ++i) {
        const KvType type{std::uint8_t(i)};
        const bool own = type == ownKvType(backend);
        if (own ||
            (defaults && method.decodesTokens &&
             !reasonAgainst(method, {defaults->values, defaults->spec, config, backend, true, nullptr, type}, 1)))
            types.push_back(type);
    }
    return types;
}

bool couldRun(const MethodEntry& method, const ModelConfig& config, Backend backend, int longest) {
    const auto defaults = defaultsOf(method, config, false);
    return defaults && !reasonAgainst(method, {defaults->values, defaults->spec, config, backend}, longest);
}

} // namespace kvscope
