// MiniMax-M3: grouped heads with norms, of which a part is rotated, experts with bounded gates, and in most layers an
// indexer that chooses blocks of keys. Published files hold a model that sees images too; the part that reads text
// runs.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope {
namespace {

/// The object text_config with what the whole object says of its part. The class of the whole model ties the embeddings
/// where either object says so, and sets the activation itself.
std::string textPart(const ConfigReader& whole) {
    nlohmann::json text = whole.has("text_config") ? whole.object("text_config").json() : nlohmann::json::object();
    for (const char* const key : {"quantization_config", "compression_config", "auto_map"})
        if (whole.has(key)) text[key] = whole.json().at(key);
    if (whole.has("tie_word_embeddings") && whole.flag("tie_word_embeddings")) text["tie_word_embeddings"] = true;
    text["hidden_act"] = "silu";
    for (const char* const key : {"vision_config", "projector_hidden_size", "merged_hidden_size", "image_token_index",
                                  "video_token_index", "image_token_id", "video_token_id"})
        (void)whole.states(key); // of images
    return text.dump();
}

/// Which entries of a list of the file, one for each layer, are not 0.
std::vector<bool> flagsOf(const ConfigReader& reader, const char* key, int layers) {
    const std::vector<double> numbers = reader.numbers(key, std::size_t(layers), 0, 1 << 20);
    std::vector<bool> flags;
    for (const double number : numbers) flags.push_back(number != 0);
    return flags;
}

/// Which layers have an indexer, by layer_types or, in published files, sparse_attention_freq of `sparse`.
std::vector<bool> indexedLayers(const ConfigReader& reader, const ConfigReader& sparse, int layers) {
    const bool stated = sparse.has("sparse_attention_freq");
    if (!reader.has("layer_types"))
        return stated ? flagsOf(sparse, "sparse_attention_freq", layers) : std::vector<bool>(std::size_t(layers));
    const auto types = reader.texts("layer_types");
    if (int(types.size()) != layers)
        reader.refuse(fmt::format("'layer_types' has {} entries for {} layers", types.size(), layers));
    std::vector<bool> indexed;
    for (const std::string& type : types) {
        if (type != "minimax_m3_sparse" && type != "full_attention")
            reader.refuseUnsupported(fmt::format("layers of type '{}' (layer_types) are not supported", shown(type)),
                                     "layers of this architecture are minimax_m3_sparse or full_attention");
        indexed.push_back(type == "minimax_m3_sparse");
    }
    return indexed;
}

void readIndexer(const ConfigReader& reader, ModelConfig& config) {
    static const nlohmann::json nothing = nlohmann::json::object();
    const ConfigReader sparse = reader.has("sparse_attention_config") ? reader.object("sparse_attention_config")
                                                                      : ConfigReader(nothing, reader.origin());
    // The names in published files go before the library's own, as in the library.
    const auto number = [&](const char* key, const char* published, int most) {
        const int own = reader.integer(key, 1, most);
        return sparse.has(published) ? sparse.integer(published, 1, most) : own;
    };
    BlockIndexer indexer;
    indexer.heads = number("index_n_heads", "sparse_num_index_heads", 1 << 12);
    indexer.dim = number("index_head_dim", "sparse_index_dim", 1 << 12);
    indexer.blockTokens = number("index_block_size", "sparse_block_size", 1 << 20);
    indexer.blocks = number("index_topk_blocks", "sparse_topk_blocks", 1 << 16);
    indexer.localBlocks = number("index_local_blocks", "sparse_local_block", 1 << 16);
    indexer.layers = indexedLayers(reader, sparse, config.layers);
    if (const std::vector<std::string> unread = sparse.unread(); !unread.empty())
        config.notes.push_back(fmt::format("neither transformers nor this program reads these keys of "
                                           "sparse_attention_config: {}",
                                           listedKeys(unread)));
    if (std::find(indexer.layers.begin(), indexer.layers.end(), true) == indexer.layers.end()) return;
    if (config.kvHeads % indexer.heads != 0)
        reader.refuseUnsupported(
            fmt::format("{} heads of the indexer cannot choose for {} KV heads", indexer.heads, config.kvHeads),
            "a head of the indexer (index_n_heads) chooses for one or more whole KV heads");
    if (indexer.blockTokens % 16 != 0 || indexer.blockTokens > 256)
        reader.refuseUnsupported(
            fmt::format("blocks of {} tokens (index_block_size) are not supported", indexer.blockTokens),
            "blocks have a multiple of 16 tokens, at most 256");
    if (indexer.localBlocks > indexer.blocks)
        reader.refuse(fmt::format("{} blocks that are always attended (index_local_blocks) are more than the {} chosen "
                                  "(index_topk_blocks)",
                                  indexer.localBlocks, indexer.blocks));
    const int head = reader.integerOr("head_dim", config.hidden / config.queryHeads, 1, 1 << 12);
    if (const int rotated = int(head * RopeConfig::rotatedShare(reader)); indexer.dim < rotated)
        reader.refuseUnsupported(
            fmt::format("'index_head_dim' is {}, and {} channels of a head are rotated", indexer.dim, rotated),
            "the indexer's heads have at least the channels that are rotated");
    config.blockIndexer = indexer;
}

void readExperts(const ConfigReader& reader, ModelConfig& config) {
    ExpertConfig experts;
    experts.count = reader.integer("num_local_experts", 1, 4096);
    experts.used = reader.integer("num_experts_per_tok", 1, experts.count);
    experts.width = config.ffn;
    experts.sharedWidth = reader.integer("shared_intermediate_size", 1, 1 << 20);
    experts.score = ExpertScore::Sigmoid;
    experts.choiceBias = true;
    experts.normalise = true;
    experts.scale = float(reader.number("routed_scaling_factor", 0, 1e6));
    config.ffn = reader.integer("dense_intermediate_size", 1, 1 << 20);
    config.experts = experts;
    const bool published = reader.has("moe_layer_freq");
    if (!readExpertLayers(reader, config))
        config.experts->layers = published ? flagsOf(reader, "moe_layer_freq", config.layers)
                                           : std::vector<bool>(std::size_t(config.layers), true);
    const std::vector<bool>& layers = config.experts->layers;
    if (std::find(layers.begin(), layers.end(), true) == layers.end()) config.experts.reset();
}

constexpr const char* kDefaults = R"({"vocab_size": 200064, "hidden_size": 6144, "intermediate_size": 3072,
        "num_hidden_layers": 60, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
        "hidden_act": "silu", "max_position_embeddings": 524288, "rms_norm_eps": 1e-6, "bos_token_id": 200034,
        "eos_token_id": 200020, "tie_word_embeddings": false, "num_experts_per_tok": 4, "num_local_experts": 128,
        "rope_theta": 5000000.0, "dense_intermediate_size": 12288, "shared_intermediate_size": 3072,
        "routed_scaling_factor": 2.0, "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "mlp_layer_types": null,
        "index_n_heads": 4, "index_head_dim": 128, "index_block_size": 128, "index_topk_blocks": 16,
        "index_local_blocks": 1, "layer_types": null})";

void readText(const ConfigReader& reader, ModelConfig& config) {
    config.attentionBias = config.outputBias = config.feedForwardBias = config.expertBias = Bias::None;
    config.queryKeyNorm = config.normsAddOne = true;
    config.boundedGate =
        BoundedGate{float(reader.number("swiglu_alpha", -1e6, 1e6)), float(reader.number("swiglu_limit", 1e-6, 1e30))};
    readExperts(reader, config);
    readIndexer(reader, config);
    // The class has this key and computes by partial_rotary_factor alone.
    if (const int head = reader.integerOr("head_dim", config.hidden / config.queryHeads, 1, 1 << 12);
        reader.has("rotary_dim") &&
        reader.integer("rotary_dim", 0, 1 << 12) != int(head * RopeConfig::rotatedShare(reader)))
        config.notes.push_back(fmt::format("config.json has rotary_dim {}: partial_rotary_factor rotates {} channels, "
                                           "as transformers does",
                                           reader.integer("rotary_dim", 0, 1 << 12),
                                           int(head * RopeConfig::rotatedShare(reader))));
}

} // namespace

Architecture minimaxM3Architecture() {
    Architecture minimax;
    minimax.family = "minimax-m3";
    minimax.title = "MiniMax-M3";
    minimax.classes = {"MiniMaxM3SparseForConditionalGeneration"};
    minimax.modelTypes = {"minimax_m3_vl"};
    minimax.aliases = {{"num_experts", "num_local_experts"}};
    minimax.defaults = kDefaults;
    minimax.rotatesPart = true;
    minimax.textPart = textPart;
    TensorNames& names = minimax.names;
    names.embedding = "language_model.model.embed_tokens.weight";
    names.head = "language_model.lm_head.weight";
    names.finalNorm = "language_model.model.norm.weight";
    names.layers = "language_model.model.layers.";
    names.mixture.prefix = "block_sparse_moe.";
    names.mixture.choiceBias = "e_score_correction_bias";
    names.mixture.expert = {"w1", "w3", "w2"};
    minimax.read = readText;
    return minimax;
}

/// The class of the text alone, which transformers writes with the names and the joined matrices of its own modules.
Architecture minimaxM3TextArchitecture() {
    Architecture minimax;
    minimax.family = "minimax-m3-text";
    minimax.title = "MiniMax-M3's text model";
    minimax.classes = {"MiniMaxM3VLForCausalLM"};
    minimax.modelTypes = {"minimax_m3_vl_text"};
    minimax.aliases = {{"num_experts", "num_local_experts"}};
    minimax.defaults = kDefaults;
    minimax.rotatesPart = true;
    minimax.names.blockIndexer = "indexer.";
    minimax.names.gateUp = "gate_up_proj";
    minimax.read = readText;
    return minimax;
}

} // namespace kvscope
