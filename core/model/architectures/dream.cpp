// Dream, DiffuCoder and Dream-Coder: Qwen2's layers, whose tokens all see each other. A canvas of masks behind the
// prompt becomes tokens; a token is read from the logits of the position before it.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

#include <fmt/format.h>

namespace kvscope {

Architecture dreamArchitecture() {
    Architecture dream;
    dream.family = "dream";
    dream.title = "Dream";
    dream.classes = {"DreamModel"};
    dream.modelTypes = {"Dream"};
    dream.inLibrary = false; // the defaults of the checkpoints' own class fit none of them: every key must be stated
    dream.read = [](const ConfigReader& reader, ModelConfig& config) {
        for (const char* key : {"num_key_value_heads", "tie_word_embeddings", "rope_theta", "mask_token_id"})
            if (!reader.has(key)) reader.refuse(fmt::format("the key '{}' is missing", key));
        config.attentionBias = Bias::All;
        config.outputBias = config.feedForwardBias = Bias::None;
        if (reader.flagOr("use_sliding_window", false))
            reader.refuseUnsupported("sliding windows (use_sliding_window) are not supported in Dream models",
                                     "use a checkpoint whose layers see the whole context");
        (void)reader.states("sliding_window"); // without use_sliding_window nobody heeds them
        (void)reader.states("max_window_layers");
        BlockDiffusion diffusion;
        diffusion.maskId = reader.integer("mask_token_id", 0, config.vocab - 1);
        diffusion.canvas = diffusion.shifted = true;
        config.diffusion = diffusion;
    };
    return dream;
}

} // namespace kvscope
