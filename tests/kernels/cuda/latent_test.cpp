// Latent attention on the GPU against float64: keys whose first channels are the values, lists in any slot order,
// splits, prompts; the per-head products; what becomes of a token's query and key.
#include "kernels/cuda/token/latent.h"

#include "kernels/cuda/attention/attention_latent.h"
#include "tests/kernels/cuda/device.h"

#include <algorithm>
#include <numeric>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

class CudaLatent : public CudaTest, public ::testing::WithParamInterface<int> {
protected:
    const int dim = GetParam(), valueDim = latentValueOf(dim);

    /// softmax(scale q.k) over the keys, times their first channels.
    std::vector<double> attend(const Half* q, const std::vector<const Half*>& keys, double scale) const {
        std::vector<double> logits, out(std::size_t(valueDim), 0.0);
        double maximum = -1e300, sum = 0;
        for (const Half* key : keys) {
            double dot = 0;
            for (int c = 0; c < dim; ++c) dot += double(toFloat(q[c])) * double(toFloat(key[c]));
            logits.push_back(scale * dot);
            maximum = std::max(maximum, logits.back());
        }
        for (std::size_t t = 0; t < keys.size(); ++t) {
            const double p = std::exp(logits[t] - maximum);
            sum += p;
            for (int c = 0; c < valueDim; ++c) out[std::size_t(c)] += p * double(toFloat(keys[t][c]));
        }
        for (double& value : out) value /= sum;
        return out;
    }
    static std::vector<float> widened(const std::vector<Half>& values) {
        std::vector<float> out;
        for (const Half value : values) out.push_back(toFloat(value));
        return out;
    }
};

TEST_P(CudaLatent, AttendsListedBlocksInAnySlots) {
    const int processors = launch.multiprocessors;
    const struct {
        int heads, blockSize, rows, slots, processors;
    } cases[] = {{16, 64, 1, 9, processors},
                 {20, 16, 3, 12, processors},
                 {4, 48, 2, 5, 2},
                 {40, 256, 1, 3, 2},
                 {1, 64, 2, 20, processors},
                 // Blocks of one token, as dsa lists them.
                 {16, 1, 3, 130, processors},
                 {40, 1, 2, 700, 2},
                 {64, 1, 1, 2048, processors}};
    for (const auto& c : cases) {
        SCOPED_TRACE(::testing::Message()
                     << c.heads << " heads, blocks of " << c.blockSize << ", " << c.rows << " rows");
        launch.multiprocessors = c.processors;
        const int bs = c.blockSize, maxBlocks = c.slots + 7;
        const AttentionShape shape{c.heads, 1, dim, bs, valueDim};
        const auto q = halves(std::size_t(c.rows * c.heads * dim)),
                   pool = halves(std::size_t(c.rows * c.slots) * blockElements(shape));
        std::vector<std::int32_t> position, ids(std::size_t(c.rows * c.slots)), places(ids.size()), count;
        std::vector<std::int64_t> first;
        for (int row = 0; row < c.rows; ++row) {
            position.push_back(uniform((maxBlocks - 1) * bs, maxBlocks * bs - 1));
            const int n = uniform(1, c.slots);
            std::vector<std::int32_t> all(std::size_t(maxBlocks - 1)), order(static_cast<std::size_t>(c.slots));
            std::iota(all.begin(), all.end(), 0);
            std::shuffle(all.begin(), all.end(), random);
            all.resize(std::size_t(n - 1));
            all.push_back(maxBlocks - 1);
            std::sort(all.begin(), all.end());
            std::iota(order.begin(), order.end(), 0);
            std::shuffle(order.begin(), order.end(), random);
            std::copy(all.begin(), all.end(), ids.begin() + row * c.slots);
            std::copy_n(order.begin(), n, places.begin() + row * c.slots);
            count.push_back(n);
            first.push_back(std::int64_t(row) * c.slots);
        }
        const OnDevice<Half> dq(q), dp(pool), out(std::size_t(c.rows * c.heads * valueDim));
        const OnDevice<std::int32_t> dpos(position), did(ids), dplace(places), dcount(count);
        const OnDevice<std::int64_t> dfirst(first);
        const OnDevice<float> partial(attentionPartialFloats(launch, shape, c.rows, c.slots));
        const OnDevice<std::uint32_t> arrivals(std::vector<std::uint32_t>(attentionArrivals(shape, c.rows), 0));
        DecodeAttentionArgs a;
        a.shape = shape;
        a.rows = c.rows;
        a.position = dpos.get();
        a.q = dq.bf16();
        a.blocks = dp.bf16();
        a.headFirst = dfirst.get();
        a.list.block = did.get();
        a.list.slot = dplace.get();
        a.list.count = dcount.get();
        a.list.capacity = a.maxBlocks = c.slots;
        a.scale = 0.05f;
        a.out = out.bf16();
        a.scratch.partial = partial.get();
        a.scratch.arrivals = arrivals.get();
        bs == 1 ? latentDecodeAttention(launch, a) : decodeAttention(launch, a);
        check(cudaStreamSynchronize(launch.stream), "testing");
        std::vector<double> want;
        for (int row = 0; row < c.rows; ++row)
            for (int h = 0; h < c.heads; ++h) {
                std::vector<const Half*> keys;
                for (int i = 0; i < count[std::size_t(row)]; ++i) {
                    const std::size_t at = std::size_t(row * c.slots + i);
                    const Half* block =
                        &pool[(std::size_t(row * c.slots) + std::size_t(places[at])) * blockElements(shape)];
                    for (int t = 0; t < bs && ids[at] * bs + t <= position[std::size_t(row)]; ++t)
                        keys.push_back(block + t * dim);
                }
                const auto one = attend(&q[std::size_t((row * c.heads + h) * dim)], keys, double(a.scale));
                want.insert(want.end(), one.begin(), one.end());
            }
        EXPECT_LT(relativeError(widened(out.read()), want), 6e-3); // probabilities and results are rounded to bf16
        for (const auto left : arrivals.read()) EXPECT_EQ(left, 0u);
    }
}

/// Tokens of a prompt, each with a list of its own, in the blocks of the one sequence.
TEST_P(CudaLatent, TokensOfAPromptAttendToListedTokens) {
    const int heads = 12, tokens = 900, budget = 100;
    for (const int rows : {1, 37, 128}) {
        SCOPED_TRACE(::testing::Message() << rows << " tokens");
        const AttentionShape shape{heads, 1, dim, 1, valueDim};
        const auto q = halves(std::size_t(rows * heads * dim)), store = halves(std::size_t(tokens * dim));
        std::vector<std::int32_t> position, lists;
        for (int row = 0; row < rows; ++row) {
            position.push_back(tokens - rows + row);
            const auto list = randomBlocks(budget, position.back(), random);
            lists.insert(lists.end(), list.begin(), list.end());
        }
        const OnDevice<Half> dq(q), dp(store), out(std::size_t(rows * heads * valueDim));
        const OnDevice<std::int32_t> dposition(position), dlists(lists),
            count(std::vector<std::int32_t>(std::size_t(rows), budget));
        const OnDevice<std::int64_t> first(std::vector<std::int64_t>{0});
        const OnDevice<float> partial(latentPartialFloats(launch, shape, rows, budget));
        DecodeAttentionArgs a;
        a.shape = shape;
        a.rows = rows;
        a.position = dposition.get();
        a.q = dq.bf16();
        a.blocks = dp.bf16();
        a.headFirst = first.get();
        a.oneSequence = true;
        a.list.block = dlists.get();
        a.list.count = count.get();
        a.list.capacity = a.maxBlocks = budget;
        a.scale = 0.05f;
        a.out = out.bf16();
        a.scratch.partial = partial.get();
        latentDecodeAttention(launch, a);
        check(cudaStreamSynchronize(launch.stream), "testing");
        const auto got = widened(out.read());
        std::vector<double> want;
        for (int row = 0; row < rows; ++row)
            for (int h = 0; h < heads; ++h) {
                std::vector<const Half*> keys;
                for (int i = 0; i < budget; ++i)
                    keys.push_back(&store[std::size_t(lists[std::size_t(row * budget + i)] * dim)]);
                const auto one = attend(&q[std::size_t((row * heads + h) * dim)], keys, double(a.scale));
                want.insert(want.end(), one.begin(), one.end());
            }
        EXPECT_LT(relativeError(got, want), 6e-3);
    }
}

TEST_P(CudaLatent, AttendsToEverythingBeforeWithoutAList) {
    const int heads = 16, bs = 32, tokens = 700;
    const AttentionShape shape{heads, 1, dim, bs, valueDim};
    const auto q = halves(std::size_t(heads * dim)), store = halves(22 * blockElements(shape));
    const OnDevice<Half> dq(q), dp(store), out(std::size_t(heads * valueDim));
    const OnDevice<std::int32_t> position(std::vector<std::int32_t>{tokens - 1});
    const OnDevice<std::int64_t> first(std::vector<std::int64_t>{0});
    const OnDevice<float> partial(attentionPartialFloats(launch, shape, 1, 22));
    const OnDevice<std::uint32_t> arrivals(std::vector<std::uint32_t>(attentionArrivals(shape, 1), 0));
    DecodeAttentionArgs a;
    a.shape = shape;
    a.rows = 1;
    a.position = position.get();
    a.q = dq.bf16();
    a.blocks = dp.bf16();
    a.headFirst = first.get();
    a.maxBlocks = 22;
    a.scale = 0.05f;
    a.out = out.bf16();
    a.scratch.partial = partial.get();
    a.scratch.arrivals = arrivals.get();
    for (int turn = 0; turn < 2; ++turn) { // the second finds the counters as the first left them
        decodeAttention(launch, a);
        check(cudaStreamSynchronize(launch.stream), "testing");
        std::vector<double> want;
        for (int h = 0; h < heads; ++h) {
            std::vector<const Half*> keys;
            for (int t = 0; t < tokens; ++t) keys.push_back(&store[std::size_t(t * dim)]);
            const auto one = attend(&q[std::size_t(h * dim)], keys, double(a.scale));
            want.insert(want.end(), one.begin(), one.end());
        }
        EXPECT_LT(relativeError(widened(out.read()), want), 6e-3);
    }
}

TEST_P(CudaLatent, PromptsAttendCausally) {
    for (const auto& [heads, bs, firstPosition, n] :
         {std::array{16, 64, 0, 1}, {16, 64, 64, 130}, {20, 16, 32, 77}, {3, 128, 0, 200}, {32, 32, 96, 33}}) {
        SCOPED_TRACE(::testing::Message() << heads << " heads, " << n << " tokens from " << firstPosition);
        const AttentionShape shape{heads, 1, dim, bs, valueDim};
        const int blocks = (firstPosition + n + bs - 1) / bs;
        const auto q = halves(std::size_t(n * heads * dim)), store = halves(std::size_t(blocks) * blockElements(shape));
        const OnDevice<Half> dq(q), dp(store), out(std::size_t(n * heads * valueDim));
        PrefillAttentionArgs a;
        a.shape = shape;
        a.n = n;
        a.firstPosition = firstPosition;
        a.q = dq.bf16();
        a.blocks = dp.bf16();
        a.scale = 0.05f;
        a.out = out.bf16();
        prefillAttention(launch, a);
        check(cudaStreamSynchronize(launch.stream), "testing");
        const auto got = widened(out.read());
        std::vector<float> some;
        std::vector<double> want;
        for (int token = 0; token < n; token += std::max(1, n / 9)) // float64 is slow
            for (int h = 0; h < heads; ++h) {
                std::vector<const Half*> keys;
                for (int t = 0; t <= firstPosition + token; ++t) keys.push_back(&store[std::size_t(t * dim)]);
                const std::size_t row = std::size_t(token * heads + h);
                const auto one = attend(&q[row * dim], keys, double(a.scale));
                want.insert(want.end(), one.begin(), one.end());
                some.insert(some.end(), got.begin() + std::ptrdiff_t(row * valueDim),
                            got.begin() + std::ptrdiff_t((row + 1) * valueDim));
            }
        EXPECT_LT(relativeError(some, want), 6e-3);
    }
}

TEST_P(CudaLatent, MultipliesEveryHeadByItsOwnMatrix) {
    for (const int n : {1, 8, 9, 50}) {
        const int heads = 3, rows = 144, cols = 96, xStride = heads * 104 + 8, yStride = heads * rows + 16;
        SCOPED_TRACE(n);
        const auto w = halves(std::size_t(heads * rows * cols), 0.1f), xHalf = halves(std::size_t(n * xStride));
        std::vector<float> x = widened(xHalf);
        const OnDevice<Half> dw(w), dxHalf(xHalf), y(std::size_t(n * yStride)), yFloat(std::size_t(n * yStride));
        const OnDevice<float> dx(x);
        HeadProductArgs a{dw.bf16(),     n,       heads, rows,     cols,    nullptr,
                          dxHalf.bf16(), xStride, 104,   y.bf16(), yStride, rows};
        multiplyHeads(launch, a);
        a.xHalf = nullptr;
        a.x = dx.get();
        a.y = yFloat.bf16();
        multiplyHeads(launch, a);
        check(cudaStreamSynchronize(launch.stream), "testing");
        const auto got = y.read(), gotFloat = yFloat.read();
        std::vector<float> all;
        std::vector<double> want;
        for (int i = 0; i < n; ++i)
            for (int h = 0; h < heads; ++h)
                for (int r = 0; r < rows; ++r) {
                    double sum = 0;
                    for (int c = 0; c < cols; ++c)
                        sum += double(toFloat(w[std::size_t((h * rows + r) * cols + c)])) *
                               double(x[std::size_t(i * xStride + h * 104 + c)]);
                    want.push_back(sum);
                    all.push_back(toFloat(got[std::size_t(i * yStride + h * rows + r)]));
                    ASSERT_EQ(got[std::size_t(i * yStride + h * rows + r)],
                              gotFloat[std::size_t(i * yStride + h * rows + r)]);
                }
        EXPECT_LT(relativeError(all, want), 3e-3); // the results are bf16
    }
}

/// The same tokens through the prompt's way and through decoding, against float64.
TEST_P(CudaLatent, KeysAreNormedAndRotatedAndQueriesEnds) {
    for (const bool interleaved : {true, false}) {
        SCOPED_TRACE(interleaved);
        const int heads = 3, nope = 32, rope = dim - valueDim, n = 24, bs = 16, queryWidth = heads * (nope + rope),
                  stride = queryWidth + dim;
        const AttentionShape shape{heads, 1, dim, bs, valueDim};
        const auto x = floats(std::size_t(n * stride)), norm = floats(valueDim);
        std::vector<float> cos, sin;
        for (int position = 0; position < n; ++position)
            for (int c = 0; c < rope / 2; ++c) {
                cos.push_back(std::cos(float(position) * 0.1f + float(c)));
                sin.push_back(std::sin(float(position) * 0.1f + float(c)));
            }
        std::vector<double> wantQ, wantKeys;
        for (int token = 0; token < n; ++token) {
            const float* row = &x[std::size_t(token * stride)];
            const auto rotate = [&](const float* from, std::vector<double>& to) {
                std::vector<double> out(static_cast<std::size_t>(rope));
                for (int c = 0; c < rope / 2; ++c) {
                    const auto low = std::size_t(interleaved ? 2 * c : c),
                               high = std::size_t(interleaved ? 2 * c + 1 : c + rope / 2);
                    const double u = double(cos[std::size_t(token * rope / 2 + c)]),
                                 v = double(sin[std::size_t(token * rope / 2 + c)]);
                    out[low] = double(from[low]) * u - double(from[high]) * v;
                    out[high] = double(from[high]) * u + double(from[low]) * v;
                }
                to.insert(to.end(), out.begin(), out.end());
            };
            for (int h = 0; h < heads; ++h) rotate(row + h * (nope + rope) + nope, wantQ);
            const float* key = row + queryWidth;
            double squares = 0;
            for (int c = 0; c < valueDim; ++c) squares += double(key[c]) * double(key[c]);
            for (int c = 0; c < valueDim; ++c)
                wantKeys.push_back(double(key[c]) * double(norm[std::size_t(c)]) /
                                   std::sqrt(squares / valueDim + 1e-6));
            rotate(key + valueDim, wantKeys);
        }
        const OnDevice<float> dx(x), dnorm(norm), dcos(cos), dsin(sin);
        const OnDevice<Half> q(std::size_t(n * heads * dim)), blocks(std::size_t(n * dim));
        const LatentTokens tokens{dx.get(), dx.get() + queryWidth, stride, stride, nope, rope, dnorm.get(), 1e-6f};
        const auto expectBoth = [&] {
            check(cudaStreamSynchronize(launch.stream), "testing");
            const auto gotQ = q.read(), gotKeys = blocks.read();
            std::vector<float> ends;
            for (int i = 0; i < n * heads; ++i)
                for (int c = valueDim; c < dim; ++c) ends.push_back(toFloat(gotQ[std::size_t(i * dim + c)]));
            EXPECT_LT(relativeError(ends, wantQ), 3e-3);
            EXPECT_LT(relativeError(widened(gotKeys), wantKeys), 3e-3); // both are stored as bf16
        };
        PromptArgs prompt;
        prompt.shape = shape;
        prompt.cos = dcos.get();
        prompt.sin = dsin.get();
        prompt.interleaved = interleaved;
        prompt.q = q.bf16();
        prompt.blocks = blocks.bf16();
        prompt.n = n;
        placeLatentPrompt(launch, prompt, tokens);
        expectBoth();
        check(cudaMemset(q.get(), 0xff, std::size_t(n * heads * dim) * 2), "testing");
        check(cudaMemset(blocks.get(), 0xff, std::size_t(n * dim) * 2), "testing");
        for (int token = 0; token < n; ++token) {
            const OnDevice<std::int32_t> position(std::vector<std::int32_t>{token}), zero(std::vector<std::int32_t>{0});
            const OnDevice<std::int64_t> first(std::vector<std::int64_t>{0});
            AppendArgs append;
            append.shape = shape;
            append.cos = dcos.get();
            append.sin = dsin.get();
            append.interleaved = interleaved;
            append.q = q.bf16() + std::size_t(token * heads * dim);
            append.rows = 1;
            append.position = position.get();
            append.ropeFirst = zero.get();
            append.blocks = blocks.bf16();
            append.headFirst = first.get();
            LatentTokens one = tokens;
            one.query += std::size_t(token * stride);
            one.key += std::size_t(token * stride);
            appendLatent(launch, append, one);
            check(cudaStreamSynchronize(launch.stream), "testing");
        }
        expectBoth();
    }
}

INSTANTIATE_TEST_SUITE_P(Widths, CudaLatent, ::testing::Values(kLatentDim, kSmallLatentDim));

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
