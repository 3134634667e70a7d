// The family SDAR: what its configuration must say, what is said of it, and which diffusion models are refused.
#include "core/session/model_summary.h"
#include "tests/core/diffusion_model.h"
#include "tests/support/refusal.h"

#include "core/model/safetensors_writer.h"

#include <fstream>
#include <gmock/gmock.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::sdarConfig;
using ::testing::HasSubstr;

ModelConfig parse(const nlohmann::json& config) { return ModelConfig::parse(config.dump(), "config.json"); }

TEST(Sdar, IsReadFromItsConfiguration) {
    const ModelConfig config = parse(sdarConfig(16, 90));
    EXPECT_EQ(config.family, "sdar");
    ASSERT_TRUE(config.diffusion);
    EXPECT_EQ(config.diffusion->blockLength, 16);
    EXPECT_EQ(config.diffusion->maskId, 90);
    EXPECT_TRUE(config.queryKeyNorm);
    EXPECT_FALSE(config.tiedEmbeddings);
    EXPECT_EQ(config.attentionBias, Bias::None);
    EXPECT_TRUE(config.notes.empty()) << config.notes.front();
}

TEST(Sdar, AMissingKeyIsAnErrorAndNoDefault) {
    for (const char* key :
         {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
          "num_key_value_heads", "head_dim", "hidden_act", "max_position_embeddings", "rms_norm_eps", "rope_theta",
          "attention_bias", "tie_word_embeddings", "mask_token_id", "block_size"}) {
        auto config = sdarConfig();
        config.erase(key);
        EXPECT_FALSE(test::refusalOf([&] { parse(config); }, key).empty()) << key;
    }
}

TEST(Sdar, ValuesItCannotHaveAreRefused) {
    const auto refuses = [](const char* key, const nlohmann::json& value) {
        auto config = sdarConfig();
        config[key] = value;
        EXPECT_FALSE(test::refusalOf([&] { parse(config); }, key).empty()) << key << value;
    };
    refuses("block_size", 0);
    refuses("block_size", 65);
    refuses("mask_token_id", 96);
    refuses("mask_token_id", nullptr);
    refuses("use_sliding_window", true);
    refuses("head_dim", nullptr);
}

TEST(Sdar, WeightsThatAreMissingAreNamed) {
    const auto config = sdarConfig();
    const std::string folder = testing::TempDir() + "sdar-without-norms";
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/config.json") << config.dump();
    auto tensors = test::randomTensors(config, 3);
    std::vector<NamedTensor> named;
    for (const auto& tensor : tensors)
        if (tensor.name != "model.layers.1.self_attn.q_norm.weight")
            named.push_back({tensor.name, tensor.shape, tensor.values});
    writeSafetensors(folder + "/model.safetensors", named, {});
    EXPECT_FALSE(test::refusalOf([&] { Model::load(folder); }, "q_norm").empty());
}

TEST(Sdar, RelativesAreRefusedWithASentenceEach) {
    const auto refusal = [](const char* className, const char* type) {
        auto config = sdarConfig();
        config["architectures"] = {className};
        config["model_type"] = type;
        return test::refusalOf([&] { parse(config); }, "SDAR");
    };
    EXPECT_THAT(refusal("LLaDAMoEModelLM", "llada"), HasSubstr("LLaDA-MoE"));
    EXPECT_THAT(refusal("DiffusionGemmaForBlockDiffusion", "diffusion_gemma"), HasSubstr("DiffusionGemma"));
    EXPECT_THAT(refusal("LLaDA2MoeModelLM", "llada2_moe"), HasSubstr("LLaDA2"));
    EXPECT_THAT(refusal("Fast_dLLM_QwenForCausalLM", "Fast_dLLM_Qwen"), HasSubstr("Fast-dLLM v2"));
    EXPECT_THAT(refusal("ILLaDAForCausalLM", "illada"), HasSubstr("iLLaDA"));
}

TEST(Sdar, IsDescribedWithTheMethodsThatRunOnIt) {
    const auto model = test::randomSdar(sdarConfig(16));
    const ModelSummary summary = summarize(*model);
    EXPECT_EQ(summary.family, "SDAR");
    EXPECT_THAT(summary.attention, HasSubstr("block diffusion: blocks of 16 tokens"));
    std::vector<std::string> able;
    for (const MethodFit& fit : summary.methods) {
        if (fit.applies)
            able.push_back(fit.name);
        else
            EXPECT_FALSE(fit.remark.empty()) << fit.name;
    }
    EXPECT_EQ(able, (std::vector<std::string>{"full", "quest", "losa", "sparsed"}));
    for (const SessionMemory& memory : memoryNeeds(*model, 512, 1))
        EXPECT_EQ(memory.backend, Backend::Cpu) << memory.method;
}

TEST(Sdar, TheBundledModelIsOne) {
    KVSCOPE_NEEDS_LOSA_TINY();
    const ModelConfig& config = test::losaTiny()->config();
    EXPECT_EQ(config.diffusion->blockLength, 16);
    EXPECT_EQ(config.diffusion->maskId, 4096);
    EXPECT_TRUE(test::losaTiny()->notes().empty());
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
