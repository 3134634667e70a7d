// Locret's retaining heads: what each token's query, key and value say about how strongly later tokens will attend to
// it.
#pragma once

#include "base/extents.h"
#include "base/ids.h"
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
    std::span<const float> inOf(LayerId layer) const {
        return Extents<LayerId, int, int>(layers, width, inputs).part(std::span(in), layer);
    }
    std::span<const float> outOf(LayerId layer) const {
        return Extents<LayerId, KvHeadId, int>(layers, kvHeads, width).part(std::span(out), layer);
    }

    /// scores[n, kvHeads] of n tokens, the higher the longer a token should be kept. rows: [n, inputs] query, key and
    /// value of all heads side by side, before rotation; hidden: scratch, [n, width] afterwards.
    void score(Kernels& kernels, LayerId layer, const float* rows, int n, std::vector<float>& hidden,
               float* scores) const;
};

/// x * sigmoid(x), the activation of the released code.
float silu(float x);

inline constexpr const char* kRetainingFile = "locret.safetensors";

/// @throws Error naming the file and the tensor
RetainingHeads readRetainingHeads(const std::string& path, const ModelConfig& config);
/// Reads the file beside the model or compiled in with it; nothing where there is none. @throws Error as above
std::optional<RetainingHeads> findRetainingHeads(const Model& model);
bool hasRetainingHeads(const Model& model);
/// @throws Error(Storage) naming the file
void writeRetainingHeads(const std::string& path, const RetainingHeads& heads);

} // namespace kvscope::select
