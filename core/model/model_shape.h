// The numbers of a model that decide the bytes and operations of a decode step: published shapes by name, and the shape
// of a checkpoint.
#pragma once

#include "core/model/model_config.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kvscope {

class Model;

struct ModelShape {
    std::string name;
    int layers = 0, hidden = 0, queryHeads = 0, kvHeads = 0, headDim = 0, ffn = 0, vocab = 0;
    bool evictionHead = false;
    bool tiedEmbeddings = false; // the output head is the embedding
    double bytesPerWeight = 2;   // bf16; of quantised weights the mean, scales included

    /// Weights of one layer's projections: q, k, v, o, gate, up, down.
    std::int64_t layerWeights() const;
    /// Weights that every decode step reads: all projections and the output head.
    std::int64_t streamedWeights() const;
    /// Weights that lie in memory: the embedding too.
    std::int64_t storedWeights() const;
};

/// Published shapes.
std::span<const ModelShape> modelShapes();
/// @throws Error(BadInput) listing the known names
const ModelShape& findModelShape(std::string_view name);

/// The shape of a loaded model. bytesPerWeight is that of the query projection in layer 0.
ModelShape shapeOf(const Model& model);
/// One JSON object, as in key `model_shape` of a trace (docs/trace-format.md), and back. Nothing where a number is
/// missing or cannot be a model's.
std::string toJson(const ModelShape& shape);
std::optional<ModelShape> parseModelShape(std::string_view json);
/// The layer whose indexer chooses for each layer, as in key `index_leader` of a trace: one JSON array. Empty where
/// every layer chooses for itself.
std::string indexLeaders(const ModelConfig& config);
/// A Llama-architecture configuration of this shape, for models with random weights.
ModelConfig configOf(const ModelShape& shape, int maxPositions);

} // namespace kvscope
