// Tokens packed from both kinds of store hold what was there, bit by bit; attention over them against float64.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/methods/token_pack.h"

#include <algorithm>
#include <numeric>

namespace kvscope::cuda {
namespace {

using namespace test;

struct Case {
    int dim, group, blockSize;
    enum From { Store, HostStore, Blocks, PlacedBlocks } from;
};
void PrintTo(const Case& c, std::ostream* out) {
    *out << "dim " << c.dim << ", group " << c.group << ", block " << c.blockSize << ", from " << int(c.from);
}

/// Random tokens of (row, KV head), in the form that a test packs from and as plain rows.
struct Source {
    int heads, tokens, dim, bs;
    std::vector<Half> rows; // [heads][tokens][2*dim]
    const Half* key(int head, int token) const {
        return rows.data() + std::size_t(head * tokens + token) * std::size_t(2 * dim);
    }
    const Half* value(int head, int token) const { return key(head, token) + dim; }
    /// KV blocks, head h's block b at place[h][b].
    std::vector<Half> blocks(const std::vector<std::int32_t>& place) const {
        const int perHead = tokens / bs;
        const std::size_t element = blockElements(bs, dim);
        std::vector<Half> out(std::size_t(heads * perHead) * element);
        for (int h = 0; h < heads; ++h)
            for (int t = 0; t < tokens; ++t) {
                Half* block =
                    out.data() + std::size_t(h * perHead + place[std::size_t(h * perHead + t / bs)]) * element;
                for (int c = 0; c < dim; ++c) {
                    block[t % bs * dim + c] = key(h, t)[c];
                    block[bs * dim + c * bs + t % bs] = value(h, t)[c];
                }
            }
        return out;
    }
};

class CudaTokenPack : public CudaTest, public ::testing::WithParamInterface<Case> {};

TEST_P(CudaTokenPack, PackedTokensAreAttendedLikeTheirOwn) {
    const Case c = GetParam();
    const int rows = 3, kvHeads = 2, heads = rows * kvHeads, queryHeads = kvHeads * c.group, perHead = 12;
    const AttentionShape shape{queryHeads, kvHeads, c.dim, c.blockSize};
    const int tokens = perHead * c.blockSize, capacity = 5 * c.blockSize + 3, packedBlocks = 6;
    const Source source{heads, tokens, c.dim, c.blockSize,
                        halves(std::size_t(heads * tokens) * std::size_t(2 * c.dim))};
    const auto bias = floats(std::size_t(heads * tokens));
    std::vector<std::int32_t> list(std::size_t(heads * capacity), -1), count, position, place;
    std::vector<std::int64_t> first, biasFirst, packedFirst;
    const std::vector<std::uint8_t> active{1, 0, 1};
    for (int row = 0; row < rows; ++row) position.push_back(uniform(tokens / 2, tokens - 1));
    for (int h = 0; h < heads; ++h) {
        std::vector<std::int32_t> all(std::size_t(position[std::size_t(h / kvHeads)] + 1)), blocks(perHead);
        std::iota(all.begin(), all.end(), 0);
        std::swap(all.front(), all.back()); // the newest is always among them
        std::shuffle(all.begin() + 1, all.end(), random);
        all.resize(std::size_t(h == 0 ? capacity : h == 5 ? 1 : uniform(1, capacity)));
        std::sort(all.begin(), all.end());
        count.push_back(int(all.size()));
        std::copy(all.begin(), all.end(), list.begin() + h * capacity);
        std::iota(blocks.begin(), blocks.end(), 0);
        if (c.from == Case::PlacedBlocks) std::shuffle(blocks.begin(), blocks.end(), random);
        place.insert(place.end(), blocks.begin(), blocks.end());
        const bool byBlock = c.from == Case::Blocks || c.from == Case::PlacedBlocks;
        first.push_back(std::int64_t(h) * (byBlock ? perHead : tokens));
        biasFirst.push_back(std::int64_t(h) * tokens);
        packedFirst.push_back(std::int64_t(h) * packedBlocks);
    }
    // The newest token's place holds something else: it must come from newKey and newValue.
    Source stored = source;
    std::vector<Half> newKey, newValue;
    for (int h = 0; h < heads; ++h) {
        const int newest = position[std::size_t(h / kvHeads)];
        newKey.insert(newKey.end(), source.key(h, newest), source.key(h, newest) + c.dim);
        newValue.insert(newValue.end(), source.value(h, newest), source.value(h, newest) + c.dim);
        std::fill_n(stored.rows.begin() + (h * tokens + newest) * 2 * c.dim, 2 * c.dim, toBf16(30.f));
    }
    const OnDevice<Half> dstore(stored.rows), dblocks(stored.blocks(place)), dkey(newKey), dvalue(newValue),
        packed(std::size_t(heads * packedBlocks) * blockElements(c.blockSize, c.dim));
    const OnDevice<std::int32_t> dlist(list), dcount(count), dposition(position), dplace(place);
    const OnDevice<std::int64_t> dfirst(first), dbiasFirst(biasFirst), dpackedFirst(packedFirst);
    const OnDevice<std::uint8_t> dactive(active);
    const OnDevice<float> dbias(bias), packedBias(std::size_t(heads * packedBlocks * c.blockSize));
    const PinnedMemory host(stored.rows.size() * sizeof(Half), "the store");
    std::memcpy(host.data(), stored.rows.data(), stored.rows.size() * sizeof(Half));
    PackArgs pack;
    pack.shape = shape;
    pack.rows = rows;
    pack.active = dactive.get();
    pack.tokens = dlist.get();
    pack.count = dcount.get();
    pack.capacity = capacity;
    if (c.from == Case::Store) pack.store = dstore.bf16();
    if (c.from == Case::HostStore) pack.store = host.as<const __nv_bfloat16>();
    if (pack.store == nullptr) pack.blocks = dblocks.bf16();
    if (c.from == Case::PlacedBlocks) pack.place = dplace.get(), pack.maxBlocks = perHead;
    if (c.from == Case::Blocks)
        pack.stride = perHead;
    else
        pack.first = dfirst.get();
    pack.position = dposition.get();
    pack.newKey = dkey.bf16();
    pack.newValue = dvalue.bf16();
    pack.bias = dbias.get();
    pack.biasFirst = dbiasFirst.get();
    pack.packed = packed.bf16();
    pack.packedBias = packedBias.get();
    pack.packedBlocks = packedBlocks;
    packTokens(launch, pack);
    check(cudaStreamSynchronize(launch.stream), "packing");

    const auto blocks = packed.read();
    const std::size_t element = blockElements(c.blockSize, c.dim);
    for (int h = 0; h < heads; ++h) {
        if (active[std::size_t(h / kvHeads)] == 0) {
            EXPECT_EQ(blocks[std::size_t(h * packedBlocks) * element], 0xffff) << "written for an inactive row";
            continue;
        }
        const int n = count[std::size_t(h)], whole = (n + c.blockSize - 1) / c.blockSize * c.blockSize;
        for (int i = 0; i < whole; ++i) {
            const Half* block = blocks.data() + std::size_t(h * packedBlocks + i / c.blockSize) * element;
            const int at = i % c.blockSize, token = i < n ? list[std::size_t(h * capacity + i)] : -1;
            for (int ch = 0; ch < c.dim; ++ch) {
                ASSERT_EQ(block[at * c.dim + ch], token < 0 ? 0 : source.key(h, token)[ch]) << h << " " << i;
                ASSERT_EQ(block[c.blockSize * c.dim + ch * c.blockSize + at],
                          token < 0 ? 0 : source.value(h, token)[ch])
                    << h << " " << i;
            }
        }
    }

    const auto q = halves(std::size_t(rows * queryHeads * c.dim));
    const OnDevice<Half> dq(q), out(q.size());
    const OnDevice<float> logSums(std::size_t(rows * queryHeads)),
        partial(attentionPartialFloats(launch, shape, rows, packedBlocks));
    const OnDevice<std::uint32_t> arrivals(std::vector<std::uint32_t>(attentionArrivals(shape, rows), 0));
    DecodeAttentionArgs a;
    a.shape = shape;
    a.rows = rows;
    a.position = dposition.get();
    a.active = dactive.get();
    a.q = dq.bf16();
    a.blocks = packed.bf16();
    a.headFirst = a.biasFirst = dpackedFirst.get();
    std::vector<std::int64_t> packedTokenFirst;
    for (const std::int64_t at : packedFirst) packedTokenFirst.push_back(at * c.blockSize);
    const OnDevice<std::int64_t> dpackedTokenFirst(packedTokenFirst);
    a.biasFirst = dpackedTokenFirst.get();
    a.packedTokens = dcount.get();
    a.maxBlocks = packedBlocks;
    a.tokenBias = packedBias.get();
    a.scale = 0.11f;
    a.biasScale = 0.7f;
    a.out = out.bf16();
    a.logSums = logSums.get();
    a.partial = partial.get();
    a.arrivals = arrivals.get();
    decodeAttention(launch, a);
    check(cudaStreamSynchronize(launch.stream), "attending");
    const auto raw = out.read();
    const auto sums = logSums.read();
    std::vector<float> got;
    std::vector<double> want;
    for (int row = 0; row < rows; ++row)
        for (int h = 0; h < queryHeads; ++h) {
            const int item = row * kvHeads + h / c.group, at = row * queryHeads + h;
            if (active[std::size_t(row)] == 0) continue;
            std::vector<double> logits, result(std::size_t(c.dim), 0.0);
            double sum = 0;
            for (int i = 0; i < count[std::size_t(item)]; ++i) {
                const int token = list[std::size_t(item * capacity + i)];
                double dot = 0;
                for (int ch = 0; ch < c.dim; ++ch)
                    dot +=
                        double(toFloat(q[std::size_t(at * c.dim + ch)])) * double(toFloat(source.key(item, token)[ch]));
                const double p = std::exp(double(a.scale) * dot +
                                          double(a.biasScale) * double(bias[std::size_t(item * tokens + token)]));
                sum += p;
                for (int ch = 0; ch < c.dim; ++ch)
                    result[std::size_t(ch)] += p * double(toFloat(source.value(item, token)[ch]));
            }
            EXPECT_NEAR(sums[std::size_t(at)], std::log(sum), 1e-4); // float32 logits of size up to about 10
            for (int ch = 0; ch < c.dim; ++ch) {
                want.push_back(result[std::size_t(ch)] / sum);
                got.push_back(toFloat(raw[std::size_t(at * c.dim + ch)]));
            }
        }
    EXPECT_LT(relativeError(got, want), 6e-3); // probabilities and results are rounded to bf16
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaTokenPack,
                         ::testing::Values(Case{64, 2, 64, Case::Store}, Case{128, 4, 64, Case::HostStore},
                                           Case{128, 8, 16, Case::Store}, Case{128, 4, 64, Case::Blocks},
                                           Case{64, 16, 32, Case::PlacedBlocks}, Case{128, 1, 256, Case::Store},
                                           Case{64, 4, 256, Case::PlacedBlocks}, Case{128, 20, 48, Case::Blocks}));

class CudaTokenStore : public CudaTest {};

TEST_F(CudaTokenStore, APromptIsStoredTokenByToken) {
    for (const auto& [dim, bs, tokens] : {std::tuple{64, 64, 300}, {128, 16, 129}, {128, 256, 1000}, {64, 48, 1}}) {
        SCOPED_TRACE(::testing::Message() << "dim " << dim << ", block " << bs << ", " << tokens << " tokens");
        const int kvHeads = 3, perHead = (tokens + bs - 1) / bs, stride = tokens + 9;
        const Source source{kvHeads, perHead * bs, dim, bs,
                            halves(std::size_t(kvHeads * perHead * bs) * std::size_t(2 * dim))};
        std::vector<std::int32_t> place;
        for (int h = 0; h < kvHeads; ++h)
            for (int b = 0; b < perHead; ++b) place.push_back(b);
        const OnDevice<Half> blocks(source.blocks(place)), store(std::size_t(kvHeads * stride * 2 * dim));
        UnpackArgs args;
        args.shape = {kvHeads, kvHeads, dim, bs};
        args.tokens = tokens;
        args.blocks = blocks.bf16();
        args.headStride = std::int64_t(perHead) * std::int64_t(blockElements(bs, dim));
        args.store = store.bf16();
        args.storeStride = stride;
        unpackPrompt(launch, args);
        check(cudaStreamSynchronize(launch.stream), "storing");
        const auto got = store.read();
        for (int h = 0; h < kvHeads; ++h)
            for (int t = 0; t < stride; ++t)
                for (int i = 0; i < 2 * dim; ++i)
                    ASSERT_EQ(got[std::size_t((h * stride + t) * 2 * dim + i)],
                              t < tokens ? source.key(h, t)[i] : 0xffff)
                        << h << " " << t << " " << i;
    }
}

} // namespace
} // namespace kvscope::cuda
