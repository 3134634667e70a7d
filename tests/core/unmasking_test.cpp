// Which tokens a forward of block diffusion writes, and how a block goes from masks to tokens.
#include "core/diffusion/block_run.h"
#include "core/diffusion/unmasking.h"

#include <cmath>
#include <gmock/gmock.h>
#include <limits>
#include <numeric>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::ElementsAre;

std::vector<Candidate> candidatesOf(const std::vector<double>& confidences, const std::vector<double>& entropies = {}) {
    std::vector<Candidate> candidates;
    for (std::size_t i = 0; i < confidences.size(); ++i)
        candidates.push_back({std::int32_t(2 * i), 7, confidences[i], entropies.empty() ? 1.0 : entropies[i]});
    return candidates; // at the even positions of a block
}

DenoiseOptions optionsOf(Unmasking strategy, int block, int steps) {
    DenoiseOptions options;
    options.strategy = strategy, options.block = block, options.steps = steps;
    return options;
}

TEST(Unmasking, SequentialWritesTheLeftmost) {
    const auto options = optionsOf(Unmasking::Sequential, 8, 4); // two a step
    EXPECT_THAT(chooseWritten(options, 0, candidatesOf({.1, .9, .8})), ElementsAre(0, 2));
}

TEST(Unmasking, StaticWritesTheMostConfidentAndTheLowerOfEqualOnes) {
    const auto options = optionsOf(Unmasking::LowConfidenceStatic, 8, 4);
    EXPECT_THAT(chooseWritten(options, 0, candidatesOf({.1, .5, .9, .5})), ElementsAre(2, 4));
}

TEST(Unmasking, DynamicWritesAllAboveTheThresholdButNoFewerThanStatic) {
    auto options = optionsOf(Unmasking::LowConfidenceDynamic, 8, 4);
    options.threshold = 0.5;
    EXPECT_THAT(chooseWritten(options, 0, candidatesOf({.6, .5, .9, .7})), ElementsAre(0, 4, 6))
        << "0.5 is not above it";
    EXPECT_THAT(chooseWritten(options, 0, candidatesOf({.1, .2, .9, .3})), ElementsAre(4, 6));
}

TEST(Unmasking, EntropyBoundedWritesTheMostCertainBelowTheBound) {
    auto options = optionsOf(Unmasking::EntropyBounded, 8, 8);
    options.entropyBound = 0.35;
    EXPECT_THAT(chooseWritten(options, 0, candidatesOf({.5, .5, .5, .5}, {.2, .05, .11, .01})), ElementsAre(2, 4, 6));
    EXPECT_THAT(chooseWritten(options, 0, candidatesOf({.5, .5}, {2, 1})), ElementsAre(2)) << "at least one";
    options.entropyBound = 0.3; // a sum that reaches the bound is not below it
    EXPECT_THAT(chooseWritten(options, 0, candidatesOf({.5, .5}, {.1, .2})), ElementsAre(0));
}

TEST(Unmasking, NoMorePositionsAreWrittenThanAreMasked) {
    for (const Unmasking strategy :
         {Unmasking::Sequential, Unmasking::LowConfidenceStatic, Unmasking::LowConfidenceDynamic})
        EXPECT_THAT(chooseWritten(optionsOf(strategy, 16, 4), 0, candidatesOf({.4})), ElementsAre(0));
}

TEST(Unmasking, StepsShareABlocksTokens) {
    for (const int block : {1, 2, 4, 16, 32, 64})
        for (int steps = 1; steps <= 64; ++steps) {
            const auto options = optionsOf(Unmasking::Sequential, block, steps);
            int sum = 0;
            for (int step = 0; step < steps; ++step) sum += options.tokensOf(step);
            EXPECT_EQ(sum, block) << steps;
            EXPECT_EQ(options.tokensOf(steps), 0);
        }
    EXPECT_EQ(optionsOf(Unmasking::Sequential, 16, 6).tokensOf(3), 3);
    EXPECT_EQ(optionsOf(Unmasking::Sequential, 16, 6).tokensOf(4), 2);
}

TEST(Candidates, AreTheLargestAllowedLogitWithItsShareOfThePlainSoftmax) {
    const std::vector<float> logits{1, 5, 3, 3};
    const std::vector<std::uint8_t> allowed{1, 0, 1, 1};
    CandidateChooser chooser({}, allowed);
    const Candidate best = chooser.choose(logits, [] { return ADD_FAILURE() << "a greedy choice draws nothing", 0.0; });
    EXPECT_EQ(best.id, 2) << "of equal ones the lower id";
    const double other = std::exp(-2.0), sum = 2 + other;
    EXPECT_NEAR(best.confidence, 1 / sum, 1e-12);
    EXPECT_NEAR(best.entropy, std::log(sum) + 2 * other / sum, 1e-12);
}

TEST(Candidates, AreDrawnAfterTemperatureTopKAndTopP) {
    const std::vector<float> logits{0, std::log(2.f), std::log(4.f), std::log(8.f)}; // weights 1, 2, 4, 8
    const std::vector<std::uint8_t> allowed{1, 1, 1, 1};
    const auto at = [&](CandidateSampling sampling, double number) {
        CandidateChooser chooser(sampling, allowed);
        return chooser.choose(logits, [=] { return number; });
    };
    EXPECT_EQ(at({1.0, 1, 0}, 0.5).id, 3);
    EXPECT_EQ(at({1.0, 1, 0}, 0.99).id, 0);
    EXPECT_NEAR(at({1.0, 1, 0}, 0.5).confidence, 8 / 15.0, 1e-6);
    EXPECT_EQ(at({1.0, 1, 2}, 0.99).id, 2);
    EXPECT_NEAR(at({1.0, 1, 2}, 0.99).confidence, 4 / 12.0, 1e-6);
    EXPECT_EQ(at({1.0, 0.5, 0}, 0.99).id, 3);
    EXPECT_NEAR(at({1.0, 0.5, 0}, 0.99).confidence, 1, 1e-12);
    EXPECT_NEAR(at({0.5, 1, 0}, 0).confidence, 64 / 85.0, 1e-6);
}

TEST(Candidates, LeadByWhatTheMostProbableIdLeadsByWhicheverIsDrawn) {
    const std::vector<float> logits{0, std::log(2.f), std::log(4.f), std::log(8.f)}; // weights 1, 2, 4, 8
    const std::vector<std::uint8_t> allowed{1, 1, 1, 1};
    CandidateChooser warm({1.0, 1, 0}, allowed), greedy({}, allowed), alone({1.0, 1, 1}, allowed);
    const Candidate least = warm.choose(logits, [] { return 0.99; });
    EXPECT_EQ(least.id, 0);
    EXPECT_NEAR(least.margin, 4 / 15.0, 1e-6);
    EXPECT_NEAR(warm.choose(logits, [] { return 0.0; }).margin, 4 / 15.0, 1e-6);
    EXPECT_NEAR(greedy.choose(logits, [] { return 0.0; }).margin, 4 / 15.0, 1e-6);
    EXPECT_NEAR(alone.choose(logits, [] { return 0.0; }).margin, 1, 1e-12) << "nothing is second";
}

TEST(Candidates, OfDreamAreCutByTopPBeforeTopK) {
    const std::vector<float> logits{0, std::log(2.f), std::log(4.f), std::log(8.f)}; // weights 1, 2, 4, 8
    const std::vector<std::uint8_t> allowed{1, 1, 1, 1};
    const auto at = [&](CandidateSampling sampling) {
        CandidateChooser chooser(sampling, allowed);
        return chooser.choose(logits, [] { return 0.99; });
    };
    // The two best ids hold 12 of 15: the first is two thirds of what top-k keeps and little more than half of all.
    EXPECT_EQ(at({1.0, 0.6, 2, false}).id, 3);
    EXPECT_EQ(at({1.0, 0.6, 2, true}).id, 2);
    EXPECT_NEAR(at({1.0, 0.6, 2, true}).confidence, 4 / 12.0, 1e-6);
    EXPECT_EQ(at({1.0, 0.99, 2, true}).id, 2) << "top-k cuts what top-p leaves";
    EXPECT_EQ(at({1.0, 0.5, 2, true}).id, 3);
}

TEST(Candidates, OfBrokenLogitsThereAreNone) {
    const std::vector<std::uint8_t> allowed{1, 0, 1};
    CandidateChooser chooser({}, allowed);
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(chooser.choose(std::vector<float>{1, 1, nan}, [] { return 0.0; }).id, -1);
    EXPECT_EQ(chooser.choose(std::vector<float>{1, nan, 2}, [] { return 0.0; }).id, 2) << "that one is not allowed";
}

constexpr std::int32_t kMask = 99, kEnd = 1;

/// Writes every mask from the left with `id`, one a forward. @return the forwards, clean ones included
int finish(BlockRun& run, std::int32_t id = 5) {
    int forwards = 0;
    for (; !run.finished(); ++forwards) {
        for (int i = 0, n = int(run.ids().size()); i < n; ++i)
            if (run.masked(i)) {
                run.write(i, id);
                break;
            }
        run.forwardDone();
    }
    return forwards;
}

TEST(BlockRun, APromptsRestStandsUnmaskedInTheFirstBlock) {
    for (const int block : {1, 2, 4, 16, 32, 64})
        for (int prompt = 1; prompt <= 2 * block + 1; ++prompt) {
            std::vector<std::int32_t> ids(std::size_t(prompt), 7);
            BlockRun run(ids, 3, {}, block, kMask);
            const int rest = prompt % block;
            EXPECT_EQ(run.first(), prompt - rest);
            EXPECT_EQ(run.block(), prompt / block);
            EXPECT_EQ(run.masks(), block - rest);
            for (int i = 0; i < block; ++i) EXPECT_EQ(run.ids()[std::size_t(i)], i < rest ? 7 : kMask);
            const int reached = BlockRun::reach(prompt, 3, block), blocks = (reached - run.first()) / block;
            EXPECT_EQ(finish(run), reached - prompt + blocks) << "a forward a token, and one clean forward a block";
            EXPECT_EQ(run.generated(), std::vector<std::int32_t>(3, 5));
        }
}

TEST(BlockRun, AMaskIdOfThePromptIsTextLikeAnyOther) {
    BlockRun run({3, kMask, kMask}, 4, {}, 4, kMask);
    EXPECT_EQ(run.masks(), 1);
    finish(run);
    EXPECT_THAT(run.generated(), ElementsAre(5, 5, 5, 5));
}

TEST(BlockRun, AMaskIdOfThePromptIsAMaskWhereTheRulesSaySo) {
    BlockRun run({3, 4, 3, kMask, 3, 4, 3, 4, kMask, kMask, 3, 4, 3}, 4, {}, 4, kMask, {true, true});
    EXPECT_EQ(run.promptBlocksEnd(), 0) << "the first block has a mask";
    EXPECT_EQ(run.masks(), 1);
    EXPECT_TRUE(run.masked(3));
    run.write(3, 5);
    run.forwardDone();
    run.forwardDone();
    EXPECT_EQ(run.block(), 1);
    EXPECT_TRUE(run.clean()) << "nothing of it is to be written";
    EXPECT_EQ(run.masks(), 0);
    run.forwardDone();
    EXPECT_EQ(run.block(), 2);
    EXPECT_TRUE(run.masked(0) && run.masked(1));
    EXPECT_EQ(run.masks(), 2);
    finish(run);
    EXPECT_THAT(run.generated(), ElementsAre(5, 5, 5, 5)) << "what was written in the prompt is not among it";
}

TEST(BlockRun, APromptIsReadUpToTheBlockOfItsFirstMask) {
    for (const int block : {1, 3, 7, 16, 64})
        for (int mask = 0; mask < 2 * block + 2; ++mask) {
            std::vector<std::int32_t> ids(std::size_t(2 * block + 2), 7);
            ids[std::size_t(mask)] = kMask;
            BlockRun run(ids, 3, {}, block, kMask, {true, true});
            EXPECT_EQ(run.promptBlocksEnd(), mask / block * block);
            EXPECT_EQ(run.first(), mask / block * block);
            EXPECT_TRUE(run.masked(mask % block));
            const int reached = BlockRun::reach(2 * block + 2, 3, block), blocks = (reached - run.first()) / block;
            EXPECT_EQ(finish(run), 1 + reached - (2 * block + 2) + blocks) << "a forward a mask, and one a block";
        }
}

TEST(BlockRun, EndsWithTheBlockThatHoldsAnEnd) {
    BlockRun run({3, 3}, 100, {kEnd}, 4, kMask);
    run.write(3, kEnd); // the last place first
    EXPECT_THAT(run.generated(), ElementsAre()) << "there is a gap before it";
    run.forwardDone();
    run.write(2, 6);
    EXPECT_THAT(run.generated(), ElementsAre(6, kEnd));
    run.forwardDone();
    EXPECT_TRUE(run.clean());
    EXPECT_FALSE(run.finished()) << "the clean forward comes first";
    run.forwardDone();
    EXPECT_TRUE(run.finished());
}

TEST(BlockRun, TextBehindAnEndIsLeftOut) {
    BlockRun run({3, 3}, 100, {kEnd}, 8, kMask);
    for (int i = 2; i < 8; ++i) run.write(i, i == 4 ? kEnd : 6);
    EXPECT_THAT(run.generated(), ElementsAre(6, 6, kEnd));
    EXPECT_EQ(run.ids()[7], 6) << "and stays in the block";
}

TEST(BlockRun, TextBehindAnEndStaysWhereTheRulesSaySo) {
    BlockRun run({3, 3}, 5, {kEnd}, 8, kMask, {false, false});
    for (int i = 2; i < 8; ++i) run.write(i, i == 4 ? kEnd : 6);
    EXPECT_THAT(run.generated(), ElementsAre(6, 6, kEnd, 6, 6)) << "up to as many as were asked for";
    run.forwardDone();
    run.forwardDone();
    EXPECT_TRUE(run.finished());
}

TEST(BlockRun, AnEndInThePromptEndsNothing) {
    BlockRun run({kEnd, kEnd}, 6, {kEnd}, 4, kMask);
    finish(run);
    EXPECT_EQ(run.generated().size(), 6u);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
