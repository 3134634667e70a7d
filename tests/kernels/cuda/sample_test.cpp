// The device's choice of the next token against a sorted float64 reference with the same draws.
#include "tests/kernels/cuda/device.h"

#include "kernels/cuda/token/sample.h"

#include <algorithm>
#include <numeric>

namespace kvscope::cuda {
namespace KVSCOPE_TEST_FILE {

using namespace test;

struct Case {
    int vocab;
    double temperature, topP;
    int topK;
    float grain; // logits are multiples of it: ties; 0: none
};
void PrintTo(const Case& c, std::ostream* out) {
    *out << "vocabulary " << c.vocab << ", temperature " << c.temperature << ", top-p " << c.topP << ", top-k "
         << c.topK << ", grain " << c.grain;
}

/// The chosen id, or -1 where the draw lies too near a border between tokens for float32 weights to decide.
int expected(const std::vector<float>& logits, const Case& c, double draw) {
    std::vector<int> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return logits[std::size_t(a)] > logits[std::size_t(b)]; });
    if (c.topK > 0) order.resize(std::min(order.size(), std::size_t(c.topK)));
    std::vector<double> ends;
    double sum = 0;
    const double top = logits[std::size_t(order[0])];
    for (const int id : order) ends.push_back(sum += std::exp((double(logits[std::size_t(id)]) - top) / c.temperature));
    constexpr double kBorder = 1e-6; // of the whole mass, as sample.h promises
    std::size_t kept = ends.size();
    if (c.topP < 1) {
        const auto last = std::lower_bound(ends.begin(), ends.end(), c.topP * sum);
        kept = std::min(std::size_t(last - ends.begin()) + 1, ends.size());
        // Were the border a token further, what the draw is scaled by would be another.
        for (const std::size_t at : {kept - 1, kept - 2})
            if (at < ends.size() && std::abs(ends[at] - c.topP * sum) < kBorder * sum) return -1;
    }
    const double target = draw * ends[kept - 1];
    const auto chosen = std::upper_bound(ends.begin(), ends.begin() + std::ptrdiff_t(kept), target);
    const auto at = std::min(std::size_t(chosen - ends.begin()), kept - 1);
    if (std::abs(ends[at] - target) < kBorder * sum || (at > 0 && std::abs(target - ends[at - 1]) < kBorder * sum))
        return -1;
    return order[at];
}

class CudaSample : public CudaTest, public ::testing::WithParamInterface<Case> {};

TEST_P(CudaSample, ChoosesWhatASortedReferenceChooses) {
    const Case c = GetParam();
    const int rows = 24, drawsPerRow = 7;
    std::vector<float> logits = floats(std::size_t(rows * c.vocab), 3);
    if (c.grain > 0)
        for (float& logit : logits) logit = std::round(logit / c.grain) * c.grain; // zeros of both signs among them
    std::vector<double> draws(std::size_t(rows * drawsPerRow));
    for (double& draw : draws) draw = std::uniform_real_distribution<double>(0, 1)(random);
    draws[0] = 0, draws[std::size_t(drawsPerRow)] = std::nextafter(1.0, 0.0); // rows 0 and 1, draw 0
    std::vector<std::int32_t> firstPosition, position;
    std::vector<std::uint8_t> active;
    for (int row = 0; row < rows; ++row) {
        firstPosition.push_back(uniform(0, 1000));
        position.push_back(firstPosition.back() + (row < 2 ? 0 : row % drawsPerRow));
        active.push_back(row != 5);
    }
    const OnDevice<float> dlogits(logits);
    const OnDevice<double> ddraws(draws);
    const OnDevice<std::int32_t> dfirst(firstPosition), dposition(position), next(std::size_t(rows) + 0),
        record(std::size_t(rows) + 0);
    const OnDevice<std::uint8_t> dactive(active);
    NextTokenArgs args;
    args.logits = dlogits.get();
    args.rows = rows;
    args.vocab = c.vocab;
    args.next = next.get();
    args.position = dposition.get();
    args.active = dactive.get();
    args.record = record.get();
    args.sampling = {c.temperature, c.topP, c.topK, ddraws.get(), dfirst.get(), drawsPerRow};
    nextTokens(launch, args);
    check(cudaStreamSynchronize(launch.stream), "sampling");
    const auto got = next.read(), recorded = record.read(), after = dposition.read();
    int undecided = 0;
    for (int row = 0; row < rows; ++row) {
        SCOPED_TRACE(row);
        const auto r = std::size_t(row);
        if (!active[r]) { // nothing was written
            EXPECT_EQ(got[r], -1);
            EXPECT_EQ(recorded[r], -1);
            EXPECT_EQ(after[r], position[r]);
            continue;
        }
        EXPECT_EQ(after[r], position[r] + 1);
        EXPECT_EQ(recorded[r], got[r]);
        const std::vector<float> mine(logits.begin() + std::ptrdiff_t(row) * c.vocab,
                                      logits.begin() + std::ptrdiff_t(row + 1) * c.vocab);
        const int want = expected(mine, c, draws[r * drawsPerRow + std::size_t(position[r] - firstPosition[r])]);
        if (want < 0)
            ++undecided;
        else
            EXPECT_EQ(got[r], want);
    }
    EXPECT_LE(undecided, rows / 3); // long tails have their borders close to each other
    // Sums of integers do not depend on their order.
    check(cudaMemcpy(dposition.get(), position.data(), position.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice),
          "copying the positions");
    nextTokens(launch, args);
    check(cudaStreamSynchronize(launch.stream), "sampling");
    EXPECT_EQ(next.read(), got);
}

INSTANTIATE_TEST_SUITE_P(Settings, CudaSample,
                         ::testing::Values(Case{4096, 1, 1, 0, 0}, Case{4096, 0.3, 1, 50, 0}, Case{4096, 1, 0.9, 0, 0},
                                           Case{4096, 2.5, 0.5, 200, 0}, Case{4096, 1, 1, 1, 0},
                                           Case{4096, 1, 1e-9, 0, 0}, Case{4096, 1, 0.9, 40, 0.25f},
                                           Case{4096, 1, 1, 0, 1.f}, Case{4096, 0.01, 1, 0, 0},
                                           Case{4096, 100, 1, 0, 0}, Case{1000, 1, 0.95, 5000, 0},
                                           Case{1, 1, 0.5, 3, 0}, Case{73448, 0.8, 0.95, 100, 0},
                                           Case{151936, 1, 1, 0, 0}, Case{151936, 0.6, 0.95, 20, 0.125f}));

using CudaSampleTells = CudaTest;

/// Whichever number of a row is none, and in whichever thread's share it lies.
TEST_F(CudaSampleTells, WhenALogitIsNotFinite) {
    const int vocab = 5000;
    const std::pair<int, float> wrong[] = {{0, NAN}, {vocab - 1, NAN}, {2500, INFINITY}, {1234, -INFINITY}, {31, NAN}};
    const int rows = int(std::size(wrong)) + 2; // the last but one is sound, the last one is wrong throughout
    std::vector<float> logits = floats(std::size_t(rows * vocab), 3);
    for (std::size_t row = 0; row < std::size(wrong); ++row)
        logits[row * std::size_t(vocab) + std::size_t(wrong[row].first)] = wrong[row].second;
    std::fill(logits.end() - vocab, logits.end(), NAN);
    const OnDevice<float> dlogits(logits);
    const OnDevice<double> draws(std::vector<double>(std::size_t(rows), 0.5));
    for (const double temperature : {0.0, 1.0}) {
        SCOPED_TRACE(temperature);
        const OnDevice<std::int32_t> first(std::vector<std::int32_t>(std::size_t(rows), 0)),
            position(std::vector<std::int32_t>(std::size_t(rows), 0)), next(std::size_t(rows) + 0),
            record(std::size_t(rows) + 0);
        NextTokenArgs args;
        args.logits = dlogits.get();
        args.rows = rows;
        args.vocab = vocab;
        args.next = next.get();
        args.position = position.get();
        args.record = record.get();
        args.sampling = {temperature, 0.9, 50, draws.get(), first.get(), 1};
        nextTokens(launch, args);
        check(cudaStreamSynchronize(launch.stream), "sampling");
        const auto fed = next.read(), told = record.read(), after = position.read();
        for (int row = 0; row < rows; ++row) {
            const bool sound = row == rows - 2;
            EXPECT_EQ(told[std::size_t(row)] != kNoToken, sound) << row;
            EXPECT_EQ(fed[std::size_t(row)], sound ? told[std::size_t(row)] : 0) << row;
            EXPECT_EQ(after[std::size_t(row)], 1) << row;
        }
    }
}

using CudaSampleFollows = CudaTest;

TEST_F(CudaSampleFollows, TheProbabilities) {
    const std::vector<float> one{0.f, 1.f, 2.f, -1.f, 1.f}; // weights 1, e, e^2, 1/e, e
    const int rows = 20000, vocab = int(one.size());
    std::vector<float> logits;
    std::vector<double> draws, share(one.size(), 0);
    double sum = 0;
    for (const float logit : one) sum += std::exp(double(logit));
    for (int row = 0; row < rows; ++row) {
        logits.insert(logits.end(), one.begin(), one.end());
        draws.push_back(std::uniform_real_distribution<double>(0, 1)(random));
    }
    const OnDevice<float> dlogits(logits);
    const OnDevice<double> ddraws(draws);
    const OnDevice<std::int32_t> zeros(std::vector<std::int32_t>(std::size_t(rows), 0)),
        position(std::vector<std::int32_t>(std::size_t(rows), 0)), next(std::size_t(rows) + 0);
    NextTokenArgs args;
    args.logits = dlogits.get();
    args.rows = rows;
    args.vocab = vocab;
    args.next = next.get();
    args.position = position.get();
    args.sampling = {1, 1, 0, ddraws.get(), zeros.get(), 1};
    nextTokens(launch, args);
    check(cudaStreamSynchronize(launch.stream), "sampling");
    for (const std::int32_t id : next.read()) share[std::size_t(id)] += 1.0 / rows;
    for (std::size_t i = 0; i < one.size(); ++i) {
        const double p = std::exp(double(one[i])) / sum;
        EXPECT_NEAR(share[i], p, 5 * std::sqrt(p * (1 - p) / rows)) << i; // five standard deviations
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::cuda
