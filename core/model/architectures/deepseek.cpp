// DeepSeek-V2 (with V2-Lite) and DeepSeek-V3: latent attention, experts from layer first_k_dense_replace on.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope {
namespace {

/// Checks a key that files state beside the library's keys, and that can only have this value.
void checkFixed(const ConfigReader& reader, const char* key, const char* only) {
    if (reader.has(key) && reader.text(key) != only)
        reader.refuseUnsupported(fmt::format("'{}' is '{}'", key, shown(reader.text(key))),
                                 fmt::format("this version runs checkpoints with {} '{}'", key, only));
}

/// Layers with experts; false: none has.
bool readLayers(const ConfigReader& reader, ModelConfig& config, bool byTypes) {
    if (reader.converted()) return readExpertLayers(reader, config);
    if (byTypes && readExpertLayers(reader, config)) {
        (void)reader.states("first_k_dense_replace"); // has no effect then
        const std::vector<bool>& layers = config.experts->layers;
        return std::find(layers.begin(), layers.end(), true) != layers.end();
    }
    const int dense = reader.integer("first_k_dense_replace", 0, 1 << 20);
    config.experts->layers.assign(std::size_t(config.layers), false);
    for (int i = dense; i < config.layers; ++i) config.experts->layers[std::size_t(i)] = true;
    return dense < config.layers;
}

void readExpertGroups(const ConfigReader& reader, ExpertConfig& experts) {
    experts.groups = reader.integer("n_group", 1, experts.count);
    experts.groupsUsed = reader.integer("topk_group", 1, experts.groups);
}

/// byTypes: mlp_layer_types, where it is stated, goes before first_k_dense_replace.
void readExperts(const ConfigReader& reader, ModelConfig& config, bool third, bool byTypes = false) {
    config.expertBias = Bias::None;
    for (const char* key : {"n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts",
                            "routed_scaling_factor", "n_group", "topk_group", "topk_method", "norm_topk_prob"})
        (void)reader.states(key); // some have no effect: without experts, or with another way to choose them
    if (reader.converted() && !reader.has("n_routed_experts")) return;
    if (reader.integerOr("moe_layer_freq", 1, 1, 1000) != 1)
        reader.refuseUnsupported("experts in every other layer (moe_layer_freq) are not supported",
                                 "use a checkpoint with moe_layer_freq 1");
    checkFixed(reader, "scoring_func", third ? "sigmoid" : "softmax");
    if (third) checkFixed(reader, "topk_method", "noaux_tc");
    config.experts.emplace();
    if (!readLayers(reader, config, byTypes)) return config.experts.reset();
    ExpertConfig& experts = *config.experts;
    readExpertSizes(reader, experts);
    if (third) {
        readSigmoidChoice(reader, experts);
        experts.normalise = reader.flagOr("norm_topk_prob", false); // null is false
        return;
    }
    const std::string method = reader.text("topk_method"); // V2's norm_topk_prob has no effect in the library
    if (method == "group_limited_greedy") return readExpertGroups(reader, experts);
    if (method != "greedy")
        reader.refuseUnsupported(fmt::format("the expert choice '{}' (topk_method) is not supported", shown(method)),
                                 "DeepSeek-V2 files say greedy or group_limited_greedy");
}

} // namespace

void readExpertSizes(const ConfigReader& reader, ExpertConfig& experts) {
    experts.count = reader.integer("n_routed_experts", 1, 4096);
    experts.used = reader.integer("num_experts_per_tok", 1, experts.count);
    experts.width = reader.integer("moe_intermediate_size", 1, 1 << 20);
    experts.sharedWidth = experts.width * reader.integer("n_shared_experts", 0, 64);
    experts.scale = float(reader.number("routed_scaling_factor", 0, 1e6));
}

void readSigmoidChoice(const ConfigReader& reader, ExpertConfig& experts) {
    experts.score = ExpertScore::Sigmoid;
    experts.groupScore = GroupScore::BestTwo;
    experts.choiceBias = true;
    readExpertGroups(reader, experts);
}

void readSigmoidExperts(const ConfigReader& reader, ModelConfig& config) { readExperts(reader, config, true, true); }

Architecture deepseek2Architecture() {
    Architecture second;
    second.family = "deepseek2";
    second.title = "DeepSeek-V2";
    second.classes = {"DeepseekV2ForCausalLM"};
    second.modelTypes = {"deepseek_v2"};
    second.aliases = {{"num_experts", "n_routed_experts"}};
    second.defaults = R"({"vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": null, "hidden_act": "silu",
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "bos_token_id": 1, "eos_token_id": 2,
        "tie_word_embeddings": false, "rope_theta": 10000.0, "attention_bias": false, "mlp_bias": false,
        "first_k_dense_replace": 0, "kv_lora_rank": 512, "q_lora_rank": 1536, "n_group": null, "n_routed_experts": 64,
        "n_shared_experts": 2, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "routed_scaling_factor": 1.0,
        "topk_group": null, "topk_method": "greedy", "v_head_dim": 128, "moe_intermediate_size": 1407})";
    second.read = [](const ConfigReader& reader, ModelConfig& config) {
        readLatentAttention(reader, config);
        (void)reader.states("head_dim"); // the library sets it to the rotated part, whatever the file says
        config.rope.interleaved = true;
        config.attentionBias = config.outputBias = readBias(reader, "attention_bias");
        config.feedForwardBias = readBias(reader, "mlp_bias");
        readExperts(reader, config, false);
    };
    return second;
}

Architecture deepseek3Architecture() {
    Architecture third;
    third.family = "deepseek3";
    third.title = "DeepSeek-V3";
    third.classes = {"DeepseekV3ForCausalLM"};
    third.modelTypes = {"deepseek_v3"};
    third.aliases = {{"num_local_experts", "n_routed_experts"}};
    third.defaults = R"({"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
        "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
        "num_key_value_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256, "routed_scaling_factor": 2.5,
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128,
        "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "norm_topk_prob": true,
        "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "bos_token_id": 0,
        "eos_token_id": 1, "tie_word_embeddings": false, "rope_theta": 10000.0, "rope_interleave": true,
        "attention_bias": false})";
    third.read = [](const ConfigReader& reader, ModelConfig& config) {
        readLatentAttention(reader, config);
        if (reader.has("head_dim") && reader.integer("head_dim", 1, 1 << 12) != config.latent->ropeDim)
            reader.refuse("'head_dim' is not 'qk_rope_head_dim', which it means here");
        config.rope.interleaved = reader.flagOr("rope_interleave", reader.converted()); // null is false
        config.attentionBias = config.outputBias = readBias(reader, "attention_bias");
        config.feedForwardBias = Bias::None;
        readExperts(reader, config, true);
    };
    return third;
}

} // namespace kvscope
