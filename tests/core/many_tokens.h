// A model that takes a while to load: its tokenizer has as many tokens as wanted, its weights are zeros.
#pragma once

#include "tests/core/gguf_writer.h"

#include <filesystem>
#include <fstream>
#include <string>

namespace kvscope::test {

inline void writeModelOfManyTokens(const std::filesystem::path& path, std::uint32_t tokens) {
    constexpr std::uint32_t hidden = 32, f32 = 0, q8 = 8;
    GgufWriter gguf;
    gguf.put("general.architecture", "llama");
    for (const auto& [key, value] : {std::pair{"block_count", 1u},
                                     {"context_length", 512u},
                                     {"embedding_length", hidden},
                                     {"feed_forward_length", hidden},
                                     {"attention.head_count", 2u},
                                     {"attention.head_count_kv", 1u}})
        gguf.put(std::string("llama.") + key, value);
    gguf.put("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf.put("tokenizer.ggml.model", "gpt2");
    gguf.put("tokenizer.ggml.pre", "gpt-2");
    std::vector<std::string> names;
    for (std::uint32_t id = 0; id < tokens; ++id) names.push_back("token" + std::to_string(id));
    gguf.put("tokenizer.ggml.tokens", names);
    gguf.put("tokenizer.ggml.merges", std::vector<std::string>{});
    std::uint64_t at = 0;
    const auto add = [&](const char* name, std::uint64_t rows) {
        std::vector<std::uint64_t> sizes{hidden};
        if (rows > 0) sizes.push_back(rows);
        gguf.tensors.push_back({name, sizes, rows > 0 ? q8 : f32, at});
        at += rows > 0 ? (rows * 34 + 31) / 32 * 32 : hidden * 4;
    };
    add("token_embd.weight", tokens);
    for (const char* name : {"output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"}) add(name, 0);
    for (const char* name : {"blk.0.attn_q.weight", "blk.0.attn_output.weight", "blk.0.ffn_gate.weight",
                             "blk.0.ffn_up.weight", "blk.0.ffn_down.weight"})
        add(name, hidden);
    for (const char* name : {"blk.0.attn_k.weight", "blk.0.attn_v.weight"}) add(name, hidden / 2);
    const std::string header = gguf.bytes();
    std::ofstream(path, std::ios::binary) << header;
    std::filesystem::resize_file(path, header.size() + at); // zeros take no room on the disk
}

} // namespace kvscope::test
