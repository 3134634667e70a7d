// LLaDA: a Llama whose tokens all see each other. A canvas of masks behind the prompt becomes tokens; a token is read
// from the logits at its own position.
#include "core/model/architecture.h"
#include "core/model/config_reader.h"

#include <fmt/format.h>

namespace kvscope {
namespace {

/// Refuses forms of the class that no released model has.
void refuseOtherForms(const ConfigReader& reader) {
    for (const char* key : {"alibi", "input_emb_norm", "scale_logits", "attention_layer_norm", "include_bias",
                            "include_qkv_bias", "bias_for_layer_norm", "multi_query_attention", "use_sliding_window"})
        if (reader.flagOr(key, false))
            reader.refuseUnsupported(fmt::format("'{}' is not supported in LLaDA models", key),
                                     "use one of the released checkpoints");
    if (!reader.flag("rope"))
        reader.refuseUnsupported("LLaDA models without rotary positions (rope) are not supported",
                                 "use one of the released checkpoints");
    for (const auto& [key, form] : {std::pair{"block_type", "llama"}, std::pair{"layer_norm_type", "rms"}})
        if (const std::string text = reader.text(key); text != form)
            reader.refuseUnsupported(fmt::format("the {} '{}' is not supported", key, shown(text)),
                                     fmt::format("this version runs LLaDA models of {} {}", key, form));
}

} // namespace

Architecture lladaArchitecture() {
    Architecture llada;
    llada.family = "llada";
    llada.title = "LLaDA";
    llada.classes = {"LLaDAModelLM"};
    llada.modelTypes = {"llada"};
    llada.inLibrary = false; // the defaults of the checkpoints' own class fit none of them: every key must be stated
    llada.aliases = {{"d_model", "hidden_size"},
                     {"n_layers", "num_hidden_layers"},
                     {"n_heads", "num_attention_heads"},
                     {"n_kv_heads", "num_key_value_heads"},
                     {"mlp_hidden_size", "intermediate_size"},
                     {"max_sequence_length", "max_position_embeddings"},
                     {"weight_tying", "tie_word_embeddings"},
                     {"activation_type", "hidden_act"}};
    llada.names.layers = "model.transformer.blocks.";
    llada.names.embedding = "model.transformer.wte.weight";
    llada.names.head = "model.transformer.ff_out.weight";
    llada.names.finalNorm = "model.transformer.ln_f.weight";
    llada.names.inputNorm = "attn_norm.weight";
    llada.names.postNorm = "ff_norm.weight";
    llada.names.attention = llada.names.mlp = "";
    llada.names.o = "attn_out";
    llada.names.feedForward = {"ff_proj", "up_proj", "ff_out"};
    llada.read = [](const ConfigReader& reader, ModelConfig& config) {
        for (const auto& [key, alias] :
             {std::pair{"num_key_value_heads", "n_kv_heads"}, std::pair{"tie_word_embeddings", "weight_tying"},
              std::pair{"rope_theta", "rope_theta"}, std::pair{"mask_token_id", "mask_token_id"},
              std::pair{"embedding_size", "embedding_size"}, std::pair{"rope", "rope"},
              std::pair{"block_type", "block_type"}, std::pair{"layer_norm_type", "layer_norm_type"}})
            if (!reader.has(key)) reader.refuse(fmt::format("the key '{}' is missing", alias));
        refuseOtherForms(reader);
        config.attentionBias = config.outputBias = config.feedForwardBias = Bias::None;
        const int rows = reader.integer("embedding_size", 1, 1 << 24);
        if (rows < config.vocab)
            reader.refuse(fmt::format("'embedding_size' is {}, and 'vocab_size' {}", rows, config.vocab));
        config.vocab = rows;
        for (const char* key : {"mlp_ratio", "rope_full_precision", "head_dim"}) (void)reader.states(key);
        BlockDiffusion diffusion;
        diffusion.maskId = reader.integer("mask_token_id", 0, config.vocab - 1);
        diffusion.canvas = true;
        config.diffusion = diffusion;
    };
    return llada;
}

} // namespace kvscope
