// config.json of a Hugging Face folder, checked.
#pragma once

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
    int queryAwareBlocks = 0; // select_blocks; 0: not stated
    int totalBlocks = 0;      // all origins together
    int denseLen = 0;         // dense below this many tokens; 0: never
    std::string method;       // sparse_attention.method, or empty
};

struct ModelConfig {
    std::string architecture; // e.g. "LlamaForCausalLM"
    std::string modelType;    // e.g. "llama"
    int layers = 0, hidden = 0, queryHeads = 0, kvHeads = 0, headDim = 0, ffn = 0, vocab = 0, maxPositions = 0;
    float rmsNormEps = 0.f;
    double ropeTheta = 0;
    bool tiedEmbeddings = false;
    bool ropeInterleaved = false; // channel 2i pairs with 2i + 1 instead of i with i + headDim/2
    std::int32_t bosId = -1;
    std::vector<std::int32_t> eosIds;
    std::optional<SparseConfig> sparse;

    int group() const { return queryHeads / kvHeads; }
    /// Parses and checks. `origin` names the file in errors. @throws Error(BadInput | Unsupported), one sentence each
    static ModelConfig parse(std::string_view json, const std::string& origin);
};

} // namespace kvscope
