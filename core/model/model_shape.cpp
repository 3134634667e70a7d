#include "core/model/model_shape.h"

#include "base/error.h"
#include "base/json_reading.h"
#include "core/model/model.h"

#include <algorithm>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
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

namespace {

struct ShapeNumber {
    const char* key;
    int ModelShape::*value;
};
constexpr ShapeNumber kShapeNumbers[]{
    {"layers", &ModelShape::layers},    {"hidden", &ModelShape::hidden},    {"query_heads", &ModelShape::queryHeads},
    {"kv_heads", &ModelShape::kvHeads}, {"head_dim", &ModelShape::headDim}, {"ffn", &ModelShape::ffn},
    {"vocab", &ModelShape::vocab}};
constexpr int kLargestNumber = 1 << 24; // of any of them: products stay far inside 64 bits

} // namespace

std::string toJson(const ModelShape& shape) {
    nlohmann::ordered_json out{{"name", shape.name}};
    for (const ShapeNumber& number : kShapeNumbers) out[number.key] = shape.*number.value;
    out["eviction_head"] = shape.evictionHead;
    out["tied_embeddings"] = shape.tiedEmbeddings;
    out["bytes_per_weight"] = shape.bytesPerWeight;
    return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<ModelShape> parseModelShape(std::string_view text) {
    const nlohmann::json json = parseJson(text);
    ModelShape shape;
    const nlohmann::json &name = member(json, "name"), &bytes = member(json, "bytes_per_weight"),
                         &eviction = member(json, "eviction_head"), &tied = member(json, "tied_embeddings");
    if (name.is_string()) shape.name = name.get<std::string>();
    for (const ShapeNumber& number : kShapeNumbers) {
        const nlohmann::json& value = member(json, number.key);
        if (!value.is_number_integer()) return std::nullopt;
        const auto given = value.get<std::int64_t>();
        const bool mayBeNone = number.value == &ModelShape::ffn; // a mixture of experts has none of its own
        if (given < (mayBeNone ? 0 : 1) || given > kLargestNumber) return std::nullopt;
        shape.*number.value = int(given);
    }
    if (eviction.is_boolean()) shape.evictionHead = eviction.get<bool>();
    if (tied.is_boolean()) shape.tiedEmbeddings = tied.get<bool>();
    if (bytes.is_number()) shape.bytesPerWeight = bytes.get<double>();
    if (!(shape.bytesPerWeight > 0 && shape.bytesPerWeight <= 8)) return std::nullopt;
    return shape;
}

std::string indexLeaders(const ModelConfig& config) {
    if (!config.indexer) return {};
    std::vector<int> leaders;
    for (int layer = 0; layer < config.layers; ++layer)
        leaders.push_back(config.indexer->runsIn(layer) ? layer : leaders.back());
    const bool shares =
        std::find(config.indexer->shared.begin(), config.indexer->shared.end(), true) != config.indexer->shared.end();
    return shares ? nlohmann::json(leaders).dump() : std::string();
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
