// A decoded token's way into the cache and the block index, against float64; from its projections, and from the input
// of a layer.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/token/project_heads.h"

#include <algorithm>
#include <memory>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

struct TokenCase {
    int dim, group, blockSize, kernel, stride;
    bool interleaved, normed, resident;
    int cols = 0; // of the projections; 0: they are made already
    bool biased = false, listed = false, byToken = false;
    int inputs = 1;          // projected together
    bool newestOnly = false; // blocks are the newest ones alone
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
    if (c.newestOnly) *out << ", newest blocks";
}

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

/// Decodes tokens of some sequences one after the other, and keeps what the kernels wrote in every step.
class CudaToken : public CudaTest, public ::testing::WithParamInterface<TokenCase> {
protected:
    static constexpr int kKvHeads = 2, kSteps = 70, kMost = 150; // kMost: tokens that a sequence has room for
    static constexpr int kCapacity = 3;                          // of a list of blocks

    /// What one step was given and what it wrote.
    struct Step {
        std::vector<float> qkv, plain;           // [rows, width]; plain: as the kernel projected them
        std::vector<Half> q, key, value, blocks; // rotated queries; the new tokens; all KV blocks
    };

    void SetUp() override {
        CudaTest::SetUp();
        if (IsSkipped()) return;
        layer_ = {width(),
                  c_.cols,
                  halves(std::size_t((width() + 2 * kKvHeads) * c_.cols), 1 / std::sqrt(float(c_.cols))),
                  floats(std::size_t(c_.cols)),
                  {}};
        if (c_.biased) layer_.bias = floats(std::size_t(width()));
        cosines_ = floats(std::size_t(c_.rows() * kMost * c_.dim / 2));
        sines_ = floats(cosines_.size());
        delta_ = floats(std::size_t(kKvHeads * kKvHeads * c_.dim), 0.1f);
        gain_ = floats(kKvHeads);
        queryNorm_ = floats(std::size_t(c_.dim));
        keyNorm_ = floats(std::size_t(c_.dim));
        decode();
    }

    int heads() const { return c_.rows() * kKvHeads; }
    int queryHeads() const { return kKvHeads * c_.group; }
    int width() const { return (queryHeads() + 2 * kKvHeads) * c_.dim; }
    int blocksOfHead() const { return (kMost + c_.blockSize - 1) / c_.blockSize + 1; }
    /// Where a block lies: with lists in another slot than its number.
    int slotOf(int block) const { return c_.listed ? blocksOfHead() - 1 - block : block; }
    int ropeFirst(int row) const { return row * kMost; }
    /// What a step's projections made for a KV head: its key or its value, and where the values of all heads begin.
    const float* keyOf(const Step& step, int h) const {
        return step.qkv.data() + h / kKvHeads * width() + (queryHeads() + h % kKvHeads) * c_.dim;
    }
    const float* valuesOf(const Step& step, int h) const {
        return step.qkv.data() + h / kKvHeads * width() + (queryHeads() + kKvHeads) * c_.dim;
    }
    /// A head of a row's token as it must be rotated at a step's position, in float64.
    std::vector<double> rotated(int row, int position, const float* x, const std::vector<float>& norm) const {
        double squares = 0;
        for (int i = 0; i < c_.dim; ++i) squares += double(x[i]) * double(x[i]);
        const double inverse = 1 / std::sqrt(squares / c_.dim + 1e-5);
        std::vector<double> scaled;
        for (int i = 0; i < c_.dim; ++i)
            scaled.push_back(double(x[i]) * (c_.normed ? inverse * double(norm[std::size_t(i)]) : 1.0));
        const int angle = (ropeFirst(row) + position) * c_.dim / 2;
        return rotatedPairs(scaled, cosines_.data() + angle, sines_.data() + angle, c_.interleaved);
    }
    /// How near a number that is rounded to bf16 must be. What the kernel projected itself comes from float sums in
    /// another order.
    double near(double want) const { return (c_.cols > 0 ? 1e-4 : 1e-5) + std::abs(want) * 0x1.1p-8; }
    /// A channel of a KV head's key of a step, as it was stored.
    float storedKey(int h, int step, int channel) const {
        return toFloat(steps_[std::size_t(step)].key[std::size_t(h * c_.dim + channel)]);
    }
    /// The eviction score of a KV head's token in float64.
    double score(int h, int step) const {
        double sum = 0;
        const float* const values = valuesOf(steps_[std::size_t(step)], h);
        for (int i = 0; i < kKvHeads * c_.dim; ++i)
            sum += double(delta_[std::size_t(h % kKvHeads * kKvHeads * c_.dim + i)]) * double(values[i]);
        return double(gain_[std::size_t(h % kKvHeads)]) * std::log1p(std::exp(sum));
    }

    const TokenCase c_ = GetParam();
    Projections layer_{};
    std::vector<float> cosines_, sines_, delta_, gain_, queryNorm_, keyNorm_;
    std::vector<Step> steps_;
    // The block index after the last step: [heads, kMost, dim], [heads, blocks, 2, dim], [heads, kMost].
    std::vector<Half> pooledKeys_, ranges_;
    std::vector<float> pooledScores_, tokenScores_;

private:
    void decode();
};

void CudaToken::decode() {
    const int rows = c_.rows(), blocks = blocksOfHead(), bs = c_.blockSize;
    const OnDevice<Half> weights(layer_.weights);
    const OnDevice<float> norm(layer_.norm), bias(layer_.bias), cosines(cosines_), sines(sines_), delta(delta_),
        gain(gain_), queryNorm(queryNorm_), keyNorm(keyNorm_);
    std::vector<std::int64_t> firstOfTokens, firstOfBlocks;
    for (int h = 0; h < heads(); ++h) {
        firstOfTokens.push_back(std::int64_t(h) * kMost);
        firstOfBlocks.push_back(std::int64_t(h) * blocks);
    }
    const OnDevice<std::int64_t> tokenFirst(firstOfTokens), blockFirst(firstOfBlocks);
    const OnDevice<Half> recent(std::vector<Half>(std::size_t(heads() * c_.kernel * c_.dim), 0)),
        pooled(std::size_t(heads() * kMost * c_.dim)), ranges(std::size_t(heads() * blocks * 2 * c_.dim)),
        cache(std::size_t(heads() * blocks) * blockElements(bs, c_.dim)), q(std::size_t(rows * queryHeads() * c_.dim)),
        newKey(std::size_t(heads() * c_.dim)), newValue(std::size_t(heads() * c_.dim));
    const OnDevice<float> recentScores(std::vector<float>(std::size_t(heads() * c_.kernel), 0)),
        pooledScores(std::size_t(heads() * kMost)), tokenScores(std::size_t(heads() * kMost)),
        plain(std::size_t(rows * width()));
    std::vector<std::int32_t> firstOfRope;
    for (int r = 0; r < rows; ++r) firstOfRope.push_back(ropeFirst(r));
    const OnDevice<std::int32_t> ropeFirsts(firstOfRope),
        listCount(std::vector<std::int32_t>(std::size_t(heads()), 2)); // the last entry is the newest block
    const DeviceMatrix matrix{weights.bf16(), width(), c_.cols};
    if (c_.cols > 0 && c_.scored()) foldEvictionHead(launch, matrix, delta.get(), kKvHeads, kKvHeads * c_.dim);
    AppendArgs a;
    a.shape = {queryHeads(), kKvHeads, c_.dim, bs};
    a.cos = cosines.get();
    a.sin = sines.get();
    a.interleaved = c_.interleaved;
    if (c_.scored()) a.eviction = {delta.get(), gain.get(), c_.cols > 0};
    if (c_.normed) a.norms = {queryNorm.get(), keyNorm.get(), 1e-5f};
    a.q = q.bf16();
    a.index.kernel = c_.kernel;
    a.index.stride = c_.stride;
    a.index.recentKeys = recent.bf16();
    if (c_.scored()) a.index.recentScores = recentScores.get();
    a.index.pooledKeys = pooled.bf16();
    a.index.pooledScores = pooledScores.get();
    a.index.ranges = ranges.bf16();
    a.index.tokenScores = tokenScores.get();
    a.index.windowFirst = a.index.tokenFirst = tokenFirst.get();
    a.index.blockFirst = blockFirst.get();
    a.rows = rows;
    a.ropeFirst = ropeFirsts.get();
    if (c_.resident) a.blocks = cache.bf16(), a.headFirst = blockFirst.get();
    a.newKey = newKey.bf16();
    a.newValue = newValue.bf16();
    a.valuesByToken = c_.byToken;
    a.newestOnly = c_.newestOnly;
    for (int step = 0; step < kSteps; ++step) {
        const auto input = floats(std::size_t(c_.cols * c_.inputs));
        Step& now = steps_.emplace_back();
        now.qkv = c_.cols > 0 ? layer_.of(input) : floats(std::size_t(rows * width()));
        const OnDevice<float> qkv(now.qkv), dinput(input);
        std::vector<std::int32_t> slots(std::size_t(heads() * kCapacity), -1);
        for (int h = 0; h < heads(); ++h) slots[std::size_t(h * kCapacity + 1)] = slotOf(step / bs);
        const OnDevice<std::int32_t> listSlot(slots), position(std::vector<std::int32_t>(std::size_t(rows), step));
        a.qkv = qkv.get();
        a.position = position.get();
        if (c_.listed) a.listSlot = listSlot.get(), a.listCount = listCount.get(), a.capacity = kCapacity;
        if (c_.cols > 0) {
            ASSERT_TRUE(canProjectAndAppend(matrix, a));
            Launch how = launch;
            if (step % 2 != 0) how.multiprocessors = 4; // a thread block then takes several lots of outputs
            const float* const added = c_.biased ? bias.get() : nullptr;
            projectAndAppend(how, {matrix, dinput.get(), {norm.get(), Projections::kEps}, added, plain.get(), nullptr},
                             a);
        } else {
            rotateAndAppend(launch, a);
        }
        check(cudaStreamSynchronize(launch.stream), "testing");
        now.q = q.read(), now.key = newKey.read(), now.value = newValue.read(), now.blocks = cache.read();
        if (c_.cols > 0) now.plain = plain.read();
    }
    pooledKeys_ = pooled.read(), ranges_ = ranges.read();
    pooledScores_ = pooledScores.read(), tokenScores_ = tokenScores.read();
}

TEST_P(CudaToken, QueriesAndKeysAreRotated) {
    for (int step = 0; step < kSteps; ++step) {
        const Step& now = steps_[std::size_t(step)];
        if (c_.cols > 0) {
            EXPECT_LT(relativeError(now.plain, now.qkv), 1e-5) << step;
        }
        for (int h = 0; h < heads(); ++h) {
            SCOPED_TRACE(::testing::Message() << "step " << step << ", head " << h);
            const int row = h / kKvHeads;
            for (int head = 0; head < c_.group; ++head) {
                const int at = h % kKvHeads * c_.group + head;
                const auto want = rotated(row, step, now.qkv.data() + row * width() + at * c_.dim, queryNorm_);
                for (int i = 0; i < c_.dim; ++i)
                    EXPECT_NEAR(toFloat(now.q[std::size_t((row * queryHeads() + at) * c_.dim + i)]),
                                want[std::size_t(i)], near(want[std::size_t(i)]));
            }
            const auto want = rotated(row, step, keyOf(now, h), keyNorm_);
            for (int i = 0; i < c_.dim; ++i)
                EXPECT_NEAR(storedKey(h, step, i), want[std::size_t(i)], near(want[std::size_t(i)]));
        }
    }
}

TEST_P(CudaToken, KeysAndValuesGoToTheirPlaces) {
    const int bs = c_.blockSize;
    for (int step = 0; step < kSteps; ++step)
        for (int h = 0; h < heads(); ++h) {
            SCOPED_TRACE(::testing::Message() << "step " << step << ", head " << h);
            const Step& now = steps_[std::size_t(step)];
            const float* const value = valuesOf(now, h) + h % kKvHeads * c_.dim;
            const int at = c_.newestOnly ? h : h * blocksOfHead() + slotOf(step / bs);
            const std::size_t block = std::size_t(at) * blockElements(bs, c_.dim);
            for (int i = 0; i < c_.dim; ++i) {
                const Half stored = now.value[std::size_t(h * c_.dim + i)];
                if (c_.cols > 0)
                    EXPECT_NEAR(toFloat(stored), value[i], near(double(value[i])));
                else
                    EXPECT_EQ(stored, toBf16(value[i]));
                if (!c_.resident) continue;
                const int place = c_.byToken ? step % bs * c_.dim + i : i * bs + step % bs;
                EXPECT_EQ(now.blocks[block + std::size_t(bs * c_.dim + place)], stored);
                EXPECT_EQ(now.blocks[block + std::size_t(step % bs * c_.dim + i)],
                          now.key[std::size_t(h * c_.dim + i)]);
            }
        }
}

TEST_P(CudaToken, ScoresArePooledOverWindows) {
    if (!c_.scored()) GTEST_SKIP() << "without an eviction head";
    for (int h = 0; h < heads(); ++h) {
        for (int t = 0; t < kSteps; ++t) EXPECT_NEAR(tokenScores_[std::size_t(h * kMost + t)], score(h, t), 1e-4);
        for (int w = 0; w * c_.stride + c_.kernel <= kSteps; ++w) {
            double sum = 0;
            for (int t = 0; t < c_.kernel; ++t) sum += score(h, w * c_.stride + t);
            EXPECT_NEAR(pooledScores_[std::size_t(h * kMost + w)], sum / c_.kernel, 1e-4);
        }
    }
}

/// Keys are pooled, and ranged, as they are stored.
TEST_P(CudaToken, KeysArePooledOverWindowsAndRangedOverBlocks) {
    const int bs = c_.blockSize;
    for (int h = 0; h < heads(); ++h)
        for (int i = 0; i < c_.dim; ++i) {
            for (int w = 0; w * c_.stride + c_.kernel <= kSteps; ++w) {
                double sum = 0;
                for (int t = 0; t < c_.kernel; ++t) sum += double(storedKey(h, w * c_.stride + t, i));
                EXPECT_NEAR(toFloat(pooledKeys_[std::size_t((h * kMost + w) * c_.dim + i)]), sum / c_.kernel,
                            1e-5 + std::abs(sum / c_.kernel) * 0x1.1p-8);
            }
            for (int b = 0; b * bs < kSteps; ++b) {
                float low = INFINITY, high = -INFINITY;
                for (int t = b * bs; t < std::min((b + 1) * bs, kSteps); ++t) {
                    low = std::min(low, storedKey(h, t, i));
                    high = std::max(high, storedKey(h, t, i));
                }
                const std::size_t at = std::size_t((h * blocksOfHead() + b) * 2 * c_.dim + i);
                EXPECT_EQ(toFloat(ranges_[at]), low);
                EXPECT_EQ(toFloat(ranges_[at + std::size_t(c_.dim)]), high);
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
        TokenCase{64, 4, 32, 16, 16, true, false, true, 512, false, true, true, 4},
        TokenCase{128, 16, 64, 32, 16, false, false, true, 0, false, false, false, 1, true},
        TokenCase{64, 3, 16, 8, 4, true, false, true, 512, false, false, false, 1, true},
        TokenCase{64, 2, 32, 8, 4, false, false, true, 1024, false, false, false, 5, true}));

/// Sequences of different lengths, one of which has ended: what is projected together goes where the kernel for
/// projected tokens, which the tests above compare with float64, puts it.
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

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
