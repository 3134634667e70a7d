// Attention to slots that hold coded blocks: bit for bit the attention to the bf16 numbers that come back from them,
// and near float64.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/transfer/quantised_blocks.h"

#include <algorithm>
#include <numeric>
#include <string>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

struct CodedCase {
    KvType type = KvType::INT8;
    int dim = 128, group = 4, blockSize = 64, slots = 24, rows = 3;
    bool biased = false;
    int window = 0;
    float scale = 0.11f; // of the logits
};

std::ostream& operator<<(std::ostream& out, const CodedCase& c) {
    return out << nameOf(c.type) << ", dim " << c.dim << ", group " << c.group << ", blocks of " << c.blockSize << ", "
               << c.slots << " slots, " << c.rows << " rows" << (c.biased ? ", biased" : "") << ", window " << c.window
               << ", scale " << c.scale;
}

class CudaCodedAttention : public CudaTest {
protected:
    void attends(const CodedCase& c);
    void attendsInEveryShape(const CodedCase& c, const std::vector<int>& blockSizes);
};

/// Every head has `slots` coded blocks in any order and beside them a newest block of bf16, of which some tokens are
/// written. Lists have any lengths, from the newest block alone on; the last row is not active.
void CudaCodedAttention::attends(const CodedCase& c) {
    SCOPED_TRACE(::testing::Message() << c << (launch.clusters ? "" : ", without clusters"));
    const int kvHeads = 2, queryHeads = kvHeads * c.group, heads = c.rows * kvHeads, maxBlocks = c.slots + 9,
              capacity = c.slots + 1, bs = c.blockSize, dim = c.dim;
    const AttentionShape shape{queryHeads, kvHeads, dim, bs};
    const KvFormat format{c.type, bs, dim, dim, false};
    const std::size_t element = blockElements(bs, dim), bytes = std::size_t(format.blockBytes());
    const int coded = heads * c.slots;
    const auto q = halves(std::size_t(c.rows * queryHeads * dim));
    // The slots of all heads, then their newest blocks.
    std::vector<Half> drawn(std::size_t(coded + heads) * element); // between -2 and 2: normal numbers take long
    for (Half& x : drawn) x = toBf16(float(std::int32_t(random() & 0xffff) - 0x8000) * 0x1p-14f);
    const OnDevice<Half> numbers(drawn);
    const PinnedMemory packed(std::size_t(coded) * bytes, "allocating coded blocks");
    StoreQuantisedArgs store;
    store.format = format, store.from = numbers.bf16(), store.to = packed.data();
    store.heads = 1, store.blocks = coded;
    storeQuantised(launch, store);
    roundBlocks(launch, {format, numbers.bf16(), std::int64_t(coded) * format.numbers(), 1, coded});
    check(cudaStreamSynchronize(launch.stream), "quantising blocks");
    const OnDevice<std::uint8_t> pool(
        std::vector<std::uint8_t>(packed.as<std::uint8_t>(), packed.as<std::uint8_t>() + std::size_t(coded) * bytes));
    const auto pool16 = numbers.read();

    std::vector<std::int32_t> position, ids(std::size_t(heads * capacity)), places(ids.size()), places16(ids.size()),
        count;
    std::vector<std::int64_t> first, zero(std::size_t(heads), 0), biasFirst;
    std::vector<std::uint8_t> active;
    for (int row = 0; row < c.rows; ++row) {
        position.push_back((maxBlocks - 1) * bs + (row == 0 ? 0 : row == 1 ? bs - 1 : uniform(0, bs - 1)));
        active.push_back(c.rows > 1 && row == c.rows - 1 ? 0 : 1);
        for (int g = 0; g < kvHeads; ++g) {
            const int item = row * kvHeads + g, n = item == 0 ? 1 : item == 1 ? capacity : uniform(1, capacity);
            std::vector<std::int32_t> all(std::size_t(maxBlocks - 1)), order(static_cast<std::size_t>(c.slots));
            std::iota(all.begin(), all.end(), 0), std::iota(order.begin(), order.end(), 0);
            std::shuffle(all.begin(), all.end(), random), std::shuffle(order.begin(), order.end(), random);
            all.resize(std::size_t(n - 1));
            std::sort(all.begin(), all.end());
            for (int i = 0; i < n; ++i) {
                const auto at = std::size_t(item * capacity + i);
                const bool last = i == n - 1;
                ids[at] = last ? maxBlocks - 1 : all[std::size_t(i)];
                places[at] = last ? 0 : order[std::size_t(i)]; // nobody reads the slot of the newest block
                places16[at] = last ? coded + item : item * c.slots + places[at];
            }
            count.push_back(n);
            first.push_back(std::int64_t(item) * c.slots);
            biasFirst.push_back(std::int64_t(item) * maxBlocks * bs);
        }
    }
    const std::vector<float> scores = floats(std::size_t(heads * maxBlocks * bs));
    const OnDevice<Half> dq(q), out(q.size()), out16(q.size());
    const OnDevice<float> dscores(scores), sums(std::size_t(c.rows * queryHeads)), sums16(sums.read().size());
    const OnDevice<std::int32_t> dposition(position), dids(ids), dplaces(places), dplaces16(places16), dcount(count);
    const OnDevice<std::int64_t> dfirst(first), dzero(zero), dbiasFirst(biasFirst);
    const OnDevice<std::uint8_t> dactive(active);
    const OnDevice<float> partial(attentionPartialFloats(launch, shape, c.rows, capacity));
    const OnDevice<std::uint32_t> arrivals(std::vector<std::uint32_t>(attentionArrivals(shape, c.rows), 0));
    DecodeAttentionArgs a;
    a.shape = shape, a.rows = c.rows;
    a.position = dposition.get(), a.q = dq.bf16(), a.blocks = numbers.bf16(), a.active = dactive.get();
    a.list.block = dids.get(), a.list.count = dcount.get();
    a.list.capacity = a.maxBlocks = capacity;
    a.scale = c.scale;
    a.window = c.window;
    if (c.biased) a.bias = {dscores.get(), dbiasFirst.get(), 0.7f};
    a.scratch = {partial.get(), arrivals.get()};
    a.format = format;
    a.headFirst = dzero.get(), a.list.slot = dplaces16.get(), a.out = out16.bf16(), a.logSums = sums16.get();
    decodeAttention(launch, a);
    a.blocks = reinterpret_cast<const __nv_bfloat16*>(pool.get());
    a.newest = numbers.bf16() + std::size_t(coded) * element;
    a.headFirst = dfirst.get(), a.list.slot = dplaces.get(), a.out = out.bf16(), a.logSums = sums.get();
    decodeAttention(launch, a);
    check(cudaStreamSynchronize(launch.stream), "attending");
    const auto got = out.read(), got16 = out16.read();
    EXPECT_TRUE(got == got16) << "coded blocks and their numbers give different bits";
    const auto bits = [](const std::vector<float>& x) {
        std::vector<std::uint32_t> words(x.size());
        std::memcpy(words.data(), x.data(), x.size() * sizeof(float));
        return words;
    };
    EXPECT_EQ(bits(sums.read()), bits(sums16.read()));

    const std::vector<float> gotSums = sums.read();
    double difference = 0, size = 0, coded16 = 0;
    for (int row = 0; row < c.rows; ++row)
        for (int h = 0; h < queryHeads; ++h) {
            const Half* mine = &got[std::size_t((row * queryHeads + h) * dim)];
            if (active[std::size_t(row)] == 0) {
                EXPECT_TRUE(std::all_of(mine, mine + dim, [](Half x) { return x == 0xffff; }));
                continue;
            }
            if (c.group > 4 && uniform(0, c.group / 4) != 0) continue; // checks some of many query heads
            const int item = row * kvHeads + h / c.group;
            const Half* query = &q[std::size_t((row * queryHeads + h) * dim)];
            std::vector<double> want(std::size_t(dim), 0.0);
            double sum = 0;
            for (int i = 0; i < count[std::size_t(item)]; ++i) {
                const auto at = std::size_t(item * capacity + i);
                const Half* block = &pool16[std::size_t(places16[at]) * element];
                for (int t = 0; t < bs; ++t) {
                    const int token = ids[at] * bs + t, behind = position[std::size_t(row)] - token;
                    if (behind < 0 || (c.window > 0 && behind >= c.window)) continue;
                    double dot = 0;
                    for (int d = 0; d < dim; ++d)
                        dot += double(toFloat(query[d])) * double(toFloat(block[t * dim + d]));
                    double logit = double(a.scale) * dot;
                    if (c.biased)
                        logit +=
                            double(a.bias.scale) * double(scores[std::size_t(biasFirst[std::size_t(item)] + token)]);
                    const double p = std::exp(logit);
                    sum += p;
                    for (int d = 0; d < dim; ++d)
                        want[std::size_t(d)] += p * double(toFloat(block[bs * dim + d * bs + t]));
                }
            }
            EXPECT_NEAR(gotSums[std::size_t(row * queryHeads + h)], std::log(sum), 1e-3 * std::max(1.f, c.scale))
                << "row " << row << ", head " << h;
            for (int d = 0; d < dim; ++d) {
                const double x = want[std::size_t(d)] / sum, y = double(toFloat(mine[d])),
                             z = double(toFloat(got16[std::size_t((row * queryHeads + h) * dim + d)]));
                difference += (x - y) * (x - y), coded16 += (x - z) * (x - z), size += x * x;
            }
        }
    // Probabilities and results are rounded to bf16.
    EXPECT_LT(std::sqrt(difference / size), 6e-3) << "coded blocks against float64";
    EXPECT_LT(std::sqrt(coded16 / size), 6e-3) << "their numbers against float64";
}

void CudaCodedAttention::attendsInEveryShape(const CodedCase& c, const std::vector<int>& blockSizes) {
    for (const int dim : {64, 128})
        for (const int blockSize : blockSizes)
            for (const auto& [group, slots, rows] :
                 {std::tuple{1, 3, 2}, {4, 24, 3}, {16, 40, 2}, {20, 7, 3}, {8, 12, 12}}) {
                if (c.type != KvType::INT8 && group != 4 && group != 20) continue; // types differ in few lines
                CodedCase each = c;
                each.dim = dim, each.blockSize = blockSize, each.group = group, each.slots = slots, each.rows = rows;
                attends(each);
            }
}

constexpr KvType kTypes[] = {KvType::INT8, KvType::FP8, KvType::INT4};

/// On the Hopper generation: blocks that divide the 64 tokens of a stage, by attention_coded.cu.
TEST_F(CudaCodedAttention, OfBlocksInAStageHasTheBitsOfTheirNumbers) {
    for (const KvType type : kTypes) attendsInEveryShape({.type = type}, {16, 32, 64});
}

/// The kernel of other block sizes and older GPUs.
TEST_F(CudaCodedAttention, OfOtherBlocksHasTheBitsOfTheirNumbers) {
    for (const KvType type : kTypes) attendsInEveryShape({.type = type}, {48, 128, 256});
}

TEST_F(CudaCodedAttention, WithoutClustersHasTheBitsOfTheirNumbers) {
    launch.clusters = false;
    for (const KvType type : kTypes) attendsInEveryShape({.type = type}, {16, 64});
}

/// Desktops' GPUs have less shared memory for a thread block than attention_coded.cu asks for.
TEST_F(CudaCodedAttention, WithLittleSharedMemoryHasTheBitsOfTheirNumbers) {
    launch.blockShared = std::size_t(99) << 10;
    attendsInEveryShape({.type = KvType::INT8}, {64});
}

TEST_F(CudaCodedAttention, HasBiasAndWindowAsOtherBlocksHave) {
    for (const KvType type : kTypes)
        for (const int blockSize : {16, 64, 48})
            for (const int window : {0, 5 * blockSize + 3}) {
                attends({.type = type, .blockSize = blockSize, .biased = true, .window = window});
                attends(
                    {.type = type, .dim = 64, .group = 3, .blockSize = blockSize, .biased = true, .window = window});
            }
}

/// So many lists that a thread block has the end of one, the whole of others and the beginning of a third.
TEST_F(CudaCodedAttention, OfManyListsHasTheBitsOfTheirNumbers) {
    for (const int rows : {17, 70}) attends({.dim = 64, .group = 20, .blockSize = 64, .slots = 14, .rows = rows});
    attends({.group = 16, .slots = 63, .rows = 17});
    attends({.type = KvType::FP8, .group = 2, .blockSize = 16, .slots = 21, .rows = 90});
}

/// Logits of more than a hundred, whose largest one grows by much from tile to tile, and small ones.
TEST_F(CudaCodedAttention, OfLogitsOfAnySizeIsNearFloat64) {
    for (const KvType type : kTypes)
        for (const float scale : {4.f, 0.5f, 1e-3f}) attends({.type = type, .group = 8, .slots = 40, .scale = scale});
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
