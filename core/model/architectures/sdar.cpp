// SDAR and TraDo: Qwen3's layers, decoded by block diffusion. Attention is causal between blocks of block_size tokens
// and reaches every token inside a block; a token is read from the logits at its own, masked position.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

#include <fmt/format.h>

namespace kvscope {

Architecture sdarArchitecture() {
    Architecture sdar;
    sdar.family = "sdar";
    sdar.title = "SDAR";
    sdar.classes = {"SDARForCausalLM"};
    sdar.modelTypes = {"sdar"};
    // no defaults are known (those of the checkpoints' own class fit no checkpoint), so every key must be stated
    sdar.inLibrary = false;
    sdar.read = [](const ConfigReader& reader, ModelConfig& config) {
        for (const char* key : {"num_key_value_heads", "head_dim", "tie_word_embeddings", "rope_theta",
                                "attention_bias", "mask_token_id", "block_size"})
            if (!reader.has(key)) reader.refuse(fmt::format("the key '{}' is missing", key));
        config.queryKeyNorm = true;
        config.attentionBias = config.outputBias = reader.flag("attention_bias") ? Bias::All : Bias::None;
        config.feedForwardBias = Bias::None;
        if (reader.flagOr("use_sliding_window", false))
            reader.refuseUnsupported("sliding windows (use_sliding_window) are not supported in block-diffusion models",
                                     "use a checkpoint whose layers see the whole context");
        (void)reader.states("sliding_window"); // without use_sliding_window nobody heeds them
        (void)reader.states("max_window_layers");
        BlockDiffusion diffusion;
        diffusion.blockLength = reader.integer("block_size", 1, kMostBlockLength);
        diffusion.maskId = reader.integer("mask_token_id", 0, config.vocab - 1);
        config.diffusion = diffusion;
    };
    return sdar;
}

const char* refusedDiffusionModel(std::string_view className, std::string_view modelType) {
    static constexpr struct {
        const char *className, *modelType, *why;
    } kRelatives[] = {
        {"LLaDAMoEModelLM", "", "LLaDA-MoE denoises a canvas of fixed length with a mixture of experts of its own"},
        {"LLaDAMoEModel", "", "LLaDA-MoE denoises a canvas of fixed length with a mixture of experts of its own"},
        {"ILLaDAForCausalLM", "",
         "iLLaDA denoises a canvas of fixed length and names its tensors otherwise than LLaDA"},
        {"LLaDA2MoeModelLM", "llada2_moe",
         "LLaDA2 denoises blocks with a mixture of experts of its own, and may change "
         "tokens that it has written"},
        {"Fast_dLLM_QwenForCausalLM", "Fast_dLLM_Qwen",
         "Fast-dLLM v2 reads a token from the logits of the position "
         "before it, in blocks of blocks"},
        {"DiffusionGemmaForBlockDiffusion", "diffusion_gemma", "DiffusionGemma denoises random tokens and has no mask"},
    };
    for (const auto& known : kRelatives)
        if (className == known.className || (className.empty() && !modelType.empty() && modelType == known.modelType))
            return known.why;
    return nullptr;
}

} // namespace kvscope
