#include "core/model/gguf_model.h"

#include "base/json_reading.h"
#include "base/utf8.h"
#include "core/model/gguf_architecture.h"
#include "core/model/gguf_keys.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace kvscope {
namespace {

using Json = nlohmann::ordered_json;

void put(Json& json, const char* key, std::optional<std::int64_t> value) {
    if (value) json[key] = *value;
}
void put(Json& json, const char* key, std::optional<double> value) {
    if (value) json[key] = *value;
}

/// The RoPE factors of a tensor; a factor divides its channel pair's frequency.
std::optional<std::vector<float>> factors(const TensorTable& tensors, const char* name) {
    const TensorView* view = tensors.find(name);
    if (view == nullptr) return std::nullopt;
    if (view->dtype != "F32" || view->shape.size() != 1)
        throw Error(ErrorKind::Unsupported, fmt::format("{}: the tensor '{}' is not a list of F32", view->file, name),
                    "convert the model again");
    std::vector<float> out(std::size_t(view->shape[0]));
    std::memcpy(out.data(), view->bytes.data(), view->bytes.size());
    return out;
}

/// The number by which positions are divided: rope.scaling.factor, or rope.scale_linear of older files. llama.cpp takes
/// 0 for none.
std::optional<double> ropeFactor(const GgufKeys& keys) {
    auto factor = keys.number("rope.scaling.factor");
    if (!factor) factor = keys.number("rope.scale_linear");
    return factor && *factor != 0 ? factor : std::nullopt;
}

void putRope(Json& json, const GgufFile& file, const GgufKeys& keys, const TensorTable& tensors, std::int64_t context) {
    const auto stated = ropeFactor(keys);
    // As llama.cpp reads it: a factor without a type is linear, and type none takes no factor.
    std::string type(keys.text("rope.scaling.type").value_or(stated ? "linear" : "none"));
    const std::optional<double> factor = type == "none" ? std::nullopt : stated;
    if (type == "linear" && factor.value_or(1) == 1) type = "none";
    Json scaling;
    const auto longFactors = factors(tensors, "rope_factors_long.weight"),
               shortFactors = factors(tensors, "rope_factors_short.weight"),
               frequencies = factors(tensors, "rope_freqs.weight");
    const std::int64_t original = keys.integer("rope.scaling.original_context_length").value_or(context);
    const bool both = (longFactors && shortFactors) || frequencies;
    if (both && type != "longrope" && factor.value_or(1) != 1)
        throw Error(
            ErrorKind::Unsupported,
            fmt::format("{}: RoPE factors for each channel and a factor for all ({}) together are not supported",
                        file.origin(), keys.key("rope.scaling.factor")),
            "convert the model again");
    if (type != "none" && type != "linear" && type != "yarn" && type != "longrope")
        throw Error(ErrorKind::Unsupported,
                    fmt::format("{}: the RoPE scaling '{}' is not supported", file.origin(), shown(toValidUtf8(type))),
                    "GGUF files have the scalings linear, yarn, or factors as tensors");
    if ((type == "yarn" && both) || (type == "longrope" && !(longFactors && shortFactors)))
        throw Error(ErrorKind::Unsupported,
                    fmt::format("{}: the RoPE scaling '{}' does not go with {}", file.origin(), type,
                                both ? "the factors for each channel that the file has" : "a file without factors"),
                    "convert the model again");
    if (longFactors && shortFactors) {
        scaling = {{"rope_type", "longrope"}, {"long_factor", *longFactors}, {"short_factor", *shortFactors}};
        put(scaling, "attention_factor", keys.number("rope.scaling.attn_factor"));
        scaling["original_max_position_embeddings"] = original;
        json["original_max_position_embeddings"] = original;
    } else if (frequencies) {
        // The converter has worked out Llama 3's scaling: a factor for each channel pair. A configuration of LongRoPE
        // can state these factors as they are.
        scaling = {{"rope_type", "longrope"},
                   {"long_factor", *frequencies},
                   {"short_factor", *frequencies},
                   {"attention_factor", 1.0},
                   {"original_max_position_embeddings", context}};
        json["original_max_position_embeddings"] = context;
    } else if (type == "linear" || type == "yarn") {
        scaling = {{"rope_type", type}};
        put(scaling, "factor", factor);
        if (type == "yarn") {
            scaling["original_max_position_embeddings"] = original;
            put(scaling, "beta_fast", keys.number("rope.scaling.yarn_beta_fast"));
            put(scaling, "beta_slow", keys.number("rope.scaling.yarn_beta_slow"));
            put(scaling, "attention_factor", keys.number("rope.scaling.yarn_attn_factor"));
            // Latent attention (DeepSeek): the converter keeps a tenth of mscale_all_dim.
            if (const auto multiplier = keys.number("rope.scaling.yarn_log_multiplier"))
                scaling["mscale"] = scaling["mscale_all_dim"] = *multiplier * 10;
        }
    }
    // How much of yarn's ramp is used; below 0, the type decides.
    const auto ramp = keys.number("rope.scaling.yarn_ext_factor");
    if (ramp && *ramp >= 0 && *ramp != (type == "yarn" ? 1 : 0))
        throw Error(ErrorKind::Unsupported,
                    fmt::format("{}: '{}' is {:.6g}, which RoPE scaling of type {} has no use for here", file.origin(),
                                keys.key("rope.scaling.yarn_ext_factor"), *ramp, shown(toValidUtf8(type))),
                    "use a file of a model that does without");
    if (!scaling.is_null()) json["rope_scaling"] = scaling;
}

/// Rows of a tensor, where it is there.
std::optional<std::int64_t> rowsOf(const TensorTable& tensors, const std::string& name) {
    const TensorView* view = tensors.find(name);
    if (view == nullptr || view->shape.size() != 2) return std::nullopt;
    return view->shape[0];
}

std::optional<std::int64_t> orElse(std::optional<std::int64_t> first, std::optional<std::int64_t> second) {
    return first ? first : second;
}

/// Which layers have experts: those whose tensors hold a router. Not every file says it, and some say it wrongly.
std::vector<bool> expertLayers(const TensorTable& tensors, std::int64_t layers) {
    constexpr std::int64_t most = 1000; // what a configuration may have
    std::vector<bool> out;
    for (std::int64_t layer = 0; layer < std::min(layers, most); ++layer)
        out.push_back(tensors.find(fmt::format("model.layers.{}.mlp.gate.weight", layer)) != nullptr);
    return out;
}

/// Adds the keys of Qwen's experts. The file does not say whether the weights of the chosen experts are divided by
/// their sum (norm_topk_prob): every Qwen3-MoE that is converted does it, and no Qwen2-MoE. third: a Qwen3-MoE
void putQwenExperts(Json& json, const GgufKeys& keys, const TensorTable& tensors, const std::vector<bool>& sparse,
                    bool third) {
    json["norm_topk_prob"] = third;
    json["decoder_sparse_step"] = 1;
    json["mlp_only_layers"] = Json::array();
    for (std::size_t layer = 0; layer < sparse.size(); ++layer)
        if (!sparse[layer]) json["mlp_only_layers"].push_back(layer);
    const auto first = std::find(sparse.begin(), sparse.end(), true) - sparse.begin();
    const auto width = [&](const char* of) {
        return rowsOf(tensors, fmt::format("model.layers.{}.mlp.{}.up_proj.weight", first, of));
    };
    put(json, "moe_intermediate_size", orElse(keys.integer("expert_feed_forward_length"), width("experts.0")));
    put(json, "shared_expert_intermediate_size",
        orElse(keys.integer("expert_shared_feed_forward_length"), width("shared_expert")));
}

void putDeepseekExperts(Json& json, const GgufKeys& keys, const std::vector<bool>& sparse, bool third) {
    constexpr std::int64_t softmax = 1, sigmoid = 2;
    const auto scores = keys.integer("expert_gating_func");
    if (scores.value_or(0) != 0 && *scores != (third ? sigmoid : softmax))
        throw Error(ErrorKind::Unsupported,
                    fmt::format("{}: '{}' is {}, and the experts of this architecture are chosen by {}", keys.origin(),
                                keys.key("expert_gating_func"), *scores,
                                third ? "sigmoid scores (2)" : "a softmax (1)"),
                    "use a file of a model that does without");
    json["n_shared_experts"] = keys.integer("expert_shared_count").value_or(0);
    put(json, "moe_intermediate_size", keys.integer("expert_feed_forward_length"));
    json["mlp_layer_types"] = Json::array();
    for (const bool experts : sparse) json["mlp_layer_types"].push_back(experts ? "sparse" : "dense");
    json["routed_scaling_factor"] = keys.number("expert_weights_scale").value_or(1);
    json["norm_topk_prob"] = keys.flag("expert_weights_norm").value_or(false);
    if (!third && keys.flag("expert_weights_norm").value_or(false)) // DeepSeek-V2 as its authors run it does not
        throw Error(ErrorKind::Unsupported,
                    fmt::format("{}: '{}' is true, and the experts of this architecture keep their weights",
                                keys.origin(), keys.key("expert_weights_norm")),
                    "use a file of a model that does without");
    const auto groups = keys.integer("expert_group_count");
    json["n_group"] = groups.value_or(1);
    const auto groupsUsed = keys.integer("expert_group_used_count");
    if (groups.value_or(1) > 1 && !groupsUsed) keys.missing("expert_group_used_count");
    json["topk_group"] = groupsUsed.value_or(1);
    if (!third) json["topk_method"] = groups.value_or(1) > 1 ? "group_limited_greedy" : "greedy";
}

void putLatentAttention(Json& json, const GgufKeys& keys, const TensorTable& tensors, std::int64_t heads) {
    const std::int64_t rope = keys.need("rope.dimension_count");
    json["num_key_value_heads"] = heads; // 1 in files for absorbed projections
    json["kv_lora_rank"] = keys.need("attention.kv_lora_rank");
    if (const auto rank = keys.integer("attention.q_lora_rank"); rank && *rank != 0)
        json["q_lora_rank"] = *rank;
    else
        json["q_lora_rank"] = nullptr;
    // Files for absorbed projections state the latent's sizes in the keys that elsewhere have the heads' sizes, and the
    // heads' sizes in keys of their own (_mla).
    const std::int64_t key =
        orElse(keys.count("attention.key_length_mla"), keys.count("attention.key_length")).value_or(0);
    json["qk_rope_head_dim"] = rope;
    json["qk_nope_head_dim"] = key - rope;
    auto value = orElse(keys.integer("attention.value_length_mla"), keys.integer("attention.value_length"));
    const TensorView* output = tensors.find("model.layers.0.self_attn.o_proj.weight"); // MiniCPM3 says it nowhere else
    if (!value && output != nullptr && output->shape.size() == 2 && heads > 0) value = output->shape[1] / heads;
    json["v_head_dim"] = value.value_or(0);
}

/// muP scales. Files older than the keys mean the first model's; MiniCPM3's have none at all.
void putScales(Json& json, const GgufKeys& keys, std::int64_t layers, std::int64_t hidden) {
    json["scale_emb"] = keys.number("embedding_scale").value_or(12);
    const auto residual = keys.number("residual_scale");
    json["scale_depth"] = residual ? *residual * std::sqrt(double(layers)) : 1.4;
    const auto logits = keys.number("logit_scale"); // what logits are divided by
    json["dim_model_base"] = logits && *logits != 0 ? double(hidden) / *logits : 256.0;
}

/// Plain heads: as many channels for a key as for a value, all of them rotated.
void putHeads(Json& json, const GgufFile& file, const GgufKeys& keys, std::int64_t heads, std::int64_t hidden) {
    const auto headDim = keys.integer("attention.key_length");
    const std::int64_t dim = headDim.value_or(heads > 0 ? hidden / heads : 0),
                       rotated = keys.integer("rope.dimension_count").value_or(dim);
    put(json, "head_dim", headDim);
    if (keys.integer("attention.value_length").value_or(dim) != dim)
        throw Error(ErrorKind::Unsupported, file.origin() + ": keys and values have different lengths",
                    "heads have one length for both here");
    if (rotated != dim)
        throw Error(ErrorKind::Unsupported,
                    fmt::format("{}: {} of a head's {} channels are rotated", file.origin(), rotated, dim),
                    "heads are rotated as a whole here");
}

} // namespace

TensorTable ggufTensors(std::span<const GgufFile> parts) {
    TensorTable table;
    const std::string className = ggufArchitecture(parts).className;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const GgufFile& part = parts[i];
        const auto count = part.integer("split.count").value_or(1), index = part.integer("split.no").value_or(0);
        if (count != std::int64_t(parts.size()) || (count > 1 && index != std::int64_t(i)))
            throw Error(ErrorKind::BadInput,
                        fmt::format("{}: this is part {} of {}, where part {} of {} is expected", part.origin(),
                                    index + 1, count, i + 1, parts.size()),
                        "keep the names NAME-00001-of-0000N.gguf of a split model, all in one folder");
        for (const auto& [name, view] : part.tensors()) insertRenamed(className, name, view, table);
    }
    return table;
}

std::string ggufConfigJson(std::span<const GgufFile> parts, const TensorTable& tensors,
                           std::vector<std::string>* unread) {
    const GgufArchitecture architecture = ggufArchitecture(parts);
    const GgufFile& file = parts.front();
    const std::string_view type = architecture.modelType;
    const GgufKeys keys(file, architecture.name);
    Json json;
    json["architectures"] = {architecture.className};
    json["model_type"] = type;
    const std::int64_t heads = keys.need("attention.head_count"), hidden = keys.need("embedding_length"),
                       context = keys.need("context_length");
    // Layers that only predict further tokens ahead come last and are not run.
    const std::int64_t layers = keys.need("block_count") - keys.count("nextn_predict_layers").value_or(0);
    json["num_hidden_layers"] = layers;
    json["hidden_size"] = hidden;
    json["num_attention_heads"] = heads;
    json["num_key_value_heads"] = nullptr; // as many as query heads
    put(json, "num_key_value_heads", keys.integerOfAllLayers("attention.head_count_kv"));
    put(json, "intermediate_size", keys.integerOfAllLayers("feed_forward_length"));
    json["max_position_embeddings"] = context;
    const auto epsilon = keys.number("attention.layer_norm_rms_epsilon");
    if (!epsilon) keys.missing("attention.layer_norm_rms_epsilon");
    json["rms_norm_eps"] = *epsilon;
    json["hidden_act"] = "silu";
    json["rope_theta"] = keys.number("rope.freq_base").value_or(10000.0);
    if (type.starts_with("deepseek") || type == "minicpm3")
        putLatentAttention(json, keys, tensors, heads);
    else
        putHeads(json, file, keys, heads, hidden);
    const TensorView* embedding = tensors.find("model.embed_tokens.weight");
    if (embedding == nullptr || embedding->shape.size() != 2)
        throw Error(ErrorKind::BadInput, file.origin() + ": the tensor 'token_embd.weight' is missing or no matrix",
                    "the file is incomplete: download it again");
    json["vocab_size"] = embedding->shape[0];
    json["tie_word_embeddings"] = tensors.find("lm_head.weight") == nullptr;
    put(json, "bos_token_id", file.integer("tokenizer.ggml.bos_token_id"));
    std::vector<std::int64_t> ends;
    for (const char* key :
         {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"})
        if (const auto id = file.integer(key); id && std::find(ends.begin(), ends.end(), *id) == ends.end())
            ends.push_back(*id);
    if (!ends.empty()) json["eos_token_id"] = ends;
    if (architecture.interleaved) json["rope_interleave"] = true;
    putRope(json, file, keys, tensors, context);
    if (const auto experts = keys.integer("expert_count").value_or(0); experts > 0) {
        for (const char* key : {"n_routed_experts", "num_experts", "num_local_experts"}) json[key] = experts;
        put(json, "num_experts_per_tok", keys.integer("expert_used_count"));
        const std::vector<bool> sparse = expertLayers(tensors, layers);
        if (type.starts_with("deepseek")) putDeepseekExperts(json, keys, sparse, type == "deepseek_v3");
        if (type.starts_with("qwen")) putQwenExperts(json, keys, tensors, sparse, type == "qwen3_moe");
    }
    if (type.starts_with("minicpm")) putScales(json, keys, layers, hidden);
    std::vector<std::string> unknown = keys.judgeUnread();
    if (unread != nullptr) *unread = std::move(unknown);
    return json.dump();
}

} // namespace kvscope
