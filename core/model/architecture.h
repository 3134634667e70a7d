// The registry of architectures. An architecture = one file in core/model/architectures + one line in its registry.cpp:
// which names announce it, what its keys mean, how its tensors are called. The engine never asks for its name.
#pragma once

#include "base/error.h"
#include "core/model/model_config.h"

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

class ConfigReader; // config_reader.h brings the JSON library; whoever reads configurations includes it

/// Names of a feed-forward's three matrices, without ".weight" and ".bias".
struct FeedForwardNames {
    std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
};

/// Names of latent attention's matrices and norms: the queries' projections to their latent and from it, the projection
/// to the latent that keys and values share (with the rotated key part behind it), and the one from it.
struct LatentNames {
    std::string queryDown = "q_a_proj", queryDownNorm = "q_a_layernorm.weight", queryUp = "q_b_proj";
    std::string down = "kv_a_proj_with_mqa", norm = "kv_a_layernorm.weight", up = "kv_b_proj";
};

/// Names of a mixture of experts. In a tensor's name they follow `prefix`.
struct MixtureNames {
    std::string prefix = "mlp.";
    std::string router = "gate.weight", choiceBias = "gate.e_score_correction_bias";
    std::string experts = "experts."; // "<e>." and a name of `expert` follow; with TensorNames::gateUp the joined names
    FeedForwardNames expert;
    std::string shared = "shared_experts."; // the expert that every token uses; TensorNames::feedForward follows
    std::string sharedGate = "shared_expert_gate.weight";
};

/// Names of tensors in a checkpoint. The name of a layer's tensor begins with `layers`, the layer's number and ".".
struct TensorNames {
    std::string embedding = "model.embed_tokens.weight", head = "lm_head.weight", finalNorm = "model.norm.weight";
    std::string layers = "model.layers.";
    std::string inputNorm = "input_layernorm.weight", postNorm = "post_attention_layernorm.weight";
    std::string attention = "self_attn."; // prefix of the projections, of the heads' norms and of both indexers
    std::string q = "q_proj", k = "k_proj", v = "v_proj", o = "o_proj";
    std::string queryNorm = "q_norm.weight", keyNorm = "k_norm.weight";
    std::string indexer = "indexer.";    // prefix of the lightning indexer
    std::string blockIndexer = "index_"; // prefix of the block indexer
    LatentNames latent;
    std::string mlp = "mlp."; // prefix of the feed-forward
    FeedForwardNames feedForward;
    /// Name of the matrix in files that hold gate and up in one matrix, the rows of gate first. Such files hold all
    /// experts' matrices of gate and up in one tensor, and all of down in another. Empty: every matrix is a tensor.
    std::string gateUp = "";
    MixtureNames mixture;
};

/// Another name of a key, which counts as the key itself (the library's attribute_map).
struct KeyAlias {
    const char *alias, *key;
};

struct Architecture {
    std::string family;                  // registry id, e.g. "qwen3"
    std::string title;                   // e.g. "Qwen3"
    std::vector<std::string> classes;    // entries of `architectures` in config.json
    std::vector<std::string> modelTypes; // entries of `model_type`
    /// Sets what differs from a Llama. The sizes that every model has are read before; a key that the file leaves out
    /// has its value from `defaults`.
    void (*read)(const ConfigReader& reader, ModelConfig& config) = nullptr;
    /// A JSON object: the value of each key that may be left out, as the class of transformers 5.17 has it. A family
    /// that the library does not have (inLibrary false) has few: its other keys must be stated.
    const char* defaults = "{}";
    TensorNames names = {};
    std::vector<KeyAlias> aliases = {};
    bool inLibrary = true;
    bool rotatesPart = false; // partial_rotary_factor is read
    /// For a family whose files also describe parts that read no text: returns, as JSON, the object of the part that
    /// reads text, and adds to it what the whole object says about that part. Null: the whole object is read.
    std::string (*textPart)(const ConfigReader& whole) = nullptr;
};

/// All architectures in the order they are listed in messages.
std::span<const Architecture> architectures();
/// Finds the family: by class name; where no class is stated or the checkpoint brings code (auto_map), by model type.
/// @throws Error(Unsupported), also where class and type belong to different families
const Architecture& findArchitecture(const ConfigReader& reader, std::string_view className,
                                     std::string_view modelType);
/// Half a sentence that says why a known diffusion model cannot be run; null: the names are of no such model.
const char* refusedDiffusionModel(std::string_view className, std::string_view modelType);
/// The entry of the architecture that a configuration names. @throws Error(Unsupported)
const Architecture& architectureOf(const ModelConfig& config);

/// Sets the sliding window of the layers that layer_types names or, where the file has no such key, of those for which
/// `slides` is true; 0: no window. @throws Error for other kinds of layers, and where a layer slides and there is no
/// window
void readLayerTypes(const ConfigReader& reader, ModelConfig& config, int window,
                    const std::function<bool(int layer)>& slides);
/// use_sliding_window and sliding_window (Qwen); 0: no window.
int readWindow(const ConfigReader& reader);
/// use_sliding_window, sliding_window, layer_types and max_window_layers of Qwen2 and Qwen3.
void readLayerWindows(const ConfigReader& reader, ModelConfig& config);
/// The keys of DeepSeek's latent attention.
void readLatentAttention(const ConfigReader& reader, ModelConfig& config);
/// Whether projections have a bias, by a key; where the file does not have the key, the bias is there if its tensor is.
Bias readBias(const ConfigReader& reader, const char* key);
/// Which layers have experts, by mlp_layer_types ("sparse", "dense"). False: the key is null or left out.
bool readExpertLayers(const ConfigReader& reader, ModelConfig& config);
/// The keys of DeepSeek-V3's experts, in the layers that mlp_layer_types names or, where it names none, from layer
/// first_k_dense_replace on.
void readSigmoidExperts(const ConfigReader& reader, ModelConfig& config);
/// Reads from DeepSeek's keys how many experts there are, how many a token uses, how wide they are and how their sum is
/// scaled.
void readExpertSizes(const ConfigReader& reader, ExpertConfig& experts);
/// DeepSeek-V3's choice of experts: scores by a sigmoid, with a bias, in the best groups.
void readSigmoidChoice(const ConfigReader& reader, ExpertConfig& experts);
/// MiniCPM's muP scales, those that are stated.
void readScales(const ConfigReader& reader, ModelConfig& config);

} // namespace kvscope
