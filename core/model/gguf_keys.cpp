#include "core/model/gguf_keys.h"

#include "base/json_reading.h"
#include "base/utf8.h"

#include <algorithm>
#include <fmt/format.h>
#include <iterator>

namespace kvscope {
namespace {

/// Keys without effect: sizes that the tensors state themselves, notes on what was done to a model, and what only
/// embeddings use. Sorted.
constexpr std::string_view kGgufKeysWithoutEffect[] = {
    "attention.key_length_swa",
    "attention.layer_norm_epsilon",
    "attention.value_length_swa",
    "embedding_length_out",
    "expert_feed_forward_length",
    "expert_shared_count",
    "expert_shared_feed_forward_length",
    "expert_used_count",
    "leading_dense_block_count",
    "pooling_type",
    "rope.freq_base_swa",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.scaling.yarn_log_multiplier",
    "tensor_data_layout",
    "vocab_size",
};
static_assert(std::is_sorted(std::begin(kGgufKeysWithoutEffect), std::end(kGgufKeysWithoutEffect)));

/// A key that changes what is computed, unless it has one of the values that change nothing: none, one of two numbers,
/// or a truth value.
struct Changing {
    std::string_view name;
    std::optional<double> first, second = {};
    std::optional<bool> flag = {};
};
constexpr Changing kChanging[] = {
    {"activation_sparsity_scale", 0},
    {"attention.causal", {}, {}, true},
    {"attention.clamp_kqv", 0},
    {"attention.max_alibi_bias", 0},
    {"attention.output_scale", 0, 1},
    {"attention.relative_buckets_count", 0},
    {"attention.scale", 0},
    {"attention.shared_kv_layers", 0},
    {"attention.sliding_window", 0},
    {"attention.temperature_length", 0},
    {"attention.temperature_scale", 0},
    {"attn_logit_softcapping", 0},
    {"embedding_length_per_layer_input", 0},
    {"embedding_scale", 0, 1},
    {"expert_gating_func", 0, 1}, // 1: softmax
    {"expert_group_count", 0, 1},
    {"expert_group_scale", 0, 1},
    {"expert_group_used_count", 0, 1},
    {"expert_weights_scale", 0, 1},
    {"final_logit_softcapping", 0},
    {"full_attention_interval", 0, 1},
    {"interleave_moe_layer_step", 0, 1},
    {"logit_scale", 0, 1},
    {"moe_every_n_layers", 0, 1},
    {"num_deepstack_layers", 0},
    {"rescale_every_n_layers", 0},
    {"residual_scale", 0, 1},
    {"rope.scaling.alpha", 0, 1},
    {"rope.scaling.attn_factor", 1},
    {"rope.scaling.yarn_attn_factor", 1},
    {"router_logit_softcapping", 0},
    {"swiglu_clamp_exp", 0},
    {"swiglu_clamp_shexp", 0},
    {"use_parallel_residual", {}, {}, false},
};

/// Parts of keys that only other architectures have: their layers are no attention, or choose the keys they attend to,
/// or have parts that ours lack.
constexpr std::string_view kOtherParts[] = {
    "altup.", "attention.indexer.", "deepstack", "kda.", "shortconv.", "ssm.", "wkv.", "xielu."};

/// Beginnings of the keys in which a file describes itself and its tokenizer. Other functions read these.
constexpr std::string_view kOfFiles[] = {"general.", "imatrix.", "quantize.", "split.", "tokenizer."};

template <class Type> const Type* as(const GgufValue& value) { return std::get_if<Type>(&value); }

bool isNeutral(const Changing& rule, const GgufValue& value) {
    if (const bool* flag = as<bool>(value)) return rule.flag == *flag;
    std::optional<double> number;
    if (const auto* whole = as<std::int64_t>(value)) number = double(*whole);
    if (const auto* real = as<double>(value)) number = *real;
    return number && (number == rule.first || number == rule.second);
}

std::string shownValue(const GgufValue& value) {
    if (const auto* whole = as<std::int64_t>(value)) return std::to_string(*whole);
    if (const auto* real = as<double>(value)) return fmt::format("{:.6g}", *real);
    if (const bool* flag = as<bool>(value)) return *flag ? "true" : "false";
    if (const auto* words = as<std::string_view>(value)) return shown(toValidUtf8(*words));
    return "a list";
}

} // namespace

std::string GgufKeys::key(std::string_view name) const { return fmt::format("{}.{}", prefix_, name); }

std::string GgufKeys::asked(std::string_view name) const {
    asked_.emplace(name);
    return key(name);
}

void GgufKeys::missing(std::string_view name) const {
    throw Error(ErrorKind::BadInput, fmt::format("{}: the metadata value '{}' is missing", origin(), key(name)),
                "the file was written by a converter unknown here");
}

std::int64_t GgufKeys::need(std::string_view name) const {
    if (const auto value = count(name)) return *value;
    missing(name);
}

std::optional<std::int64_t> GgufKeys::count(std::string_view name) const {
    constexpr std::int64_t most = 1 << 24;
    const auto value = integer(name);
    if (value && (*value < 0 || *value > most))
        throw Error(ErrorKind::BadInput,
                    fmt::format("{}: '{}' is {}, not between 0 and {}", origin(), key(name), *value, most),
                    "the file is damaged: download it again");
    return value;
}

std::optional<std::int64_t> GgufKeys::integerOfAllLayers(std::string_view name) const {
    const auto found = file_.metadata().find(asked(name));
    if (found == file_.metadata().end() || !std::holds_alternative<GgufArray>(found->second)) return integer(name);
    const auto list = file_.integers(key(name));
    if (list.empty() || !std::equal(list.begin() + 1, list.end(), list.begin()))
        throw Error(ErrorKind::Unsupported, fmt::format("{}: '{}' differs from layer to layer", origin(), key(name)),
                    "layers of one model are alike here");
    return list.front();
}

std::vector<std::string> GgufKeys::judgeUnread() const {
    std::vector<std::string> unknown;
    const std::string own = key("");
    const std::int64_t context = file_.integer(key("context_length")).value_or(0);
    for (const auto& [whole, value] : file_.metadata()) {
        const bool mine = whole.starts_with(own);
        const std::string_view name = mine ? whole.substr(own.size()) : whole;
        if (mine && (asked_.contains(name) ||
                     std::binary_search(std::begin(kGgufKeysWithoutEffect), std::end(kGgufKeysWithoutEffect), name)))
            continue;
        const auto refuse = [&, whole = whole, &value = value](const char* why) {
            throw Error(ErrorKind::Unsupported,
                        fmt::format("{}: '{}' is {}, {}", origin(), shown(toValidUtf8(whole)), shownValue(value), why),
                        "use a file of a model that does without");
        };
        const auto rule =
            std::find_if(std::begin(kChanging), std::end(kChanging), [&](const Changing& c) { return c.name == name; });
        if (mine && rule != std::end(kChanging)) {
            const auto* whole64 = as<std::int64_t>(value);
            const bool idle = name == "attention.sliding_window" && whole64 != nullptr && *whole64 >= context;
            if (!idle && !isNeutral(*rule, value))
                refuse("which changes what is computed and is not done by this version");
            continue;
        }
        if (mine && std::any_of(std::begin(kOtherParts), std::end(kOtherParts),
                                [&](std::string_view part) { return name.starts_with(part); }))
            refuse("of a part that this architecture does not have here");
        if (mine || std::none_of(std::begin(kOfFiles), std::end(kOfFiles),
                                 [&](std::string_view part) { return name.starts_with(part); }))
            unknown.push_back(toValidUtf8(whole));
    }
    return unknown;
}

} // namespace kvscope
