#include "core/calibrate/attention_samples.h"

#include "core/select/method.h"
#include "core/session/engine.h"

#include <algorithm>

namespace kvscope {
namespace {

/// A selector that chooses nothing and keeps what it is given while the prompt is read.
class Listener final : public Selector {
public:
    Listener(const SelectorContext& context, TextSamples& samples,
             const std::function<void(const PromptPiece&)>& pieces)
        : context_(context), samples_(samples), pieces_(pieces) {
        samples_.layers.resize(context.shape.layers);
        for (LayerSamples& layer : samples_.layers) layer.keys.resize(context.shape.kvHeads);
    }
    void choose(std::span<HeadStep>) override {}
    void prompt(const PromptPiece& piece) override;

private:
    const SelectorContext context_;
    TextSamples& samples_;
    const std::function<void(const PromptPiece&)>& pieces_;
};

void Listener::prompt(const PromptPiece& piece) {
    if (pieces_) pieces_(piece);
    LayerSamples& layer = samples_.layers[index(piece.layer)];
    const KeyExtents keyAt = context_.keys(piece.n);
    for (const KvHeadId g : context_.kvHeads()) {
        auto& keys = layer.keys[index(g)];
        for (int i = 0; i < piece.n; ++i) {
            const float* key = piece.rows.k + keyAt.first(i, g);
            keys.insert(keys.end(), key, key + context_.shape.dim);
        }
    }
    const RowsOf inputs(piece.rows.input, context_.model.config().hidden);
    const RowsOf queries(piece.rows.q, {context_.rules.queryHeads, context_.shape.dim});
    const auto& positions = samples_.positions;
    for (auto at = std::lower_bound(positions.begin(), positions.end(), piece.first);
         at != positions.end() && *at < piece.first + piece.n; ++at) {
        const float *input = inputs[*at - piece.first], *query = queries[*at - piece.first];
        layer.inputs.insert(layer.inputs.end(), input, input + inputs.width());
        layer.queries.insert(layer.queries.end(), query, query + queries.width());
    }
}

} // namespace

TextSamples sampleAttention(const std::shared_ptr<const Model>& model, std::vector<std::int32_t> ids,
                            std::vector<std::int32_t> positions, int threads, const Progress& progress,
                            const std::stop_token& stop, const std::function<void(const PromptPiece&)>& pieces) {
    const MethodEntry& full = findMethod("full");
    const std::vector<std::vector<std::int32_t>> prompts{std::move(ids)};
    SessionOptions options;
    options.method = full.name;
    options.threads = threads;
    TextSamples samples;
    samples.tokens = int(prompts.front().size());
    samples.positions = std::move(positions);
    EngineSetup setup{model,
                      prompts,
                      options,
                      full.make(resolveDefaults(full, model->config()), model->config()),
                      {samples.tokens + 1},
                      0,
                      {},
                      "keep-selected",
                      RecordLevel::Counters,
                      {},
                      {},
                      {.plain = pieces != nullptr, .input = true, .prompt = true},
                      {}};
    setup.plans = LayerPlans(model->config(), setup.spec, {.offload = false});
    if (!model->hasEvictionHead()) setup.spec.bias.scale = 0.f;
    setup.makeSelector = [&](const SelectorContext& context) {
        return std::make_unique<Listener>(context, samples, pieces);
    };
    const auto engine = makeCpuEngine(setup);
    StepRecord record;
    engine->prefill(record, progress, stop);
    return samples;
}

} // namespace kvscope
