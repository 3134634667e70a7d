// The pool of slots that all rows share forgets blocks in the order of their last selection.
#include "core/serve/slot_pool.h"

#include "core/serve/random_draws.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <vector>

namespace kvscope::serve {
namespace KVSCOPE_TEST_FILE {

TEST(SlotPool, ForgetsTheLeastRecentlySelectedAndNeverThePresentLayer) {
    Draws draws(3);
    SlotPool pool;
    std::vector<PooledBlock> recent; // the last one is the oldest
    int missed = 0, expected = 0;
    for (int step = 0; step < 3000; ++step) {
        if (draws.below(50) == 0) {
            const int row = int(draws.below(3));
            pool.release(row);
            recent.erase(std::remove_if(recent.begin(), recent.end(), [&](const auto& b) { return b.row == row; }),
                         recent.end());
        }
        const int layer = int(draws.below(4));
        const std::int64_t slots = 20 + std::int64_t(draws.below(30));
        std::vector<PooledBlock> wanted;
        for (int row = 0; row < 3; ++row)
            for (int block = 0; block < 12; ++block)
                if (draws.below(3) == 0) wanted.push_back({row, layer, int(draws.below(2)), block});
        missed += int(pool.select(wanted, slots).size());
        std::vector<PooledBlock> hits, misses;
        for (const PooledBlock& block : wanted) {
            const auto found = std::find(recent.begin(), recent.end(), block);
            (found == recent.end() ? misses : hits).push_back(block);
            if (found != recent.end()) recent.erase(found);
        }
        expected += int(misses.size());
        for (const auto* list : {&hits, &misses})
            for (const PooledBlock& block : *list) recent.insert(recent.begin(), block);
        if (std::int64_t(recent.size()) > slots) recent.resize(std::size_t(slots));
        ASSERT_EQ(missed, expected) << step;
        ASSERT_EQ(pool.used(), std::int64_t(recent.size()));
        for (const PooledBlock& block : wanted) EXPECT_TRUE(std::int64_t(wanted.size()) > slots || pool.holds(block));
    }
    EXPECT_GT(missed, 1000);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::serve
