// MiniMax sparse attention beside what the transformers library chooses and computes with the same tiny random
// checkpoint (tools/make_block_sparse_checkpoints.py). KVSCOPE_BLOCK_SPARSE names a folder with more of them, of any
// size.
#include "base/error.h"
#include "core/plan/layer_plan.h"
#include "core/plan/model_limits.h"
#include "core/select/refusal.h"
#include "core/session/decode_session.h"
#include "core/session/model_summary.h"
#include "core/session/row_engine.h"
#include "tests/core/files.h"
#include "tests/core/golden_file.h"
#include "tests/core/library_reference.h"
#include "tests/core/small_session.h"
#include "tests/support/packed_blocks.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <random>
#include <unistd.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

constexpr double kTie = 1e-5; // of the largest score: what float32 sums in another order cannot tell apart
constexpr int kEvery = 17;    // queries of a prompt, of which the reference has one

const fs::path kFolder = test::source("tests/golden/block_sparse");

struct Outcome {
    std::vector<Ids> ids;                   // [sequence]
    std::vector<std::vector<float>> logits; // [step] of sequence 0, the prompt's last position first
    std::vector<StepRecord> steps;          // the prompt first
    SessionSummary summary;
    int blockSize = 0; // of the trace
};

SessionOptions options(int newTokens) {
    SessionOptions options;
    options.method = "msa";
    options.stopAtEos = false;
    options.threads = 1;
    options.maxNewTokens = newTokens;
    return options;
}

/// Greedy when `forced` is empty.
Outcome decode(const std::shared_ptr<const Model>& model, const std::vector<Ids>& prompts,
               const SessionOptions& options, const Ids& forced = {}) {
    CollectingSink sink;
    DecodeSession session(model, prompts, options, sink);
    Outcome out;
    const auto keep = [&] {
        if (const float* logits = session.logits(0)) out.logits.emplace_back(logits, logits + model->config().vocab);
    };
    session.prefill();
    keep();
    for (std::size_t next = 0;; ++next) {
        if (next < forced.size()) session.forceNextTokens({forced[next]});
        if (!session.step()) break;
        keep();
    }
    out.ids = session.generated();
    out.summary = session.summary();
    session.end(RunStatus::Finished);
    out.steps = std::move(sink.steps);
    out.blockSize = sink.info.blockSize;
    return out;
}

/// The blocks that a KV head of a layer attends to in a step; empty where it attends to everything.
Ids chosenIn(const StepRecord& step, int layer, int kvHead) {
    for (const SelectionRecord& selection : step.selections)
        if (selection.layer == layer && selection.kvHead == kvHead && selection.sequence == 0)
            return test::idsOf(step, selection);
    return {};
}

/// Choices of the reference: [query, layers with an indexer, KV heads, budget] and [query, layers, KV heads].
struct Choices {
    Choices(const test::GoldenFile& file, const std::string& prefix)
        : shape(file.shape(prefix + "selected")), blocks(file.ints(prefix + "selected")),
          margins(file.floats(prefix + "margin")) {}
    int queries() const { return int(shape[0]); }
    std::size_t at(int query, int layer, int kvHead) const {
        return std::size_t((query * shape[1] + layer) * shape[2] + kvHead);
    }
    Ids of(int query, int layer, int kvHead) const {
        const auto width = std::size_t(shape[3]);
        const auto begin = blocks.begin() + std::ptrdiff_t(at(query, layer, kvHead) * width);
        return {begin, std::find(begin, begin + std::ptrdiff_t(width), -1)};
    }
    double margin(int query, int layer, int kvHead) const { return double(margins[at(query, layer, kvHead)]); }

    std::vector<std::int64_t> shape;
    Ids blocks;
    std::vector<float> margins;
};

class BlockSparseFamily : public ::testing::TestWithParam<std::string> {
protected:
    BlockSparseFamily()
        : reference_(GetParam() + "/reference.safetensors"), model_(Model::load(GetParam())),
          prompt_(reference_.ints("prompt_ids")), layers_(reference_.ints("layers")) {}

    /// Compares a step's choices with the reference's. @return how many differ where the reference has a tie
    int compare(const StepRecord& step, const Choices& expected, int query) const {
        int ties = 0;
        for (int layer = 0; layer < int(layers_.size()); ++layer)
            for (int g = 0; g < model_->config().kvHeads; ++g) {
                SCOPED_TRACE("layer " + std::to_string(layers_[std::size_t(layer)]) + ", KV head " + std::to_string(g));
                const Ids chosen = chosenIn(step, layers_[std::size_t(layer)], g),
                          wanted = expected.of(query, layer, g);
                EXPECT_EQ(chosen.size(), wanted.size());
                if (expected.margin(query, layer, g) < kTie && chosen != wanted)
                    ++ties;
                else
                    EXPECT_EQ(chosen, wanted) << "margin " << expected.margin(query, layer, g);
            }
        return ties;
    }

    const test::GoldenFile reference_;
    const std::shared_ptr<const Model> model_;
    const Ids prompt_;
    const Ids layers_; // with an indexer
};

/// Prompts select too, so that one wrong choice there changes every logit behind it.
TEST_P(BlockSparseFamily, ChoicesLogitsAndGreedyIdsAreTheLibrarys) {
    const Ids ids = reference_.ints("generated_ids");
    const auto logits = reference_.floats("logits");
    const auto vocab = std::size_t(model_->config().vocab);
    const Choices expected(reference_, "");
    for (const int threads : {1, 2}) {
        SCOPED_TRACE(std::to_string(threads) + " threads");
        SessionOptions chosen = options(int(ids.size()));
        chosen.threads = threads;
        const Outcome out = decode(model_, {prompt_}, chosen);
        EXPECT_EQ(out.ids.at(0), ids);
        EXPECT_EQ(out.blockSize, model_->config().blockIndexer->blockTokens);
        ASSERT_EQ(out.logits.size(), ids.size());
        for (std::size_t step = 0; step < out.logits.size(); ++step)
            ASSERT_LT(test::relativeError(out.logits[step], &logits[step * vocab]), 1e-4) << "step " << step;
        ASSERT_EQ(out.steps.size(), std::size_t(expected.queries()) + 1);
        int ties = 0;
        for (int query = 0; query < expected.queries(); ++query) {
            SCOPED_TRACE("step " + std::to_string(query));
            ties += compare(out.steps[std::size_t(query) + 1], expected, query);
        }
        std::printf("%d of %d choices differ at a tie\n", ties,
                    expected.queries() * int(layers_.size()) * model_->config().kvHeads);
    }
}

/// Every token of the prompt but the first ones fed one by one chooses what the library chose when it read the prompt.
TEST_P(BlockSparseFamily, DecodingThePromptChoosesWhatReadingItChose) {
    const Choices expected(reference_, "prompt_");
    const auto cut = prompt_.begin() + kEvery;
    const Ids rest(cut, prompt_.end());
    const Outcome out = decode(model_, {{prompt_.begin(), cut}}, options(int(rest.size()) + 1), rest);
    ASSERT_EQ(out.steps.size(), rest.size() + 1);
    int ties = 0, compared = 0, chose = 0;
    for (int query = 1; query < expected.queries(); ++query, ++compared) {
        SCOPED_TRACE("query " + std::to_string(query * kEvery));
        ties += compare(out.steps[std::size_t((query - 1) * kEvery) + 1], expected, query);
        chose += std::isfinite(expected.margin(query, 0, 0)) ? 1 : 0;
    }
    const BlockIndexer& indexer = *model_->config().blockIndexer;
    if (int(prompt_.size()) > 2 * indexer.blocks * indexer.blockTokens) {
        EXPECT_GT(chose, compared / 3) << "most queries saw everything: this shows little";
    }
    std::printf("%d of %d choices differ at a tie\n", ties, compared * int(layers_.size()) * model_->config().kvHeads);
}

/// Layers without an indexer attend to everything, wherever they stand, and their blocks stay on the device.
TEST_P(BlockSparseFamily, LayersWithoutAnIndexerChooseNothing) {
    const MethodEntry& msa = findMethod("msa");
    const SelectionSpec spec = msa.make(resolveDefaults(msa, model_->config()), model_->config());
    const LayerPlans plans(model_->config(), spec, {.remembers = true});
    const Outcome out = decode(model_, {prompt_}, options(3));
    for (int layer = 0; layer < model_->config().layers; ++layer) {
        const bool indexed = std::find(layers_.begin(), layers_.end(), layer) != layers_.end();
        EXPECT_EQ(model_->config().blockIndexer->runsIn(layer), indexed) << layer;
        EXPECT_EQ(plans[LayerId{layer}].sparse, indexed) << layer;
        EXPECT_EQ(plans[LayerId{layer}].offloaded, indexed) << layer;
        EXPECT_EQ(model_->layer(layer).blockIndexer.query.rows > 0, indexed) << layer;
        EXPECT_EQ(chosenIn(out.steps.back(), layer, 0).empty(), !indexed) << layer;
    }
}

TEST_P(BlockSparseFamily, OffloadedAndResidentGiveTheSameBitsAndMissesTravel) {
    SessionOptions chosen = options(40);
    const Outcome offloaded = decode(model_, {prompt_}, chosen);
    chosen.offload = false;
    const Outcome resident = decode(model_, {prompt_}, chosen);
    EXPECT_EQ(offloaded.logits, resident.logits);
    EXPECT_EQ(resident.summary.misses, 0);
    EXPECT_EQ(resident.summary.h2dBytes, 0);
    const ModelConfig& config = model_->config();
    EXPECT_EQ(offloaded.summary.h2dBytes,
              offloaded.summary.misses * config.blockIndexer->blockTokens * 2 * config.headDim * 4);
    if (GetParam().starts_with(kFolder.string())) {
        EXPECT_GT(offloaded.summary.misses, 0);
    }
}

TEST_P(BlockSparseFamily, ABudgetThatCoversEverythingEqualsFullAttention) {
    SessionOptions full = options(20), covered = options(20);
    full.method = "full";
    covered.settings = {{"index_topk_blocks", "10000"}};
    const Outcome expected = decode(model_, {prompt_}, full), out = decode(model_, {prompt_}, covered);
    EXPECT_EQ(out.ids, expected.ids);
    ASSERT_EQ(out.logits.size(), expected.logits.size());
    for (std::size_t step = 0; step < out.logits.size(); ++step)
        EXPECT_LT(test::relativeError(out.logits[step], expected.logits[step].data()), 1e-4) << step;
}

TEST_P(BlockSparseFamily, SequencesOfABatchAreAsAlone) {
    const Ids other(prompt_.begin() + std::ptrdiff_t(prompt_.size() / 3), prompt_.end());
    const Outcome together = decode(model_, {prompt_, other}, options(16));
    EXPECT_EQ(together.ids.at(0), decode(model_, {prompt_}, options(16)).ids.at(0));
    EXPECT_EQ(together.ids.at(1), decode(model_, {other}, options(16)).ids.at(0));
}

std::string nameOfFolder(const ::testing::TestParamInfo<std::string>& tested) {
    std::string name = fs::path(tested.param).filename().string();
    std::replace_if(
        name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
    return name;
}

INSTANTIATE_TEST_SUITE_P(Transformers, BlockSparseFamily,
                         ::testing::ValuesIn(test::referenceFolders(kFolder.string(), "KVSCOPE_BLOCK_SPARSE")),
                         nameOfFolder);

// ---- Rows that serve ------------------------------------------------------------------------------------------------

/// A row's setup: one prompt, with what the small session has for all.
EngineSetup rowSetup(const EngineSetup& s, const std::vector<Ids>& prompt, int steps) {
    return {s.model,      prompt,      s.options,     s.spec,  {int(prompt[0].size()) + steps},
            s.slots,      s.plans,     s.cachePolicy, s.level, s.makeSelector,
            s.parameters, s.abilities, s.methodMemory};
}

/// A request that joins while another one decodes, and that has read its prompt in chunks, disturbs neither.
TEST(Msa, RowsThatComeAndGoDecodeWhatSessionsDecode) {
    constexpr int kSteps = 8;
    const auto model = Model::load((kFolder / "blocks-of-16").string());
    std::mt19937 random(7);
    const std::vector<std::vector<Ids>> prompts{{test::randomPrompt(300, random, model->config().vocab)},
                                                {test::randomPrompt(700, random, model->config().vocab)}};
    const test::SmallSession session(model, findMethod("msa"), {.promptTokens = {700}, .newTokens = kSteps});
    const auto engine =
        makeCpuRowEngine({.model = model, .abilities = session.setup.abilities, .rows = 2, .threads = 1});
    std::vector<Ids> written(2);
    const auto next = [&](int row) {
        const float* const logits = engine->logits(RowId{row});
        written[std::size_t(row)].push_back(
            std::int32_t(std::max_element(logits, logits + model->config().vocab) - logits));
        return RowToken{RowId{row}, written[std::size_t(row)].back(),
                        int(prompts[std::size_t(row)][0].size() + written[std::size_t(row)].size()) - 1};
    };
    engine->open(RowId{0}, rowSetup(session.setup, prompts[0], kSteps));
    while (!engine->readLayers(RowId{0}, LayerId{model->config().layers}, 0, {})) {
    }
    for (int step = 0; step < 3; ++step) {
        const RowToken alone[] = {next(0)};
        engine->decode(alone);
    }
    engine->open(RowId{1}, rowSetup(session.setup, prompts[1], kSteps));
    for (int token = 512; !engine->readChunk(RowId{1}, token, {}); token += 512) {
        const RowToken meanwhile[] = {next(0)};
        engine->decode(meanwhile);
    }
    for (int step = 0; step < 3; ++step) {
        const RowToken both[] = {next(0), next(1)};
        engine->decode(both);
    }
    for (std::size_t row = 0; row < 2; ++row) {
        const Ids expected = decode(model, prompts[row], options(int(written[row].size()))).ids.at(0);
        EXPECT_EQ(written[row], expected) << row;
    }
}

// ---- What is read and what is refused -------------------------------------------------------------------------------

class MiniMaxFiles : public ::testing::Test {
protected:
    MiniMaxFiles() : folder_(fs::temp_directory_path() / ("kvscope-msa-" + std::to_string(getpid()))) {
        fs::remove_all(folder_);
        fs::copy(kFolder / "blocks-of-16", folder_);
    }
    ~MiniMaxFiles() override { fs::remove_all(folder_); }

    nlohmann::json config() const {
        return nlohmann::json::parse(test::contentsOf(kFolder / "blocks-of-16/config.json"));
    }
    /// What loading says with this configuration.
    std::string refusal(const nlohmann::json& config) const {
        test::write(folder_ / "config.json", config.dump());
        try {
            (void)Model::load(folder_.string());
        } catch (const Error& error) {
            return oneLine(error);
        }
        return {};
    }
    std::string refusalOfText(const char* key, const nlohmann::json& value) const {
        nlohmann::json changed = config();
        changed["text_config"][key] = value;
        return refusal(changed);
    }
    const fs::path folder_;
};

TEST_F(MiniMaxFiles, ConfigurationsThatAreNotWhatTheyShouldBe) {
    EXPECT_EQ(refusal(config()), "");
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
    nlohmann::json quantised = config();
    quantised["quantization_config"] = {{"quant_method", "fp8"}};
    EXPECT_THAT(refusal(quantised), HasSubstr("fp8 checkpoints"));
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
    fs::remove_all(folder_);
    fs::copy(kFolder / "text-alone", folder_);
    const auto refusalOf = [&](const char* key, const nlohmann::json& value) {
        nlohmann::json changed = nlohmann::json::parse(test::contentsOf(kFolder / "text-alone/config.json"));
        changed[key] = value;
        return refusal(changed);
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
    SessionOptions small = options(4);
    small.settings = {{"index_topk_blocks", "2"}, {"index_local_blocks", "3"}};
    try {
        (void)decode(model, {Ids(50, 5)}, small);
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
    const auto onCuda = findRefusal(msa, {values, spec, model->config(), Backend::Cuda}, 500);
    ASSERT_TRUE(onCuda);
    EXPECT_THAT(onCuda->what(), HasSubstr("method msa on the CUDA backend does not run there"));
    EXPECT_THAT(onCuda->hint, HasSubstr("--backend cpu"));
    EXPECT_THAT(gpuProblem(model->config()), HasSubstr("bounded gates"));
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
