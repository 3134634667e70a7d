// CUDA attention against float64: lists in any slot order, tails, bias, all group sizes, sliding windows; prompts of
// any length.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/attention/attention.h"

#include <algorithm>
#include <numeric>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

struct Case {
    int dim, group, blockSize;
};
void PrintTo(const Case& c, std::ostream* out) {
    *out << "dim " << c.dim << ", group " << c.group << ", block " << c.blockSize;
}

class CudaAttention : public CudaTest, public ::testing::WithParamInterface<Case> {
protected:
    /// softmax(scale q.k + biasScale bias) v over the tokens given.
    std::vector<double> reference(const Half* q, int dim, const std::vector<const Half*>& keys,
                                  const std::vector<std::pair<const Half*, int>>& values,
                                  const std::vector<float>& bias, double scale, double biasScale) {
        std::vector<double> logits, out(std::size_t(dim), 0.0);
        double maximum = -1e300, sum = 0;
        for (std::size_t t = 0; t < keys.size(); ++t) {
            double dot = 0;
            for (int c = 0; c < dim; ++c) dot += double(toFloat(q[c])) * double(toFloat(keys[t][c]));
            logits.push_back(scale * dot + biasScale * bias[t]);
            maximum = std::max(maximum, logits.back());
        }
        for (std::size_t t = 0; t < keys.size(); ++t) {
            const double p = std::exp(logits[t] - maximum);
            sum += p;
            for (int c = 0; c < dim; ++c)
                out[std::size_t(c)] +=
                    p * double(toFloat(values[t].first[std::size_t(c) * std::size_t(values[t].second)]));
        }
        for (double& value : out) value /= sum;
        return out;
    }
};

TEST_P(CudaAttention, AttendsListedBlocksInAnySlots) {
    const auto [dim, group, bs] = GetParam();
    // On two processors a thread block attends whole lists; with many rows of any length one thread block has the end
    // of a list and the beginning of another; long lists are shared by many. Every fifth of many rows is left out.
    const int processors = launch.multiprocessors;
    const struct {
        int rows, processors, slots, window;
    } divisions[] = {{1, processors, 24, 0},           {3, processors, 24, 0},  {3, 2, 24, 0},
                     {1, processors, 160, 0},          {23, processors, 24, 0}, {3, processors, 24, 5 * bs + 3},
                     {23, processors, 24, 9 * bs + 1}, {3, 2, 24, 1},           {1, processors, 160, 90 * bs}};
    for (const auto& [rows, multiprocessors, slots, window] : divisions) {
        launch.multiprocessors = multiprocessors;
        const int kvHeads = 2, queryHeads = kvHeads * group, maxBlocks = slots + 16, heads = rows * kvHeads;
        SCOPED_TRACE(::testing::Message() << rows << " rows, " << multiprocessors << " processors, " << slots
                                          << " slots, window " << window);
        const AttentionShape shape{queryHeads, kvHeads, dim, bs};
        const std::size_t element = blockElements(bs, dim);
        const auto q = halves(std::size_t(rows * queryHeads * dim)),
                   pool = halves(std::size_t(heads * slots) * element);
        const auto bias = floats(std::size_t(heads * maxBlocks * bs), 2);
        std::vector<std::int32_t> position, ids(std::size_t(heads * slots)), places(ids.size()), count;
        std::vector<std::int64_t> poolFirst, biasFirst;
        std::vector<std::uint8_t> active;
        for (int row = 0; row < rows; ++row) {
            position.push_back(uniform((maxBlocks - 1) * bs, maxBlocks * bs - 1));
            active.push_back(row % 5 != 3);
            for (int g = 0; g < kvHeads; ++g) {
                const int item = row * kvHeads + g, n = uniform(1, slots);
                std::vector<std::int32_t> all(std::size_t(maxBlocks - 1)), order(static_cast<std::size_t>(slots));
                std::iota(all.begin(), all.end(), 0);
                std::shuffle(all.begin(), all.end(), random);
                all.resize(std::size_t(n - 1));
                all.push_back(maxBlocks - 1);
                std::sort(all.begin(), all.end());
                std::iota(order.begin(), order.end(), 0);
                std::shuffle(order.begin(), order.end(), random);
                std::copy(all.begin(), all.end(), ids.begin() + item * slots);
                std::copy_n(order.begin(), n, places.begin() + item * slots);
                count.push_back(n);
                poolFirst.push_back(std::int64_t(item) * slots);
                biasFirst.push_back(std::int64_t(item) * maxBlocks * bs);
            }
        }
        const OnDevice<Half> dq(q), dp(pool), out(std::size_t(rows * queryHeads * dim));
        const OnDevice<float> db(bias);
        const OnDevice<std::int32_t> dpos(position), did(ids), dplace(places), dcount(count);
        const OnDevice<std::int64_t> dfirst(poolFirst), dbf(biasFirst);
        const OnDevice<std::uint8_t> dactive(active);
        const OnDevice<float> partial(attentionPartialFloats(launch, shape, rows, slots));
        const OnDevice<std::uint32_t> arrivals(std::vector<std::uint32_t>(attentionArrivals(shape, rows), 0));
        DecodeAttentionArgs a;
        a.shape = shape;
        a.rows = rows;
        a.position = dpos.get();
        a.active = dactive.get();
        a.q = dq.bf16();
        a.blocks = dp.bf16();
        a.headFirst = dfirst.get();
        a.list.block = did.get();
        a.list.slot = dplace.get();
        a.list.count = dcount.get();
        a.list.capacity = a.maxBlocks = slots;
        a.window = window;
        a.bias.scores = db.get();
        a.bias.first = dbf.get();
        a.scale = 0.11f;
        a.bias.scale = 0.7f;
        a.out = out.bf16();
        a.scratch.partial = partial.get();
        a.scratch.arrivals = arrivals.get();
        decodeAttention(launch, a);
        check(cudaStreamSynchronize(launch.stream), "testing");
        const auto raw = out.read();
        std::vector<float> got;
        std::vector<double> want;
        for (int row = 0; row < rows; ++row)
            for (int h = 0; h < queryHeads; ++h) {
                const Half* mine = &raw[std::size_t((row * queryHeads + h) * dim)];
                if (active[std::size_t(row)] == 0) {
                    EXPECT_TRUE(std::all_of(mine, mine + dim, [](Half value) { return value == 0xffff; })) << row;
                    continue;
                }
                for (int c = 0; c < dim; ++c) got.push_back(toFloat(mine[c]));
                const int item = row * kvHeads + h / group;
                std::vector<const Half*> keys;
                std::vector<std::pair<const Half*, int>> values;
                std::vector<float> biases;
                for (int i = 0; i < count[std::size_t(item)]; ++i) {
                    const int id = ids[std::size_t(item * slots + i)];
                    const Half* block =
                        &pool[(std::size_t(item * slots) + std::size_t(places[std::size_t(item * slots + i)])) *
                              element];
                    for (int t = 0; t < bs && id * bs + t <= position[std::size_t(row)]; ++t) {
                        if (window > 0 && id * bs + t + window <= position[std::size_t(row)]) continue;
                        keys.push_back(block + t * dim);
                        values.emplace_back(block + bs * dim + t, bs);
                        biases.push_back(bias[std::size_t(item * maxBlocks * bs + id * bs + t)]);
                    }
                }
                const auto one = reference(&q[std::size_t((row * queryHeads + h) * dim)], dim, keys, values, biases,
                                           double(a.scale), double(a.bias.scale));
                want.insert(want.end(), one.begin(), one.end());
            }
        EXPECT_LT(relativeError(got, want), 6e-3); // probabilities and results are rounded to bf16
        for (const auto left : arrivals.read()) EXPECT_EQ(left, 0u);
    }
}

TEST_P(CudaAttention, AttendsToAllInSightWithoutAList) {
    const auto [dim, group, bs] = GetParam();
    const int kvHeads = 2, queryHeads = kvHeads * group, maxBlocks = 40;
    const std::vector<std::int32_t> position{0, maxBlocks * bs - 1, uniform(bs, 39 * bs)};
    const int rows = int(position.size()), heads = rows * kvHeads;
    const AttentionShape shape{queryHeads, kvHeads, dim, bs};
    const std::size_t element = blockElements(bs, dim);
    const auto q = halves(std::size_t(rows * queryHeads * dim)),
               store = halves(std::size_t(heads * maxBlocks) * element);
    std::vector<std::int64_t> first;
    for (int h = 0; h < heads; ++h) first.push_back(std::int64_t(h) * maxBlocks);
    const OnDevice<Half> dq(q), ds(store);
    const OnDevice<std::int32_t> dposition(position);
    const OnDevice<std::int64_t> dfirst(first);
    const OnDevice<std::uint32_t> arrivals(std::vector<std::uint32_t>(attentionArrivals(shape, rows), 0));
    const int processors = launch.multiprocessors;
    for (const int multiprocessors : {processors, 3})
        for (const int window : {0, 1, bs, 3 * bs + 7, 40 * bs}) {
            SCOPED_TRACE(::testing::Message() << multiprocessors << " processors, window " << window);
            launch.multiprocessors = multiprocessors;
            const int inSight = window > 0 ? std::min(maxBlocks, (window + bs - 1) / bs + 1) : maxBlocks;
            const OnDevice<Half> out(std::size_t(rows * queryHeads * dim));
            const OnDevice<float> partial(attentionPartialFloats(launch, shape, rows, inSight));
            DecodeAttentionArgs a;
            a.shape = shape;
            a.rows = rows;
            a.position = dposition.get();
            a.q = dq.bf16();
            a.blocks = ds.bf16();
            a.headFirst = dfirst.get();
            a.maxBlocks = inSight;
            a.window = window;
            a.scale = 0.11f;
            a.out = out.bf16();
            a.scratch.partial = partial.get();
            a.scratch.arrivals = arrivals.get();
            decodeAttention(launch, a);
            check(cudaStreamSynchronize(launch.stream), "testing");
            std::vector<float> got;
            std::vector<double> want;
            for (const Half value : out.read()) got.push_back(toFloat(value));
            for (int row = 0; row < rows; ++row)
                for (int h = 0; h < queryHeads; ++h) {
                    const int last = position[std::size_t(row)];
                    std::vector<const Half*> keys;
                    std::vector<std::pair<const Half*, int>> values;
                    for (int t = window > 0 ? std::max(0, last + 1 - window) : 0; t <= last; ++t) {
                        const std::size_t at = std::size_t((row * kvHeads + h / group) * maxBlocks + t / bs);
                        keys.push_back(&store[at * element] + t % bs * dim);
                        values.emplace_back(&store[at * element] + bs * dim + t % bs, bs);
                    }
                    const auto one = reference(&q[std::size_t((row * queryHeads + h) * dim)], dim, keys, values,
                                               std::vector<float>(keys.size(), 0.f), double(a.scale), 0);
                    want.insert(want.end(), one.begin(), one.end());
                }
            EXPECT_LT(relativeError(got, want), 6e-3);
            for (const auto left : arrivals.read()) EXPECT_EQ(left, 0u);
        }
}

TEST_P(CudaAttention, AttendsAPromptChunkCausally) {
    const auto [dim, group, bs] = GetParam();
    const int kvHeads = 2, queryHeads = kvHeads * group, first = 8 * uniform(0, 20), n = uniform(1, 200),
              tokens = first + n;
    SCOPED_TRACE(::testing::Message() << first << " + " << n);
    const int blocks = (tokens + bs - 1) / bs;
    const AttentionShape shape{queryHeads, kvHeads, dim, bs};
    const std::size_t element = blockElements(bs, dim);
    const auto q = halves(std::size_t(n * queryHeads * dim)), store = halves(std::size_t(kvHeads * blocks) * element);
    const auto bias = floats(std::size_t(kvHeads * blocks * bs), 2);
    const OnDevice<Half> dq(q), ds(store), out(std::size_t(n * queryHeads * dim));
    const OnDevice<float> db(bias);
    PrefillAttentionArgs a;
    a.shape = shape;
    a.n = n;
    a.firstPosition = first;
    a.q = dq.bf16();
    a.blocks = ds.bf16();
    a.headStride = std::int64_t(blocks) * std::int64_t(element);
    a.tokenBias = db.get();
    a.biasStride = blocks * bs;
    a.scale = 0.09f;
    a.biasScale = 1.f;
    a.out = out.bf16();
    for (const int window : {0, 1, 40, 150}) {
        SCOPED_TRACE(::testing::Message() << "window " << window);
        a.window = window;
        prefillAttention(launch, a);
        check(cudaStreamSynchronize(launch.stream), "testing");
        const auto raw = out.read();
        std::vector<float> got;
        std::vector<double> want;
        for (int t = 0; t < n; t += std::max(1, n / 7))
            for (int h = 0; h < queryHeads; ++h) {
                const int g = h / group;
                std::vector<const Half*> keys;
                std::vector<std::pair<const Half*, int>> values;
                std::vector<float> biases;
                for (int token = window > 0 ? std::max(0, first + t + 1 - window) : 0; token <= first + t; ++token) {
                    const Half* block = &store[(std::size_t(g * blocks) + std::size_t(token / bs)) * element];
                    keys.push_back(block + token % bs * dim);
                    values.emplace_back(block + bs * dim + token % bs, bs);
                    biases.push_back(bias[std::size_t(g * blocks * bs + token)]);
                }
                const auto one = reference(&q[std::size_t((t * queryHeads + h) * dim)], dim, keys, values, biases,
                                           double(a.scale), 1);
                want.insert(want.end(), one.begin(), one.end());
                for (int c = 0; c < dim; ++c) got.push_back(toFloat(raw[std::size_t((t * queryHeads + h) * dim + c)]));
            }
        EXPECT_LT(relativeError(got, want), 6e-3);
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaAttention,
                         ::testing::Values(Case{64, 3, 64}, Case{128, 16, 64}, Case{128, 8, 64}, Case{64, 1, 16},
                                           Case{128, 4, 32}, Case{64, 32, 128}, Case{128, 17, 16}, Case{128, 7, 48}));

} // namespace KVSCOPE_TEST_FILE
/// Memory is planned once, for the most rows; a prompt's last piece may have any number of them.
TEST(AttentionMemory, FewerRowsNeverNeedMore) {
    for (const int kvHeads : {1, 2, 8})
        for (const int group : {4, 16, 24})
            for (const int blocks : {3, 64, 2048}) {
                const AttentionShape shape{kvHeads * group, kvHeads, 128, 64};
                const Launch hopper{nullptr, 132, true, std::size_t(227) << 10};
                std::size_t before = 0;
                for (int rows = 1; rows <= 256; ++rows) {
                    const std::size_t now = attentionPartialFloats(hopper, shape, rows, blocks);
                    ASSERT_GE(now, before)
                        << rows << " rows, " << kvHeads << " KV heads of " << group << ", " << blocks;
                    before = now;
                }
            }
}

} // namespace kvscope::cuda
