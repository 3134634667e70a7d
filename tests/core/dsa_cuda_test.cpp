// DSA on the GPU against the CPU backend, on random tiny checkpoints of DeepSeek-V3.2's and GLM-5's form with the same
// bf16 weights. Without a GPU: that the families run there.
#include "core/select/token_slots.h"
#include "core/session/engine_setup.h"
#include "tests/core/indexed_on_cuda.h"
#include "tests/core/lightning_config.h"

#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <map>
#include <random>
#include <string>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::Ids;

class DsaModels : public test::IndexedShapes {
protected:
    DsaModels() : IndexedShapes("dsa") {}
};

TEST_P(DsaModels, RunsOnCudaByItsEntry) { expectRunsOnCuda(); }

class DsaOnCuda : public DsaModels {
protected:
    void SetUp() override { skipWithoutGpu(); }
    int budget() const { return model_->config().indexer->tokens; }
};

/// Latent attention without a selection, whose layers have indexers that nobody asks.
TEST_P(DsaOnCuda, LogitsOfFullAttentionAreTheCpus) { expectNear(errorsOf(70, "full", false)); }

/// With every token in the budget only bf16 lies between the two.
TEST_P(DsaOnCuda, LogitsAreTheCpusWhereEverythingIsAttended) {
    for (const bool offload : {false, true}) expectNear(errorsOf(budget() - 14, "dsa", offload));
}

/// Tokens that the CPU has chosen, and those among them that the GPU has not.
struct Agreement {
    std::int64_t chosen = 0, differing = 0;
    double widest = 0; // score of a differing token above the CPU's worst chosen one, as a share of the CPU's largest
    double overlap() const { return chosen > 0 ? 1 - double(differing) / double(chosen) : 1; }
    void add(const StepRecord& cpu, const SelectionRecord& at, const Ids& gpu, bool prints) {
        const Ids ids = test::idsOf(cpu, at);
        const auto score = [&](std::size_t i) { return double(cpu.scores.at(at.first + i)); };
        double largest = 0, least = std::numeric_limits<double>::infinity();
        for (std::size_t i = 0; i < ids.size(); ++i)
            largest = std::max(largest, std::abs(score(i))), least = std::min(least, score(i));
        chosen += std::int64_t(ids.size());
        for (std::size_t i = 0; i < ids.size(); ++i) {
            if (std::binary_search(gpu.begin(), gpu.end(), ids[i])) continue;
            ++differing;
            const double gap = (score(i) - least) / largest;
            widest = std::max(widest, gap);
            if (prints)
                std::printf("step %d, layer %d: only the CPU has token %d, %.2e above its worst\n", cpu.step, at.layer,
                            ids[i], gap);
        }
    }
    void print(const char* where) const {
        std::printf("%s: overlap %.4f of %lld tokens, %lld differ, widest gap %.2e of the largest score\n", where,
                    overlap(), static_cast<long long>(chosen), static_cast<long long>(differing), widest);
    }
};

/// Both are fed the same tokens. In the first layer the inputs of both differ by bf16's rounding alone, and the tokens
/// that only one has chosen scored close to the worst that both have. The layers behind it get inputs for which other
/// tokens were attended, in the prompt too.
TEST_P(DsaOnCuda, ChoosesWhatTheCpuChooses) {
    Agreement first, all;
    for (const int tokens : {budget() - 5, 300, 900}) {
        const std::vector<Ids> prompts{prompt(tokens)};
        const Ids forced = prompt(24);
        const test::Outcome cpu = decode(prompts, optionsOf(Backend::Cpu, 24, true), forced),
                            gpu = decode(prompts, optionsOf(Backend::Cuda, 24, true), forced);
        ASSERT_EQ(cpu.steps.size(), gpu.steps.size());
        for (std::size_t step = 1; step < cpu.steps.size(); ++step) {
            const StepRecord &a = cpu.steps[step], &b = gpu.steps[step];
            ASSERT_EQ(a.selections.size(), b.selections.size());
            for (std::size_t i = 0; i < a.selections.size(); ++i) {
                const SelectionRecord& at = a.selections[i];
                ASSERT_EQ(at.layer, b.selections[i].layer);
                ASSERT_EQ(at.selected, b.selections[i].selected);
                const Ids other = test::idsOf(b, b.selections[i]);
                ASSERT_TRUE(std::is_sorted(other.begin(), other.end()));
                ASSERT_EQ(std::adjacent_find(other.begin(), other.end()), other.end()) << "a token is chosen twice";
                all.add(a, at, other, false);
                if (at.layer == 0) first.add(a, at, other, true);
                if (!model_->config().indexer->runsIn(at.layer)) {
                    EXPECT_EQ(other, test::chosenIn(b, at.layer - 1, 0)) << "layer " << at.layer << " shares";
                }
            }
        }
    }
    ASSERT_GT(first.chosen, 0);
    first.print("the first layer");
    all.print("all layers");
    EXPECT_GE(first.overlap(), 0.95);
    EXPECT_LT(first.widest, 0.02) << "a token that both ought to have chosen";
    EXPECT_GE(all.overlap(), 0.75);
}

/// Scores that the GPU records are the CPU's, where both chose the token in the first layer.
TEST_P(DsaOnCuda, RecordsTheCpusScores) {
    const std::vector<Ids> prompts{prompt(budget() - 10)}; // all tokens are chosen
    const Ids forced = prompt(8);
    const test::Outcome cpu = decode(prompts, optionsOf(Backend::Cpu, 8, false), forced),
                        gpu = decode(prompts, optionsOf(Backend::Cuda, 8, false), forced);
    for (std::size_t step = 1; step < cpu.steps.size(); ++step) {
        const SelectionRecord &a = cpu.steps[step].selections.front(), &b = gpu.steps.at(step).selections.front();
        ASSERT_EQ(a.selected, b.selected);
        const std::vector<float> got(gpu.steps[step].scores.begin() + std::ptrdiff_t(b.first),
                                     gpu.steps[step].scores.begin() + std::ptrdiff_t(b.first) + b.selected);
        EXPECT_LT(test::relativeError(got, &cpu.steps[step].scores.at(a.first)), 0.03) << "step " << step;
    }
}

/// A prompt that is read chooses and attends as one whose tokens are fed one by one.
TEST_P(DsaOnCuda, ReadingAPromptIsFeedingItsTokens) {
    const Ids whole = prompt(400), cut(whole.begin(), whole.begin() + 30), fed = prompt(16);
    Ids rest(whole.begin() + 30, whole.end());
    rest.insert(rest.end(), fed.begin(), fed.end());
    const test::Outcome read = decode({whole}, optionsOf(Backend::Cuda, int(fed.size()) + 1, true), fed),
                        stepped = decode({cut}, optionsOf(Backend::Cuda, int(rest.size()) + 1, true), rest);
    Agreement first, all;
    std::vector<double> errors;
    const std::size_t skipped = stepped.steps.size() - read.steps.size();
    for (std::size_t step = 1; step < read.steps.size(); ++step) {
        const StepRecord &a = read.steps[step], &b = stepped.steps.at(step + skipped);
        ASSERT_EQ(a.selections.size(), b.selections.size());
        for (std::size_t i = 0; i < a.selections.size(); ++i) {
            const Ids other = test::idsOf(b, b.selections[i]);
            all.add(a, a.selections[i], other, false);
            if (a.selections[i].layer == 0) first.add(a, a.selections[i], other, true);
        }
        errors.push_back(test::relativeError(read.logits.at(step), stepped.logits.at(step + skipped).data()));
    }
    first.print("the first layer");
    all.print("all layers");
    std::sort(errors.begin(), errors.end());
    std::printf("half of the logits within %.2e\n", errors[errors.size() / 2]);
    EXPECT_GE(first.overlap(), 0.98);
    EXPECT_LT(first.widest, 0.02);
    EXPECT_GE(all.overlap(), 0.75);
}

TEST_P(DsaOnCuda, OffloadedAndResidentGiveTheSameIds) {
    const std::vector<Ids> prompts{prompt(700), prompt(33), prompt(410)};
    SessionOptions small = optionsOf(Backend::Cuda, 60, true);
    small.settings = {{"device_tokens", std::to_string(budget() + 7)}};
    const test::Outcome resident = decode(prompts, optionsOf(Backend::Cuda, 60, false)),
                        offloaded = decode(prompts, optionsOf(Backend::Cuda, 60, true)), few = decode(prompts, small);
    EXPECT_EQ(offloaded.ids, resident.ids);
    EXPECT_EQ(offloaded.logits, resident.logits);
    EXPECT_EQ(few.ids, resident.ids);
    EXPECT_EQ(few.logits, resident.logits);
    EXPECT_GT(offloaded.summary.misses, 0);
    EXPECT_GT(few.summary.misses, offloaded.summary.misses) << "fewer tokens stay";
    EXPECT_EQ(resident.summary.misses, 0);
    EXPECT_EQ(resident.summary.h2dBytes, 0);
    EXPECT_EQ(offloaded.summary.h2dBytes, offloaded.summary.misses * model_->config().headDim * 2);
}

/// The first choices are those of a prompt that fits the budget, so that all of it lies on the device.
TEST_P(DsaOnCuda, HitsAndMissesAreThoseOfTheSlots) {
    const int tokens = budget() - 3, steps = 150, held = budget() + 9;
    SessionOptions options = optionsOf(Backend::Cuda, steps, true);
    options.settings = {{"device_tokens", std::to_string(held)}};
    const test::Outcome out = decode({prompt(tokens)}, options);
    const int layers = model_->config().layers;
    std::vector<select::TokenSlots> slots(std::size_t(layers), select::TokenSlots(held, tokens + steps + 1));
    Ids all;
    for (int token = 0; token < tokens; ++token) all.push_back(token);
    std::vector<std::uint8_t> hit(all.size());
    for (select::TokenSlots& layer : slots) layer.admit(all, tokens - 1, hit);
    std::int64_t misses = 0;
    for (std::size_t step = 1; step < out.steps.size(); ++step) {
        const StepRecord& record = out.steps[step];
        ASSERT_EQ(record.selections.size(), std::size_t(layers));
        for (const SelectionRecord& selection : record.selections) {
            const Ids chosen = test::idsOf(record, selection);
            hit.assign(chosen.size(), 0);
            const int missing = slots[std::size_t(selection.layer)].admit(chosen, tokens + int(step) - 1, hit);
            EXPECT_EQ(selection.misses, missing) << "step " << step << ", layer " << selection.layer;
            EXPECT_EQ(selection.hits, selection.selected - missing);
            const auto blocks = record.blocksOf(selection);
            for (std::size_t i = 0; i < blocks.size(); ++i)
                ASSERT_EQ(blocks[i].hit(), hit[i] != 0)
                    << "step " << step << ", layer " << selection.layer << ", token " << blocks[i].id();
            misses += missing;
        }
    }
    EXPECT_GT(misses, 0);
    EXPECT_EQ(out.summary.misses, misses);
}

/// The share of all attention that the chosen tokens of the first layer get, token by token.
TEST_P(DsaOnCuda, TheOracleMeasuresWhatItDoesOnTheCpu) {
    for (const int tokens : {budget() - 10, 500}) {
        const std::vector<Ids> prompts{prompt(tokens)};
        const Ids forced = prompt(8);
        SessionOptions options = optionsOf(Backend::Cpu, 8, true);
        options.oracle = true;
        const test::Outcome cpu = decode(prompts, options, forced);
        options.backend = Backend::Cuda;
        const test::Outcome gpu = decode(prompts, options, forced);
        ASSERT_EQ(cpu.steps.size(), gpu.steps.size());
        for (std::size_t step = 1; step < cpu.steps.size(); ++step) {
            const float want = cpu.steps[step].selections.front().mass, got = gpu.steps[step].selections.front().mass;
            EXPECT_NEAR(got, want, 0.02) << tokens << " tokens, step " << step;
            if (tokens < budget()) {
                EXPECT_NEAR(got, 1, 1e-3) << "everything is attended";
            }
        }
    }
}

/// Requests join one by one while others decode, and leave; they have the logits of sessions of their own.
TEST_P(DsaOnCuda, RowsThatComeAndGoHaveTheLogitsOfSessions) {
    constexpr int kSteps = 9;
    const MethodEntry& dsa = findMethod("dsa");
    const ParameterValues values = resolveDefaults(dsa, model_->config());
    const SelectionSpec spec = methodSpec(dsa, values, *model_);
    const std::vector<Ids> prompts{prompt(2300), prompt(20), prompt(500)};
    const auto vocab = std::size_t(model_->config().vocab);
    for (const bool offload : {true, false}) {
        SCOPED_TRACE(offload ? "offloaded" : "resident");
        SessionOptions options = optionsOf(Backend::Cuda, kSteps, offload);
        std::vector<test::Outcome> alone;
        for (const Ids& one : prompts) alone.push_back(decode({one}, options));
        const Abilities abilities =
            abilitiesOf(dsa, {values, spec, model_->config(), Backend::Cuda, offload, model_.get()});
        const auto engine =
            makeCudaRowEngine({.model = model_, .abilities = abilities, .rows = 3, .threads = 1, .invariant = true});
        std::vector<std::vector<Ids>> text;
        for (const Ids& one : prompts) text.push_back({one});
        std::vector<int> steps(prompts.size(), 0);
        std::vector<bool> open(prompts.size(), false);
        const auto check = [&](std::size_t row) {
            const std::vector<float>& want = alone[row].logits.at(std::size_t(steps[row]));
            EXPECT_EQ(std::memcmp(engine->logits(RowId{int(row)}), want.data(), vocab * sizeof(float)), 0)
                << "request " << row << ", step " << steps[row];
        };
        for (std::size_t turn = 0; turn < 16; ++turn) {
            if (turn % 3 == 0 && turn / 3 < prompts.size()) { // joins
                const std::size_t row = turn / 3;
                engine->open(RowId{int(row)},
                             engineSetup(model_, text[row], options, dsa, values, spec, RecordLevel::Selections));
                for (int layer = 0; !engine->readLayers(RowId{int(row)}, LayerId{layer}, layer % 2 * 2048, {});
                     ++layer) {
                }
                open[row] = true;
                check(row);
            }
            std::vector<RowToken> step;
            for (std::size_t row = prompts.size(); row-- > 0;)
                if (open[row])
                    step.push_back({RowId{int(row)}, alone[row].ids[0].at(std::size_t(steps[row])),
                                    int(prompts[row].size()) + steps[row]});
            if (step.empty()) continue;
            engine->decode(step);
            for (const RowToken& token : step) {
                const std::size_t row = index(token.row);
                ++steps[row];
                check(row);
                if (steps[row] + 1 < kSteps) continue;
                open[row] = false; // leaves
                engine->close(token.row);
            }
        }
        for (const int made : steps) EXPECT_EQ(made, kSteps - 1) << "every request was served to its end";
    }
}

test::IndexedShape shapeOf(const char* name, const char* golden, const nlohmann::json& changes) {
    return {name, [golden, changes] { return test::lightningConfig(golden, changes); }};
}

std::vector<test::IndexedShape> shapes() {
    const std::vector<std::string> dense(2, "dense");
    return {
        shapeOf("experts", "deepseek32", nlohmann::json::object()),
        shapeOf("halves", "deepseek32", {{"mlp_layer_types", dense}}),
        shapeOf("shared", "glm-dsa-shared", nlohmann::json::object()),
        shapeOf(
            "one_leader", "glm-dsa-shared",
            {{"indexer_types", {"full", "shared", "shared", "shared"}}, {"index_head_dim", 96}, {"index_n_heads", 3}}),
        shapeOf("wide_budget", "glm-dsa-shared", {{"index_topk", 300}, {"attention_bias", false}})};
}

const auto kNames = [](const auto& tested) { return std::string(tested.param.name); };
INSTANTIATE_TEST_SUITE_P(Shapes, DsaOnCuda, ::testing::ValuesIn(shapes()), kNames);
INSTANTIATE_TEST_SUITE_P(Shapes, DsaModels, ::testing::ValuesIn(shapes()), kNames);

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
