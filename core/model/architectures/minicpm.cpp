// MiniCPM4 and 4.1 (also announced as MiniCPM): Llama's form with muP scales, LongRoPE and sparse_config. The library
// has no such class: what a released file leaves out (rope_theta) has the value of the checkpoints' own code.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

namespace kvscope {

Architecture minicpmArchitecture() {
    Architecture minicpm;
    minicpm.family = "minicpm";
    minicpm.title = "MiniCPM4";
    minicpm.classes = {"MiniCPMForCausalLM", "MiniCPM4ForCausalLM"};
    minicpm.modelTypes = {"minicpm", "minicpm4"};
    minicpm.inLibrary = false;
    minicpm.defaults = R"({"hidden_act": "silu", "rope_theta": 10000.0})";
    minicpm.read = [](const ConfigReader& reader, ModelConfig& config) {
        for (const char* key : {"scale_emb", "scale_depth", "dim_model_base"})
            if (!reader.has(key)) reader.refuse(std::string("the key '") + key + "' is missing");
        readScales(reader, config);
        config.attentionBias = config.outputBias = readBias(reader, "attention_bias");
        config.feedForwardBias = readBias(reader, "mlp_bias");
    };
    return minicpm;
}

} // namespace kvscope
