// Tokens packed from both kinds of store hold what was there, bit by bit; attention over them against float64.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/methods/token_pack.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

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
            for (int t = 0; t < tokens; ++t)
                putToken(out.data() + std::size_t(h * perHead + place[std::size_t(h * perHead + t / bs)]) * element, bs,
                         dim, t % bs, key(h, t), value(h, t));
        return out;
    }
};

/// Packs random tokens of every (row, KV head); the second row is not active.
class CudaTokenPack : public CudaTest, public ::testing::WithParamInterface<Case> {
protected:
    static constexpr int kRows = 3, kKvHeads = 2, kHeads = kRows * kKvHeads, kBlocksOfHead = 12, kPackedBlocks = 6;

    void SetUp() override {
        CudaTest::SetUp();
        if (IsSkipped()) return;
        source_ = {kHeads, tokens(), c_.dim, c_.blockSize,
                   halves(std::size_t(kHeads * tokens()) * std::size_t(2 * c_.dim))};
        bias_ = floats(std::size_t(kHeads * tokens()));
        for (int row = 0; row < kRows; ++row) position_.push_back(uniform(tokens() / 2, tokens() - 1));
        list_.assign(std::size_t(kHeads * capacity()), -1);
        for (int h = 0; h < kHeads; ++h) listTokens(h);
        packed_.emplace(std::size_t(kHeads * kPackedBlocks) * blockElements(c_.blockSize, c_.dim));
        packedBias_.emplace(std::size_t(kHeads * kPackedBlocks * c_.blockSize));
        pack();
    }

    int tokens() const { return kBlocksOfHead * c_.blockSize; }
    int capacity() const { return 5 * c_.blockSize + 3; }
    bool byBlock() const { return c_.from == Case::Blocks || c_.from == Case::PlacedBlocks; }
    int queryHeads() const { return kKvHeads * c_.group; }
    AttentionShape shape() const { return {queryHeads(), kKvHeads, c_.dim, c_.blockSize}; }
    int countOf(int h) const { return count_[std::size_t(h)]; }
    int tokenOf(int h, int i) const { return list_[std::size_t(h * capacity() + i)]; }
    bool isActive(int row) const { return active_[std::size_t(row)] != 0; }
    /// A table with where the parts of every head begin, `size` apart.
    static std::vector<std::int64_t> firsts(int size) {
        std::vector<std::int64_t> first;
        for (int h = 0; h < kHeads; ++h) first.push_back(std::int64_t(h) * size);
        return first;
    }

    const Case c_ = GetParam();
    const std::vector<std::uint8_t> active_{1, 0, 1};
    Source source_{};
    std::vector<float> bias_;
    std::vector<std::int32_t> list_, count_, position_, place_;
    std::optional<OnDevice<Half>> packed_;
    std::optional<OnDevice<float>> packedBias_;

private:
    void listTokens(int h);
    void pack();
};

/// Draws ascending tokens, the newest always among them, and where the head's blocks lie.
void CudaTokenPack::listTokens(int h) {
    std::vector<std::int32_t> all(std::size_t(position_[std::size_t(h / kKvHeads)] + 1)), blocks(kBlocksOfHead);
    std::iota(all.begin(), all.end(), 0);
    std::swap(all.front(), all.back());
    std::shuffle(all.begin() + 1, all.end(), random);
    all.resize(std::size_t(h == 0 ? capacity() : h == 5 ? 1 : uniform(1, capacity())));
    std::sort(all.begin(), all.end());
    count_.push_back(int(all.size()));
    std::copy(all.begin(), all.end(), list_.begin() + h * capacity());
    std::iota(blocks.begin(), blocks.end(), 0);
    if (c_.from == Case::PlacedBlocks) std::shuffle(blocks.begin(), blocks.end(), random);
    place_.insert(place_.end(), blocks.begin(), blocks.end());
}

void CudaTokenPack::pack() {
    // The newest token's place holds something else: it must come from newKey and newValue.
    Source stored = source_;
    std::vector<Half> newKeys, newValues;
    for (int h = 0; h < kHeads; ++h) {
        const int newest = position_[std::size_t(h / kKvHeads)];
        newKeys.insert(newKeys.end(), source_.key(h, newest), source_.key(h, newest) + c_.dim);
        newValues.insert(newValues.end(), source_.value(h, newest), source_.value(h, newest) + c_.dim);
        std::fill_n(stored.rows.begin() + (h * tokens() + newest) * 2 * c_.dim, 2 * c_.dim, toBf16(30.f));
    }
    const OnDevice<Half> store(stored.rows), blocks(stored.blocks(place_)), newKey(newKeys), newValue(newValues);
    const OnDevice<std::int32_t> list(list_), count(count_), position(position_), place(place_);
    const OnDevice<std::int64_t> first(firsts(byBlock() ? kBlocksOfHead : tokens())), biasFirst(firsts(tokens()));
    const OnDevice<std::uint8_t> active(active_);
    const OnDevice<float> bias(bias_);
    const PinnedMemory host(stored.rows.size() * sizeof(Half), "the store");
    std::memcpy(host.data(), stored.rows.data(), stored.rows.size() * sizeof(Half));
    PackArgs a;
    a.shape = shape();
    a.rows = kRows;
    a.active = active.get();
    a.tokens = list.get();
    a.count = count.get();
    a.capacity = capacity();
    if (c_.from == Case::Store) a.store = store.bf16();
    if (c_.from == Case::HostStore) a.store = host.as<const __nv_bfloat16>();
    if (a.store == nullptr) a.blocks = blocks.bf16();
    if (c_.from == Case::PlacedBlocks) a.place = place.get(), a.maxBlocks = kBlocksOfHead;
    if (c_.from == Case::Blocks)
        a.stride = kBlocksOfHead;
    else
        a.first = first.get();
    a.position = position.get();
    a.newKey = newKey.bf16();
    a.newValue = newValue.bf16();
    a.bias = bias.get();
    a.biasFirst = biasFirst.get();
    a.packed = packed_->bf16();
    a.packedBias = packedBias_->get();
    a.packedBlocks = kPackedBlocks;
    packTokens(launch, a);
    check(cudaStreamSynchronize(launch.stream), "packing");
}

TEST_P(CudaTokenPack, PackedTokensAreThoseOfTheList) {
    const auto blocks = packed_->read();
    const std::size_t element = blockElements(c_.blockSize, c_.dim);
    for (int h = 0; h < kHeads; ++h) {
        if (!isActive(h / kKvHeads)) {
            EXPECT_EQ(blocks[std::size_t(h * kPackedBlocks) * element], 0xffff) << "written for an inactive row";
            continue;
        }
        const int n = countOf(h), whole = (n + c_.blockSize - 1) / c_.blockSize * c_.blockSize;
        for (int i = 0; i < whole; ++i) {
            const Half* block = blocks.data() + std::size_t(h * kPackedBlocks + i / c_.blockSize) * element;
            const int at = i % c_.blockSize, token = i < n ? tokenOf(h, i) : -1;
            for (int ch = 0; ch < c_.dim; ++ch) {
                ASSERT_EQ(block[at * c_.dim + ch], token < 0 ? 0 : source_.key(h, token)[ch]) << h << " " << i;
                ASSERT_EQ(block[c_.blockSize * c_.dim + ch * c_.blockSize + at],
                          token < 0 ? 0 : source_.value(h, token)[ch])
                    << h << " " << i;
            }
        }
    }
}

/// With the packed biases, against float64 over the listed tokens.
TEST_P(CudaTokenPack, PackedTokensAreAttendedLikeTheirOwn) {
    const auto q = halves(std::size_t(kRows * queryHeads() * c_.dim));
    const OnDevice<Half> dq(q), out(q.size());
    const OnDevice<float> logSums(std::size_t(kRows * queryHeads())),
        partial(attentionPartialFloats(launch, shape(), kRows, kPackedBlocks));
    const OnDevice<std::uint32_t> arrivals(std::vector<std::uint32_t>(attentionArrivals(shape(), kRows), 0));
    const OnDevice<std::int64_t> headFirst(firsts(kPackedBlocks)), biasFirst(firsts(kPackedBlocks * c_.blockSize));
    const OnDevice<std::int32_t> count(count_), position(position_);
    const OnDevice<std::uint8_t> active(active_);
    DecodeAttentionArgs a;
    a.shape = shape();
    a.rows = kRows;
    a.position = position.get();
    a.active = active.get();
    a.q = dq.bf16();
    a.blocks = packed_->bf16();
    a.headFirst = headFirst.get();
    a.bias.first = biasFirst.get();
    a.packedTokens = count.get();
    a.maxBlocks = kPackedBlocks;
    a.bias.scores = packedBias_->get();
    a.scale = 0.11f;
    a.bias.scale = 0.7f;
    a.out = out.bf16();
    a.logSums = logSums.get();
    a.scratch.partial = partial.get();
    a.scratch.arrivals = arrivals.get();
    decodeAttention(launch, a);
    check(cudaStreamSynchronize(launch.stream), "attending");
    const auto raw = out.read();
    const auto sums = logSums.read();
    std::vector<float> got;
    std::vector<double> want;
    for (int at = 0; at < kRows * queryHeads(); ++at) {
        const int row = at / queryHeads(), item = row * kKvHeads + at % queryHeads() / c_.group;
        if (!isActive(row)) continue;
        std::vector<double> result(std::size_t(c_.dim), 0.0);
        double sum = 0;
        for (int i = 0; i < countOf(item); ++i) {
            const int token = tokenOf(item, i);
            double dot = 0;
            for (int ch = 0; ch < c_.dim; ++ch)
                dot +=
                    double(toFloat(q[std::size_t(at * c_.dim + ch)])) * double(toFloat(source_.key(item, token)[ch]));
            const double p = std::exp(double(a.scale) * dot +
                                      double(a.bias.scale) * double(bias_[std::size_t(item * tokens() + token)]));
            sum += p;
            for (int ch = 0; ch < c_.dim; ++ch)
                result[std::size_t(ch)] += p * double(toFloat(source_.value(item, token)[ch]));
        }
        EXPECT_NEAR(sums[std::size_t(at)], std::log(sum), 1e-4); // float32 logits of size up to about 10
        for (int ch = 0; ch < c_.dim; ++ch) {
            want.push_back(result[std::size_t(ch)] / sum);
            got.push_back(toFloat(raw[std::size_t(at * c_.dim + ch)]));
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

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
