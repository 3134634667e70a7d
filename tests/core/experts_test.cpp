// Choice among experts against numbers worked out by hand.
#include "core/engine/cpu/cpu_feed_forward.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

std::vector<ExpertChoice> choose(const ExpertConfig& config, const std::vector<float>& logits,
                                 const std::vector<float>& bias = {}) {
    std::vector<ExpertChoice> chosen;
    chooseExperts(config, logits.data(), bias.empty() ? nullptr : bias.data(), chosen);
    std::sort(chosen.begin(), chosen.end(), [](const auto& a, const auto& b) { return a.expert < b.expert; });
    return chosen;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST(Experts, SoftmaxWeightsAreThoseOfAllExperts) {
    ExpertConfig config;
    config.count = 4;
    config.used = 2;
    config.scale = 1.5f;
    const auto chosen = choose(config, {0, 2, 1, -1});
    const double sum = std::exp(0.) + std::exp(2.) + std::exp(1.) + std::exp(-1.);
    ASSERT_EQ(chosen.size(), 2u);
    EXPECT_EQ(chosen[0].expert, 1);
    EXPECT_EQ(chosen[1].expert, 2);
    EXPECT_NEAR(chosen[0].weight, 1.5 * std::exp(2.) / sum, 1e-6);
    config.normalise = true;
    EXPECT_NEAR(choose(config, {0, 2, 1, -1})[1].weight, 1.5 * std::exp(1.) / (std::exp(1.) + std::exp(2.)), 1e-6);
}

TEST(Experts, OnlyTheBestGroupsTakePart) {
    ExpertConfig config;
    config.count = 6;
    config.used = 2;
    config.groups = 3;
    config.groupsUsed = 1;
    // The best expert of all lies in group 1, whose best it is; by the sum of two, group 2 wins.
    const std::vector<float> logits{0, 0, 3, -4, 2, 2.5f};
    EXPECT_EQ(choose(config, logits)[0].expert, 2);
    EXPECT_EQ(choose(config, logits)[1].expert, 3);
    config.groupScore = GroupScore::BestTwo;
    config.score = ExpertScore::Sigmoid;
    const auto chosen = choose(config, logits);
    EXPECT_EQ(chosen[0].expert, 4);
    EXPECT_EQ(chosen[1].expert, 5);
    EXPECT_NEAR(chosen[0].weight, sigmoid(2), 1e-6);
}

TEST(Experts, TheChoiceBiasChoosesButDoesNotWeigh) {
    ExpertConfig config;
    config.count = 3;
    config.used = 1;
    config.score = ExpertScore::Sigmoid;
    const auto chosen = choose(config, {1, 0, -1}, {0, 0, 5});
    ASSERT_EQ(chosen.size(), 1u);
    EXPECT_EQ(chosen[0].expert, 2);
    EXPECT_NEAR(chosen[0].weight, sigmoid(-1), 1e-6);
}

TEST(Experts, EqualScoresTakeTheLowerExpert) {
    ExpertConfig config;
    config.count = 4;
    config.used = 2;
    const auto chosen = choose(config, {1, 1, 1, 1});
    EXPECT_EQ(chosen[0].expert, 0);
    EXPECT_EQ(chosen[1].expert, 1);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
