// The registry: one line per architecture, and readers that several of them share.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvscope {

Architecture llamaArchitecture();
Architecture mistralArchitecture();
Architecture qwen2Architecture();
Architecture qwen3Architecture();
Architecture minicpmArchitecture();
Architecture nosaArchitecture();
Architecture minicpm3Architecture();
Architecture deepseek2Architecture();
Architecture deepseek3Architecture();
Architecture glm4LiteArchitecture();
Architecture deepseek32Architecture();
Architecture glmDsaArchitecture();
Architecture minimaxM3Architecture();
Architecture minimaxM3TextArchitecture();
Architecture mixtralArchitecture();
Architecture qwen2MoeArchitecture();
Architecture qwen3MoeArchitecture();
Architecture sdarArchitecture();
Architecture lladaArchitecture();
Architecture dreamArchitecture();

std::span<const Architecture> architectures() {
    static const std::array table{
        llamaArchitecture(),     mistralArchitecture(),       qwen2Architecture(),      qwen3Architecture(),
        minicpmArchitecture(),   nosaArchitecture(),          minicpm3Architecture(),   deepseek2Architecture(),
        deepseek3Architecture(), glm4LiteArchitecture(),      deepseek32Architecture(), glmDsaArchitecture(),
        minimaxM3Architecture(), minimaxM3TextArchitecture(), mixtralArchitecture(),    qwen2MoeArchitecture(),
        qwen3MoeArchitecture(),  sdarArchitecture(),          lladaArchitecture(),      dreamArchitecture(),
    };
    return table;
}

const Architecture& findArchitecture(const ConfigReader& reader, std::string_view className,
                                     std::string_view modelType) {
    const auto find = [](const auto& names, std::string_view name) -> const Architecture* {
        for (const Architecture& entry : architectures())
            if (const auto& list = entry.*names; std::find(list.begin(), list.end(), name) != list.end()) return &entry;
        return nullptr;
    };
    if (const char* const why = refusedDiffusionModel(className, modelType))
        reader.refuseUnsupported(fmt::format("{}, which this version does not", why),
                                 "of diffusion models this version runs SDAR, TraDo, LLaDA and Dream");
    const Architecture* const byClass = find(&Architecture::classes, className);
    const Architecture* const byType = find(&Architecture::modelTypes, modelType);
    // The library goes by the type, the checkpoint's own code by the class.
    if (byClass && byType && byClass != byType && byClass->inLibrary)
        reader.refuse(fmt::format("the class '{}' (architectures) and the model type '{}' belong to different models",
                                  shown(className), shown(modelType)));
    if (byClass) return *byClass;
    // No class stated, or one of the checkpoint's own code for this type.
    const bool ownCode = reader.has("auto_map") && className.ends_with("ForCausalLM");
    if (byType && (className.empty() || ownCode)) return *byType;
    std::vector<std::string> known;
    for (const Architecture& entry : architectures()) known.push_back(entry.title);
    reader.refuseUnsupported(
        fmt::format("the architecture '{}' is not supported", shown(className.empty() ? modelType : className)),
        fmt::format("this version runs {}", fmt::join(known, ", ")));
}

const Architecture& architectureOf(const ModelConfig& config) {
    for (const Architecture& entry : architectures())
        if (entry.family == config.family) return entry;
    throw Error(ErrorKind::Unsupported, fmt::format("the architecture '{}' is not supported", config.family));
}

void readLayerTypes(const ConfigReader& reader, ModelConfig& config, int window,
                    const std::function<bool(int layer)>& slides) {
    const auto types = reader.texts("layer_types");
    const bool stated = reader.has("layer_types");
    if (stated && types.size() != std::size_t(config.layers))
        reader.refuse(fmt::format("'layer_types' has {} entries for {} layers", types.size(), config.layers));
    std::vector<int> windows;
    for (int i = 0; i < config.layers; ++i) {
        const std::string type = !stated ? (slides(i) ? "sliding_attention" : "full_attention") : types[std::size_t(i)];
        if (type != "sliding_attention" && type != "full_attention")
            reader.refuseUnsupported(fmt::format("layers of type '{}' (layer_types) are not supported", shown(type)),
                                     "this version runs full_attention and sliding_attention");
        if (type == "sliding_attention" && window == 0)
            reader.refuse("'layer_types' names sliding layers, and there is no sliding window for them",
                          "state sliding_window, and use_sliding_window where the architecture has it");
        windows.push_back(type == "sliding_attention" ? window : 0);
    }
    if (std::any_of(windows.begin(), windows.end(), [](int of) { return of > 0; })) config.windows = windows;
}

int readWindow(const ConfigReader& reader) {
    (void)reader.states("sliding_window");
    if (!reader.flagOr("use_sliding_window", false)) return 0;
    return reader.integerOr("sliding_window", 0, 1, 1 << 24);
}

void readLayerWindows(const ConfigReader& reader, ModelConfig& config) {
    const int window = readWindow(reader), from = reader.integerOr("max_window_layers", 28, 0, 1 << 20);
    readLayerTypes(reader, config, window, [&](int layer) { return window > 0 && layer >= from; });
}

void readLatentAttention(const ConfigReader& reader, ModelConfig& config) {
    LatentAttention latent;
    latent.queryRank = reader.integerOr("q_lora_rank", 0, 1, 1 << 16); // null: queries have no latent
    latent.rank = reader.integer("kv_lora_rank", 1, 1 << 16);
    latent.nopeDim = reader.integer("qk_nope_head_dim", 1, 1 << 12);
    latent.ropeDim = reader.integer("qk_rope_head_dim", 1, 1 << 12);
    latent.valueDim = reader.integerOr("v_head_dim", config.hidden / config.queryHeads, 1, 1 << 12);
    if (latent.valueDim < 1) reader.refuse("the key 'v_head_dim' is missing");
    (void)reader.states("qk_head_dim"); // of the library's own making
    if (config.kvHeads != config.queryHeads)
        reader.refuse(
            fmt::format("'num_key_value_heads' is {} and 'num_attention_heads' {}", config.kvHeads, config.queryHeads),
            "with latent attention both are the same number");
    config.latent = latent;
}

Bias readBias(const ConfigReader& reader, const char* key) {
    if (!reader.states(key)) return Bias::WherePresent;
    return reader.flag(key) ? Bias::All : Bias::None;
}

bool readExpertLayers(const ConfigReader& reader, ModelConfig& config) {
    const auto types = reader.texts("mlp_layer_types");
    if (!reader.has("mlp_layer_types")) return false;
    if (types.size() != std::size_t(config.layers))
        reader.refuse(fmt::format("'mlp_layer_types' has {} entries for {} layers", types.size(), config.layers));
    config.experts->layers.clear();
    for (const std::string& type : types) {
        if (type != "sparse" && type != "dense")
            reader.refuse(fmt::format("'mlp_layer_types' names the unknown kind '{}'", shown(type)),
                          "its entries are sparse and dense");
        config.experts->layers.push_back(type == "sparse");
    }
    return true;
}

void readScales(const ConfigReader& reader, ModelConfig& config) {
    config.scales.embedding = reader.numberOr("scale_emb", 1, 1e-6, 1e6);
    if (reader.has("scale_depth"))
        config.scales.residual = reader.number("scale_depth", 1e-6, 1e6) / std::sqrt(double(config.layers));
    if (reader.has("dim_model_base")) config.scales.logits = reader.number("dim_model_base", 1e-6, 1e9) / config.hidden;
}

} // namespace kvscope
