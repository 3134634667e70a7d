// What a prompt's tokens receive from its queries (H2O), against double precision. The tolerance of a weight is that of
// attention_test.cpp: 4 e + (2 T + 32) 2^-24 of it, e being the largest error of a logit and T the number of visible
// tokens.
#include "base/error.h"
#include "tests/kernels/kernel_fixture.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <gmock/gmock.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using namespace kvscope::test;

struct Prompt {
    int group, dim, blockSize, kvHeads, tokens, window;
    float biasScale;
};

/// Random queries, and keys and values in blocks, of a prompt.
class RandomPrompt {
public:
    explicit RandomPrompt(const Prompt& of) : shape(of), scale(1.f / std::sqrt(float(of.dim))) {
        std::mt19937 random(unsigned(of.group * 1000 + of.dim + of.tokens * 7 + of.window));
        const auto floats = std::size_t(of.dim) * std::size_t(of.blockSize);
        for (int g = 0; g < of.kvHeads; ++g) {
            auto& views = views_.emplace_back();
            for (int first = 0; first < of.tokens; first += of.blockSize) {
                const float* keys = memory_.emplace_back(randomFloats(random, floats)).data();
                const float* values = memory_.emplace_back(randomFloats(random, floats)).data();
                const float* bias = memory_.emplace_back(randomFloats(random, std::size_t(of.blockSize), 2.f)).data();
                views.push_back({keys, values, bias, std::min(of.blockSize, of.tokens - first)});
            }
        }
        for (const auto& views : views_) lists_.push_back(views.data());
        q_ = randomFloats(random, std::size_t(of.tokens * heads() * of.dim), 2.f);
    }

    int heads() const { return shape.kvHeads * shape.group; }

    /// [head][position], when the prompt is read in pieces of `pieceTokens`.
    std::vector<std::vector<double>> received(Kernels& kernels, int pieceTokens) const {
        std::vector<std::vector<double>> result(std::size_t(heads()), std::vector<double>(std::size_t(shape.tokens)));
        std::vector<double*> lists;
        for (auto& list : result) lists.push_back(list.data());
        for (int first = 0; first < shape.tokens; first += pieceTokens) {
            const int n = std::min(pieceTokens, shape.tokens - first);
            const auto queries = std::size_t(n * heads());
            std::vector<float> out(queries * std::size_t(shape.dim)), maxima(queries), sums(queries);
            PrefillAttentionArgs args;
            args.q = q_.data() + std::size_t(first) * std::size_t(heads() * shape.dim);
            args.n = n;
            args.qStride = args.outStride = heads() * shape.dim;
            args.firstPosition = first;
            args.kvHeads = shape.kvHeads;
            args.group = shape.group;
            args.dim = shape.dim;
            args.blockSize = shape.blockSize;
            args.blocks = lists_.data();
            args.scale = scale;
            args.biasScale = shape.biasScale;
            args.window = shape.window;
            args.out = out.data();
            args.maxima = maxima.data();
            args.sums = sums.data();
            kernels.prefillAttention(args);
            kernels.attentionReceived(args, lists);
        }
        return result;
    }

    /// What one head's tokens receive in double precision, and by how much float32 may differ.
    void reference(int head, std::vector<double>& expected, std::vector<double>& tolerance) const {
        expected.assign(std::size_t(shape.tokens), 0.);
        tolerance.assign(std::size_t(shape.tokens), 1e-30);
        for (int position = 0; position < shape.tokens; ++position) {
            const int oldest = shape.window > 0 ? std::max(0, position - shape.window + 1) : 0;
            std::vector<double> weights;
            double worst = 0;
            for (int t = oldest; t <= position; ++t) {
                double size = 0;
                weights.push_back(logit(head, position, t, size));
                worst = std::max(worst, (shape.dim + 8) * kRounding * size);
            }
            const double top = *std::max_element(weights.begin(), weights.end());
            double sum = 0;
            for (double& weight : weights) sum += weight = std::exp(weight - top);
            for (std::size_t i = 0; i < weights.size(); ++i) {
                const double p = weights[i] / sum;
                expected[std::size_t(oldest) + i] += p;
                tolerance[std::size_t(oldest) + i] += p * (4 * worst + (2. * double(weights.size()) + 32) * kRounding);
            }
        }
    }

    const Prompt shape;
    const float scale;

private:
    double logit(int head, int position, int token, double& size) const {
        const KvBlockView& block = views_[std::size_t(head / shape.group)][std::size_t(token / shape.blockSize)];
        const int column = token % shape.blockSize;
        double dot = 0;
        for (int c = 0; c < shape.dim; ++c) {
            const double term = double(q_[std::size_t((position * heads() + head) * shape.dim + c)]) *
                                double(block.keys[c * shape.blockSize + column]);
            dot += term;
            size += std::abs(term);
        }
        const double bias = double(shape.biasScale) * double(block.bias[column]);
        size = double(scale) * size + std::abs(bias);
        return double(scale) * dot + bias;
    }

    std::deque<std::vector<float>> memory_;
    std::vector<std::vector<KvBlockView>> views_; // [KV head][block]
    std::vector<const KvBlockView*> lists_;
    std::vector<float> q_; // [token][head][dim]
};

TEST(AttentionReceived, MatchesDoublePrecisionWithAndWithoutWindowAndBias) {
    for (const Prompt& shape :
         {Prompt{1, 16, 16, 1, 1, 0, 0.f}, Prompt{3, 64, 16, 2, 131, 0, 1.f}, Prompt{8, 128, 64, 1, 200, 0, 0.f},
          Prompt{2, 16, 32, 2, 150, 37, 0.5f}, Prompt{4, 64, 64, 1, 129, 1, 0.f}}) {
        SCOPED_TRACE(std::to_string(shape.tokens) + " tokens, window " + std::to_string(shape.window));
        const RandomPrompt prompt(shape);
        onEveryInstructionSet([&] {
            const auto received = prompt.received(*makeCpuKernels(2), shape.tokens);
            std::vector<double> expected, tolerance;
            for (int head = 0; head < prompt.heads(); ++head) {
                prompt.reference(head, expected, tolerance);
                for (std::size_t t = 0; t < expected.size(); ++t)
                    ASSERT_NEAR(received[std::size_t(head)][t], expected[t], tolerance[t])
                        << "head " << head << ", token " << t;
            }
        });
    }
}

TEST(AttentionReceived, HasTheSameBitsForAnyPiecesAndThreads) {
    for (const int window : {0, 40}) {
        const RandomPrompt prompt({3, 32, 16, 2, 170, window, 0.5f});
        const auto whole = prompt.received(*makeCpuKernels(1), 170);
        for (const int piece : {1, 7, 64, 100})
            for (const int threads : {1, 3})
                EXPECT_EQ(prompt.received(*makeCpuKernels(threads), piece), whole)
                    << "pieces of " << piece << ", " << threads << " threads, window " << window;
    }
}

TEST(AttentionReceived, NeedsAListForEveryHeadAndTheSumsOfEveryQuery) {
    std::vector<float> memory(64 * 64), number(1);
    const KvBlockView block{memory.data(), memory.data(), nullptr, 1};
    const KvBlockView* blocks = &block;
    PrefillAttentionArgs args{memory.data(), 1, 64, 0, 1, 1, 64, 64, &blocks, 1.f, 0.f, memory.data(), 64};
    std::vector<double> list(64);
    double* received = list.data();
    const auto kernels = makeCpuKernels(1);
    EXPECT_THROW(kernels->attentionReceived(args, {&received, 1}), Error) << "no maxima and sums";
    args.maxima = args.sums = number.data();
    EXPECT_THROW(kernels->attentionReceived(args, {}), Error) << "no list";
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
