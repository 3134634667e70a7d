// KV blocks in 16, 8 and 4 bits: what comes back, how much of it is lost, and attention over such blocks.
#include "kernels/quantised_kv.h"

#include "base/aligned_buffer.h"
#include "kernels/half.h"
#include "kernels/kernels.h"

#include <algorithm>
#include <cmath>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <limits>
#include <random>
#include <vector>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

/// Keys with a few channels that are much larger than the others, as rotated keys have them, values without.
struct Block {
    Block(const KvFormat& of, unsigned seed) : format(of) {
        std::mt19937 random(seed);
        std::normal_distribution<float> normal;
        for (int c = 0; c < of.dim; ++c)
            for (int t = 0; t < of.blockTokens; ++t)
                keys.push_back(normal(random) * (c % 13 == 3 ? 20.f : 1.f) + (c % 7 == 2 ? 5.f : 0.f));
        for (int i = 0; i < of.blockTokens * of.valueDim; ++i) values.push_back(normal(random));
        for (int t = 0; t < of.blockTokens; ++t) bias.push_back(normal(random));
        quantise();
    }
    void quantise() {
        bytes = AlignedBuffer<std::uint8_t>(std::size_t(format.blockBytes()));
        quantiseBlock(format, keys.data(), values.data(), bias.data(), bytes.data());
        readBack();
    }
    void readBack() {
        keysBack.assign(keys.size(), 99.f), valuesBack.assign(values.size(), 99.f);
        readKeys(format, bytes.data(), keysBack.data());
        if (format.valueDim > 0) readValues(format, bytes.data(), format.blockTokens, valuesBack.data());
    }

    KvFormat format;
    std::vector<float> keys, values, bias, keysBack, valuesBack; // [dim, blockTokens], [blockTokens, valueDim]
    AlignedBuffer<std::uint8_t> bytes;
};

/// The most by which a number of a group may come back different.
double bound(KvType type, const float* group, int count, double x) {
    const auto [low, high] = std::minmax_element(group, group + count);
    const double most = std::max(std::abs(double(*low)), std::abs(double(*high)));
    constexpr double kHalf = 1.0 / 2048; // a 16-bit scale is off by so much of itself
    switch (type) {
    case KvType::BF16:
        return std::abs(x) / 256;
    case KvType::FP8:
        return std::abs(x) * (1.0 / 16 + kHalf) + most / 448 / 1024;
    case KvType::INT8:
        return most / 127 * (0.5 + 127 * kHalf);
    case KvType::INT4:
        return (double(*high) - double(*low)) / 15 * (0.5 + 15 * kHalf) + std::abs(double(*low)) * 2 * kHalf;
    case KvType::F32:
        break;
    }
    return 0;
}

constexpr KvType kTypes[] = {KvType::BF16, KvType::FP8, KvType::INT8, KvType::INT4};

TEST(QuantisedKv, ComesBackWithinTheBoundOfItsType) {
    for (const KvType type : kTypes)
        for (const auto& [tokens, dim, valueDim] :
             {std::tuple{64, 128, 128}, {16, 64, 64}, {48, 32, 32}, {64, 80, 80}, {32, 64, 0}, {16, 6, 2}}) {
            SCOPED_TRACE(testing::Message() << nameOf(type) << ' ' << tokens << ' ' << dim << ' ' << valueDim);
            const Block block({type, tokens, dim, valueDim, true}, 7);
            const int keyGroup = type == KvType::INT4 ? KvFormat::kKeyGroup : tokens;
            for (int c = 0; c < dim; ++c)
                for (int t = 0; t < tokens; ++t) {
                    const int first = t / keyGroup * keyGroup, at = c * tokens + t;
                    const double x = double(block.keys[std::size_t(at)]);
                    ASSERT_NEAR(double(block.keysBack[std::size_t(at)]), x,
                                bound(type, &block.keys[std::size_t(c * tokens + first)],
                                      std::min(keyGroup, tokens - first), x));
                }
            const int valueGroup = type == KvType::INT4 ? KvFormat::kValueGroup : valueDim;
            for (int t = 0; t < tokens; ++t)
                for (int c = 0; c < valueDim; ++c) {
                    const int first = c / valueGroup * valueGroup, at = t * valueDim + c;
                    const double x = double(block.values[std::size_t(at)]);
                    ASSERT_NEAR(double(block.valuesBack[std::size_t(at)]), x,
                                bound(type, &block.values[std::size_t(t * valueDim + first)],
                                      std::min(valueGroup, valueDim - first), x));
                }
            const auto* bias = reinterpret_cast<const float*>(block.bytes.data() + block.format.biasAt());
            EXPECT_TRUE(std::equal(block.bias.begin(), block.bias.end(), bias));
        }
}

TEST(QuantisedKv, TakesTheBytesThatItsFormatSays) {
    const auto bytes = [](KvType type) { return KvFormat{type, 64, 128, 128, false}.blockBytes(); };
    EXPECT_EQ(bytes(KvType::F32), 65536);
    EXPECT_EQ(bytes(KvType::BF16), 32768);
    EXPECT_EQ(bytes(KvType::FP8), 8192 + 8192 + 256 + 128);
    EXPECT_EQ(bytes(KvType::INT8), 16768); // 0.512 of bf16
    EXPECT_EQ(bytes(KvType::INT4), 9728);  // 0.297
    EXPECT_EQ((KvFormat{KvType::INT8, 16, 64, 64, true}.blockBytes()), (1024 + 1024 + 128 + 32 + 64 + 127) / 128 * 128);
}

/// Codes are those of a group's largest number, so that quantising what came back changes nothing where the scale is a
/// power of two.
TEST(QuantisedKv, OfNumbersThatTheTypeHoldsComesBackTheSame) {
    for (const KvType type : {KvType::FP8, KvType::INT8, KvType::INT4}) {
        SCOPED_TRACE(nameOf(type));
        Block block({type, 16, 64, 64, false}, 3);
        const float most = type == KvType::FP8 ? 448.f : type == KvType::INT8 ? 127.f : 15.f;
        for (auto* numbers : {&block.keys, &block.values})
            for (std::size_t i = 0; i < numbers->size(); ++i)
                (*numbers)[i] = 0.25f * (i % 16 == 0 ? most : i % 16 == 1 ? 0.f : float(int(i * 5 % 15)));
        block.quantise();
        EXPECT_EQ(block.keysBack, block.keys);
        EXPECT_EQ(block.valuesBack, block.values);
    }
}

TEST(QuantisedKv, ZerosStayAndWhatIsNotFiniteIsNotHidden) {
    for (const KvType type : kTypes) {
        SCOPED_TRACE(nameOf(type));
        Block block({type, 16, 64, 64, false}, 5);
        std::fill(block.keys.begin(), block.keys.end(), 0.f);
        std::fill(block.values.begin(), block.values.end(), 0.f);
        block.quantise();
        EXPECT_EQ(block.keysBack, block.keys);
        EXPECT_EQ(block.valuesBack, block.values);
        for (const float odd : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity()}) {
            block.keys[5] = block.values[5] = odd;
            block.quantise();
            EXPECT_FALSE(std::isfinite(block.keysBack[5])) << odd;
            EXPECT_FALSE(std::isfinite(block.valuesBack[5])) << odd;
        }
    }
}

TEST(QuantisedKv, HalvesAreRoundedToNearest) {
    for (int raw = 0; raw < 0x7C00; ++raw) {
        const float here = halfToFloat(std::uint16_t(raw)), next = halfToFloat(std::uint16_t(raw + 1));
        ASSERT_EQ(floatToHalf(here), raw);
        ASSERT_EQ(floatToHalf(-here), raw | 0x8000);
        if (raw == 0x7BFF) break; // after it comes infinity
        const float middle = here + (next - here) / 2;
        ASSERT_EQ(floatToHalf(middle), raw % 2 == 0 ? raw : raw + 1);
        ASSERT_EQ(floatToHalf(std::nextafter(middle, next)), raw + 1);
    }
    EXPECT_EQ(floatToHalf(65519.f), 0x7BFF);
    EXPECT_EQ(floatToHalf(65520.f), 0x7C00);
    EXPECT_EQ(floatToBfloat(1.00390625f), 0x3F80); // halfway between two: the even one
    EXPECT_EQ(floatToBfloat(1.01171875f), 0x3F82);
}

/// Attention in float64 over the numbers that came back.
std::vector<double> attention(const std::vector<Block>& blocks, const float* q, double scale, double biasScale,
                              int lastTokens) {
    const KvFormat& format = blocks[0].format;
    std::vector<double> logits, out(std::size_t(format.valueDim));
    for (const Block& block : blocks)
        for (int t = 0; t < (&block == &blocks.back() ? lastTokens : format.blockTokens); ++t) {
            double sum = 0;
            for (int c = 0; c < format.dim; ++c)
                sum += double(q[c]) * double(block.keysBack[std::size_t(c * format.blockTokens + t)]);
            logits.push_back(scale * sum + biasScale * double(block.bias[std::size_t(t)]));
        }
    const double most = *std::max_element(logits.begin(), logits.end());
    double total = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
        const double weight = std::exp(logits[i] - most);
        total += weight;
        const Block& block = blocks[i / std::size_t(format.blockTokens)];
        const std::size_t first = i % std::size_t(format.blockTokens) * std::size_t(format.valueDim);
        for (std::size_t c = 0; c < out.size(); ++c) out[c] += weight * double(block.valuesBack[first + c]);
    }
    for (double& x : out) x /= total;
    return out;
}

TEST(QuantisedKv, AttentionIsThatOfTheNumbersThatComeBack) {
    const auto kernels = makeCpuKernels(2);
    constexpr int kGroup = 3;
    for (const KvType type : kTypes)
        for (const auto& [dim, count, lastTokens] : {std::tuple{64, 5, 9}, {128, 20, 16}}) {
            SCOPED_TRACE(testing::Message() << nameOf(type) << ' ' << dim);
            const KvFormat format{type, 16, dim, dim, true};
            std::vector<Block> blocks;
            for (int b = 0; b < count; ++b) blocks.emplace_back(format, 100u + unsigned(b));
            std::vector<KvBlockView> views;
            for (const Block& block : blocks)
                views.push_back({nullptr, nullptr, block.bias.data(), 16, 0, block.bytes.data()});
            views.back().tokens = lastTokens;
            std::mt19937 random(9);
            std::normal_distribution<float> normal;
            std::vector<float> q(std::size_t(kGroup * dim)), out(q.size());
            for (float& x : q) x = 0.3f * normal(random);
            const AttentionItem item{q.data(), views.data(), count, out.data(), nullptr};
            kernels->blockAttention({kGroup, dim, 16, dim, dim, 0.125f, 0.5f, {&item, 1}, dim, format});
            for (int h = 0; h < kGroup; ++h) {
                const auto exact = attention(blocks, q.data() + h * dim, 0.125, 0.5, lastTokens);
                for (int c = 0; c < dim; ++c)
                    ASSERT_NEAR(double(out[std::size_t(h * dim + c)]), exact[std::size_t(c)], 2e-5) << h << ' ' << c;
            }
        }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
