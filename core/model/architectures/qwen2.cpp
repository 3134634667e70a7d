// Qwen2 and Qwen2.5: biases on queries, keys and values, some layers with a sliding window.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

namespace kvscope {

Architecture qwen2Architecture() {
    Architecture qwen2;
    qwen2.family = "qwen2";
    qwen2.title = "Qwen2 / Qwen2.5";
    qwen2.classes = {"Qwen2ForCausalLM"};
    qwen2.modelTypes = {"qwen2"};
    qwen2.defaults = R"({"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_act": "silu",
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "rope_theta": 10000.0,
        "use_sliding_window": false, "sliding_window": 4096, "max_window_layers": 28, "layer_types": null,
        "bos_token_id": null, "eos_token_id": null})";
    qwen2.read = [](const ConfigReader& reader, ModelConfig& config) {
        config.attentionBias = Bias::All;
        config.outputBias = config.feedForwardBias = Bias::None;
        readLayerWindows(reader, config);
    };
    return qwen2;
}

} // namespace kvscope
