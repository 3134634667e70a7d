// Which slots the engine's policies give up first.
#include "core/cache/cache_policy.h"

#include <gmock/gmock.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using testing::ElementsAre;

std::vector<std::int32_t> orderOf(const char* policy, std::vector<std::int32_t> blocks,
                                  std::vector<std::int32_t> lastUse) {
    std::vector<std::int32_t> order;
    findCachePolicy(policy).order(blocks, lastUse, order);
    return order;
}

TEST(CachePolicy, KeepSelectedTakesTheNextSlotWhateverItHolds) {
    EXPECT_THAT(orderOf("keep-selected", {7, -1, 3, 9}, {4, -1, 2, 4}), ElementsAre(0, 1, 2, 3));
}

TEST(CachePolicy, LruTakesEmptySlotsThenTheOldestBlocksOfEqualOnesTheLowest) {
    EXPECT_THAT(orderOf("lru", {7, -1, 3, 9, -1, 5}, {4, -1, 4, 2, -1, 4}), ElementsAre(1, 4, 3, 2, 5, 0));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
