// GLM-4.7-Flash: DeepSeek-V3's latent attention and expert choice, experts from the second layer on.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

namespace kvscope {

Architecture glm4LiteArchitecture() {
    return {"glm4-lite",
            "GLM-4.7-Flash",
            {"Glm4MoeLiteForCausalLM"},
            {"glm4_moe_lite"},
            [](const ConfigReader& reader, ModelConfig& config) {
                readLatentAttention(reader, config);
                config.rope.interleaved = reader.flagOr("rope_interleave", true);
                ExpertConfig experts;
                experts.count = reader.integer("n_routed_experts", 1, 4096);
                experts.used = reader.integer("num_experts_per_tok", 1, experts.count);
                experts.width = reader.integer("moe_intermediate_size", 1, 1 << 20);
                experts.sharedWidth = experts.width * reader.integerOr("n_shared_experts", 1, 0, 64);
                experts.scale = float(reader.numberOr("routed_scaling_factor", 1.8, 0, 1e6));
                experts.groups = reader.integerOr("n_group", 1, 1, experts.count);
                experts.groupsUsed = reader.integerOr("topk_group", 1, 1, experts.groups);
                experts.score = ExpertScore::Sigmoid;
                experts.groupScore = GroupScore::BestTwo;
                experts.choiceBias = true;
                experts.normalise = reader.flagOr("norm_topk_prob", true);
                config.experts = experts;
                readExpertLayers(reader, config, 1);
            }};
}

} // namespace kvscope
