// Llama 2, 3, 3.x and what shares their form to the letter: SmolLM2, Yi, the embedded model.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

namespace kvscope {

Architecture llamaArchitecture() {
    Architecture llama;
    llama.family = "llama";
    llama.title = "Llama";
    llama.classes = {"LlamaForCausalLM"};
    llama.modelTypes = {"llama"};
    llama.defaults = R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": null, "hidden_act": "silu", "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": false, "rope_theta": 10000.0,
        "attention_bias": false, "mlp_bias": false, "head_dim": null})";
    llama.read = [](const ConfigReader& reader, ModelConfig& config) {
        config.attentionBias = config.outputBias = readBias(reader, "attention_bias");
        config.feedForwardBias = readBias(reader, "mlp_bias");
    };
    return llama;
}

} // namespace kvscope
