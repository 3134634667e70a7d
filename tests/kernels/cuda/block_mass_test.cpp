// The oracle's block masses against a float64 attention over the same bf16 numbers.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/attention/block_mass.h"

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

struct Case {
    int dim, kvHeads, group, blockSize;
    bool slots, bias;
    int window = 0, unit = 0;
};
void PrintTo(const Case& c, std::ostream* out) {
    *out << "dim " << c.dim << ", " << c.kvHeads << " KV heads of " << c.group << ", blocks of " << c.blockSize
         << (c.slots ? ", newest in a slot" : "") << (c.bias ? ", biased" : "") << ", window " << c.window
         << ", units of " << c.unit;
}

class CudaBlockMass : public CudaTest, public ::testing::WithParamInterface<Case> {};

TEST_P(CudaBlockMass, IsTheAttentionsShareOfEachBlock) {
    const Case c = GetParam();
    const AttentionShape shape{c.kvHeads * c.group, c.kvHeads, c.dim, c.blockSize};
    // The first token of a block, the last one, one within; one row is not active.
    const std::vector<std::int32_t> position{c.blockSize * 9, c.blockSize * 7 - 1, c.blockSize * 4 + 5, 3, 0};
    const std::vector<std::uint8_t> active{1, 1, 1, 0, 1};
    const int rows = int(position.size()), heads = rows * c.kvHeads, maxBlocks = 12, slots = 3,
              unit = c.unit > 0 ? c.unit : c.blockSize, maxUnits = maxBlocks * c.blockSize / unit;
    const std::size_t element = blockElements(c.blockSize, c.dim);
    const auto q = halves(std::size_t(rows * shape.queryHeads * c.dim));
    auto blocks = halves(std::size_t(heads * maxBlocks) * element);
    const auto bias = floats(std::size_t(heads * maxBlocks * c.blockSize));
    std::vector<std::int64_t> headFirst, biasFirst;
    std::vector<std::int32_t> map(std::size_t(heads * slots), -1);
    std::vector<Half> pool = halves(std::size_t(heads * slots) * element);
    for (int h = 0; h < heads; ++h) {
        headFirst.push_back(std::int64_t(h) * maxBlocks);
        biasFirst.push_back(headFirst.back() * c.blockSize);
        const int newest = position[std::size_t(h / c.kvHeads)] / c.blockSize, slot = h % slots;
        map[std::size_t(h * slots + slot)] = newest;
        if (!c.slots) continue;
        // The truth is in the slot; what the store holds for it is old.
        const auto at = blocks.begin() + std::ptrdiff_t(std::size_t(h * maxBlocks + newest) * element);
        std::copy_n(at, element, pool.begin() + std::ptrdiff_t(std::size_t(h * slots + slot) * element));
    }
    auto stored = blocks;
    if (c.slots)
        for (int h = 0; h < heads; ++h) {
            const int newest = position[std::size_t(h / c.kvHeads)] / c.blockSize;
            std::fill_n(stored.begin() + std::ptrdiff_t(std::size_t(h * maxBlocks + newest) * element), element,
                        toBf16(50.f));
        }
    const OnDevice<Half> dq(q), dblocks(stored), dpool(pool);
    const OnDevice<std::int64_t> dfirst(headFirst), dbias(biasFirst);
    const OnDevice<std::int32_t> dposition(position), dmap(map);
    const OnDevice<std::uint8_t> dactive(active);
    const OnDevice<float> biases(bias), logSums(std::size_t(rows * shape.queryHeads * maxUnits)),
        mass(std::size_t(heads * maxUnits));
    BlockMassArgs args;
    args.shape = shape;
    args.rows = rows;
    args.position = dposition.get();
    args.active = dactive.get();
    args.q = dq.bf16();
    args.blocks = dblocks.bf16();
    args.headFirst = dfirst.get();
    if (c.slots) args.slots = slots, args.pool = dpool.bf16(), args.map = dmap.get();
    args.tokenBias = biases.get();
    args.biasFirst = dbias.get();
    args.scale = 1 / std::sqrt(float(c.dim));
    args.biasScale = c.bias ? 0.7f : 0.f;
    args.window = c.window;
    args.maxBlocks = maxBlocks;
    args.unit = c.unit;
    args.logSums = logSums.get();
    args.mass = mass.get();
    measureBlockMass(launch, args);
    check(cudaStreamSynchronize(launch.stream), "measuring");
    const auto got = mass.read();
    for (int row = 0; row < rows; ++row)
        for (int g = 0; g < c.kvHeads; ++g) {
            SCOPED_TRACE(row * 100 + g);
            const int head = row * c.kvHeads + g, last = position[std::size_t(row)] / unit;
            const int begin = c.window > 0 ? std::max(0, position[std::size_t(row)] + 1 - c.window) : 0;
            std::vector<double> want(std::size_t(maxUnits), 0);
            for (int h = 0; h < c.group; ++h) {
                std::vector<double> weights;
                double all = 0;
                for (int t = begin; t <= position[std::size_t(row)]; ++t) {
                    double dot = 0;
                    const std::size_t key = std::size_t(head * maxBlocks + t / c.blockSize) * element +
                                            std::size_t(t % c.blockSize * c.dim);
                    for (int i = 0; i < c.dim; ++i)
                        dot += double(toFloat(q[std::size_t((row * shape.queryHeads + g * c.group + h) * c.dim + i)])) *
                               double(toFloat(blocks[key + std::size_t(i)]));
                    const double added =
                        c.bias ? 0.7f * double(bias[std::size_t(biasFirst[std::size_t(head)]) + std::size_t(t)]) : 0;
                    weights.push_back(std::exp(dot * double(args.scale) + added));
                    all += weights.back();
                }
                for (std::size_t t = 0; t < weights.size(); ++t)
                    want[(std::size_t(begin) + t) / std::size_t(unit)] += weights[t] / all / c.group;
            }
            double sum = 0;
            for (int b = 0; b < maxUnits; ++b) {
                const float value = got[std::size_t(head * maxUnits + b)];
                if (active[std::size_t(row)] == 0 || b > last || b < begin / unit) {
                    EXPECT_TRUE(std::isnan(value)) << "written out of sight, block " << b;
                    continue;
                }
                EXPECT_NEAR(value, want[std::size_t(b)], 2e-5); // float32 sums of up to 2304 weights
                sum += double(value);
            }
            if (active[std::size_t(row)] != 0) {
                EXPECT_NEAR(sum, 1, 1e-5);
            }
        }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaBlockMass,
                         ::testing::Values(Case{64, 2, 8, 64, false, false}, Case{64, 2, 8, 64, true, true},
                                           Case{128, 2, 16, 64, true, true}, Case{128, 1, 1, 16, true, false},
                                           Case{128, 8, 4, 256, true, true}, Case{64, 1, 32, 32, false, true},
                                           Case{64, 2, 8, 64, true, true, 200}, Case{128, 2, 4, 16, false, false, 33},
                                           Case{128, 1, 3, 64, true, false, 1}, Case{64, 2, 3, 64, true, true, 0, 1},
                                           Case{128, 1, 9, 64, false, true, 100, 8},
                                           Case{128, 2, 4, 256, true, false, 0, 1}));

TEST_F(CudaTest, NewKeysGoToTheirPlaceAndNowhereElse) {
    const AttentionShape shape{6, 3, 64, 16};
    const std::vector<std::int32_t> position{0, 37, 15};
    const std::vector<std::uint8_t> active{1, 1, 0};
    constexpr int kBlocks = 4;
    const int heads = int(position.size()) * shape.kvHeads;
    const std::size_t element = blockElements(shape);
    std::vector<std::int64_t> first;
    for (int h = 0; h < heads; ++h) first.push_back(std::int64_t(heads - 1 - h) * kBlocks);
    const auto keys = halves(std::size_t(heads * shape.dim));
    auto want = halves(std::size_t(heads * kBlocks) * element);
    const OnDevice<Half> dkeys(keys), blocks(want);
    const OnDevice<std::int32_t> dposition(position);
    const OnDevice<std::uint8_t> dactive(active);
    const OnDevice<std::int64_t> dfirst(first);
    keepKeys(launch,
             {shape, int(position.size()), dposition.get(), dactive.get(), dkeys.bf16(), blocks.bf16(), dfirst.get()});
    check(cudaStreamSynchronize(launch.stream), "testing");
    for (int h = 0; h < heads; ++h) {
        const std::size_t row = std::size_t(h / shape.kvHeads), at = std::size_t(position[row]);
        if (active[row] == 0) continue;
        std::copy_n(&keys[std::size_t(h * shape.dim)], shape.dim,
                    &want[(std::size_t(first[std::size_t(h)]) + at / 16) * element + at % 16 * 64]);
    }
    EXPECT_EQ(blocks.read(), want);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
