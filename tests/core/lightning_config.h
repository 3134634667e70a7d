// Small models with lightning indexers, of a size that the GPU's kernels take.
#pragma once

#include "tests/core/random_checkpoint.h"
#include "tests/support/places.h"

#include <fstream>
#include <string>

namespace kvscope::test {

/// The config.json of a small model of the form of tests/golden/sparse/<golden>: `deepseek32` has two layers with
/// experts, halves that pair in its indexers and 512 latent and 64 rotated channels; `glm-dsa-shared` four layers
/// without experts, of which two share the first one's choice, neighbours that pair, biases and 256 + 32 channels.
inline nlohmann::json lightningConfig(const std::string& golden,
                                      const nlohmann::json& changes = nlohmann::json::object()) {
    std::ifstream file(source("tests/golden/sparse/" + golden + "/config.json"));
    auto config = nlohmann::json::parse(file);
    const bool large = golden == "deepseek32";
    config.update({{"hidden_size", 256},
                   {"intermediate_size", 192},
                   {"moe_intermediate_size", 64},
                   {"num_attention_heads", large ? 20 : 8},
                   {"num_key_value_heads", large ? 20 : 8},
                   {"q_lora_rank", 96},
                   {"kv_lora_rank", large ? 512 : 256},
                   {"qk_rope_head_dim", large ? 64 : 32},
                   {"head_dim", large ? 64 : 32},
                   {"qk_nope_head_dim", 64},
                   {"qk_head_dim", large ? 128 : 96},
                   {"v_head_dim", 64},
                   {"index_head_dim", large ? 128 : 64},
                   {"index_n_heads", large ? 16 : 10},
                   {"index_topk", 48},
                   {"max_position_embeddings", 8192},
                   {"vocab_size", 4096}});
    if (!large) config["mlp_layer_types"] = std::vector<std::string>(4, "dense");
    config.update(changes);
    return config;
}

} // namespace kvscope::test
