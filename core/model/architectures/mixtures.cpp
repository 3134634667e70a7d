// Llama- and Qwen-like models with experts: Mixtral, Qwen2-MoE, Qwen3-MoE.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

#include <algorithm>

namespace kvscope {
namespace {

/// Every decoder_sparse_step-th layer has experts, unless mlp_only_layers names it.
void readQwenLayers(const ConfigReader& reader, ModelConfig& config) {
    const int step = reader.integer("decoder_sparse_step", 1, 1000);
    config.experts->layers.assign(std::size_t(config.layers), false);
    for (int i = 0; i < config.layers; ++i) config.experts->layers[std::size_t(i)] = (i + 1) % step == 0;
    if (!reader.has("mlp_only_layers")) return;
    const auto& list = reader.json().at("mlp_only_layers");
    if (!list.is_array()) reader.refuse("'mlp_only_layers' is not a list of layers");
    for (const auto& entry : list) {
        if (!entry.is_number_integer() || entry.get<std::int64_t>() < 0 || entry.get<std::int64_t>() >= config.layers)
            reader.refuse("'mlp_only_layers' names a layer that does not exist");
        config.experts->layers[entry.get<std::size_t>()] = false;
    }
}

void readQwenExperts(const ConfigReader& reader, ModelConfig& config) {
    config.feedForwardBias = config.expertBias = Bias::None;
    ExpertConfig experts;
    experts.count = reader.integer("num_experts", 0, 4096);
    for (const char* key : {"num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step",
                            "mlp_only_layers", "shared_expert_intermediate_size"})
        (void)reader.states(key); // of no use without experts
    if (experts.count == 0) return;
    experts.used = reader.integer("num_experts_per_tok", 1, experts.count);
    experts.width = reader.integer("moe_intermediate_size", 1, 1 << 20);
    experts.normalise = reader.flag("norm_topk_prob");
    config.experts = experts;
    readQwenLayers(reader, config);
}

} // namespace

Architecture mixtralArchitecture() {
    Architecture mixtral;
    mixtral.family = "mixtral";
    mixtral.title = "Mixtral";
    mixtral.classes = {"MixtralForCausalLM"};
    mixtral.modelTypes = {"mixtral"};
    mixtral.aliases = {{"num_experts", "num_local_experts"}};
    mixtral.defaults = R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": null,
        "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "bos_token_id": 1,
        "eos_token_id": 2, "tie_word_embeddings": false, "sliding_window": null, "num_experts_per_tok": 2,
        "num_local_experts": 8, "rope_theta": 1000000.0})";
    mixtral.names.mixture.prefix = "block_sparse_moe.";
    mixtral.names.mixture.expert = {"w1", "w3", "w2"};
    mixtral.read = [](const ConfigReader& reader, ModelConfig& config) {
        config.attentionBias = config.outputBias = config.feedForwardBias = config.expertBias = Bias::None;
        const int window = reader.integerOr("sliding_window", 0, 1, 1 << 24);
        if (window > 0) config.windows.assign(std::size_t(config.layers), window);
        ExpertConfig experts;
        experts.count = reader.integer("num_local_experts", 1, 4096);
        experts.used = reader.integer("num_experts_per_tok", 1, experts.count);
        experts.width = config.ffn;
        experts.normalise = true;
        experts.layers.assign(std::size_t(config.layers), true);
        config.experts = experts;
    };
    return mixtral;
}

Architecture qwen2MoeArchitecture() {
    Architecture qwen2;
    qwen2.family = "qwen2-moe";
    qwen2.title = "Qwen2-MoE";
    qwen2.classes = {"Qwen2MoeForCausalLM"};
    qwen2.modelTypes = {"qwen2_moe"};
    qwen2.defaults = R"({"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632,
        "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16, "hidden_act": "silu",
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "rope_theta": 10000.0,
        "use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 28, "decoder_sparse_step": 1,
        "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4,
        "num_experts": 60, "norm_topk_prob": false, "mlp_only_layers": null, "qkv_bias": true, "layer_types": null,
        "bos_token_id": null, "eos_token_id": null})";
    qwen2.names.mixture.shared = "shared_expert.";
    qwen2.read = [](const ConfigReader& reader, ModelConfig& config) {
        config.attentionBias = readBias(reader, "qkv_bias");
        config.outputBias = Bias::None;
        const int window = readWindow(reader), before = reader.integerOr("max_window_layers", 28, 0, 1 << 20);
        // Unlike in Qwen2: every other one of the first layers.
        readLayerTypes(reader, config, window,
                       [&](int layer) { return window > 0 && layer % 2 == 0 && layer < before; });
        readQwenExperts(reader, config);
        if (!config.experts) return;
        config.experts->sharedWidth = reader.integer("shared_expert_intermediate_size", 1, 1 << 20);
        config.experts->sharedGate = true;
    };
    return qwen2;
}

Architecture qwen3MoeArchitecture() {
    Architecture qwen3;
    qwen3.family = "qwen3-moe";
    qwen3.title = "Qwen3-MoE";
    qwen3.classes = {"Qwen3MoeForCausalLM"};
    qwen3.modelTypes = {"qwen3_moe"};
    qwen3.aliases = {{"num_local_experts", "num_experts"}};
    qwen3.defaults = R"({"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144,
        "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 4, "hidden_act": "silu",
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "rope_theta": 10000.0,
        "attention_bias": false, "use_sliding_window": false, "sliding_window": 4096, "decoder_sparse_step": 1,
        "moe_intermediate_size": 768, "num_experts_per_tok": 8, "num_experts": 128, "norm_topk_prob": false,
        "mlp_only_layers": null, "bos_token_id": null, "eos_token_id": null})";
    qwen3.read = [](const ConfigReader& reader, ModelConfig& config) {
        config.queryKeyNorm = true;
        config.attentionBias = config.outputBias = readBias(reader, "attention_bias");
        const int window = readWindow(reader);
        if (window > 0) config.windows.assign(std::size_t(config.layers), window);
        readQwenExperts(reader, config);
    };
    return qwen3;
}

} // namespace kvscope
