// Prompts that are read in turns, stopping at random places, and prompts read in chunks give the same bits as prompts
// read one after the other, layer by layer.
#include "core/engine/cpu/cpu_engine.h"
#include "core/select/method.h"
#include "tests/core/embedded_model.h"
#include "tests/core/small_budgets.h"
#include "tests/support/packed_blocks.h"

#include <gtest/gtest.h>
#include <random>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

const std::shared_ptr<const Model>& model() { return test::firstLayersOfEmbedded(); }

/// What DecodeSession resolves: everything that selects is offloaded, with as many device slots as the method needs.
EngineSetup setupOf(const MethodEntry& method, const ParameterValues& values,
                    const std::vector<std::vector<std::int32_t>>& prompts, const SessionOptions& options, int steps) {
    const ModelConfig& config = model()->config();
    const SelectionSpec spec = method.make(values, config);
    EngineSetup setup{model(), prompts, options, spec, {}, 0, {}, "lru", RecordLevel::Full, {}, values, {}, {}};
    int longest = 0;
    for (const auto& prompt : prompts) {
        setup.maxTokens.push_back(int(prompt.size()) + steps);
        longest = std::max(longest, setup.maxTokens.back());
    }
    const int needed = spec.budgetBlocks() + spec.spareSlots;
    setup.slots = std::min(spec.grid.blocks(longest), std::max(spec.deviceSlots, needed));
    setup.abilities = abilitiesOf(method, {values, spec, config, Backend::Cpu, true, model().get()});
    setup.plans = LayerPlans(config, spec, {true, method.hasSelector(values), setup.abilities.ahead, longest});
    setup.makeSelector = [&method, values](const SelectorContext& context) {
        auto selector = method.makeSelector ? method.makeSelector(values, context) : nullptr;
        return selector ? std::move(selector) : makeSpecSelector(context);
    };
    return setup;
}

/// A session's engine for one method with small budgets, as DecodeSession makes it.
class Turns {
public:
    Turns(const std::string& name, bool sparsePrompts, std::vector<std::vector<std::int32_t>> prompts)
        : method_(findMethod(name)), values_(resolveDefaults(method_, model()->config())),
          prompts_(std::move(prompts)) {
        for (const auto& [key, value] : test::smallBudgets(values_)) values_.set(method_.parameters, key, value);
        if (sparsePrompts) values_.set(method_.parameters, "prefill", "sparse");
        options_.method = name;
        options_.threads = 1;
        engine_ = std::make_unique<CpuEngine>(setupOf(method_, values_, prompts_, options_, kSteps));
    }

    static constexpr int kSteps = 5;
    struct Result {
        StepRecord prefill;
        std::vector<StepRecord> steps;
        std::vector<float> logits; // of the prompts' ends and of every step, row by row
    };

    /// Reads one prompt after the other, as a session does.
    Result oneAfterTheOther() {
        Result result;
        engine_->prefill(result.prefill, {}, {});
        return decode(std::move(result));
    }
    /// Reads some prompt up to some place ahead of it, until all are read. Counts how often another one came between.
    Result inTurns(unsigned seed, int& turns) {
        std::mt19937 random(seed);
        const auto below = [&](int limit) { return int(random() % unsigned(limit)); };
        Result result;
        engine_->beginPrompts(result.prefill);
        std::vector<PromptCursor> at(prompts_.size());
        std::vector<int> unread(prompts_.size());
        for (std::size_t row = 0; row < unread.size(); ++row) unread[row] = int(row);
        for (int last = -1; !unread.empty();) {
            const std::size_t chosen = std::size_t(below(int(unread.size())));
            const int row = unread[chosen];
            turns += last != row ? 1 : 0;
            last = row;
            // Within a layer, at its end, or some layers further: the place is given, not a number of pieces.
            PromptCursor& until = at[std::size_t(row)];
            until = {LayerId{int(until.layer) + below(3)}, below(4)};
            if (engine_->readPrompt(RowId{row}, until, result.prefill)) unread.erase(unread.begin() + long(chosen));
        }
        engine_->finishPrompts(result.prefill);
        return decode(std::move(result));
    }

    /// Takes a few pieces of some prompt through all layers, until all are read.
    Result inChunks(unsigned seed) {
        std::mt19937 random(seed);
        Result result;
        engine_->beginPrompts(result.prefill);
        std::vector<int> until(prompts_.size()), unread(prompts_.size());
        for (std::size_t row = 0; row < unread.size(); ++row) unread[row] = int(row);
        while (!unread.empty()) {
            const std::size_t chosen = random() % unread.size();
            const int row = unread[chosen];
            until[std::size_t(row)] += int(random() % 3);
            if (engine_->readPromptChunk(RowId{row}, until[std::size_t(row)], result.prefill))
                unread.erase(unread.begin() + long(chosen));
        }
        engine_->finishPrompts(result.prefill);
        return decode(std::move(result));
    }

private:
    Result decode(Result result) {
        std::vector<ActiveSequence> active;
        for (std::size_t row = 0; row < prompts_.size(); ++row)
            active.push_back({RowId{int(row)}, int(prompts_[row].size()) - 1});
        std::vector<std::int32_t> tokens(active.size());
        const auto keep = [&] {
            for (std::size_t row = 0; row < active.size(); ++row) {
                const float* logits = engine_->logits(int(row));
                result.logits.insert(result.logits.end(), logits, logits + model()->config().vocab);
                tokens[row] = engine_->chosenToken(int(row));
                ++active[row].position;
            }
        };
        keep();
        for (int step = 1; step < kSteps; ++step) {
            StepRecord record;
            record.step = step;
            engine_->decode(active, tokens, record);
            result.steps.push_back(std::move(record));
            keep();
        }
        return result;
    }

    const MethodEntry& method_;
    ParameterValues values_;
    const std::vector<std::vector<std::int32_t>> prompts_;
    SessionOptions options_;
    std::unique_ptr<CpuEngine> engine_;
};

/// Three, two and one pieces. The first ends four tokens into a piece, so that windows of last tokens lie in two; the
/// last is shorter than a block.
std::vector<std::vector<std::int32_t>> threePrompts() {
    std::mt19937 random(11);
    std::vector<std::vector<std::int32_t>> prompts;
    for (const int length : {1028, 530, 13}) {
        auto& prompt = prompts.emplace_back();
        for (int i = 0; i < length; ++i) prompt.push_back(std::int32_t(random() % 4000));
    }
    return prompts;
}

struct Case {
    std::string method;
    bool sparsePrompts = false;
    friend void PrintTo(const Case& c, std::ostream* out) { *out << c.method << (c.sparsePrompts ? ", sparsely" : ""); }
};

class PromptsInTurns : public ::testing::TestWithParam<Case> {
protected:
    void SetUp() override { KVSCOPE_NEEDS_NOSA_TINY(); }
};

void expectSame(const Turns::Result& actual, const Turns::Result& expected) {
    EXPECT_EQ(actual.logits, expected.logits);
    for (std::size_t layer = 0; layer < expected.prefill.layers.size(); ++layer) {
        EXPECT_EQ(actual.prefill.layers[layer].d2hBytes, expected.prefill.layers[layer].d2hBytes);
        EXPECT_EQ(actual.prefill.layers[layer].d2hBlocks, expected.prefill.layers[layer].d2hBlocks);
        EXPECT_EQ(actual.prefill.layers[layer].transferNs, expected.prefill.layers[layer].transferNs);
    }
    for (std::size_t step = 0; step < expected.steps.size(); ++step) {
        EXPECT_EQ(test::idsOf(actual.steps[step].blocks), test::idsOf(expected.steps[step].blocks));
        EXPECT_EQ(test::hitsOf(actual.steps[step].blocks), test::hitsOf(expected.steps[step].blocks));
        EXPECT_EQ(actual.steps[step].selections.size(), expected.steps[step].selections.size());
    }
}

TEST_P(PromptsInTurns, GiveTheSameBitsAsOneAfterTheOther) {
    const auto prompts = threePrompts();
    const auto expected = Turns(GetParam().method, GetParam().sparsePrompts, prompts).oneAfterTheOther();
    int turns = 0;
    const auto actual = Turns(GetParam().method, GetParam().sparsePrompts, prompts).inTurns(7, turns);
    EXPECT_GT(turns, 4) << "the prompts hardly took turns";
    expectSame(actual, expected);
}

TEST_P(PromptsInTurns, GiveTheSameBitsInChunks) {
    const auto prompts = threePrompts();
    const auto expected = Turns(GetParam().method, GetParam().sparsePrompts, prompts).oneAfterTheOther();
    expectSame(Turns(GetParam().method, GetParam().sparsePrompts, prompts).inChunks(5), expected);
}

/// Every method, and those that read prompts sparsely that way too.
std::vector<Case> cases() {
    if (!test::hasEmbeddedModel()) return {{"left_out"}};
    std::vector<Case> all;
    for (const MethodEntry& method : methods()) {
        if (!hasWeightsFor(method, *model())) continue;
        all.push_back({method.name});
        if (resolveDefaults(method, model()->config()).has("prefill")) all.push_back({method.name, true});
    }
    return all;
}

INSTANTIATE_TEST_SUITE_P(Methods, PromptsInTurns, ::testing::ValuesIn(cases()), [](const auto& parameter) {
    std::string name = parameter.param.method + (parameter.param.sparsePrompts ? "_sparsely" : "");
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
});

TEST(PromptReader, StopsWhereItIsTold) {
    const auto prompts = threePrompts();
    SessionOptions options;
    options.threads = 1;
    const MethodEntry& full = findMethod("full");
    CpuEngine engine(setupOf(full, resolveDefaults(full, model()->config()), prompts, options, 1));
    StepRecord record;
    std::vector<double> told;
    const Progress progress = [&](double share, std::string_view) { told.push_back(share); };
    engine.beginPrompts(record);
    EXPECT_FALSE(engine.readPrompt(RowId{0}, {LayerId{0}, 2}, record, progress));
    EXPECT_EQ(engine.promptAt(RowId{0}), (PromptCursor{LayerId{0}, 2}));
    EXPECT_FALSE(engine.readPrompt(RowId{0}, {LayerId{0}, 1}, record, progress)) << "it never goes back";
    EXPECT_EQ(engine.promptAt(RowId{0}), (PromptCursor{LayerId{0}, 2}));
    EXPECT_FALSE(engine.readPrompt(RowId{0}, {LayerId{1}, 0}, record, progress));
    EXPECT_EQ(engine.promptAt(RowId{0}), (PromptCursor{LayerId{1}, 0})) << "the layer's third piece was its last";
    EXPECT_FALSE(engine.readPrompt(RowId{0}, {LayerId{2}, 0}, record, progress));
    EXPECT_EQ(engine.promptAt(RowId{1}), PromptCursor{}) << "the other prompts wait";
    EXPECT_GT(record.layers[1].stageNs[std::size_t(Stage::Ffn)], 0);
    EXPECT_EQ(record.layers[2].stageNs[std::size_t(Stage::Ffn)], 0);
    ASSERT_EQ(told.size(), 6u);
    EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));

    std::stop_source stop;
    stop.request_stop();
    EXPECT_THROW(engine.readPrompt(RowId{1}, {LayerId{1}, 0}, record, progress, stop.get_token()), Error);
    EXPECT_EQ(engine.promptAt(RowId{1}), PromptCursor{});

    const int layers = model()->config().layers;
    EXPECT_TRUE(engine.readPrompt(RowId{2}, {LayerId{layers}, 0}, record));
    EXPECT_TRUE(engine.readPrompt(RowId{2}, {LayerId{layers}, 0}, record)) << "read already";
    EXPECT_EQ(engine.promptAt(RowId{2}), (PromptCursor{LayerId{layers}, 0}));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
