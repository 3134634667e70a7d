#include "core/cuda/device_model.h"

#include "core/cuda/device_upload.h"
#include "core/cuda/model_limits.h"
#include "kernels/cuda/packed.h"

#include <cmath>
#include <cuda_runtime_api.h>
#include <map>
#include <mutex>
#include <random>

namespace kvscope {
namespace {

constexpr const char* kWhat = "weights";

void requireFit(const std::string& problem) {
    if (!problem.empty()) throw Error(ErrorKind::Unsupported, problem, "use --backend cpu");
}

DType typeOf(const WeightMatrix* w) { return w == nullptr ? DType::BF16 : deviceType(*w); }

bool hasAttentionBiases(const Model& model) {
    for (int i = 0; i < model.config().layers; ++i) {
        const LayerWeights& layer = model.layer(i);
        if (!layer.qBias.empty() || !layer.kBias.empty() || !layer.vBias.empty() || !layer.oBias.empty()) return true;
    }
    return false;
}

void copyFloats(const float* to, const std::vector<float>& from) {
    cuda::check(cudaMemcpy(const_cast<float*>(to), from.data(), from.size() * sizeof(float), cudaMemcpyHostToDevice),
                "making random weights");
}

} // namespace

void DeviceModel::planFloats(const float*& to, std::size_t count) {
    arena_.plan(const_cast<float*&>(to), count, kWhat);
}

void DeviceModel::planPacked(cuda::DeviceMatrix& matrix, DType type, int rows, int cols, int count) {
    matrix.rows = rows;
    matrix.cols = cols;
    matrix.type = type;
    arena_.plan(const_cast<std::byte*&>(matrix.packed), cuda::packedBytes(type, rows, cols) * std::size_t(count),
                kWhat);
}

void DeviceModel::planMatrix(cuda::DeviceMatrix& matrix, DType type, int rows, int cols) {
    if (isQuantised(type)) return planPacked(matrix, type, rows, cols);
    matrix.rows = rows;
    matrix.cols = cols;
    arena_.plan(const_cast<__nv_bfloat16*&>(matrix.data), std::size_t(rows) * std::size_t(cols), kWhat);
}

/// from: null for random weights.
void DeviceModel::planLayer(DeviceLayer& layer, const LayerWeights* from, bool experts, bool biases) {
    const int qWidth = config.queryHeads * config.headDim, kvWidth = config.kvHeads * config.headDim;
    const auto hidden = std::size_t(config.hidden);
    struct Part {
        DType type;
        int rows;
    };
    std::vector<Part> parts;
    for (const Part& part : {Part{typeOf(from ? &from->q : nullptr), qWidth},
                             {typeOf(from ? &from->k : nullptr), kvWidth},
                             {typeOf(from ? &from->v : nullptr), kvWidth}}) {
        if (!parts.empty() && parts.back().type == part.type)
            parts.back().rows += part.rows;
        else
            parts.push_back(part);
    }
    layer.qkv.resize(parts.size()); // the arena fills it in later: it stays where it is from here on
    for (std::size_t i = 0; i < parts.size(); ++i)
        planMatrix(layer.qkv[i], parts[i].type, parts[i].rows, config.hidden);
    planMatrix(layer.o, typeOf(from ? &from->o : nullptr), config.hidden, qWidth);
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
        planFloats(to.router, std::size_t(e.count + (e.sharedGate ? 1 : 0)) * hidden);
        if (!from->moe.choiceBias.empty()) planFloats(to.choiceBias, std::size_t(e.count));
        planPacked(to.gateUp, deviceType(first.gate, first.up), 2 * e.width, config.hidden, e.count);
        planPacked(to.down, deviceType(first.down), config.hidden, e.width, e.count);
        to.gateUpBytes = to.gateUp.bytes();
        to.downBytes = to.down.bytes();
        if (from->moe.shared.gate.rows > 0) planFeedForward(to.shared, &from->moe.shared, e.sharedWidth);
    }
    planFloats(layer.inputNorm, hidden);
    planFloats(layer.postNorm, hidden);
    if (biases) {
        planFloats(layer.qkvBias, std::size_t(qWidth + 2 * kvWidth));
        planFloats(layer.oBias, hidden);
    }
    if (config.queryKeyNorm) {
        planFloats(layer.headNorms.query, std::size_t(config.headDim));
        planFloats(layer.headNorms.key, std::size_t(config.headDim));
        layer.headNorms.eps = config.rmsNormEps;
    }
    if (evictionHead) {
        planFloats(layer.eviction.delta, std::size_t(config.kvHeads) * std::size_t(kvWidth));
        planFloats(layer.eviction.gain, std::size_t(config.kvHeads));
    }
}

void DeviceModel::planAll(const Model* from) {
    requireFit(from != nullptr ? gpuProblem(*from) : gpuProblem(config));
    const bool biases = from != nullptr && hasAttentionBiases(*from);
    layers.resize(std::size_t(config.layers));
    for (int i = 0; i < config.layers; ++i)
        planLayer(layers[std::size_t(i)], from != nullptr ? &from->layer(i) : nullptr, config.hasExperts(i), biases);
    planMatrix(embedding, typeOf(from != nullptr ? &from->embedding() : nullptr), config.vocab, config.hidden);
    const bool tied = from != nullptr && from->lmHead().data == from->embedding().data;
    if (!tied) planMatrix(lmHead, typeOf(from != nullptr ? &from->lmHead() : nullptr), config.vocab, config.hidden);
    planFloats(finalNorm, std::size_t(config.hidden));
    arena_.take();
    if (tied) lmHead = embedding;
    weightBytes = lmHead.bytes();
    for (const DeviceLayer& layer : layers) {
        for (const auto& matrix : layer.qkv) weightBytes += matrix.bytes();
        for (const DeviceFeedForward* mlp : {&layer.mlp, &layer.experts.shared})
            weightBytes += mlp->gateUp.bytes() + mlp->down.bytes();
        weightBytes += layer.o.bytes();
        if (layer.experts.router != nullptr)
            weightBytes += std::size_t(config.experts->used) * (layer.experts.gateUpBytes + layer.experts.downBytes);
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
        upload.asFloats(to.router + std::size_t(from.router.rows) * std::size_t(from.router.cols), from.sharedGate);
    upload.floats(to.choiceBias, from.choiceBias);
    cuda::DeviceMatrix gateUp = to.gateUp, down = to.down;
    for (const FeedForwardWeights& expert : from.experts) {
        uploadFeedForward(upload, {gateUp, down}, expert);
        gateUp.packed += to.gateUpBytes;
        down.packed += to.downBytes;
    }
    if (to.shared.down.rows > 0) uploadFeedForward(upload, to.shared, from.shared);
}

void uploadLayer(DeviceUpload& upload, const DeviceLayer& to, const LayerWeights& from) {
    std::size_t part = 0;
    int row = 0; // within the part
    for (const WeightMatrix* matrix : {&from.q, &from.k, &from.v}) {
        if (row == to.qkv[part].rows) ++part, row = 0;
        upload.rows(to.qkv[part], *matrix, row);
        row += matrix->rows;
    }
    upload.rows(to.o, from.o);
    if (to.experts.router != nullptr)
        uploadExperts(upload, to.experts, from.moe);
    else
        uploadFeedForward(upload, to.mlp, from.mlp);
    upload.floats(to.inputNorm, from.inputNorm);
    upload.floats(to.postNorm, from.postNorm);
    if (to.qkvBias != nullptr) {
        upload.floats(to.qkvBias, from.qBias);
        upload.floats(to.qkvBias + from.q.rows, from.kBias);
        upload.floats(to.qkvBias + from.q.rows + from.k.rows, from.vBias);
        upload.floats(to.oBias, from.oBias);
    }
    upload.floats(to.headNorms.query, from.queryNorm);
    upload.floats(to.headNorms.key, from.keyNorm);
    upload.floats(to.eviction.delta, from.delta);
    upload.floats(to.eviction.gain, from.gain);
}

} // namespace

std::shared_ptr<const DeviceModel> DeviceModel::of(const std::shared_ptr<const Model>& model,
                                                   const Progress& progress) {
    static std::mutex mutex;
    static std::map<const Model*, std::weak_ptr<const DeviceModel>> uploaded;
    const std::lock_guard lock(mutex);
    if (auto known = uploaded[model.get()].lock()) return known;
    std::shared_ptr<DeviceModel> made(new DeviceModel());
    made->config = model->config();
    made->evictionHead = model->hasEvictionHead();
    made->planAll(model.get());
    DeviceUpload upload;
    for (int i = 0; i < made->config.layers; ++i) {
        report(progress, double(i) / made->config.layers, "copying the weights to the GPU");
        uploadLayer(upload, made->layers[std::size_t(i)], model->layer(i));
    }
    upload.rows(made->embedding, model->embedding());
    if (model->lmHead().data != model->embedding().data) upload.rows(made->lmHead, model->lmHead());
    upload.floats(made->finalNorm, model->finalNorm());
    uploaded[model.get()] = made;
    return made;
}

std::shared_ptr<const DeviceModel> DeviceModel::random(const ModelConfig& config, bool evictionHead,
                                                       std::uint64_t seed) {
    std::shared_ptr<DeviceModel> made(new DeviceModel());
    made->config = config;
    made->evictionHead = evictionHead;
    if (config.experts) requireFit("random weights are made for dense feed-forwards alone");
    made->planAll(nullptr);
    // Activations stay near 1: weights of variance 1/inputs.
    const auto fill = [&](const cuda::DeviceMatrix& matrix) {
        cuda::fillNormal(const_cast<__nv_bfloat16*>(matrix.data), std::size_t(matrix.rows) * std::size_t(matrix.cols),
                         1.f / std::sqrt(float(matrix.cols)), seed++);
    };
    std::vector<float> ones(std::size_t(config.hidden), 1.f);
    std::mt19937_64 generator(seed);
    std::normal_distribution<float> normal;
    for (const DeviceLayer& layer : made->layers) {
        for (const auto* matrix : {&layer.qkv.front(), &layer.o, &layer.mlp.gateUp, &layer.mlp.down}) fill(*matrix);
        copyFloats(layer.inputNorm, ones);
        copyFloats(layer.postNorm, ones);
        if (evictionHead) {
            const int width = config.kvHeads * config.headDim;
            std::vector<float> delta(std::size_t(config.kvHeads * width)), gain(std::size_t(config.kvHeads), 1.f);
            for (float& value : delta) value = normal(generator) / std::sqrt(float(width));
            copyFloats(layer.eviction.delta, delta);
            copyFloats(layer.eviction.gain, gain);
        }
    }
    fill(made->embedding);
    fill(made->lmHead);
    copyFloats(made->finalNorm, ones);
    cuda::check(cudaDeviceSynchronize(), "making random weights");
    return made;
}

} // namespace kvscope
