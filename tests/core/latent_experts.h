// A small model with latent attention, experts and shared experts, of a size that the GPU's kernels take.
#pragma once

#include "tests/core/random_checkpoint.h"

namespace kvscope::test {

/// The config.json of a small DeepSeek-V2-Lite: 16 heads, 512 latent and 64 rotated channels. Its first layer has no
/// experts.
inline nlohmann::json latentExpertsConfig() {
    return familyConfig("deepseek2-lite", {{"hidden_size", 256},
                                           {"num_attention_heads", 16},
                                           {"num_key_value_heads", 16},
                                           {"vocab_size", 96},
                                           {"intermediate_size", 192},
                                           {"kv_lora_rank", 512},
                                           {"qk_rope_head_dim", 64},
                                           {"head_dim", 64},
                                           {"qk_nope_head_dim", 96},
                                           {"qk_head_dim", 160},
                                           {"v_head_dim", 64},
                                           {"q_lora_rank", nullptr},
                                           {"moe_intermediate_size", 64}});
}

} // namespace kvscope::test
