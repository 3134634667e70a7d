// DeepSeek-V2 (with V2-Lite) and DeepSeek-V3: latent attention, experts from layer first_k_dense_replace on.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

#include <fmt/format.h>

namespace kvscope {
namespace {

void readExperts(const ConfigReader& reader, ModelConfig& config, bool third) {
    readLatentAttention(reader, config);
    if (!reader.has("n_routed_experts")) return;
    if (reader.integerOr("moe_layer_freq", 1, 1, 1000) != 1)
        reader.refuseUnsupported("experts in every other layer (moe_layer_freq) are not supported",
                                 "use a checkpoint with moe_layer_freq 1");
    ExpertConfig experts;
    experts.count = reader.integer("n_routed_experts", 1, 4096);
    experts.used = reader.integer("num_experts_per_tok", 1, experts.count);
    experts.width = reader.integer("moe_intermediate_size", 1, 1 << 20);
    experts.sharedWidth = experts.width * reader.integerOr("n_shared_experts", 0, 0, 64);
    experts.scale = float(reader.numberOr("routed_scaling_factor", 1, 0, 1e6));
    const std::string method = reader.textOr("topk_method", third ? "noaux_tc" : "greedy");
    if (third) {
        experts.score = ExpertScore::Sigmoid;
        experts.groupScore = GroupScore::BestTwo;
        experts.choiceBias = true;
        experts.normalise = reader.flagOr("norm_topk_prob", true);
    } else if (method != "greedy" && method != "group_limited_greedy") {
        reader.refuseUnsupported(fmt::format("the expert choice '{}' (topk_method) is not supported", shown(method)),
                                 "DeepSeek-V2 files say greedy or group_limited_greedy");
    }
    // V2's norm_topk_prob has no effect in the library, and no released V2 file sets it.
    if (third || method == "group_limited_greedy") {
        experts.groups = reader.integerOr("n_group", 1, 1, experts.count);
        experts.groupsUsed = reader.integerOr("topk_group", 1, 1, experts.groups);
    }
    config.experts = experts;
    readExpertLayers(reader, config, third ? 3 : 0);
}

} // namespace

Architecture deepseek2Architecture() {
    return {"deepseek2",
            "DeepSeek-V2",
            {"DeepseekV2ForCausalLM"},
            {"deepseek_v2"},
            [](const ConfigReader& reader, ModelConfig& config) {
                readExperts(reader, config, false);
                config.rope.interleaved = true;
            }};
}

Architecture deepseek3Architecture() {
    return {"deepseek3",
            "DeepSeek-V3",
            {"DeepseekV3ForCausalLM"},
            {"deepseek_v3"},
            [](const ConfigReader& reader, ModelConfig& config) {
                readExperts(reader, config, true);
                config.rope.interleaved = reader.flagOr("rope_interleave", true);
            }};
}

} // namespace kvscope
