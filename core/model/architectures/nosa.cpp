// NOSA-1B/3B/8B and SparDA checkpoints that announce code of their own: Llama's form, an eviction head (self_attn.A and
// self_attn.delta.weight) and forecast heads as optional tensors, sparse_config, muP scales where the file states them.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

namespace kvscope {

Architecture nosaArchitecture() {
    return {"nosa",
            "NOSA",
            {"NOSAForCausalLM", "NosaForCausalLM", "NOSALlamaForCausalLM", "NosaLlamaForCausalLM", "SparDAForCausalLM"},
            {"nosa", "nosa_llama", "sparda"},
            [](const ConfigReader&, ModelConfig&) {}};
}

} // namespace kvscope
