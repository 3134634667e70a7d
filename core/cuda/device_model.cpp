#include "core/cuda/device_model.h"

#include "base/extents.h"
#include "core/cuda/device_upload.h"
#include "core/plan/model_limits.h"
#include "kernels/cuda/linear/packed.h"
#include "kernels/cuda/token/project_heads.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cuda_runtime_api.h>
#include <map>
#include <mutex>
#include <optional>
#include <random>

namespace kvscope {
namespace {

constexpr const char* kWhat = "weights";

/// Numbers in an array of these lengths.
template <class... Length> std::size_t elements(Length... lengths) {
    static_assert((std::is_same_v<Length, int> && ...));
    return Extents<Length...>(lengths...).size();
}

void requireFit(const std::string& problem) {
    if (!problem.empty()) throw Error(ErrorKind::Unsupported, problem, "use --backend cpu");
}

/// Where the channels of a partly rotated head stand on the GPU, whose kernels rotate channel c with c + dim/2: first
/// the lower channels of the rotated pairs, half a head behind them the upper ones, and behind each of the two a part
/// of the channels that are not rotated. The order is the same for queries and keys, so no product of the two changes.
struct PartlyRotated {
    int dim = 0, rotated = 0;
    struct Run {
        int to = 0, from = 0, count = 0;
    };
    std::array<Run, 4> runs() const {
        const int half = dim / 2, pairs = rotated / 2;
        return {Run{0, 0, pairs}, Run{pairs, rotated, half - pairs}, Run{half, pairs, pairs},
                Run{half + pairs, rotated + half - pairs, half - pairs}};
    }
    std::vector<float> ordered(const std::vector<float>& heads) const {
        std::vector<float> out(heads.size());
        for (std::size_t head = 0; head < heads.size(); head += Elements(dim))
            for (const Run& run : runs())
                std::copy_n(heads.begin() + std::ptrdiff_t(head) + run.from, run.count,
                            out.begin() + std::ptrdiff_t(head) + run.to);
        return out;
    }
    /// Copies the heads of `from` to the rows of `to` from `firstRow` on.
    void upload(DeviceUpload& upload, const cuda::DeviceMatrix& to, const WeightMatrix& from, int firstRow) const {
        const RowsOf rows(static_cast<const std::byte*>(from.data), rowBytes(from.type, from.cols));
        for (int head = 0; head < from.rows; head += dim)
            for (const Run& run : runs()) {
                WeightMatrix part = from;
                part.data = rows[head + run.from];
                part.rows = run.count;
                upload.rows(to, part, firstRow + head + run.to);
            }
    }
};

/// Nothing where heads are rotated whole.
std::optional<PartlyRotated> partlyRotated(const ModelConfig& config) {
    if (config.latent || config.rope.dim == config.headDim) return std::nullopt;
    return PartlyRotated{config.headDim, config.rope.dim};
}

DType typeOf(const WeightMatrix* w) { return w == nullptr ? DType::BF16 : deviceType(*w); }

bool hasAttentionBiases(const Model& model) {
    for (int i = 0; i < model.config().layers; ++i) {
        const LayerWeights& layer = model.layer(i);
        if (!layer.queryDownBias.empty() || !layer.qBias.empty() || !layer.kBias.empty() || !layer.vBias.empty() ||
            !layer.oBias.empty())
            return true;
    }
    return false;
}

/// Call this after the value projection and the eviction head have been copied to the GPU.
void foldEvictionHead(const DeviceLayer& layer, const ModelConfig& config) {
    if (layer.eviction.folded)
        cuda::foldEvictionHead({}, layer.qkv.front(), layer.eviction.delta, config.kvHeads,
                               config.kvHeads * config.headDim);
}

void copyFloats(const float* to, const std::vector<float>& from) {
    cuda::check(cudaMemcpy(const_cast<float*>(to), from.data(), from.size() * sizeof(float), cudaMemcpyHostToDevice),
                "making random weights");
}

} // namespace

int deviceChannel(const ModelConfig& config, int channel) {
    if (const std::optional<PartlyRotated> partly = partlyRotated(config))
        for (const PartlyRotated::Run& run : partly->runs())
            if (channel >= run.from && channel < run.from + run.count) return run.to + channel - run.from;
    return channel;
}

DeviceModel::DeviceModel(const Model& model)
    : config(model.config()), evictionHead(model.hasEvictionHead()), forecastHeads(model.hasForecastHeads()) {}

void DeviceModel::planFloats(const float*& to, std::size_t count) {
    arena_.plan(const_cast<float*&>(to), count, kWhat);
}

void DeviceModel::planPacked(cuda::DeviceMatrix& matrix, DType type, int rows, int cols, int count) {
    matrix.rows = rows;
    matrix.cols = cols;
    matrix.type = type;
    arena_.plan(const_cast<std::byte*&>(matrix.packed), {cuda::packedBytes(type, rows, cols), count}, kWhat);
}

void DeviceModel::planMatrix(cuda::DeviceMatrix& matrix, DType type, int rows, int cols) {
    if (isQuantised(type)) return planPacked(matrix, type, rows, cols);
    matrix.rows = rows;
    matrix.cols = cols;
    arena_.plan(const_cast<__nv_bfloat16*&>(matrix.data), elements(rows, cols), kWhat);
}

/// from: null for random weights, as in planLayer.
void DeviceModel::planAttention(DeviceLayer& layer, const LayerWeights* from, bool biases) {
    const int qWidth = config.queryHeads * config.queryDim(), kvWidth = config.kvHeads * config.headDim;
    struct Part {
        DType type;
        int rows;
    };
    std::vector<Part> wanted;
    if (config.latent)
        wanted = {config.latent->queryRank > 0 ? Part{typeOf(&from->queryDown), config.latent->queryRank}
                                               : Part{typeOf(&from->q), qWidth},
                  {typeOf(&from->k), kvWidth}};
    else
        wanted = {{typeOf(from ? &from->q : nullptr), qWidth},
                  {typeOf(from ? &from->k : nullptr), kvWidth},
                  {typeOf(from ? &from->v : nullptr), kvWidth}};
    if (partlyRotated(config)) // rows of packed tiles cannot change places one by one
        for (Part& part : wanted) part.type = DType::BF16;
    std::vector<Part> parts;
    int rows = 0;
    for (const Part& part : wanted) {
        rows += part.rows;
        if (!parts.empty() && parts.back().type == part.type)
            parts.back().rows += part.rows;
        else
            parts.push_back(part);
    }
    const bool folded =
        evictionHead && !biases && !config.latent && parts.size() == 1 && !isQuantised(parts.front().type);
    layer.qkv.resize(parts.size()); // must not move from here on: the arena sets its pointers later
    for (std::size_t i = 0; i < parts.size(); ++i) {
        planMatrix(layer.qkv[i], parts[i].type, parts[i].rows + (folded ? 2 * config.kvHeads : 0), config.hidden);
        layer.qkv[i].rows = parts[i].rows;
    }
    planMatrix(layer.o, typeOf(from ? &from->o : nullptr), config.hidden, config.queryHeads * config.outputDim());
    if (biases) {
        planFloats(layer.qkvBias, elements(rows));
        planFloats(layer.oBias, elements(config.hidden));
    }
    if (config.latent) {
        const LatentAttention& latent = *config.latent;
        if (latent.queryRank > 0) {
            planMatrix(layer.latent.queryUp, typeOf(&from->q), qWidth, latent.queryRank);
            planFloats(layer.latent.queryNorm, elements(latent.queryRank));
        }
        planFloats(layer.latent.latentNorm, elements(latent.rank));
        arena_.plan(const_cast<__nv_bfloat16*&>(layer.latent.keyUp),
                    elements(config.queryHeads, latent.rank, latent.nopeDim), kWhat);
        arena_.plan(const_cast<__nv_bfloat16*&>(layer.latent.valueUp),
                    elements(config.queryHeads, latent.rank, latent.valueDim), kWhat);
    }
    if (config.queryKeyNorm) {
        planFloats(layer.headNorms.query, elements(config.headDim));
        planFloats(layer.headNorms.key, elements(config.headDim));
        layer.headNorms.eps = config.rmsNormEps;
    }
    if (evictionHead) {
        planFloats(layer.eviction.delta, elements(config.kvHeads, kvWidth));
        planFloats(layer.eviction.gain, elements(config.kvHeads));
        layer.eviction.folded = folded;
    }
}

void DeviceModel::planLayer(DeviceLayer& layer, const LayerWeights* from, bool experts, bool biases) {
    planAttention(layer, from, biases);
    const auto planFeedForward = [&](DeviceFeedForward& to, const FeedForwardWeights* mlp, int width) {
        planMatrix(to.gateUp, mlp ? deviceType(mlp->gate, mlp->up) : DType::BF16, 2 * width, config.hidden);
        planMatrix(to.down, typeOf(mlp ? &mlp->down : nullptr), config.hidden, width);
    };
    if (!experts) {
        planFeedForward(layer.mlp, from ? &from->mlp : nullptr, config.ffn);
    } else {
        const ExpertConfig& e = *config.experts;
        const FeedForwardWeights& first = from->moe.experts.front();
        DeviceExperts& to = layer.experts;
        planFloats(to.router, elements(e.count + (e.sharedGate ? 1 : 0), config.hidden));
        if (!from->moe.choiceBias.empty()) planFloats(to.choiceBias, elements(e.count));
        planPacked(to.gateUp, deviceType(first.gate, first.up), 2 * e.width, config.hidden, e.count);
        planPacked(to.down, deviceType(first.down), config.hidden, e.width, e.count);
        to.gateUpBytes = cuda::packedBytes(to.gateUp.type, to.gateUp.rows, to.gateUp.cols);
        to.downBytes = cuda::packedBytes(to.down.type, to.down.rows, to.down.cols);
        if (from->moe.shared.gate.rows > 0) planFeedForward(to.shared, &from->moe.shared, e.sharedWidth);
    }
    planFloats(layer.inputNorm, elements(config.hidden));
    planFloats(layer.postNorm, elements(config.hidden));
}

void DeviceModel::planIndexer(DeviceLayer& layer) {
    const BlockIndexer& indexer = *config.blockIndexer;
    planMatrix(layer.blockIndexer.projection, DType::BF16, (indexer.heads + 1) * indexer.dim, config.hidden);
    planFloats(layer.blockIndexer.queryNorm, elements(indexer.dim));
    planFloats(layer.blockIndexer.keyNorm, elements(indexer.dim));
}

void DeviceModel::planIndexer(DeviceLayer& layer, const IndexerWeights& from) {
    const LightningIndexer& indexer = *config.indexer;
    planMatrix(layer.indexer.query, typeOf(&from.query), indexer.heads * indexer.dim, config.latent->queryRank);
    planMatrix(layer.indexer.key, typeOf(&from.key), indexer.dim, config.hidden);
    planFloats(layer.indexer.keyNorm, elements(indexer.dim));
    planFloats(layer.indexer.keyShift, elements(indexer.dim));
    planFloats(layer.indexer.headWeight, elements(indexer.heads, config.hidden));
}

/// Plans SparDA's heads: in every layer but the last the head for the next layer, and in layer 0 also the head for
/// layer 0.
void DeviceModel::planForecast(DeviceLayer& layer, const LayerWeights* from, int index) {
    const int rows = config.kvHeads * config.headDim;
    const auto type = [&](const WeightMatrix* weights) {
        return partlyRotated(config) ? DType::BF16 : typeOf(weights);
    };
    if (index + 1 < config.layers)
        planMatrix(layer.forecast, type(from != nullptr ? &from->forecast : nullptr), rows, config.hidden);
    if (index == 0)
        planMatrix(layer.ownForecast, type(from != nullptr ? &from->ownForecast : nullptr), rows, config.hidden);
}

void DeviceModel::planAll(const Model* from) {
    requireFit(from != nullptr ? gpuProblem(*from) : gpuProblem(config));
    const bool biases = from != nullptr && hasAttentionBiases(*from);
    layers.resize(config.layers);
    for (const LayerId layer : layers.ids()) {
        const int i = int(layer);
        DeviceLayer& of = layers[layer];
        const LayerWeights* weights = from != nullptr ? &from->layer(i) : nullptr;
        planLayer(of, weights, config.hasExperts(i), biases);
        if (forecastHeads) planForecast(of, weights, i);
        if (from != nullptr && config.blockIndexer && config.blockIndexer->runsIn(i)) planIndexer(of);
        if (from != nullptr && config.indexer && config.indexer->runsIn(i)) planIndexer(of, weights->indexer);
    }
    planMatrix(embedding, typeOf(from != nullptr ? &from->embedding() : nullptr), config.vocab, config.hidden);
    tied_ = from != nullptr && from->lmHead().data == from->embedding().data;
    if (tied_)
        lmHead = embedding; // takeAll sets its pointer
    else
        planMatrix(lmHead, typeOf(from != nullptr ? &from->lmHead() : nullptr), config.vocab, config.hidden);
    planFloats(finalNorm, elements(config.hidden));
}

void DeviceModel::takeAll() {
    arena_.take();
    if (tied_) lmHead = embedding;
    weightBytes = lmHead.bytes();
    for (const DeviceLayer& layer : layers) {
        for (const auto& matrix : layer.qkv) weightBytes += matrix.bytes();
        for (const DeviceFeedForward* mlp : {&layer.mlp, &layer.experts.shared})
            weightBytes += mlp->gateUp.bytes() + mlp->down.bytes();
        weightBytes += layer.o.bytes() + layer.latent.queryUp.bytes();
        if (config.latent)
            weightBytes +=
                elements(config.queryHeads, config.latent->rank, config.latent->nopeDim + config.latent->valueDim) *
                sizeof(__nv_bfloat16);
        if (layer.experts.router != nullptr)
            weightBytes += Elements(config.experts->used, layer.experts.gateUpBytes + layer.experts.downBytes);
    }
}

namespace {

void uploadFeedForward(DeviceUpload& upload, const DeviceFeedForward& to, const FeedForwardWeights& from) {
    upload.gated(to.gateUp, from.gate, from.up);
    upload.rows(to.down, from.down);
}

void uploadExperts(DeviceUpload& upload, const DeviceExperts& to, const ExpertWeights& from) {
    upload.asFloats(to.router, from.router);
    if (from.sharedGate.rows > 0)
        upload.asFloats(to.router + elements(from.router.rows, from.router.cols), from.sharedGate);
    upload.floats(to.choiceBias, from.choiceBias);
    cuda::DeviceMatrix gateUp = to.gateUp, down = to.down;
    for (const FeedForwardWeights& expert : from.experts) {
        uploadFeedForward(upload, {gateUp, down}, expert);
        gateUp.packed += to.gateUpBytes;
        down.packed += to.downBytes;
    }
    if (to.shared.down.rows > 0) uploadFeedForward(upload, to.shared, from.shared);
}

/// On the GPU the matrices of the heads follow each other, and the matrices into and out of the latent space are bf16.
void uploadLatent(DeviceUpload& upload, const DeviceLatent& to, const LayerWeights& from, int heads) {
    if (to.queryUp.rows > 0) upload.rows(to.queryUp, from.q);
    upload.floats(to.queryNorm, from.queryDownNorm);
    upload.floats(to.latentNorm, from.latentNorm);
    const auto upHeads = [&](const __nv_bfloat16* device, WeightMatrix head, std::size_t bytes) {
        for (int h = 0; h < heads; ++h) {
            upload.rows({device + elements(h, head.rows, head.cols), head.rows, head.cols}, head);
            head.data = static_cast<const std::byte*>(head.data) + bytes;
        }
    };
    upHeads(to.keyUp, from.keyUp, from.keyUp.bytes());
    upHeads(to.valueUp, from.valueUp, from.valueUpHeadBytes);
}

void uploadIndexer(DeviceUpload& upload, const DeviceBlockIndexer& to, const BlockIndexerWeights& from) {
    upload.rows(to.projection, from.query);
    upload.rows(to.projection, from.key, from.query.rows);
    upload.floats(to.queryNorm, from.queryNorm);
    upload.floats(to.keyNorm, from.keyNorm);
}

void uploadIndexer(DeviceUpload& upload, const DeviceLightningIndexer& to, const IndexerWeights& from) {
    upload.rows(to.query, from.query);
    upload.rows(to.key, from.key);
    upload.floats(to.keyNorm, from.keyNorm);
    upload.floats(to.keyShift, from.keyShift);
    upload.asFloats(to.headWeight, from.headWeight);
}

void uploadLayer(DeviceUpload& upload, const DeviceLayer& to, const LayerWeights& from, const ModelConfig& config) {
    const std::optional<PartlyRotated> partly = partlyRotated(config);
    const auto rotatedRows = [&](const cuda::DeviceMatrix& device, const WeightMatrix& matrix, int firstRow = 0) {
        if (partly)
            partly->upload(upload, device, matrix, firstRow);
        else
            upload.rows(device, matrix, firstRow);
    };
    const auto rotatedFloats = [&](const float* device, const std::vector<float>& values) {
        upload.floats(device, partly ? partly->ordered(values) : values);
    };
    if (to.latent.keyUp != nullptr) uploadLatent(upload, to.latent, from, config.queryHeads);
    const WeightMatrix& first = from.queryDown.rows > 0 ? from.queryDown : from.q;
    std::size_t part = 0;
    int row = 0; // first row of `matrix` within to.qkv[part]
    for (const WeightMatrix* matrix : {&first, &from.k, &from.v}) {
        if (matrix->rows == 0) continue; // with latent attention there is no value matrix
        if (row == to.qkv[part].rows) ++part, row = 0;
        if (matrix == &from.v)
            upload.rows(to.qkv[part], *matrix, row);
        else
            rotatedRows(to.qkv[part], *matrix, row);
        row += matrix->rows;
    }
    upload.rows(to.o, from.o);
    if (to.forecast.rows > 0) rotatedRows(to.forecast, from.forecast);
    if (to.ownForecast.rows > 0) rotatedRows(to.ownForecast, from.ownForecast);
    if (to.blockIndexer.projection.rows > 0) uploadIndexer(upload, to.blockIndexer, from.blockIndexer);
    if (to.indexer.query.rows > 0) uploadIndexer(upload, to.indexer, from.indexer);
    if (to.experts.router != nullptr)
        uploadExperts(upload, to.experts, from.moe);
    else
        uploadFeedForward(upload, to.mlp, from.mlp);
    upload.floats(to.inputNorm, from.inputNorm);
    upload.floats(to.postNorm, from.postNorm);
    if (to.qkvBias != nullptr) {
        rotatedFloats(to.qkvBias, from.queryDown.rows > 0 ? from.queryDownBias : from.qBias);
        rotatedFloats(to.qkvBias + first.rows, from.kBias);
        upload.floats(to.qkvBias + first.rows + from.k.rows, from.vBias);
        upload.floats(to.oBias, from.oBias);
    }
    rotatedFloats(to.headNorms.query, from.queryNorm);
    rotatedFloats(to.headNorms.key, from.keyNorm);
    upload.floats(to.eviction.delta, from.delta);
    upload.floats(to.eviction.gain, from.gain);
}

} // namespace

std::shared_ptr<const DeviceModel> DeviceModel::of(const std::shared_ptr<const Model>& model, const Progress& progress,
                                                   const Beside& beside) {
    static std::mutex mutex;
    static std::map<const Model*, std::weak_ptr<const DeviceModel>> uploaded;
    const std::lock_guard lock(mutex);
    if (auto known = uploaded[model.get()].lock()) return known;
    std::shared_ptr<DeviceModel> made(new DeviceModel(*model));
    made->planAll(model.get());
    made->takeAll();
    DeviceUpload upload; // takes its staging memory before anybody else does
    if (beside) beside(made);
    for (int i = 0; i < made->config.layers; ++i) {
        report(progress, double(i) / made->config.layers, "copying the weights to the GPU");
        const DeviceLayer& layer = made->layers[LayerId{i}];
        uploadLayer(upload, layer, model->layer(i), made->config);
        foldEvictionHead(layer, made->config);
    }
    upload.rows(made->embedding, model->embedding());
    if (model->lmHead().data != model->embedding().data) upload.rows(made->lmHead, model->lmHead());
    upload.floats(made->finalNorm, model->finalNorm());
    uploaded[model.get()] = made;
    return made;
}

std::shared_ptr<const DeviceModel> DeviceModel::shapesOf(const Model& model) {
    std::shared_ptr<DeviceModel> made(new DeviceModel(model));
    made->planAll(&model);
    return made;
}

std::shared_ptr<const DeviceModel> DeviceModel::firstLayers(std::shared_ptr<const DeviceModel> model, int layers) {
    std::shared_ptr<DeviceModel> made(new DeviceModel());
    made->config = model->config;
    made->config.layers = layers;
    made->layers.assign(model->layers.begin(), model->layers.begin() + layers);
    made->embedding = model->embedding;
    made->lmHead = model->lmHead;
    made->finalNorm = model->finalNorm;
    made->evictionHead = model->evictionHead;
    made->forecastHeads = model->forecastHeads;
    made->weightBytes = model->weightBytes;
    made->whole_ = std::move(model);
    return made;
}

std::shared_ptr<const DeviceModel> DeviceModel::random(const ModelConfig& config, bool evictionHead, std::uint64_t seed,
                                                       bool forecastHeads) {
    std::shared_ptr<DeviceModel> made(new DeviceModel());
    made->config = config;
    made->evictionHead = evictionHead;
    made->forecastHeads = forecastHeads;
    if (config.experts || config.latent)
        requireFit("random weights are made for heads of their own and dense feed-forwards alone");
    made->planAll(nullptr);
    made->takeAll();
    // Weights have the variance 1/inputs, so that activations stay near 1.
    const auto fill = [&](const cuda::DeviceMatrix& matrix) {
        cuda::fillNormal(const_cast<__nv_bfloat16*>(matrix.data), elements(matrix.rows, matrix.cols),
                         1.f / std::sqrt(float(matrix.cols)), seed++);
    };
    std::vector<float> ones(elements(config.hidden), 1.f);
    std::mt19937_64 generator(seed);
    std::normal_distribution<float> normal;
    for (const DeviceLayer& layer : made->layers) {
        for (const auto* matrix : {&layer.qkv.front(), &layer.o, &layer.mlp.gateUp, &layer.mlp.down}) fill(*matrix);
        for (const auto* matrix : {&layer.forecast, &layer.ownForecast})
            if (matrix->rows > 0) fill(*matrix);
        copyFloats(layer.inputNorm, ones);
        copyFloats(layer.postNorm, ones);
        if (evictionHead) {
            const int width = config.kvHeads * config.headDim;
            std::vector<float> delta(elements(config.kvHeads, width)), gain(elements(config.kvHeads), 1.f);
            for (float& value : delta) value = normal(generator) / std::sqrt(float(width));
            copyFloats(layer.eviction.delta, delta);
            copyFloats(layer.eviction.gain, gain);
            foldEvictionHead(layer, config);
        }
    }
    fill(made->embedding);
    fill(made->lmHead);
    copyFloats(made->finalNorm, ones);
    cuda::check(cudaDeviceSynchronize(), "making random weights");
    return made;
}

} // namespace kvscope
