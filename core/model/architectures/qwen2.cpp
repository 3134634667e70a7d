// Qwen2 and Qwen2.5: biases on queries, keys and values (read where present), some layers with a sliding window.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

namespace kvscope {

Architecture qwen2Architecture() {
    return {"qwen2", "Qwen2 / Qwen2.5", {"Qwen2ForCausalLM"}, {"qwen2"}, readLayerWindows};
}

} // namespace kvscope
