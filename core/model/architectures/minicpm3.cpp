// MiniCPM3: latent attention with plain feed-forward and muP scales.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

namespace kvscope {

Architecture minicpm3Architecture() {
    Architecture minicpm3;
    minicpm3.family = "minicpm3";
    minicpm3.title = "MiniCPM3";
    minicpm3.classes = {"MiniCPM3ForCausalLM"};
    minicpm3.modelTypes = {"minicpm3"};
    minicpm3.defaults = R"({"vocab_size": 73448, "hidden_size": 2560, "intermediate_size": 6400,
        "num_hidden_layers": 62, "num_attention_heads": 40, "num_key_value_heads": 40, "hidden_act": "silu",
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2,
        "tie_word_embeddings": true, "rope_theta": 10000.0, "attention_bias": false, "mlp_bias": false,
        "kv_lora_rank": 256, "q_lora_rank": 768, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": null,
        "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256})";
    minicpm3.read = [](const ConfigReader& reader, ModelConfig& config) {
        readLatentAttention(reader, config);
        (void)reader.states("head_dim");             // the library sets it to the rotated part, whatever the file says
        (void)reader.number("scale_emb", 1e-6, 1e6); // the other two may be null: no scaling
        readScales(reader, config);
        config.attentionBias = config.outputBias = readBias(reader, "attention_bias");
        config.feedForwardBias = readBias(reader, "mlp_bias");
    };
    return minicpm3;
}

} // namespace kvscope
