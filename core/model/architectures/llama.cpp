// Llama 2, 3, 3.x and what shares their form to the letter: SmolLM2, Yi, the embedded model.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

namespace kvscope {

Architecture llamaArchitecture() {
    return {"llama", "Llama", {"LlamaForCausalLM"}, {"llama"}, [](const ConfigReader&, ModelConfig&) {}};
}

} // namespace kvscope
