#include "core/cuda/device_model.h"

#include "core/cuda/model_limits.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <map>
#include <mutex>
#include <random>

namespace kvscope {
namespace {

using Bf16 = __nv_bfloat16;

std::uint16_t roundToBf16(float value) {
    std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    if (std::isnan(value)) return 0x7fc0;
    bits += 0x7fff + (bits >> 16 & 1); // to nearest even
    return std::uint16_t(bits >> 16);
}

float halfToFloat(std::uint16_t raw) {
    const int exponent = raw >> 10 & 31, mantissa = raw & 1023;
    const float sign = raw & 0x8000 ? -1.f : 1.f;
    if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
    return sign *
           (exponent == 0 ? std::ldexp(float(mantissa), -24) : std::ldexp(float(mantissa + 1024), exponent - 25));
}

/// Row `row` of a checkpoint's matrix as bf16.
void rowToBf16(const WeightMatrix& w, int row, std::uint16_t* out) {
    const char* from = static_cast<const char*>(w.data) + std::size_t(row) * rowBytes(w.type, w.cols);
    if (w.type == DType::BF16) {
        std::memcpy(out, from, std::size_t(w.cols) * 2);
        return;
    }
    for (int c = 0; c < w.cols; ++c) {
        if (w.type == DType::F32) {
            float value;
            std::memcpy(&value, from + std::size_t(c) * 4, 4);
            out[c] = roundToBf16(value);
        } else {
            std::uint16_t half;
            std::memcpy(&half, from + std::size_t(c) * 2, 2);
            out[c] = roundToBf16(halfToFloat(half));
        }
    }
}

void copyToDevice(const void* to, const void* from, std::size_t bytes) {
    cuda::check(cudaMemcpy(const_cast<void*>(to), from, bytes, cudaMemcpyHostToDevice), "copying the weights");
}

/// Until there are kernels for blocks: unpacked to bf16 they would take several times the file's size.
void refuseQuantised(const Model& model) {
    const auto refuse = [](const WeightMatrix& w) {
        if (isQuantised(w.type))
            throw Error(ErrorKind::Unsupported,
                        fmt::format("the GPU backend does not compute from {} weights", nameOf(w.type)),
                        "use --backend cpu, or a bf16 file of the model");
    };
    refuse(model.embedding());
    refuse(model.lmHead());
    for (int i = 0; i < model.config().layers; ++i) {
        const LayerWeights& layer = model.layer(i);
        for (const auto* matrix :
             {&layer.q, &layer.k, &layer.v, &layer.o, &layer.mlp.gate, &layer.mlp.up, &layer.mlp.down})
            refuse(*matrix);
    }
}

void requireFit(const std::string& problem) {
    if (!problem.empty()) throw Error(ErrorKind::Unsupported, problem, "use --backend cpu");
}

} // namespace

struct DeviceModel::Raw {
    struct Layer {
        Bf16 *qkv = nullptr, *o = nullptr, *gateUp = nullptr, *down = nullptr, *forecast = nullptr,
             *ownForecast = nullptr;
        float *inputNorm = nullptr, *postNorm = nullptr, *qkvBias = nullptr, *oBias = nullptr, *delta = nullptr,
              *gain = nullptr, *queryNorm = nullptr, *keyNorm = nullptr;
    };
    std::vector<Layer> layers;
    Bf16 *embedding = nullptr, *lmHead = nullptr;
    float* finalNorm = nullptr;
};

DeviceModel::~DeviceModel() = default;

void DeviceModel::planAll(bool biases, bool tied) {
    requireFit(gpuProblem(config));
    raw_ = std::make_unique<Raw>();
    const auto size = [](int rows, int cols) { return std::size_t(rows) * std::size_t(cols); };
    const int qWidth = config.queryHeads * config.headDim, kvWidth = config.kvHeads * config.headDim;
    constexpr const char* kWhat = "weights";
    raw_->layers.resize(std::size_t(config.layers));
    for (auto& layer : raw_->layers) {
        arena_.plan(layer.qkv, size(qWidth + 2 * kvWidth, config.hidden), kWhat);
        arena_.plan(layer.o, size(config.hidden, qWidth), kWhat);
        arena_.plan(layer.gateUp, size(2 * config.ffn, config.hidden), kWhat);
        arena_.plan(layer.down, size(config.hidden, config.ffn), kWhat);
        arena_.plan(layer.inputNorm, std::size_t(config.hidden), kWhat);
        arena_.plan(layer.postNorm, std::size_t(config.hidden), kWhat);
        if (biases) {
            arena_.plan(layer.qkvBias, std::size_t(qWidth + 2 * kvWidth), kWhat);
            arena_.plan(layer.oBias, std::size_t(config.hidden), kWhat);
        }
        if (config.queryKeyNorm) {
            arena_.plan(layer.queryNorm, std::size_t(config.headDim), kWhat);
            arena_.plan(layer.keyNorm, std::size_t(config.headDim), kWhat);
        }
        if (evictionHead) {
            arena_.plan(layer.delta, size(config.kvHeads, kvWidth), kWhat);
            arena_.plan(layer.gain, std::size_t(config.kvHeads), kWhat);
        }
        if (forecastHeads && &layer != &raw_->layers.back())
            arena_.plan(layer.forecast, size(kvWidth, config.hidden), kWhat);
        if (forecastHeads && &layer == &raw_->layers.front())
            arena_.plan(layer.ownForecast, size(kvWidth, config.hidden), kWhat);
    }
    arena_.plan(raw_->embedding, size(config.vocab, config.hidden), kWhat);
    if (!tied) arena_.plan(raw_->lmHead, size(config.vocab, config.hidden), kWhat);
    arena_.plan(raw_->finalNorm, std::size_t(config.hidden), kWhat);
    arena_.take();
    for (const auto& from : raw_->layers) {
        DeviceLayer layer;
        layer.qkv = {from.qkv, qWidth + 2 * kvWidth, config.hidden};
        layer.o = {from.o, config.hidden, qWidth};
        layer.gateUp = {from.gateUp, 2 * config.ffn, config.hidden};
        layer.down = {from.down, config.hidden, config.ffn};
        if (from.forecast != nullptr) layer.forecast = {from.forecast, kvWidth, config.hidden};
        if (from.ownForecast != nullptr) layer.ownForecast = {from.ownForecast, kvWidth, config.hidden};
        layer.inputNorm = from.inputNorm;
        layer.postNorm = from.postNorm;
        layer.qkvBias = from.qkvBias;
        layer.oBias = from.oBias;
        layer.eviction = {from.delta, from.gain};
        layer.headNorms = {from.queryNorm, from.keyNorm, config.rmsNormEps};
        for (const auto* matrix : {&layer.qkv, &layer.o, &layer.gateUp, &layer.down})
            weightBytes += size(matrix->rows, matrix->cols) * sizeof(Bf16);
        layers.push_back(layer);
    }
    embedding = {raw_->embedding, config.vocab, config.hidden};
    lmHead = tied ? embedding : cuda::DeviceMatrix{raw_->lmHead, config.vocab, config.hidden};
    weightBytes += size(config.vocab, config.hidden) * sizeof(Bf16);
    finalNorm = raw_->finalNorm;
}

std::shared_ptr<const DeviceModel> DeviceModel::of(const std::shared_ptr<const Model>& model,
                                                   const Progress& progress) {
    static std::mutex mutex;
    static std::map<const Model*, std::weak_ptr<const DeviceModel>> uploaded;
    const std::lock_guard lock(mutex);
    if (auto known = uploaded[model.get()].lock()) return known;
    std::shared_ptr<DeviceModel> made(new DeviceModel());
    requireFit(gpuProblem(*model));
    made->config = model->config();
    made->evictionHead = model->hasEvictionHead();
    made->forecastHeads = model->hasForecastHeads();
    bool biases = false;
    for (int i = 0; i < made->config.layers; ++i) {
        const LayerWeights& layer = model->layer(i);
        biases |= !layer.qBias.empty() || !layer.kBias.empty() || !layer.vBias.empty() || !layer.oBias.empty();
    }
    refuseQuantised(*model);
    made->planAll(biases, model->lmHead().data == model->embedding().data);

    std::vector<std::uint16_t> staged;
    // Rows of several matrices, each at the row `place` gives it.
    const auto upload = [&](const void* to, std::initializer_list<const WeightMatrix*> parts, auto place) {
        int rows = 0;
        for (const auto* part : parts) rows += part->rows;
        const auto cols = std::size_t((*parts.begin())->cols);
        staged.resize(std::size_t(rows) * cols);
        int index = 0;
        for (const auto* part : parts) {
            for (int row = 0; row < part->rows; ++row)
                rowToBf16(*part, row, staged.data() + std::size_t(place(index, row)) * cols);
            ++index;
        }
        copyToDevice(to, staged.data(), staged.size() * 2);
    };
    const auto floats = [&](const float* to, const std::vector<float>& from) {
        if (!from.empty()) copyToDevice(to, from.data(), from.size() * sizeof(float));
    };
    const auto asIs = [](int, int row) { return row; };
    for (int i = 0; i < made->config.layers; ++i) {
        report(progress, double(i) / made->config.layers, "copying the weights to the GPU");
        const LayerWeights& from = model->layer(i);
        const Raw::Layer& to = made->raw_->layers[std::size_t(i)];
        const int starts[] = {0, from.q.rows, from.q.rows + from.k.rows};
        upload(to.qkv, {&from.q, &from.k, &from.v}, [&](int part, int row) { return starts[part] + row; });
        upload(to.o, {&from.o}, asIs);
        upload(to.gateUp, {&from.mlp.gate, &from.mlp.up},
               [](int part, int row) { return cuda::interleavedRow(row, part == 1); });
        upload(to.down, {&from.mlp.down}, asIs);
        if (to.forecast != nullptr) upload(to.forecast, {&from.forecast}, asIs);
        if (to.ownForecast != nullptr) upload(to.ownForecast, {&from.ownForecast}, asIs);
        floats(to.inputNorm, from.inputNorm);
        floats(to.postNorm, from.postNorm);
        if (biases) {
            floats(to.qkvBias, from.qBias);
            floats(to.qkvBias + starts[1], from.kBias);
            floats(to.qkvBias + starts[2], from.vBias);
            floats(to.oBias, from.oBias);
        }
        floats(to.queryNorm, from.queryNorm);
        floats(to.keyNorm, from.keyNorm);
        floats(to.delta, from.delta);
        floats(to.gain, from.gain);
    }
    upload(made->raw_->embedding, {&model->embedding()}, asIs);
    if (made->raw_->lmHead != nullptr) upload(made->raw_->lmHead, {&model->lmHead()}, asIs);
    floats(made->raw_->finalNorm, model->finalNorm());
    uploaded[model.get()] = made;
    return made;
}

std::shared_ptr<const DeviceModel> DeviceModel::random(const ModelConfig& config, bool evictionHead, std::uint64_t seed,
                                                       bool forecastHeads) {
    std::shared_ptr<DeviceModel> made(new DeviceModel());
    made->config = config;
    made->evictionHead = evictionHead;
    made->forecastHeads = forecastHeads;
    made->planAll(false, false);
    // Activations stay near 1: weights of variance 1/inputs.
    const auto fill = [&](const cuda::DeviceMatrix& matrix) {
        cuda::fillNormal(const_cast<Bf16*>(matrix.data), std::size_t(matrix.rows) * std::size_t(matrix.cols),
                         1.f / std::sqrt(float(matrix.cols)), seed++);
    };
    std::vector<float> ones(std::size_t(config.hidden), 1.f);
    std::mt19937_64 generator(seed);
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < made->layers.size(); ++i) {
        const DeviceLayer& layer = made->layers[i];
        for (const auto* matrix : {&layer.qkv, &layer.o, &layer.gateUp, &layer.down}) fill(*matrix);
        for (const auto* matrix : {&layer.forecast, &layer.ownForecast})
            if (matrix->rows > 0) fill(*matrix);
        copyToDevice(layer.inputNorm, ones.data(), ones.size() * sizeof(float));
        copyToDevice(layer.postNorm, ones.data(), ones.size() * sizeof(float));
        if (evictionHead) {
            const int width = config.kvHeads * config.headDim;
            std::vector<float> delta(std::size_t(config.kvHeads * width)), gain(std::size_t(config.kvHeads), 1.f);
            for (float& value : delta) value = normal(generator) / std::sqrt(float(width));
            copyToDevice(layer.eviction.delta, delta.data(), delta.size() * sizeof(float));
            copyToDevice(layer.eviction.gain, gain.data(), gain.size() * sizeof(float));
        }
    }
    fill(made->embedding);
    fill(made->lmHead);
    copyToDevice(made->finalNorm, ones.data(), ones.size() * sizeof(float));
    cuda::check(cudaDeviceSynchronize(), "making random weights");
    return made;
}

} // namespace kvscope
