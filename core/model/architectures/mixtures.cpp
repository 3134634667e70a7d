// Llama- and Qwen-like models with experts: Mixtral, Qwen2-MoE, Qwen3-MoE.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

#include <algorithm>

namespace kvscope {
namespace {

/// Every decoder_sparse_step-th layer has experts, unless mlp_only_layers names it.
void readQwenLayers(const ConfigReader& reader, ModelConfig& config) {
    const int step = reader.integerOr("decoder_sparse_step", 1, 1, 1000);
    config.experts->layers.assign(std::size_t(config.layers), false);
    for (int i = 0; i < config.layers; ++i) config.experts->layers[std::size_t(i)] = (i + 1) % step == 0;
    if (!reader.has("mlp_only_layers")) return;
    const auto& list = reader.json().at("mlp_only_layers");
    if (!list.is_array()) reader.refuse("'mlp_only_layers' is no list of layers");
    for (const auto& entry : list) {
        if (!entry.is_number_integer() || entry.get<std::int64_t>() < 0 || entry.get<std::int64_t>() >= config.layers)
            reader.refuse("'mlp_only_layers' names a layer that does not exist");
        config.experts->layers[entry.get<std::size_t>()] = false;
    }
}

ExpertConfig qwenExperts(const ConfigReader& reader) {
    ExpertConfig experts;
    // Newer files of the library call it as Mixtral does.
    experts.count = reader.integer(reader.has("num_experts") ? "num_experts" : "num_local_experts", 1, 4096);
    experts.used = reader.integer("num_experts_per_tok", 1, experts.count);
    experts.width = reader.integer("moe_intermediate_size", 1, 1 << 20);
    experts.normalise = reader.flagOr("norm_topk_prob", false);
    return experts;
}

} // namespace

Architecture mixtralArchitecture() {
    TensorNames names;
    names.mixture = "block_sparse_moe.";
    names.expertGate = "w1";
    names.expertUp = "w3";
    names.expertDown = "w2";
    return {"mixtral",
            "Mixtral",
            {"MixtralForCausalLM"},
            {"mixtral"},
            [](const ConfigReader& reader, ModelConfig& config) {
                const int window = reader.integerOr("sliding_window", 0, 1, 1 << 24);
                if (window > 0) config.windows.assign(std::size_t(config.layers), window);
                ExpertConfig experts;
                experts.count = reader.integer("num_local_experts", 1, 4096);
                experts.used = reader.integer("num_experts_per_tok", 1, experts.count);
                experts.width = config.ffn;
                experts.normalise = true;
                experts.layers.assign(std::size_t(config.layers), true);
                config.experts = experts;
            },
            names};
}

Architecture qwen2MoeArchitecture() {
    TensorNames names;
    names.sharedExpert = "shared_expert.";
    return {"qwen2-moe",
            "Qwen2-MoE",
            {"Qwen2MoeForCausalLM"},
            {"qwen2_moe"},
            [](const ConfigReader& reader, ModelConfig& config) {
                readLayerWindows(reader, config);
                config.experts = qwenExperts(reader);
                config.experts->sharedWidth = reader.integer("shared_expert_intermediate_size", 1, 1 << 20);
                config.experts->sharedGate = true;
                readQwenLayers(reader, config);
            },
            names};
}

Architecture qwen3MoeArchitecture() {
    return {"qwen3-moe",
            "Qwen3-MoE",
            {"Qwen3MoeForCausalLM"},
            {"qwen3_moe"},
            [](const ConfigReader& reader, ModelConfig& config) {
                config.queryKeyNorm = true;
                if (reader.flagOr("use_sliding_window", false) && reader.has("sliding_window"))
                    config.windows.assign(std::size_t(config.layers), reader.integer("sliding_window", 1, 1 << 24));
                config.experts = qwenExperts(reader);
                readQwenLayers(reader, config);
            }};
}

} // namespace kvscope
