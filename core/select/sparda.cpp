// SparDA: every layer but the first attends to blocks that the layer before chose by its Forecast (forecast.h).
#include "core/select/common_parameters.h"
#include "core/select/forecast.h"

#include <algorithm>

namespace kvscope {
namespace {

Parameter backbone() {
    return {"backbone",
            ParameterType::Choice,
            "auto",
            0,
            0,
            "",
            "The method whose query score the Forecast replaces. nosa: select_blocks by Forecast, the rest by the "
            "eviction head; infllmv2: all dynamic blocks by Forecast; auto: nosa where the checkpoint states "
            "select_blocks.",
            {"auto", "nosa", "infllmv2"}};
}

} // namespace

MethodEntry spardaMethod() {
    MethodEntry entry;
    entry.name = "sparda";
    entry.title = "SparDA";
    entry.source = "SparDA: Sparse Decoupled Attention for Efficient Long-Context LLM Inference";
    entry.needs = select::kForecastHeads;
    entry.needsForecastHeads = true;
    entry.summary = "A trained projection of each layer's input chooses the next layer's blocks, which travel while "
                    "this layer attends and runs its feed-forward. Only layer 0 waits for its own.";
    entry.parameters = {
        backbone(),
        select::blockSize(),
        select::sinkBlocks(),
        select::windowBlocks(16),
        select::windowAddsCurrent(),
        select::totalBlocks(),
        {"select_blocks",
         ParameterType::Integer,
         "24",
         0,
         65536,
         "blocks",
         "Blocks by Forecast with backbone nosa. With window_adds_current the current block takes one of them.",
         {},
         select::trainedSelectBlocks},
        Parameter{"offload_layer0",
                  ParameterType::Boolean,
                  "true",
                  0,
                  1,
                  "",
                  "Off: layer 0, whose choice nothing announces, stays on the device whole, as in the released code.",
                  {}}
            .within(ParameterScope::Offloading),
        select::kernelSize(),
        select::kernelStride(),
        select::denseLen(0),
        select::bias(),
        select::biasScale(),
        select::prefill()};
    for (Parameter& parameter : entry.parameters)
        if (parameter.key == "total_blocks") parameter.defaultValue = "96";
    entry.make = [](const ParameterValues& values, const ModelConfig& config) {
        SelectionSpec spec = select::commonSpec(values, config);
        spec.keepsLayer0 = !values.boolean("offload_layer0");
        spec.queryScore = QueryScore::PooledSoftmax; // keeps pooled keys; the Forecast's products need no softmax
        const std::string& backbone = values.text("backbone");
        if (backbone == "infllmv2" ||
            (backbone == "auto" && (!config.sparse || config.sparse->queryAwareBlocks == 0))) {
            spec.budget.queryAware = select::remainingBlocks(values, spec, 0);
            return spec;
        }
        spec.agnosticScore = values.text("bias") == "dma" ? AgnosticScore::ExpEviction : AgnosticScore::Eviction;
        const int wanted = values.integer("select_blocks");
        spec.budget.queryAware = std::max(0, spec.budget.windowAddsCurrent ? wanted - 1 : wanted);
        spec.budget.queryAgnostic = select::remainingBlocks(values, spec, spec.budget.queryAware);
        return spec;
    };
    entry.makeSelector = [](const ParameterValues&, const SelectorContext& context) {
        return select::forecastSelector(context);
    };
    entry.onDevice = KVSCOPE_ON_DEVICE(spardaOnDevice);
    entry.abilities = select::forecastAbilities;
    entry.memory = select::forecastMemory;
    return entry;
}

} // namespace kvscope
