// Arrays that are subscripted by ids and numbers, and sizes that are products of dimensions.
#include "base/elements.h"
#include "base/indexed.h"

#include <array>
#include <concepts>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <type_traits>
#include <vector>

using namespace kvscope;

namespace KVSCOPE_TEST_FILE {

template <class Array, class At>
concept Takes = requires(Array array, At at) {
    array[at];
};

// An id of one kind finds nothing among the elements of another kind, and where ids are numbers, any number does.
static_assert(Takes<PerLayer<float>, LayerId>);
static_assert(!Takes<PerLayer<float>, RowId>);
static_assert(!Takes<Numbered<float>, LayerId>);
static_assert(Takes<Numbered<float>, int>);
static_assert(Takes<Numbered<float>, std::ptrdiff_t>);
static_assert(!Takes<IndexedSpan<LayerId, float>, KvHeadId>);
static_assert(!std::is_convertible_v<std::vector<int>, Numbered<int>>); // a reference would be to a copy

TEST(IndexedTest, ElementsAreFoundByTheirIds) {
    PerLayer<int> layers(3, 7);
    layers[LayerId{1}] = 5;
    std::vector<int> seen;
    for (const LayerId layer : layers.ids()) seen.push_back(layers[layer]);
    EXPECT_EQ(seen, (std::vector{7, 5, 7}));
    layers.resize(4);
    EXPECT_EQ(layers.count(), 4);
    EXPECT_EQ(layers[LayerId{3}], 0);
    layers = {1, 2};
    EXPECT_EQ(layers[LayerId{1}], 2);
}

TEST(IndexedTest, NegativeLengthsAreRefused) {
    Numbered<int> numbers;
    EXPECT_THROW(numbers.resize(-1), std::invalid_argument);
    EXPECT_THROW(numbers.assign(-2, 1), std::invalid_argument);
    EXPECT_THROW(Numbered<int>(-1), std::invalid_argument);
    EXPECT_TRUE(numbers.empty());
}

TEST(IndexedTest, TwoNumbersAreALengthAndAValue) {
    const Numbered<int> threes(2, 3);
    EXPECT_EQ(threes, (std::vector{3, 3}));
    Numbered<int> assigned;
    assigned.assign(2, 3);
    EXPECT_EQ(assigned, threes);
    EXPECT_EQ((Numbered<int>{2, 3}), (std::vector{2, 3}));
}

TEST(IndexedTest, FlagsAreWrittenAndRead) {
    Numbered<bool> flags(3, false);
    flags[1] = true;
    EXPECT_FALSE(flags[0]);
    EXPECT_TRUE(flags[1]);
}

TEST(IndexedTest, SpansAreCutByNumbers) {
    std::vector<int> values(6);
    std::iota(values.begin(), values.end(), 0);
    const NumberedSpan<int> all(values);
    EXPECT_EQ(all.first(2).back(), 1);
    EXPECT_EQ(all.from(4).front(), 4);
    EXPECT_EQ(all.part(2, 3)[2], 4);
    EXPECT_EQ(all.part(2, 3).count(), 3);
    all[5] = 9;
    EXPECT_EQ(values.back(), 9);
    EXPECT_THROW(all.first(-1), std::invalid_argument);
}

TEST(IndexedTest, AnEnumerationFindsItsElement) {
    enum class Fruit { Apple, Pear };
    PerValue<Fruit, int, 2> count{};
    count[Fruit::Pear] = 4;
    EXPECT_EQ(count[1], 4);
    EXPECT_EQ(count[Fruit::Apple], 0);
}

TEST(ElementsTest, AreTheProductOfTheDimensions) {
    EXPECT_EQ(Elements(3), 3u);
    EXPECT_EQ(Elements(3, std::size_t(4), std::int64_t(5)), 60u);
    EXPECT_EQ(Elements(Elements(3, 4), 2), 24u);
    EXPECT_EQ(Elements(2, Elements(3, 4)), 24u);
    EXPECT_EQ(Elements(7, 0), 0u);
    EXPECT_EQ(Elements(1 << 20, 1 << 20), std::size_t(1) << 40); // wider than int
}

TEST(ElementsTest, RefuseNegativeLengthsAndTooManyElements) {
    EXPECT_THROW(Elements(-1), std::invalid_argument);
    EXPECT_THROW(Elements(3, -1), std::invalid_argument);
    const std::int64_t most = std::numeric_limits<std::int64_t>::max();
    EXPECT_THROW(Elements(most, 3), std::length_error);
    EXPECT_THROW(Elements(most / 2, 3), std::length_error); // addressable as bytes, but beyond a pointer difference
}

TEST(RowsOfTest, BeginWhereTheRowsBefore) {
    std::array<int, 12> values{};
    const RowsOf rows(values.data(), {2, 2});
    EXPECT_EQ(rows.width(), 4u);
    EXPECT_EQ(rows[2] - values.data(), 8);
}

} // namespace KVSCOPE_TEST_FILE
