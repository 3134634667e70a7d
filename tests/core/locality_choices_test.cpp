// What LoSA decides for a block: how much tokens changed, which are active, which pages their queries choose.
#include "core/diffusion/locality.h"

#include <cmath>
#include <gmock/gmock.h>
#include <limits>
#include <random>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::ElementsAre;

TEST(ChangeScore, IsTheMeanSquareOfTheDifference) {
    EXPECT_FLOAT_EQ(changeScore(std::vector<float>{1, 2, 3, 4}, std::vector<float>{1, 0, 3, 7}), (4 + 9) / 4.f);
}

TEST(ChangeScore, OfTheSameNumbersComputedTwiceIsZero) {
    const std::vector<float> before{100, -50, 25};
    std::vector<float> now = before;
    now[0] = std::nextafter(now[0], 200.f);
    EXPECT_EQ(changeScore(now, before), 0.f);
    now[0] = 100.01f;
    EXPECT_GT(changeScore(now, before), 0.f);
}

TEST(ActiveTokens, AreTheMostChangedAndTheLowerOfEqualOnes) {
    DenoiseOptions options;
    options.active = 3;
    EXPECT_EQ(activeTokens(options, std::vector<float>{0, 2, 0, 5, 0}), 0b01011u);
    options.active = 9;
    EXPECT_EQ(activeTokens(options, std::vector<float>{0, 0}), 0b11u) << "all where there are fewer";
    options.active = 0;
    EXPECT_EQ(activeTokens(options, std::vector<float>{1, 1}), 0u);
}

TEST(ActiveTokens, OfAThresholdAreAllThatReachIt) {
    DenoiseOptions options;
    options.active = 1;
    options.activeThreshold = 2;
    EXPECT_EQ(activeTokens(options, std::vector<float>{2, 1, 3}), 0b101u);
    options.activeThreshold = 0;
    EXPECT_EQ(activeTokens(options, std::vector<float>{0, 0, 0}), 0b111u);
}

TEST(ActiveTokens, FillABlockOf64) {
    DenoiseOptions options;
    options.active = 64;
    EXPECT_EQ(activeTokens(options, std::vector<float>(64, 1.f)), allTokens(64));
    EXPECT_EQ(allTokens(64), ~std::uint64_t(0));
    EXPECT_EQ(allTokens(1), 1u);
}

TEST(ChoosePages, TakesTheBestAndTheLowerOfEqualOnes) {
    std::vector<std::int32_t> order;
    std::vector<std::uint8_t> chosen(5);
    choosePages(std::vector<float>{1, 3, 2, 3, 3}, 2, chosen, order);
    EXPECT_THAT(chosen, ElementsAre(0, 1, 0, 1, 0));
    choosePages(std::vector<float>{9, 0, 0, 0, 0}, 1, chosen, order); // another query's come on top
    EXPECT_THAT(chosen, ElementsAre(1, 1, 0, 1, 0));
    choosePages(std::vector<float>{0, 0}, 7, chosen, order);
    EXPECT_THAT(chosen, ElementsAre(1, 1, 0, 1, 0));
}

TEST(ChoosePages, AgreesWithASort) {
    std::mt19937 random(5);
    std::vector<std::int32_t> order;
    for (int trial = 0; trial < 200; ++trial) {
        const std::size_t pages = 1 + random() % 40;
        const int wanted = 1 + int(random() % 12);
        std::vector<float> scores(pages);
        for (float& score : scores) score = float(random() % 7); // many are equal
        std::vector<std::size_t> sorted(pages);
        for (std::size_t i = 0; i < pages; ++i) sorted[i] = i;
        std::stable_sort(sorted.begin(), sorted.end(),
                         [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
        std::vector<std::uint8_t> want(pages), chosen(pages);
        for (std::size_t i = 0; i < std::min(pages, std::size_t(wanted)); ++i) want[sorted[i]] = 1;
        choosePages(scores, wanted, chosen, order);
        EXPECT_EQ(chosen, want);
    }
}

TEST(ChoosePages, TakesNoNumberForTheWorst) {
    std::vector<std::int32_t> order;
    std::vector<std::uint8_t> chosen(3);
    choosePages(std::vector<float>{std::numeric_limits<float>::quiet_NaN(), 1, 2}, 2, chosen, order);
    EXPECT_THAT(chosen, ElementsAre(0, 1, 1));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
