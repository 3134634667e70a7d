// A session that goes on from tokens it is given, and one that leaves a block out.
#include "core/session/decode_session.h"
#include "core/session/engine.h"
#include "tests/core/embedded_model.h"
#include "tests/support/random_prompt.h"
#include "tests/support/refusal.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

constexpr int kPrompt = 900, kTokens = 20, kStep = 8;

std::shared_ptr<const Model> model() {
    static const auto loaded = Model::load(kDefaultModel);
    return loaded;
}

/// A budget that the prompt does not fit.
SessionOptions options(Backend backend, double temperature) {
    SessionOptions options;
    options.backend = backend;
    options.method = "infllmv2";
    options.settings = {{"total_blocks", "6"}, {"window_blocks", "2"}};
    options.maxNewTokens = kTokens;
    options.stopAtEos = false;
    options.sampling.temperature = temperature;
    options.sampling.seed = 7;
    return options;
}

struct Outcome {
    CollectingSink sink;
    std::vector<std::vector<std::int32_t>> ids;
    int givenUnlike = -1;
};

Outcome decode(const SessionOptions& options, int sequences = 1) {
    std::vector<std::vector<std::int32_t>> prompts;
    for (int s = 0; s < sequences; ++s) prompts.push_back(test::randomPrompt(kPrompt + 60 * s, unsigned(s + 1)));
    Outcome out;
    DecodeSession session(model(), prompts, options, out.sink);
    session.prefill();
    while (session.step()) {
    }
    session.end(RunStatus::Finished);
    out.ids = session.generated();
    out.givenUnlike = session.summary().givenUnlike;
    return out;
}

std::vector<std::vector<std::int32_t>> beginnings(const Outcome& run, int tokens) {
    auto given = run.ids;
    for (auto& ids : given) ids.resize(std::size_t(tokens));
    return given;
}

void expectSameSelections(const StepRecord& a, const StepRecord& b) {
    ASSERT_EQ(a.selections.size(), b.selections.size());
    for (std::size_t i = 0; i < a.selections.size(); ++i) {
        const auto left = a.blocksOf(a.selections[i]), right = b.blocksOf(b.selections[i]);
        EXPECT_TRUE(std::equal(left.begin(), left.end(), right.begin(), right.end()))
            << "step " << a.step << ", selection " << i;
    }
}

struct Place {
    Backend backend;
    double temperature;
};

class GivenTokens : public ::testing::TestWithParam<Place> {
protected:
    void SetUp() override {
        KVSCOPE_NEEDS_NOSA_TINY();
        if (GetParam().backend == Backend::Cpu) return;
        try {
            requireGpu();
        } catch (const Error& error) {
            GTEST_SKIP() << oneLine(error);
        }
    }
};

TEST_P(GivenTokens, OfTheRunItselfGiveTheSameRunToTheEnd) {
    SessionOptions asked = options(GetParam().backend, GetParam().temperature);
    const Outcome run = decode(asked, 2);
    ASSERT_GT(run.sink.steps.back().selections.size(), 0U);
    for (const int step : {1, kStep, kTokens - 1}) {
        asked.given = beginnings(run, step);
        const Outcome fork = decode(asked, 2);
        EXPECT_EQ(fork.ids, run.ids);
        EXPECT_EQ(fork.givenUnlike, -1);
        ASSERT_EQ(fork.sink.steps.size(), run.sink.steps.size());
        for (std::size_t i = 0; i < run.sink.steps.size(); ++i)
            expectSameSelections(run.sink.steps[i], fork.sink.steps[i]);
    }
}

TEST_P(GivenTokens, AreFedInPlaceOfTheChosenOnes) {
    SessionOptions asked = options(GetParam().backend, GetParam().temperature);
    const Outcome run = decode(asked);
    asked.given = beginnings(run, kStep);
    std::int32_t& other = asked.given[0][3];
    other = other == 100 ? 101 : 100;
    const Outcome fork = decode(asked);
    EXPECT_EQ(fork.givenUnlike, 3);
    EXPECT_TRUE(std::equal(asked.given[0].begin(), asked.given[0].end(), fork.ids[0].begin()));
    for (std::size_t i = 0; i <= 3; ++i) expectSameSelections(run.sink.steps[i], fork.sink.steps[i]);
    // What is fed afterwards is the altered text: a prompt that ends with it goes on in the same way.
    const std::int32_t recorded = fork.sink.steps[3].generated[0].id;
    EXPECT_EQ(recorded, other);
}

INSTANTIATE_TEST_SUITE_P(Backends, GivenTokens,
                         ::testing::Values(Place{Backend::Cpu, 0}, Place{Backend::Cpu, 0.8}, Place{Backend::Cuda, 0},
                                           Place{Backend::Cuda, 0.8}),
                         [](const auto& row) {
                             return std::string(nameOf(row.param.backend)) +
                                    (row.param.temperature > 0 ? "Sampled" : "Greedy");
                         });

/// How many selections of a step have the block.
int holders(const StepRecord& step, int block) {
    int count = 0;
    for (const SelectionRecord& selection : step.selections)
        count += findBlock(step.blocksOf(selection), block) != nullptr;
    return count;
}

TEST(LeftOutBlock, IsSelectedNoMoreFromItsStepOn) {
    KVSCOPE_NEEDS_NOSA_TINY();
    SessionOptions asked = options(Backend::Cpu, 0);
    const Outcome run = decode(asked);
    int block = -1; // one that is chosen for its score, in many heads
    for (int candidate = 1; candidate < kPrompt / 64 - 2; ++candidate)
        if (block < 0 || holders(run.sink.steps[kStep], candidate) > holders(run.sink.steps[kStep], block))
            block = candidate;
    ASSERT_GT(holders(run.sink.steps[kStep], block), 0);
    asked.given = beginnings(run, kStep);
    asked.leftOut = LeftOutBlock{block, kStep, 0};
    const Outcome fork = decode(asked);
    for (int step = 0; step < kStep; ++step)
        expectSameSelections(run.sink.steps[std::size_t(step)], fork.sink.steps[std::size_t(step)]);
    for (int step = kStep; step < kTokens; ++step) EXPECT_EQ(holders(fork.sink.steps[std::size_t(step)], block), 0);
    // In the first layer nothing but that block differs, because its queries are those of the run.
    const StepRecord &before = run.sink.steps[kStep], &after = fork.sink.steps[kStep];
    for (std::size_t i = 0; i < before.selections.size() && before.selections[i].layer == before.selections[0].layer;
         ++i) {
        std::vector<std::int32_t> left, right;
        for (const PackedBlock& chosen : before.blocksOf(before.selections[i]))
            if (chosen.id() != block) left.push_back(chosen.id());
        for (const PackedBlock& chosen : after.blocksOf(after.selections[i])) right.push_back(chosen.id());
        EXPECT_EQ(left, right);
    }
}

TEST(LeftOutBlock, AndGivenTokensThatCannotBeAreRefused) {
    KVSCOPE_NEEDS_NOSA_TINY();
    const auto refused = [](auto change, const char* named) {
        SessionOptions asked = options(Backend::Cpu, 0);
        change(asked);
        EXPECT_FALSE(test::refusalOf([&] { decode(asked); }, named).empty()) << named;
    };
    refused([](SessionOptions& o) { o.given = {{1}, {2}}; }, "tokens are given for 2 sequences");
    refused([](SessionOptions& o) { o.given = {std::vector<std::int32_t>(kTokens + 1, 5)}; }, "21 tokens are given");
    refused([](SessionOptions& o) { o.given = {{-1}}; }, "token id -1");
    refused([](SessionOptions& o) { o.leftOut = LeftOutBlock{3, 0, 0}; }, "step 0 reads the prompt");
    refused([](SessionOptions& o) { o.leftOut = LeftOutBlock{3, 2, 1}; }, "no sequence 1");
    refused([](SessionOptions& o) { o.leftOut = LeftOutBlock{14, 1, 0}; }, "block 14 cannot be left out");
    refused(
        [](SessionOptions& o) {
            o.method = "full", o.settings.clear();
            o.leftOut = LeftOutBlock{3, 2, 0};
        },
        "attends to everything");
    refused([](SessionOptions& o) { o.leftOut = LeftOutBlock{3, 2, 0}, o.backend = Backend::Cuda; }, "on a GPU");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
