// SparDA: a learned Forecast projection of one layer's input stands in for the next layer's query. (SparDA, sections of
// the released code: one Forecast head per KV head, plain products with the pooled keys, no softmax, no scale.)
#include "core/select/common_parameters.h"
#include "core/select/lookahead.h"
#include "core/select/memory_sizes.h"
#include "core/select/window_products.h"

#include <algorithm>

namespace kvscope {
namespace {

class SpardaSelector final : public LookaheadSelector {
public:
    using LookaheadSelector::LookaheadSelector;

private:
    int queryWidth() const override { return context_.shape.kvHeads * context_.shape.dim; }

    /// Makes queries for layer `target` by the Forecast projection of the layer before, or for layer 0 by layer 0's
    /// own.
    void predict(LayerId target, bool ownInput, const float* input, int n, std::span<const std::int32_t> ropeRows,
                 float* out) override {
        const LayerWeights& weights = context_.model.layer(int(target) - (ownInput ? 0 : 1));
        const LinearTarget to{ownInput ? weights.ownForecast : weights.forecast, nullptr, out, queryWidth(), false};
        context_.kernels.linear({input, n, context_.model.config().hidden, nullptr, 0.f, {&to, 1}});
        rotate(out, n, context_.shape.kvHeads, ropeRows);
    }

    /// The index of the layer lacks the newest token, which changes nothing: the newest blocks are always attended.
    void scoreWindows(HeadStep& item, const float* query) const override {
        const SelectionSpec& spec = context_.spec;
        const int windows = std::min(spec.grid.windows(item.position + 1), item.head->index.windows());
        const int dim = context_.shape.dim;
        item.windowScores.resize(windows);
        windowProducts(query + context_.keys(1).first(0, item.kvHead), item.head->index, dim, item.windowScores);
    }
};

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
    entry.needs = "Forecast heads (self_attn.q_future_proj.weight)";
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
    entry.makeSelector = [](const ParameterValues&, const SelectorContext& context) -> std::unique_ptr<Selector> {
        return std::make_unique<SpardaSelector>(context);
    };
    entry.onDevice = KVSCOPE_ON_DEVICE(spardaOnDevice);
    entry.abilities = [](const MethodUse& use) {
        Abilities a = select::usualAbilities(use.backend);
        a.input = a.scores = a.sparsePrompt = true;
        a.quantisedKv = use.backend == Backend::Cpu;
        a.prompt = use.spec.sparsePrefill;
        a.ahead = Ahead::NextLayer;
        return a;
    };
    entry.memory = [](const MethodUse& use, ContextLength length) -> std::vector<MemoryNeed> {
        const select::Sizes s(use, length);
        const std::int64_t width = use.config.kvHeads * s.dim; // of a token's forecasts
        if (s.gpu || !use.spec.sparsePrefill) return {};
        return {select::scratchOf("prompt_forecasts", "forecasts of the prompt", Lifetime::Prompt, Per::One,
                                  length.prompt * width * s.number)};
    };
    return entry;
}

} // namespace kvscope
