// A small model with block indexers, of a size that the GPU's kernels take.
#pragma once

#include "tests/core/random_checkpoint.h"
#include "tests/support/places.h"

#include <fstream>

namespace kvscope::test {

/// The config.json of a small MiniMax-M3: heads of 64 channels, half of them rotated, bounded gates, experts. Its first
/// layer has neither indexer nor experts. `changes`: to the part that reads text.
inline nlohmann::json blockIndexerConfig(const nlohmann::json& changes = nlohmann::json::object()) {
    std::ifstream file(source("tests/golden/block_sparse/blocks-of-16/config.json"));
    auto config = nlohmann::json::parse(file);
    auto& text = config["text_config"];
    text.update({{"hidden_size", 192},
                 {"dense_intermediate_size", 256},
                 {"intermediate_size", 64},
                 {"shared_intermediate_size", 96},
                 {"head_dim", 64},
                 {"rotary_dim", 32},
                 {"index_head_dim", 64},
                 {"max_position_embeddings", 4096},
                 {"vocab_size", 96}});
    text.update(changes);
    return config;
}

} // namespace kvscope::test
