// Locret's retaining heads: what each token's query, key and value say about how strongly later tokens will attend to
// it.
#pragma once

#include "core/model/model.h"

#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvscope::select {

/// One two-layer perceptron for each layer, without biases. locret.safetensors holds them under the names of Locret's
/// checkpoints:
///   model.layers.N.self_attn.fc1.weight   [width, (queryHeads + 2 kvHeads) * headDim]
///   model.layers.N.self_attn.fc2.weight   [kvHeads, width]
struct RetainingHeads {
    int layers = 0, inputs = 0, width = 0, kvHeads = 0;
    std::vector<float> in, out; // [layers, width, inputs], [layers, kvHeads, width]

    static int inputsOf(const ModelConfig& config) { return (config.queryHeads + 2 * config.kvHeads) * config.headDim; }
    std::span<const float> inOf(int layer) const { return std::span(in).subspan(at(layer, inputs), size(inputs)); }
    std::span<const float> outOf(int layer) const { return std::span(out).subspan(at(layer, kvHeads), size(kvHeads)); }

    /// scores[n, kvHeads] of n tokens, the higher the longer a token should be kept. rows: [n, inputs] query, key and
    /// value of all heads side by side, before rotation; hidden: scratch, [n, width] afterwards.
    void score(Kernels& kernels, int layer, const float* rows, int n, std::vector<float>& hidden, float* scores) const;

private:
    std::size_t size(int side) const { return std::size_t(width) * std::size_t(side); }
    std::size_t at(int layer, int side) const { return std::size_t(layer) * size(side); }
};

/// x * sigmoid(x), the activation of the released code.
float silu(float x);

inline constexpr const char* kRetainingFile = "locret.safetensors";

/// @throws Error naming the file and the tensor
RetainingHeads readRetainingHeads(const std::string& path, const ModelConfig& config);
/// The file beside the model or compiled in with it; nothing where there is none. @throws Error likewise
std::optional<RetainingHeads> findRetainingHeads(const Model& model);
bool hasRetainingHeads(const Model& model);
/// @throws Error(Storage) naming the file
void writeRetainingHeads(const std::string& path, const RetainingHeads& heads);

} // namespace kvscope::select
