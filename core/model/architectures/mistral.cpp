// Mistral: a Llama whose queries may see only a sliding window; with layer_types (Ministral) in some layers.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

namespace kvscope {

Architecture mistralArchitecture() {
    Architecture mistral;
    mistral.family = "mistral";
    mistral.title = "Mistral";
    mistral.classes = {"MistralForCausalLM", "MinistralForCausalLM"};
    mistral.modelTypes = {"mistral", "ministral"};
    mistral.defaults = R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": null,
        "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "bos_token_id": 1,
        "eos_token_id": 2, "tie_word_embeddings": false, "rope_theta": 10000.0, "sliding_window": 4096})";
    mistral.read = [](const ConfigReader& reader, ModelConfig& config) {
        config.attentionBias = config.outputBias = config.feedForwardBias = Bias::None;
        const int window = reader.integerOr("sliding_window", 0, 1, 1 << 24); // null turns it off
        readLayerTypes(reader, config, window, [&](int) { return window > 0; });
    };
    return mistral;
}

} // namespace kvscope
