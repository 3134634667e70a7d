// NOSA: query-aware blocks first, the rest of the budget by the eviction head, which bounds the locality from below.
#include "core/select/common_parameters.h"
#include "core/select/forecast.h"
#include "core/select/overlap.h"

#include <algorithm>

namespace kvscope {

MethodEntry nosaMethod() {
    MethodEntry entry;
    entry.name = "nosa";
    entry.title = "NOSA";
    entry.source = "NOSA: Native and Offloadable Sparse Attention";
    entry.needs = "an eviction head (self_attn.A and self_attn.delta.weight)";
    entry.needsEvictionHead = true;
    entry.summary =
        "InfLLM-V2's score takes a small query-aware share, the eviction head takes the rest. Only the query-aware "
        "share can change between steps, so locality has a guaranteed lower bound.";
    entry.parameters = {
        select::blockSize(),
        select::sinkBlocks(),
        select::windowBlocks(16),
        select::windowAddsCurrent(),
        select::totalBlocks(),
        {"select_blocks",
         ParameterType::Integer,
         "16",
         0,
         65536,
         "blocks",
         "Query-aware blocks (k_q). With window_adds_current the current block takes one of them, as in the "
         "public code.",
         {},
         select::trainedSelectBlocks},
        select::kernelSize(),
        select::kernelStride(),
        select::denseLen(0),
        select::ahead(),
        select::overlap(),
        select::bias(),
        select::biasScale(),
        select::prefill()};
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        SelectionSpec spec = select::commonSpec(values, config);
        spec.queryScore = QueryScore::PooledSoftmax;
        spec.agnosticScore = values.text("bias") == "dma" ? AgnosticScore::ExpEviction : AgnosticScore::Eviction;
        const int wanted = values.integer("select_blocks");
        spec.budget.queryAware = std::max(0, spec.budget.windowAddsCurrent ? wanted - 1 : wanted);
        spec.budget.queryAgnostic = select::remainingBlocks(values, spec, spec.budget.queryAware);
        return spec;
    };
    entry.forecast = select::aheadByForecast();
    entry.isDataWith = [](const ParameterValues& values) { return !select::choosesByForecast(values); };
    entry.makeSelector = [](const ParameterValues& values,
                            const SelectorContext& context) -> std::unique_ptr<Selector> {
        if (!select::choosesByForecast(values)) return nullptr;
        return select::forecastSelector(context);
    };
    entry.onDevice = KVSCOPE_ON_DEVICE(nosaOnDevice);
    entry.abilities = [](const MethodUse& use) {
        return select::choosesByForecast(use.values) ? select::forecastAbilities(use) : dataAbilities(use.spec);
    };
    entry.memory = [](const MethodUse& use, ContextLength length) -> std::vector<MemoryNeed> {
        if (!select::choosesByForecast(use.values)) return {};
        return select::forecastMemory(use, length);
    };
    return entry;
}

} // namespace kvscope
