#include "core/session/vain_options.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>

namespace kvscope {
namespace {

constexpr std::array<std::string_view, 3> kSampling = {"--top-k", "--top-p", "--seed"};
constexpr std::array<std::string_view, 3> kOffloading = {"--link", "--cache-policy", "--device-kv"};
constexpr std::array<std::string_view, 2> kOfGpus = {"--no-cuda-calls", "--pcie-counters"};

Error vain(const std::string& what, const std::string& why, const std::string& mend) {
    return {ErrorKind::BadInput, fmt::format("{} has no effect {}", what, why), mend};
}

} // namespace

std::optional<Error> vainOption(std::string_view option, const RunChoices& run) {
    const auto isIn = [&](const auto& list) { return std::find(list.begin(), list.end(), option) != list.end(); };
    const std::string name(option);
    if (isIn(kSampling) && !(run.temperature > 0))
        return vain(name, "at temperature 0, where every token is the most probable one",
                    fmt::format("leave {} out, or give --temperature a number above 0", name));
    if (isIn(kOfGpus) && run.backend != Backend::Cuda)
        return vain(name, "with --backend cpu: it says what is recorded of a GPU", fmt::format("leave {} out", name));
    if (isIn(kOffloading) && !run.offload)
        return vain(name, "with --no-offload: no block leaves the device", "leave one of them out");
    if (isIn(kOffloading) && run.denoises && !run.sizesDeviceTier)
        return vain(name, "on a diffusion model, whose keys and values stay on the device",
                    fmt::format("leave {} out, or use another model", name));
    if (option == "--link" && run.backend == Backend::Cuda)
        return vain(name, "with --backend cuda, which measures the GPU's own link", "leave --link out");
    const bool pagesTravel = run.sizesDeviceTier && !run.method.decodesTokens; // of a prefix that waits on the host
    if (option == "--link" && !run.method.blocksTravel && !pagesTravel)
        return vain(name, fmt::format("with method {}, which keeps every block on the device", run.method.name),
                    "leave --link out, or choose a method whose blocks travel");
    return std::nullopt;
}

std::optional<Error> vainSetting(std::string_view key, const RunChoices& run) {
    const std::vector<Parameter>& declared = run.method.parameters;
    const auto parameter =
        std::find_if(declared.begin(), declared.end(), [&](const Parameter& p) { return p.key == key; });
    if (parameter == declared.end() || parameter->scope == ParameterScope::EveryRun) return std::nullopt;
    const std::string what = fmt::format("the parameter '{}' of method {}", key, run.method.name);
    if (!run.offload) return vain(what, "with --no-offload: no block leaves the device", "leave one of them out");
    if (run.denoises && !run.sizesDeviceTier)
        return vain(what, "without --device-kv: the prefix stays on the device",
                    fmt::format("leave '{}' out, or add --device-kv", key));
    if (parameter->scope == ParameterScope::DeviceSlots && run.sizesDeviceTier)
        return vain(what, "with --device-kv, which says how many block slots there are", "leave one of them out");
    return std::nullopt;
}

void refuseVainSettings(std::span<const std::pair<std::string, std::string>> settings, const RunChoices& run) {
    for (const auto& [key, value] : settings)
        if (const auto refusal = vainSetting(key, run)) throw Error(*refusal);
}

} // namespace kvscope
