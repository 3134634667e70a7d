// The parts of a tuning that need no long run: the interval, the order of runs, the candidates and their memory.
#include "profiler/tune/tune_text.h"

#include "base/error.h"
#include "core/session/decode_session.h"
#include "core/trace/trace_sink.h"

#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// R: binom::binom.confint(x, n, method = "wilson"), and worked out by hand.
TEST(Wilson, IntervalsAreThoseOfTheTables) {
    const auto near = [](const ShareInterval& interval, double low, double high) {
        EXPECT_NEAR(interval.low, low, 5e-4);
        EXPECT_NEAR(interval.high, high, 5e-4);
    };
    near(wilsonInterval(10, 10), 0.7225, 1);
    near(wilsonInterval(0, 10), 0, 0.2775);
    near(wilsonInterval(9, 10), 0.5958, 0.9821);
    near(wilsonInterval(81, 263), 0.2553, 0.3662); // Newcombe (1998), table I
    near(wilsonInterval(0, 0), 0, 1);
    EXPECT_TRUE(std::isnan(CountedShare{}.value()));
}

/// Every bound of the interval is a p at which the score test is at its limit: (x/n - p)^2 = z^2 p (1 - p) / n.
TEST(Wilson, BoundsSolveTheScoreEquation) {
    const double z = 1.959963984540054;
    for (const auto& [good, all] : {std::pair{1, 7}, {5, 9}, {300, 1000}, {8, 8}})
        for (const double p : {wilsonInterval(good, all).low, wilsonInterval(good, all).high})
            EXPECT_NEAR(std::pow(double(good) / all - p, 2), z * z * p * (1 - p) / all, 1e-12);
}

/// A tuning of three families, whose truth is given: what is run, and how it is judged, is up to the rules.
class TunedOrder : public ::testing::Test {
protected:
    struct Truth {
        const char* method;
        int budget;
        double predictedMs, measuredMs;
        int good; // of 10
    };
    TuneResult run(const std::vector<Truth>& truth, int runs, int more) {
        TuneResult result;
        result.request.runs = runs;
        result.request.more = more;
        for (const Truth& each : truth) {
            TuneRow row;
            row.candidate.method = each.method;
            row.candidate.blockSize = 64;
            row.candidate.budgetTokens = each.budget;
            row.predicted.stepNs = each.predictedMs * 1e6;
            result.rows.push_back(row);
        }
        while (const auto next = nextRow(result)) {
            TuneMeasurement measured;
            measured.quality = {truth[*next].good, 10};
            measured.sums.steps = 10;
            measured.sums.tokens = 10;
            measured.sums.ns = truth[*next].measuredMs * 1e7;
            result.rows[*next].measured = measured;
            result.order.push_back(*next);
            judge(result);
        }
        return result;
    }
};

TEST_F(TunedOrder, TheBestPredictedAreRunAndTheFastestGoodOneIsChosen) {
    const TuneResult result =
        run({{"a", 256, 1, 3, 10}, {"a", 512, 2, 2, 10}, {"b", 256, 3, 1, 2}, {"b", 512, 4, 1, 10}}, 3, 9);
    EXPECT_THAT(result.order, ElementsAre(0u, 1u, 2u)) << "one of the three is good enough";
    EXPECT_EQ(result.recommended, 1u) << "the faster of the good ones, although predicted later";
    EXPECT_THAT(tuneVerdict(result), HasSubstr("predicted in place 2; the first predicted, a, was slower: 3.000 ms"));
    EXPECT_FALSE(result.rows[0].front) << "as good and slower";
    EXPECT_TRUE(result.rows[1].front);
    EXPECT_TRUE(result.rows[2].front) << "fastest";
}

TEST_F(TunedOrder, BelowTheFloorTheLargestBudgetsComeNextAndSmallerOnesAreSpared) {
    const TuneResult result = run({{"a", 128, 1, 1, 0},
                                   {"a", 256, 2, 2, 0},
                                   {"b", 128, 3, 3, 0},
                                   {"b", 256, 4, 4, 9},
                                   {"a", 512, 5, 5, 3},
                                   {"c", 512, 6, 9, 10},
                                   {"b", 512, 7, 7, 10},
                                   {"c", 256, 8, 8, 10}},
                                  2, 9);
    // a's largest misses the floor; c's reaches it, and takes 9 ms, than which the others are predicted to be faster;
    // b's largest is faster, so that c's smaller budget, predicted at 8 ms, is not tried; b's smaller ones are.
    EXPECT_THAT(result.order, ElementsAre(0u, 1u, 4u, 5u, 6u, 3u, 2u));
    EXPECT_EQ(result.recommended, 3u);
    EXPECT_THAT(tuneVerdict(result), HasSubstr("the first predicted, a, misses the floor (0/10"));
    EXPECT_THAT(run({{"a", 128, 1, 1, 0}, {"a", 256, 2, 2, 0}}, 1, 0).order, ElementsAre(0u))
        << "no more were asked for";
    const TuneResult none = run({{"a", 128, 1, 1, 8}, {"a", 256, 2, 2, 8}}, 9, 9);
    EXPECT_FALSE(none.recommended);
    EXPECT_THAT(tuneVerdict(none), HasSubstr("Nothing is recommended: of 2 that were run, none reaches the floor"));
}

TEST_F(TunedOrder, SureAsksTheLowerEndOfTheInterval) {
    TuneResult result = run({{"a", 128, 1, 1, 10}}, 1, 0);
    EXPECT_TRUE(result.recommended);
    result.request.sure = true;
    judge(result);
    EXPECT_FALSE(result.recommended);
    result.request.floor = 0.7;
    judge(result);
    EXPECT_TRUE(result.recommended);
}

TEST(TuneCandidates, TakeTheMemoryThatSessionsDeclareAndNoMore) {
    const auto model = Model::load("nosa-tiny");
    TuneLoad load{900, 16, 2, 0, Backend::Cpu};
    std::vector<LeftOut> leftOut;
    const auto whole = candidatesOf(*model, {{"infllmv2"}, {448}, {}}, load, leftOut);
    ASSERT_EQ(whole.size(), 1u);
    EXPECT_FALSE(whole[0].offload) << "no limit: nothing leaves the device";
    load.deviceBytes = whole[0].deviceBytes - 1;
    const auto less = candidatesOf(*model, {{"infllmv2"}, {448}, {}}, load, leftOut);
    ASSERT_EQ(less.size(), 1u);
    EXPECT_TRUE(less[0].travels);
    ASSERT_TRUE(less[0].deviceSlots);
    EXPECT_LE(less[0].deviceBytes, load.deviceBytes);
    // One slot more for every sequence, offloaded layer and KV head would not fit.
    const ModelConfig& config = model->config();
    EXPECT_GT(less[0].deviceBytes + less[0].blockBytes * config.layers * config.kvHeads * load.batch, load.deviceBytes);
    EXPECT_EQ(less[0].spec.budgetBlocks() * 64, 448);
    EXPECT_TRUE(leftOut.empty());
    // The session has these slots.
    NullSink sink;
    SessionOptions options = sessionOf(less[0], {});
    options.maxNewTokens = 16;
    const DecodeSession session(model, {std::vector<std::int32_t>(900, 5), std::vector<std::int32_t>(900, 6)}, options,
                                sink);
    EXPECT_EQ(session.runInfo().deviceSlots, *less[0].deviceSlots);
}

TEST(TuneCandidates, BudgetsAndBlockSizesKeepTheirTokens) {
    const auto model = Model::load("nosa-tiny");
    std::vector<LeftOut> leftOut;
    TuneGrid grid{{"streaming", "quest", "double-sparsity", "h2o"}, {512}, {32, 64}};
    for (const TuneCandidate& candidate : candidatesOf(*model, grid, {2000, 16, 1, 0, Backend::Cpu}, leftOut)) {
        if (candidate.method == "streaming" || candidate.method == "quest") {
            EXPECT_EQ(candidate.budgetTokens, 512) << candidate.name();
        }
        if (candidate.method == "h2o") {
            EXPECT_EQ(candidate.values.integer("heavy_tokens") + candidate.values.integer("recent_tokens"), 512);
        }
        if (candidate.method == "double-sparsity") {
            EXPECT_EQ(candidate.values.integer("heavy_tokens"), 512);
        }
    }
    EXPECT_THROW(candidatesOf(*model, {{"quest"}, {4096}, {}}, {2000, 16, 1, 0, Backend::Cpu}, leftOut), Error);
    EXPECT_THAT(leftOut.back().reason, HasSubstr("covers the whole prompt"));
}

TEST(TunePrompts, NeedlesAndDocumentsHaveTheirLengthAndAnswers) {
    const auto model = Model::load("nosa-tiny");
    const PromptSet needles = promptSet(*model, "needles", {400, 3, 7}),
                    text = promptSet(*model, "document", {400, 2, 7});
    ASSERT_EQ(needles.prompts.size(), 3u);
    EXPECT_TRUE(needles.hasAnswers());
    EXPECT_FALSE(text.hasAnswers());
    for (const TunePrompt& prompt : needles.prompts) {
        EXPECT_NEAR(double(prompt.ids.size()), 400, 2);
        EXPECT_THAT(model->tokenizer().decode(prompt.ids), HasSubstr(prompt.answer)) << "the text says it";
    }
    EXPECT_NE(needles.prompts[0].ids, needles.prompts[1].ids);
    EXPECT_TRUE(answers(" 79930. And", "79930"));
    EXPECT_FALSE(answers("7993 0", "79930"));
    EXPECT_FALSE(answers("", "7"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
