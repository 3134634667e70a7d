// Ids that a call cannot swap, and the loops over them.
#include "base/extents.h"
#include "base/ids.h"

#include <cstdint>
#include <gtest/gtest.h>
#include <iterator>
#include <type_traits>
#include <vector>

using namespace kvscope;

namespace KVSCOPE_TEST_FILE {

// What a function takes that has two ids and a number.
using Call = void (*)(LayerId layer, RowId row, int tokens);
static_assert(std::is_invocable_v<Call, LayerId, RowId, int>);
static_assert(!std::is_invocable_v<Call, RowId, LayerId, int>, "two ids cannot be swapped");
static_assert(!std::is_invocable_v<Call, LayerId, int, RowId>, "an id and a number cannot be swapped");
static_assert(!std::is_invocable_v<Call, int, int, int>, "a number is no id");
static_assert(!std::is_convertible_v<BlockId, std::int32_t>, "a block's id is no number of tokens");
static_assert(!std::is_constructible_v<LayerId, RowId>, "no id is made of an id of another kind");

// The place of a KV head of a layer of a row.
using Heads = Extents<RowId, LayerId, KvHeadId>;
template <class... Index>
concept HasPlace = requires(const Heads& heads, Index... index) {
    heads.offset(index...);
};
static_assert(HasPlace<RowId, LayerId, KvHeadId>);
static_assert(!HasPlace<LayerId, RowId, KvHeadId>);
static_assert(!HasPlace<RowId, KvHeadId, LayerId>);
static_assert(!HasPlace<int, LayerId, KvHeadId>);

static_assert(Id<LayerId> && Id<RowId> && Id<KvHeadId> && Id<BlockId>);
enum class Wide : std::int64_t {};
enum Plain : int {};
static_assert(!Id<int> && !Id<Wide> && !Id<Plain>);
static_assert(std::forward_iterator<IdRange<LayerId>::Iterator>);
static_assert(index(LayerId{3}) == 3 && next(BlockId{0}) == BlockId{1});

TEST(Ids, ALoopVisitsEachIdOnce) {
    std::vector<int> visited;
    for (const LayerId layer : idsUpTo<LayerId>(3)) visited.push_back(int(layer));
    EXPECT_EQ(visited, (std::vector{0, 1, 2}));
    for (const RowId row : idsUpTo<RowId>(0)) ADD_FAILURE() << "there is no row " << int(row);
}

TEST(Ids, ALoopCanBeginAtAnyId) {
    std::vector<KvHeadId> visited;
    for (const KvHeadId head : IdRange(KvHeadId{2}, KvHeadId{4})) visited.push_back(head);
    EXPECT_EQ(visited, (std::vector{KvHeadId{2}, KvHeadId{3}}));
}

TEST(Ids, AnIdIsThePlaceOfItsElement) {
    const Heads heads(2, 3, 4);
    std::vector<int> counted(heads.size());
    for (const RowId row : idsUpTo<RowId>(2))
        for (const LayerId layer : idsUpTo<LayerId>(3))
            for (const KvHeadId head : idsUpTo<KvHeadId>(4)) ++counted[heads.offset(row, layer, head)];
    EXPECT_EQ(counted, std::vector(heads.size(), 1));
    EXPECT_EQ(heads.first(RowId{1}, LayerId{2}), heads.offset(RowId{1}, LayerId{2}, KvHeadId{0}));
}

#if defined(GTEST_HAS_DEATH_TEST) && !defined(NDEBUG)
TEST(IdsDeathTest, AnIdBelowZeroIsOurBug) { EXPECT_DEATH((void)index(BlockId{-1}), "id"); }
#endif

} // namespace KVSCOPE_TEST_FILE
