// NOSA-1B/3B/8B and SparDA checkpoints that announce code of their own: Llama's form, an eviction head (self_attn.A and
// self_attn.delta.weight) and forecast heads as optional tensors, sparse_config, muP scales where the file states them.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

namespace kvscope {

Architecture nosaArchitecture() {
    Architecture nosa;
    nosa.family = "nosa";
    nosa.title = "NOSA";
    nosa.classes = {"NOSAForCausalLM", "NosaForCausalLM", "NOSALlamaForCausalLM", "NosaLlamaForCausalLM",
                    "SparDAForCausalLM"};
    nosa.modelTypes = {"nosa", "nosa_llama", "sparda"};
    nosa.inLibrary = false;
    nosa.defaults = R"({"hidden_act": "silu"})";
    nosa.read = [](const ConfigReader& reader, ModelConfig& config) {
        readScales(reader, config);
        config.attentionBias = config.outputBias = readBias(reader, "attention_bias");
        config.feedForwardBias = readBias(reader, "mlp_bias");
    };
    return nosa;
}

} // namespace kvscope
