#include "core/model/library_keys.h"

#include <algorithm>
#include <fmt/format.h>
#include <iterator>
#include <string_view>

namespace kvscope {
namespace {

/// Keys that do not change logits: names, types, training, generation, and how the library is to compute. Sorted.
constexpr std::string_view kLibraryKeysWithoutEffect[] = {
    "_attn_implementation",
    "_commit_hash",
    "_experts_implementation",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "experts_implementation",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "id2label",
    "initializer_range",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "model_type",
    "name_or_path",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_mtp_layers",
    "num_nextn_predict_layers",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "output_scores",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
};
static_assert(std::is_sorted(std::begin(kLibraryKeysWithoutEffect), std::end(kLibraryKeysWithoutEffect)));

/// Keys that the library's masks, caches, configurations and its search for weights read for every class.
constexpr std::string_view kReadOfEveryClass[] = {
    "attention_chunk_size", "attribute_map", "decoder",     "generator",    "is_encoder_decoder",
    "num_kv_shared_layers", "sub_configs",   "text_config", "text_encoder", "per_layer_config",
    "transformers_weights",
};

/// muP scales, which the library's class of a family other than MiniCPM3 does not apply, though they are in the file.
constexpr std::string_view kScales[] = {"scale_emb", "scale_depth", "dim_model_base"};

bool isNeutral(const nlohmann::json& value) {
    return value.is_null() || value == nlohmann::json(false) || (value.is_number() && (value == 0 || value == 1));
}

[[noreturn]] void refuse(const ConfigReader& reader, const std::string& key, const std::string& why) {
    reader.refuseUnsupported(
        fmt::format("'{}' is {}, {}", shown(key), shownJson(reader.json().at(key)), why),
        "use a checkpoint that does without, or take the key out if it says nothing of the weights");
}

/// The kinds of layers where the class knows one kind alone: they must say what it does anyway.
void checkLayerTypes(const ConfigReader& reader, const ModelConfig& config) {
    if (!reader.has("layer_types")) return;
    const auto types = reader.texts("layer_types");
    const bool slides =
        std::any_of(config.windows.begin(), config.windows.end(), [](int window) { return window > 0; });
    const std::string_view usual = slides ? "sliding_attention" : "full_attention";
    if (int(types.size()) != config.layers)
        reader.refuse(fmt::format("'layer_types' has {} entries for {} layers", types.size(), config.layers));
    for (const std::string& type : types)
        if (type != usual && type != "full_attention")
            refuse(reader, "layer_types", "and the layers of this architecture are of one kind");
}

} // namespace

std::vector<std::string> judgeUnreadKeys(const ConfigReader& reader, const nlohmann::json& stated,
                                         const Architecture& architecture, const ModelConfig& config) {
    // A model that sees what comes after a token cannot be decoded; null and 0 are false here.
    if (reader.states("is_causal") && stated.at("is_causal") != nlohmann::json(true))
        refuse(reader, "is_causal", "and only causal models are decoded");
    std::vector<std::string> unread = reader.unread();
    std::erase_if(unread, [&](const std::string& key) { return !stated.contains(key); });
    const auto isUnread = [&](std::string_view key) {
        return std::find(unread.begin(), unread.end(), key) != unread.end();
    };
    if (isUnread("layer_types")) checkLayerTypes(reader, config);
    if (isUnread("sliding_window") && reader.has("sliding_window") && architecture.inLibrary)
        refuse(reader, "sliding_window", "and this architecture has no sliding window");
    std::vector<std::string> unknown;
    for (const std::string& key : unread) {
        const auto isIn = [&](const auto& list) {
            return std::find(std::begin(list), std::end(list), key) != std::end(list);
        };
        const nlohmann::json& value = stated.at(key);
        if (std::binary_search(std::begin(kLibraryKeysWithoutEffect), std::end(kLibraryKeysWithoutEffect),
                               std::string_view(key)) ||
            key == "layer_types" || (key == "sliding_window" && value.is_null()))
            continue;
        if (isIn(kReadOfEveryClass) && !isNeutral(value))
            refuse(reader, key, "which the transformers library heeds and this version does not");
        const bool scalesNothing = value.is_null() || value == 1 || (key == "dim_model_base" && value == config.hidden);
        if (isIn(kScales) && !scalesNothing)
            refuse(reader, key, fmt::format("which {} models do not apply", architecture.title));
        unknown.push_back(key);
    }
    return unknown;
}

} // namespace kvscope
