// Labels on the GPU against the rule of the paper's code in float64, and the tokens they choose.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/methods/labels.h"
#include "kernels/cuda/methods/token_pack.h"

#include <algorithm>
#include <numeric>

namespace kvscope::cuda {
namespace {

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

class CudaLabels : public CudaTest, public ::testing::WithParamInterface<Case> {};

TEST_P(CudaLabels, ChooseTheTokensOfTheRule) {
    const Case c = GetParam();
    if (c.processors > 0) launch.multiprocessors = c.processors;
    const int kvHeads = 2, rows = 2, heads = rows * kvHeads, queryHeads = kvHeads * c.group, wanted = 50, capacity = 64;
    const int perHead = (c.maxTokens + c.blockSize - 1) / c.blockSize, stride = (c.maxTokens + 31) / 32 * 32;
    const AttentionShape shape{queryHeads, kvHeads, c.dim, c.blockSize};
    const std::size_t element = blockElements(c.blockSize, c.dim), headElements = std::size_t(perHead) * element;
    const std::vector<std::int32_t> position{c.maxTokens - 1, std::max(1, c.maxTokens / 3)};
    const auto blocks = halves(std::size_t(heads) * headElements), q = halves(std::size_t(rows * queryHeads * c.dim));
    const auto promptQ = halves(std::size_t(c.maxTokens) * std::size_t(queryHeads * c.dim));
    const auto key = [&](int head, int token, int ch) {
        return double(toFloat(blocks[std::size_t(head) * headElements + std::size_t(token / c.blockSize) * element +
                                     std::size_t(token % c.blockSize * c.dim + ch)]));
    };
    const OnDevice<Half> dblocks(blocks), dq(q), dpromptQ(promptQ);
    const OnDevice<double> sums(std::vector<double>(std::size_t(kvHeads * kObservers * c.dim), 0));
    LabelStore labels;
    labels.channels = c.channels;
    labels.bits = c.bits;
    labels.stride = stride;
    const OnDevice<std::uint32_t> codes(std::size_t(heads * labels.words() * stride));
    const OnDevice<float> steps(std::size_t(heads * stride)), lowest(std::size_t(heads * stride));
    const OnDevice<std::int32_t> channel(std::size_t(heads * c.channels));
    labels.codes = codes.get();
    labels.steps = steps.get();
    labels.lowest = lowest.get();
    labels.channel = channel.get();
    std::vector<Half> newKey, newValue;
    std::vector<std::int64_t> first;
    for (int row = 0; row < rows; ++row) {
        const int tokens = position[std::size_t(row)]; // the last one comes as a decode step's
        const __nv_bfloat16* of = dblocks.bf16() + std::size_t(row * kvHeads) * headElements;
        check(cudaMemset(sums.get(), 0, std::size_t(kvHeads * kObservers * c.dim) * sizeof(double)), "test");
        for (int begin = 0; begin < tokens; begin += 77)
            observeChannels(launch, {shape, std::min(77, tokens - begin), begin,
                                     dpromptQ.bf16() + std::size_t(begin) * std::size_t(queryHeads * c.dim), of,
                                     std::int64_t(headElements), sums.get()});
        pickChannels(launch, sums.get(), tokens, shape, row, labels);
        labelPrompt(launch, {shape, row, tokens, of, std::int64_t(headElements), labels});
        for (int g = 0; g < kvHeads; ++g) {
            const int head = row * kvHeads + g;
            first.push_back(std::int64_t(head) * c.maxTokens);
            for (int ch = 0; ch < c.dim; ++ch) newKey.push_back(toBf16(float(key(head, tokens, ch))));
        }
    }
    newValue = halves(newKey.size());
    const OnDevice<Half> dkey(newKey), dvalue(newValue),
        store(std::size_t(heads * c.maxTokens) * std::size_t(2 * c.dim));
    const OnDevice<std::int32_t> dposition(position);
    const OnDevice<std::int64_t> dfirst(first);
    labelToken(launch,
               {shape, rows, dposition.get(), nullptr, dkey.bf16(), dvalue.bf16(), labels, store.bf16(), dfirst.get()});
    const OnDevice<std::int32_t> tokens(std::size_t(heads * capacity)), count(static_cast<std::size_t>(heads));
    const OnDevice<float> scores(std::size_t(heads * capacity));
    LabelChoiceArgs args;
    args.shape = shape;
    args.rows = rows;
    args.position = dposition.get();
    args.q = dq.bf16();
    args.labels = labels;
    args.scale = 1 / std::sqrt(float(c.channels));
    args.maxTokens = c.maxTokens;
    args.wanted = wanted;
    args.tokens = tokens.get();
    args.tokenScores = scores.get();
    args.count = count.get();
    args.capacity = capacity;
    chooseByLabels(launch, args);
    check(cudaStreamSynchronize(launch.stream), "choosing");

    const auto gotTokens = tokens.read(), gotCount = count.read(), gotChannels = channel.read();
    const auto gotScores = scores.read();
    const auto rowsStored = store.read();
    for (int head = 0; head < heads; ++head) {
        SCOPED_TRACE(head);
        const int row = head / kvHeads, g = head % kvHeads, last = position[std::size_t(row)];
        std::vector<double> importance(std::size_t(c.dim), 0.0);
        for (int t = 0; t < last; ++t)
            for (int h = g * c.group; h < (g + 1) * c.group; ++h)
                for (int ch = 0; ch < c.dim; ++ch)
                    importance[std::size_t(ch)] += std::abs(
                        double(toFloat(promptQ[std::size_t((t * queryHeads + h) * c.dim + ch)])) * key(head, t, ch));
        std::vector<int> chosen(gotChannels.begin() + head * c.channels, gotChannels.begin() + (head + 1) * c.channels);
        std::vector<double> ranked = importance;
        std::sort(ranked.rbegin(), ranked.rend());
        for (int i = 0; i < c.channels; ++i) // the i-th best, or one as good within what float32 sums round
            ASSERT_NEAR(importance[std::size_t(chosen[std::size_t(i)])], ranked[std::size_t(i)],
                        1e-5 * ranked[std::size_t(i)]);
        const auto cut = [&](auto&& at) {
            std::vector<double> x;
            for (const int ch : chosen) x.push_back(at(ch));
            return c.bits == 4 ? rounded(x) : x;
        };
        std::vector<double> want(std::size_t(last + 1), 0.0);
        for (int h = g * c.group; h < (g + 1) * c.group; ++h) {
            const auto query =
                cut([&](int ch) { return double(toFloat(q[std::size_t((row * queryHeads + h) * c.dim + ch)])); });
            std::vector<double> weights;
            double sum = 0;
            for (int t = 0; t <= last; ++t) {
                const auto label = cut([&](int ch) { return key(head, t, ch); });
                const double logit = std::inner_product(query.begin(), query.end(), label.begin(), 0.0);
                weights.push_back(std::exp(double(args.scale) * logit));
                sum += weights.back();
            }
            for (std::size_t t = 0; t < weights.size(); ++t) want[t] += weights[t] / sum / c.group;
        }
        const int n = gotCount[std::size_t(head)];
        ASSERT_EQ(n, std::min(wanted, last + 1));
        std::vector<double> best = want;
        std::sort(best.rbegin(), best.rend());
        const double limit = best[std::size_t(n - 1)];
        std::vector<bool> in(want.size(), false);
        for (int i = 0; i < n; ++i) {
            const auto at = std::size_t(head * capacity + i);
            ASSERT_TRUE(i == 0 || gotTokens[at] > gotTokens[at - 1]);
            ASSERT_LE(gotTokens[at], last);
            in[std::size_t(gotTokens[at])] = true;
            // float32 logits of up to about 10, then exp
            ASSERT_NEAR(gotScores[at], want[std::size_t(gotTokens[at])], 1e-4 * want[std::size_t(gotTokens[at])]);
        }
        for (std::size_t t = 0; t < want.size(); ++t) { // with room for what float32 rounds
            if (in[t]) {
                ASSERT_GE(want[t], limit * (1 - 1e-4)) << t;
            } else {
                ASSERT_LE(want[t], limit * (1 + 1e-4)) << t;
            }
        }
        for (int i = 0; i < 2 * c.dim; ++i)
            ASSERT_EQ(rowsStored[std::size_t((head * c.maxTokens + last) * 2 * c.dim + i)],
                      i < c.dim ? newKey[std::size_t(head * c.dim + i)]
                                : newValue[std::size_t(head * c.dim + i - c.dim)]);
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaLabels,
                         ::testing::Values(Case{64, 8, 8, 4, 64, 1500, 0}, Case{128, 4, 16, 4, 64, 9000, 0},
                                           Case{128, 4, 16, 4, 64, 9000, 2}, Case{128, 3, 13, 4, 16, 700, 0},
                                           Case{128, 12, 128, 4, 32, 500, 0}, Case{64, 1, 1, 4, 64, 400, 0},
                                           Case{128, 4, 16, 16, 64, 3000, 0}, Case{64, 10, 7, 16, 256, 600, 0}));

} // namespace
} // namespace kvscope::cuda
