// Where the elements of arrays of two to four dimensions lie, counted one by one; lengths and indices that are refused.
#include "base/extents.h"

#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <vector>

using namespace kvscope;

namespace KVSCOPE_TEST_FILE {

enum class Layer : int {};
enum class KvHead : int {};
using OfHeads = Extents<Layer, KvHead, int>;

template <class View, class... Index>
concept Takes = requires(const View& view, Index... index) {
    view.offset(index...);
};
static_assert(Takes<OfHeads, Layer, KvHead, int>);
static_assert(!Takes<OfHeads, KvHead, Layer, int>, "ids cannot be swapped");
static_assert(!Takes<OfHeads, int, KvHead, int>, "a number is not an id");
static_assert(!Takes<OfHeads, Layer, KvHead, KvHead>, "an id is not a number");
static_assert(!Takes<OfHeads, Layer, KvHead>, "every dimension has an index");
static_assert(OfHeads(2, 3, 4).offset(Layer(1), KvHead(2), 3) == 23);

TEST(Extents, ElementsLieInTheOrderOfNestedLoops) {
    const Extents<int, int, int, int> view(3, 1, 4, 5);
    std::size_t next = 0;
    for (int a = 0; a < 3; ++a)
        for (int b = 0; b < 1; ++b)
            for (int c = 0; c < 4; ++c)
                for (int d = 0; d < 5; ++d) EXPECT_EQ(view.offset(a, b, c, d), next++);
    EXPECT_EQ(view.size(), next);
    EXPECT_EQ(view.length(2), 4);
}

TEST(Extents, APartIsWhatLiesUnderTheOuterIndices) {
    const OfHeads view(2, 3, 4);
    std::vector<int> values(view.size());
    std::iota(values.begin(), values.end(), 0);
    const auto layer = view.part(std::span(values), Layer(1));
    EXPECT_EQ(std::vector(layer.begin(), layer.end()), (std::vector{12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23}));
    const auto head = view.part(std::span(values), Layer(1), KvHead(2));
    EXPECT_EQ(std::vector(head.begin(), head.end()), (std::vector{20, 21, 22, 23}));
}

TEST(Extents, MemoryKnownByAPointerHasPlacesToo) {
    const OfHeads view(2, 3, 4);
    EXPECT_EQ(view.first(Layer(1)), 12u);
    EXPECT_EQ(view.first(Layer(1), KvHead(2)), 20u);
    EXPECT_EQ(view.under(0), 12u); // of one layer
    EXPECT_EQ(view.under(1), 4u);
    EXPECT_EQ(view.under(2), 1u);
}

TEST(Extents, PlacesBeyondThirtyTwoBitsAreRight) {
    const Extents<int, int, int> view(70000, 70000, 3);
    EXPECT_EQ(view.size(), 14'700'000'000u);
    EXPECT_EQ(view.offset(69999, 69999, 2), 14'699'999'999u);
}

TEST(Extents, LengthsThatNoMemoryHasAreRefused) {
    constexpr int most = std::numeric_limits<int>::max();
    EXPECT_THROW((Extents<int, int>(3, -1)), std::invalid_argument);
    EXPECT_THROW((Extents<int, int>(0, -1)), std::invalid_argument);
    EXPECT_EQ((Extents<int, int>(most, most).size()), 4'611'686'014'132'420'609u);
    EXPECT_THROW((Extents<int, int, int>(most, most, 3)), std::length_error);
    EXPECT_THROW((Extents<int, int, int>(3, most, most)), std::length_error);
    EXPECT_EQ((Extents<int, int, int>(most, most, 0).size()), 0u); // an empty array has room everywhere
    EXPECT_EQ((Extents<int, int, int>(0, most, most).size()), 0u);
}

#if defined(GTEST_HAS_DEATH_TEST) && !defined(NDEBUG)
TEST(ExtentsDeathTest, AnIndexPastItsLengthIsOurBug) {
    const Extents<int, int> view(2, 3);
    EXPECT_DEATH((void)view.offset(0, 3), "index"); // lies in the array, yet in another row
    EXPECT_DEATH((void)view.offset(-1, 0), "index");
}
#endif

} // namespace KVSCOPE_TEST_FILE
