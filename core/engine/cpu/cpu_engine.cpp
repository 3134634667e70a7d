// The CPU backend: kernels/cpu, float32 KV cache, modelled link.
#include "core/cache/cache_policy.h"
#include "core/engine/cpu/cpu_feed_forward.h"
#include "core/engine/cpu/cpu_projections.h"
#include "core/session/engine.h"
#include "core/session/layer_attention.h"
#include "core/session/sampler.h"

#include <algorithm>

namespace kvscope {
namespace {

constexpr int kPrefillChunk = 512; // tokens projected and attended together: fills the GEMM's tiles, bounds the scratch

class CpuEngine final : public DecodeEngine {
public:
    explicit CpuEngine(const EngineSetup& setup);
    std::string description() const override { return kernels->description(); }
    Timing linkTiming() const override { return Timing::Modelled; }
    void prefill(StepRecord& record, const Progress& progress, const std::stop_token& stop) override;
    void decode(std::span<const ActiveSequence> active, std::span<const std::int32_t> tokens,
                StepRecord& record) override;
    const float* logits(int row) override {
        return logitRows.data() + std::size_t(row) * std::size_t(model->config().vocab);
    }
    std::int32_t chosenToken(int row) override { return argMax({logits(row), std::size_t(model->config().vocab)}); }

private:
    void prefillLayer(int layerIndex, LayerRecord& layer, const Progress& progress, const std::stop_token& stop);
    void project(int layerIndex, const float* x, int n, LayerRecord& layer);
    void finishLayer(int layerIndex, float* x, int n, LayerRecord& layer);
    void embed(std::span<const std::int32_t> tokens, float* rowsX);
    void computeLogits(int rows, StepRecord& record);

    std::shared_ptr<const Model> model;
    const std::vector<std::vector<std::int32_t>>& prompts;
    const SessionOptions& options;
    const SelectionSpec spec;
    AttentionRules rules;
    std::unique_ptr<Kernels> kernels;
    std::unique_ptr<KvCache> cache;
    std::unique_ptr<LayerAttention> attention;
    std::unique_ptr<CpuProjections> projections;
    std::unique_ptr<CpuFeedForward> feedForward;
    RopeTables ropeTables;
    StageClock clock;
    int promptTokens = 0;
    AlignedBuffer<float> x, logitRows;         // rows = batch
    std::vector<AlignedBuffer<float>> promptX; // [sequence] residual stream of the whole prompt, during prefill
    std::vector<std::int32_t> ropeRows;        // of the rotary tables, one for each row of a prefill chunk or batch
};

CpuEngine::CpuEngine(const EngineSetup& setup)
    : model(setup.model), prompts(setup.prompts), options(setup.options), spec(setup.spec),
      kernels(makeCpuKernels(setup.options.threads)), clock(steadyNowNs()) {
    const ModelConfig& config = model->config();
    const int sequences = int(prompts.size());
    KvCacheOptions cacheOptions;
    cacheOptions.shape = {config.layers, config.kvHeads, config.headDim, config.valueDim()};
    cacheOptions.layout = {spec.blockSize, config.headDim, spec.bias.scale != 0.f, config.storedValueDim()};
    cacheOptions.maxTokens = setup.maxTokens;
    cacheOptions.offloaded = setup.offloaded;
    cacheOptions.indexed = setup.indexed;
    cacheOptions.slots = setup.slots;
    const CachePolicy& policy = findCachePolicy(setup.cachePolicy);
    cache = std::make_unique<KvCache>(cacheOptions, spec, policy);
    rules = {config.queryHeads, config.attentionScale(), config.windows};
    std::size_t rows = std::size_t(sequences);
    std::vector<int> lengths;
    for (const auto& prompt : prompts) {
        rows = std::max(rows, std::min<std::size_t>(prompt.size(), kPrefillChunk));
        promptTokens += int(prompt.size());
        lengths.push_back(int(prompt.size()));
    }
    ropeTables = RopeTables(config.rope, lengths, setup.maxTokens);
    const SelectorContext context{
        *kernels,   *cache,          *model,          spec,          rules, cacheOptions.shape,
        ropeTables, setup.maxTokens, options.offload, policy.byWorth};
    attention = std::make_unique<LayerAttention>(context, setup.makeSelector(context), options.link, options.oracle,
                                                 options.oracleObserver);
    projections = std::make_unique<CpuProjections>(*kernels, *model, rows, attention->needs());
    feedForward = std::make_unique<CpuFeedForward>(*kernels, *model, rows);
    x = AlignedBuffer<float>(std::size_t(sequences) * std::size_t(config.hidden));
    logitRows = AlignedBuffer<float>(std::size_t(sequences) * std::size_t(config.vocab));
    ropeRows.resize(rows);
}

/// Queries, keys and values of n rows; positions are set.
void CpuEngine::project(int layerIndex, const float* rowsX, int n, LayerRecord& layer) {
    clock.run(layer, Stage::QkvLinear, [&] { projections->project(layerIndex, rowsX, n); });
    clock.run(layer, Stage::Rope, [&] { projections->rotate(layerIndex, n, ropeRows, ropeTables); });
}

/// Output projection and feed-forward of n rows, added to the residual stream.
void CpuEngine::finishLayer(int layerIndex, float* rowsX, int n, LayerRecord& layer) {
    clock.run(layer, Stage::OLinear, [&] { projections->finish(layerIndex, rowsX, n); });
    clock.run(layer, Stage::Ffn, [&] { feedForward->run(layerIndex, rowsX, n); });
}

void CpuEngine::embed(std::span<const std::int32_t> tokens, float* rowsX) {
    kernels->embed(model->embedding(), tokens, rowsX);
    const float scale = model->config().streamEmbeddingScale();
    if (scale == 1.f) return;
    const auto hidden = std::size_t(model->config().hidden);
    kernels->forEach(int(tokens.size()), [&](int row) {
        float* to = rowsX + std::size_t(row) * hidden;
        for (std::size_t c = 0; c < hidden; ++c) to[c] *= scale;
    });
}

void CpuEngine::prefillLayer(int layerIndex, LayerRecord& layer, const Progress& progress,
                             const std::stop_token& stop) {
    const ModelConfig& config = model->config();
    clock.beginLayer(layer);
    int doneTokens = 0;
    for (std::size_t s = 0; s < prompts.size(); ++s) {
        const int length = int(prompts[s].size());
        for (int first = 0; first < length; first += kPrefillChunk) {
            throwIfCancelled(stop);
            report(progress, (layerIndex + double(doneTokens + first) / promptTokens) / config.layers,
                   "reading the prompt");
            const int n = std::min(kPrefillChunk, length - first);
            for (int i = 0; i < n; ++i) ropeRows[std::size_t(i)] = ropeTables.first(int(s)) + first + i;
            float* rowsX = promptX[s].data() + std::size_t(first) * std::size_t(config.hidden);
            project(layerIndex, rowsX, n, layer);
            attention->prefill({layerIndex, int(s), first, n, length, projections->rows()}, clock, layer);
            finishLayer(layerIndex, rowsX, n, layer);
        }
        clock.run(layer, Stage::Compression, [&] { attention->finishPrompt(layerIndex, int(s), length); });
        layer.d2hBytes += attention->storedBytes(layerIndex, length);
        if (cache->offloaded(layerIndex)) layer.d2hBlocks += length / spec.blockSize * config.kvHeads;
        doneTokens += length;
    }
    // The prompt's full blocks stream to the host while later chunks compute: busy link, nothing exposed.
    layer.d2hBytes += layer.d2hBlocks * cache->layout().bytes();
    layer.transferNs = options.link.transferNs(layer.d2hBytes);
}

void CpuEngine::prefill(StepRecord& record, const Progress& progress, const std::stop_token& stop) {
    const ModelConfig& config = model->config();
    record.layers.resize(std::size_t(config.layers));
    clock.beginStep();
    record.startNs = clock.stepStartNs();
    clock.run(record, StepStage::Embed, [&] {
        for (const auto& prompt : prompts) {
            promptX.emplace_back(prompt.size() * std::size_t(config.hidden));
            embed(prompt, promptX.back().data());
        }
    });
    for (int layer = 0; layer < config.layers; ++layer)
        prefillLayer(layer, record.layers[std::size_t(layer)], progress, stop);
    for (std::size_t s = 0; s < prompts.size(); ++s)
        std::copy_n(promptX[s].data() + (prompts[s].size() - 1) * std::size_t(config.hidden), config.hidden,
                    x.data() + s * std::size_t(config.hidden));
    promptX.clear();
    computeLogits(int(prompts.size()), record);
    record.durationNs = clock.endStep();
}

void CpuEngine::computeLogits(int rows, StepRecord& record) {
    const ModelConfig& config = model->config();
    clock.run(record, StepStage::LmHead, [&] {
        const LinearTarget target{model->lmHead(), nullptr, logitRows.data(), config.vocab, false};
        LinearArgs args;
        args.x = x.data();
        args.n = rows;
        args.xStride = config.hidden;
        args.normWeight = model->finalNorm().data();
        args.normEps = config.streamNormEps();
        args.targets = {&target, 1};
        kernels->linear(args);
    });
}

void CpuEngine::decode(std::span<const ActiveSequence> active, std::span<const std::int32_t> tokens,
                       StepRecord& record) {
    const ModelConfig& config = model->config();
    const int n = int(active.size());
    record.layers.resize(std::size_t(config.layers));
    for (int row = 0; row < n; ++row) {
        const ActiveSequence& sequence = active[std::size_t(row)];
        ropeRows[std::size_t(row)] = ropeTables.first(sequence.sequence) + sequence.position;
    }
    clock.beginStep();
    record.startNs = clock.stepStartNs();
    clock.run(record, StepStage::Embed, [&] { embed(tokens, x.data()); });
    const TokenRows rows = projections->rows();
    for (int layer = 0; layer < config.layers; ++layer) {
        LayerRecord& layerRecord = record.layers[std::size_t(layer)];
        clock.beginLayer(layerRecord);
        project(layer, x.data(), n, layerRecord);
        attention->decode(layer, active, rows, record.step, clock, layerRecord, record);
        finishLayer(layer, x.data(), n, layerRecord);
    }
    computeLogits(n, record);
    record.durationNs = clock.endStep();
}

} // namespace

std::int64_t cpuBlockBytes(const BlockFormat& format) {
    return BlockLayout{format.blockSize, format.dim, format.hasBias, format.valueDim}.bytes();
}

std::unique_ptr<DecodeEngine> makeCpuEngine(const EngineSetup& setup) { return std::make_unique<CpuEngine>(setup); }

} // namespace kvscope
