#include "bench/cuda/shapes.h"

#include "kernels/base/error.h"

#include <fmt/format.h>

namespace kvscope::bench {
namespace {

const ModelShape& find(std::string_view name) {
    std::string known;
    for (const ModelShape& shape : kModelShapes) {
        if (shape.name == name) return shape;
        known += fmt::format("{}{}", known.empty() ? "" : ", ", shape.name);
    }
    throw Error(ErrorKind::BadInput, fmt::format("unknown model shape '{}'", name), "known shapes: " + known);
}

} // namespace

ModelConfig shapeConfig(std::string_view name, int maxPositions) {
    const ModelShape& shape = find(name);
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

bool shapeHasEvictionHead(std::string_view name) { return find(name).evictionHead; }

} // namespace kvscope::bench
