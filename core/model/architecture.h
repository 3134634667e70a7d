// The registry of architectures. An architecture = one file in core/model/architectures + one line in its registry.cpp:
// which names announce it, what its keys mean, how its tensors are called. The engine never asks for its name.
#pragma once

#include "core/model/model_config.h"
#include "kernels/base/error.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

class ConfigReader; // config_reader.h brings the JSON library; whoever reads configurations includes it

/// Names of tensors in a checkpoint. Those of a layer follow "model.layers.<i>.".
struct TensorNames {
    std::string embedding = "model.embed_tokens.weight", head = "lm_head.weight", finalNorm = "model.norm.weight";
    std::string inputNorm = "input_layernorm.weight", postNorm = "post_attention_layernorm.weight";
    std::string attention = "self_attn."; // prefix of the projections
    std::string q = "q_proj", k = "k_proj", v = "v_proj", o = "o_proj";
    std::string queryNorm = "q_norm.weight", keyNorm = "k_norm.weight";
    // Latent attention: the queries' way down and up, the latent with the shared key part, the latent's way up
    std::string queryDown = "q_a_proj", queryDownNorm = "q_a_layernorm.weight", queryUp = "q_b_proj";
    std::string latentDown = "kv_a_proj_with_mqa", latentNorm = "kv_a_layernorm.weight", latentUp = "kv_b_proj";
    std::string mlp = "mlp."; // prefix of the feed-forward
    std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
    // Experts: prefix of the mixture, its router, and "experts.<e>." with the three names below
    std::string mixture = "mlp.", router = "gate.weight", choiceBias = "gate.e_score_correction_bias";
    std::string experts = "experts.", expertGate = "gate_proj", expertUp = "up_proj", expertDown = "down_proj";
    std::string sharedExpert = "shared_experts.", sharedExpertGate = "shared_expert_gate.weight";
};

struct Architecture {
    std::string family;                  // registry id, e.g. "qwen3"
    std::string title;                   // e.g. "Qwen3"
    std::vector<std::string> classes;    // entries of `architectures` in config.json
    std::vector<std::string> modelTypes; // entries of `model_type`
    /// Sets what differs from a Llama: the sizes every model has are read already.
    void (*read)(const ConfigReader& reader, ModelConfig& config) = nullptr;
    TensorNames names = {};
};

/// All architectures in the order they are listed in messages.
std::span<const Architecture> architectures();
/// By class name, else, where none is stated or the checkpoint brings its own code (auto_map), by model type. @throws
/// Error(Unsupported)
const Architecture& findArchitecture(const ConfigReader& reader, std::string_view className,
                                     std::string_view modelType);
/// The entry of a configuration that was read. @throws Error(Unsupported)
const Architecture& architectureOf(const ModelConfig& config);

/// sliding_window where layer_types or max_window_layers give it to some layers (Qwen).
void readLayerWindows(const ConfigReader& reader, ModelConfig& config);
/// The keys of DeepSeek's latent attention.
void readLatentAttention(const ConfigReader& reader, ModelConfig& config);
/// first_k_dense_replace or mlp_layer_types; sets experts->layers.
void readExpertLayers(const ConfigReader& reader, ModelConfig& config, int denseByDefault);

} // namespace kvscope
