#include "core/session/engine_setup.h"

#include "core/cache/cache_policy.h"
#include "core/plan/kv_format.h"
#include "core/select/overlap.h"
#include "core/select/refusal.h"
#include "core/session/left_out.h"
#include "core/session/planted_selector.h"
#include "core/session/session_checks.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvscope {
namespace {

/// Refuses a cache policy where no block goes through a cache.
void refuseIdleCache(const SessionOptions& options, const MethodEntry& method, const SelectionSpec& spec) {
    const bool sized = options.deviceKvBlocks || options.deviceKvBytes;
    const bool policy = !options.cachePolicy.empty() && options.cachePolicy != "keep-selected";
    if (!options.offload || (!sized && !policy)) return;
    refuse(fmt::format(
               "{} has no effect with method {}, which {}", sized ? "--device-kv" : "--cache-policy", method.name,
               spec.ownDeviceTier ? "keeps what is on the device by its own rule" : "keeps every block on the device"),
           spec.ownDeviceTier ? "leave it out; the method's own budget is a parameter (kvscope-cli methods)"
                              : "leave it out, or choose a method that selects blocks");
}

} // namespace

void checkCachePolicy(const std::string& name, const MethodEntry& method, const SelectionSpec& spec,
                      const ModelConfig& config) {
    if (!findCachePolicy(name).byWorth || spec.ranksBlocks) return;
    std::vector<std::string> able;
    for (const MethodEntry& other : methods()) {
        try {
            if (other.make(resolveDefaults(other, config), config).ranksBlocks) able.push_back(other.name);
        } catch (const Error&) { // the method is not made for this model
        }
    }
    refuse(fmt::format("cache policy {} needs to know what blocks are worth, which method {} does not say", name,
                       method.name),
           able.empty() ? std::string("use cache policy lru")
                        : fmt::format("use cache policy lru, or method {}", fmt::join(able, ", ")));
}

SelectionSpec methodSpec(const MethodEntry& method, const ParameterValues& parameters, const Model& model) {
    SelectionSpec spec = method.make(parameters, model.config());
    if (!model.hasEvictionHead()) {
        spec.bias.scale = 0.f;
        if (spec.agnosticScore != AgnosticScore::None)
            throw Error(ErrorKind::Unsupported,
                        fmt::format("method {} as set takes blocks by eviction score, and {} has no eviction head",
                                    method.name, model.name()),
                        "choose a setting without query-agnostic blocks, or another checkpoint");
    }
    return spec;
}

EngineSetup engineSetup(const std::shared_ptr<const Model>& model,
                        const std::vector<std::vector<std::int32_t>>& prompts, SessionOptions& options,
                        const MethodEntry& method, const ParameterValues& parameters, const SelectionSpec& spec,
                        RecordLevel level) {
    const ModelConfig& config = model->config();
    const int sequences = int(prompts.size());
    const bool cuda = options.backend == Backend::Cuda;
    EngineSetup setup{model, prompts, options, spec, {}, 0, {}, {}, level, {}, parameters, {}, {}};
    std::vector<int> promptTokens;
    for (const auto& prompt : prompts) promptTokens.push_back(int(prompt.size()));
    if (options.leftOut) checkLeftOut(*options.leftOut, spec, options, promptTokens);
    if (options.planted)
        setup.planted = options.planted->streams(spec.grid.blocks(promptTokens.front()), config.layers);
    setup.makeSelector = [&method, &parameters, leftOut = options.leftOut, promptTokens,
                          planted = setup.planted](const SelectorContext& context) {
        auto selector = method.makeSelector ? method.makeSelector(parameters, context) : nullptr;
        if (!selector) selector = makeSpecSelector(context);
        if (!planted.empty()) selector = plantingSelections(std::move(selector), planted, context);
        return leftOut ? leavingOut(std::move(selector), *leftOut, context, promptTokens) : std::move(selector);
    };
    for (const auto& prompt : prompts) setup.maxTokens.push_back(int(prompt.size()) + options.maxNewTokens);
    const int longest = *std::max_element(setup.maxTokens.begin(), setup.maxTokens.end());
    const MethodUse use{parameters, spec, config, options.backend, options.offload, model.get(), options.kvType};
    // without a GPU this refusal comes before the refusals about the method
    if (cuda && method.hasSelector(parameters)) requireGpu();
    refuseUnable(method, use, longest, model.get());
    setup.abilities = abilitiesOf(method, use);
    const std::int64_t blockBytes = kvFormat(options.backend, config, spec, options.kvType).blockBytes(),
                       tailBytes = deviceTailBytes(options.backend, config, spec, options.kvType);
    const int maxBlocks = spec.grid.blocks(longest);
    setup.plans =
        LayerPlans(config, spec, {options.offload, method.hasSelector(parameters), setup.abilities.ahead, longest});
    const int offloadedLayers = setup.plans.offloaded();
    if (offloadedLayers > 0 && sequences < 2 && select::overlapsHalves(parameters))
        refuse("overlap=halves makes two halves of the sequences, and there is one sequence",
               "leave it out, or decode two prompts or more");
    if (offloadedLayers > 0) {
        const int needed = std::min(spec.neededSlots(), maxBlocks);
        std::int64_t slots = std::max(needed, std::min(spec.deviceSlots, maxBlocks));
        if (options.deviceKvBlocks)
            slots = *options.deviceKvBlocks;
        else if (options.deviceKvBytes) {
            const std::int64_t ofHead =
                *options.deviceKvBytes / (std::int64_t(sequences) * offloadedLayers * config.kvHeads);
            slots = std::max<std::int64_t>(0, ofHead - tailBytes) / blockBytes;
        }
        if (slots < needed)
            refuse(
                fmt::format(
                    "a device tier of {} block slots per KV head is too small: method {} attends {} blocks at a time",
                    slots, method.name, needed),
                fmt::format("give at least --device-kv {}, or lower the budget", needed));
        setup.slots = int(std::min<std::int64_t>(slots, maxBlocks));
        // Keep-selected always fills the first free slot, so spare slots would stay empty.
        if (options.cachePolicy.empty() && setup.slots > needed) options.cachePolicy = "lru";
    } else {
        refuseIdleCache(options, method, spec);
    }
    if (options.cachePolicy.empty()) options.cachePolicy = "keep-selected";
    checkCachePolicy(options.cachePolicy, method, spec, config);
    setup.cachePolicy = options.cachePolicy;
    if (method.memory != nullptr)
        setup.methodMemory = [&method, &parameters, &spec, &options, &model](ContextLength length) {
            return method.memory({parameters, spec, model->config(), options.backend, options.offload, model.get()},
                                 length);
        };
    return setup;
}

} // namespace kvscope
