#include "core/session/decode_session.h"

#include "core/session/layer_attention.h"
#include "core/session/sampler.h"
#include "core/session/stage_clock.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <nlohmann/json.hpp>

namespace kvscope {
namespace {

constexpr int kPrefillChunk = 512; // tokens projected and attended together: fills the GEMM's tiles, bounds the scratch

[[noreturn]] void refuse(const std::string& message, const std::string& hint) {
    throw Error(ErrorKind::BadInput, message, hint);
}

void checkOptions(const SessionOptions& options) {
    if (options.maxNewTokens < 1)
        refuse(fmt::format("cannot generate {} tokens", options.maxNewTokens), "ask for at least 1 new token");
    const Sampling& s = options.sampling;
    if (!(s.temperature >= 0 && s.temperature <= 100))
        refuse(fmt::format("temperature {} is out of range", s.temperature), "use 0 (greedy) to 100");
    if (!(s.topP > 0 && s.topP <= 1))
        refuse(fmt::format("top-p {} is out of range", s.topP), "use a number above 0, at most 1");
    if (s.topK < 0) refuse(fmt::format("top-k {} is negative", s.topK), "use 0 for all tokens, or a positive number");
    if (options.threads < 0 || options.threads > 1024)
        refuse(fmt::format("cannot run on {} threads", options.threads), "use 0 for all cores, or 1 to 1024");
}

void checkPrompts(const std::vector<std::vector<std::int32_t>>& prompts, const Model& model, int maxNewTokens) {
    const ModelConfig& config = model.config();
    if (prompts.empty()) refuse("there is no prompt", "give at least one");
    if (prompts.size() > 256) refuse(fmt::format("{} sequences are too many", prompts.size()), "use at most 256");
    for (std::size_t i = 0; i < prompts.size(); ++i) {
        if (prompts[i].empty()) refuse(fmt::format("prompt {} is empty", i), "give it at least one token");
        const auto need = std::int64_t(prompts[i].size()) + maxNewTokens - 1; // the last token is not fed back
        if (need > config.maxPositions)
            refuse(fmt::format("a prompt of {} tokens and {} new ones exceed the context of {} ({} tokens)",
                               prompts[i].size(), maxNewTokens, model.name(), config.maxPositions),
                   "shorten the prompt or ask for fewer new tokens");
        for (const std::int32_t id : prompts[i])
            if (id < 0 || id >= config.vocab)
                refuse(fmt::format("prompt {} holds token id {}, outside the vocabulary of {} ({} entries)", i, id,
                                   model.name(), config.vocab),
                       "use ids of this model's tokenizer");
    }
}

ParameterValues resolveParameters(const MethodEntry& method, const Model& model, const SessionOptions& options) {
    if (method.needsEvictionHead && !model.hasEvictionHead())
        throw Error(ErrorKind::Unsupported,
                    fmt::format("method {} needs {}, and {} has none", method.name, method.needs, model.name()),
                    "choose another method or a checkpoint trained for it");
    ParameterValues values = resolveDefaults(method, model.config());
    for (const auto& [key, value] : options.settings) {
        try {
            values.set(method.parameters, key, value);
        } catch (Error& error) {
            error.during("method " + method.name);
            throw;
        }
    }
    return values;
}

} // namespace

double SessionSummary::tokensPerSecond() const {
    return decodeNs > 0 ? double(decodedTokens) * 1e9 / double(decodeNs) : 0.0;
}

struct DecodeSession::Impl {
    Impl(std::shared_ptr<const Model> loaded, std::vector<std::vector<std::int32_t>> promptIds,
         SessionOptions sessionOptions, TraceSink& traceSink);

    void prefill(const Progress& progress, const std::stop_token& stop);
    bool step();
    void prefillLayer(int layerIndex, LayerRecord& layer, const Progress& progress, const std::stop_token& stop);
    void project(int layerIndex, const float* x, int n, LayerRecord& layer);
    void finishLayer(int layerIndex, float* x, int n, LayerRecord& layer);
    void sampleTokens(std::span<const ActiveSequence> active, StepRecord& record);
    void addTransfers(const StepRecord& record);
    void commit(std::unique_ptr<StepRecord> record);
    bool done(int sequence) const {
        const auto& ids = generated[std::size_t(sequence)];
        if (int(ids.size()) >= options.maxNewTokens) return true;
        const auto& eos = model->config().eosIds;
        return options.stopAtEos && !ids.empty() && std::find(eos.begin(), eos.end(), ids.back()) != eos.end();
    }

    std::shared_ptr<const Model> model;
    std::vector<std::vector<std::int32_t>> prompts;
    SessionOptions options;
    TraceSink& sink;
    const MethodEntry& method;
    ParameterValues parameters;
    SelectionSpec spec;
    std::unique_ptr<Kernels> kernels;
    std::unique_ptr<KvCache> cache;
    std::unique_ptr<LayerAttention> attention;
    RunInfo info;
    StageClock clock;
    std::vector<Sampler> samplers;
    std::vector<std::vector<std::int32_t>> generated;
    std::vector<std::int32_t> nextToken; // [sequence]
    std::vector<ActiveSequence> active;
    SessionSummary summary;
    double localitySum = 0;
    int stepNumber = 0;
    bool prefilled = false, ended = false;
    // Scratch, sized once: rows = prefill chunk or batch.
    AlignedBuffer<float> x, q, k, v, scores, attended, hidden, logits;
    std::vector<AlignedBuffer<float>> promptX; // [sequence] residual stream of the whole prompt, during prefill
    std::vector<std::int32_t> positions, inputIds;
};

DecodeSession::Impl::Impl(std::shared_ptr<const Model> loaded, std::vector<std::vector<std::int32_t>> promptIds,
                          SessionOptions sessionOptions, TraceSink& traceSink)
    : model(std::move(loaded)), prompts(std::move(promptIds)), options(std::move(sessionOptions)), sink(traceSink),
      method(findMethod(options.method)) {
    const ModelConfig& config = model->config();
    checkOptions(options);
    checkPrompts(prompts, *model, options.maxNewTokens);
    parameters = resolveParameters(method, *model, options);
    spec = method.make(parameters, config);
    if (!model->hasEvictionHead()) spec.bias.scale = 0.f;

    const int sequences = int(prompts.size());
    KvCacheOptions cacheOptions;
    cacheOptions.shape = {config.layers, config.kvHeads, config.headDim};
    cacheOptions.layout = {spec.blockSize, config.headDim, spec.bias.scale != 0.f};
    int maxBlocks = 0;
    for (const auto& prompt : prompts) {
        cacheOptions.maxTokens.push_back(int(prompt.size()) + options.maxNewTokens);
        maxBlocks = std::max(maxBlocks, spec.grid.blocks(cacheOptions.maxTokens.back()));
    }
    int offloadedLayers = 0;
    for (int layer = 0; layer < config.layers; ++layer) {
        const bool dense = spec.dense || layer < spec.denseLayers;
        cacheOptions.offloaded.push_back(!dense && options.offload);
        cacheOptions.indexed.push_back(
            !dense && (spec.queryScore != QueryScore::None || spec.agnosticScore != AgnosticScore::None));
        offloadedLayers += cacheOptions.offloaded.back() ? 1 : 0;
    }
    if (offloadedLayers > 0) {
        const int needed = std::min(std::max(spec.budgetBlocks(), spec.grid.blocks(spec.denseBelowTokens)), maxBlocks);
        std::int64_t slots = needed;
        if (options.deviceKvBlocks)
            slots = *options.deviceKvBlocks;
        else if (options.deviceKvBytes)
            slots = *options.deviceKvBytes /
                    (std::int64_t(sequences) * offloadedLayers * config.kvHeads * cacheOptions.layout.bytes());
        if (slots < needed)
            refuse(
                fmt::format(
                    "a device pool of {} block slots per KV head is too small: method {} attends {} blocks at a time",
                    slots, method.name, needed),
                fmt::format("give at least --device-kv {}, or lower the budget", needed));
        cacheOptions.slots = int(std::min<std::int64_t>(slots, maxBlocks));
        // Keep-selected fills the first free slot, so spare slots would stay empty.
        if (options.cachePolicy.empty() && cacheOptions.slots > needed) options.cachePolicy = "lru";
    }
    if (options.cachePolicy.empty()) options.cachePolicy = "keep-selected";
    kernels = makeCpuKernels(options.threads);
    cache = std::make_unique<KvCache>(cacheOptions, spec, findCachePolicy(options.cachePolicy));
    attention = std::make_unique<LayerAttention>(*kernels, *cache, spec, cacheOptions.shape, config.queryHeads,
                                                 options.link, sequences, options.oracle);

    std::size_t rows = std::size_t(sequences);
    for (const auto& prompt : prompts) rows = std::max(rows, std::min<std::size_t>(prompt.size(), kPrefillChunk));
    const auto qWidth = std::size_t(config.queryHeads * config.headDim),
               kvWidth = std::size_t(config.kvHeads * config.headDim);
    x = AlignedBuffer<float>(std::size_t(sequences) * std::size_t(config.hidden));
    q = AlignedBuffer<float>(rows * qWidth);
    k = AlignedBuffer<float>(rows * kvWidth);
    v = AlignedBuffer<float>(rows * kvWidth);
    scores = AlignedBuffer<float>(rows * std::size_t(config.kvHeads));
    attended = AlignedBuffer<float>(rows * qWidth);
    hidden = AlignedBuffer<float>(rows * std::size_t(config.ffn));
    logits = AlignedBuffer<float>(std::size_t(sequences) * std::size_t(config.vocab));
    positions.resize(rows);
    generated.resize(std::size_t(sequences));
    nextToken.resize(std::size_t(sequences));
    for (int s = 0; s < sequences; ++s) {
        generated[std::size_t(s)].reserve(std::size_t(options.maxNewTokens));
        samplers.emplace_back(options.sampling, s);
        summary.promptTokens += int(prompts[std::size_t(s)].size());
    }
    summary.localityMean = summary.localityMin = std::numeric_limits<double>::quiet_NaN();

    info.name = options.name.empty() ? fmt::format("{} on {}", method.title, model->name()) : options.name;
    info.model = model->name();
    info.method = method.name;
    auto params = nlohmann::ordered_json::parse(parameters.toJson(method.parameters));
    params["cache_policy"] = options.cachePolicy;
    params["offload"] = options.offload;
    info.paramsJson = params.dump();
    info.backend = "cpu";
    info.device = kernels->description();
    info.link = options.link.describe();
    info.linkTiming = Timing::Modelled;
    info.linkGbps = options.link.gigabytesPerSecond;
    info.linkLatencyUs = options.link.latencyUs;
    info.blockSize = spec.blockSize;
    info.layers = config.layers;
    info.kvHeads = config.kvHeads;
    info.queryHeads = config.queryHeads;
    info.headDim = config.headDim;
    info.sequences = sequences;
    info.deviceSlots = cacheOptions.slots;
    info.budgetBlocks = spec.dense ? 0 : spec.budgetBlocks();
    info.blockBytes = cacheOptions.layout.bytes();
    info.level = sink.level();
    for (const auto& prompt : prompts) {
        auto& tokens = info.prompts.emplace_back();
        for (const std::int32_t id : prompt) tokens.push_back({id, model->tokenizer().bytesOf(id)});
    }
    clock = StageClock(steadyNowNs());
    sink.beginRun(info);
}

/// Norm, projections, importance scores and rotation of n rows; positions are set.
void DecodeSession::Impl::project(int layerIndex, const float* rowsX, int n, LayerRecord& layer) {
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
                       model->ropeSin()});
        kernels->rope({k.data(), n, config.kvHeads, config.headDim, kvWidth, positions.data(), model->ropeCos(),
                       model->ropeSin()});
    });
}

/// Output projection and feed-forward of n rows, added to the residual stream.
void DecodeSession::Impl::finishLayer(int layerIndex, float* rowsX, int n, LayerRecord& layer) {
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

void DecodeSession::Impl::prefillLayer(int layerIndex, LayerRecord& layer, const Progress& progress,
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
            report(progress, (layerIndex + double(doneTokens + first) / summary.promptTokens) / config.layers,
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

void DecodeSession::Impl::prefill(const Progress& progress, const std::stop_token& stop) {
    const ModelConfig& config = model->config();
    auto record = sink.acquire();
    record->step = stepNumber;
    record->phase = Phase::Prefill;
    record->tokens = summary.promptTokens;
    record->layers.resize(std::size_t(config.layers));
    clock.beginStep();
    record->startNs = clock.stepStartNs();
    clock.run(*record, StepStage::Embed, [&] {
        for (const auto& prompt : prompts) {
            promptX.emplace_back(prompt.size() * std::size_t(config.hidden));
            kernels->embed(model->embedding(), prompt, promptX.back().data());
        }
    });
    for (int layer = 0; layer < config.layers; ++layer)
        prefillLayer(layer, record->layers[std::size_t(layer)], progress, stop);
    active.clear();
    for (std::size_t s = 0; s < prompts.size(); ++s) {
        active.push_back({int(s), int(prompts[s].size()) - 1});
        std::copy_n(promptX[s].data() + (prompts[s].size() - 1) * std::size_t(config.hidden), config.hidden,
                    x.data() + s * std::size_t(config.hidden));
    }
    promptX.clear();
    sampleTokens(active, *record);
    record->durationNs = clock.endStep();
    summary.prefillNs = record->durationNs;
    prefilled = true;
    commit(std::move(record));
    report(progress, 1.0, "reading the prompt");
}

void DecodeSession::Impl::sampleTokens(std::span<const ActiveSequence> rows, StepRecord& record) {
    const ModelConfig& config = model->config();
    clock.run(record, StepStage::LmHead, [&] {
        const LinearTarget target{model->lmHead(), nullptr, logits.data(), config.vocab, false};
        LinearArgs args;
        args.x = x.data();
        args.n = int(rows.size());
        args.xStride = config.hidden;
        args.normWeight = model->finalNorm().data();
        args.normEps = config.rmsNormEps;
        args.targets = {&target, 1};
        kernels->linear(args);
    });
    clock.run(record, StepStage::Sample, [&] {
        for (std::size_t row = 0; row < rows.size(); ++row) {
            const auto s = std::size_t(rows[row].sequence);
            const std::int32_t id =
                samplers[s].sample({logits.data() + row * std::size_t(config.vocab), std::size_t(config.vocab)});
            generated[s].push_back(id);
            nextToken[s] = id;
            record.generated.push_back(
                {rows[row].sequence, id, rows[row].position + 1, model->tokenizer().bytesOf(id)});
        }
    });
}

bool DecodeSession::Impl::step() {
    if (!prefilled) throw Error(ErrorKind::BadInput, "a decode step was asked for before the prompt was read");
    const ModelConfig& config = model->config();
    active.clear();
    inputIds.clear();
    for (int s = 0; s < int(prompts.size()); ++s) {
        if (done(s)) continue;
        active.push_back({s, int(prompts[std::size_t(s)].size() + generated[std::size_t(s)].size()) - 1});
        inputIds.push_back(nextToken[std::size_t(s)]);
    }
    if (active.empty()) return false;
    const int n = int(active.size());
    auto record = sink.acquire();
    record->step = stepNumber;
    record->tokens = n;
    record->layers.resize(std::size_t(config.layers));
    for (int row = 0; row < n; ++row) {
        positions[std::size_t(row)] = active[std::size_t(row)].position;
        record->opensBlock |= active[std::size_t(row)].position % spec.blockSize == 0;
    }
    clock.beginStep();
    record->startNs = clock.stepStartNs();
    clock.run(*record, StepStage::Embed, [&] { kernels->embed(model->embedding(), inputIds, x.data()); });
    const TokenRows rows{q.data(), k.data(), v.data(), model->hasEvictionHead() ? scores.data() : nullptr,
                         attended.data()};
    for (int layer = 0; layer < config.layers; ++layer) {
        LayerRecord& layerRecord = record->layers[std::size_t(layer)];
        clock.beginLayer(layerRecord);
        project(layer, x.data(), n, layerRecord);
        attention->decode(layer, active, rows, record->step, clock, layerRecord, *record);
        finishLayer(layer, x.data(), n, layerRecord);
    }
    sampleTokens(active, *record);
    record->durationNs = clock.endStep();
    summary.decodeNs += record->durationNs;
    summary.decodedTokens += n;
    ++summary.steps;
    commit(std::move(record));
    return true;
}

void DecodeSession::Impl::commit(std::unique_ptr<StepRecord> record) {
    ++stepNumber;
    addTransfers(*record);
    if (sink.level() == RecordLevel::Counters) record->blocks.clear(), record->origins.clear(), record->hit.clear();
    if (sink.level() != RecordLevel::Full) record->scores.clear();
    sink.commit(std::move(record));
}

void DecodeSession::Impl::addTransfers(const StepRecord& record) {
    for (const LayerRecord& layer : record.layers) {
        summary.hits += layer.hits;
        summary.misses += layer.misses;
        summary.h2dBytes += layer.h2dBytes;
        summary.d2hBytes += layer.d2hBytes;
        summary.exposedNs += layer.exposedNs;
    }
    for (const SelectionRecord& selection : record.selections) {
        if (selection.kept < 0) continue;
        const auto row = std::find_if(active.begin(), active.end(),
                                      [&](const ActiveSequence& a) { return a.sequence == selection.sequence; });
        if (row->position % spec.blockSize == 0) continue; // a block begins: the window moves whatever the method does
        const double locality = double(selection.kept) / selection.selected;
        localitySum += locality;
        ++summary.localityCount;
        summary.localityMean = localitySum / double(summary.localityCount);
        summary.localityMin = summary.localityCount == 1 ? locality : std::min(summary.localityMin, locality);
    }
}

DecodeSession::DecodeSession(std::shared_ptr<const Model> model, std::vector<std::vector<std::int32_t>> prompts,
                             SessionOptions options, TraceSink& sink)
    : impl_(std::make_unique<Impl>(std::move(model), std::move(prompts), std::move(options), sink)) {}

DecodeSession::~DecodeSession() { end(RunStatus::Stopped); }

void DecodeSession::prefill(const Progress& progress, std::stop_token stop) { impl_->prefill(progress, stop); }
bool DecodeSession::step() { return impl_->step(); }

bool DecodeSession::finished() const {
    for (int s = 0; s < int(impl_->prompts.size()); ++s)
        if (!impl_->done(s)) return false;
    return true;
}

void DecodeSession::end(RunStatus status, const std::string& message) {
    if (impl_->ended) return;
    impl_->ended = true;
    impl_->sink.endRun(status, message);
}

const std::vector<std::vector<std::int32_t>>& DecodeSession::generated() const { return impl_->generated; }
const SessionSummary& DecodeSession::summary() const { return impl_->summary; }
const SelectionSpec& DecodeSession::spec() const { return impl_->spec; }
const ParameterValues& DecodeSession::parameters() const { return impl_->parameters; }
const RunInfo& DecodeSession::runInfo() const { return impl_->info; }

const float* DecodeSession::logits(int sequence) const {
    for (std::size_t row = 0; row < impl_->active.size(); ++row)
        if (impl_->active[row].sequence == sequence)
            return impl_->logits.data() + row * std::size_t(impl_->model->config().vocab);
    return nullptr;
}

void DecodeSession::forceNextTokens(const std::vector<std::int32_t>& ids) { impl_->nextToken = ids; }

} // namespace kvscope
