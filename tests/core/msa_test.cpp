// MiniMax sparse attention beside what the transformers library chooses and computes with the same tiny random
// checkpoint (tools/make_block_sparse_checkpoints.py). KVSCOPE_BLOCK_SPARSE names a folder with more of them, of any
// size.
#include "base/error.h"
#include "core/plan/layer_plan.h"
#include "core/plan/model_limits.h"
#include "core/select/refusal.h"
#include "core/session/model_summary.h"
#include "tests/core/indexed_family.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::HasSubstr;

const std::filesystem::path kFolder = test::source("tests/golden/block_sparse");

class BlockSparseFamily : public test::IndexedFamily {
protected:
    BlockSparseFamily() : IndexedFamily("msa") {}
    int blockTokens() const { return model_->config().blockIndexer->blockTokens; }
};

TEST_P(BlockSparseFamily, ChoicesLogitsAndGreedyIdsAreTheLibrarys) { expectTheLibrarysChoicesLogitsAndIds(); }

TEST_P(BlockSparseFamily, DecodingThePromptChoosesWhatReadingItChose) {
    expectDecodingThePromptToChooseWhatReadingItChose(model_->config().blockIndexer->blocks * blockTokens());
}

/// Layers without an indexer attend to everything, wherever they stand, and their blocks stay on the device.
TEST_P(BlockSparseFamily, LayersWithoutAnIndexerChooseNothing) {
    const MethodEntry& msa = findMethod("msa");
    const SelectionSpec spec = msa.make(resolveDefaults(msa, model_->config()), model_->config());
    const LayerPlans plans(model_->config(), spec, {.remembers = true});
    const test::Outcome out = test::decode(model_, {prompt_}, options(3));
    EXPECT_EQ(out.blockSize, blockTokens());
    for (int layer = 0; layer < model_->config().layers; ++layer) {
        const bool indexed = std::find(layers_.begin(), layers_.end(), layer) != layers_.end();
        EXPECT_EQ(model_->config().blockIndexer->runsIn(layer), indexed) << layer;
        EXPECT_EQ(plans[LayerId{layer}].sparse, indexed) << layer;
        EXPECT_EQ(plans[LayerId{layer}].offloaded, indexed) << layer;
        EXPECT_EQ(model_->layer(layer).blockIndexer.query.rows > 0, indexed) << layer;
        EXPECT_EQ(test::chosenIn(out.steps.back(), layer, 0).empty(), !indexed) << layer;
    }
}

TEST_P(BlockSparseFamily, OffloadedAndResidentGiveTheSameBitsAndMissesTravel) {
    const test::Outcome offloaded = expectOffloadingToChangeNoBit(blockTokens() * 2 * model_->config().headDim * 4);
    if (GetParam().starts_with(kFolder.string())) {
        EXPECT_GT(offloaded.summary.misses, 0);
    }
}

TEST_P(BlockSparseFamily, ABudgetThatCoversEverythingEqualsFullAttention) {
    expectFullAttention({{"index_topk_blocks", "10000"}});
}

TEST_P(BlockSparseFamily, SequencesOfABatchAreAsAlone) { expectSequencesOfABatchAsAlone(); }

INSTANTIATE_TEST_SUITE_P(Transformers, BlockSparseFamily,
                         ::testing::ValuesIn(test::referenceFolders(kFolder.string(), "KVSCOPE_BLOCK_SPARSE")),
                         test::nameOfFolder);

TEST(Msa, RowsThatComeAndGoDecodeWhatSessionsDecode) {
    test::expectRowsToDecodeWhatSessionsDecode(Model::load((kFolder / "blocks-of-16").string()), "msa");
}

// ---- What is read and what is refused -------------------------------------------------------------------------------

class MiniMaxFiles : public ::testing::Test {
protected:
    std::string refusalOfText(const char* key, const nlohmann::json& value) const {
        nlohmann::json changed = checkpoint_.config();
        changed["text_config"][key] = value;
        return checkpoint_.refusal(changed);
    }
    const test::ChangedCheckpoint checkpoint_{kFolder / "blocks-of-16", "kvscope-msa"};
};

TEST_F(MiniMaxFiles, ConfigurationsThatAreNotWhatTheyShouldBe) {
    EXPECT_EQ(checkpoint_.refusal(checkpoint_.config()), "");
    EXPECT_THAT(refusalOfText("index_block_size", 24), HasSubstr("blocks of 24 tokens"));
    EXPECT_THAT(refusalOfText("index_n_heads", 3), HasSubstr("3 heads of the indexer cannot choose for 2 KV heads"));
    EXPECT_THAT(refusalOfText("index_local_blocks", 5), HasSubstr("more than the 4 chosen"));
    EXPECT_THAT(refusalOfText("index_local_blocks", 0), HasSubstr("index_local_blocks"));
    EXPECT_THAT(refusalOfText("index_head_dim", 2), HasSubstr("channels of a head are rotated"));
    EXPECT_THAT(refusalOfText("index_head_dim", 16), HasSubstr("config.json asks for"));
    EXPECT_THAT(refusalOfText("layer_types", {"full_attention", "full_attention"}),
                HasSubstr("2 entries for 3 layers"));
    EXPECT_THAT(refusalOfText("layer_types", {"full_attention", "sliding_attention", "minimax_m3_sparse"}),
                HasSubstr("sliding_attention"));
    EXPECT_THAT(refusalOfText("layer_types", std::vector<std::string>(3, "minimax_m3_sparse")),
                HasSubstr("index_q_proj.weight' is missing"));
    EXPECT_THAT(refusalOfText("layer_types", std::vector<std::string>(3, "full_attention")),
                HasSubstr("nothing uses the tensor 'language_model.model.layers."));
    EXPECT_THAT(refusalOfText("mlp_layer_types", std::vector<std::string>(3, "sparse")), HasSubstr("is missing"));
    EXPECT_THAT(refusalOfText("attention_chunk_size", 64), HasSubstr("attention_chunk_size"));
    EXPECT_THAT(refusalOfText("num_local_experts", 7), HasSubstr("config.json asks for [7, 24]"));
    nlohmann::json quantised = checkpoint_.config();
    quantised["quantization_config"] = {{"quant_method", "fp8"}};
    EXPECT_THAT(checkpoint_.refusal(quantised), HasSubstr("fp8 checkpoints"));
    EXPECT_EQ(refusalOfText("index_topk_blocks", 7), "");
    EXPECT_EQ(refusalOfText("hidden_act", "swigluoai"), "") << "the class sets its own";
}

/// What a file leaves out is as the library's class has it.
TEST_F(MiniMaxFiles, KeysThatAreLeftOutAreTheLibrarys) {
    const ModelConfig parsed = ModelConfig::parse(R"({"architectures": ["MiniMaxM3SparseForConditionalGeneration"],
            "model_type": "minimax_m3_vl", "text_config": {"layer_types": null, "sparse_attention_config":
            {"sparse_attention_freq": [0, 1, 1], "sparse_init_block": 0}, "num_hidden_layers": 3}})",
                                                  "config.json");
    EXPECT_EQ(parsed.hidden, 6144);
    EXPECT_EQ(parsed.queryHeads, 64);
    EXPECT_EQ(parsed.kvHeads, 4);
    EXPECT_EQ(parsed.headDim, 128);
    EXPECT_EQ(parsed.rope.dim, 128) << "rotary_dim has no effect there, partial_rotary_factor is 1";
    EXPECT_EQ(parsed.ffn, 12288);
    ASSERT_TRUE(parsed.experts);
    EXPECT_EQ(parsed.experts->count, 128);
    EXPECT_EQ(parsed.experts->used, 4);
    EXPECT_EQ(parsed.experts->width, 3072);
    EXPECT_EQ(parsed.experts->layers, std::vector<bool>(3, true));
    ASSERT_TRUE(parsed.blockIndexer);
    EXPECT_EQ(parsed.blockIndexer->heads, 4);
    EXPECT_EQ(parsed.blockIndexer->dim, 128);
    EXPECT_EQ(parsed.blockIndexer->blockTokens, 128);
    EXPECT_EQ(parsed.blockIndexer->blocks, 16);
    EXPECT_EQ(parsed.blockIndexer->localBlocks, 1);
    EXPECT_EQ(parsed.blockIndexer->layers, (std::vector<bool>{false, true, true}));
    EXPECT_THAT(parsed.notes, ::testing::Contains(HasSubstr("sparse_init_block")));
    // Without either list all layers attend to everything, as the library's do.
    EXPECT_FALSE(ModelConfig::parse(R"({"architectures": ["MiniMaxM3SparseForConditionalGeneration"]})", "config.json")
                     .blockIndexer);
}

/// The text model alone has gate and partner in one matrix, and the experts of a layer in one list.
TEST_F(MiniMaxFiles, JoinedMatricesOfAnotherShapeAreNamed) {
    const test::ChangedCheckpoint text(kFolder / "text-alone", "kvscope-msa-text");
    const auto refusalOf = [&](const char* key, const nlohmann::json& value) {
        nlohmann::json changed = text.config();
        changed[key] = value;
        return text.refusal(changed);
    };
    EXPECT_EQ(refusalOf("index_topk_blocks", 7), "");
    EXPECT_THAT(refusalOf("intermediate_size", 9),
                HasSubstr("experts.gate_up_proj' has shape [4, 16, 24], config.json asks for [4, 18, 24]"));
    EXPECT_THAT(refusalOf("dense_intermediate_size", 9),
                HasSubstr("mlp.down_proj.weight' has shape [24, 20], config.json asks for [24, 9]"));
    EXPECT_THAT(refusalOf("hidden_act", "gelu"), HasSubstr("'gelu'"));
    EXPECT_THAT(refusalOf("index_block_size", 8), HasSubstr("blocks of 8 tokens"));
}

TEST_F(MiniMaxFiles, WhatIsOfImagesIsLeftOutInASentence) {
    const auto model = Model::load((kFolder / "blocks-of-16").string());
    EXPECT_THAT(model->config().notes, ::testing::Contains(HasSubstr("of no layer")));
    EXPECT_THAT(
        summarize(*model).attention,
        HasSubstr("block indexer of 2 heads of 12 channels in 2 of 3 layers, which chooses 4 blocks of 16 tokens"));
}

TEST(Msa, SessionsThatCannotBe) {
    const auto model = Model::load((kFolder / "blocks-of-16").string());
    SessionOptions small = test::optionsOf("msa", 4);
    small.settings = {{"index_topk_blocks", "2"}, {"index_local_blocks", "3"}};
    try {
        (void)test::decode(model, {test::Ids(50, 5)}, small);
        FAIL() << "three of two blocks?";
    } catch (const Error& error) {
        EXPECT_THAT(oneLine(error), HasSubstr("index_local_blocks 3 is more than index_topk_blocks 2"));
    }
    const MethodEntry& msa = findMethod("msa");
    const ParameterValues values = resolveDefaults(msa, model->config());
    EXPECT_EQ(values.integer("block_size"), 16) << "as the checkpoint was trained";
    EXPECT_EQ(values.integer("index_topk_blocks"), 4);
    const SelectionSpec spec = msa.make(values, model->config());
    EXPECT_FALSE(findRefusal(msa, {values, spec, model->config(), Backend::Cpu}, 500));
    EXPECT_FALSE(findRefusal(msa, {values, spec, model->config(), Backend::Cuda}, 500));
    EXPECT_THAT(gpuProblem(model->config()), HasSubstr("heads of 64 or 128 channels"));
    ModelConfig wide = model->config();
    wide.headDim = 64;
    EXPECT_THAT(gpuProblem(wide), HasSubstr("block indexers whose heads have a multiple of 8 channels"));
    wide.rope.interleaved = true;
    EXPECT_THAT(gpuProblem(wide), HasSubstr("rotates parts of heads by halves alone"));
    // A checkpoint without an indexer has no use for it, and says so.
    const auto plain = Model::load(test::source("tests/golden/families/qwen3"));
    EXPECT_FALSE(hasWeightsFor(msa, *plain));
    for (const MethodFit& fit : summarize(*plain).methods)
        if (fit.name == "msa") {
            EXPECT_THAT(fit.remark, HasSubstr("needs a block indexer"));
        }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
