// DeepSeek-V3.2 and GLM-5: DeepSeek-V3 whose attention sees the tokens that a lightning indexer chooses. In GLM-5
// layers may share a choice.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope {
namespace {

/// The library has one kind of layer for these classes.
void checkLayerTypes(const ConfigReader& reader, const ModelConfig& config) {
    if (!reader.has("layer_types")) return;
    const auto types = reader.texts("layer_types");
    if (int(types.size()) < config.layers)
        reader.refuse(fmt::format("'layer_types' has {} entries for {} layers", types.size(), config.layers));
    for (const std::string& type : types)
        if (type != "deepseek_sparse_attention")
            reader.refuseUnsupported(fmt::format("layers of type '{}' (layer_types) are not supported", shown(type)),
                                     "layers of this architecture are deepseek_sparse_attention");
}

void readIndexer(const ConfigReader& reader, ModelConfig& config, bool interleaved) {
    LightningIndexer indexer;
    indexer.heads = reader.integer("index_n_heads", 1, 1 << 12);
    indexer.dim = reader.integer("index_head_dim", 1, 1 << 12);
    indexer.tokens = reader.integer("index_topk", 1, 1 << 24);
    indexer.ropeDim = config.latent->ropeDim;
    indexer.interleaved = interleaved;
    indexer.shared.assign(std::size_t(config.layers), false);
    if (indexer.dim < indexer.ropeDim)
        reader.refuse(fmt::format("'index_head_dim' is {}, and {} channels of an indexer's head are rotated "
                                  "(qk_rope_head_dim)",
                                  indexer.dim, indexer.ropeDim));
    config.indexer = indexer;
}

/// One name for each layer, as indexer_types or index_topk_pattern states them: "full" or "shared". Empty: neither
/// does.
std::vector<std::string> statedTypes(const ConfigReader& reader) {
    (void)reader.states("index_topk_pattern");
    if (reader.has("indexer_types")) return reader.texts("indexer_types");
    if (!reader.has("index_topk_pattern")) return {};
    if (!reader.json().at("index_topk_pattern").is_string()) return reader.texts("index_topk_pattern");
    std::vector<std::string> types;
    for (const char letter : reader.text("index_topk_pattern"))
        types.emplace_back(letter == 'F' ? "full" : letter == 'S' ? "shared" : std::string(1, letter));
    return types;
}

/// Which layers attend to what the layer before them chose.
void readSharing(const ConfigReader& reader, ModelConfig& config) {
    const int every = std::max(1, reader.integerOr("index_topk_freq", 1, 0, 1 << 20));
    const int offset = reader.integerOr("index_skip_topk_offset", 2, -(1 << 20), 1 << 20);
    const std::vector<std::string> types = statedTypes(reader);
    if (!types.empty() && int(types.size()) < config.layers)
        reader.refuse(fmt::format("'indexer_types' or 'index_topk_pattern' has {} entries for {} layers", types.size(),
                                  config.layers));
    for (int layer = 0; layer < config.layers; ++layer) {
        bool shared = std::max(layer - offset + 1, 0) % every != 0;
        if (!types.empty()) {
            const std::string& type = types[std::size_t(layer)];
            if (type != "full" && type != "shared")
                reader.refuse(fmt::format("a layer's indexer is '{}'", shown(type)),
                              "the entries of indexer_types are full and shared, those of index_topk_pattern F and S");
            shared = type == "shared";
        }
        config.indexer->shared[std::size_t(layer)] = shared;
    }
    if (config.indexer->shared.front())
        reader.refuse("the first layer shares an indexer, and there is none before it",
                      "the first entry of indexer_types is full");
}

void readModel(const ConfigReader& reader, ModelConfig& config, bool interleavedIndexer) {
    readLatentAttention(reader, config);
    if (config.latent->queryRank == 0)
        reader.refuse("'q_lora_rank' is null, and the indexer's queries come from the queries' latent");
    (void)reader.states("head_dim"); // the library sets it to the rotated part, whatever the file says
    config.rope.interleaved = true;
    config.attentionBias = config.outputBias = readBias(reader, "attention_bias");
    config.feedForwardBias = Bias::None;
    (void)reader.states("mlp_bias"); // the library's configuration has the key, and its model does not use it
    checkLayerTypes(reader, config);
    readIndexer(reader, config, interleavedIndexer);
    readSigmoidExperts(reader, config);
}

} // namespace

Architecture deepseek32Architecture() {
    Architecture deepseek;
    deepseek.family = "deepseek32";
    deepseek.title = "DeepSeek-V3.2";
    deepseek.classes = {"DeepseekV32ForCausalLM"};
    deepseek.modelTypes = {"deepseek_v32"};
    deepseek.aliases = {{"num_local_experts", "n_routed_experts"}, {"num_experts", "n_routed_experts"}};
    deepseek.defaults = R"({"vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
        "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128,
        "num_key_value_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256, "routed_scaling_factor": 2.5,
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128,
        "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8, "norm_topk_prob": true, "hidden_act": "silu",
        "max_position_embeddings": 163840, "rms_norm_eps": 1e-6, "bos_token_id": 0, "eos_token_id": 1,
        "tie_word_embeddings": false, "rope_theta": 10000.0, "mlp_layer_types": null, "attention_bias": false,
        "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64, "first_k_dense_replace": 3,
        "head_dim": 64, "layer_types": null, "mlp_bias": false})";
    deepseek.read = [](const ConfigReader& reader, ModelConfig& config) { readModel(reader, config, false); };
    return deepseek;
}

Architecture glmDsaArchitecture() {
    Architecture glm;
    glm.family = "glm-dsa";
    glm.title = "GLM-5";
    glm.classes = {"GlmMoeDsaForCausalLM"};
    glm.modelTypes = {"glm_moe_dsa"};
    glm.aliases = {{"num_local_experts", "n_routed_experts"}, {"num_experts", "n_routed_experts"}};
    glm.defaults = R"({"vocab_size": 154880, "hidden_size": 6144, "intermediate_size": 12288,
        "moe_intermediate_size": 2048, "num_hidden_layers": 78, "num_attention_heads": 64, "num_key_value_heads": 64,
        "n_shared_experts": 1, "n_routed_experts": 256, "routed_scaling_factor": 2.5, "kv_lora_rank": 512,
        "q_lora_rank": 2048, "qk_rope_head_dim": 64, "v_head_dim": 256, "qk_nope_head_dim": 192, "n_group": 1,
        "topk_group": 1, "num_experts_per_tok": 8, "norm_topk_prob": true, "hidden_act": "silu",
        "max_position_embeddings": 202752, "rms_norm_eps": 1e-5, "bos_token_id": 0, "eos_token_id": 1,
        "tie_word_embeddings": false, "rope_theta": 10000.0, "mlp_layer_types": null, "attention_bias": false,
        "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 32, "first_k_dense_replace": 3,
        "head_dim": 64, "layer_types": null, "indexer_types": null, "mlp_bias": false})";
    glm.read = [](const ConfigReader& reader, ModelConfig& config) {
        readModel(reader, config, true);
        readSharing(reader, config);
    };
    return glm;
}

} // namespace kvscope
