// A Llama checkpoint that loads in milliseconds, to be changed and damaged before it is written.
#pragma once

#include "core/model/safetensors.h"
#include "kernels/half.h"
#include "tests/core/files.h"

#include <bit>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace kvscope::test {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct Tensor {
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::string bytes;
};
using Tensors = std::map<std::string, Tensor>;

inline std::string safetensors(const Tensors& tensors) {
    Json header = Json::object();
    std::string data;
    for (const auto& [name, tensor] : tensors) {
        header[name] = {{"dtype", tensor.dtype},
                        {"shape", tensor.shape},
                        {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
        data += tensor.bytes;
    }
    header["__metadata__"] = {{"format", "pt"}};
    const std::string text = header.dump();
    const std::uint64_t size = text.size();
    return std::string(reinterpret_cast<const char*>(&size), 8) + text + data;
}

/// Config, tokenizer and random weights of a model that loads in milliseconds.
struct TinyCheckpoint {
    explicit TinyCheckpoint(const std::string& dtype = "BF16", bool tied = true, bool head = true) : dtype_(dtype) {
        config = {{"architectures", {"LlamaForCausalLM"}},
                  {"model_type", "llama"},
                  {"vocab_size", 4096},
                  {"hidden_size", 32},
                  {"intermediate_size", 48},
                  {"num_hidden_layers", 2},
                  {"num_attention_heads", 2},
                  {"num_key_value_heads", 1},
                  {"head_dim", 16},
                  {"max_position_embeddings", 512},
                  {"rms_norm_eps", 1e-5},
                  {"tie_word_embeddings", tied},
                  {"bos_token_id", 0},
                  {"eos_token_id", 1}};
        add("model.embed_tokens.weight", {4096, 32});
        add("model.norm.weight", {32});
        if (!tied) add("lm_head.weight", {4096, 32});
        for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
            add(layer + "input_layernorm.weight", {32});
            add(layer + "post_attention_layernorm.weight", {32});
            add(layer + "self_attn.q_proj.weight", {32, 32});
            add(layer + "self_attn.k_proj.weight", {16, 32});
            add(layer + "self_attn.v_proj.weight", {16, 32});
            add(layer + "self_attn.o_proj.weight", {32, 32});
            add(layer + "mlp.gate_proj.weight", {48, 32});
            add(layer + "mlp.up_proj.weight", {48, 32});
            add(layer + "mlp.down_proj.weight", {32, 48});
            if (!head) continue;
            add(layer + "self_attn.delta.weight", {1, 16});
            add(layer + "self_attn.A", {1});
        }
    }
    void add(const std::string& name, const std::vector<std::int64_t>& shape) {
        std::int64_t elements = 1;
        for (const std::int64_t size : shape) elements *= size;
        Tensor tensor{dtype_, shape, {}};
        for (std::int64_t i = 0; i < elements; ++i) {
            const float value = float(int(random_() % 255) - 127) / 64.f; // exact in every type
            const auto bits = std::bit_cast<std::uint32_t>(value);
            const std::uint16_t half = dtype_ == "BF16" ? std::uint16_t(bits >> 16) : halfOf(value);
            tensor.bytes.append(dtype_ == "F32" ? reinterpret_cast<const char*>(&bits)
                                                : reinterpret_cast<const char*>(&half),
                                dtype_ == "F32" ? 4 : 2);
        }
        tensors[name] = std::move(tensor);
    }
    void writeConfig(const fs::path& folder) const {
        write(folder / "config.json", config.dump());
        if (!fs::exists(folder / "tokenizer.json"))
            fs::copy_file(kEmbeddedFolder / "tokenizer.json", folder / "tokenizer.json");
    }
    void writeTo(const fs::path& folder) const {
        writeConfig(folder);
        write(folder / "model.safetensors", safetensors(tensors));
    }
    /// Two shards and their index.
    void writeSharded(const fs::path& folder) const {
        writeConfig(folder);
        Tensors parts[2];
        Json map;
        for (const auto& [name, tensor] : tensors) {
            const bool second = name.find("layers.1.") != std::string::npos;
            parts[second][name] = tensor;
            map[name] = second ? "part-2.safetensors" : "part-1.safetensors";
        }
        write(folder / "part-1.safetensors", safetensors(parts[0]));
        write(folder / "part-2.safetensors", safetensors(parts[1]));
        write(folder / "model.safetensors.index.json", Json{{"weight_map", map}}.dump());
    }
    float value(const std::string& name, std::size_t index) const {
        const Tensor& tensor = tensors.at(name);
        return elementAt(tensor.bytes.data(), *weightType(tensor.dtype), std::int64_t(index));
    }

    Json config;
    Tensors tensors;

private:
    /// The bits of a half, for multiples of 1/64 below 2.
    static std::uint16_t halfOf(float value) {
        if (value == 0) return 0;
        const auto bits = std::bit_cast<std::uint32_t>(value);
        return std::uint16_t((bits >> 16 & 0x8000) | (((bits >> 23 & 255) - 112) << 10) | (bits >> 13 & 1023));
    }
    std::string dtype_;
    std::mt19937 random_{2026};
};

} // namespace kvscope::test
