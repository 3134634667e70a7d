#include "core/model/model_shape.h"

#include "core/model/model.h"
#include "kernels/base/error.h"

#include <fmt/format.h>
#include <vector>

namespace kvscope {

std::int64_t ModelShape::layerWeights() const {
    const std::int64_t query = std::int64_t(queryHeads) * headDim, keyValue = std::int64_t(kvHeads) * headDim;
    return hidden * (2 * query + 2 * keyValue + 3 * std::int64_t(ffn));
}

std::int64_t ModelShape::streamedWeights() const { return layers * layerWeights() + std::int64_t(vocab) * hidden; }

std::int64_t ModelShape::storedWeights() const {
    return streamedWeights() + (tiedEmbeddings ? 0 : std::int64_t(vocab) * hidden);
}

std::span<const ModelShape> modelShapes() {
    // NOSA: Table 3 of its paper. MiniCPM4, Llama 3, Qwen3: the config.json of their checkpoints.
    static const std::vector<ModelShape> shapes{
        {"nosa-1b", 28, 2048, 16, 2, 128, 6144, 73448, true},
        {"nosa-3b", 32, 2560, 32, 2, 128, 10240, 73448, true},
        {"nosa-8b", 32, 4096, 32, 2, 128, 16384, 73448, true},
        {"minicpm4-8b", 32, 4096, 32, 2, 128, 16384, 73448},
        {"llama3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256, false, true},
        {"llama3.2-3b", 28, 3072, 24, 8, 128, 8192, 128256, false, true},
        {"llama3-8b", 32, 4096, 32, 8, 128, 14336, 128256},
        {"qwen3-8b", 36, 4096, 32, 8, 128, 12288, 151936},
    };
    return shapes;
}

const ModelShape& findModelShape(std::string_view name) {
    std::string known;
    for (const ModelShape& shape : modelShapes()) {
        if (shape.name == name) return shape;
        known += fmt::format("{}{}", known.empty() ? "" : ", ", shape.name);
    }
    throw Error(ErrorKind::BadInput, fmt::format("unknown model shape '{}'", name), "known shapes: " + known);
}

ModelShape shapeOf(const Model& model) {
    const ModelConfig& c = model.config();
    const WeightMatrix& q = model.layer(0).q;
    return {model.name(),
            c.layers,
            c.hidden,
            c.queryHeads,
            c.kvHeads,
            c.headDim,
            c.ffn,
            c.vocab,
            model.hasEvictionHead(),
            c.tiedEmbeddings,
            double(q.bytes()) / (double(q.rows) * q.cols)};
}

ModelConfig configOf(const ModelShape& shape, int maxPositions) {
    ModelConfig config;
    config.architecture = "LlamaForCausalLM";
    config.modelType = "llama";
    config.layers = shape.layers;
    config.hidden = shape.hidden;
    config.queryHeads = shape.queryHeads;
    config.kvHeads = shape.kvHeads;
    config.headDim = shape.headDim;
    config.ffn = shape.ffn;
    config.vocab = shape.vocab;
    config.maxPositions = maxPositions;
    config.rmsNormEps = 1e-5f;
    config.rope.dim = config.headDim;
    return config;
}

} // namespace kvscope
