// A decoded token's way into the cache and the block index, against float64; from its projections, and from the input
// of a layer.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/token/project_heads.h"

#include <algorithm>
#include <memory>

namespace kvscope::cuda {
namespace {

using namespace test;

struct TokenCase {
    int dim, group, blockSize, kernel, stride;
    bool interleaved, normed, resident;
    int cols = 0; // of the projections; 0: they are made already
    bool biased = false, listed = false, byToken = false;
    int inputs = 1; // projected together
    int rows() const { return cols > 0 ? inputs : 2; }
    bool scored() const { return !biased; }
};
void PrintTo(const TokenCase& c, std::ostream* out) {
    *out << "dim " << c.dim << ", group " << c.group << (c.interleaved ? ", interleaved" : "")
         << (c.normed ? ", normed" : "") << (c.resident ? ", resident" : "");
    if (c.cols > 0)
        *out << ", from " << c.inputs << " x " << c.cols << " inputs" << (c.biased ? ", biased" : "")
             << (c.listed ? ", listed" : "");
    if (c.byToken) *out << ", values by token";
}

class CudaToken : public CudaTest, public ::testing::WithParamInterface<TokenCase> {};

/// A layer's projections, and what they make of an input in float64.
struct Projections {
    int rows, cols;
    std::vector<Half> weights; // with room for a folded eviction head
    std::vector<float> norm, bias;
    static constexpr float kEps = 1e-5f;

    /// Of inputs one after the other. Where there are several, they are rounded to bf16 after the norm's weights.
    std::vector<float> of(const std::vector<float>& inputs) const {
        std::vector<float> y;
        for (std::size_t first = 0; first < inputs.size(); first += std::size_t(cols)) {
            double squares = 0;
            std::vector<double> x;
            for (int i = 0; i < cols; ++i) {
                const float value = inputs[first + std::size_t(i)], weight = norm[std::size_t(i)];
                squares += double(value) * double(value);
                x.push_back(inputs.size() > std::size_t(cols) ? double(toFloat(toBf16(value * weight)))
                                                              : double(value) * double(weight));
            }
            const double inverse = 1 / std::sqrt(squares / cols + double(kEps));
            for (int r = 0; r < rows; ++r) {
                double sum = 0;
                for (int i = 0; i < cols; ++i)
                    sum += double(toFloat(weights[std::size_t(r * cols + i)])) * x[std::size_t(i)];
                y.push_back(float(sum * inverse + (bias.empty() ? 0 : double(bias[std::size_t(r)]))));
            }
        }
        return y;
    }
};

TEST_P(CudaToken, RotatesStoresScoresAndPools) {
    const TokenCase c = GetParam();
    constexpr int kKvHeads = 2, kSteps = 70;
    const int rows = c.rows(), heads = rows * kKvHeads;
    const int dim = c.dim, half = dim / 2, bs = c.blockSize, queryHeads = kKvHeads * c.group;
    const int width = (queryHeads + 2 * kKvHeads) * dim, most = 150, blocks = (most + bs - 1) / bs + 1;
    const auto cosines = floats(std::size_t(rows * most * half)), sines = floats(cosines.size());
    const auto delta = floats(std::size_t(kKvHeads * kKvHeads * dim), 0.1f), gain = floats(kKvHeads);
    const auto queryNorm = floats(std::size_t(dim)), keyNorm = floats(std::size_t(dim));
    Projections layer{width,
                      c.cols,
                      halves(std::size_t((width + 2 * kKvHeads) * c.cols), 1 / std::sqrt(float(c.cols))),
                      floats(std::size_t(c.cols)),
                      {}};
    if (c.biased) layer.bias = floats(std::size_t(width));
    const OnDevice<Half> weights(layer.weights);
    const OnDevice<float> dnorm(layer.norm), dbias(layer.bias);
    std::vector<std::int64_t> windowFirst, blockFirst, tokenFirst;
    for (int h = 0; h < heads; ++h) {
        windowFirst.push_back(std::int64_t(h) * most);
        blockFirst.push_back(std::int64_t(h) * blocks);
        tokenFirst.push_back(std::int64_t(h) * most);
    }
    const OnDevice<float> dcos(cosines), dsin(sines), ddelta(delta), dgain(gain), dqn(queryNorm), dkn(keyNorm);
    const OnDevice<std::int64_t> dwf(windowFirst), dbf(blockFirst), dtf(tokenFirst);
    const OnDevice<Half> recent(std::vector<Half>(std::size_t(heads * c.kernel * dim), 0)),
        pooled(std::size_t(heads * most * dim)), ranges(std::size_t(heads * blocks * 2 * dim)),
        cache(std::size_t(heads * blocks) * blockElements(bs, dim)), q(std::size_t(rows * queryHeads * dim)),
        newKey(std::size_t(heads * dim)), newValue(std::size_t(heads * dim));
    const OnDevice<float> recentScores(std::vector<float>(std::size_t(heads * c.kernel), 0)),
        pooledScores(std::size_t(heads * most)), tokenScores(std::size_t(heads * most));
    std::vector<std::int32_t> ropeFirst;
    for (int r = 0; r < rows; ++r) ropeFirst.push_back(r * most);
    const OnDevice<std::int32_t> dropeFirst(ropeFirst);
    const DeviceMatrix matrix{weights.bf16(), width, c.cols};
    if (c.cols > 0 && c.scored()) foldEvictionHead(launch, matrix, ddelta.get(), kKvHeads, kKvHeads * dim);
    const OnDevice<float> plain(std::size_t(rows * width));
    // A list whose last entry is the newest block, which lies in another slot than its number.
    constexpr int kCapacity = 3;
    const auto slotOf = [&](int block) { return c.listed ? blocks - 1 - block : block; };
    const OnDevice<std::int32_t> listCount(std::vector<std::int32_t>(std::size_t(heads), 2));
    std::vector<std::vector<std::vector<float>>> keys(static_cast<std::size_t>(heads));
    std::vector<std::vector<double>> scores(static_cast<std::size_t>(heads));
    for (int step = 0; step < kSteps; ++step) {
        const auto input = floats(std::size_t(c.cols * c.inputs));
        const auto qkv = c.cols > 0 ? layer.of(input) : floats(std::size_t(rows * width));
        const OnDevice<float> dqkv(qkv), dinput(input);
        std::vector<std::int32_t> slots(std::size_t(heads * kCapacity), -1);
        for (int h = 0; h < heads; ++h) slots[std::size_t(h * kCapacity + 1)] = slotOf(step / bs);
        const OnDevice<std::int32_t> listSlot(slots);
        const OnDevice<std::int32_t> position(std::vector<std::int32_t>(std::size_t(rows), step));
        AppendArgs a;
        a.shape = {queryHeads, kKvHeads, dim, bs};
        a.qkv = dqkv.get();
        a.cos = dcos.get();
        a.sin = dsin.get();
        a.interleaved = c.interleaved;
        if (c.scored()) a.eviction = {ddelta.get(), dgain.get(), c.cols > 0};
        if (c.normed) a.norms = {dqn.get(), dkn.get(), 1e-5f};
        a.q = q.bf16();
        a.index.kernel = c.kernel;
        a.index.stride = c.stride;
        a.index.recentKeys = recent.bf16();
        if (c.scored()) a.index.recentScores = recentScores.get();
        a.index.pooledKeys = pooled.bf16();
        a.index.pooledScores = pooledScores.get();
        a.index.ranges = ranges.bf16();
        a.index.tokenScores = tokenScores.get();
        a.index.windowFirst = dwf.get();
        a.index.blockFirst = dbf.get();
        a.index.tokenFirst = dtf.get();
        a.rows = rows;
        a.position = position.get();
        a.ropeFirst = dropeFirst.get();
        if (c.resident) a.blocks = cache.bf16(), a.headFirst = dbf.get();
        a.newKey = newKey.bf16();
        a.newValue = newValue.bf16();
        if (c.listed) a.listSlot = listSlot.get(), a.listCount = listCount.get(), a.capacity = kCapacity;
        a.valuesByToken = c.byToken;
        if (c.cols > 0) {
            ASSERT_TRUE(canProjectAndAppend(matrix, a));
            Launch how = launch;
            if (step % 2 != 0) how.multiprocessors = 4; // a thread block then takes several lots of outputs
            projectAndAppend(how,
                             {matrix,
                              dinput.get(),
                              {dnorm.get(), Projections::kEps},
                              c.biased ? dbias.get() : nullptr,
                              plain.get(),
                              nullptr},
                             a);
        } else {
            rotateAndAppend(launch, a);
        }
        check(cudaStreamSynchronize(launch.stream), "testing");
        const auto gotQ = q.read(), gotKey = newKey.read(), gotValue = newValue.read(), gotCache = cache.read();
        if (c.cols > 0) {
            EXPECT_LT(relativeError(plain.read(), qkv), 1e-5);
        }
        // Of what was projected here: float sums in another order, rounded to bf16.
        const double near = c.cols > 0 ? 1e-4 : 1e-5;
        const auto rotated = [&](int row, const float* x, const std::vector<float>& weight) {
            double squares = 0;
            for (int i = 0; i < dim; ++i) squares += double(x[i]) * double(x[i]);
            const double inverse = 1 / std::sqrt(squares / dim + 1e-5);
            std::vector<double> y(static_cast<std::size_t>(dim));
            for (int i = 0; i < half; ++i) {
                const int low = c.interleaved ? 2 * i : i, high = c.interleaved ? 2 * i + 1 : i + half;
                const auto scaled = [&](int at) {
                    return double(x[at]) * (c.normed ? inverse * double(weight[std::size_t(at)]) : 1.0);
                };
                const std::size_t angle = std::size_t((ropeFirst[std::size_t(row)] + step) * half + i);
                y[std::size_t(low)] = scaled(low) * double(cosines[angle]) - scaled(high) * double(sines[angle]);
                y[std::size_t(high)] = scaled(high) * double(cosines[angle]) + scaled(low) * double(sines[angle]);
            }
            return y;
        };
        for (int h = 0; h < heads; ++h) {
            SCOPED_TRACE(::testing::Message() << "step " << step << ", head " << h);
            const int row = h / kKvHeads, g = h % kKvHeads;
            const float *in = &qkv[std::size_t(row * width)], *key = in + (queryHeads + g) * dim,
                        *values = in + (queryHeads + kKvHeads) * dim, *value = values + g * dim;
            for (int head = 0; head < c.group; ++head) {
                const int at = g * c.group + head;
                const auto want = rotated(row, in + at * dim, queryNorm);
                for (int i = 0; i < dim; ++i)
                    EXPECT_NEAR(toFloat(gotQ[std::size_t((row * queryHeads + at) * dim + i)]), want[std::size_t(i)],
                                near + std::abs(want[std::size_t(i)]) * 0x1.1p-8); // rounded to bf16
            }
            const auto want = rotated(row, key, keyNorm);
            keys[std::size_t(h)].emplace_back();
            const std::size_t block = (std::size_t(h * blocks + slotOf(step / bs))) * blockElements(bs, dim);
            for (int i = 0; i < dim; ++i) {
                const Half got = gotKey[std::size_t(h * dim + i)];
                EXPECT_NEAR(toFloat(got), want[std::size_t(i)], near + std::abs(want[std::size_t(i)]) * 0x1.1p-8);
                keys[std::size_t(h)].back().push_back(toFloat(got));
                const Half stored = gotValue[std::size_t(h * dim + i)];
                if (c.cols > 0)
                    EXPECT_NEAR(toFloat(stored), value[i], near + std::abs(double(value[i])) * 0x1.1p-8);
                else
                    EXPECT_EQ(stored, toBf16(value[i]));
                if (c.resident) { // as well
                    const int place = c.byToken ? step % bs * dim + i : i * bs + step % bs;
                    EXPECT_EQ(gotCache[block + std::size_t(bs * dim + place)], stored);
                    EXPECT_EQ(gotCache[block + std::size_t(step % bs * dim + i)], got);
                }
            }
            double sum = 0;
            for (int i = 0; i < kKvHeads * dim; ++i)
                sum += double(delta[std::size_t(g * kKvHeads * dim + i)]) * double(values[i]);
            scores[std::size_t(h)].push_back(double(gain[std::size_t(g)]) * std::log1p(std::exp(sum)));
        }
    }
    // What was pooled of the keys as they are stored.
    const auto gotPooled = pooled.read(), gotRanges = ranges.read();
    const auto gotPooledScores = pooledScores.read(), gotScores = tokenScores.read();
    for (int h = 0; h < heads; ++h) {
        const auto& mine = keys[std::size_t(h)];
        for (int t = 0; t < kSteps && c.scored(); ++t)
            EXPECT_NEAR(gotScores[std::size_t(h * most + t)], scores[std::size_t(h)][std::size_t(t)], 1e-4);
        for (int w = 0; w * c.stride + c.kernel <= kSteps; ++w) {
            double score = 0;
            for (int t = 0; t < c.kernel; ++t) score += scores[std::size_t(h)][std::size_t(w * c.stride + t)];
            if (c.scored()) {
                EXPECT_NEAR(gotPooledScores[std::size_t(h * most + w)], score / c.kernel, 1e-4);
            }
            for (int i = 0; i < dim; ++i) {
                double sum = 0;
                for (int t = 0; t < c.kernel; ++t) sum += double(mine[std::size_t(w * c.stride + t)][std::size_t(i)]);
                EXPECT_NEAR(toFloat(gotPooled[std::size_t((h * most + w) * dim + i)]), sum / c.kernel,
                            1e-5 + std::abs(sum / c.kernel) * 0x1.1p-8);
            }
        }
        for (int b = 0; b * bs < kSteps; ++b)
            for (int i = 0; i < dim; ++i) {
                float low = INFINITY, high = -INFINITY;
                for (int t = b * bs; t < std::min((b + 1) * bs, kSteps); ++t) {
                    low = std::min(low, mine[std::size_t(t)][std::size_t(i)]);
                    high = std::max(high, mine[std::size_t(t)][std::size_t(i)]);
                }
                const std::size_t at = std::size_t((h * blocks + b) * 2 * dim + i);
                EXPECT_EQ(toFloat(gotRanges[at]), low);
                EXPECT_EQ(toFloat(gotRanges[at + std::size_t(dim)]), high);
            }
    }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaToken,
    ::testing::Values(
        TokenCase{64, 3, 64, 32, 16, false, false, false}, TokenCase{128, 16, 64, 32, 16, false, false, true},
        TokenCase{128, 1, 16, 8, 4, true, false, true}, TokenCase{64, 32, 32, 32, 16, false, true, false},
        TokenCase{128, 7, 16, 16, 16, true, true, true}, TokenCase{128, 8, 64, 32, 16, false, false, true, 256},
        TokenCase{64, 3, 64, 32, 16, false, false, false, 2048},
        TokenCase{64, 2, 16, 8, 4, true, false, true, 2560, true}, TokenCase{64, 2, 16, 8, 4, true, false, true, 2560},
        TokenCase{128, 7, 16, 16, 16, true, true, true, 0, false, false, true},
        TokenCase{128, 1, 16, 32, 16, false, false, true, 4096, false, true},
        TokenCase{64, 4, 32, 16, 16, true, false, true, 512, false, true, true},
        TokenCase{128, 8, 64, 32, 16, false, false, true, 256, false, false, false, 2},
        TokenCase{64, 2, 16, 8, 4, true, false, true, 2560, true, false, false, 4},
        TokenCase{128, 1, 16, 32, 16, false, false, true, 4096, false, true, false, 3},
        TokenCase{64, 3, 64, 32, 16, false, false, false, 2048, false, false, false, 2},
        TokenCase{64, 1, 16, 32, 16, false, false, true, 1024, true, false, false, 7},
        TokenCase{64, 1, 16, 8, 4, true, false, true, 2592, false, false, false, 8},
        TokenCase{64, 4, 32, 16, 16, true, false, true, 512, false, true, true, 4}));

/// Sequences of different lengths, one of which has ended: what is projected together goes where the kernel for
/// projected tokens, which a test above compares with float64, puts it.
TEST_F(CudaTest, ProjectedRowsGoWhereTheirOwnPositionsSay) {
    constexpr int kRows = 4, kKvHeads = 2, kQueryHeads = 4, kDim = 64, kCols = 256, kBlock = 16, kMost = 48;
    constexpr int kHeads = kRows * kKvHeads, kBlocks = kMost / kBlock, kWidth = (kQueryHeads + 2 * kKvHeads) * kDim;
    const auto half = [](std::size_t count) { return std::make_unique<OnDevice<Half>>(count); };
    struct Places {
        std::unique_ptr<OnDevice<Half>> q, cache, newKey, newValue, ranges;
    };
    const auto places = [&] {
        return Places{half(kRows * kQueryHeads * kDim), half(kHeads * kBlocks * blockElements(kBlock, kDim)),
                      half(kHeads * kDim), half(kHeads * kDim), half(kHeads * kBlocks * 2 * kDim)};
    };
    const Places projected = places(), placed = places();
    const OnDevice<Half> weights(halves(std::size_t(kWidth * kCols)));
    const OnDevice<float> input(floats(kRows * kCols)), norm(floats(kCols)), cosines(floats(kRows * kMost * kDim / 2)),
        sines(floats(kRows * kMost * kDim / 2)), plain(std::size_t{kRows * kWidth});
    std::vector<std::int64_t> firstBlock;
    for (int h = 0; h < kHeads; ++h) firstBlock.push_back(h * kBlocks);
    const OnDevice<std::int64_t> first(firstBlock);
    const OnDevice<std::int32_t> position(std::vector<std::int32_t>{17, 4, 32, 47}),
        ropeFirst(std::vector<std::int32_t>{3 * kMost, 0, kMost, 2 * kMost});
    const OnDevice<std::uint8_t> active(std::vector<std::uint8_t>{1, 0, 1, 1});
    const auto argsFor = [&](const Places& to) {
        AppendArgs a;
        a.shape = {kQueryHeads, kKvHeads, kDim, kBlock};
        a.qkv = plain.get();
        a.cos = cosines.get();
        a.sin = sines.get();
        a.q = to.q->bf16();
        a.rows = kRows;
        a.position = position.get();
        a.ropeFirst = ropeFirst.get();
        a.active = active.get();
        a.blocks = to.cache->bf16();
        a.headFirst = a.index.blockFirst = first.get();
        a.index.ranges = to.ranges->bf16();
        a.newKey = to.newKey->bf16();
        a.newValue = to.newValue->bf16();
        return a;
    };
    const DeviceMatrix matrix{weights.bf16(), kWidth, kCols};
    ASSERT_TRUE(canProjectAndAppend(matrix, argsFor(projected)));
    projectAndAppend(launch, {matrix, input.get(), {norm.get(), 1e-5f}, nullptr, plain.get(), nullptr},
                     argsFor(projected));
    rotateAndAppend(launch, argsFor(placed));
    ASSERT_EQ(cudaStreamSynchronize(launch.stream), cudaSuccess);
    const auto floatsOf = plain.read();
    for (int r = 0; r < kRows; ++r)
        for (int i = 0; i < kWidth; ++i)
            ASSERT_EQ(std::isnan(floatsOf[std::size_t(r * kWidth + i)]), r == 1) << "row " << r << ", " << i;
    EXPECT_EQ(projected.q->read(), placed.q->read());
    EXPECT_EQ(projected.cache->read(), placed.cache->read());
    EXPECT_EQ(projected.newKey->read(), placed.newKey->read());
    EXPECT_EQ(projected.newValue->read(), placed.newValue->read());
    EXPECT_EQ(projected.ranges->read(), placed.ranges->read());
}

/// Of a row that has ended no list is made: its count is 0, or whatever was there.
TEST_F(CudaTest, AnInactiveRowsTokenGoesNowhere) {
    constexpr int kDim = 64, kKvHeads = 2, kQueryHeads = 4, kCols = 256, kBlock = 16, kCapacity = 3;
    constexpr int kWidth = (kQueryHeads + 2 * kKvHeads) * kDim;
    const OnDevice<Half> weights(halves(std::size_t(kWidth * kCols))), q(std::size_t(kQueryHeads * kDim)),
        cache(4 * blockElements(kBlock, kDim)), newKey(std::size_t(kKvHeads * kDim)),
        newValue(std::size_t(kKvHeads * kDim));
    const OnDevice<float> input(floats(kCols)), norm(floats(kCols)), angles(floats(20 * kDim / 2)),
        plain(std::size_t{kWidth});
    const OnDevice<std::int64_t> headFirst(std::vector<std::int64_t>{0, 2});
    const OnDevice<std::int32_t> position(std::vector<std::int32_t>{17}), ropeFirst(std::vector<std::int32_t>{0}),
        listSlot(std::vector<std::int32_t>(std::size_t(kKvHeads * kCapacity), 0)),
        listCount(std::vector<std::int32_t>{0, -(1 << 29)});
    const OnDevice<std::uint8_t> active(std::vector<std::uint8_t>{0});
    AppendArgs a;
    a.shape = {kQueryHeads, kKvHeads, kDim, kBlock};
    a.cos = a.sin = angles.get();
    a.q = q.bf16();
    a.rows = 1;
    a.position = position.get();
    a.ropeFirst = ropeFirst.get();
    a.active = active.get();
    a.blocks = cache.bf16();
    a.headFirst = headFirst.get();
    a.listSlot = listSlot.get();
    a.listCount = listCount.get();
    a.capacity = kCapacity;
    a.newKey = newKey.bf16();
    a.newValue = newValue.bf16();
    const DeviceMatrix matrix{weights.bf16(), kWidth, kCols};
    ASSERT_TRUE(canProjectAndAppend(matrix, a));
    projectAndAppend(launch, {matrix, input.get(), {norm.get(), 1e-5f}, nullptr, plain.get(), nullptr}, a);
    ASSERT_EQ(cudaStreamSynchronize(launch.stream), cudaSuccess);
    for (const OnDevice<Half>* out : {&q, &cache, &newKey, &newValue})
        for (const Half value : out->read()) ASSERT_EQ(value, 0xffff);
    for (const float value : plain.read()) ASSERT_TRUE(std::isnan(value));
}

} // namespace
} // namespace kvscope::cuda
