// DeepSeek sparse attention beside what the transformers library chooses and computes with the same tiny random
// checkpoint (tools/make_sparse_checkpoints.py). KVSCOPE_SPARSE names a folder with more of them, of any size.
#include "base/error.h"
#include "core/engine/cpu/cpu_engine.h"
#include "core/plan/model_limits.h"
#include "core/select/refusal.h"
#include "core/select/token_slots.h"
#include "core/session/model_summary.h"
#include "tests/core/indexed_family.h"

#include <algorithm>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <list>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::Ids;
using ::testing::HasSubstr;

const std::filesystem::path kSparse = test::source("tests/golden/sparse");

class SparseFamily : public test::IndexedFamily {
protected:
    SparseFamily() : IndexedFamily("dsa") {}
};

TEST_P(SparseFamily, ChoicesLogitsAndGreedyIdsAreTheLibrarys) { expectTheLibrarysChoicesLogitsAndIds(); }

TEST_P(SparseFamily, DecodingThePromptChoosesWhatReadingItChose) {
    expectDecodingThePromptToChooseWhatReadingItChose(model_->config().indexer->tokens);
}

/// Which layers share comes from the configuration; that sharing changes a choice at all is seen on the fixture.
TEST_P(SparseFamily, LayersThatShareAttendToTheirLeadersTokens) {
    const LightningIndexer& indexer = *model_->config().indexer;
    const test::Outcome out = test::decode(model_, {prompt_}, options(12));
    const bool shares = std::find(indexer.shared.begin(), indexer.shared.end(), true) != indexer.shared.end();
    EXPECT_EQ(out.meta.contains("index_leader"), shares);
    if (shares && GetParam().starts_with(kSparse.string())) {
        EXPECT_EQ(out.meta.at("index_leader"), "[0,0,0,3]");
    }
    for (std::size_t step = 1; step < out.steps.size(); ++step)
        for (int layer = 1; layer < model_->config().layers; ++layer)
            if (!indexer.runsIn(layer)) {
                EXPECT_EQ(test::chosenIn(out.steps[step], layer, 0), test::chosenIn(out.steps[step], layer - 1, 0))
                    << layer;
                EXPECT_EQ(model_->layer(layer).indexer.query.rows, 0);
            }
}

TEST_P(SparseFamily, OffloadedAndResidentGiveTheSameBitsAndMissesTravel) {
    const test::Outcome offloaded =
        expectOffloadingToChangeNoBit(model_->config().headDim * 4); // a key holds its value
    if (int(prompt_.size()) < 4 * model_->config().indexer->tokens) return;
    EXPECT_GT(offloaded.summary.misses, 0);
    SessionOptions chosen = options(40);
    chosen.settings = {{"device_tokens", std::to_string(prompt_.size() + 41)}}; // what came once stays
    const test::Outcome large = test::decode(model_, {prompt_}, chosen);
    EXPECT_EQ(large.logits, offloaded.logits);
    EXPECT_LE(large.summary.misses, offloaded.summary.misses);
}

TEST_P(SparseFamily, ABudgetThatCoversEverythingEqualsFullAttention) {
    expectFullAttention({{"index_topk", "100000"}});
}

TEST_P(SparseFamily, SequencesOfABatchAreAsAlone) { expectSequencesOfABatchAsAlone(); }

INSTANTIATE_TEST_SUITE_P(Transformers, SparseFamily,
                         ::testing::ValuesIn(test::referenceFolders(kSparse.string(), "KVSCOPE_SPARSE")),
                         test::nameOfFolder);

// ---- Prompts in turns -----------------------------------------------------------------------------------------------

/// Prompts of three, two and one pieces, and five steps, on an engine without a session.
class Turns {
public:
    Turns() : session_(model(), findMethod("dsa"), {.promptTokens = {1028, 530, 13}, .newTokens = kSteps}) {
        std::mt19937 random(3);
        for (const int tokens : {1028, 530, 13})
            prompts_.push_back(test::randomPrompt(tokens, random, model()->config().vocab));
        const EngineSetup& s = session_.setup; // but for its prompts, whose ids are another vocabulary's
        setup_.emplace(EngineSetup{s.model, prompts_, s.options, s.spec, s.maxTokens, s.slots, s.plans, s.cachePolicy,
                                   s.level, s.makeSelector, s.parameters, s.abilities, s.methodMemory});
        engine_ = std::make_unique<CpuEngine>(*setup_);
    }
    static std::shared_ptr<const Model> model() {
        static const auto loaded = Model::load((kSparse / "glm-dsa-shared").string());
        return loaded;
    }
    static constexpr int kSteps = 5;

    /// `read` goes on reading a row's prompt and says whether it is read.
    template <class Read> std::vector<float> run(Read&& read) {
        StepRecord record;
        engine_->beginPrompts(record);
        std::vector<int> unread{0, 1, 2};
        std::mt19937 random(5);
        while (!unread.empty()) {
            const std::size_t at = random() % unread.size();
            if (read(*engine_, unread[at], record)) unread.erase(unread.begin() + std::ptrdiff_t(at));
        }
        engine_->finishPrompts(record);
        std::vector<float> logits;
        std::vector<ActiveSequence> active;
        std::vector<std::int32_t> tokens(prompts_.size());
        for (int row = 0; row < 3; ++row) active.push_back({RowId{row}, int(prompts_[std::size_t(row)].size()) - 1});
        for (int step = 0; step < kSteps; ++step) {
            for (int row = 0; row < 3; ++row) {
                const float* of = engine_->logits(row);
                logits.insert(logits.end(), of, of + model()->config().vocab);
                tokens[std::size_t(row)] = engine_->chosenToken(row);
                ++active[std::size_t(row)].position;
            }
            StepRecord decoded;
            decoded.step = step + 1;
            engine_->decode(active, tokens, decoded);
        }
        return logits;
    }

private:
    test::SmallSession session_;
    std::vector<Ids> prompts_;
    std::optional<EngineSetup> setup_;
    std::unique_ptr<CpuEngine> engine_;
};

/// Choices that layers share are kept between the pieces of a prompt, while other prompts' pieces come between.
TEST(Dsa, PromptsReadInTurnsAndInChunksGiveTheSameBits) {
    const LayerId end{Turns::model()->config().layers};
    const auto whole = Turns().run([&](CpuEngine& engine, int row, StepRecord& record) {
        return engine.readPrompt(RowId{row}, {end, 0}, record);
    });
    std::vector<PromptCursor> at(3);
    std::mt19937 random(9);
    const auto turns = Turns().run([&](CpuEngine& engine, int row, StepRecord& record) {
        PromptCursor& until = at[std::size_t(row)];
        until = {LayerId{int(until.layer) + int(random() % 2)}, int(random() % 4)};
        return engine.readPrompt(RowId{row}, until, record);
    });
    EXPECT_EQ(turns, whole);
    std::vector<int> pieces(3);
    const auto chunks = Turns().run([&](CpuEngine& engine, int row, StepRecord& record) {
        return engine.readPromptChunk(RowId{row}, ++pieces[std::size_t(row)], record);
    });
    EXPECT_EQ(chunks, whole);
}

TEST(Dsa, RowsThatComeAndGoDecodeWhatSessionsDecode) {
    test::expectRowsToDecodeWhatSessionsDecode(Turns::model(), "dsa");
}

// ---- The device's tokens --------------------------------------------------------------------------------------------

/// A list that is searched, the token chosen last in front, beside the slots.
TEST(TokenSlots, KeepTheTokensThatWereChosenLast) {
    constexpr int kSlots = 23, kMost = 300, kChosen = 11;
    select::TokenSlots slots(kSlots, kMost);
    std::list<std::int32_t> held;
    std::mt19937 random(2);
    int hits = 0, misses = 0;
    for (std::int32_t made = 60; made < kMost; ++made) {
        std::vector<std::int32_t> chosen;
        while (int(chosen.size()) < kChosen) { // mostly a few of the last ones, and the newest in every other step
            const std::int32_t token =
                chosen.empty() && made % 2 == 0 ? made : std::int32_t(made - 1 - std::int32_t(random() % 40));
            if (std::find(chosen.begin(), chosen.end(), token) == chosen.end()) chosen.push_back(token);
        }
        std::sort(chosen.begin(), chosen.end());
        std::vector<std::uint8_t> hit(chosen.size()), expected(chosen.size());
        for (std::size_t i = 0; i < chosen.size(); ++i)
            expected[i] = chosen[i] == made || std::find(held.begin(), held.end(), chosen[i]) != held.end();
        const int came = slots.admit(chosen, made, hit);
        EXPECT_EQ(hit, expected) << made;
        EXPECT_EQ(came, std::count(expected.begin(), expected.end(), 0));
        hits += int(chosen.size()) - came;
        misses += came;
        // Of tokens that one step chose last, the one at the lower position leaves first.
        std::vector<std::int32_t> now = chosen;
        if (std::find(now.begin(), now.end(), made) == now.end()) now.push_back(made);
        for (const std::int32_t token : now) held.remove(token);
        held.insert(held.begin(), now.rbegin(), now.rend());
        while (held.size() > kSlots) held.pop_back();
    }
    EXPECT_GT(hits, 200);
    EXPECT_GT(misses, 200);
}

// ---- What is refused ------------------------------------------------------------------------------------------------

class DsaRefusals : public ::testing::Test {
protected:
    const test::ChangedCheckpoint checkpoint_{kSparse / "glm-dsa-shared", "kvscope-dsa"};
};

TEST_F(DsaRefusals, ConfigurationsThatAreNotWhatTheyShouldBe) {
    const auto set = [&](const char* key, const nlohmann::json& value) {
        nlohmann::json changed = checkpoint_.config();
        changed[key] = value;
        return checkpoint_.refusal(changed);
    };
    EXPECT_EQ(set("index_topk_freq", 4), "") << "indexer_types goes before it";
    EXPECT_THAT(set("indexer_types", {"shared", "full", "full", "full"}), HasSubstr("first layer shares"));
    EXPECT_THAT(set("indexer_types", {"full", "half", "full", "full"}), HasSubstr("'half'"));
    EXPECT_THAT(set("indexer_types", {"full", "full"}), HasSubstr("2 entries for 4 layers"));
    EXPECT_THAT(set("indexer_types", {"full", "full", "shared", "full"}), HasSubstr("indexer.wq_b.weight' is missing"));
    EXPECT_THAT(set("indexer_types", {"full", "shared", "shared", "shared"}), HasSubstr("nothing uses the tensor"));
    EXPECT_THAT(set("index_head_dim", 6), HasSubstr("channels of an indexer's head are rotated"));
    EXPECT_THAT(set("index_n_heads", 11), HasSubstr("has shape [120, 24], config.json asks for [132, 24]"));
    EXPECT_THAT(set("index_topk", 0), HasSubstr("index_topk"));
    EXPECT_THAT(set("q_lora_rank", nullptr), HasSubstr("q_lora_rank"));
    EXPECT_THAT(set("layer_types", std::vector<std::string>(4, "full_attention")), HasSubstr("full_attention"));
    EXPECT_THAT(set("quantization_config", {{"quant_method", "fp8"}}), HasSubstr("fp8 checkpoints"));
    EXPECT_EQ(set("index_topk", 7), "");
}

/// Which layers share, in the three ways in which files say it: as the library reads them.
TEST_F(DsaRefusals, SharingIsReadInAllItsForms) {
    const auto sharedBy = [&](const std::function<void(nlohmann::json&)>& change) {
        nlohmann::json config = checkpoint_.config();
        config.erase("indexer_types");
        config["num_hidden_layers"] = 8;
        config.erase("layer_types");
        config.erase("mlp_layer_types");
        change(config);
        std::string text;
        const ModelConfig parsed = ModelConfig::parse(config.dump(), "config.json");
        for (const bool shared : parsed.indexer->shared) text += shared ? 'S' : 'F';
        return text;
    };
    EXPECT_EQ(sharedBy([](nlohmann::json&) {}), "FFFFFFFF");
    EXPECT_EQ(sharedBy([](nlohmann::json& c) { c["index_topk_freq"] = 3; }), "FFSSFSSF"); // offset 2
    EXPECT_EQ(sharedBy([](nlohmann::json& c) { c["index_topk_freq"] = 4, c["index_skip_topk_offset"] = 3; }),
              "FFFSSSFS");
    EXPECT_EQ(sharedBy([](nlohmann::json& c) { c["index_topk_pattern"] = "FSSFSSFF"; }), "FSSFSSFF");
    EXPECT_EQ(sharedBy([](nlohmann::json& c) {
                  c["index_topk_pattern"] = {"full", "shared", "full", "full", "full", "full", "full", "full", "full"};
              }),
              "FSFFFFFF");
}

TEST_F(DsaRefusals, SessionsThatCannotBe) {
    const auto model = Turns::model();
    SessionOptions small = test::optionsOf("dsa", 4);
    small.settings = {{"index_topk", "20"}, {"device_tokens", "20"}};
    try {
        (void)test::decode(model, {Ids(50, 5)}, small);
        FAIL() << "20 places hold 20 tokens and the newest one?";
    } catch (const Error& error) {
        EXPECT_THAT(oneLine(error), HasSubstr("device_tokens 20 does not hold 20 chosen tokens"));
    }
    const MethodEntry& dsa = findMethod("dsa");
    const ParameterValues values = resolveDefaults(dsa, model->config());
    EXPECT_EQ(values.integer("index_topk"), 20) << "as the checkpoint was trained";
    const SelectionSpec spec = dsa.make(values, model->config());
    EXPECT_FALSE(findRefusal(dsa, {values, spec, model->config(), Backend::Cpu}, 500));
    EXPECT_FALSE(findRefusal(dsa, {values, spec, model->config(), Backend::Cuda}, 500));
    EXPECT_THAT(gpuProblem(model->config()), HasSubstr("latent attention of 512 + 64"));
    ModelConfig large = model->config();
    LatentAttention& latent = *large.latent;
    latent.rank = 512, latent.ropeDim = 64;
    latent.nopeDim = latent.valueDim = latent.queryRank = 32;
    EXPECT_THAT(gpuProblem(large), HasSubstr("lightning indexers whose heads have a multiple of 32 channels"));
    large.indexer->heads = 129, large.indexer->dim = 64;
    EXPECT_THAT(gpuProblem(large), HasSubstr("8192 in all at most; this model has 129 heads of 64"));
    // A checkpoint without an indexer has no use for it, and says so.
    const auto plain = Model::load(test::source("tests/golden/families/deepseek3"));
    EXPECT_FALSE(hasWeightsFor(dsa, *plain));
    for (const MethodFit& fit : summarize(*plain).methods)
        if (fit.name == "dsa") {
            EXPECT_THAT(fit.remark, HasSubstr("needs a lightning indexer"));
        }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
