// MiniCPM3: latent attention with plain feed-forward and muP scales.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

namespace kvscope {

Architecture minicpm3Architecture() {
    return {"minicpm3",
            "MiniCPM3",
            {"MiniCPM3ForCausalLM"},
            {"minicpm3"},
            [](const ConfigReader& reader, ModelConfig& config) {
                readLatentAttention(reader, config);
                config.rope.interleaved = reader.flagOr("rope_interleave", false);
            }};
}

} // namespace kvscope
