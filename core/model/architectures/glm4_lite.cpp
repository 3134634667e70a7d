// GLM-4.7-Flash: DeepSeek-V3's latent attention and expert choice, experts from the second layer on.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

#include <algorithm>

namespace kvscope {

Architecture glm4LiteArchitecture() {
    Architecture glm;
    glm.family = "glm4-lite";
    glm.title = "GLM-4.7-Flash";
    glm.classes = {"Glm4MoeLiteForCausalLM"};
    glm.modelTypes = {"glm4_moe_lite"};
    glm.aliases = {{"num_local_experts", "n_routed_experts"}, {"head_dim", "qk_rope_head_dim"}};
    glm.defaults = R"({"vocab_size": 154880, "hidden_size": 2048, "intermediate_size": 10240,
        "moe_intermediate_size": 1536, "num_hidden_layers": 47, "num_attention_heads": 20, "num_key_value_heads": 20,
        "n_shared_experts": 1, "n_routed_experts": 64, "routed_scaling_factor": 1.8, "kv_lora_rank": 512,
        "q_lora_rank": 768, "qk_rope_head_dim": 64, "v_head_dim": 256, "qk_nope_head_dim": 192, "n_group": 1,
        "topk_group": 1, "num_experts_per_tok": 4, "norm_topk_prob": true, "hidden_act": "silu",
        "max_position_embeddings": 202752, "rms_norm_eps": 1e-5, "bos_token_id": 0, "eos_token_id": 1,
        "tie_word_embeddings": false, "rope_theta": 10000.0, "rope_interleave": true, "mlp_layer_types": null,
        "attention_bias": false})";
    glm.read = [](const ConfigReader& reader, ModelConfig& config) {
        readLatentAttention(reader, config);
        config.rope.interleaved = reader.flag("rope_interleave");
        config.attentionBias = config.outputBias = readBias(reader, "attention_bias");
        config.feedForwardBias = config.expertBias = Bias::None;
        config.experts.emplace();
        ExpertConfig& experts = *config.experts;
        if (!readExpertLayers(reader, config)) {
            experts.layers.assign(std::size_t(config.layers), true);
            experts.layers.front() = false;
        }
        readExpertSizes(reader, experts);
        readSigmoidChoice(reader, experts);
        experts.normalise = reader.flag("norm_topk_prob");
        if (std::find(experts.layers.begin(), experts.layers.end(), true) == experts.layers.end())
            config.experts.reset();
    };
    return glm;
}

} // namespace kvscope
