#include "profiler/format/selection_blob.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <numeric>
#include <random>
#include <set>
#include <utility>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

struct Example {
    std::vector<PackedBlock> blocks;
    std::vector<float> scores;
    SelectionView view() const { return {blocks, scores}; }
};

struct Decoded {
    std::vector<PackedBlock> blocks;
    std::vector<float> scores;
};
bool decode(std::span<const std::byte> bytes, Decoded& decoded) {
    return decodeSelection(bytes, decoded.blocks, decoded.scores);
}

Example randomExample(std::mt19937& random) {
    Example example;
    const auto below = [&](int limit) { return int(random() % std::uint32_t(limit)); };
    const int exponent = below(29), count = below(1 << below(9));
    const std::int64_t range = std::max<std::int64_t>(count, std::int64_t(1) << exponent);
    std::set<std::int32_t> ids;
    while (int(ids.size()) < count) ids.insert(std::int32_t(std::int64_t(random()) % range));
    const int kinds = 1 + below(5), hitPercent = below(3) * 50, steadiness = 1 + below(20);
    auto origin = Origin(below(kinds));
    for (const std::int32_t id : ids) {
        if (below(steadiness) == 0) origin = Origin(below(kinds));
        example.blocks.emplace_back(id, origin, below(100) < hitPercent);
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
    Decoded decoded;
    for (int round = 0; round < 20000; ++round) {
        const Example example = randomExample(random);
        ASSERT_TRUE(encodeSelection(example.view(), bytes));
        ASSERT_TRUE(decode(bytes, decoded)) << "round " << round;
        ASSERT_EQ(decoded.blocks, example.blocks);
        ASSERT_TRUE(sameBits(decoded.scores, example.scores));
    }
}

TEST(SelectionBlob, RefusesEveryTruncation) {
    std::mt19937 random(8);
    std::vector<std::byte> bytes;
    Decoded decoded;
    for (int round = 0; round < 300; ++round) {
        const Example example = randomExample(random);
        ASSERT_TRUE(encodeSelection(example.view(), bytes));
        for (std::size_t length = 0; length < bytes.size(); ++length)
            ASSERT_FALSE(decode(std::span(bytes).first(length), decoded)) << "round " << round << " length " << length;
        bytes.push_back(std::byte(0));
        ASSERT_FALSE(decode(bytes, decoded)) << "a byte too many, round " << round;
    }
}

TEST(SelectionBlob, SurvivesRandomDamageAndNeverGivesAnInvalidSelection) {
    std::mt19937 random(9);
    std::vector<std::byte> bytes;
    Decoded decoded;
    int accepted = 0;
    for (int round = 0; round < 50000; ++round) {
        ASSERT_TRUE(encodeSelection(randomExample(random).view(), bytes));
        for (int flips = 1 + int(random() % 4); flips > 0; --flips)
            bytes[random() % bytes.size()] ^= std::byte(1u << (random() % 8));
        if (!decode(bytes, decoded)) continue;
        ++accepted;
        std::int32_t before = -1;
        for (const PackedBlock block : decoded.blocks) {
            ASSERT_GT(block.id(), std::exchange(before, block.id())) << "ids ascend strictly";
            ASSERT_LE(int(block.origin()), int(Origin::TokenLevel));
        }
    }
    EXPECT_GT(accepted, 0); // flipped scores are still scores
}

TEST(SelectionBlob, RefusesWhatARecordMayNotHold) {
    std::vector<std::byte> bytes;
    Example example{{{3, Origin::Sink, true}, {5, Origin::Window, false}}, {}};
    EXPECT_TRUE(encodeSelection(example.view(), bytes));
    Example twice = example;
    twice.blocks.front() = twice.blocks.back();
    EXPECT_FALSE(encodeSelection(twice.view(), bytes));
    Example falling = example;
    std::swap(falling.blocks.front(), falling.blocks.back());
    EXPECT_FALSE(encodeSelection(falling.view(), bytes));
    Example unknown = example;
    unknown.blocks[1] = {5, Origin(5), false};
    EXPECT_FALSE(encodeSelection(unknown.view(), bytes));
    Example scoreless = example;
    scoreless.scores = {1.f};
    EXPECT_FALSE(encodeSelection(scoreless.view(), bytes));
}

TEST(SelectionBlob, HoldsTheLargestBlockNumberAndRefusesALargerOne) {
    const std::int32_t most = PackedBlock::kMaxId;
    const Example example{
        {{0, Origin::Sink, true}, {most - 1, Origin::TokenLevel, false}, {most, Origin::Window, true}}, {}};
    std::vector<std::byte> bytes;
    ASSERT_TRUE(encodeSelection(example.view(), bytes));
    Decoded decoded;
    ASSERT_TRUE(decode(bytes, decoded));
    EXPECT_EQ(decoded.blocks, example.blocks);
    // Ids as gaps, one block, origins as runs, hits: the largest id, then one more.
    const auto one = [](std::initializer_list<unsigned> gap) {
        std::vector<std::byte> blob{std::byte(0x04), std::byte(1)};
        for (const unsigned byte : gap) blob.push_back(std::byte(byte));
        blob.push_back(std::byte(0));
        return blob;
    };
    EXPECT_TRUE(decode(one({0xFF, 0xFF, 0xFF, 0x7F}), decoded));
    EXPECT_EQ(decoded.blocks, std::vector{PackedBlock(most, Origin::Sink, true)});
    EXPECT_FALSE(decode(one({0x80, 0x80, 0x80, 0x80, 0x01}), decoded));
}

TEST(SelectionBlob, TakesTheBitsetWhereThatIsShorter) {
    Example dense;
    for (int i = 0; i < 4096; i += 2) dense.blocks.emplace_back(1000 + i, Origin::QueryAware, true);
    std::vector<std::byte> bytes;
    ASSERT_TRUE(encodeSelection(dense.view(), bytes));
    EXPECT_LT(bytes.size(), 530u); // 4096 bits and a few bytes; gaps would take 2048
    EXPECT_EQ(unsigned(bytes[0]) & 1u, 1u);
    Decoded decoded;
    ASSERT_TRUE(decode(bytes, decoded));
    EXPECT_EQ(decoded.blocks, dense.blocks);
}

/// The examples of docs/trace-format.md, byte by byte.
TEST(SelectionBlob, MatchesTheDocumentedExamples) {
    const auto bytesOf = [](const std::vector<std::int32_t>& blocks) {
        const Origin origins[] = {Origin::Sink, Origin::QueryAware, Origin::QueryAgnostic, Origin::Window,
                                  Origin::Window};
        Example example;
        for (std::size_t i = 0; i < blocks.size(); ++i) example.blocks.emplace_back(blocks[i], origins[i], i != 1);
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

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
