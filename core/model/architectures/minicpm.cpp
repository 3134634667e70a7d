// MiniCPM4 and 4.1 (also announced as MiniCPM): Llama's form with muP scales, LongRoPE and sparse_config, all of which
// are read for every architecture.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

namespace kvscope {

Architecture minicpmArchitecture() {
    return {"minicpm",
            "MiniCPM4",
            {"MiniCPMForCausalLM", "MiniCPM4ForCausalLM"},
            {"minicpm", "minicpm4"},
            [](const ConfigReader&, ModelConfig&) {}};
}

} // namespace kvscope
