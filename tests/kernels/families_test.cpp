// What some architectures ask of the kernels beyond plain heads: widths that fill no vector, values that are the
// beginning of the keys, sliding windows, norms of heads, one matrix per head, other ways to rotate. Against float64.
#include "tests/kernels/kernel_fixture.h"

#include <algorithm>
#include <deque>
#include <gmock/gmock.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::onEveryInstructionSet;
using test::randomFloats;

struct Shape {
    int dim, valueDim, group, blockSize, tokens, window; // valueDim 0: separate values as wide as the keys
};

/// One KV head, token by token and in blocks. What lies past the last token is finite but enormous.
struct Head {
    Head(std::mt19937& random, const Shape& s)
        : shape(s), width(s.valueDim > 0 ? s.valueDim : s.dim),
          keys(randomFloats(random, std::size_t(s.tokens) * std::size_t(s.dim), 0.6f)) {
        if (s.valueDim == 0) values = randomFloats(random, keys.size());
        for (int first = 0; first < s.tokens; first += s.blockSize) {
            const int held = std::min(s.blockSize, s.tokens - first);
            auto& k = memory.emplace_back(std::size_t(s.dim) * std::size_t(s.blockSize), 1e15f);
            for (int t = 0; t < held; ++t)
                for (int c = 0; c < s.dim; ++c) k[std::size_t(c * s.blockSize + t)] = key(first + t, c);
            const float* stored = nullptr;
            if (s.valueDim == 0) {
                auto& v = memory.emplace_back(std::size_t(s.dim) * std::size_t(s.blockSize), -1e30f);
                for (int t = 0; t < held; ++t)
                    for (int c = 0; c < s.dim; ++c) v[std::size_t(t * s.dim + c)] = value(first + t, c);
                stored = v.data();
            }
            blocks.push_back({k.data(), stored, nullptr, held});
        }
    }
    float key(int t, int c) const { return keys[std::size_t(t * shape.dim + c)]; }
    float value(int t, int c) const { return values.empty() ? key(t, c) : values[std::size_t(t * shape.dim + c)]; }

    /// Attention of one query over tokens [first, end).
    std::vector<double> attend(const float* q, int first, int end, double scale) const {
        std::vector<double> logits, out(std::size_t(width), 0.);
        for (int t = first; t < end; ++t) {
            double dot = 0;
            for (int c = 0; c < shape.dim; ++c) dot += double(q[c]) * double(key(t, c));
            logits.push_back(scale * dot);
        }
        const double top = *std::max_element(logits.begin(), logits.end());
        double sum = 0;
        for (double& logit : logits) sum += logit = std::exp(logit - top);
        for (int t = first; t < end; ++t)
            for (int c = 0; c < width; ++c)
                out[std::size_t(c)] += logits[std::size_t(t - first)] / sum * double(value(t, c));
        return out;
    }

    Shape shape;
    int width;
    std::vector<float> keys, values;
    std::deque<std::vector<float>> memory;
    std::vector<KvBlockView> blocks;
};

constexpr Shape kShapes[] = {
    {8, 0, 1, 16, 5, 0},      {20, 0, 3, 16, 70, 0},  {33, 0, 5, 32, 100, 0},     {6, 0, 2, 64, 130, 20},
    {64, 0, 4, 16, 90, 16},   {64, 0, 2, 16, 90, 17}, {576, 512, 16, 64, 150, 0}, {40, 24, 7, 16, 90, 0},
    {40, 24, 128, 16, 35, 9}, {9, 5, 3, 16, 40, 0},
};

// A dot product of up to 576 terms near 1 in float32, times weights that sum to 1.
constexpr double kTolerance = 3e-5;

TEST(FamilyShapes, DecodeAttentionEqualsTheReference) {
    std::mt19937 random(3);
    onEveryInstructionSet([&] {
        for (const Shape& s : kShapes)
            for (const int threads : {1, 3}) {
                SCOPED_TRACE(::testing::Message() << "dim " << s.dim << " value " << s.valueDim << " group " << s.group
                                                  << " window " << s.window << " threads " << threads);
                Head head(random, s);
                const int firstToken = s.window > 0 ? std::max(0, s.tokens - s.window) : 0;
                std::vector<KvBlockView> seen(head.blocks.begin() + firstToken / s.blockSize, head.blocks.end());
                seen.front().begin = firstToken % s.blockSize;
                const auto q = randomFloats(random, std::size_t(s.group * s.dim));
                std::vector<float> out(std::size_t(s.group * head.width) + 1, test::kSentinel);
                const AttentionItem item{q.data(), seen.data(), int(seen.size()), out.data(), nullptr};
                const float scale = 1.f / std::sqrt(float(s.dim));
                makeCpuKernels(threads)->blockAttention(
                    {s.group, s.dim, s.blockSize, s.dim, head.width, scale, 0.f, {&item, 1}, s.valueDim});
                for (int h = 0; h < s.group; ++h) {
                    const auto want =
                        head.attend(q.data() + std::size_t(h * s.dim), firstToken, s.tokens, double(scale));
                    for (int c = 0; c < head.width; ++c)
                        ASSERT_NEAR(out[std::size_t(h * head.width + c)], want[std::size_t(c)], kTolerance)
                            << "head " << h << " channel " << c;
                }
                EXPECT_EQ(out.back(), test::kSentinel);
            }
    });
}

TEST(FamilyShapes, PrefillAttentionEqualsTheReference) {
    std::mt19937 random(4);
    onEveryInstructionSet([&] {
        for (const Shape& s : kShapes)
            for (const int first : {0, 3}) {
                SCOPED_TRACE(::testing::Message() << "dim " << s.dim << " value " << s.valueDim << " group " << s.group
                                                  << " window " << s.window << " first " << first);
                Head head(random, s);
                const int n = s.tokens - first;
                const auto q = randomFloats(random, std::size_t(n * s.group * s.dim));
                std::vector<float> out(std::size_t(n * s.group * head.width) + 1, test::kSentinel);
                const KvBlockView* const list[] = {head.blocks.data()};
                PrefillAttentionArgs args;
                args.q = q.data();
                args.n = n;
                args.qStride = s.group * s.dim;
                args.firstPosition = first;
                args.kvHeads = 1;
                args.group = s.group;
                args.dim = s.dim;
                args.blockSize = s.blockSize;
                args.blocks = list;
                args.scale = 1.f / std::sqrt(float(s.dim));
                args.out = out.data();
                args.outStride = s.group * head.width;
                args.valueDim = s.valueDim;
                args.window = s.window;
                makeCpuKernels(2)->prefillAttention(args);
                for (int t = 0; t < n; t += 1 + n / 9)
                    for (int h = 0; h < s.group; h += 1 + s.group / 5) {
                        const int end = first + t + 1, begin = s.window > 0 ? std::max(0, end - s.window) : 0;
                        const auto row = std::size_t(t * s.group + h);
                        const auto want =
                            head.attend(q.data() + row * std::size_t(s.dim), begin, end, double(args.scale));
                        for (int c = 0; c < head.width; ++c)
                            ASSERT_NEAR(out[row * std::size_t(head.width) + std::size_t(c)], want[std::size_t(c)],
                                        kTolerance)
                                << "token " << t << " head " << h << " channel " << c;
                    }
                EXPECT_EQ(out.back(), test::kSentinel);
            }
    });
}

/// Windows before the first are as if they did not exist.
TEST(FamilyShapes, GroupScoresLeaveOutWhatIsOutOfSight) {
    std::mt19937 random(5);
    const int dim = 24, tile = 64, windows = 150, first = 70, group = 3;
    std::deque<std::vector<float>> memory;
    std::vector<const float*> tiles;
    for (int t = 0; t < windows; t += tile)
        tiles.push_back(memory.emplace_back(randomFloats(random, std::size_t(dim * tile))).data());
    const auto q = randomFloats(random, std::size_t(group * dim));
    std::vector<float> scores(windows, 9.f);
    const GroupScoreItem item{q.data(), tiles.data(), windows, scores.data(), first};
    makeCpuKernels(1)->groupScores({group, dim, tile, dim, 0.2f, {&item, 1}});
    std::vector<double> want(windows, 0.);
    for (int h = 0; h < group; ++h) {
        double sum = 0;
        std::vector<double> weight(windows, 0.);
        for (int w = first; w < windows; ++w) {
            double dot = 0;
            for (int c = 0; c < dim; ++c)
                dot += double(q[std::size_t(h * dim + c)]) * double(tiles[std::size_t(w / tile)][c * tile + w % tile]);
            sum += weight[std::size_t(w)] = std::exp(0.2 * dot);
        }
        for (int w = first; w < windows; ++w) want[std::size_t(w)] += weight[std::size_t(w)] / sum;
    }
    for (int w = 0; w < windows; ++w) EXPECT_NEAR(scores[std::size_t(w)], want[std::size_t(w)], 1e-5) << w;
}

TEST(FamilyShapes, NormsEveryVectorInPlace) {
    std::mt19937 random(6);
    onEveryInstructionSet([&] {
        for (const int dim : {1, 7, 16, 128, 512}) {
            const int n = 5, heads = 3, stride = heads * dim + 4;
            auto x = randomFloats(random, std::size_t(n * stride));
            const auto before = x, weight = randomFloats(random, std::size_t(dim));
            makeCpuKernels(2)->norm({x.data(), n, heads, dim, stride, weight.data(), 1e-5f});
            for (int row = 0; row < n; ++row)
                for (int i = 0; i < stride; ++i) {
                    const auto at = std::size_t(row * stride + i);
                    if (i >= heads * dim) {
                        ASSERT_EQ(x[at], before[at]);
                        continue;
                    }
                    double sum = 0;
                    for (int c = 0; c < dim; ++c) {
                        const double value = before[std::size_t(row * stride + i / dim * dim + c)];
                        sum += value * value;
                    }
                    const double want =
                        double(before[at]) * double(weight[std::size_t(i % dim)]) / std::sqrt(sum / dim + 1e-5);
                    ASSERT_NEAR(x[at], want, 1e-5 * (1 + std::abs(want)));
                }
        }
    });
}

TEST(FamilyShapes, EveryHeadGoesThroughItsOwnMatrix) {
    std::mt19937 random(7);
    onEveryInstructionSet([&] {
        for (const DType type : {DType::F32, DType::F16, DType::BF16})
            for (const int n : {1, 3, 8, 9, 40})
                for (const auto& [rows, cols] : {std::pair{5, 7}, {64, 24}, {33, 130}}) {
                    SCOPED_TRACE(::testing::Message() << nameOf(type) << " n " << n << " rows " << rows);
                    const int heads = 3, between = 2; // rows between the heads' matrices belong to nobody
                    const test::Weights weights(randomFloats(random, std::size_t(heads * (rows + between) * cols)),
                                                type, heads * (rows + between), cols, 0);
                    const int xHead = cols + 3, yHead = rows + 1;
                    const auto x = randomFloats(random, std::size_t(n * heads * xHead));
                    std::vector<float> y(std::size_t(n * heads * yHead), test::kSentinel);
                    HeadLinearArgs args;
                    args.n = n;
                    args.heads = heads;
                    args.x = x.data();
                    args.xStride = heads * xHead;
                    args.xHeadStride = xHead;
                    args.weight = weights.matrix();
                    args.weight.rows = rows;
                    args.headBytes = std::size_t((rows + between) * cols * bytesOf(type));
                    args.y = y.data();
                    args.yStride = heads * yHead;
                    args.yHeadStride = yHead;
                    makeCpuKernels(2)->headLinear(args);
                    for (int i = 0; i < n; ++i)
                        for (int h = 0; h < heads; ++h) {
                            const auto base = std::size_t((i * heads + h) * yHead);
                            for (int r = 0; r < rows; ++r) {
                                double want = 0, size = 0;
                                for (int c = 0; c < cols; ++c) {
                                    const double term =
                                        double(x[std::size_t((i * heads + h) * xHead + c)]) *
                                        weights.values[std::size_t((h * (rows + between) + r) * cols + c)];
                                    want += term;
                                    size += std::abs(term);
                                }
                                ASSERT_NEAR(y[base + std::size_t(r)], want, (cols + 4) * test::kRounding * size + 1e-9);
                            }
                            ASSERT_EQ(y[base + std::size_t(rows)], test::kSentinel);
                        }
                }
    });
}

TEST(FamilyShapes, RotatesAPartOfAHeadInEitherLayout) {
    std::mt19937 random(8);
    const int n = 3, heads = 2, dim = 14, first = 4, rotary = 6, half = rotary / 2;
    const std::int32_t rows[] = {0, 5, 9};
    std::vector<float> cos(10 * half), sin(10 * half);
    for (int i = 0; i < 10 * half; ++i)
        cos[std::size_t(i)] = std::cos(0.3f * float(i)), sin[std::size_t(i)] = std::sin(0.3f * float(i));
    for (const bool interleaved : {false, true}) {
        auto x = randomFloats(random, std::size_t(n * heads * dim));
        const auto before = x;
        RopeArgs args{x.data(), n, heads, dim, heads * dim, rows, cos.data(), sin.data(), first, rotary, interleaved};
        makeCpuKernels(1)->rope(args);
        for (int row = 0; row < n; ++row)
            for (int h = 0; h < heads; ++h) {
                const auto base = std::size_t((row * heads + h) * dim);
                for (int c = 0; c < dim; ++c) {
                    if (c >= first && c < first + rotary) continue;
                    EXPECT_EQ(x[base + std::size_t(c)], before[base + std::size_t(c)]);
                }
                for (int i = 0; i < half; ++i) {
                    const auto low = base + std::size_t(first + (interleaved ? 2 * i : i)),
                               high = base + std::size_t(first + (interleaved ? 2 * i + 1 : i + half));
                    const auto at = std::size_t(rows[row] * half + i);
                    EXPECT_NEAR(x[low], before[low] * cos[at] - before[high] * sin[at], 1e-6);
                    EXPECT_NEAR(x[high], before[high] * cos[at] + before[low] * sin[at], 1e-6);
                }
            }
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
