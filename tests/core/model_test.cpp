// Loading models: configurations, safetensors files and whole checkpoints, sound and damaged.
#include "core/model/model.h"

#include "core/model/safetensors.h"
#include "kernels/base/error.h"
#include "kernels/base/half.h"
#include "tests/profiler/temporary_folder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <random>
#include <sys/stat.h>

namespace kvscope {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;
namespace fs = std::filesystem;

std::string contentsOf(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    EXPECT_TRUE(file) << path;
    return {std::istreambuf_iterator<char>(file), {}};
}

void write(const fs::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc).write(bytes.data(), std::streamsize(bytes.size()));
}

const fs::path kEmbeddedFolder = KVSCOPE_SOURCE_DIR "/resources/models/nosa-tiny";

/// The one line of the Error that `action` ends in, which names `file`; empty when it succeeds.
std::string refusalOf(const std::function<void()>& action, const std::string& file) {
    try {
        action();
        return {};
    } catch (const Error& error) {
        const std::string line = oneLine(error);
        EXPECT_EQ(line.find_first_of("\r\n"), std::string::npos) << line;
        EXPECT_THAT(line, HasSubstr(file));
        EXPECT_LT(line.size(), 500u) << line;
        EXPECT_FALSE(line.ends_with(".")) << line;
        return line;
    }
}

// --- config.json

Json embeddedConfig() { return Json::parse(contentsOf(kEmbeddedFolder / "config.json")); }

std::string configRefusal(const std::function<void(Json&)>& change) {
    Json json = embeddedConfig();
    change(json);
    return refusalOf([&] { ModelConfig::parse(json.dump(), "x/config.json"); }, "x/config.json");
}

TEST(ModelConfig, HoldsTheValuesOfTheEmbeddedModel) {
    const auto config = ModelConfig::parse(contentsOf(kEmbeddedFolder / "config.json"), "config.json");
    EXPECT_EQ(config.architecture, "LlamaForCausalLM");
    EXPECT_EQ(config.modelType, "llama");
    EXPECT_EQ(config.layers, 8);
    EXPECT_EQ(config.hidden, 384);
    EXPECT_EQ(config.queryHeads, 6);
    EXPECT_EQ(config.kvHeads, 2);
    EXPECT_EQ(config.group(), 3);
    EXPECT_EQ(config.headDim, 64);
    EXPECT_EQ(config.ffn, 1024);
    EXPECT_EQ(config.vocab, 4096);
    EXPECT_EQ(config.maxPositions, 16384);
    EXPECT_FLOAT_EQ(config.rmsNormEps, 1e-5f);
    EXPECT_EQ(config.rope.theta, 500000.0);
    EXPECT_TRUE(config.tiedEmbeddings);
    EXPECT_EQ(config.bosId, 0);
    EXPECT_EQ(config.eosIds, std::vector<std::int32_t>{1});
    ASSERT_TRUE(config.sparse);
    EXPECT_EQ(config.sparse->kernelSize, 32);
    EXPECT_EQ(config.sparse->kernelStride, 16);
    EXPECT_EQ(config.sparse->blockSize, 64);
    EXPECT_EQ(config.sparse->sinkBlocks, 1);
    EXPECT_EQ(config.sparse->windowBlocks, 4);
    EXPECT_FALSE(config.sparse->windowAddsCurrent);
    EXPECT_EQ(config.sparse->queryAwareBlocks, 4);
    EXPECT_EQ(config.sparse->totalBlocks, 16);
    EXPECT_EQ(config.sparse->denseLen, 0);
    EXPECT_EQ(config.sparse->method, "nosa");
}

TEST(ModelConfig, FillsInWhatOlderFilesLeaveOut) {
    Json json = embeddedConfig();
    for (const char* key : {"num_key_value_heads", "head_dim", "rope_theta", "tie_word_embeddings", "bos_token_id",
                            "eos_token_id", "sparse_config", "sparse_attention", "rope_scaling", "hidden_act"})
        json.erase(key);
    const auto config = ModelConfig::parse(json.dump(), "config.json");
    EXPECT_EQ(config.kvHeads, 6);
    EXPECT_EQ(config.headDim, 64);
    EXPECT_EQ(config.rope.theta, 10000.0);
    EXPECT_FALSE(config.tiedEmbeddings);
    EXPECT_EQ(config.bosId, -1);
    EXPECT_TRUE(config.eosIds.empty());
    EXPECT_FALSE(config.sparse);
    json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 12345.0}};
    json["eos_token_id"] = {1, 7};
    EXPECT_EQ(ModelConfig::parse(json.dump(), "config.json").rope.theta, 12345.0);
    EXPECT_EQ(ModelConfig::parse(json.dump(), "config.json").eosIds, (std::vector<std::int32_t>{1, 7}));
}

TEST(ModelConfig, RefusesEveryBadSizeNamingItsKey) {
    for (const char* key : {"num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads",
                            "head_dim", "intermediate_size", "vocab_size", "max_position_embeddings"}) {
        const bool optional = std::string(key) == "num_key_value_heads" || std::string(key) == "head_dim";
        if (!optional) {
            EXPECT_THAT(configRefusal([&](Json& json) { json.erase(key); }), HasSubstr(key));
            EXPECT_THAT(configRefusal([&](Json& json) { json[key] = nullptr; }), HasSubstr(key));
        }
        const Json bad[] = {0,   -1,    INT32_MIN, INT64_MIN, INT32_MAX,        std::int64_t(1) << 32, UINT64_MAX,
                            2.5, 1e300, "8",       true,      Json::array({8}), Json::object()};
        for (const Json& value : bad)
            EXPECT_THAT(configRefusal([&](Json& json) { json[key] = value; }), HasSubstr(key)) << value;
    }
}

TEST(ModelConfig, SpecialTokensBeyondTheVocabularyAreNone) {
    Json json = embeddedConfig();
    json["bos_token_id"] = 151643;
    json["eos_token_id"] = {1, 151645};
    const ModelConfig config = ModelConfig::parse(json.dump(), "config.json");
    EXPECT_EQ(config.bosId, -1);
    EXPECT_EQ(config.eosIds, std::vector<std::int32_t>{1});
}

TEST(ModelConfig, RefusesBadNumbersFlagsAndIds) {
    const std::tuple<const char*, Json> bad[] = {{"rms_norm_eps", -1e-5},
                                                 {"rms_norm_eps", 2},
                                                 {"rms_norm_eps", "1e-5"},
                                                 {"rms_norm_eps", nullptr},
                                                 {"rope_theta", 0},
                                                 {"rope_theta", -10000},
                                                 {"rope_theta", 1e300},
                                                 {"rope_theta", "10000"},
                                                 {"tie_word_embeddings", 1},
                                                 {"tie_word_embeddings", "true"},
                                                 {"bos_token_id", -1},
                                                 {"bos_token_id", "0"},
                                                 {"eos_token_id", UINT64_MAX},
                                                 {"eos_token_id", Json::array({1, "2"})},
                                                 {"eos_token_id", Json::object()},
                                                 {"architectures", "LlamaForCausalLM"},
                                                 {"architectures", Json::array()},
                                                 {"architectures", Json::array({4})},
                                                 {"hidden_act", 3},
                                                 {"hidden_act", "gelu"},
                                                 {"rope_scaling", "linear"},
                                                 {"rope_scaling", {{"type", 4}}},
                                                 {"sparse_config", 4},
                                                 {"sparse_attention", Json::array()}};
    for (const auto& [key, value] : bad) {
        const std::string line = configRefusal([&, &k = key, &v = value](Json& json) { json[k] = v; });
        const bool nested = std::string(key) == "rope_scaling" && value.is_object();
        EXPECT_THAT(line, HasSubstr(nested ? "type" : key)) << value;
    }
}

TEST(ModelConfig, RefusesSizesThatDoNotFitTogether) {
    EXPECT_THAT(configRefusal([](Json& json) { json["num_key_value_heads"] = 4; }), HasSubstr("6 query heads"));
    EXPECT_THAT(configRefusal([](Json& json) { json["head_dim"] = 21; }), HasSubstr("head_dim of 21"));
    EXPECT_THAT(configRefusal([](Json& json) { json["head_dim"] = 1040; }), HasSubstr("head_dim"));
    EXPECT_THAT(configRefusal([](Json& json) { json.erase("head_dim"), json["hidden_size"] = 385; }),
                HasSubstr("hidden_size 385"));
    EXPECT_THAT(configRefusal([](Json& json) { json["num_attention_heads"] = 258; }), HasSubstr("128"));
}

TEST(ModelConfig, RefusesWhatThisVersionCannotRun) {
    EXPECT_THAT(configRefusal([](Json& json) { json["architectures"] = {"MambaForCausalLM"}; }),
                HasSubstr("MambaForCausalLM"));
    EXPECT_THAT(configRefusal([](Json& json) { json.erase("architectures"), json["model_type"] = "gpt2"; }),
                HasSubstr("gpt2"));
    EXPECT_THAT(configRefusal([](Json& json) { json.erase("architectures"), json.erase("model_type"); }),
                HasSubstr("architecture"));
    EXPECT_THAT(configRefusal([](Json& json) {
                    json["rope_scaling"] = {{"rope_type", "proportional"}, {"factor", 4}};
                }),
                HasSubstr("proportional"));
    EXPECT_THAT(configRefusal([](Json& json) { json["rope_scaling"] = {{"type", "linear"}}; }), HasSubstr("factor"));
    EXPECT_THAT(configRefusal([](Json& json) { json["scale_emb"] = 0; }), HasSubstr("scale_emb"));
    EXPECT_THAT(configRefusal([](Json& json) {
                    json["partial_rotary_factor"] = 0.5, json["rope_scaling"] = {{"type", "default"}};
                }),
                HasSubstr("partial_rotary_factor"));
    EXPECT_THAT(configRefusal([](Json& json) { json["architectures"] = {"LlamaForSequenceClassification"}; }),
                HasSubstr("LlamaForSequenceClassification"));
    EXPECT_THAT(configRefusal([](Json& json) {
                    json["quantization_config"] = {{"bits", 4}};
                }),
                HasSubstr("quantization_config"));
    EXPECT_THAT(configRefusal([](Json& json) { json["sparse_config"]["use_nope"] = true; }), HasSubstr("use_nope"));
}

TEST(ModelConfig, RefusesBadSparseSettingsNamingTheirKey) {
    for (const char* key : {"kernel_size", "kernel_stride", "block_size", "init_blocks", "window_size", "select_blocks",
                            "topk", "dense_len"})
        for (const Json& value : {Json(-2), Json(INT32_MAX), Json("4"), Json(1.5)})
            EXPECT_THAT(configRefusal([&](Json& json) { json["sparse_config"][key] = value; }), HasSubstr(key))
                << value;
    for (const char* key : {"sink_blocks", "window_blocks", "query_aware_blocks", "total_blocks"})
        for (const Json& value : {Json(-2), Json(INT32_MAX), Json("4"), Json(1.5)})
            EXPECT_THAT(configRefusal([&](Json& json) { json["sparse_attention"][key] = value; }), HasSubstr(key))
                << value;
    EXPECT_THAT(configRefusal([](Json& json) { json["sparse_config"]["block_size"] = 24; }),
                HasSubstr("block_size 24"));
    EXPECT_THAT(configRefusal([](Json& json) { json["sparse_config"]["kernel_stride"] = 64; }),
                HasSubstr("kernel_stride 64"));
}

TEST(ModelConfig, RefusesTextThatIsNoConfiguration) {
    for (const std::string text : {"", " ", "null", "[]", "3", "{", "{}", "{\"a\":", "\xff\xfe{}", "[[[["})
        EXPECT_NE(refusalOf([&] { ModelConfig::parse(text, "x/config.json"); }, "x/config.json"), "") << text;
    const std::string deep = "{\"model_type\":" + std::string(500'000, '[') + std::string(500'000, ']') + "}";
    EXPECT_NE(refusalOf([&] { ModelConfig::parse(deep, "x/config.json"); }, "x/config.json"), "");
    EXPECT_NE(configRefusal([](Json& json) { json["architectures"] = {"a\n" + std::string(100'000, 'b')}; }), "");
}

// --- tiny checkpoints

struct Tensor {
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::string bytes;
};
using Tensors = std::map<std::string, Tensor>;

std::string safetensors(const Tensors& tensors) {
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

/// A file of this header and `dataBytes` zeros.
std::string withHeader(const std::string& header, std::size_t dataBytes) {
    const std::uint64_t size = header.size();
    return std::string(reinterpret_cast<const char*>(&size), 8) + header + std::string(dataBytes, '\0');
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
    /// Of multiples of 1/64 below 2.
    static std::uint16_t halfOf(float value) {
        if (value == 0) return 0;
        const auto bits = std::bit_cast<std::uint32_t>(value);
        return std::uint16_t((bits >> 16 & 0x8000) | (((bits >> 23 & 255) - 112) << 10) | (bits >> 13 & 1023));
    }
    std::string dtype_;
    std::mt19937 random_{2026};
};

std::string loadRefusal(const fs::path& path, const std::string& file) {
    return refusalOf([&] { Model::load(path.string()); }, file);
}

void expectHolds(const Model& model, const TinyCheckpoint& checkpoint) {
    const auto matrixEquals = [&](const WeightMatrix& matrix, const std::string& name) {
        const Tensor& tensor = checkpoint.tensors.at(name);
        ASSERT_EQ(matrix.bytes(), tensor.bytes.size()) << name;
        EXPECT_EQ(matrix.rows, tensor.shape[0]) << name;
        EXPECT_EQ(std::memcmp(matrix.data, tensor.bytes.data(), tensor.bytes.size()), 0) << name;
    };
    const auto vectorEquals = [&](const std::vector<float>& values, const std::string& name) {
        ASSERT_FALSE(values.empty()) << name;
        for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], checkpoint.value(name, i)) << name;
    };
    for (int i = 0; i < 2; ++i) {
        const std::string layer = "model.layers." + std::to_string(i) + ".";
        const LayerWeights& w = model.layer(i);
        matrixEquals(w.q, layer + "self_attn.q_proj.weight");
        matrixEquals(w.k, layer + "self_attn.k_proj.weight");
        matrixEquals(w.v, layer + "self_attn.v_proj.weight");
        matrixEquals(w.o, layer + "self_attn.o_proj.weight");
        matrixEquals(w.mlp.gate, layer + "mlp.gate_proj.weight");
        matrixEquals(w.mlp.up, layer + "mlp.up_proj.weight");
        matrixEquals(w.mlp.down, layer + "mlp.down_proj.weight");
        vectorEquals(w.inputNorm, layer + "input_layernorm.weight");
        vectorEquals(w.postNorm, layer + "post_attention_layernorm.weight");
        EXPECT_TRUE(w.qBias.empty());
        if (!model.hasEvictionHead()) continue;
        vectorEquals(w.delta, layer + "self_attn.delta.weight");
        vectorEquals(w.gain, layer + "self_attn.A");
    }
    vectorEquals(model.finalNorm(), "model.norm.weight");
    matrixEquals(model.embedding(), "model.embed_tokens.weight");
    if (model.config().tiedEmbeddings)
        EXPECT_EQ(model.lmHead().data, model.embedding().data);
    else
        matrixEquals(model.lmHead(), "lm_head.weight");
}

class Checkpoint : public testing::Test {
protected:
    fs::path file(const std::string& name = "model.safetensors") const { return folder_ / name; }
    /// Writes `checkpoint` and gives the refusal of loading it.
    std::string refusal(const TinyCheckpoint& checkpoint, const std::string& named = "model.safetensors") const {
        checkpoint.writeTo(folder_.path());
        return loadRefusal(folder_.path(), named);
    }
    test::Folder folder_;
};

TEST_F(Checkpoint, LoadsInEveryTypeTiedAndUntied) {
    for (const std::string dtype : {"BF16", "F16", "F32"})
        for (const bool tied : {true, false})
            for (const bool head : {true, false}) {
                SCOPED_TRACE(dtype + (tied ? " tied" : " untied") + (head ? " with eviction head" : ""));
                const TinyCheckpoint checkpoint(dtype, tied, head);
                checkpoint.writeTo(folder_.path());
                const auto model = Model::load(folder_.path().string());
                EXPECT_EQ(model->name(), folder_.path().filename().string());
                EXPECT_EQ(model->weightType(), *weightType(dtype));
                EXPECT_EQ(model->hasEvictionHead(), head);
                EXPECT_EQ(model->fileBytes(), fs::file_size(file()));
                expectHolds(*model, checkpoint);
            }
}

TEST_F(Checkpoint, LoadsFromAFileASlashedFolderAndShards) {
    const TinyCheckpoint checkpoint("F32", false);
    checkpoint.writeTo(folder_.path());
    expectHolds(*Model::load(file().string()), checkpoint);
    const auto slashed = Model::load(folder_.path().string() + "/");
    EXPECT_EQ(slashed->name(), folder_.path().filename().string());
    fs::remove(file());
    checkpoint.writeSharded(folder_.path());
    const auto sharded = Model::load(folder_.path().string());
    expectHolds(*sharded, checkpoint);
    EXPECT_EQ(sharded->fileBytes(),
              fs::file_size(file("part-1.safetensors")) + fs::file_size(file("part-2.safetensors")));
}

TEST_F(Checkpoint, ReadsBiasesWhenThereAreAny) {
    TinyCheckpoint checkpoint;
    checkpoint.add("model.layers.0.self_attn.q_proj.bias", {32});
    checkpoint.add("model.layers.1.self_attn.o_proj.bias", {32});
    checkpoint.writeTo(folder_.path());
    const auto model = Model::load(folder_.path().string());
    ASSERT_EQ(model->layer(0).qBias.size(), 32u);
    EXPECT_EQ(model->layer(0).qBias[5], checkpoint.value("model.layers.0.self_attn.q_proj.bias", 5));
    EXPECT_EQ(model->layer(1).oBias.size(), 32u);
    EXPECT_TRUE(model->layer(1).qBias.empty());
    checkpoint.add("model.layers.1.mlp.up_proj.bias", {48});
    checkpoint.writeTo(folder_.path());
    const auto biased = Model::load(folder_.path().string());
    EXPECT_EQ(biased->layer(1).mlp.upBias.size(), 48u);
    EXPECT_TRUE(biased->layer(1).mlp.gateBias.empty());
}

TEST_F(Checkpoint, NamesEveryMissingTensor) {
    const TinyCheckpoint whole("BF16", false);
    for (const auto& [name, tensor] : whole.tensors) {
        TinyCheckpoint checkpoint = whole;
        checkpoint.tensors.erase(name);
        const std::string line = refusal(checkpoint);
        if (name.find("delta") == std::string::npos && name.find("self_attn.A") == std::string::npos)
            EXPECT_THAT(line, HasSubstr("'" + name + "'"));
        else
            EXPECT_THAT(line, HasSubstr("eviction head")) << name;
    }
}

TEST_F(Checkpoint, NamesEveryTensorOfAWrongShapeOrType) {
    const TinyCheckpoint whole("BF16", false);
    for (const auto& [name, tensor] : whole.tensors) {
        TinyCheckpoint checkpoint = whole;
        Tensor& changed = checkpoint.tensors.at(name);
        changed.shape.push_back(1);
        EXPECT_THAT(refusal(checkpoint), HasSubstr("'" + name + "' has shape [")) << name;
        changed.shape = tensor.shape;
        changed.dtype = "I16";
        EXPECT_THAT(refusal(checkpoint), HasSubstr("'" + name + "' has type I16")) << name;
        changed.dtype = "Q4\n";
        EXPECT_THAT(refusal(checkpoint), HasSubstr("'" + name + "' has the unknown type")) << name;
    }
}

TEST_F(Checkpoint, RefusesShardsOutsideTheFolder) {
    TinyCheckpoint().writeSharded(folder_.path());
    const std::string index = "model.safetensors.index.json";
    const std::vector<std::string> names = {"../part-1.safetensors", "/etc/passwd", "a/b", "a\\b", "..", ".", "",
                                            std::string("a\0b", 3)};
    for (const std::string& name : names) {
        write(file(index), Json{{"weight_map", {{"x", name}}}}.dump());
        EXPECT_NE(loadRefusal(folder_.path(), index), "") << name;
    }
    for (const std::string text :
         {"", "{}", "[]", "{\"weight_map\": {}}", "{\"weight_map\": []}", "{\"weight_map\": {\"x\": 4}}"}) {
        write(file(index), text);
        EXPECT_NE(loadRefusal(folder_.path(), index), "") << text;
    }
}

TEST_F(Checkpoint, NamesAMissingShard) {
    TinyCheckpoint().writeSharded(folder_.path());
    fs::remove(file("part-2.safetensors"));
    EXPECT_THAT(loadRefusal(folder_.path(), "part-2.safetensors"), HasSubstr("cannot open"));
}

TEST_F(Checkpoint, NamesTheIndexWhenNoShardHoldsATensor) {
    TinyCheckpoint checkpoint;
    checkpoint.tensors.erase("model.layers.1.mlp.up_proj.weight");
    checkpoint.writeSharded(folder_.path());
    EXPECT_THAT(loadRefusal(folder_.path(), "model.safetensors.index.json"), HasSubstr("layers.1.mlp.up_proj.weight"));
}

TEST_F(Checkpoint, NamesEveryMissingFile) {
    for (const char* name : {"config.json", "model.safetensors"}) {
        TinyCheckpoint().writeTo(folder_.path());
        fs::remove(file(name));
        EXPECT_THAT(loadRefusal(folder_.path(), name), HasSubstr("has no")) << name;
    }
}

TEST_F(Checkpoint, EndsWhereGenerationConfigSaysToo) {
    TinyCheckpoint().writeTo(folder_.path());
    const auto before = Model::load(folder_.path().string())->config().eosIds;
    ASSERT_EQ(before, std::vector<std::int32_t>{1});
    write(file("generation_config.json"), R"({"eos_token_id": [1, 3, 999999], "temperature": 0.6})");
    EXPECT_EQ(Model::load(folder_.path().string())->config().eosIds, (std::vector<std::int32_t>{1, 3}));
    write(file("generation_config.json"), R"({"eos_token_id": 5})");
    EXPECT_EQ(Model::load(folder_.path().string())->config().eosIds, (std::vector<std::int32_t>{1, 5}));
    for (const char* bad : {"[", "4", R"({"eos_token_id": "</s>"})", R"({"eos_token_id": -4})"}) {
        write(file("generation_config.json"), bad);
        EXPECT_NE(loadRefusal(folder_.path(), "generation_config.json"), "") << bad;
    }
}

TEST_F(Checkpoint, WithoutATokenizerTakesAndGivesIdsOnly) {
    TinyCheckpoint().writeTo(folder_.path());
    fs::remove(file("tokenizer.json"));
    const auto model = Model::load(folder_.path().string());
    EXPECT_EQ(model->tokenizer().vocabSize(), model->config().vocab);
    EXPECT_EQ(model->tokenizer().decode({3, 17}), "<3><17>");
    const std::string line = refusalOf([&] { (void)model->tokenizer().encode("a text"); }, "--prompt-ids");
    EXPECT_THAT(line, HasSubstr(folder_.path().string()));
}

TEST_F(Checkpoint, RefusesAFileTruncatedAnywhere) {
    TinyCheckpoint checkpoint;
    checkpoint.writeTo(folder_.path());
    const std::string whole = contentsOf(file());
    std::uint64_t header = 0;
    std::memcpy(&header, whole.data(), 8);
    for (std::size_t length = 0; length < whole.size(); length += length < 8 + header ? 1 + header / 2000 : 997) {
        const std::string cut = whole.substr(0, length);
        EXPECT_NE(refusalOf([&] { SafetensorsFile(std::as_bytes(std::span(cut)), "x.safetensors"); }, "x.safetensors"),
                  "")
            << length;
    }
    for (const std::size_t length : {std::size_t(0), std::size_t(4), std::size_t(8), std::size_t(100),
                                     std::size_t(8 + header), std::size_t(8 + header + 1000), whole.size() - 1}) {
        write(file(), whole.substr(0, length));
        EXPECT_NE(loadRefusal(folder_.path(), "model.safetensors"), "") << length;
    }
}

TEST_F(Checkpoint, ADamagedHeaderLoadsOrIsRefused) {
    TinyCheckpoint checkpoint;
    checkpoint.writeTo(folder_.path());
    const std::string whole = contentsOf(file());
    std::uint64_t header = 0;
    std::memcpy(&header, whole.data(), 8);
    std::mt19937 random(11);
    int refused = 0;
    for (int round = 0; round < 200; ++round) {
        std::string damaged = whole;
        for (std::size_t changes = 1 + random() % 3; changes > 0; --changes) {
            const std::size_t at = round % 10 == 0 ? random() % 8 : random() % (8 + header);
            damaged[at] = round % 2 ? char(random()) : "0123456789[]{},:\""[random() % 17];
        }
        write(file(), damaged);
        if (!loadRefusal(folder_.path(), "model.safetensors").empty()) ++refused;
    }
    EXPECT_GT(refused, 50);
}

TEST_F(Checkpoint, ADamagedConfigurationLoadsOrIsRefused) {
    TinyCheckpoint checkpoint;
    checkpoint.writeTo(folder_.path());
    const std::string whole = contentsOf(file("config.json"));
    std::mt19937 random(13);
    for (int round = 0; round < 200; ++round) {
        std::string damaged = whole;
        damaged[random() % damaged.size()] = round % 2 ? char(random()) : "0123456789[]{},:\""[random() % 17];
        write(file("config.json"), damaged);
        loadRefusal(folder_.path(), ""); // the weights may be what no longer fits
    }
}

TEST_F(Checkpoint, RefusesWhatIsNoFile) {
    TinyCheckpoint().writeConfig(folder_.path());
    write(file(), "");
    EXPECT_THAT(loadRefusal(folder_.path(), "model.safetensors"), HasSubstr("too few"));
    fs::remove(file());
    fs::create_directory(file());
    EXPECT_THAT(loadRefusal(folder_.path(), "model.safetensors"), HasSubstr("directory"));
    fs::remove(file());
    ASSERT_EQ(mkfifo(file().c_str(), 0600), 0);
    EXPECT_NE(loadRefusal(folder_.path(), "model.safetensors"), "");
    write(file("notes.txt"), "text");
    EXPECT_THAT(loadRefusal(file("notes.txt"), "notes.txt"), HasSubstr("neither a folder nor"));
}

TEST_F(Checkpoint, ANameThatDoesNotExistListsTheEmbeddedModels) {
    const std::string long_(10'000, 'x');
    const std::string line = loadRefusal(file("nowhere"), "nowhere");
    for (const std::string& name : embeddedModels()) EXPECT_THAT(line, HasSubstr(name));
    EXPECT_NE(loadRefusal("", ""), "");
    EXPECT_NE(loadRefusal("line\nbreak", "line break"), "");
    EXPECT_THROW(Model::load(long_), Error);
}

TEST_F(Checkpoint, StopsWhenAskedAtEveryReport) {
    TinyCheckpoint().writeTo(folder_.path());
    int reports = 0;
    Model::load(folder_.path().string(), [&](double, std::string_view) { ++reports; });
    ASSERT_GT(reports, 4);
    for (int at = 0; at + 1 < reports; ++at) { // the last one says that it is done
        std::stop_source source;
        int seen = 0;
        try {
            Model::load(
                folder_.path().string(),
                [&](double, std::string_view) {
                    if (seen++ == at) source.request_stop();
                },
                source.get_token());
            ADD_FAILURE() << "not stopped at report " << at;
        } catch (const Error& error) {
            EXPECT_EQ(error.kind, ErrorKind::Cancelled);
            EXPECT_EQ(seen, at + 1);
        }
    }
}

TEST_F(Checkpoint, ProgressRisesFromZeroToOne) {
    TinyCheckpoint().writeSharded(folder_.path());
    std::vector<double> fractions;
    Model::load(folder_.path().string(), [&](double fraction, std::string_view what) {
        fractions.push_back(fraction);
        EXPECT_FALSE(what.empty());
    });
    ASSERT_FALSE(fractions.empty());
    EXPECT_EQ(fractions.front(), 0.0);
    EXPECT_EQ(fractions.back(), 1.0);
    EXPECT_TRUE(std::is_sorted(fractions.begin(), fractions.end()));
}

TEST(EmbeddedModel, LoadsByItsName) {
    const auto model = Model::load(kDefaultModel);
    EXPECT_EQ(model->name(), kDefaultModel);
    EXPECT_TRUE(model->hasEvictionHead());
    EXPECT_EQ(model->weightType(), DType::BF16);
    EXPECT_EQ(model->fileBytes(), fs::file_size(kEmbeddedFolder / "model.safetensors"));
    EXPECT_GT(model->weightBytes(), 0u);
    EXPECT_LE(model->weightBytes(), model->fileBytes());
}

// --- single safetensors headers

std::string headerRefusal(const std::string& header, std::size_t dataBytes) {
    const std::string file = withHeader(header, dataBytes);
    return refusalOf([&] { SafetensorsFile(std::as_bytes(std::span(file)), "x.safetensors"); }, "x.safetensors");
}

TEST(Safetensors, ReadsNamesShapesAndBytes) {
    const std::string file = withHeader(
        R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"empty":{"dtype":"F16","shape":[0],"data_offsets":[24,24]},)"
        R"("scalar":{"dtype":"BF16","shape":[],"data_offsets":[24,26]},"__metadata__":{"format":"pt"}}   )",
        26);
    const SafetensorsFile read(std::as_bytes(std::span(file)), "x");
    EXPECT_EQ(read.tensors().size(), 3u);
    ASSERT_NE(read.find("a"), nullptr);
    EXPECT_EQ(read.find("a")->shape, (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(read.find("a")->bytes.size(), 24u);
    EXPECT_EQ(read.find("scalar")->bytes.size(), 2u);
    EXPECT_EQ(read.find("empty")->bytes.size(), 0u);
    EXPECT_EQ(read.find("b"), nullptr);
}

TEST(Safetensors, RefusesImpossibleShapes) {
    for (const std::string shape : {"[4294967296,4294967296]", "[9223372036854775808]", "[18446744073709551615,2]",
                                    "[-1]", "[1.5]", "[\"2\"]", "[[2]]", "[4611686018427387904]", "[3]", "4", "null"})
        EXPECT_THAT(headerRefusal(R"({"t":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":[0,8]}})", 8),
                    HasSubstr("'t'"))
            << shape;
}

TEST(Safetensors, RefusesBadOffsets) {
    for (const std::string offsets :
         {"[0,16]", "[8,0]", "[-8,0]", "[0,18446744073709551615]", "[18446744073709551608,0]", "[0]", "[0,8,8]",
          "[0.0,8.0]", "null", "{}", "[1,8]", "[4,12]"})
        EXPECT_THAT(headerRefusal(R"({"t":{"dtype":"F32","shape":[2],"data_offsets":)" + offsets + "}}", 8),
                    HasSubstr("'t'"))
            << offsets;
}

TEST(Safetensors, RefusesOverlappingTensors) {
    const auto two = [](const std::string& first, const std::string& second) {
        return R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)" + first +
               R"(},"b":{"dtype":"F32","shape":[2],"data_offsets":)" + second + "}}";
    };
    EXPECT_EQ(headerRefusal(two("[0,8]", "[8,16]"), 16), "");
    EXPECT_EQ(headerRefusal(two("[8,16]", "[0,8]"), 16), "");
    EXPECT_THAT(headerRefusal(two("[0,8]", "[4,12]"), 16), HasSubstr("overlap"));
    EXPECT_THAT(headerRefusal(two("[8,16]", "[8,16]"), 16), HasSubstr("overlap"));
}

TEST(Safetensors, RefusesHeadersThatAreNone) {
    for (const std::string header :
         {"", "[]", "3", "null", "{", "{\"t\":4}", "{\"t\":{}}", "{\"t\":{\"dtype\":4}}", "\xff{}"})
        EXPECT_NE(headerRefusal(header, 8), "") << header;
    EXPECT_EQ(headerRefusal("{}", 0), "");
    EXPECT_NE(headerRefusal("{\"t\":" + std::string(1'000'000, '[') + std::string(1'000'000, ']') + "}", 8), "");
    EXPECT_NE(headerRefusal("{\"" + std::string(1'000'000, 'n') + "\\n\":4}", 8), "");
    for (const std::uint64_t size : {std::uint64_t(9), std::uint64_t(100'000'001), UINT64_MAX, UINT64_MAX - 7}) {
        const std::string file = std::string(reinterpret_cast<const char*>(&size), 8) + "{}      ";
        EXPECT_THAT(
            refusalOf([&] { SafetensorsFile(std::as_bytes(std::span(file)), "x.safetensors"); }, "x.safetensors"),
            HasSubstr("header"))
            << size;
    }
}

} // namespace
} // namespace kvscope
