// Configurations: what they say, and what is refused.
#include "core/model/model_config.h"

#include "core/model/model.h"
#include "tests/core/files.h"
#include "tests/core/random_checkpoint.h"
#include "tests/support/refusal.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

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
    EXPECT_EQ(config.bosId, 1); // the library's
    EXPECT_EQ(config.eosIds, std::vector<std::int32_t>{2});
    EXPECT_TRUE(config.eosByDefault);
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

/// A configuration of a family with `change` made to it.
Json familyConfig(const std::string& family, const std::function<void(Json&)>& change) {
    Json json = test::familyConfig(family, Json::object());
    change(json);
    return json;
}
ModelConfig read(const std::string& family, const std::function<void(Json&)>& change) {
    return ModelConfig::parse(familyConfig(family, change).dump(), "x/config.json");
}
std::string refusal(const std::string& family, const std::function<void(Json&)>& change) {
    return refusalOf([&] { read(family, change); }, "x/config.json");
}
std::function<void(Json&)> with(const char* key, const Json& value) {
    return [=](Json& json) { json[key] = value; };
}
std::function<void(Json&)> without(std::vector<const char*> keys) {
    return [=](Json& json) {
        for (const char* key : keys) json.erase(key);
    };
}

/// transformers 5.17's, and a missing key where it has no such class.
TEST(ModelConfig, KeysThatAreLeftOutHaveTheLibrarysDefaults) {
    EXPECT_EQ(read("mixtral", without({"rope_parameters"})).rope.theta, 1e6);
    EXPECT_EQ(read("qwen2", without({"rope_parameters"})).rope.theta, 1e4);
    EXPECT_EQ(read("mixtral", without({"num_experts_per_tok"})).experts->used, 2);
    const ModelConfig third = read("deepseek3", [](Json& json) {
        json["n_routed_experts"] = 32;
        for (const char* key : {"routed_scaling_factor", "n_shared_experts", "n_group", "topk_group"}) json.erase(key);
    });
    EXPECT_EQ(third.experts->scale, 2.5f);
    EXPECT_EQ(third.experts->sharedWidth, third.experts->width);
    EXPECT_EQ(third.experts->groups, 8);
    EXPECT_EQ(third.experts->groupsUsed, 4);
    const ModelConfig second = read("deepseek2-lite", without({"routed_scaling_factor", "n_shared_experts"}));
    EXPECT_EQ(second.experts->scale, 1.f);
    EXPECT_EQ(second.experts->sharedWidth, 2 * second.experts->width);
    EXPECT_THAT(refusal("deepseek2-groups", without({"n_group"})), HasSubstr("'n_group' is null"));
    EXPECT_THAT(refusal("deepseek2-lite", without({"num_experts_per_tok"})),
                HasSubstr("'num_experts_per_tok' is missing"));
    const ResidualScales scales = read("minicpm3", without({"scale_emb", "scale_depth", "dim_model_base"})).scales;
    EXPECT_EQ(scales.embedding, 12);
    EXPECT_DOUBLE_EQ(scales.residual, 1.4 / std::sqrt(2.0));
    EXPECT_DOUBLE_EQ(scales.logits, 256.0 / 24);
    const ResidualScales none =
        read("minicpm3", [](Json& json) { json["scale_depth"] = json["dim_model_base"] = nullptr; }).scales;
    EXPECT_EQ(none.residual, 1);
    EXPECT_EQ(none.logits, 1);
    EXPECT_EQ(read("qwen3", without({"head_dim"})).headDim, 128);
    EXPECT_EQ(read("llama2-mha", without({"rms_norm_eps"})).rmsNormEps, 1e-6f);
    for (const char* key : {"scale_emb", "scale_depth", "dim_model_base", "num_key_value_heads", "rms_norm_eps"})
        EXPECT_THAT(refusal("minicpm4", without({key})), HasSubstr("'" + std::string(key) + "' is missing")) << key;
    for (const char* key : {"num_key_value_heads", "vocab_size"})
        EXPECT_THAT(refusal("nosa", without({key})), HasSubstr("'" + std::string(key) + "' is missing")) << key;
}

TEST(ModelConfig, WindowsAreThoseOfTheLibrary) {
    using Windows = std::vector<int>;
    const Json types = {"full_attention", "sliding_attention"};
    // A Mistral with layer_types is read as a Ministral.
    EXPECT_EQ(read("mistral-window", with("layer_types", types)).windows, (Windows{0, 40}));
    EXPECT_EQ(read("mistral-window", with("layer_types", nullptr)).windows, (Windows{40, 40}));
    EXPECT_EQ(read("mistral", without({"sliding_window"})).windows, (Windows{4096, 4096}));
    EXPECT_EQ(read("mistral", with("sliding_window", nullptr)).windows, Windows{});
    const auto slides = [](Json& json) { json["use_sliding_window"] = true, json.erase("sliding_window"); };
    const auto everyLayer = [&](Json& json) { slides(json), json["max_window_layers"] = 0, json.erase("layer_types"); };
    EXPECT_EQ(read("qwen2", everyLayer).windows, (Windows{4096, 4096}));
    EXPECT_EQ(read("qwen3", everyLayer).windows, (Windows{4096, 4096}));
    EXPECT_EQ(read("qwen3-moe", slides).windows, (Windows{4096, 4096}));
    // Qwen2-MoE: every other one of the layers before max_window_layers.
    EXPECT_EQ(read("qwen2-moe",
                   [&](Json& json) {
                       slides(json), json.erase("layer_types");
                       json["sliding_window"] = 16, json["num_hidden_layers"] = 5, json["max_window_layers"] = 4;
                   })
                  .windows,
              (Windows{16, 0, 16, 0, 0}));
    for (const char* family : {"qwen2-windows", "qwen3", "qwen2-moe", "mistral-window", "llama2-mha", "mixtral"})
        for (const char* kind : {"linear_attention", "chunked_attention", "conv"})
            EXPECT_NE(refusal(family, with("layer_types", {"full_attention", kind})), "") << family << " " << kind;
    EXPECT_THAT(refusal("qwen2", with("layer_types", types)), HasSubstr("no sliding window"));
    EXPECT_THAT(refusal("llama2-mha", with("layer_types", types)), HasSubstr("layer_types"));
    EXPECT_THAT(refusal("llama2-mha", with("sliding_window", 40)), HasSubstr("sliding_window"));
    EXPECT_THAT(refusal("mixtral", with("layer_types", types)), HasSubstr("layer_types"));
    for (const char* family : {"llama2-mha", "mixtral", "deepseek3"})
        EXPECT_EQ(read(family, with("layer_types", {"full_attention", "full_attention"})).windows, Windows{}) << family;
}

TEST(ModelConfig, PositionsAreThoseOfTheLibrary) {
    const auto hides = [](Json& json) {
        json["rope_scaling"] = Json::object();
        json["rope_parameters"]["rope_theta"] = 777.0;
    };
    EXPECT_EQ(read("llama2-mha", hides).rope.theta, 777);
    EXPECT_EQ(read("llama2-mha", [&](Json& json) { hides(json), json["rope_scaling"] = nullptr; }).rope.theta, 777);
    const ModelConfig older = read("llama2-mha", [&](Json& json) {
        hides(json);
        json["rope_scaling"] = {{"type", "linear"}, {"factor", 4}};
        json["rope_theta"] = 555.0;
    });
    EXPECT_EQ(older.rope.theta, 555);
    EXPECT_EQ(older.rope.type, RopeType::Linear);
    // Heeded by two architectures alone.
    for (const char* family : {"llama2-mha", "qwen2", "mixtral", "minicpm3"})
        for (const bool stated : {false, true})
            EXPECT_FALSE(read(family, with("rope_interleave", stated)).rope.interleaved) << family;
    EXPECT_TRUE(read("deepseek2-lite", with("rope_interleave", false)).rope.interleaved);
    for (const char* family : {"deepseek3", "glm4-lite"}) {
        EXPECT_TRUE(read(family, without({"rope_interleave"})).rope.interleaved) << family;
        EXPECT_FALSE(read(family, with("rope_interleave", false)).rope.interleaved) << family;
    }
    EXPECT_THAT(refusal("llama-yarn", [](Json& json) { json["rope_parameters"].erase("factor"); }),
                HasSubstr("'factor'"));
    EXPECT_THAT(refusal("llama2-mha", [](Json& json) { json["rope_parameters"]["rope_theta"] = nullptr; }),
                HasSubstr("'rope_theta' is null"));
}

TEST(ModelConfig, ExpertsAreThoseOfTheLibrary) {
    using Layers = std::vector<bool>;
    EXPECT_EQ(read("glm4-lite", without({"mlp_layer_types"})).experts->layers, (Layers{false, true}));
    EXPECT_EQ(read("glm4-lite", with("first_k_dense_replace", 0)).experts->layers,
              (Layers{false, true})); // this family does not read the key
    EXPECT_EQ(read("deepseek3", with("mlp_layer_types", {"sparse", "sparse"})).experts->layers, (Layers{false, true}));
    EXPECT_FALSE(read("deepseek3", with("first_k_dense_replace", 2)).experts);
    EXPECT_FALSE(read("qwen3-moe", with("num_local_experts", 0)).experts);
    EXPECT_EQ(read("mixtral", [](Json& json) { json["num_experts"] = json["num_local_experts"]; }).experts->count, 4);
    EXPECT_THAT(refusal("mixtral", with("num_experts", 7)), HasSubstr("'num_local_experts' and 'num_experts'"));
    EXPECT_THAT(refusal("deepseek3", with("scoring_func", "softmax")), HasSubstr("scoring_func"));
    EXPECT_THAT(refusal("deepseek3", with("num_key_value_heads", 2)), HasSubstr("num_key_value_heads"));
}

TEST(ModelConfig, RefusesWhatTheLibraryHeedsAndThisVersionDoesNot) {
    for (const char* family : {"llama2-mha", "qwen2", "deepseek3", "minicpm4"}) {
        for (const Json& value : {Json(false), Json(), Json(0)})
            EXPECT_THAT(refusal(family, with("is_causal", value)), HasSubstr("is_causal")) << value;
        EXPECT_EQ(refusal(family, with("is_causal", true)), "");
        for (const auto& [key, value] : {std::pair<const char*, Json>{"attention_chunk_size", 8},
                                         {"num_kv_shared_layers", 2},
                                         {"text_config", {{"hidden_size", 4}}},
                                         {"is_encoder_decoder", true},
                                         {"transformers_weights", "other.safetensors"},
                                         {"per_layer_config", Json::object({{"0", Json::object()}})}}) {
            EXPECT_THAT(refusal(family, with(key, value)), HasSubstr(key));
            EXPECT_EQ(refusal(family, with(key, nullptr)), "");
        }
    }
    EXPECT_THAT(refusal("llama2-mha", with("scale_emb", 12)), HasSubstr("scale_emb"));
    EXPECT_EQ(refusal("llama2-mha", with("scale_emb", 1)), "");
    EXPECT_THAT(refusal("qwen2", with("model_type", "llama")), HasSubstr("belong to different models"));
    EXPECT_EQ(read("llama2-mha", with("hidden_act", "swish")).family, "llama");
}

TEST(ModelConfig, NotesKeysThatNobodyReadsAndCodeThatIsNotRun) {
    EXPECT_TRUE(read("llama2-mha", [](Json&) {}).notes.empty());
    EXPECT_TRUE(read("qwen3", with("temperature", 0.5)).notes.empty());
    const auto notes = read("llama2-mha", [](Json& json) {
                           json["rope_interleave"] = true, json["final_logit_softcapping"] = 5;
                           json["rope_parameters"]["factor"] = 4;
                       }).notes;
    ASSERT_EQ(notes.size(), 2u);
    EXPECT_THAT(notes[0], HasSubstr("neither transformers nor this program"));
    EXPECT_THAT(notes[0], HasSubstr("final_logit_softcapping, rope_interleave"));
    EXPECT_THAT(notes[1], HasSubstr("type default has no use"));
    const auto code = read("minicpm4", [](Json& json) {
                          json["auto_map"] = {{"AutoConfig", "configuration_minicpm.MiniCPMConfig"},
                                              {"AutoModelForCausalLM", "modeling_minicpm.MiniCPMForCausalLM"}};
                          json["mup_denominator"] = 32;
                      }).notes;
    ASSERT_EQ(code.size(), 2u);
    EXPECT_THAT(code[0], HasSubstr("modeling_minicpm.MiniCPMForCausalLM"));
    EXPECT_THAT(code[1], HasSubstr("mup_denominator"));
    // With this type transformers would load GPT-2.
    const auto type = read("llama2-mha", with("model_type", "gpt2")).notes;
    ASSERT_EQ(type.size(), 1u);
    EXPECT_THAT(type[0], AllOf(HasSubstr("'gpt2'"), HasSubstr("computed as Llama")));
    EXPECT_TRUE(read("llama2-mha", with("model_type", nullptr)).notes.empty());
    const auto own = read("minicpm4", with("model_type", "llama")).notes; // transformers has no class of this name
    ASSERT_EQ(own.size(), 1u);
    EXPECT_THAT(own[0], HasSubstr("the model type 'llama'"));
}

TEST(ModelConfig, NotesWhatNothingReadsOfSparseSettings) {
    const auto notes = [](const char* section, const char* key, const Json& value) {
        Json json = embeddedConfig();
        json[section][key] = value;
        return ModelConfig::parse(json.dump(), "config.json").notes;
    };
    EXPECT_THAT(notes("sparse_config", "topk", 12), testing::IsEmpty()); // the value that the file has already
    EXPECT_THAT(notes("sparse_config", "topkk", 4),
                testing::ElementsAre("this program does not read these keys of sparse_config: topkk"));
    EXPECT_THAT(notes("sparse_config", "use_q_future_for_topk", true),
                testing::ElementsAre(HasSubstr("use_q_future_for_topk")));
    EXPECT_THAT(notes("sparse_attention", "block_size", 32),
                testing::ElementsAre("this program does not read these keys of sparse_attention: block_size"));
    EXPECT_THAT(notes("sparse_attention", "prefill", "sparse"), testing::ElementsAre(HasSubstr("prefill 'sparse'")));
    EXPECT_THAT(notes("sparse_attention", "query_agnostic_blocks", 9),
                testing::ElementsAre(HasSubstr("query_agnostic_blocks 9: the other counts leave 7")));
}

/// Block counts of sparse_config have no effect beside those of sparse_attention, which is said where they differ.
TEST(ModelConfig, NotesSparseSettingsThatOthersOverride) {
    for (const auto& [key, value, words] : std::vector<std::tuple<const char*, int, const char*>>{
             {"topk", 20, "topk 20, which is total_blocks 24: sparse_attention has 16"},
             {"init_blocks", 2, "init_blocks 2, which is sink_blocks 2: sparse_attention has 1"},
             {"window_size", 512, "window_size 512, which is window_blocks 8: sparse_attention has 4"},
             {"select_blocks", 6, "select_blocks 6, which is query_aware_blocks 6: sparse_attention has 4"}}) {
        Json json = embeddedConfig();
        json["sparse_config"][key] = value;
        EXPECT_THAT(ModelConfig::parse(json.dump(), "config.json").notes, testing::Contains(HasSubstr(words))) << key;
    }
    Json json = embeddedConfig();
    json.erase("sparse_config");
    EXPECT_THAT(ModelConfig::parse(json.dump(), "config.json").notes,
                testing::ElementsAre(HasSubstr("sparse_attention without sparse_config")));
}

TEST(ModelConfig, NotesLayersThatPredictFurtherAhead) {
    const auto notes = read("deepseek3", [](Json&) {}).notes;
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_THAT(notes[0], HasSubstr("num_nextn_predict_layers 1"));
    EXPECT_TRUE(read("deepseek3", with("num_nextn_predict_layers", 0)).notes.empty());
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

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
