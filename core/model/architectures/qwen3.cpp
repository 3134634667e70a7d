// Qwen3: every head's query and key pass an RMS norm before they are rotated; head_dim is 128 unless stated.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

namespace kvscope {

Architecture qwen3Architecture() {
    return {"qwen3", "Qwen3", {"Qwen3ForCausalLM"}, {"qwen3"}, [](const ConfigReader& reader, ModelConfig& config) {
                config.queryKeyNorm = true;
                if (!reader.has("head_dim")) config.headDim = 128;
                readLayerWindows(reader, config);
            }};
}

} // namespace kvscope
