#include "profiler/format/selection_blob.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <numeric>
#include <random>
#include <set>

namespace kvscope {
namespace {

struct Example {
    std::vector<std::int32_t> blocks;
    std::vector<Origin> origins;
    std::vector<std::uint8_t> hit;
    std::vector<float> scores;
    SelectionView view() const { return {blocks, origins, hit, scores}; }
};

Example randomExample(std::mt19937& random) {
    Example example;
    const auto below = [&](int limit) { return int(random() % std::uint32_t(limit)); };
    const int exponent = below(31), count = below(1 << below(9));
    const std::int64_t range = std::max<std::int64_t>(count, std::int64_t(1) << exponent);
    std::set<std::int32_t> ids;
    while (int(ids.size()) < count) ids.insert(std::int32_t(std::int64_t(random()) % range));
    example.blocks.assign(ids.begin(), ids.end());
    const int kinds = 1 + below(5), hitPercent = below(3) * 50, steadiness = 1 + below(20);
    auto origin = Origin(below(kinds));
    for (std::size_t i = 0; i < example.blocks.size(); ++i) {
        if (below(steadiness) == 0) origin = Origin(below(kinds));
        example.origins.push_back(origin);
        example.hit.push_back(below(100) < hitPercent ? 1 : 0);
    }
    if (below(2) == 0)
        for (std::size_t i = 0; i < example.blocks.size(); ++i)
            example.scores.push_back(below(9) == 0 ? std::numeric_limits<float>::quiet_NaN()
                                                   : float(below(1000)) / 7.f - 50.f);
    return example;
}

bool sameBits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](float x, float y) {
               return (std::isnan(x) && std::isnan(y)) || x == y;
           });
}

TEST(SelectionBlob, ReturnsEveryRandomSelectionUnchanged) {
    std::mt19937 random(7);
    std::vector<std::byte> bytes;
    DecodedSelection decoded;
    for (int round = 0; round < 20000; ++round) {
        const Example example = randomExample(random);
        ASSERT_TRUE(encodeSelection(example.view(), bytes));
        ASSERT_TRUE(decodeSelection(bytes, decoded)) << "round " << round;
        ASSERT_EQ(decoded.blocks, example.blocks);
        ASSERT_EQ(decoded.origins, example.origins);
        ASSERT_EQ(decoded.hit, example.hit);
        ASSERT_TRUE(sameBits(decoded.scores, example.scores));
    }
}

TEST(SelectionBlob, RefusesEveryTruncation) {
    std::mt19937 random(8);
    std::vector<std::byte> bytes;
    DecodedSelection decoded;
    for (int round = 0; round < 300; ++round) {
        const Example example = randomExample(random);
        ASSERT_TRUE(encodeSelection(example.view(), bytes));
        for (std::size_t length = 0; length < bytes.size(); ++length)
            ASSERT_FALSE(decodeSelection(std::span(bytes).first(length), decoded))
                << "round " << round << " length " << length;
        bytes.push_back(std::byte(0));
        ASSERT_FALSE(decodeSelection(bytes, decoded)) << "a byte too many, round " << round;
    }
}

TEST(SelectionBlob, SurvivesRandomDamageAndNeverGivesAnInvalidSelection) {
    std::mt19937 random(9);
    std::vector<std::byte> bytes;
    DecodedSelection decoded;
    int accepted = 0;
    for (int round = 0; round < 50000; ++round) {
        ASSERT_TRUE(encodeSelection(randomExample(random).view(), bytes));
        for (int flips = 1 + int(random() % 4); flips > 0; --flips)
            bytes[random() % bytes.size()] ^= std::byte(1u << (random() % 8));
        if (!decodeSelection(bytes, decoded)) continue;
        ++accepted;
        ASSERT_TRUE(std::is_sorted(decoded.blocks.begin(), decoded.blocks.end()));
        ASSERT_EQ(std::adjacent_find(decoded.blocks.begin(), decoded.blocks.end()), decoded.blocks.end());
        ASSERT_TRUE(decoded.blocks.empty() || decoded.blocks.front() >= 0);
        ASSERT_EQ(decoded.origins.size(), decoded.blocks.size());
        ASSERT_EQ(decoded.hit.size(), decoded.blocks.size());
        for (const Origin origin : decoded.origins) ASSERT_LE(int(origin), int(Origin::TokenLevel));
    }
    EXPECT_GT(accepted, 0); // flipped scores are still scores
}

TEST(SelectionBlob, RefusesWhatARecordMayNotHold) {
    std::vector<std::byte> bytes;
    Example example{{3, 5}, {Origin::Sink, Origin::Window}, {1, 0}, {}};
    EXPECT_TRUE(encodeSelection(example.view(), bytes));
    Example twice = example;
    twice.blocks = {5, 5};
    EXPECT_FALSE(encodeSelection(twice.view(), bytes));
    Example falling = example;
    falling.blocks = {5, 3};
    EXPECT_FALSE(encodeSelection(falling.view(), bytes));
    Example negative = example;
    negative.blocks = {-1, 3};
    EXPECT_FALSE(encodeSelection(negative.view(), bytes));
    Example unknown = example;
    unknown.origins[1] = Origin(5);
    EXPECT_FALSE(encodeSelection(unknown.view(), bytes));
    Example flagless = example;
    flagless.hit.pop_back();
    EXPECT_FALSE(encodeSelection(flagless.view(), bytes));
    Example scoreless = example;
    scoreless.scores = {1.f};
    EXPECT_FALSE(encodeSelection(scoreless.view(), bytes));
}

TEST(SelectionBlob, HoldsTheLargestBlockNumber) {
    const std::int32_t most = std::numeric_limits<std::int32_t>::max();
    const Example example{{0, most - 1, most}, {Origin::Sink, Origin::TokenLevel, Origin::Window}, {1, 0, 1}, {}};
    std::vector<std::byte> bytes;
    ASSERT_TRUE(encodeSelection(example.view(), bytes));
    DecodedSelection decoded;
    ASSERT_TRUE(decodeSelection(bytes, decoded));
    EXPECT_EQ(decoded.blocks, example.blocks);
}

TEST(SelectionBlob, TakesTheBitsetWhereThatIsShorter) {
    Example dense;
    for (int i = 0; i < 4096; i += 2) dense.blocks.push_back(1000 + i);
    dense.origins.assign(dense.blocks.size(), Origin::QueryAware);
    dense.hit.assign(dense.blocks.size(), 1);
    std::vector<std::byte> bytes;
    ASSERT_TRUE(encodeSelection(dense.view(), bytes));
    EXPECT_LT(bytes.size(), 530u); // 4096 bits and a few bytes; gaps would take 2048
    EXPECT_EQ(unsigned(bytes[0]) & 1u, 1u);
    DecodedSelection decoded;
    ASSERT_TRUE(decodeSelection(bytes, decoded));
    EXPECT_EQ(decoded.blocks, dense.blocks);
}

/// The examples of docs/trace-format.md, byte by byte.
TEST(SelectionBlob, MatchesTheDocumentedExamples) {
    const auto bytesOf = [](const std::vector<std::int32_t>& blocks) {
        const Example example{blocks,
                              {Origin::Sink, Origin::QueryAware, Origin::QueryAgnostic, Origin::Window, Origin::Window},
                              {1, 0, 1, 1, 1},
                              {}};
        std::vector<std::byte> bytes;
        EXPECT_TRUE(encodeSelection(example.view(), bytes));
        std::vector<unsigned> numbers;
        for (const std::byte byte : bytes) numbers.push_back(unsigned(byte));
        return numbers;
    };
    EXPECT_EQ(bytesOf({0, 17, 40, 140, 141}),
              (std::vector<unsigned>{0x10, 0x05, 0x00, 0x10, 0x16, 0x63, 0x00, 0x78, 0x01, 0x1D}));
    EXPECT_EQ(bytesOf({0, 3, 4, 9, 10}), (std::vector<unsigned>{0x11, 0x05, 0x00, 0x02, 0x19, 0x06, 0x78, 0x01, 0x1D}));
}

} // namespace
} // namespace kvscope
