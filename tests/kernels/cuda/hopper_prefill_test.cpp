// Attention of prompts by the Hopper generation's warpgroup products against float64, in the places where its tiles
// end: prefixes that cross them, windows, biases, rows past the last token, values behind it that are no numbers.
// Skipped on other GPUs, where the tests of attention_test.cpp see the kernel that these have.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/attention/hopper_prefill.h"

#include <algorithm>
#include <numeric>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

constexpr int kBlock = 64;

struct Prompt {
    int dim, kvHeads, group, first, n, window;
    bool biased;
};
void PrintTo(const Prompt& p, std::ostream* out) {
    *out << "dim " << p.dim << ", heads " << p.kvHeads * p.group << "/" << p.kvHeads << ", " << p.first << " + " << p.n
         << " tokens, window " << p.window << (p.biased ? ", biased" : "");
}

class CudaHopperPrefill : public CudaTest {
protected:
    /// The prompt's inputs on the GPU, and the arguments that name them.
    struct Job {
        Prompt prompt;
        int blocks;
        std::vector<Half> q, store;
        std::vector<float> bias;
        OnDevice<Half> deviceQ, deviceStore, out;
        OnDevice<float> deviceBias, logSums;
        PrefillAttentionArgs args;

        Job(const Prompt& p, std::vector<Half> queries, std::vector<Half> kv, std::vector<float> biases)
            : prompt(p), blocks(int(kv.size() / blockElements(kBlock, p.dim)) / p.kvHeads), q(std::move(queries)),
              store(std::move(kv)), bias(std::move(biases)), deviceQ(q), deviceStore(store), out(q.size()),
              deviceBias(bias), logSums(std::size_t(p.n * p.kvHeads * p.group)) {
            args.shape = {p.kvHeads * p.group, p.kvHeads, p.dim, kBlock};
            args.n = p.n;
            args.firstPosition = p.first;
            args.window = p.window;
            args.q = deviceQ.bf16();
            args.blocks = deviceStore.bf16();
            args.headStride = std::int64_t(blocks) * std::int64_t(blockElements(kBlock, p.dim));
            args.tokenBias = p.biased ? deviceBias.get() : nullptr;
            args.biasStride = blocks * kBlock;
            args.scale = 0.09f;
            args.biasScale = 0.8f;
            args.out = out.bf16();
            args.logSums = logSums.get();
        }
        const Half* block(int g, int token) const {
            return &store[(std::size_t(g * blocks) + std::size_t(token / kBlock)) * blockElements(kBlock, prompt.dim)];
        }
    };

    /// Random inputs. Keys and values behind the last token are no numbers, and there is a block of them too many.
    Job job(const Prompt& p) {
        const int known = p.first + p.n, blocks = (known + kBlock - 1) / kBlock + 1;
        auto store = halves(std::size_t(p.kvHeads * blocks) * blockElements(kBlock, p.dim));
        for (int g = 0; g < p.kvHeads; ++g)
            for (int token = known; token < blocks * kBlock; ++token) {
                Half* block =
                    &store[(std::size_t(g * blocks) + std::size_t(token / kBlock)) * blockElements(kBlock, p.dim)];
                for (int c = 0; c < p.dim; ++c)
                    block[token % kBlock * p.dim + c] = block[(p.dim + c) * kBlock + token % kBlock] = 0x7fff;
            }
        return {p, halves(std::size_t(p.n * p.kvHeads * p.group * p.dim)), std::move(store),
                floats(std::size_t(p.kvHeads * blocks * kBlock), 2)};
    }

    void expectFloat64(const Job& job, int step) {
        const Prompt& p = job.prompt;
        const auto raw = job.out.read();
        const auto logSums = job.logSums.read();
        EXPECT_TRUE(std::none_of(raw.begin(), raw.end(), [](Half h) { return (h & 0x7f80) == 0x7f80; }))
            << "results that were not written, or are no numbers";
        std::vector<float> got, gotSums;
        std::vector<double> want, wantSums;
        const int heads = p.kvHeads * p.group;
        for (int t = p.n - 1; t >= 0; t -= step)
            for (int h = 0; h < heads; ++h) {
                const auto [sum, one] = reference(job, t, h);
                wantSums.push_back(sum);
                gotSums.push_back(logSums[std::size_t(t * heads + h)]);
                want.insert(want.end(), one.begin(), one.end());
                for (int c = 0; c < p.dim; ++c) got.push_back(toFloat(raw[std::size_t((t * heads + h) * p.dim + c)]));
            }
        EXPECT_LT(relativeError(got, want), 6e-3); // probabilities and results are rounded to bf16
        for (std::size_t i = 0; i < wantSums.size(); ++i) ASSERT_NEAR(double(gotSums[i]), wantSums[i], 1e-3) << i;
    }

private:
    /// The logarithm of the sum and the result of query token t, query head h.
    static std::pair<double, std::vector<double>> reference(const Job& job, int t, int h) {
        const Prompt& p = job.prompt;
        const int g = h / p.group, last = p.first + t, first = p.window > 0 ? std::max(0, last + 1 - p.window) : 0;
        const Half* q = &job.q[std::size_t((t * p.kvHeads * p.group + h) * p.dim)];
        std::vector<double> logits, out(std::size_t(p.dim), 0.0);
        for (int token = first; token <= last; ++token) {
            const Half* key = job.block(g, token) + token % kBlock * p.dim;
            double dot = 0;
            for (int c = 0; c < p.dim; ++c) dot += double(toFloat(q[c])) * double(toFloat(key[c]));
            const double bias = p.biased ? double(job.bias[std::size_t(g * job.blocks * kBlock + token)]) : 0;
            logits.push_back(double(job.args.scale) * dot + double(job.args.biasScale) * bias);
        }
        const double maximum = *std::max_element(logits.begin(), logits.end());
        double sum = 0;
        for (int token = first; token <= last; ++token) {
            const double weight = std::exp(logits[std::size_t(token - first)] - maximum);
            sum += weight;
            const Half* values = job.block(g, token) + p.dim * kBlock + token % kBlock;
            for (int c = 0; c < p.dim; ++c) out[std::size_t(c)] += weight * double(toFloat(values[c * kBlock]));
        }
        for (double& value : out) value /= sum;
        return {maximum + std::log(sum), std::move(out)};
    }
};

class CudaHopperPrompts : public CudaHopperPrefill, public ::testing::WithParamInterface<Prompt> {};

TEST_P(CudaHopperPrompts, EqualFloat64) {
    const Job made = job(GetParam());
    if (!hopperPrefillFits(launch, made.args)) GTEST_SKIP() << "not a Hopper GPU";
    const int processors = launch.multiprocessors;
    for (const int multiprocessors : {processors, 3}) { // on three each takes many tiles
        launch.multiprocessors = multiprocessors;
        hopperPrefill(launch, made.args);
        check(cudaStreamSynchronize(launch.stream), "testing");
        expectFloat64(made, std::max(1, made.prompt.n / 40));
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaHopperPrompts,
                         ::testing::Values(Prompt{128, 2, 4, 0, 1, 0, false}, Prompt{128, 1, 1, 0, 64, 0, true},
                                           Prompt{128, 2, 4, 0, 128, 0, false}, Prompt{128, 2, 8, 0, 333, 0, false},
                                           Prompt{128, 2, 4, 37, 200, 0, false}, Prompt{128, 3, 1, 1000, 129, 0, true},
                                           Prompt{128, 2, 16, 513, 277, 0, true}, Prompt{128, 2, 4, 200, 500, 1, false},
                                           Prompt{128, 2, 4, 200, 500, 100, true},
                                           Prompt{128, 2, 4, 700, 900, 129, false},
                                           Prompt{128, 1, 3, 1200, 700, 512, true}, Prompt{64, 2, 4, 77, 300, 0, false},
                                           Prompt{64, 4, 3, 8, 513, 0, true}, Prompt{64, 2, 1, 64, 700, 130, true}));

TEST_F(CudaHopperPrefill, TheSameBitsInEveryRun) {
    const Job made = job({128, 2, 4, 300, 1000, 0, false});
    if (!hopperPrefillFits(launch, made.args)) GTEST_SKIP() << "not a Hopper GPU";
    std::vector<Half> before;
    for (int run = 0; run < 50; ++run) {
        check(cudaMemset(made.out.get(), 0xff, made.q.size() * sizeof(Half)), "poisoning a test's output");
        check(cudaDeviceSynchronize(), "testing");
        hopperPrefill(launch, made.args);
        check(cudaStreamSynchronize(launch.stream), "testing");
        auto now = made.out.read();
        if (run > 0) {
            ASSERT_EQ(now, before) << run;
        }
        before = std::move(now);
    }
}

TEST_F(CudaHopperPrefill, LeavesWhatItCannotDoToTheKernelOfAllGpus) {
    const Job made = job({128, 2, 4, 0, 256, 0, true});
    if (!hopperPrefillFits(launch, made.args)) GTEST_SKIP() << "not a Hopper GPU";
    const auto fits = [&](auto change) {
        PrefillAttentionArgs args = made.args;
        Launch how = launch;
        change(args, how);
        return hopperPrefillFits(how, args);
    };
    EXPECT_TRUE(fits([](auto&, auto&) {}));
    EXPECT_FALSE(fits([](auto& args, auto&) { args.shape.blockSize = 32; }));
    EXPECT_FALSE(fits([](auto& args, auto&) { args.headStride += 64; }));      // a head would begin within a block
    EXPECT_FALSE(fits([](auto& args, auto&) { args.tokenBias += 1; }));        // biases that no bulk copy can begin at
    EXPECT_FALSE(fits([](auto& args, auto&) { args.scale = 0; }));             // the kernel divides biases by the scale
    EXPECT_FALSE(fits([](auto&, auto& how) { how.clusters = false; }));        // stands for an earlier GPU
    EXPECT_FALSE(fits([](auto&, auto& how) { how.blockShared = 100 << 10; })); // or one with less shared memory
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
