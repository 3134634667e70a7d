// config.json of a Hugging Face folder, checked. What an architecture's keys mean: core/model/architectures.
#pragma once

#include "base/indexed.h"
#include "core/model/rope.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

/// Sparse-attention settings a checkpoint carries (`sparse_config`, MiniCPM4 / NOSA / SparDA key names).
struct SparseConfig {
    int kernelSize = 32, kernelStride = 16, blockSize = 64;
    int sinkBlocks = 1;    // init_blocks
    int windowBlocks = 16; // window_size / block_size
    bool windowAddsCurrent =
        true; // false when `sparse_attention` fixes the counts: the window then includes the current block
    int queryAwareBlocks = 0;                        // select_blocks; 0: not stated
    int totalBlocks = 0;                             // all origins together
    int denseLen = 0;                                // dense below this many tokens; 0: never
    std::string method;                              // sparse_attention.method, or empty
    std::optional<bool> evictionHead, forecastHeads; // of sparse_attention; nothing: not stated
};

/// Multi-head latent attention (DeepSeek-V2): keys and values of a token are projections of one latent vector, which is
/// what the cache holds, beside a rotated key part that all heads share.
struct LatentAttention {
    int queryRank = 0;                          // of the queries' own latent; 0: queries are projected directly
    int rank = 0;                               // of the keys' and values' latent
    int nopeDim = 0, ropeDim = 0, valueDim = 0; // of one head: unrotated and rotated key part, value
    float normEps = 1e-6f;                      // of the latents' norms, fixed in the reference code
};

/// The lightning indexer of DeepSeek's sparse attention: a small attention of its own, without values, that scores
/// every cached token for a query. The best of them are attended, by all heads of the layer.
struct LightningIndexer {
    int heads = 0, dim = 0;   // query heads; channels of each, and of the one key of a token
    int ropeDim = 0;          // channels that are rotated, the first ones
    bool interleaved = false; // rotated channel 2i pairs with 2i + 1 instead of i with i + ropeDim/2
    int tokens = 0;           // that a query attends to at most (index_topk)
    float normEps = 1e-6f;    // of the keys' LayerNorm, fixed in the reference code
    Numbered<bool> shared;    // [layer] has no indexer and attends to what the layer before it chose
    bool runsIn(int layer) const { return !shared[layer]; }
};

/// The indexer of MiniMax's sparse attention: a small attention of its own, without values. A block of keys is worth
/// its largest product with a query of the indexer, and the best blocks are attended.
struct BlockIndexer {
    /// Query heads, each of which chooses for equally many KV heads; channels of each query head, and of the one key
    /// that a token has. As many channels are rotated as in the model's heads.
    int heads = 0, dim = 0;
    int blockTokens = 0;   // of a block
    int blocks = 0;        // that a query attends to at most, those that are forced included
    int localBlocks = 0;   // the newest ones, which are forced
    Numbered<bool> layers; // [layer] has one; the others attend to everything
    bool runsIn(int layer) const { return layers[layer]; }
};

/// A feed-forward's gate with bounds (SwiGLU-OAI): with g = min(gate, limit) and u = up within [-limit, limit] it is
/// (u + 1) * g * sigmoid(slope * g).
struct BoundedGate {
    float slope = 1, limit = 0;
};

/// Whether projections have a bias: all of them, none, or those for which the file holds one (families that the
/// transformers library does not have, and GGUF files).
enum class Bias : std::uint8_t { WherePresent, None, All };

enum class ExpertScore : std::uint8_t { Softmax, Sigmoid };
enum class GroupScore : std::uint8_t { Max, BestTwo }; // how a group of experts is ranked

/// A mixture of experts in place of the feed-forward of some layers.
struct ExpertConfig {
    int count = 0, used = 0, width = 0; // experts, experts per token, feed-forward width of one
    int sharedWidth = 0;                // of the expert every token uses; 0: none
    bool sharedGate = false;            // its output is weighed by a sigmoid of its own (Qwen2-MoE)
    int groups = 1, groupsUsed = 1;     // experts are chosen within the best groups
    ExpertScore score = ExpertScore::Softmax;
    GroupScore groupScore = GroupScore::Max;
    bool choiceBias = false; // a learned bias takes part in the choice, not in the weight
    bool normalise = false;  // the chosen weights sum to 1 before the scale
    float scale = 1;         // of the chosen weights
    Numbered<bool> layers;   // [layer] has experts
};

inline constexpr int kMostBlockLength = 64; // of a block that is denoised: a bit a token

/// A model that writes blocks of tokens by denoising (SDAR): attention is causal between blocks and reaches every token
/// inside one, and a token is read from the logits at its own, masked position.
struct BlockDiffusion {
    int blockLength = 0;
    std::int32_t maskId = 0;
    /// true: there are no blocks and no cache; every token of the prompt, and of a canvas of masks behind it, sees
    /// every other one. `shifted` is for such models alone.
    bool canvas = false;
    bool shifted = false; // a token is read from the logits of the position before it (Dream)
};

/// The scales that muP training leaves in a checkpoint (MiniCPM).
struct ResidualScales {
    double embedding = 1; // x0 = embedding * this
    double residual = 1;  // x += sublayer(x) * this
    double logits = 1;    // logits = head(norm(x)) * this
};

/// Who wrote the JSON: a checkpoint's author, or ggufConfigJson().
enum class ConfigSource : std::uint8_t { Checkpoint, Gguf };

struct ModelConfig {
    std::string architecture; // e.g. "LlamaForCausalLM"
    std::string modelType;    // e.g. "llama"
    std::string family;       // registry id of the architecture, e.g. "qwen3"
    int layers = 0, hidden = 0, queryHeads = 0, ffn = 0, vocab = 0;
    int kvHeads = 0, headDim = 0; // as the cache sees them; latent attention: 1 head of rank + ropeDim channels
    int maxPositions = 0;         // context, RoPE scaling included
    float rmsNormEps = 0.f;
    RopeConfig rope;
    bool tiedEmbeddings = false;
    bool tiedUnlessHeadIsThere = false; // the file does not say: tied when the weights hold no output head
    Bias attentionBias = Bias::WherePresent, outputBias = Bias::WherePresent;   // of q, k, v, or their ways down; of o
    Bias feedForwardBias = Bias::WherePresent, expertBias = Bias::WherePresent; // shared experts are feed-forwards
    bool queryKeyNorm = false; // every head's query and key are RMS-normalised before rotation (Qwen3)
    std::optional<LatentAttention> latent;
    std::optional<LightningIndexer> indexer; // with latent attention alone
    std::optional<BlockIndexer> blockIndexer;
    std::optional<BoundedGate> boundedGate; // none: silu(gate) * up
    bool normsAddOne = false;               // an RMS norm multiplies by its weight + 1
    std::optional<ExpertConfig> experts;
    std::optional<BlockDiffusion> diffusion; // none: tokens are decoded one by one
    ResidualScales scales;
    Numbered<int> windows; // [layer] tokens a query sees, itself included; 0: all. Empty: all layers see all
    std::int32_t bosId = -1;
    std::vector<std::int32_t> eosIds;
    bool eosByDefault = false; // the file names no end-of-text token, and the family's default is used
    std::optional<SparseConfig> sparse;
    std::vector<std::string> notes; // one sentence for everything that the files state and that is not used

    int group() const { return queryHeads / kvHeads; }
    /// Channels of a cached value. With latent attention the value is the beginning of the key and takes no memory.
    int valueDim() const { return latent ? latent->rank : headDim; }
    int storedValueDim() const { return latent ? 0 : headDim; }
    /// Channels of one head's query as it is projected, and of its share of the output projection's input.
    int queryDim() const { return latent ? latent->nopeDim + latent->ropeDim : headDim; }
    int outputDim() const { return latent ? latent->valueDim : headDim; }
    /// logits = this * q.k
    float attentionScale() const;
    int windowOf(int layer) const { return windows.empty() ? 0 : windows[layer]; }
    bool hasExperts(int layer) const { return experts && experts->layers[layer]; }
    /// Numbers the cache keeps per token, all layers.
    std::int64_t kvNumbersPerToken() const { return std::int64_t(layers) * kvHeads * (headDim + storedValueDim()); }

    /// The engines keep x / scales.residual as the residual stream: sublayers then add to it unscaled, and a norm gives
    /// the same result if its epsilon is divided by the scale's square. So muP costs nothing in a layer.
    float streamEmbeddingScale() const { return float(scales.embedding / scales.residual); }
    float streamNormEps() const { return float(double(rmsNormEps) / (scales.residual * scales.residual)); }

    /// Parses and checks. `origin` names the file in errors. A key that a config.json leaves out has the default of its
    /// family (Architecture::defaults). A key that is not read here is refused if the transformers library computes by
    /// it, unless its value changes nothing; it is noted if the library does not read it either.
    /// @throws Error(BadInput | Unsupported), one sentence each
    static ModelConfig parse(std::string_view json, const std::string& origin,
                             ConfigSource source = ConfigSource::Checkpoint);
    /// Checks what a configuration from any source, JSON or not, must satisfy before it may be used. @throws
    /// Error(BadInput | Unsupported)
    void check(const std::string& origin) const;
};

/// Keys for a message: "a, b and 3 more".
std::string listedKeys(const std::vector<std::string>& keys);

} // namespace kvscope
