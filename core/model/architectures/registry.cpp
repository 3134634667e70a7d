// The registry: one line per architecture, and readers that several of them share.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

#include <algorithm>
#include <array>
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
Architecture mixtralArchitecture();
Architecture qwen2MoeArchitecture();
Architecture qwen3MoeArchitecture();

std::span<const Architecture> architectures() {
    static const std::array table{
        llamaArchitecture(),     mistralArchitecture(),  qwen2Architecture(),    qwen3Architecture(),
        minicpmArchitecture(),   nosaArchitecture(),     minicpm3Architecture(), deepseek2Architecture(),
        deepseek3Architecture(), glm4LiteArchitecture(), mixtralArchitecture(),  qwen2MoeArchitecture(),
        qwen3MoeArchitecture(),
    };
    return table;
}

const Architecture& findArchitecture(const ConfigReader& reader, std::string_view className,
                                     std::string_view modelType) {
    const auto holds = [](const std::vector<std::string>& names, std::string_view name) {
        return std::find(names.begin(), names.end(), name) != names.end();
    };
    for (const Architecture& entry : architectures())
        if (holds(entry.classes, className)) return entry;
    // No class stated, or one of the checkpoint's own code for this type.
    if (className.empty() || (reader.has("auto_map") && className.ends_with("ForCausalLM")))
        for (const Architecture& entry : architectures())
            if (holds(entry.modelTypes, modelType)) return entry;
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

void readLayerWindows(const ConfigReader& reader, ModelConfig& config) {
    if (!reader.flagOr("use_sliding_window", false) || !reader.has("sliding_window")) return;
    const int window = reader.integer("sliding_window", 1, 1 << 24);
    const auto types = reader.texts("layer_types");
    if (!types.empty() && types.size() != std::size_t(config.layers))
        reader.refuse(fmt::format("'layer_types' has {} entries for {} layers", types.size(), config.layers));
    const int from = reader.integerOr("max_window_layers", 28, 0, 1 << 20);
    for (int i = 0; i < config.layers; ++i) {
        const bool slides = types.empty() ? i >= from : types[std::size_t(i)] == "sliding_attention";
        config.windows.push_back(slides ? window : 0);
    }
}

void readLatentAttention(const ConfigReader& reader, ModelConfig& config) {
    LatentAttention latent;
    latent.queryRank = reader.integerOr("q_lora_rank", 0, 0, 1 << 16);
    latent.rank = reader.integer("kv_lora_rank", 1, 1 << 16);
    latent.nopeDim = reader.integer("qk_nope_head_dim", 1, 1 << 12);
    latent.ropeDim = reader.integer("qk_rope_head_dim", 1, 1 << 12);
    const bool divides = config.hidden % config.queryHeads == 0;
    latent.valueDim = reader.integerOr("v_head_dim", divides ? config.hidden / config.queryHeads : 0, 1, 1 << 12);
    if (latent.valueDim < 1) reader.refuse("the key 'v_head_dim' is missing");
    config.latent = latent;
    config.kvHeads = 1;
    config.headDim = latent.rank + latent.ropeDim;
}

void readExpertLayers(const ConfigReader& reader, ModelConfig& config, int denseByDefault) {
    auto& layers = config.experts->layers;
    layers.assign(std::size_t(config.layers), false);
    const auto types = reader.texts("mlp_layer_types");
    if (!types.empty() && types.size() != layers.size())
        reader.refuse(fmt::format("'mlp_layer_types' has {} entries for {} layers", types.size(), config.layers));
    const int dense = reader.integerOr("first_k_dense_replace", denseByDefault, 0, 1 << 20);
    for (int i = 0; i < config.layers; ++i)
        layers[std::size_t(i)] = types.empty() ? i >= dense : types[std::size_t(i)] == "sparse";
    if (std::find(layers.begin(), layers.end(), true) == layers.end()) config.experts.reset();
}

} // namespace kvscope
