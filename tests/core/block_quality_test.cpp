// Needles and the bound on perplexity of a block-diffusion model: what batches do not change, and what is known.
#include "core/eval/block_quality.h"

#include "core/eval/eval.h"
#include "core/prompt/prompts.h"
#include "tests/core/diffusion_model.h"
#include "tests/support/refusal.h"

#include <cmath>
#include <gtest/gtest.h>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::losaTiny;
using test::randomSdar;
using test::sdarConfig;
using test::somePrompt;

SessionOptions oneThread() {
    SessionOptions options;
    options.method = "full";
    options.threads = 1;
    return options;
}

QualityBatch decode(const QualityCell& cell, int first, int count, std::uint64_t seed) {
    return decodeNeedles(losaTiny(), oneThread(), cell,
                         needlePrompts(losaTiny()->tokenizer(), cell.task, cell.context, first, count, seed));
}

TEST(BlockQuality, PromptsOfABatchAnswerAsTheyDoAlone) {
    KVSCOPE_NEEDS_LOSA_TINY();
    for (const NeedleTask task : {NeedleTask::PassKey, NeedleTask::FourKeys})
        for (const Pace pace : {Pace::Slow, Pace::Fast}) {
            const QualityCell cell{task, 400, pace, "losa", {{"budget", "64"}}};
            const QualityBatch all = decode(cell, 0, 3, 7);
            ASSERT_EQ(all.generated.size(), 3u);
            EXPECT_GT(all.density, 0);
            EXPECT_LT(all.density, 1);
            std::int64_t forwards = 0, blocks = 0, right = 0;
            for (int number = 0; number < 3; ++number) {
                const QualityBatch one = decode(cell, number, 1, 7);
                EXPECT_EQ(one.generated[0], all.generated[std::size_t(number)]);
                EXPECT_EQ(one.right[0], all.right[std::size_t(number)]);
                forwards += one.forwards, blocks += one.blocks, right += one.right[0];
            }
            EXPECT_EQ(all.forwards, forwards);
            EXPECT_EQ(all.blocks, blocks);
            EXPECT_GE(right, 2) << "the model finds needles in 400 tokens";
            if (pace == Pace::Fast) {
                EXPECT_LT(double(forwards) / double(blocks), 16);
            }
        }
}

TEST(BlockQuality, SlowDecodingWritesATokenAForward) {
    KVSCOPE_NEEDS_LOSA_TINY();
    const QualityCell cell{NeedleTask::PassKey, 300, Pace::Slow, "full", {}};
    const QualityBatch batch = decode(cell, 0, 16, 1);
    EXPECT_TRUE(std::isnan(batch.density));
    // Each block takes a forward for every mask and a clean one. The lengths of the prompts have nearly all remainders
    // by 16.
    std::int64_t masks = 0;
    std::set<int> residues;
    for (int number = 0; number < 16; ++number) {
        const QualityBatch one = decode(cell, number, 1, 1);
        masks += one.forwards - one.blocks;
        residues.insert(int(one.forwards - one.blocks) % 16);
    }
    EXPECT_EQ(batch.forwards - batch.blocks, masks);
    EXPECT_GE(residues.size(), 8u);
}

TEST(BlockQuality, ThePassKeyIsSaidTwiceAndAskedFor) {
    const auto model = Model::load(kDefaultModel);
    NeedleOptions options;
    options.tokens = 500, options.needles = 1, options.depth = 0.3, options.passKey = true;
    const NeedlePrompt prompt = makeNeedlePrompt(model->tokenizer(), options);
    EXPECT_EQ(prompt.answer.size(), 5u);
    EXPECT_NE(
        prompt.text.find("The pass key is " + prompt.answer + ". Remember it. " + prompt.answer + " is the pass key."),
        std::string::npos);
    EXPECT_TRUE(prompt.text.ends_with("What is the pass key? The pass key is "));
}

TEST(BlockQuality, TheBoundIsASumOverBlocks) {
    for (const int block : {4, 16}) {
        const auto model = randomSdar(sdarConfig(block));
        const auto text = somePrompt(200, 2, 90);
        const BoundSum all = boundOnBlocks(model, oneThread(), text, 70, 0, 3, 5);
        EXPECT_EQ(all.terms, 3 * block);
        BoundSum parts;
        for (int j = 0; j < 3; ++j) {
            const BoundSum one = boundOnBlocks(model, oneThread(), text, 70, j, 1, 5);
            EXPECT_EQ(one.terms, block);
            parts.nll += one.nll, parts.terms += one.terms;
        }
        EXPECT_NEAR(all.nll, parts.nll, 1e-4 * all.nll);
        EXPECT_NE(boundOnBlocks(model, oneThread(), text, 70, 0, 3, 6).nll, all.nll) << "other masks";
        // Random weights know nothing: the bound is near that of guessing among the 88 to 95 ids.
        EXPECT_GT(all.perplexity(), 40);
        EXPECT_LT(all.perplexity(), 4000);
        EXPECT_TRUE(std::isnan(BoundSum().perplexity()));
    }
}

TEST(BlockQuality, TheBoundOfPagesOfEverythingIsThatOfEverything) {
    const auto model = randomSdar(sdarConfig(8));
    const auto text = somePrompt(200, 2, 90);
    auto options = oneThread();
    options.method = "full";
    const double full = boundOnBlocks(model, options, text, 128, 0, 4, 5).nll;
    options.method = "quest";
    options.settings = {{"budget", "128"}, {"first", "sparse"}};
    EXPECT_NEAR(boundOnBlocks(model, options, text, 128, 0, 4, 5).nll, full, 1e-4 * full);
    options.settings = {{"budget", "16"}, {"first", "sparse"}};
    EXPECT_GT(std::abs(boundOnBlocks(model, options, text, 128, 0, 4, 5).nll - full), 1e-3) << "it reads less";
}

TEST(BlockQuality, TheTrainedModelKnowsText) {
    KVSCOPE_NEEDS_LOSA_TINY();
    auto options = oneThread();
    options.method = "full";
    const auto text = evalText(losaTiny()->tokenizer(), tokensOfBound(*losaTiny(), 512, 8));
    const double bound = boundOnBlocks(losaTiny(), options, text, 512, 0, 8, 1).perplexity();
    EXPECT_GT(bound, 3);
    EXPECT_LT(bound, 120) << "its README has 22.7 on held-out text";
}

TEST(BlockQuality, WhatHasNoBlocksIsRefused) {
    const auto model = Model::load(kDefaultModel);
    const QualityCell cell{NeedleTask::PassKey, 300, Pace::Slow, "full", {}};
    EXPECT_NE(test::refusalOf([&] { decodeNeedles(model, oneThread(), cell, {}); }, "losa-tiny"), "");
    const auto sdar = randomSdar(sdarConfig(8));
    const auto text = somePrompt(60, 2, 90);
    EXPECT_NE(test::refusalOf([&] { boundOnBlocks(sdar, oneThread(), text, 48, 0, 2, 1); }, "60 tokens"), "");
    EXPECT_NE(test::refusalOf([&] { boundOnBlocks(sdar, oneThread(), text, 4, 0, 1, 1); }, "text"), "");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
