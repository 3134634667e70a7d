#include "core/engine/cpu/cpu_projections.h"

#include <algorithm>

namespace kvscope {
namespace {

const float* orNull(const std::vector<float>& values) { return values.empty() ? nullptr : values.data(); }

} // namespace

CpuProjections::CpuProjections(Kernels& kernels, const Model& model, std::size_t rows, const Abilities& needs)
    : kernels_(kernels), model_(model), config_(model.config()) {
    const auto buffer = [&](int heads, int channels) {
        return AlignedBuffer<float>(Extents<int, int, int>(int(rows), heads, channels).size());
    };
    q_ = buffer(config_.queryHeads, config_.headDim);
    k_ = buffer(config_.kvHeads, config_.headDim);
    attended_ = buffer(config_.queryHeads, config_.valueDim());
    if (needs.input) input_ = buffer(1, config_.hidden);
    if (needs.plain) {
        unrotatedQ_ = AlignedBuffer<float>(q_.size());
        unrotatedK_ = AlignedBuffer<float>(k_.size());
    }
    if (!config_.latent) {
        v_ = buffer(config_.kvHeads, config_.headDim);
        scores_ = buffer(config_.kvHeads, 1);
        return;
    }
    plainQ_ = buffer(config_.queryHeads, config_.queryDim());
    queryLatent_ = buffer(1, config_.latent->queryRank);
    output_ = buffer(config_.queryHeads, config_.outputDim());
}

TokenRows CpuProjections::rows() {
    const auto ifKept = [](const AlignedBuffer<float>& buffer) { return buffer.size() > 0 ? buffer.data() : nullptr; };
    return {q_.data(),
            k_.data(),
            config_.latent ? nullptr : v_.data(),
            model_.hasEvictionHead() ? scores_.data() : nullptr,
            attended_.data(),
            ifKept(unrotatedQ_),
            ifKept(unrotatedK_),
            ifKept(input_),
            ifKept(queryLatent_)};
}

void CpuProjections::project(LayerId layer, const float* x, int n) {
    const LayerWeights& weights = model_.layer(int(layer));
    if (input_.size() > 0) {
        std::copy_n(x, Extents<int, int>(n, config_.hidden).size(), input_.data());
        kernels_.norm(
            {input_.data(), n, 1, config_.hidden, config_.hidden, weights.inputNorm.data(), config_.streamNormEps()});
    }
    if (config_.latent)
        projectLatent(weights, x, n);
    else
        projectHeads(weights, x, n);
}

void CpuProjections::projectHeads(const LayerWeights& weights, const float* x, int n) {
    const int qWidth = config_.queryHeads * config_.headDim, kvWidth = config_.kvHeads * config_.headDim;
    const LinearTarget targets[] = {{weights.q, orNull(weights.qBias), q_.data(), qWidth, false},
                                    {weights.k, orNull(weights.kBias), k_.data(), kvWidth, false},
                                    {weights.v, orNull(weights.vBias), v_.data(), kvWidth, false}};
    kernels_.linear({x, n, config_.hidden, weights.inputNorm.data(), config_.streamNormEps(), targets});
    if (model_.hasEvictionHead())
        kernels_.evictionScore({v_.data(), n, config_.kvHeads, config_.headDim, kvWidth, weights.delta.data(),
                                weights.gain.data(), scores_.data()});
}

void CpuProjections::projectValues(LayerId layer, const float* x, int n) {
    const LayerWeights& weights = model_.layer(int(layer));
    const LinearTarget target{weights.v, orNull(weights.vBias), v_.data(), config_.kvHeads * config_.headDim, false};
    kernels_.linear({x, n, config_.hidden, weights.inputNorm.data(), config_.streamNormEps(), {&target, 1}});
}

void CpuProjections::output(LayerId layer, float* out, int n) {
    const LayerWeights& weights = model_.layer(int(layer));
    const LinearTarget target{weights.o, orNull(weights.oBias), out, config_.hidden, false};
    kernels_.linear({attended_.data(), n, config_.queryHeads * config_.outputDim(), nullptr, 0.f, {&target, 1}});
}

void CpuProjections::projectLatent(const LayerWeights& weights, const float* x, int n) {
    const LatentAttention& latent = *config_.latent;
    const int qWidth = config_.queryHeads * config_.queryDim(), keyWidth = config_.headDim;
    const LinearTarget key{weights.k, orNull(weights.kBias), k_.data(), keyWidth, false};
    if (latent.queryRank == 0) {
        const LinearTarget targets[] = {{weights.q, nullptr, plainQ_.data(), qWidth, false}, key};
        kernels_.linear({x, n, config_.hidden, weights.inputNorm.data(), config_.streamNormEps(), targets});
    } else {
        const LinearTarget down[] = {
            {weights.queryDown, orNull(weights.queryDownBias), queryLatent_.data(), latent.queryRank, false}, key};
        kernels_.linear({x, n, config_.hidden, weights.inputNorm.data(), config_.streamNormEps(), down});
        const LinearTarget up[] = {{weights.q, nullptr, plainQ_.data(), qWidth, false}};
        kernels_.linear({queryLatent_.data(), n, latent.queryRank, weights.queryDownNorm.data(), latent.normEps, up});
    }
    kernels_.norm({k_.data(), n, 1, latent.rank, keyWidth, weights.latentNorm.data(), latent.normEps});
    absorb(weights, n);
}

/// Takes the queries into the latent space: [nope | rope] becomes [latent | rope].
void CpuProjections::absorb(const LayerWeights& weights, int n) {
    const LatentAttention& latent = *config_.latent;
    const int heads = config_.queryHeads, from = config_.queryDim(), to = config_.headDim;
    HeadLinearArgs args;
    args.n = n;
    args.heads = heads;
    args.x = plainQ_.data();
    args.xStride = heads * from;
    args.xHeadStride = from;
    args.weight = weights.keyUp;
    args.headBytes = weights.keyUp.bytes();
    args.y = q_.data();
    args.yStride = heads * to;
    args.yHeadStride = to;
    kernels_.headLinear(args);
    const Extents<int, int, int> fromAt(n, heads, from), toAt(n, heads, to);
    kernels_.forEach(n, [&](int row) {
        for (int h = 0; h < heads; ++h)
            std::copy_n(plainQ_.data() + fromAt.first(row, h) + latent.nopeDim, latent.ropeDim,
                        q_.data() + toAt.first(row, h) + latent.rank);
    });
}

void CpuProjections::rotate(LayerId layer, int n, std::span<const std::int32_t> rows, const float* cos,
                            const float* sin) {
    const LayerWeights& weights = model_.layer(int(layer));
    const int qWidth = config_.queryHeads * config_.headDim, kvWidth = config_.kvHeads * config_.headDim;
    if (config_.queryKeyNorm) {
        kernels_.norm(
            {q_.data(), n, config_.queryHeads, config_.headDim, qWidth, weights.queryNorm.data(), config_.rmsNormEps});
        kernels_.norm(
            {k_.data(), n, config_.kvHeads, config_.headDim, kvWidth, weights.keyNorm.data(), config_.rmsNormEps});
    }
    if (unrotatedQ_.size() > 0) { // copies after the head norms and before the rotation
        std::copy_n(q_.data(), Extents<int, int>(n, qWidth).size(), unrotatedQ_.data());
        std::copy_n(k_.data(), Extents<int, int>(n, kvWidth).size(), unrotatedK_.data());
    }
    RopeArgs args;
    args.n = n;
    args.dim = config_.headDim;
    args.positions = rows.data();
    args.cos = cos;
    args.sin = sin;
    args.first = config_.latent ? config_.latent->rank : 0;
    args.rotary = config_.rope.dim;
    args.interleaved = config_.rope.interleaved;
    args.x = q_.data();
    args.heads = config_.queryHeads;
    args.stride = qWidth;
    kernels_.rope(args);
    args.x = k_.data();
    args.heads = config_.kvHeads;
    args.stride = kvWidth;
    kernels_.rope(args);
}

void CpuProjections::finish(LayerId layer, float* x, int n) {
    const LayerWeights& weights = model_.layer(int(layer));
    const int width = config_.queryHeads * config_.outputDim();
    const float* input = attended_.data();
    if (config_.latent) {
        HeadLinearArgs args;
        args.n = n;
        args.heads = config_.queryHeads;
        args.x = attended_.data();
        args.xStride = config_.queryHeads * config_.valueDim();
        args.xHeadStride = config_.valueDim();
        args.weight = weights.valueUp;
        args.headBytes = weights.valueUpHeadBytes;
        args.y = output_.data();
        args.yStride = width;
        args.yHeadStride = config_.outputDim();
        kernels_.headLinear(args);
        input = output_.data();
    }
    const LinearTarget target{weights.o, orNull(weights.oBias), x, config_.hidden, true};
    kernels_.linear({input, n, width, nullptr, 0.f, {&target, 1}});
}

} // namespace kvscope
