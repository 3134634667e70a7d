// What is offered: arrivals and lengths have the statistics they are to have, and the same bytes on every machine.
#include "base/error.h"
#include "core/serve/random_draws.h"
#include "core/serve/workload.h"
#include "tests/support/places.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <gmock/gmock.h>
#include <iterator>
#include <map>
#include <numeric>
#include <sstream>

namespace kvscope::serve {
namespace KVSCOPE_TEST_FILE {

using ::testing::HasSubstr;

std::vector<double> gapsOf(const Workload& workload) {
    std::vector<double> gaps;
    for (std::size_t i = 1; i < workload.lines.size(); ++i)
        gaps.push_back(double(workload.lines[i].arrivalUs - workload.lines[i - 1].arrivalUs) / 1e6);
    return gaps;
}
double meanOf(const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}
double variationOf(const std::vector<double>& values) {
    const double mean = meanOf(values);
    double squares = 0;
    for (const double value : values) squares += (value - mean) * (value - mean);
    return std::sqrt(squares / double(values.size())) / mean;
}
double shareOf(std::vector<double> values, double p) {
    std::sort(values.begin(), values.end());
    return values[std::size_t(p * double(values.size() - 1))];
}
Workload unitLines(int count) {
    Workload workload;
    workload.lines.resize(std::size_t(count));
    return workload;
}
/// The largest distance between the samples' distribution and another (Kolmogorov and Smirnov).
double distance(std::vector<double> samples, const std::function<double(double)>& distribution) {
    std::sort(samples.begin(), samples.end());
    const auto n = double(samples.size());
    double most = 0;
    for (std::size_t i = 0; i < samples.size(); ++i) {
        const double p = distribution(samples[i]);
        most = std::max({most, std::abs(p - double(i) / n), std::abs(p - double(i + 1) / n)});
    }
    return most;
}

TEST(Draws, FunctionsAgreeWithTheLibrary) {
    for (const double x : {1e-300, 1e-9, 0.3, 0.9999999, 1.0, 1.0000001, 2.718, 1e5, 1e300})
        EXPECT_NEAR(portableLog(x), std::log(x), 4e-16 * std::max(1.0, std::abs(std::log(x)))) << x;
    for (double x = -700; x < 700; x += 13.7) EXPECT_NEAR(portableExp(x) / std::exp(x), 1, 2e-13) << x;
    for (double x = -1; x < 1; x += 0.01) EXPECT_NEAR(portableExp(x), std::exp(x), 1e-15) << x;
    for (const double p : {1e-9, 0.001, 0.025, 0.3, 0.5, 0.9, 0.999999})
        EXPECT_NEAR(0.5 * std::erfc(-normalQuantile(p) / std::sqrt(2.0)), p, 1e-12) << p;
    EXPECT_NEAR(normalQuantile(0.01), -2.3263478740408408, 1e-12);
}

TEST(Draws, ArePinnedBitByBit) {
    Draws draws(42);
    EXPECT_EQ(draws.bits(), 13679457532755275413u); // splitmix64 of 42
    std::uint64_t hash = 0;
    for (int i = 0; i < 10000; ++i)
        for (const double value : {draws.exponential(), draws.gamma(0.25), draws.gamma(3), draws.normal()}) {
            std::uint64_t bits = 0;
            std::memcpy(&bits, &value, sizeof bits);
            hash = (hash ^ bits) * 1099511628211u;
        }
    EXPECT_EQ(hash, 7601756987140679728u);
}

TEST(Arrivals, PoissonAndGammaHaveTheirMeanVariationAndDistribution) {
    constexpr int kCount = 200000;
    for (const double shape : {1.0, 0.25, 4.0}) {
        Workload workload = unitLines(kCount);
        drawArrivals(workload, shape == 1 ? Arrivals::Poisson : Arrivals::Gamma, shape, 7);
        const std::vector<double> gaps = gapsOf(workload);
        EXPECT_NEAR(meanOf(gaps), 1, 4 / std::sqrt(shape * kCount)) << shape; // four standard errors
        EXPECT_NEAR(variationOf(gaps) * std::sqrt(shape), 1, 0.02) << shape;
        EXPECT_NEAR(workload.rate(), 1, 4 / std::sqrt(shape * kCount)) << shape;
    }
    Workload poisson = unitLines(20000), gamma = unitLines(20000), constant = unitLines(100);
    drawArrivals(poisson, Arrivals::Poisson, 1, 3);
    drawArrivals(gamma, Arrivals::Gamma, 2, 3);
    drawArrivals(constant, Arrivals::Constant, 1, 3);
    const double limit = 1.63 / std::sqrt(20000); // one in a hundred
    EXPECT_LT(distance(gapsOf(poisson), [](double x) { return 1 - std::exp(-x); }), limit);
    EXPECT_LT(distance(gapsOf(gamma), [](double x) { return 1 - std::exp(-2 * x) * (1 + 2 * x); }), limit) << "Erlang";
    EXPECT_GT(distance(gapsOf(gamma), [](double x) { return 1 - std::exp(-x); }), 5 * limit);
    EXPECT_LT(variationOf(gapsOf(constant)), 1e-9);
}

TEST(Arrivals, TheRateScalesTimesAndKeepsTheOrderOfGaps) {
    Workload workload = longmix(100, 1), faster = workload;
    changeRate(faster, 4);
    EXPECT_NEAR(faster.rate(), 4 * workload.rate(), 1e-3);
    for (std::size_t i = 0; i < workload.lines.size(); ++i)
        EXPECT_NEAR(double(faster.lines[i].arrivalUs), double(workload.lines[i].arrivalUs) / 4, 0.51);
    EXPECT_THROW(changeRate(workload, 0), Error);
}

TEST(Arrivals, SpreadLeavesTheBucketsAndTheirCounts) {
    Workload workload = unitLines(300);
    for (std::size_t i = 0; i < 300; ++i) workload.lines[i].arrivalUs = std::int64_t(i / 10) * 3'000'000;
    workload.spanUs = 90'000'000;
    spreadArrivals(workload, 3'000'000, 5);
    std::vector<int> counts(30, 0);
    for (const WorkloadLine& line : workload.lines) ++counts[std::size_t(line.arrivalUs / 3'000'000)];
    EXPECT_THAT(counts, ::testing::Each(10));
    const std::vector<double> gaps = gapsOf(workload);
    EXPECT_GE(*std::min_element(gaps.begin(), gaps.end()), 0) << "in order";
    EXPECT_LT(std::count(gaps.begin(), gaps.end(), 0.0), 3);
}

TEST(Longmix, HasTheStatisticsOfItsSpecification) {
    const Workload workload = longmix(512, 1);
    std::vector<double> inputs, outputs, logIn, logOut;
    std::map<std::string, int> kinds;
    for (const WorkloadLine& line : workload.lines) {
        inputs.push_back(line.promptTokens), outputs.push_back(line.outputTokens);
        logIn.push_back(std::log(line.promptTokens)), logOut.push_back(std::log(line.outputTokens));
        ++kinds[line.kind];
    }
    EXPECT_EQ(kinds, (std::map<std::string, int>{{"code", 200}, {"short-qa", 71}, {"long-qa", 82}, {"summary", 159}}));
    const auto near = [](double got, double wanted) { EXPECT_NEAR(got, wanted, 0.05 * wanted); };
    near(meanOf(inputs), 10700), near(shareOf(inputs, 0.5), 6500), near(shareOf(inputs, 0.9), 25600);
    near(shareOf(inputs, 0.99), 54000);
    near(meanOf(outputs), 167), near(shareOf(outputs, 0.5), 87), near(shareOf(outputs, 0.9), 430);
    double product = 0;
    const double meanIn = meanOf(logIn), meanOut = meanOf(logOut);
    for (std::size_t i = 0; i < logIn.size(); ++i) product += (logIn[i] - meanIn) * (logOut[i] - meanOut);
    const double correlation =
        product / double(logIn.size()) / (variationOf(logIn) * meanIn * variationOf(logOut) * meanOut);
    EXPECT_NEAR(correlation, 0.5, 0.05);
    EXPECT_NEAR(variationOf(gapsOf(workload)), 1, 0.1);
    EXPECT_NEAR(workload.rate(), 1, 0.1);
}

TEST(Longmix, IsTheFileOfThisRepository) {
    std::ifstream file(test::source("resources/workloads/longmix.jsonl"), std::ios::binary);
    const std::string kept((std::istreambuf_iterator<char>(file)), {});
    std::ostringstream made;
    writeWorkload(longmix(512, 1), made);
    EXPECT_LT(kept.size(), 70000u);
    EXPECT_TRUE(kept == made.str()) << "made by: kvscope-cli simulate --workload longmix --write FILE";
    std::ostringstream other;
    writeWorkload(longmix(512, 2), other);
    EXPECT_FALSE(made.str() == other.str());
}

TEST(Longmix, VariantsFollowTheirRules) {
    const Workload plain = longmix(64, 1);
    Workload small = plain, capped = plain;
    changeLengths(small, {8, 1, 0});
    changeLengths(capped, {1, 8, 32768});
    for (std::size_t i = 0; i < plain.lines.size(); ++i) {
        EXPECT_NEAR(small.lines[i].promptTokens, plain.lines[i].promptTokens / 8.0, 0.51);
        EXPECT_NEAR(small.lines[i].outputTokens, plain.lines[i].outputTokens / 4.0, 0.51);
        EXPECT_EQ(capped.lines[i].promptTokens, std::min(plain.lines[i].promptTokens, 32768));
        EXPECT_EQ(capped.lines[i].outputTokens, 8 * plain.lines[i].outputTokens);
    }
}

TEST(WorkloadFile, IsReadAsItWasWritten) {
    const Workload workload = longmix(50, 9);
    std::ostringstream text;
    writeWorkload(workload, text);
    const Workload read = readWorkload(text.str(), "again");
    ASSERT_EQ(read.lines.size(), workload.lines.size());
    for (std::size_t i = 0; i < read.lines.size(); ++i) {
        EXPECT_EQ(read.lines[i].arrivalUs, workload.lines[i].arrivalUs);
        EXPECT_EQ(read.lines[i].promptTokens, workload.lines[i].promptTokens);
        EXPECT_EQ(read.lines[i].outputTokens, workload.lines[i].outputTokens);
        EXPECT_EQ(read.lines[i].kind, workload.lines[i].kind);
        EXPECT_EQ(read.lines[i].seed, workload.lines[i].seed);
    }
}

TEST(WorkloadFile, TakesMooncakesKeysAndNamesTheLineThatIsWrong) {
    const std::string good = R"({"timestamp": 3000, "input_length": 12, "output_length": 3, "hash_ids": [1, 2]})";
    const Workload workload = readWorkload("\n" + good + "\r\n" + good + "\n\n", "two");
    ASSERT_EQ(workload.lines.size(), 2u);
    EXPECT_EQ(workload.lines[1].arrivalUs, 3'000'000);
    const std::vector<std::pair<std::string, std::string>> wrong{
        {R"({"timestamp":1,"input_length":0,"output_length":3})", "input_length"},
        {R"({"timestamp":1,"input_length":2.5,"output_length":3})", "input_length"},
        {R"({"timestamp":-1,"input_length":2,"output_length":3})", "timestamp"},
        {R"({"timestamp":1e400,"input_length":2,"output_length":3})", "line 2"},
        {R"({"timestamp":"1","input_length":2,"output_length":3})", "timestamp"},
        {R"({"timestamp":1,"input_length":2})", "output_length"},
        {R"({"timestamp":1,"input_length":2,"output_length":3})", "before the line above"},
        {"[]", "not a JSON object"},
        {"{", "not a JSON object"}};
    for (const auto& [line, says] : wrong) {
        try {
            readWorkload(good + "\n" + line, "w.jsonl");
            ADD_FAILURE() << line;
        } catch (const Error& error) {
            EXPECT_THAT(error.what(), HasSubstr(says));
            EXPECT_THAT(error.what(), HasSubstr("line 2"));
        }
    }
    EXPECT_THROW(readWorkload(" \n", "empty"), Error);
    EXPECT_THROW(loadWorkload("/no/such/file.jsonl"), Error);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::serve
