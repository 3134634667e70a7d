// KV blocks in 8 and 4 bits between the GPU and the host: what comes back, and that it is the same on every way.
#include "kernels/cuda/transfer/quantised_blocks.h"

#include "tests/kernels/cuda/device.h"

#include "base/error.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <tuple>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

class CudaQuantisedBlocks : public test::CudaTest {
protected:
    static constexpr int kHeads = 3, kBlocks = 5;

    /// Random blocks of every head whose keys have large channels.
    std::vector<test::Half> blocksOf(const KvFormat& f) {
        std::vector<test::Half> blocks;
        for (int b = 0; b < kHeads * kBlocks; ++b) {
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
};

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

/// A block that goes to the host with its prompt and comes back, one that a write-back leaves in its slot, and one that
/// is rounded where it lies have the same bits.
TEST_F(CudaQuantisedBlocks, AreTheSameOnEveryWay) {
    for (const KvType type : kTypes)
        for (const auto& [tokens, dim] : {std::pair{64, 128}, {16, 64}, {48, 128}}) {
            SCOPED_TRACE(testing::Message() << nameOf(type) << ' ' << tokens << ' ' << dim);
            const KvFormat f{type, tokens, dim, dim, false};
            const auto bytes = std::size_t(f.blockBytes()), numbers = std::size_t(f.numbers());
            const auto before = blocksOf(f), expected = rounded(f, before);
            const PinnedMemory host(kHeads * kBlocks * bytes, "allocating a store");
            const test::OnDevice<test::Half> prompt(before), slots(before);
            StoreQuantisedArgs store;
            store.format = f, store.from = prompt.bf16(), store.to = host.data();
            store.fromStride = std::int64_t(kBlocks * numbers), store.toStride = std::int64_t(kBlocks * bytes);
            store.heads = kHeads, store.blocks = kBlocks;
            storeQuantised(launch, store);
            // Blocks 0, 2, 4, .. are written back; the others are loaded, each to the slot of its number.
            std::vector<BlockMove> loads, writeBacks;
            for (int b = 0; b < kHeads * kBlocks; ++b) (b % 2 == 0 ? writeBacks : loads).push_back({b, b});
            const test::OnDevice<BlockMove> loadList(loads), writeList(writeBacks);
            const test::OnDevice<std::uint32_t> counts(
                std::vector<std::uint32_t>{std::uint32_t(loads.size()), std::uint32_t(writeBacks.size())}),
                recorded(2);
            GatherArgs gather;
            gather.moves = {loadList.get(), writeList.get(), counts.get()};
            gather.store = host.as<const __nv_bfloat16>();
            gather.storeOut = host.as<__nv_bfloat16>();
            gather.pool = slots.bf16();
            gather.recordCounts = recorded.get();
            gatherQuantised(launch, gather, f);
            check(cudaStreamSynchronize(launch.stream), "moving blocks");
            EXPECT_EQ(slots.read(), expected);
            EXPECT_EQ(recorded.read(), counts.read());
            // What was written back comes back the same, too.
            const test::OnDevice<test::Half> again(std::size_t(kHeads * kBlocks) * numbers);
            std::vector<BlockMove> all;
            for (int b = 0; b < kHeads * kBlocks; ++b) all.push_back({b, b});
            const test::OnDevice<BlockMove> allList(all);
            const test::OnDevice<std::uint32_t> allCounts(std::vector<std::uint32_t>{std::uint32_t(all.size()), 0});
            gather.moves = {allList.get(), writeList.get(), allCounts.get()};
            gather.pool = again.bf16();
            gatherQuantised(launch, gather, f);
            check(cudaStreamSynchronize(launch.stream), "moving blocks");
            EXPECT_EQ(again.read(), expected);
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
