// The curves of hits of planted selections against pools that are filled block by block.
#include "core/serve/planted_hits.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <list>
#include <numeric>
#include <random>
#include <vector>

namespace kvscope::serve {
namespace KVSCOPE_TEST_FILE {

constexpr int kSelected = 16, kBlockTokens = 64;
constexpr double kDrift = 0.125; // two blocks of sixteen are new in each step

/// Share of hits of one stream in an LRU of `slots` blocks, without the steps in which it fills.
double hitsOf(int slots, int blocks) {
    constexpr int kSteps = 6000, kFill = 500;
    std::mt19937 random(7);
    std::vector<int> chosen(kSelected), others(std::size_t(blocks - kSelected));
    std::iota(chosen.begin(), chosen.end(), 0);
    std::iota(others.begin(), others.end(), kSelected);
    std::list<int> recent; // newest first
    int hits = 0, asked = 0;
    for (int step = 0; step < kSteps; ++step) {
        std::shuffle(chosen.begin(), chosen.end(), random);
        std::shuffle(others.begin(), others.end(), random);
        for (int i = 0; i < int(kDrift * kSelected); ++i) std::swap(chosen[std::size_t(i)], others[std::size_t(i)]);
        for (const int block : chosen) {
            const auto found = std::ranges::find(recent, block);
            if (step >= kFill) ++asked, hits += found != recent.end();
            if (found != recent.end()) recent.erase(found);
        }
        for (const int block : chosen) recent.push_front(block);
        if (recent.size() > std::size_t(slots)) recent.resize(std::size_t(slots));
    }
    return double(hits) / asked;
}

ServiceCosts plantedFor(int blocks) {
    ServiceCosts costs;
    costs.shape.selectedBlocks = kSelected, costs.shape.blockTokens = kBlockTokens;
    plantHits(costs, kDrift, {"", {{0, (blocks - 1) * kBlockTokens, 2 * kBlockTokens, "", 1}}, 1});
    return costs;
}

TEST(PlantedHits, AreThoseOfALeastRecentlyUsedPool) {
    for (const int blocks : {24, 64, 200}) {
        const ServiceCosts costs = plantedFor(blocks);
        for (const int slots : {16, 20, 32, 64, 128}) {
            SCOPED_TRACE(testing::Message() << blocks << " blocks, " << slots << " slots");
            const double want = hitsOf(slots, blocks);
            EXPECT_NEAR(costs.lruHits.at(double(kSelected) / slots), want, 0.012);
            EXPECT_NEAR(costs.partitionHits.at(double(slots) / kSelected), want, 0.012);
        }
    }
}

TEST(PlantedHits, WeightContextsByTheAnswersAndKeepThePoolThatIsTooSmall) {
    ServiceCosts costs;
    costs.shape.selectedBlocks = kSelected, costs.shape.blockTokens = kBlockTokens;
    const Curve before = costs.lruHits;
    // Of 100 answered tokens 25 have a context that fits into 32 slots, and 75 one of which a sixth of the rest does.
    plantHits(costs, kDrift, {"", {{0, 64, 25, "", 1}, {0, 112 * 64 - 37, 75, "", 2}}, 1});
    EXPECT_NEAR(costs.lruHits.at(0.5), 1 - kDrift * (1 - (0.25 + 0.75 / 6)), 1e-3);
    EXPECT_EQ(costs.lruHits.at(1.5), before.at(1.5));
    EXPECT_EQ(costs.drift, kDrift);
    EXPECT_EQ(ServiceCosts::fromJson(costs.toJson()).partitionHits.points, costs.partitionHits.points);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::serve
