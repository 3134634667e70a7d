#include "core/model/gguf_architecture.h"

#include "base/json_reading.h"
#include "base/utf8.h"
#include "core/model/architecture.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvscope {
namespace {

constexpr GgufArchitecture kArchitectures[] = {
    {"llama", "LlamaForCausalLM", "llama", true}, // Llama, SmolLM2, Mistral
    {"qwen2", "Qwen2ForCausalLM", "qwen2", false},
    {"qwen3", "Qwen3ForCausalLM", "qwen3", false},
    {"qwen2moe", "Qwen2MoeForCausalLM", "qwen2_moe", false},
    {"qwen3moe", "Qwen3MoeForCausalLM", "qwen3_moe", false},
    {"minicpm", "MiniCPMForCausalLM", "minicpm", true},
    {"minicpm3", "MiniCPM3ForCausalLM", "minicpm3", false},
    {"deepseek2", "DeepseekV2ForCausalLM", "deepseek_v2", false},
};
constexpr GgufArchitecture kMixtral = {"llama", "MixtralForCausalLM", "mixtral", true};
constexpr GgufArchitecture kDeepseek3 = {"deepseek2", "DeepseekV3ForCausalLM", "deepseek_v3", false};
constexpr std::int64_t kSigmoid = 2;        // expert_gating_func
constexpr std::int64_t kMostExperts = 4096; // what a configuration may have

bool hasChoiceBias(std::span<const GgufFile> parts) {
    for (const GgufFile& part : parts)
        for (const auto& [name, tensor] : part.tensors())
            if (name.find(".exp_probs_b") != std::string::npos) return true;
    return false;
}

/// A tensor name that is the same in every file, and its name in every checkpoint. Names of experts differ by
/// architecture.
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
                                  {"ffn_down", "mlp.down_proj"}};

std::string_view renamed(std::span<const Rename> names, std::string_view name) {
    for (const Rename& rename : names)
        if (rename.gguf == name) return rename.checkpoint;
    return {};
}

const TensorNames& namesOf(const std::string& className) {
    static const TensorNames usual;
    for (const Architecture& known : architectures())
        if (std::find(known.classes.begin(), known.classes.end(), className) != known.classes.end()) return known.names;
    return usual;
}

using NamedTensors = std::vector<std::pair<std::string, TensorView>>;

/// The matrices of a list of them, one per expert.
NamedTensors expertsOf(const TensorView& list, const std::string& prefix, const std::string& suffix) {
    NamedTensors out;
    const auto count = std::size_t(list.shape.front());
    const std::size_t bytes = list.bytes.size() / count;
    for (std::size_t e = 0; e < count; ++e) {
        TensorView slice = list;
        slice.shape.erase(slice.shape.begin());
        slice.bytes = list.bytes.subspan(e * bytes, bytes);
        out.emplace_back(fmt::format("{}{}.{}", prefix, e, suffix), std::move(slice));
    }
    return out;
}

/// The names that a checkpoint has for one of a layer's tensors; nothing when the tensor is unknown. `layer`:
/// "model.layers.3.", `part`: "attn_q", `ending`: ".weight" or ".bias".
NamedTensors ofLayer(const TensorNames& names, const std::string& layer, std::string_view part, std::string_view ending,
                     TensorView view) {
    if (const auto known = renamed(kLayerNames, part); !known.empty())
        return {{fmt::format("{}{}{}", layer, known, ending), std::move(view)}};
    if ((part == "attn_k_b" || part == "attn_v_b") && view.shape.size() == 3) { // heads one after the other
        view.shape = {view.shape[0] * view.shape[1], view.shape[2]};
        return {{fmt::format("{}self_attn.{}_proj{}", layer, part.substr(5), ending), std::move(view)}};
    }
    const std::string mixture = layer + names.mixture.prefix;
    if (part == "ffn_gate_inp") return {{mixture + names.mixture.router, std::move(view)}};
    if (part == "exp_probs_b") return {{mixture + names.mixture.choiceBias, std::move(view)}};
    if (part == "ffn_gate_inp_shexp") {
        if (view.shape.size() == 1) view.shape.insert(view.shape.begin(), 1); // a matrix of one row, stored as a list
        return {{mixture + names.mixture.sharedGate, std::move(view)}};
    }
    const struct {
        std::string_view gguf;
        const std::string &shared, &expert;
    } projections[] = {{"ffn_gate", names.feedForward.gate, names.mixture.expert.gate},
                       {"ffn_up", names.feedForward.up, names.mixture.expert.up},
                       {"ffn_down", names.feedForward.down, names.mixture.expert.down}};
    for (const auto& projection : projections) {
        if (!part.starts_with(projection.gguf)) continue;
        const std::string_view kind = part.substr(projection.gguf.size());
        if (kind == "_shexp")
            return {
                {fmt::format("{}{}{}{}", mixture, names.mixture.shared, projection.shared, ending), std::move(view)}};
        if (kind == "_exps" && view.shape.size() == 3 && view.shape.front() <= kMostExperts)
            return expertsOf(view, mixture + names.mixture.experts, fmt::format("{}{}", projection.expert, ending));
    }
    return {};
}

} // namespace

GgufArchitecture ggufArchitecture(std::span<const GgufFile> parts) {
    const GgufFile& file = parts.front();
    const auto name = file.text("general.architecture");
    if (!name)
        throw Error(ErrorKind::BadInput, file.origin() + ": general.architecture is missing",
                    "the file is not a language model, or is not the first of its parts");
    const auto key = [&](const char* what) { return fmt::format("{}.{}", *name, what); };
    for (const GgufArchitecture& known : kArchitectures) {
        if (*name != known.name) continue;
        if (*name == kMixtral.name && file.integer(key("expert_count")).value_or(0) > 0) return kMixtral;
        if (*name == kDeepseek3.name && (file.integer(key("expert_gating_func")) == kSigmoid || hasChoiceBias(parts)))
            return kDeepseek3;
        return known;
    }
    std::vector<std::string_view> names;
    for (const GgufArchitecture& known : kArchitectures) names.emplace_back(known.name);
    throw Error(ErrorKind::Unsupported,
                fmt::format("{}: the architecture '{}' is not supported", file.origin(), shown(toValidUtf8(*name))),
                fmt::format("GGUF files of these architectures run here: {}", fmt::join(names, ", ")));
}

void insertRenamed(const std::string& className, const std::string& name, const TensorView& view, TensorTable& table) {
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
    NamedTensors found = ofLayer(namesOf(className), fmt::format("model.layers.{}.", stem.substr(4, afterLayer - 4)),
                                 stem.substr(afterLayer + 1), ending, view);
    if (found.empty()) return add(name, view);
    for (auto& [as, what] : found) add(std::move(as), std::move(what));
}

} // namespace kvscope
