// KV blocks in 8 and 4 bits between the GPU and the host: what comes back, and that it is the same on every way.
#include "kernels/cuda/transfer/quantised_blocks.h"

#include "tests/kernels/cuda/device.h"

#include "base/error.h"
#include "kernels/cuda/testing/coded_numbers.h"
#include "kernels/half.h"
#include "kernels/quantised_kv.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <numeric>
#include <tuple>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

class CudaQuantisedBlocks : public test::CudaTest {
protected:
    static constexpr int kHeads = 3, kBlocks = 5;

    /// Random blocks whose keys have large channels; without a number, as many as all heads have.
    std::vector<test::Half> blocksOf(const KvFormat& f, int count = kHeads * kBlocks) {
        std::vector<test::Half> blocks;
        for (int b = 0; b < count; ++b) {
            const std::vector<float> numbers = floats(std::size_t(f.numbers()));
            const auto keys = std::size_t(f.blockTokens * f.dim);
            for (std::size_t i = 0; i < numbers.size(); ++i) {
                const std::size_t channel = i % std::size_t(f.dim);
                blocks.push_back(test::toBf16(numbers[i] * (i < keys && channel % 13 == 3 ? 20.f : 1.f)));
            }
        }
        return blocks;
    }

    std::vector<test::Half> rounded(const KvFormat& f, const std::vector<test::Half>& blocks) {
        const test::OnDevice<test::Half> device(blocks);
        roundBlocks(launch, {f, device.bf16(), kBlocks * f.numbers(), kHeads, kBlocks});
        check(cudaStreamSynchronize(launch.stream), "rounding blocks");
        return device.read();
    }

    /// What attention reads of coded blocks.
    std::vector<test::Half> numbersOf(const KvFormat& f, const test::OnDevice<std::uint8_t>& codes, int blocks) {
        const test::OnDevice<test::Half> numbers(std::size_t(blocks) * std::size_t(f.numbers()));
        readCodedBlocks(launch, f, reinterpret_cast<const char*>(codes.get()), blocks, numbers.bf16());
        check(cudaStreamSynchronize(launch.stream), "reading blocks");
        return numbers.read();
    }
};

__nv_bfloat16* poolOf(const test::OnDevice<std::uint8_t>& slots) {
    return reinterpret_cast<__nv_bfloat16*>(slots.get());
}

constexpr KvType kTypes[] = {KvType::FP8, KvType::INT8, KvType::INT4};

/// The most by which number `i` of a block may come back different: what its group's scale and bf16 lose.
double boundOf(const KvFormat& f, const test::Half* block, int i) {
    const bool isKey = i < f.blockTokens * f.dim;
    const int at = isKey ? i : i - f.blockTokens * f.dim, along = isKey ? at / f.dim : at / f.blockTokens,
              across = isKey ? at % f.dim : at % f.blockTokens, stride = isKey ? f.dim : f.blockTokens,
              all = isKey ? f.blockTokens : f.dim;
    int width = all;
    if (f.type == KvType::INT4) width = isKey ? KvFormat::kKeyGroup : KvFormat::kValueGroup;
    const int first = along / width * width, end = std::min(all, first + width);
    double low = 1e30, high = -1e30;
    for (int k = first; k < end; ++k) {
        const double x = double(test::toFloat(block[(isKey ? 0 : f.blockTokens * f.dim) + k * stride + across]));
        low = std::min(low, x), high = std::max(high, x);
    }
    const double x = std::abs(double(test::toFloat(block[i]))), most = std::max(std::abs(low), std::abs(high));
    constexpr double kHalf = 1.0 / 2048;
    const double bf16 = (x + most / 15) / 256;
    if (f.type == KvType::FP8) return x * (1.0 / 16 + kHalf) + most / 448 / 1024 + bf16;
    if (f.type == KvType::INT8) return most / 127 * (0.5 + 127 * kHalf) + bf16;
    return (high - low) / 15 * (0.5 + 15 * kHalf) + std::abs(low) * 2 * kHalf + bf16;
}

TEST_F(CudaQuantisedBlocks, ComeBackWithinTheBoundOfTheirType) {
    for (const KvType type : kTypes)
        for (const auto& [tokens, dim] : {std::pair{64, 128}, {16, 64}, {48, 64}, {256, 128}}) {
            SCOPED_TRACE(testing::Message() << nameOf(type) << ' ' << tokens << ' ' << dim);
            const KvFormat f{type, tokens, dim, dim, false};
            const auto before = blocksOf(f), after = rounded(f, before);
            for (int b = 0; b < kHeads * kBlocks; ++b)
                for (int i = 0; i < int(f.numbers()); ++i) {
                    const std::size_t at = std::size_t(b) * std::size_t(f.numbers()) + std::size_t(i);
                    const double x = double(test::toFloat(before[at]));
                    ASSERT_NEAR(double(test::toFloat(after[at])), x,
                                boundOf(f, before.data() + std::int64_t(b) * f.numbers(), i))
                        << b << ' ' << i;
                }
        }
}

/// A block that goes to the host with its prompt and is loaded, one that a write-back puts into its slot, and one that
/// is rounded where it lies have the same numbers.
TEST_F(CudaQuantisedBlocks, AreTheSameOnEveryWay) {
    for (const KvType type : kTypes)
        for (const auto& [tokens, dim] : {std::pair{64, 128}, {16, 64}, {48, 128}}) {
            SCOPED_TRACE(testing::Message() << nameOf(type) << ' ' << tokens << ' ' << dim);
            const KvFormat f{type, tokens, dim, dim, false};
            constexpr int kAll = kHeads * kBlocks;
            const auto bytes = std::size_t(f.blockBytes()), numbers = std::size_t(f.numbers());
            const auto before = blocksOf(f), expected = rounded(f, before);
            const PinnedMemory host(kAll * bytes, "allocating a store");
            const test::OnDevice<test::Half> prompt(before), newest(before);
            const test::OnDevice<std::uint8_t> slots(kAll * bytes);
            StoreQuantisedArgs store;
            store.format = f, store.from = prompt.bf16(), store.to = host.data();
            store.fromStride = std::int64_t(kBlocks * numbers), store.toStride = std::int64_t(kBlocks * bytes);
            store.heads = kHeads, store.blocks = kBlocks;
            storeQuantised(launch, store);
            // Blocks 0, 2, 4, .. are written back; the others are loaded, each to the slot of its number.
            std::vector<BlockMove> loads, writeBacks;
            for (int b = 0; b < kAll; ++b) (b % 2 == 0 ? writeBacks : loads).push_back({b, b});
            const test::OnDevice<BlockMove> loadList(loads), writeList(writeBacks);
            const test::OnDevice<std::uint32_t> counts(
                std::vector<std::uint32_t>{std::uint32_t(loads.size()), std::uint32_t(writeBacks.size())}),
                recorded(2);
            GatherArgs gather;
            gather.moves = {loadList.get(), writeList.get(), counts.get()};
            gather.store = host.as<const __nv_bfloat16>();
            gather.storeOut = host.as<__nv_bfloat16>();
            gather.pool = poolOf(slots);
            gather.newest = newest.bf16(), gather.slots = 1; // each block is its head's only slot
            gather.recordCounts = recorded.get();
            gatherQuantised(launch, gather, f);
            check(cudaStreamSynchronize(launch.stream), "moving blocks");
            EXPECT_EQ(numbersOf(f, slots, kAll), expected);
            EXPECT_EQ(recorded.read(), counts.read());
            // A block that was written back is read until its step ends where it was written.
            auto newestExpected = before;
            for (const BlockMove& move : writeBacks)
                std::copy_n(expected.begin() + move.slot * f.numbers(), f.numbers(),
                            newestExpected.begin() + move.slot * f.numbers());
            EXPECT_EQ(newest.read(), newestExpected);
            // What was written back is loaded the same, too.
            const test::OnDevice<std::uint8_t> again(kAll * bytes);
            std::vector<BlockMove> all;
            for (int b = 0; b < kAll; ++b) all.push_back({b, b});
            const test::OnDevice<BlockMove> allList(all);
            const test::OnDevice<std::uint32_t> allCounts(std::vector<std::uint32_t>{std::uint32_t(all.size()), 0});
            gather.moves = {allList.get(), writeList.get(), allCounts.get()};
            gather.pool = poolOf(again);
            gatherQuantised(launch, gather, f);
            check(cudaStreamSynchronize(launch.stream), "moving blocks");
            EXPECT_EQ(numbersOf(f, again, kAll), expected);
        }
}

/// What a block of the host's format is in the order of the GPU, and the bf16 numbers that come back from it, both from
/// the CPU's kernels.
struct HostBlock {
    std::vector<std::uint8_t> bytes; // [blockBytes], zeros behind the scales
    std::vector<test::Half> numbers; // keys [tokens][dim], values [dim][tokens]
};

/// Code number `i` of `count`, of a row in the CPU's order: in INT4 the codes i and i + half a group share a byte.
std::uint8_t cpuCode(KvType type, const std::uint8_t* row, int i, int count, int width) {
    if (type != KvType::INT4) return row[i];
    const int first = i / width * width, half = std::min(width, count - first) / 2, in = i - first;
    return std::uint8_t(in < half ? row[first / 2 + in] & 15 : row[first / 2 + in - half] >> 4);
}

void putCode(KvType type, std::uint8_t* codes, int i, std::uint8_t code) {
    if (type == KvType::INT4)
        codes[i / 2] = std::uint8_t(codes[i / 2] | code << i % 2 * 4);
    else
        codes[i] = code;
}

HostBlock quantisedOnCpu(const KvFormat& f, const test::Half* block) {
    const int tokens = f.blockTokens, dim = f.dim, keys = tokens * dim;
    std::vector<float> k(std::size_t(keys), 0), v(std::size_t(keys), 0); // [dim][tokens], [tokens][dim]
    for (int t = 0; t < tokens; ++t)
        for (int c = 0; c < dim; ++c) {
            k[std::size_t(c * tokens + t)] = test::toFloat(block[t * dim + c]);
            v[std::size_t(t * dim + c)] = test::toFloat(block[keys + c * tokens + t]);
        }
    std::vector<std::uint8_t> cpu(std::size_t(f.blockBytes()), 0);
    quantiseBlock(f, k.data(), v.data(), nullptr, cpu.data());
    HostBlock out{std::vector<std::uint8_t>(cpu.size(), 0), std::vector<test::Half>(std::size_t(2 * keys))};
    std::copy(cpu.begin() + f.keyScalesAt(), cpu.begin() + f.biasAt(), out.bytes.begin() + f.keyScalesAt());
    readKeys(f, cpu.data(), k.data());
    readValues(f, cpu.data(), tokens, v.data());
    const int bits = bitsOf(f.type);
    for (int t = 0; t < tokens; ++t)
        for (int c = 0; c < dim; ++c) {
            putCode(f.type, out.bytes.data(), t * dim + c,
                    cpuCode(f.type, cpu.data() + c * tokens * bits / 8, t, tokens, KvFormat::kKeyGroup));
            putCode(f.type, out.bytes.data() + f.valuesAt(), c * tokens + t,
                    cpuCode(f.type, cpu.data() + f.valuesAt() + t * dim * bits / 8, c, dim, KvFormat::kValueGroup));
            out.numbers[std::size_t(t * dim + c)] = floatToBfloat(k[std::size_t(c * tokens + t)]);
            out.numbers[std::size_t(keys + c * tokens + t)] = floatToBfloat(v[std::size_t(t * dim + c)]);
        }
    return out;
}

/// Lists of moves on the device.
struct Lists {
    Lists(const std::vector<BlockMove>& toLoad, const std::vector<BlockMove>& toWrite)
        : loads(toLoad), writeBacks(toWrite),
          counts(std::vector<std::uint32_t>{std::uint32_t(toLoad.size()), std::uint32_t(toWrite.size())}) {}
    MoveList list() const { return {loads.get(), writeBacks.get(), counts.get()}; }
    test::OnDevice<BlockMove> loads, writeBacks;
    test::OnDevice<std::uint32_t> counts;
};

/// Sizes whose pieces fill the ring's stages in every way: many small ones, two large ones, columns that a warp divides
/// and columns that it does not.
constexpr std::pair<int, int> kSizes[] = {{64, 128}, {64, 64},  {16, 64},   {16, 128}, {32, 128}, {48, 128},
                                          {80, 64},  {112, 64}, {144, 128}, {240, 64}, {256, 64}, {256, 128}};

TEST_F(CudaQuantisedBlocks, AreQuantisedAsOnTheCpu) {
    for (const KvType type : kTypes)
        for (const auto& [tokens, dim] : kSizes) {
            SCOPED_TRACE(testing::Message() << nameOf(type) << ' ' << tokens << ' ' << dim);
            const KvFormat f{type, tokens, dim, dim, false};
            auto blocks = blocksOf(f);
            for (int i = 0; i < tokens; ++i) blocks[std::size_t(i * dim + 5)] = 0;               // a channel of zeros
            for (int i = 0; i < tokens; ++i) blocks[std::size_t(i * dim + 6)] = test::toBf16(3); // of one number
            for (int i = 0; i < tokens; ++i) // whose scale is a half-precision subnormal
                blocks[std::size_t(i * dim + 7)] = test::toBf16(1e-5f * float(i % 9 - 3));
            const auto bytes = std::size_t(f.blockBytes()), numbers = std::size_t(f.numbers());
            const PinnedMemory host(kHeads * kBlocks * bytes, "allocating a store");
            const test::OnDevice<test::Half> prompt(blocks);
            StoreQuantisedArgs store;
            store.format = f, store.from = prompt.bf16(), store.to = host.data();
            store.fromStride = std::int64_t(kBlocks * numbers), store.toStride = std::int64_t(kBlocks * bytes);
            store.heads = kHeads, store.blocks = kBlocks;
            storeQuantised(launch, store);
            check(cudaStreamSynchronize(launch.stream), "storing blocks");
            const auto back = rounded(f, blocks);
            for (std::size_t b = 0; b < kHeads * kBlocks; ++b) {
                const HostBlock expected = quantisedOnCpu(f, blocks.data() + b * numbers);
                const auto* got = host.as<const std::uint8_t>() + b * bytes;
                ASSERT_TRUE(std::equal(got, got + f.biasAt(), expected.bytes.begin())) << b;
                ASSERT_TRUE(std::equal(expected.numbers.begin(), expected.numbers.end(),
                                       back.begin() + std::ptrdiff_t(b * numbers)))
                    << b;
            }
        }
}

TEST_F(CudaQuantisedBlocks, AreLoadedAsTheHostHasThem) {
    for (const KvType type : kTypes)
        for (const auto& [tokens, dim] : kSizes) {
            const KvFormat f{type, tokens, dim, dim, false};
            const auto bytes = std::size_t(f.blockBytes());
            constexpr int kStored = 29;
            const PinnedMemory host(kStored * bytes, "allocating a store");
            auto* const stored = host.as<std::uint8_t>();
            for (std::size_t i = 0; i < kStored * bytes; ++i) stored[i] = std::uint8_t(random());
            const int most = tokens * dim <= 2048 ? 5000 : 300; // blocks of one launch
            for (const auto& [moves, threadBlocks] :
                 {std::pair{0, 4}, {1, 4}, {1, 1}, {7, 3}, {kStored, 1}, {most / 10, 2}, {most, 4}, {most, 16}}) {
                SCOPED_TRACE(testing::Message() << nameOf(type) << ' ' << tokens << ' ' << dim << ", " << moves
                                                << " blocks, " << threadBlocks << " thread blocks");
                std::vector<BlockMove> loads;
                std::vector<int> slots(std::size_t(moves + 3)); // three are left alone
                std::iota(slots.begin(), slots.end(), 0);
                std::shuffle(slots.begin(), slots.end(), random);
                for (int m = 0; m < moves; ++m) loads.push_back({uniform(0, kStored - 1), slots[std::size_t(m)]});
                const Lists lists(loads, {});
                const test::OnDevice<std::uint8_t> pool(slots.size() * bytes);
                GatherArgs gather;
                gather.moves = lists.list(), gather.store = host.as<const __nv_bfloat16>(), gather.pool = poolOf(pool);
                gatherQuantised(launch, gather, f, threadBlocks);
                check(cudaStreamSynchronize(launch.stream), "moving blocks");
                const auto got = pool.read();
                for (const BlockMove& move : loads) {
                    const auto* expected = stored + std::size_t(move.store) * bytes;
                    ASSERT_TRUE(std::equal(expected, expected + bytes,
                                           got.begin() + std::ptrdiff_t(std::size_t(move.slot) * bytes)))
                        << "store " << move.store << ", slot " << move.slot;
                }
                for (int m = moves; m < moves + 3; ++m) {
                    const auto first = got.begin() + std::ptrdiff_t(std::size_t(slots[std::size_t(m)]) * bytes);
                    ASSERT_TRUE(
                        std::all_of(first, first + std::ptrdiff_t(bytes), [](std::uint8_t x) { return x == 0xff; }));
                }
            }
        }
}

/// Codes of all values with scales of all sizes, which no block of a test need have.
TEST_F(CudaQuantisedBlocks, EveryCodeBecomesTheNumberNextToItsProduct) {
    for (const KvType type : kTypes) {
        SCOPED_TRACE(nameOf(type));
        const KvFormat f{type, 64, 128, 128, false};
        const auto bytes = std::size_t(f.blockBytes()), numbers = std::size_t(f.numbers());
        constexpr int kStored = 64, kKeys = 64 * 128;
        std::vector<std::uint8_t> all(kStored * bytes);
        std::vector<test::Half> expected;
        for (int b = 0; b < kStored; ++b) {
            std::uint8_t* const block = all.data() + std::size_t(b) * bytes;
            for (std::int64_t i = 0; i < f.keyScalesAt(); ++i) block[i] = std::uint8_t(uniform(0, 255));
            auto* const scales = reinterpret_cast<std::uint16_t*>(block + f.keyScalesAt());
            for (std::int64_t i = 0; i < (f.biasAt() - f.keyScalesAt()) / 2; ++i) // no sign, no 0, nothing infinite
                scales[i] =
                    std::uint16_t(uniform(1, 0x7bff) | (type == KvType::INT4 && i % 2 != 0 ? uniform(0, 1) << 15 : 0));
            for (int i = 0; i < int(numbers); ++i) {
                const bool key = i < kKeys;
                const int at = key ? i : i - kKeys, cols = key ? 128 : 64,
                          width = key ? KvFormat::kKeyGroup : KvFormat::kValueGroup;
                const int column = at % cols, row = at / cols, groups = key ? f.keyGroups() : f.valueGroups();
                const auto* half =
                    reinterpret_cast<const std::uint16_t*>(block + (key ? f.keyScalesAt() : f.valueScalesAt()));
                float x = 0;
                if (type == KvType::INT4) {
                    const int group = column * groups + row / width;
                    x = float(block[i / 2] >> i % 2 * 4 & 15) * halfToFloat(half[2 * group]);
                    x += halfToFloat(half[2 * group + 1]);
                } else if (type == KvType::INT8) {
                    x = float(std::int8_t(block[i])) * halfToFloat(half[column]);
                } else {
                    if ((block[i] & 0x7f) == 0x7f) block[i] = 0; // NaN, which stands for itself
                    const int exponent = block[i] >> 3 & 15, mantissa = block[i] & 7;
                    x = exponent == 0 ? std::ldexp(float(mantissa), -9)
                                      : std::ldexp(float(8 + mantissa), exponent - 10);
                    x = (block[i] & 0x80 ? -x : x) * halfToFloat(half[column]);
                }
                expected.push_back(floatToBfloat(x));
            }
        }
        const auto got = numbersOf(f, test::OnDevice<std::uint8_t>(all), kStored);
        ASSERT_EQ(got.size(), expected.size());
        for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], expected[i]) << i;
    }
}

/// A group with a number that is none, or infinite, comes back as no numbers on every way, and its neighbours as ever.
TEST_F(CudaQuantisedBlocks, WhatIsNotFiniteIsNotHidden) {
    for (const KvType type : kTypes)
        for (const test::Half odd : {test::Half(0x7fc0), test::Half(0xffc0), test::Half(0x7f80), test::Half(0xff80)}) {
            SCOPED_TRACE(testing::Message() << nameOf(type) << ' ' << odd);
            const KvFormat f{type, 64, 128, 128, false};
            const auto plain = blocksOf(f);
            auto blocks = plain;
            blocks[std::size_t(20 * f.dim + 9)] = odd;                     // key of token 20, channel 9
            blocks[std::size_t(64 * 128 + 70 * f.blockTokens + 11)] = odd; // value of channel 70, token 11
            const auto back = rounded(f, blocks), before = rounded(f, plain);
            for (int i = 0; i < int(f.numbers()); ++i) {
                const bool key = i < 64 * 128, nibbles = type == KvType::INT4;
                const int at = key ? i : i - 64 * 128;
                const bool inGroup =
                    key ? at % 128 == 9 && (!nibbles || at / 128 < 32) : at % 64 == 11 && (!nibbles || at / 64 >= 64);
                const float x = test::toFloat(back[std::size_t(i)]);
                if (inGroup)
                    ASSERT_FALSE(std::isfinite(x)) << i;
                else
                    ASSERT_EQ(back[std::size_t(i)], before[std::size_t(i)]) << i;
            }
        }
}

/// Loads and write-backs of one launch, in every division over the thread blocks; and those that the launch leaves out.
TEST_F(CudaQuantisedBlocks, AreMovedBothWaysInOneLaunch) {
    for (const KvType type : kTypes)
        for (const auto& [tokens, dim] : {std::pair{64, 128}, {48, 64}})
            for (const auto& [loading, writing, threadBlocks] :
                 {std::tuple{0, 1, 16}, {1, 1, 4}, {5, 3, 4}, {40, 17, 3}, {3, 40, 1}})
                for (const auto part :
                     {GatherArgs::Part::Both, GatherArgs::Part::Loads, GatherArgs::Part::WriteBacks}) {
                    SCOPED_TRACE(testing::Message() << nameOf(type) << ' ' << tokens << ' ' << dim << ", " << loading
                                                    << " and " << writing << ", part " << int(part));
                    const KvFormat f{type, tokens, dim, dim, false};
                    const auto bytes = std::size_t(f.blockBytes()), numbers = std::size_t(f.numbers()),
                               written = std::size_t(f.biasAt()); // behind them nothing is said
                    // Heads of three slots. Each of the first ones writes back from one of its slots; the loads go to
                    // slots of the heads behind.
                    const int slotsOfHead = 3, all = loading + writing, slots = slotsOfHead * all;
                    const auto blocks = blocksOf(f, all);
                    const PinnedMemory host(std::size_t(all) * bytes, "allocating a store");
                    std::fill_n(host.as<std::uint8_t>(), std::size_t(all) * bytes, std::uint8_t(0xee));
                    std::vector<BlockMove> loads, writeBacks; // in the store from behind
                    std::vector<test::Half> expectedNewest = blocks;
                    std::vector<std::uint8_t> expected(std::size_t(slots) * bytes, 0xff);
                    std::vector<HostBlock> exact;
                    for (int b = 0; b < all; ++b) {
                        exact.push_back(quantisedOnCpu(f, blocks.data() + std::size_t(b) * numbers));
                        const bool load = b >= writing;
                        const int slot = slotsOfHead * b + uniform(0, slotsOfHead - 1);
                        (load ? loads : writeBacks).push_back({all - 1 - b, slot});
                        auto* const stored = host.as<std::uint8_t>() + std::size_t(all - 1 - b) * bytes;
                        if (load) std::copy(exact.back().bytes.begin(), exact.back().bytes.end(), stored);
                        if (part == (load ? GatherArgs::Part::WriteBacks : GatherArgs::Part::Loads)) continue;
                        std::copy_n(exact.back().bytes.begin(), load ? bytes : written,
                                    expected.begin() + std::ptrdiff_t(std::size_t(slot) * bytes));
                        if (!load)
                            std::copy(exact.back().numbers.begin(), exact.back().numbers.end(),
                                      expectedNewest.begin() + std::ptrdiff_t(std::size_t(b) * numbers));
                    }
                    const Lists lists(loads, writeBacks);
                    const test::OnDevice<test::Half> newest(blocks);
                    const test::OnDevice<std::uint8_t> pool(expected.size());
                    const test::OnDevice<std::uint32_t> recorded(std::vector<std::uint32_t>{77, 77});
                    const test::OnDevice<std::uint64_t> marks(std::vector<std::uint64_t>{0, 0});
                    GatherArgs gather;
                    gather.moves = lists.list(), gather.pool = poolOf(pool), gather.part = part;
                    gather.newest = newest.bf16(), gather.slots = slotsOfHead;
                    gather.store = host.as<const __nv_bfloat16>(), gather.storeOut = host.as<__nv_bfloat16>();
                    gather.recordCounts = recorded.get();
                    gather.mark = marks.get(), gather.endMark = marks.get() + 1;
                    gatherQuantised(launch, gather, f, threadBlocks);
                    check(cudaStreamSynchronize(launch.stream), "moving blocks");
                    EXPECT_TRUE(pool.read() == expected);
                    EXPECT_TRUE(newest.read() == expectedNewest);
                    const bool loaded = part != GatherArgs::Part::WriteBacks, wrote = part != GatherArgs::Part::Loads;
                    EXPECT_EQ(recorded.read(), (std::vector<std::uint32_t>{loaded ? std::uint32_t(loading) : 77u,
                                                                           wrote ? std::uint32_t(writing) : 77u}));
                    const auto times = marks.read();
                    EXPECT_GT(times[0], 0u);
                    EXPECT_GE(times[1], times[0]);
                    for (int b = 0; b < writing; ++b) {
                        const auto* got = host.as<const std::uint8_t>() + std::size_t(all - 1 - b) * bytes;
                        if (wrote)
                            ASSERT_TRUE(std::equal(got, got + written, exact[std::size_t(b)].bytes.begin())) << b;
                        else
                            ASSERT_TRUE(std::all_of(got, got + bytes, [](std::uint8_t x) { return x == 0xee; })) << b;
                    }
                }
}

TEST_F(CudaQuantisedBlocks, ATokenThatFillsABlockRoundsItAndNoOther) {
    const KvFormat f{KvType::INT8, 16, 64, 64, false};
    const auto before = blocksOf(f), all = rounded(f, before);
    const test::OnDevice<test::Half> blocks(before);
    // Row 0 fills its block 1, row 1 does not fill its block 2, row 2 is not active.
    const test::OnDevice<std::int64_t> first(std::vector<std::int64_t>{0, kBlocks, 2 * kBlocks});
    const test::OnDevice<std::int32_t> position(std::vector<std::int32_t>{31, 40, 15});
    const test::OnDevice<std::uint8_t> active(std::vector<std::uint8_t>{1, 1, 0});
    RoundNewestArgs args;
    args.format = f, args.blocks = blocks.bf16(), args.headFirst = first.get(), args.position = position.get();
    args.active = active.get(), args.rows = 3, args.kvHeads = 1;
    roundNewest(launch, args);
    check(cudaStreamSynchronize(launch.stream), "rounding blocks");
    auto expected = before;
    std::copy_n(all.begin() + f.numbers(), f.numbers(), expected.begin() + f.numbers());
    EXPECT_EQ(blocks.read(), expected);
    EXPECT_NE(expected, before);
}

TEST(CudaQuantisedFormats, HaveHeadsOf64Or128Channels) {
    EXPECT_NO_THROW(checkQuantisedFormat({KvType::INT4, 64, 128, 128, false}));
    EXPECT_THROW(checkQuantisedFormat({KvType::INT8, 64, 80, 80, false}), Error);
    EXPECT_THROW(checkQuantisedFormat({KvType::INT8, 64, 128, 0, false}), Error);
    EXPECT_THROW(checkQuantisedFormat({KvType::BF16, 64, 128, 128, false}), Error);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
