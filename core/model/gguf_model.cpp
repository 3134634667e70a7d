#include "core/model/gguf_model.h"

#include "core/model/json_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvscope {
namespace {

using Json = nlohmann::ordered_json;

/// What a converter calls an architecture, and what it did to it.
struct GgufArchitecture {
    const char *name, *className, *modelType;
    bool interleaved; // query and key rows in the order of neighbouring channels
};
constexpr GgufArchitecture kArchitectures[] = {
    {"llama", "LlamaForCausalLM", "llama", true}, // Llama, SmolLM2, Mistral
    {"qwen2", "Qwen2ForCausalLM", "qwen2", false},
    {"qwen3", "Qwen3ForCausalLM", "qwen3", false},
    {"qwen3moe", "Qwen3MoeForCausalLM", "qwen3_moe", false},
    {"minicpm", "MiniCPMForCausalLM", "minicpm", true},
    {"deepseek2", "DeepseekV2ForCausalLM", "deepseek_v2", false},
};

const GgufArchitecture& architectureOf(const GgufFile& file) {
    const auto name = file.text("general.architecture");
    if (!name)
        throw Error(ErrorKind::BadInput, file.origin() + ": general.architecture is missing",
                    "the file is no language model, or is not the first of its parts");
    for (const GgufArchitecture& known : kArchitectures)
        if (*name == known.name) return known;
    std::vector<std::string_view> names;
    for (const GgufArchitecture& known : kArchitectures) names.emplace_back(known.name);
    throw Error(ErrorKind::Unsupported,
                fmt::format("{}: the architecture '{}' is not supported", file.origin(), shown(toValidUtf8(*name))),
                fmt::format("GGUF files of these architectures run here: {}", fmt::join(names, ", ")));
}

/// One layer's tensors; experts are told by their name's end.
struct Rename {
    std::string_view gguf, checkpoint;
};
constexpr Rename kModelNames[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};
constexpr Rename kLayerNames[] = {{"attn_norm", "input_layernorm"},
                                  {"attn_q", "self_attn.q_proj"},
                                  {"attn_k", "self_attn.k_proj"},
                                  {"attn_v", "self_attn.v_proj"},
                                  {"attn_output", "self_attn.o_proj"},
                                  {"attn_q_norm", "self_attn.q_norm"},
                                  {"attn_k_norm", "self_attn.k_norm"},
                                  {"attn_q_a", "self_attn.q_a_proj"},
                                  {"attn_q_a_norm", "self_attn.q_a_layernorm"},
                                  {"attn_q_b", "self_attn.q_b_proj"},
                                  {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
                                  {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
                                  {"attn_kv_b", "self_attn.kv_b_proj"},
                                  {"ffn_norm", "post_attention_layernorm"},
                                  {"ffn_gate", "mlp.gate_proj"},
                                  {"ffn_up", "mlp.up_proj"},
                                  {"ffn_down", "mlp.down_proj"},
                                  {"ffn_gate_inp", "mlp.gate"},
                                  {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
                                  {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
                                  {"ffn_down_shexp", "mlp.shared_experts.down_proj"}};
constexpr Rename kExpertNames[] = {
    {"ffn_gate_exps", "gate_proj"}, {"ffn_up_exps", "up_proj"}, {"ffn_down_exps", "down_proj"}};

std::string_view renamed(std::span<const Rename> names, std::string_view name) {
    for (const Rename& rename : names)
        if (rename.gguf == name) return rename.checkpoint;
    return {};
}

/// Adds `view` to the table under the names the loader knows; a tensor it does not know keeps its own.
void insertRenamed(const std::string& name, const TensorView& view, TensorTable& table) {
    const auto add = [&](std::string as, TensorView what) {
        if (!table.insert(std::move(as), std::move(what)))
            throw Error(ErrorKind::BadInput,
                        fmt::format("{}: the tensor '{}' is in two parts", view.file, shown(toValidUtf8(name))),
                        "the parts do not belong together: download them again");
    };
    const std::size_t dot = name.rfind('.'); // before "weight" or "bias"
    if (dot == std::string::npos) return add(name, view);
    const std::string_view stem(name.data(), dot), ending(name.data() + dot, name.size() - dot);
    if (!stem.starts_with("blk.")) {
        const std::string_view known = renamed(kModelNames, stem);
        return add(known.empty() ? name : fmt::format("{}{}", known, ending), view);
    }
    const std::size_t afterLayer = stem.find('.', 4);
    if (afterLayer == std::string_view::npos) return add(name, view);
    const std::string layer = fmt::format("model.layers.{}.", stem.substr(4, afterLayer - 4));
    const std::string_view part = stem.substr(afterLayer + 1);
    if (part == "exp_probs_b") return add(layer + "mlp.gate.e_score_correction_bias", view);
    if ((part == "attn_k_b" || part == "attn_v_b") && view.shape.size() == 3) { // heads one after the other
        TensorView rows = view;
        rows.shape = {view.shape[0] * view.shape[1], view.shape[2]};
        return add(fmt::format("{}self_attn.{}_proj{}", layer, part.substr(5), ending), std::move(rows));
    }
    if (const std::string_view known = renamed(kLayerNames, part); !known.empty())
        return add(fmt::format("{}{}{}", layer, known, ending), view);
    const std::string_view expert = renamed(kExpertNames, part);
    if (expert.empty() || view.shape.size() != 3) return add(name, view);
    const auto count = std::size_t(view.shape.front()), bytes = view.bytes.size() / count;
    for (std::size_t e = 0; e < count; ++e) {
        TensorView slice = view;
        slice.shape.erase(slice.shape.begin());
        slice.bytes = view.bytes.subspan(e * bytes, bytes);
        add(fmt::format("{}mlp.experts.{}.{}{}", layer, e, expert, ending), std::move(slice));
    }
}

/// The metadata of one architecture: its keys begin with its name.
class Keys {
public:
    Keys(const GgufFile& file, const char* prefix) : file_(file), prefix_(prefix) {}
    std::string key(std::string_view name) const { return fmt::format("{}.{}", prefix_, name); }
    std::optional<std::int64_t> integer(std::string_view name) const { return file_.integer(key(name)); }
    std::optional<double> number(std::string_view name) const { return file_.number(key(name)); }
    std::int64_t need(std::string_view name) const {
        if (const auto value = integer(name)) return *value;
        throw Error(ErrorKind::BadInput,
                    fmt::format("{}: the metadata value '{}' is missing", file_.origin(), key(name)),
                    "the file was written by a converter unknown here");
    }
    /// One number, or a list of it per layer that says the same for all.
    std::optional<std::int64_t> integerOfAllLayers(std::string_view name) const {
        const auto found = file_.metadata().find(key(name));
        if (found == file_.metadata().end() || !std::holds_alternative<GgufArray>(found->second)) return integer(name);
        const auto list = file_.integers(key(name));
        if (list.empty() || !std::equal(list.begin() + 1, list.end(), list.begin()))
            throw Error(ErrorKind::Unsupported,
                        fmt::format("{}: '{}' differs from layer to layer", file_.origin(), key(name)),
                        "layers of one model are alike here");
        return list.front();
    }

private:
    const GgufFile& file_;
    const char* prefix_;
};

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
        throw Error(ErrorKind::Unsupported, fmt::format("{}: the tensor '{}' is no list of F32", view->file, name),
                    "convert the model again");
    std::vector<float> out(std::size_t(view->shape[0]));
    std::memcpy(out.data(), view->bytes.data(), view->bytes.size());
    return out;
}

void putRope(Json& json, const GgufFile& file, const Keys& keys, const TensorTable& tensors, std::int64_t context) {
    const std::string type(file.text(keys.key("rope.scaling.type")).value_or("none"));
    const auto factor = keys.number("rope.scaling.factor");
    Json scaling;
    const auto longFactors = factors(tensors, "rope_factors_long.weight"),
               shortFactors = factors(tensors, "rope_factors_short.weight"),
               frequencies = factors(tensors, "rope_freqs.weight");
    const std::int64_t original = keys.integer("rope.scaling.original_context_length").value_or(context);
    if (longFactors && shortFactors) {
        scaling = {{"rope_type", "longrope"}, {"long_factor", *longFactors}, {"short_factor", *shortFactors}};
        put(scaling, "attention_factor", keys.number("rope.scaling.attn_factor"));
        scaling["original_max_position_embeddings"] = original;
        json["original_max_position_embeddings"] = original;
    } else if (frequencies) {
        // Llama 3's scaling was worked out by the converter; LongRoPE can state the result as it is.
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
            // Latent attention (DeepSeek): the converter keeps a tenth of mscale_all_dim.
            if (const auto multiplier = keys.number("rope.scaling.yarn_log_multiplier"))
                scaling["mscale"] = scaling["mscale_all_dim"] = *multiplier * 10;
        }
    } else if (type != "none") {
        throw Error(ErrorKind::Unsupported,
                    fmt::format("{}: the RoPE scaling '{}' is not supported", file.origin(), shown(toValidUtf8(type))),
                    "GGUF files have the scalings linear, yarn, or factors as tensors");
    }
    if (!scaling.is_null()) json["rope_scaling"] = scaling;
}

void putExperts(Json& json, const GgufFile& file, const Keys& keys) {
    put(json, "n_routed_experts", keys.integer("expert_count"));
    put(json, "num_experts", keys.integer("expert_count"));
    put(json, "num_experts_per_tok", keys.integer("expert_used_count"));
    put(json, "n_shared_experts", keys.integer("expert_shared_count"));
    put(json, "moe_intermediate_size", keys.integer("expert_feed_forward_length"));
    put(json, "first_k_dense_replace", keys.integer("leading_dense_block_count"));
    put(json, "routed_scaling_factor", keys.number("expert_weights_scale"));
    if (const auto normalised = file.flag(keys.key("expert_weights_norm"))) json["norm_topk_prob"] = *normalised;
}

void putLatentAttention(Json& json, const Keys& keys) {
    const std::int64_t rope = keys.need("rope.dimension_count");
    json["kv_lora_rank"] = keys.need("attention.kv_lora_rank");
    if (const auto rank = keys.integer("attention.q_lora_rank"))
        json["q_lora_rank"] = *rank;
    else
        json["q_lora_rank"] = nullptr;
    // Files for absorbed projections state the latent's sizes as the heads', and the heads' own beside them.
    const std::int64_t key =
        keys.integer("attention.key_length_mla").value_or(keys.integer("attention.key_length").value_or(0));
    const auto value = keys.integer("attention.value_length_mla");
    json["qk_rope_head_dim"] = rope;
    json["qk_nope_head_dim"] = key - rope;
    json["v_head_dim"] = value.value_or(keys.integer("attention.value_length").value_or(0));
}

} // namespace

TensorTable ggufTensors(std::span<const GgufFile> parts) {
    TensorTable table;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const GgufFile& part = parts[i];
        const auto count = part.integer("split.count").value_or(1), index = part.integer("split.no").value_or(0);
        if (count != std::int64_t(parts.size()) || (count > 1 && index != std::int64_t(i)))
            throw Error(ErrorKind::BadInput,
                        fmt::format("{}: this is part {} of {}, where part {} of {} is expected", part.origin(),
                                    index + 1, count, i + 1, parts.size()),
                        "keep the names NAME-00001-of-0000N.gguf of a split model, all in one folder");
        for (const auto& [name, view] : part.tensors()) insertRenamed(name, view, table);
    }
    return table;
}

std::string ggufConfigJson(const GgufFile& file, const TensorTable& tensors) {
    const GgufArchitecture& architecture = architectureOf(file);
    const Keys keys(file, architecture.name);
    Json json;
    std::string className = architecture.className, modelType = architecture.modelType;
    const auto experts = keys.integer("expert_count").value_or(0);
    if (std::string_view(architecture.name) == "llama" && experts > 0)
        throw Error(ErrorKind::Unsupported, file.origin() + ": a llama with experts (Mixtral) is not supported",
                    "use a dense model, or the safetensors checkpoint");
    json["architectures"] = {className};
    json["model_type"] = modelType;
    const std::int64_t heads = keys.need("attention.head_count"), hidden = keys.need("embedding_length"),
                       context = keys.need("context_length");
    json["num_hidden_layers"] = keys.need("block_count");
    json["hidden_size"] = hidden;
    json["num_attention_heads"] = heads;
    put(json, "num_key_value_heads", keys.integerOfAllLayers("attention.head_count_kv"));
    put(json, "intermediate_size", keys.integerOfAllLayers("feed_forward_length"));
    json["max_position_embeddings"] = context;
    const auto epsilon = keys.number("attention.layer_norm_rms_epsilon");
    if (!epsilon) keys.need("attention.layer_norm_rms_epsilon");
    json["rms_norm_eps"] = *epsilon;
    json["hidden_act"] = "silu";
    json["rope_theta"] = keys.number("rope.freq_base").value_or(10000.0);
    if (std::string_view(architecture.name) == "deepseek2") {
        json["num_key_value_heads"] = heads; // 1 in files for absorbed projections
        putLatentAttention(json, keys);
    } else {
        const auto headDim = keys.integer("attention.key_length");
        const std::int64_t rotated = keys.integer("rope.dimension_count").value_or(0),
                           dim = headDim.value_or(heads > 0 ? hidden / heads : 0);
        put(json, "head_dim", headDim);
        if (keys.integer("attention.value_length").value_or(dim) != dim)
            throw Error(ErrorKind::Unsupported, file.origin() + ": keys and values have different lengths",
                        "heads have one length for both here");
        if (rotated != 0 && rotated != dim)
            throw Error(ErrorKind::Unsupported,
                        fmt::format("{}: {} of a head's {} channels are rotated", file.origin(), rotated, dim),
                        "heads are rotated as a whole here");
    }
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
    if (experts > 0) putExperts(json, file, keys);
    // muP scales as the converter folded them: MiniCPM's dim_model_base only ever divides.
    if (std::string_view(architecture.name) == "minicpm") {
        const auto layers = double(keys.need("block_count"));
        put(json, "scale_emb", keys.number("embedding_scale"));
        if (const auto residual = keys.number("residual_scale")) json["scale_depth"] = *residual * std::sqrt(layers);
        if (const auto logits = keys.number("logit_scale")) json["dim_model_base"] = *logits * double(hidden);
    }
    return json.dump();
}

} // namespace kvscope
