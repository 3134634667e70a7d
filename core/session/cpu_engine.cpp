// The CPU backend: kernels/cpu, float32 KV cache, modelled link.
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
    std::int32_t greedyToken(int row) override { return argMax({logits(row), std::size_t(model->config().vocab)}); }

private:
    void prefillLayer(int layerIndex, LayerRecord& layer, const Progress& progress, const std::stop_token& stop);
    void project(int layerIndex, const float* x, int n, LayerRecord& layer);
    void finishLayer(int layerIndex, float* x, int n, LayerRecord& layer);
    void computeLogits(int rows, StepRecord& record);

    std::shared_ptr<const Model> model;
    const std::vector<std::vector<std::int32_t>>& prompts;
    const SessionOptions& options;
    const SelectionSpec spec;
    std::unique_ptr<Kernels> kernels;
    std::unique_ptr<KvCache> cache;
    std::unique_ptr<LayerAttention> attention;
    StageClock clock;
    int promptTokens = 0;
    // Scratch, sized once: rows = prefill chunk or batch.
    AlignedBuffer<float> x, q, k, v, scores, attended, hidden, logitRows;
    std::vector<AlignedBuffer<float>> promptX; // [sequence] residual stream of the whole prompt, during prefill
    std::vector<std::int32_t> positions;
};

CpuEngine::CpuEngine(const EngineSetup& setup)
    : model(setup.model), prompts(setup.prompts), options(setup.options), spec(setup.spec),
      kernels(makeCpuKernels(setup.options.threads)), clock(steadyNowNs()) {
    const ModelConfig& config = model->config();
    const int sequences = int(prompts.size());
    KvCacheOptions cacheOptions;
    cacheOptions.shape = {config.layers, config.kvHeads, config.headDim};
    cacheOptions.layout = {spec.blockSize, config.headDim, spec.bias.scale != 0.f};
    cacheOptions.maxTokens = setup.maxTokens;
    cacheOptions.offloaded = setup.offloaded;
    cacheOptions.indexed = setup.indexed;
    cacheOptions.slots = setup.slots;
    cache = std::make_unique<KvCache>(cacheOptions, spec, findCachePolicy(setup.cachePolicy));
    attention = std::make_unique<LayerAttention>(*kernels, *cache, spec, cacheOptions.shape, config.queryHeads,
                                                 options.link, sequences, options.oracle);
    std::size_t rows = std::size_t(sequences);
    for (const auto& prompt : prompts) {
        rows = std::max(rows, std::min<std::size_t>(prompt.size(), kPrefillChunk));
        promptTokens += int(prompt.size());
    }
    const auto qWidth = std::size_t(config.queryHeads * config.headDim),
               kvWidth = std::size_t(config.kvHeads * config.headDim);
    x = AlignedBuffer<float>(std::size_t(sequences) * std::size_t(config.hidden));
    q = AlignedBuffer<float>(rows * qWidth);
    k = AlignedBuffer<float>(rows * kvWidth);
    v = AlignedBuffer<float>(rows * kvWidth);
    scores = AlignedBuffer<float>(rows * std::size_t(config.kvHeads));
    attended = AlignedBuffer<float>(rows * qWidth);
    hidden = AlignedBuffer<float>(rows * std::size_t(config.ffn));
    logitRows = AlignedBuffer<float>(std::size_t(sequences) * std::size_t(config.vocab));
    positions.resize(rows);
}

/// Norm, projections, importance scores and rotation of n rows; positions are set.
void CpuEngine::project(int layerIndex, const float* rowsX, int n, LayerRecord& layer) {
    const ModelConfig& config = model->config();
    const LayerWeights& weights = model->layer(layerIndex);
    const int qWidth = config.queryHeads * config.headDim, kvWidth = config.kvHeads * config.headDim;
    const auto biasOf = [](const std::vector<float>& bias) { return bias.empty() ? nullptr : bias.data(); };
    clock.run(layer, Stage::QkvLinear, [&] {
        const LinearTarget targets[] = {{weights.q, biasOf(weights.qBias), q.data(), qWidth, false},
                                        {weights.k, biasOf(weights.kBias), k.data(), kvWidth, false},
                                        {weights.v, biasOf(weights.vBias), v.data(), kvWidth, false}};
        LinearArgs args;
        args.x = rowsX;
        args.n = n;
        args.xStride = config.hidden;
        args.normWeight = weights.inputNorm.data();
        args.normEps = config.rmsNormEps;
        args.targets = targets;
        kernels->linear(args);
        if (model->hasEvictionHead())
            kernels->evictionScore({v.data(), n, config.kvHeads, config.headDim, kvWidth, weights.delta.data(),
                                    weights.gain.data(), scores.data()});
    });
    clock.run(layer, Stage::Rope, [&] {
        kernels->rope({q.data(), n, config.queryHeads, config.headDim, qWidth, positions.data(), model->ropeCos(),
                       model->ropeSin(), config.ropeInterleaved});
        kernels->rope({k.data(), n, config.kvHeads, config.headDim, kvWidth, positions.data(), model->ropeCos(),
                       model->ropeSin(), config.ropeInterleaved});
    });
}

/// Output projection and feed-forward of n rows, added to the residual stream.
void CpuEngine::finishLayer(int layerIndex, float* rowsX, int n, LayerRecord& layer) {
    const ModelConfig& config = model->config();
    const LayerWeights& weights = model->layer(layerIndex);
    const auto addTo = [&](const WeightMatrix& weight, const std::vector<float>& bias, const float* input, int width) {
        const LinearTarget target{weight, bias.empty() ? nullptr : bias.data(), rowsX, config.hidden, true};
        LinearArgs args;
        args.x = input;
        args.n = n;
        args.xStride = width;
        args.targets = {&target, 1};
        kernels->linear(args);
    };
    clock.run(layer, Stage::OLinear,
              [&] { addTo(weights.o, weights.oBias, attended.data(), config.queryHeads * config.headDim); });
    clock.run(layer, Stage::Ffn, [&] {
        kernels->gatedLinear(
            {rowsX, n, weights.postNorm.data(), config.rmsNormEps, weights.gate, weights.up, hidden.data()});
        addTo(weights.down, {}, hidden.data(), config.ffn);
    });
}

void CpuEngine::prefillLayer(int layerIndex, LayerRecord& layer, const Progress& progress,
                             const std::stop_token& stop) {
    const ModelConfig& config = model->config();
    clock.beginLayer(layer);
    const TokenRows rows{q.data(), k.data(), v.data(), model->hasEvictionHead() ? scores.data() : nullptr,
                         attended.data()};
    int doneTokens = 0;
    for (std::size_t s = 0; s < prompts.size(); ++s) {
        const int length = int(prompts[s].size());
        for (int first = 0; first < length; first += kPrefillChunk) {
            throwIfCancelled(stop);
            report(progress, (layerIndex + double(doneTokens + first) / promptTokens) / config.layers,
                   "reading the prompt");
            const int n = std::min(kPrefillChunk, length - first);
            for (int i = 0; i < n; ++i) positions[std::size_t(i)] = first + i;
            float* rowsX = promptX[s].data() + std::size_t(first) * std::size_t(config.hidden);
            project(layerIndex, rowsX, n, layer);
            attention->prefill(layerIndex, int(s), first, n, rows, clock, layer);
            finishLayer(layerIndex, rowsX, n, layer);
        }
        attention->keepTail(layerIndex, int(s), length);
        if (cache->offloaded(layerIndex)) layer.d2hBlocks += length / spec.blockSize * config.kvHeads;
        doneTokens += length;
    }
    // The prompt's full blocks stream to the host while later chunks compute: busy link, nothing exposed.
    layer.d2hBytes = layer.d2hBlocks * cache->layout().bytes();
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
            kernels->embed(model->embedding(), prompt, promptX.back().data());
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
        args.normEps = config.rmsNormEps;
        args.targets = {&target, 1};
        kernels->linear(args);
    });
}

void CpuEngine::decode(std::span<const ActiveSequence> active, std::span<const std::int32_t> tokens,
                       StepRecord& record) {
    const ModelConfig& config = model->config();
    const int n = int(active.size());
    record.layers.resize(std::size_t(config.layers));
    for (int row = 0; row < n; ++row) positions[std::size_t(row)] = active[std::size_t(row)].position;
    clock.beginStep();
    record.startNs = clock.stepStartNs();
    clock.run(record, StepStage::Embed, [&] { kernels->embed(model->embedding(), tokens, x.data()); });
    const TokenRows rows{q.data(), k.data(), v.data(), model->hasEvictionHead() ? scores.data() : nullptr,
                         attended.data()};
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
    return BlockLayout{format.blockSize, format.dim, format.hasBias}.bytes();
}

std::unique_ptr<DecodeEngine> makeCpuEngine(const EngineSetup& setup) { return std::make_unique<CpuEngine>(setup); }

} // namespace kvscope
