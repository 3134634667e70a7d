// Mistral: a Llama whose queries may see only a sliding window.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

namespace kvscope {

Architecture mistralArchitecture() {
    return {
        "mistral", "Mistral", {"MistralForCausalLM"}, {"mistral"}, [](const ConfigReader& reader, ModelConfig& config) {
            // null turns the window off; files older than the key mean the first model's 4096
            const bool stated = reader.json().contains("sliding_window");
            const int window = stated ? reader.integerOr("sliding_window", 0, 1, 1 << 24) : 4096;
            if (window > 0) config.windows.assign(std::size_t(config.layers), window);
        }};
}

} // namespace kvscope
