// The Forecast's queries on the CPU. (SparDA, sections of the released code: one Forecast head per KV head, plain
// products with the pooled keys, no softmax, no scale.)
#include "core/select/forecast.h"

#include "core/select/common_parameters.h"
#include "core/select/lookahead.h"
#include "core/select/memory_sizes.h"
#include "core/select/window_products.h"

#include <algorithm>

namespace kvscope::select {
namespace {

constexpr const char *kAhead = "ahead", *kByQuery = "none", *kByForecast = "forecast";

class ForecastSelector final : public LookaheadSelector {
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

} // namespace

Parameter ahead() {
    return {
        kAhead,
        ParameterType::Choice,
        kByQuery,
        0,
        0,
        "",
        "When blocks are chosen. none: by each layer's own query, which waits for what it misses. forecast: a layer "
        "early, by the Forecast heads of the layer before in place of the query's score, so that blocks travel while "
        "that layer runs; other blocks may be chosen, so the text may differ.",
        {kByQuery, kByForecast}};
}

ForecastSetting aheadByForecast() { return {kAhead, kByForecast, kByQuery}; }

bool choosesByForecast(const ParameterValues& values) {
    return values.has(kAhead) && values.text(kAhead) == kByForecast;
}

std::unique_ptr<Selector> forecastSelector(const SelectorContext& context) {
    return std::make_unique<ForecastSelector>(context);
}

Abilities forecastAbilities(const MethodUse& use) {
    Abilities a = usualAbilities(use.backend);
    a.input = a.scores = a.sparsePrompt = a.quantisedKv = true;
    a.prompt = use.spec.sparsePrefill;
    a.ahead = Ahead::NextLayer;
    return a;
}

std::vector<MemoryNeed> forecastMemory(const MethodUse& use, ContextLength length) {
    const Sizes s(use, length);
    const std::int64_t width = use.config.kvHeads * s.dim; // of a token's forecasts
    if (s.gpu || !use.spec.sparsePrefill) return {};
    return {scratchOf("prompt_forecasts", "forecasts of the prompt", Lifetime::Prompt, Per::One,
                      length.prompt * width * s.number)};
}

} // namespace kvscope::select
