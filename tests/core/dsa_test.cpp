// DeepSeek sparse attention beside what the transformers library chooses and computes with the same tiny random
// checkpoint (tools/make_sparse_checkpoints.py). KVSCOPE_SPARSE names a folder with more of them, of any size.
#include "base/error.h"
#include "core/engine/cpu/cpu_engine.h"
#include "core/select/refusal.h"
#include "core/select/token_slots.h"
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
#include <cstdlib>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <list>
#include <map>
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

const fs::path kSparse = test::source("tests/golden/sparse");

std::vector<std::string> folders() { return test::referenceFolders(kSparse.string(), "KVSCOPE_SPARSE"); }

struct Outcome {
    std::vector<Ids> ids;                   // [sequence]
    std::vector<std::vector<float>> logits; // [step] of sequence 0, the prompt's last position first
    std::vector<StepRecord> steps;          // the prompt first
    SessionSummary summary;
    std::map<std::string, std::string> meta;
};

SessionOptions options(int newTokens) {
    SessionOptions options;
    options.method = "dsa";
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
    out.meta = {sink.info.meta.begin(), sink.info.meta.end()};
    return out;
}

/// The tokens that a layer attends to in a step.
Ids chosenIn(const StepRecord& step, int layer) {
    for (const SelectionRecord& selection : step.selections)
        if (selection.layer == layer && selection.sequence == 0) return test::idsOf(step, selection);
    return {};
}

/// Choices of the reference: [query, layers, budget] and [query, layers].
struct Choices {
    Choices(const test::GoldenFile& file, const std::string& prefix)
        : shape(file.shape(prefix + "selected")), tokens(file.ints(prefix + "selected")),
          margins(file.floats(prefix + "margin")) {}
    int queries() const { return int(shape[0]); }
    Ids of(int query, int layer) const {
        const auto width = std::size_t(shape[2]);
        const auto begin = tokens.begin() + std::ptrdiff_t(std::size_t(query * shape[1] + layer) * width);
        return {begin, std::find(begin, begin + std::ptrdiff_t(width), -1)};
    }
    double margin(int query, int layer) const { return double(margins[std::size_t(query * shape[1] + layer)]); }

    std::vector<std::int64_t> shape;
    Ids tokens;
    std::vector<float> margins;
};

class SparseFamily : public ::testing::TestWithParam<std::string> {
protected:
    SparseFamily()
        : reference_(GetParam() + "/reference.safetensors"), model_(Model::load(GetParam())),
          prompt_(reference_.ints("prompt_ids")) {}

    /// Compares a step's choices with the reference's. @return how many differ where the reference has a tie
    int compare(const StepRecord& step, const Choices& expected, int query) const {
        int ties = 0;
        for (int layer = 0; layer < model_->config().layers; ++layer) {
            const bool tie = expected.margin(query, layer) < kTie;
            const Ids chosen = chosenIn(step, layer), wanted = expected.of(query, layer);
            EXPECT_EQ(chosen.size(), wanted.size()) << "layer " << layer;
            if (tie && chosen != wanted)
                ++ties;
            else
                EXPECT_EQ(chosen, wanted) << "layer " << layer << ", margin " << expected.margin(query, layer);
        }
        return ties;
    }

    const test::GoldenFile reference_;
    const std::shared_ptr<const Model> model_;
    const Ids prompt_;
};

/// Prompts select too, so that one wrong choice there changes every logit behind it.
TEST_P(SparseFamily, ChoicesLogitsAndGreedyIdsAreTheLibrarys) {
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
        ASSERT_EQ(out.logits.size(), ids.size());
        double worst = 0;
        for (std::size_t step = 0; step < out.logits.size(); ++step) {
            double difference = 0, scale = 0;
            for (std::size_t i = 0; i < vocab; ++i) {
                const double want = double(logits[step * vocab + i]);
                difference = std::max(difference, std::abs(double(out.logits[step][i]) - want));
                scale = std::max(scale, std::abs(want));
            }
            ASSERT_LT(difference, 1e-4 * scale) << "step " << step;
            worst = std::max(worst, difference / scale);
        }
        ASSERT_EQ(out.steps.size(), std::size_t(expected.queries()) + 1);
        int ties = 0;
        for (int query = 0; query < expected.queries(); ++query) {
            SCOPED_TRACE("step " + std::to_string(query));
            ties += compare(out.steps[std::size_t(query) + 1], expected, query);
        }
        std::printf("largest difference of a logit %.1e of the largest; %d of %d choices differ at a tie\n", worst,
                    ties, expected.queries() * model_->config().layers);
    }
}

/// Every token of the prompt but the first ones fed one by one chooses what the library chose when it read the prompt.
TEST_P(SparseFamily, DecodingThePromptChoosesWhatReadingItChose) {
    const Choices expected(reference_, "prompt_");
    const auto cut = prompt_.begin() + kEvery;
    const Ids rest(cut, prompt_.end());
    const Outcome out = decode(model_, {{prompt_.begin(), cut}}, options(int(rest.size()) + 1), rest);
    ASSERT_EQ(out.steps.size(), rest.size() + 1);
    int ties = 0, compared = 0, chose = 0;
    for (int query = 1; query < expected.queries(); ++query, ++compared) {
        SCOPED_TRACE("query " + std::to_string(query * kEvery));
        ties += compare(out.steps[std::size_t((query - 1) * kEvery) + 1], expected, query);
        chose += std::isfinite(expected.margin(query, 0)) ? 1 : 0;
    }
    EXPECT_GE(compared, int(prompt_.size()) / kEvery - 1);
    if (int(prompt_.size()) > 2 * model_->config().indexer->tokens + kEvery) {
        EXPECT_GT(chose, compared / 3) << "most queries saw everything: this shows little";
    }
    std::printf("%d of %d choices differ at a tie\n", ties, compared * model_->config().layers);
}

/// Which layers share comes from the configuration; that sharing changes a choice at all is seen on the fixture.
TEST_P(SparseFamily, LayersThatShareAttendToTheirLeadersTokens) {
    const LightningIndexer& indexer = *model_->config().indexer;
    const Outcome out = decode(model_, {prompt_}, options(12));
    const bool shares = std::find(indexer.shared.begin(), indexer.shared.end(), true) != indexer.shared.end();
    EXPECT_EQ(out.meta.contains("index_leader"), shares);
    if (shares && GetParam().starts_with(kSparse.string())) {
        EXPECT_EQ(out.meta.at("index_leader"), "[0,0,0,3]");
    }
    for (std::size_t step = 1; step < out.steps.size(); ++step)
        for (int layer = 1; layer < model_->config().layers; ++layer)
            if (!indexer.runsIn(layer)) {
                EXPECT_EQ(chosenIn(out.steps[step], layer), chosenIn(out.steps[step], layer - 1)) << layer;
                EXPECT_EQ(model_->layer(layer).indexer.query.rows, 0);
            }
}

TEST_P(SparseFamily, OffloadedAndResidentGiveTheSameBitsAndMissesTravel) {
    SessionOptions chosen = options(40);
    const Outcome offloaded = decode(model_, {prompt_}, chosen);
    chosen.offload = false;
    const Outcome resident = decode(model_, {prompt_}, chosen);
    EXPECT_EQ(offloaded.logits, resident.logits);
    EXPECT_EQ(resident.summary.misses, 0);
    EXPECT_EQ(resident.summary.h2dBytes, 0);
    const int tokenBytes = model_->config().headDim * 4; // a key, whose beginning is the value
    EXPECT_EQ(offloaded.summary.h2dBytes, offloaded.summary.misses * tokenBytes);
    const int budget = model_->config().indexer->tokens;
    if (int(prompt_.size()) < 4 * budget) return;
    EXPECT_GT(offloaded.summary.misses, 0);
    chosen.offload = true;
    chosen.settings = {{"device_tokens", std::to_string(prompt_.size() + 41)}}; // what came once stays
    const Outcome large = decode(model_, {prompt_}, chosen);
    EXPECT_EQ(large.logits, resident.logits);
    EXPECT_LE(large.summary.misses, offloaded.summary.misses);
}

TEST_P(SparseFamily, ABudgetThatCoversEverythingEqualsFullAttention) {
    SessionOptions full = options(20), covered = options(20);
    full.method = "full";
    covered.settings = {{"index_topk", "100000"}};
    const Outcome expected = decode(model_, {prompt_}, full), out = decode(model_, {prompt_}, covered);
    EXPECT_EQ(out.ids, expected.ids);
    ASSERT_EQ(out.logits.size(), expected.logits.size());
    for (std::size_t step = 0; step < out.logits.size(); ++step)
        EXPECT_THAT(out.logits[step], ::testing::Pointwise(::testing::FloatNear(1e-4f), expected.logits[step])) << step;
}

TEST_P(SparseFamily, SequencesOfABatchAreAsAlone) {
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

INSTANTIATE_TEST_SUITE_P(Transformers, SparseFamily, ::testing::ValuesIn(folders()), nameOfFolder);

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

/// A row's setup: one prompt, with what the small session has for all.
EngineSetup rowSetup(const EngineSetup& s, const std::vector<Ids>& prompt, int steps) {
    return {s.model,      prompt,      s.options,     s.spec,  {int(prompt[0].size()) + steps},
            s.slots,      s.plans,     s.cachePolicy, s.level, s.makeSelector,
            s.parameters, s.abilities, s.methodMemory};
}

/// A request that joins while another one decodes, and that has read its prompt in chunks, disturbs neither.
TEST(Dsa, RowsThatComeAndGoDecodeWhatSessionsDecode) {
    constexpr int kSteps = 8;
    const auto model = Turns::model();
    std::mt19937 random(7);
    const std::vector<std::vector<Ids>> prompts{{test::randomPrompt(300, random, model->config().vocab)},
                                                {test::randomPrompt(700, random, model->config().vocab)}};
    const test::SmallSession session(model, findMethod("dsa"), {.promptTokens = {700}, .newTokens = kSteps});
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
    DsaRefusals() : folder_(fs::temp_directory_path() / ("kvscope-dsa-" + std::to_string(getpid()))) {
        fs::remove_all(folder_);
        fs::copy(kSparse / "glm-dsa-shared", folder_);
    }
    ~DsaRefusals() override { fs::remove_all(folder_); }

    /// What loading says with this configuration.
    std::string refusal(const std::function<void(nlohmann::json&)>& change) const {
        nlohmann::json config = nlohmann::json::parse(test::contentsOf(kSparse / "glm-dsa-shared/config.json"));
        change(config);
        test::write(folder_ / "config.json", config.dump());
        try {
            (void)Model::load(folder_.string());
        } catch (const Error& error) {
            return oneLine(error);
        }
        return {};
    }
    const fs::path folder_;
};

TEST_F(DsaRefusals, ConfigurationsThatAreNotWhatTheyShouldBe) {
    const auto set = [&](const char* key, const nlohmann::json& value) {
        return refusal([&](nlohmann::json& config) { config[key] = value; });
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
        nlohmann::json config = nlohmann::json::parse(test::contentsOf(kSparse / "glm-dsa-shared/config.json"));
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
    SessionOptions small = options(4);
    small.settings = {{"index_topk", "20"}, {"device_tokens", "20"}};
    try {
        (void)decode(model, {Ids(50, 5)}, small);
        FAIL() << "20 places hold 20 tokens and the newest one?";
    } catch (const Error& error) {
        EXPECT_THAT(oneLine(error), HasSubstr("device_tokens 20 does not hold 20 chosen tokens"));
    }
    const MethodEntry& dsa = findMethod("dsa");
    const ParameterValues values = resolveDefaults(dsa, model->config());
    EXPECT_EQ(values.integer("index_topk"), 20) << "as the checkpoint was trained";
    const SelectionSpec spec = dsa.make(values, model->config());
    EXPECT_FALSE(findRefusal(dsa, {values, spec, model->config(), Backend::Cpu}, 500));
    const auto onCuda = findRefusal(dsa, {values, spec, model->config(), Backend::Cuda}, 500);
    ASSERT_TRUE(onCuda);
    EXPECT_THAT(onCuda->what(), HasSubstr("method dsa on the CUDA backend does not run there"));
    EXPECT_THAT(onCuda->hint, HasSubstr("--backend cpu"));
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
