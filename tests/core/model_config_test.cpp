// Configurations: what they say, and what is refused.
#include "core/model/model_config.h"

#include "core/model/model.h"
#include "tests/core/files.h"
#include "tests/core/refusal.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace kvscope {
namespace {

using Json = nlohmann::json;
using test::refusalOf;
using testing::HasSubstr;

Json embeddedConfig() { return Json::parse(test::contentsOf(test::kEmbeddedFolder / "config.json")); }

std::string configRefusal(const std::function<void(Json&)>& change) {
    Json json = embeddedConfig();
    change(json);
    return refusalOf([&] { ModelConfig::parse(json.dump(), "x/config.json"); }, "x/config.json");
}

TEST(ModelConfig, HoldsTheValuesOfTheEmbeddedModel) {
    const auto config = ModelConfig::parse(test::contentsOf(test::kEmbeddedFolder / "config.json"), "config.json");
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
    EXPECT_THAT(configRefusal([](Json& json) { json.erase("head_dim"), json["hidden_size"] = 5; }),
                HasSubstr("hidden_size 5 is too small for 6 heads"));
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
                HasSubstr("quantised checkpoints (quantization_config)"));
    EXPECT_THAT(configRefusal([](Json& json) {
                    json["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 4}};
                }),
                HasSubstr("gptq checkpoints (quantization_config)"));
    EXPECT_THAT(configRefusal([](Json& json) { json["quantization_config"] = 4; }), HasSubstr("quantization_config"));
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
    for (const std::string number : {"NaN", "-Infinity"}) {
        const std::string text = R"({"model_type": "llama", "rope_parameters": {"rope_theta": )" + number + "}}";
        EXPECT_THAT(refusalOf([&] { ModelConfig::parse(text, "x/config.json"); }, "x/config.json"),
                    HasSubstr("'rope_theta' is "));
    }
    EXPECT_NE(refusalOf([&] { ModelConfig::parse("\"NaN", "x/config.json"); }, "x/config.json"), "");
    EXPECT_NE(configRefusal([](Json& json) { json["architectures"] = {"a\n" + std::string(100'000, 'b')}; }), "");
}

} // namespace
} // namespace kvscope
