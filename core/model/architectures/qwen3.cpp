// Qwen3: every head's query and key pass an RMS norm before they are rotated; head_dim is 128 unless stated.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

namespace kvscope {

Architecture qwen3Architecture() {
    Architecture qwen3;
    qwen3.family = "qwen3";
    qwen3.title = "Qwen3";
    qwen3.classes = {"Qwen3ForCausalLM"};
    qwen3.modelTypes = {"qwen3"};
    qwen3.defaults = R"({"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128,
        "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
        "rope_theta": 10000.0, "attention_bias": false, "use_sliding_window": false, "sliding_window": 4096,
        "max_window_layers": 28, "layer_types": null, "bos_token_id": null, "eos_token_id": null})";
    qwen3.read = [](const ConfigReader& reader, ModelConfig& config) {
        config.queryKeyNorm = true;
        config.attentionBias = config.outputBias = readBias(reader, "attention_bias");
        config.feedForwardBias = Bias::None;
        readLayerWindows(reader, config);
    };
    return qwen3;
}

} // namespace kvscope
