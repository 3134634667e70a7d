// Labels on the GPU against the rule of the paper's code in float64, and the tokens they choose.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/methods/labels.h"
#include "kernels/cuda/methods/token_pack.h"

#include <algorithm>
#include <numeric>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

struct Case {
    int dim, group, channels, bits, blockSize, maxTokens, processors;
};
void PrintTo(const Case& c, std::ostream* out) {
    *out << "dim " << c.dim << ", group " << c.group << ", " << c.channels << " channels of " << c.bits << " bits, "
         << c.maxTokens << " tokens";
}

/// Asymmetric four bits of a vector. The codes are found in float32, as the rule's own code does: on the border between
/// two of them float64 would decide otherwise.
std::vector<double> rounded(const std::vector<double>& x) {
    const auto [low, high] = std::minmax_element(x.begin(), x.end());
    const float least = float(*low), range = float(*high) - least, scale = 15.f / (range == 0.f ? 1.f : range);
    std::vector<double> result;
    for (const double value : x) {
        const double code = std::clamp(double(std::nearbyint((float(value) - least) * scale)), 0.0, 15.0);
        result.push_back(code / double(scale) + double(least));
    }
    return result;
}

/// Labels the prompts of two sequences and one more token of each, and lets the kernel choose tokens.
class CudaLabels : public CudaTest, public ::testing::WithParamInterface<Case> {
protected:
    static constexpr int kKvHeads = 2, kRows = 2, kHeads = kRows * kKvHeads, kWanted = 50, kCapacity = 64;

    void SetUp() override {
        CudaTest::SetUp();
        if (IsSkipped()) return;
        if (c_.processors > 0) launch.multiprocessors = c_.processors;
        blocks_ = halves(std::size_t(kHeads) * headElements());
        q_ = halves(std::size_t(kRows * queryHeads() * c_.dim));
        promptQ_ = halves(std::size_t(c_.maxTokens) * std::size_t(queryHeads() * c_.dim));
        for (int head = 0; head < kHeads; ++head)
            for (int ch = 0; ch < c_.dim; ++ch) newKey_.push_back(toBf16(float(key(head, lastOf(head), ch))));
        newValue_ = halves(newKey_.size());
        labelAndChoose();
    }

    int queryHeads() const { return kKvHeads * c_.group; }
    AttentionShape shape() const { return {queryHeads(), kKvHeads, c_.dim, c_.blockSize}; }
    std::size_t headElements() const { // of a head's blocks
        return std::size_t((c_.maxTokens + c_.blockSize - 1) / c_.blockSize) * blockElements(c_.blockSize, c_.dim);
    }
    /// The newest token of a head's sequence, which comes as a decode step's; those before it are the prompt.
    int lastOf(int head) const { return position_[std::size_t(head / kKvHeads)]; }
    double key(int head, int token, int ch) const {
        return double(toFloat(blocks_[std::size_t(head) * headElements() +
                                      std::size_t(token / c_.blockSize) * blockElements(c_.blockSize, c_.dim) +
                                      std::size_t(token % c_.blockSize * c_.dim + ch)]));
    }
    std::vector<int> channelsOf(int head) const {
        const auto from = channels_.begin() + head * c_.channels;
        return {from, from + c_.channels};
    }
    std::vector<double> shares(int head) const;

    const Case c_ = GetParam();
    const std::vector<std::int32_t> position_{c_.maxTokens - 1, std::max(1, c_.maxTokens / 3)};
    const float scale_ = 1 / std::sqrt(float(c_.channels));
    std::vector<Half> blocks_, q_, promptQ_, newKey_, newValue_;
    std::vector<std::int32_t> channels_, tokens_, count_; // chosen: [heads, channels], [heads, capacity], [heads]
    std::vector<float> scores_;                           // [heads, capacity]
    std::vector<Half> store_;                             // [heads, maxTokens, 2*dim]

private:
    void labelAndChoose();
    void labelPrompts(const LabelStore& labels);
};

void CudaLabels::labelPrompts(const LabelStore& labels) {
    const OnDevice<Half> blocks(blocks_), promptQ(promptQ_);
    const OnDevice<double> sums(std::vector<double>(std::size_t(kKvHeads * kObservers * c_.dim), 0));
    for (int row = 0; row < kRows; ++row) {
        const int tokens = position_[std::size_t(row)];
        const __nv_bfloat16* of = blocks.bf16() + std::size_t(row * kKvHeads) * headElements();
        check(cudaMemset(sums.get(), 0, std::size_t(kKvHeads * kObservers * c_.dim) * sizeof(double)), "test");
        for (int begin = 0; begin < tokens; begin += 77)
            observeChannels(launch, {shape(), std::min(77, tokens - begin), begin,
                                     promptQ.bf16() + std::size_t(begin) * std::size_t(queryHeads() * c_.dim), of,
                                     std::int64_t(headElements()), sums.get()});
        pickChannels(launch, sums.get(), tokens, shape(), row, labels);
        labelPrompt(launch, {shape(), row, tokens, of, std::int64_t(headElements()), labels});
    }
    check(cudaStreamSynchronize(launch.stream), "labelling");
}

void CudaLabels::labelAndChoose() {
    const int stride = (c_.maxTokens + 31) / 32 * 32;
    LabelStore labels;
    labels.channels = c_.channels;
    labels.bits = c_.bits;
    labels.stride = stride;
    const OnDevice<std::uint32_t> codes(std::size_t(kHeads * labels.words() * stride));
    const OnDevice<float> steps(std::size_t(kHeads * stride)), lowest(std::size_t(kHeads * stride));
    const OnDevice<std::int32_t> channel(std::size_t(kHeads * c_.channels));
    labels.codes = codes.get();
    labels.steps = steps.get();
    labels.lowest = lowest.get();
    labels.channel = channel.get();
    labelPrompts(labels);
    std::vector<std::int64_t> firsts;
    for (int head = 0; head < kHeads; ++head) firsts.push_back(std::int64_t(head) * c_.maxTokens);
    const OnDevice<Half> newKey(newKey_), newValue(newValue_), q(q_),
        store(std::size_t(kHeads * c_.maxTokens) * std::size_t(2 * c_.dim));
    const OnDevice<std::int32_t> position(position_);
    const OnDevice<std::int64_t> first(firsts);
    labelToken(launch, {shape(), kRows, position.get(), nullptr, newKey.bf16(), newValue.bf16(), labels, store.bf16(),
                        first.get()});
    const OnDevice<std::int32_t> tokens(std::size_t(kHeads * kCapacity)), count(std::size_t{kHeads});
    const OnDevice<float> scores(std::size_t(kHeads * kCapacity));
    LabelChoiceArgs args;
    args.shape = shape();
    args.rows = kRows;
    args.position = position.get();
    args.q = q.bf16();
    args.labels = labels;
    args.scale = scale_;
    args.maxTokens = c_.maxTokens;
    args.wanted = kWanted;
    args.tokens = tokens.get();
    args.tokenScores = scores.get();
    args.count = count.get();
    args.capacity = kCapacity;
    chooseByLabels(launch, args);
    check(cudaStreamSynchronize(launch.stream), "choosing");
    channels_ = channel.read(), tokens_ = tokens.read(), count_ = count.read(), scores_ = scores.read();
    store_ = store.read();
}

/// Every token's score in float64: the mean over the group of the softmax of the labels' products with the query.
std::vector<double> CudaLabels::shares(int head) const {
    const int row = head / kKvHeads, g = head % kKvHeads, last = lastOf(head);
    const std::vector<int> chosen = channelsOf(head);
    const auto cut = [&](auto&& at) {
        std::vector<double> x;
        for (const int ch : chosen) x.push_back(at(ch));
        return c_.bits == 4 ? rounded(x) : x;
    };
    std::vector<double> want(std::size_t(last + 1), 0.0);
    for (int h = g * c_.group; h < (g + 1) * c_.group; ++h) {
        const auto query =
            cut([&](int ch) { return double(toFloat(q_[std::size_t((row * queryHeads() + h) * c_.dim + ch)])); });
        std::vector<double> weights;
        double sum = 0;
        for (int t = 0; t <= last; ++t) {
            const auto label = cut([&](int ch) { return key(head, t, ch); });
            const double logit = std::inner_product(query.begin(), query.end(), label.begin(), 0.0);
            weights.push_back(std::exp(double(scale_) * logit));
            sum += weights.back();
        }
        for (std::size_t t = 0; t < weights.size(); ++t) want[t] += weights[t] / sum / c_.group;
    }
    return want;
}

TEST_P(CudaLabels, HaveTheMostImportantChannels) {
    for (int head = 0; head < kHeads; ++head) {
        SCOPED_TRACE(head);
        const int g = head % kKvHeads;
        std::vector<double> importance(std::size_t(c_.dim), 0.0);
        for (int t = 0; t < lastOf(head); ++t)
            for (int h = g * c_.group; h < (g + 1) * c_.group; ++h)
                for (int ch = 0; ch < c_.dim; ++ch)
                    importance[std::size_t(ch)] +=
                        std::abs(double(toFloat(promptQ_[std::size_t((t * queryHeads() + h) * c_.dim + ch)])) *
                                 key(head, t, ch));
        const std::vector<int> chosen = channelsOf(head);
        std::vector<double> ranked = importance;
        std::sort(ranked.rbegin(), ranked.rend());
        for (std::size_t i = 0; i < chosen.size(); ++i) // the i-th best, or one as good within what float32 sums round
            ASSERT_NEAR(importance[std::size_t(chosen[i])], ranked[i], 1e-5 * ranked[i]);
    }
}

TEST_P(CudaLabels, ChooseTheTokensOfTheRule) {
    for (int head = 0; head < kHeads; ++head) {
        SCOPED_TRACE(head);
        const int last = lastOf(head), n = count_[std::size_t(head)];
        ASSERT_EQ(n, std::min(kWanted, last + 1));
        const std::vector<double> want = shares(head);
        std::vector<double> best = want;
        std::sort(best.rbegin(), best.rend());
        const double limit = best[std::size_t(n - 1)];
        std::vector<bool> in(want.size(), false);
        for (int i = 0; i < n; ++i) {
            const auto at = std::size_t(head * kCapacity + i);
            ASSERT_TRUE(i == 0 || tokens_[at] > tokens_[at - 1]);
            ASSERT_LE(tokens_[at], last);
            in[std::size_t(tokens_[at])] = true;
            // float32 logits of up to about 10, then exp
            ASSERT_NEAR(scores_[at], want[std::size_t(tokens_[at])], 1e-4 * want[std::size_t(tokens_[at])]);
        }
        for (std::size_t t = 0; t < want.size(); ++t) { // with room for what float32 rounds
            if (in[t]) {
                ASSERT_GE(want[t], limit * (1 - 1e-4)) << t;
            } else {
                ASSERT_LE(want[t], limit * (1 + 1e-4)) << t;
            }
        }
    }
}

TEST_P(CudaLabels, StoreTheNewestTokenBesideItsLabel) {
    for (int head = 0; head < kHeads; ++head)
        for (int i = 0; i < 2 * c_.dim; ++i)
            ASSERT_EQ(store_[std::size_t((head * c_.maxTokens + lastOf(head)) * 2 * c_.dim + i)],
                      i < c_.dim ? newKey_[std::size_t(head * c_.dim + i)]
                                 : newValue_[std::size_t(head * c_.dim + i - c_.dim)])
                << head << " " << i;
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaLabels,
                         ::testing::Values(Case{64, 8, 8, 4, 64, 1500, 0}, Case{128, 4, 16, 4, 64, 9000, 0},
                                           Case{128, 4, 16, 4, 64, 9000, 2}, Case{128, 3, 13, 4, 16, 700, 0},
                                           Case{128, 12, 128, 4, 32, 500, 0}, Case{64, 1, 1, 4, 64, 400, 0},
                                           Case{128, 4, 16, 16, 64, 3000, 0}, Case{64, 10, 7, 16, 256, 600, 0}));

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
