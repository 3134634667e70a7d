// The example of docs/adding-an-architecture.md: Seed-OSS, a Llama whose queries, keys and values have biases and whose
// heads have 128 channels, whatever the width.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

namespace kvscope {

Architecture seedOssArchitecture() {
    Architecture seed;
    seed.family = "seed-oss";
    seed.title = "Seed-OSS";
    seed.classes = {"SeedOssForCausalLM"};
    seed.modelTypes = {"seed_oss"};
    seed.defaults = R"({"vocab_size": 155136, "hidden_size": 4096, "intermediate_size": 27648,
        "num_hidden_layers": 64, "num_attention_heads": 80, "num_key_value_heads": 8, "head_dim": 128,
        "hidden_act": "silu", "max_position_embeddings": 524288, "rms_norm_eps": 1e-6, "bos_token_id": 0,
        "eos_token_id": 2, "tie_word_embeddings": false, "rope_theta": 10000.0, "attention_bias": true,
        "attention_out_bias": false, "mlp_bias": false})";
    seed.read = [](const ConfigReader& reader, ModelConfig& config) {
        config.attentionBias = readBias(reader, "attention_bias");
        config.outputBias = readBias(reader, "attention_out_bias");
        config.feedForwardBias = readBias(reader, "mlp_bias");
        (void)reader.states("residual_dropout"); // of training alone
    };
    return seed;
}

} // namespace kvscope
