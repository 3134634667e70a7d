// The verdict on two runs: against series whose shift and noise are known.
#include "profiler/check/check.h"
#include "profiler/compare/compare.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include "base/error.h"

#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <numeric>
#include <random>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Step times in the manner of real ones: a trend with the context, log-normal noise that resembles its neighbours, and
/// now and then a step that something else delayed.
struct Noise {
    double deviation = 0.02, correlation = 0.5, spikes = 0.03;
};

RunSample sampleOf(std::uint64_t seed, int steps, double factor = 1, const Noise& noise = {}) {
    RunSample sample;
    sample.path = fmt::format("{}.kvtrace", seed);
    sample.run.runId = 1;
    sample.run.status = RunStatus::Finished;
    sample.run.timing = Timing::Modelled;
    sample.run.layers = 4;
    sample.run.sequences = 1;
    sample.run.paramsJson = "{}";
    sample.summary.promptTokens = 1000;
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    std::uniform_real_distribution<double> uniform;
    double deviation = normal(random);
    for (int step = 1; step <= steps; ++step) {
        deviation =
            noise.correlation * deviation + std::sqrt(1 - noise.correlation * noise.correlation) * normal(random);
        double ns = 1e7 * (1 + 0.3 * step / steps) * std::exp(noise.deviation * deviation) * factor;
        if (uniform(random) < noise.spikes) ns *= 1 + 2 * uniform(random);
        StepSample& row = sample.steps.emplace_back();
        row.step = step;
        row.mark = {.step = step, .opensBlock = step % 64 == 0};
        row.durationNs = std::int64_t(ns) * (step == 1 ? 5 : 1) * (row.mark.opensBlock ? 2 : 1);
        row.componentNs[std::size_t(Stage::Ffn)] = row.durationNs / 4;
        row.componentNs.back() = row.durationNs - row.durationNs / 4;
    }
    return sample;
}

Comparison compareOne(const RunSample& a, const RunSample& b, const CompareOptions& options = {}) {
    return compareRuns(std::span(&a, 1), std::span(&b, 1), options);
}

std::vector<Obstacle> obstaclesOf(const RunSample& a, const RunSample& b) {
    return findObstacles(std::span(&a, 1), std::span(&b, 1));
}

TEST(Bootstrap, StudentsQuantilesAreTheTables) {
    // Abramowitz and Stegun, table 26.10.
    EXPECT_NEAR(studentQuantile(0.95, 1), 12.706, 5e-4);
    EXPECT_NEAR(studentQuantile(0.95, 2), 4.303, 5e-4);
    EXPECT_NEAR(studentQuantile(0.95, 5), 2.571, 5e-4);
    EXPECT_NEAR(studentQuantile(0.99, 10), 3.169, 5e-4);
    EXPECT_NEAR(studentQuantile(0.95, 100'000), 1.960, 5e-4);
}

TEST(Bootstrap, IntervalsOfAMeanAreThoseOfTheFormulaWhereItHolds) {
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal(3, 2);
    std::vector<double> series(2000);
    for (double& v : series) v = normal(random);
    const double mean = std::accumulate(series.begin(), series.end(), 0.) / 2000;
    double squares = 0;
    for (const double v : series) squares += (v - mean) * (v - mean);
    const double half = 1.96 * std::sqrt(squares / 1999 / 2000);
    const Interval i = BlockBootstrap(series.size(), 1, 0.95, 1, 4000).mean(series);
    EXPECT_DOUBLE_EQ(i.value, mean);
    EXPECT_NEAR(i.high - mean, half, 0.06 * half); // 4000 resamples know a percentile to some 3 %
    EXPECT_NEAR(mean - i.low, half, 0.06 * half);
    const Interval again = BlockBootstrap(series.size(), 1, 0.95, 1, 4000).mean(series);
    EXPECT_EQ(again.low, i.low);
    EXPECT_EQ(again.high, i.high);
    // The median of normal values is known pi/2 times worse, in variance.
    const Interval m = BlockBootstrap(series.size(), 1, 0.95, 1, 4000).median(series);
    EXPECT_NEAR(m.high - m.low, 2 * half * std::sqrt(std::acos(-1.) / 2), 0.2 * half);
}

TEST(Bootstrap, AnOrderStatisticOfPiecesIsThatOfTheirSortedValues) {
    std::mt19937_64 random(4);
    for (const std::size_t count : {1u, 2u, 3u, 64u, 1000u}) {
        std::vector<double> series(count);
        for (double& value : series) value = double(random() % 50) - 25; // many are equal
        const RangeRanks ranks(series);
        for (int round = 0; round < 20; ++round) {
            std::vector<RangeRanks::Piece> pieces;
            std::vector<double> together;
            for (std::size_t piece = 0; piece <= random() % 5; ++piece) { // they may overlap
                const auto from = std::uint32_t(random() % count),
                           to = std::uint32_t(from + 1 + random() % (count - from));
                pieces.push_back({from, to});
                together.insert(together.end(), series.begin() + from, series.begin() + to);
            }
            std::sort(together.begin(), together.end());
            for (const std::size_t k : {std::size_t(0), together.size() / 2, together.size() - 1})
                ASSERT_EQ(ranks.smallest(k, pieces), together[k]) << count << " values, the " << k << "th";
        }
    }
}

TEST(Bootstrap, ResamplesOfOneBlockAreTheSeriesTurnedAround) {
    for (const std::size_t count : {9u, 10u}) {
        std::vector<double> series;
        for (std::size_t i = 0; i < count; ++i) series.push_back(double(i * 7 % count));
        const Interval i = BlockBootstrap(count, int(count), 0.95, 3, 100).median(series);
        EXPECT_EQ(i.value, double(count - 1) / 2);
        EXPECT_EQ(i.low, i.value);
        EXPECT_EQ(i.high, i.value);
    }
}

TEST(Bootstrap, NeighboursThatResembleEachOtherWidenTheInterval) {
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal;
    std::vector<double> alone(1000), alike(1000);
    double last = 0;
    for (std::size_t i = 0; i < alone.size(); ++i) {
        alone[i] = normal(random);
        alike[i] = last = 0.95 * last + std::sqrt(1 - 0.95 * 0.95) * normal(random);
    }
    EXPECT_LE(bootstrapBlockLength(alone), 63); // a sixteenth
    EXPECT_GT(bootstrapBlockLength(alike), 80);
    const auto width = [](const std::vector<double>& series) {
        const Interval i = BlockBootstrap(series.size(), bootstrapBlockLength(series), 0.95, 1).mean(series);
        return i.high - i.low;
    };
    // sqrt((1 + 0.95) / (1 - 0.95)) = 6.2 times, known from 5 to 12 blocks
    EXPECT_GT(width(alike), 3.5 * width(alone));
    EXPECT_LT(width(alike), 10 * width(alone));
    EXPECT_EQ(bootstrapBlockLength(std::vector<double>(100, 1.)), 6);
    EXPECT_EQ(bootstrapBlockLength(std::vector<double>(3, 1.)), 1);
}

/// A verdict that names a winner.
bool isDecided(Verdict verdict) { return verdict != Verdict::NoDifference && verdict != Verdict::CannotTell; }

TEST(Compare, EqualRunsAreCalledDifferentAboutAsOftenAsTheConfidenceAllows) {
    // Noise as above, no shift. 95 % confidence: nominally 5 % alarms; docs/compare.md says 4 to 8 %. Of 200 that is
    // 8 to 16; the limits lie three standard deviations outside.
    for (const double correlation : {0., 0.5, 0.8}) {
        int alarms = 0;
        for (std::uint64_t seed = 0; seed < 200; ++seed) {
            Noise noise;
            noise.correlation = correlation;
            const Comparison c = compareOne(sampleOf(2 * seed, 200, 1, noise), sampleOf(2 * seed + 1, 200, 1, noise));
            alarms += isDecided(c.verdict);
        }
        EXPECT_GE(alarms, 1) << correlation;
        EXPECT_LE(alarms, 27) << correlation;
    }
}

TEST(Compare, ASlowdownOfFivePerCentIsFoundAndMeasured) {
    int covered = 0;
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
        const Comparison c =
            compareOne(sampleOf(2 * seed, 200), sampleOf(2 * seed + 1, 200, 1.05), {.threshold = 0.02});
        EXPECT_EQ(c.verdict, Verdict::Slower) << seed << ' ' << c.sentence;
        covered += c.ratio.contains(1.05);
    }
    EXPECT_GE(covered, 85); // 95 nominally
    const Comparison faster = compareOne(sampleOf(1, 200, 1.05), sampleOf(2, 200));
    EXPECT_EQ(faster.verdict, Verdict::Faster);
    EXPECT_THAT(faster.sentence, AllOf(StartsWith("Faster"), HasSubstr("less time")));
}

TEST(Compare, AThresholdIsExceededOnlyBeyondNoise) {
    const RunSample a = sampleOf(1, 300), b = sampleOf(2, 300, 1.05);
    const auto verdict = [&](double threshold) { return compareOne(a, b, {.threshold = threshold}).verdict; };
    EXPECT_EQ(verdict(0), Verdict::Slower);
    EXPECT_EQ(verdict(0.03), Verdict::Slower);
    EXPECT_EQ(verdict(0.05), Verdict::WithinThreshold); // at the shift itself
    EXPECT_EQ(verdict(0.2), Verdict::WithinThreshold);
    Noise loud;
    loud.deviation = 0.5;
    const Comparison noisy = compareOne(sampleOf(3, 60, 1, loud), sampleOf(4, 60, 1, loud), {.threshold = 0.03});
    EXPECT_EQ(noisy.verdict, Verdict::CannotTell);
    EXPECT_THAT(noisy.notes, Contains(HasSubstr("cannot be excluded")));
}

TEST(Compare, AnIntervalTooWideToDecideSaysSo) {
    // The median of 60 ratios of noise with a deviation of 0.5: its standard error is some 11 %, so that both a fifth
    // more and a fifth less stay possible.
    Noise loud;
    loud.deviation = 0.5;
    const Comparison wide = compareOne(sampleOf(3, 60, 1, loud), sampleOf(4, 60, 1, loud));
    EXPECT_TRUE(wide.ratio.contains(1));
    EXPECT_GT(wide.ratio.high - wide.ratio.low, 2 * kTellable);
    EXPECT_EQ(wide.verdict, Verdict::CannotTell);
    EXPECT_THAT(wide.sentence, StartsWith("Cannot tell"));
    // Quiet runs have an interval that holds 1 and excludes what anybody would ask for.
    Noise quiet;
    quiet.deviation = 0.01;
    quiet.correlation = 0;
    int none = 0;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
        const Comparison c = compareOne(sampleOf(2 * seed, 200, 1, quiet), sampleOf(2 * seed + 1, 200, 1, quiet));
        EXPECT_NE(c.verdict, Verdict::CannotTell) << c.sentence;
        none += c.verdict == Verdict::NoDifference;
    }
    EXPECT_GE(none, 15); // 19 are expected
    const RunSample a = sampleOf(1, 200), b = sampleOf(2, 200, 1.2);
    const Comparison third = compareRuns(std::span(&a, 1), std::span(&b, 1), {.other = "C"});
    EXPECT_THAT(third.sentence, AllOf(StartsWith("Slower: C takes"), HasSubstr("than A in the median decode step")));
}

TEST(Compare, TheSameRunTwiceDiffersInNothing) {
    const RunSample a = sampleOf(1, 100);
    const Comparison c = compareOne(a, a);
    EXPECT_EQ(c.verdict, Verdict::NoDifference);
    EXPECT_EQ(c.ratio.value, 1);
    EXPECT_EQ(c.ratio.low, 1);
    EXPECT_EQ(c.ratio.high, 1);
    EXPECT_THAT(c.notes, Contains(HasSubstr("the same run")));
    EXPECT_TRUE(c.differences.empty());
    for (const ComponentDelta& d : c.components) EXPECT_EQ(d.deltaNs.high - d.deltaNs.low, 0) << d.component;
}

TEST(Compare, ColdAndOpeningStepsAreLeftOutAndCounted) {
    RunSample a = sampleOf(1, 200), b = sampleOf(2, 200);
    b.steps.erase(b.steps.begin() + 99); // step 100
    const Comparison c = compareOne(a, b);
    EXPECT_EQ(c.first, 1);
    EXPECT_EQ(c.opening, 3); // 64, 128, 192
    EXPECT_EQ(c.unpaired, 1);
    EXPECT_EQ(c.steps, 195);
    EXPECT_THAT(c.notes, Contains(HasSubstr("1 decode steps are not in all runs")));
    // Five times slower opening steps change nothing that was compared.
    RunSample slower = b;
    for (StepSample& step : slower.steps)
        if (step.mark.opensBlock) step.durationNs *= 5;
    EXPECT_EQ(compareOne(a, slower).meanRatio.value, c.meanRatio.value);
    // Unless there would be nothing left.
    for (StepSample& step : a.steps) step.mark.opensBlock = true;
    const Comparison all = compareOne(a, b);
    EXPECT_TRUE(all.openingKept);
    EXPECT_EQ(all.steps, 198);
}

TEST(Compare, DeltasOfTheComponentsAddUpToTheStep) {
    RunSample a = sampleOf(1, 100), b = sampleOf(2, 100);
    for (StepSample& step : b.steps) { // 1 ms more in stage1
        step.durationNs += 1'000'000;
        step.componentNs[std::size_t(Stage::Stage1)] = 1'000'000;
    }
    const Comparison c = compareOne(a, b);
    double sum = 0;
    for (const ComponentDelta& d : c.components) sum += d.deltaNs.value;
    EXPECT_NEAR(sum, c.step.deltaNs.value, 1e-3);
    ASSERT_EQ(c.components.size(), 3u);
    EXPECT_EQ(c.components[0].component, "stage1"); // pipeline order
    EXPECT_EQ(c.components[0].deltaNs.value, 1e6);
    EXPECT_EQ(c.components[0].deltaNs.low, 1e6);
    EXPECT_EQ(c.components[1].component, "ffn");
    EXPECT_EQ(c.components[2].component, "other");
}

TEST(Compare, RepeatsPutWhatDiffersBetweenProcessesIntoTheInterval) {
    // Each process is up to some per cent off, all its steps alike; B is no slower than A.
    std::mt19937_64 random(5);
    std::normal_distribution<double> normal;
    int alarmsAlone = 0, alarms = 0;
    constexpr int kRounds = 60;
    for (int round = 0; round < kRounds; ++round) {
        std::vector<RunSample> sides[2];
        for (auto& side : sides)
            for (int repeat = 0; repeat < 4; ++repeat)
                side.push_back(sampleOf(random(), 120, std::exp(0.03 * normal(random))));
        const Comparison c = compareRuns(sides[0], sides[1]);
        EXPECT_GT(c.betweenRuns, 0.005);
        EXPECT_LT(c.betweenRuns, 0.1);
        alarms += isDecided(c.verdict);
        const Comparison alone = compareOne(sides[0][0], sides[1][0]);
        EXPECT_TRUE(std::isnan(alone.betweenRuns));
        EXPECT_THAT(alone.notes, Contains(HasSubstr("one run a side")));
        alarmsAlone += isDecided(alone.verdict);
    }
    EXPECT_GT(alarmsAlone, kRounds / 2); // the note warns of these alarms
    EXPECT_LE(alarms, 9);                // 3 are expected
}

TEST(Compare, ObstaclesAreNamedAndSomeMayBeIgnored) {
    const RunSample a = sampleOf(1, 100);
    EXPECT_TRUE(obstaclesOf(a, sampleOf(2, 100)).empty());
    const auto only = [&](const std::function<void(RunSample&)>& change) {
        RunSample b = sampleOf(2, 100);
        change(b);
        const std::vector<Obstacle> found = obstaclesOf(a, b);
        EXPECT_EQ(found.size(), 1u);
        return found.empty() ? Obstacle{} : found.front();
    };
    const auto expect = [](const Obstacle& o, const std::string& text, bool mayBeIgnored) {
        EXPECT_THAT(o.what, HasSubstr(text));
        EXPECT_EQ(o.mayBeIgnored, mayBeIgnored) << text;
    };
    expect(only([](RunSample& s) { s.run.layers = 5; }), "model shape 4 layers", false);
    // The prompts of a larger batch are more tokens in all, but not a longer context.
    expect(only([](RunSample& s) { s.run.sequences = 8, s.summary.promptTokens *= 8; }), "batch 1 against 8", false);
    expect(only([](RunSample& s) { s.run.backend = RunBackend::Cuda; }), "backend", false);
    expect(only([](RunSample& s) { s.run.timing = Timing::Measured; }), "link times modelled against measured", false);
    expect(only([](RunSample& s) { s.steps.resize(20); }), "19 decode steps are common, a verdict needs 20", false);
    expect(only([](RunSample& s) { s.summary.promptTokens = 2000; }), "context length 1000 against 2000", true);
    expect(only([](RunSample& s) { s.summary.promptTokens = 0; }), "lacks its prompt", true);
    expect(only([](RunSample& s) { s.run.device = "another"; }), "device", true);
    expect(only([](RunSample& s) { s.run.status = RunStatus::Stopped; }), "run 1 of 2.kvtrace is stopped", true);
    expect(only([](RunSample& s) { s.run.droppedSteps = 3; }), "lacks 3 steps", true);
    expect(only([](RunSample& s) { s.oracle = true; }), "--oracle", true);
    // Differences in method, cache and link are no obstacle, because people compare them.
    RunSample b = sampleOf(2, 100);
    b.run.method = "quest";
    b.run.link = "pcie4";
    b.run.deviceSlots = 9;
    b.run.paramsJson = R"({"total_blocks":20,"offload":true})";
    b.summary.promptTokens = 1003;
    EXPECT_TRUE(obstaclesOf(a, b).empty());
    std::vector<std::string> keys;
    for (const SettingDifference& d : compareOne(a, b).differences) keys.push_back(d.key);
    EXPECT_THAT(keys, testing::UnorderedElementsAre("method", "total_blocks", "offload", "device_slots", "link"));
    // Repeats of one side must not differ in them.
    const std::vector<RunSample> side{a, b};
    EXPECT_THAT(findObstacles(side, std::span(&a, 1)).front().what, HasSubstr("repeats of one side"));
    const RunSample shorter = sampleOf(1, 19);
    EXPECT_THROW(compareOne(shorter, shorter), Error);
}

TEST(Compare, BrokenRowsLeaveOutTheNumbersConcerned) {
    const test::Folder folder;
    const std::string good = (folder / "good.kvtrace").string(), bad = (folder / "bad.kvtrace").string();
    for (const std::string& file : {good, bad}) synthetic::recordFile(file, {.decodeSteps = 60});
    test::sql(bad,
              "UPDATE selection SET kept = 3 * selected WHERE (id >> 30) & 0x1FFFFFF = 9;"
              "UPDATE step SET tokens = -5 WHERE id & 0x1FFFFFF = 7",
              SQLITE_OPEN_READWRITE);
    const auto sampleFrom = [](const std::string& file) {
        const TraceReader reader(file);
        RunSample sample = loadRunSample(reader, 1);
        refuseBroken(sample, checkRun(reader, 1, counting()));
        return sample;
    };
    const RunSample a = sampleFrom(good), b = sampleFrom(bad);
    EXPECT_EQ(a.brokenRules, "");
    EXPECT_GT(a.summary.localityMean, 0);
    const Comparison c = compareOne(a, b);
    for (const Quantity& quantity : c.quantities) {
        const std::string name = quantity.name;
        const bool concerned = name == "locality_mean" || name.starts_with("tokens_per_s");
        EXPECT_EQ(std::isnan(quantity.b), concerned) << name;
        EXPECT_FALSE(std::isnan(quantity.a)) << name;
    }
    EXPECT_THAT(c.notes, Contains(AllOf(HasSubstr("rows of run 1 of B break rules"), HasSubstr("(kept)"))));
}

// What another engine does not say is neither 0 nor another number.
TEST(Compare, ObstaclesKnowWhatATraceDoesNotSay) {
    RunSample known = sampleOf(1, 100);
    known.run.queryHeads = 8, known.run.kvHeads = 2, known.run.headDim = 64, known.run.device = "a GPU";
    const auto found = [&](const std::function<void(RunSample&)>& change) {
        RunSample other = known;
        change(other);
        std::string text;
        for (const Obstacle& o : obstaclesOf(known, other)) text += o.what + (o.mayBeIgnored ? "; " : "! ");
        return text;
    };
    EXPECT_EQ(found([](RunSample&) {}), "");
    EXPECT_EQ(found([](RunSample& s) { s.run.queryHeads = 0; }),
              "model shape 4 layers, 8 query and 2 KV heads of 64 against 4 layers, 2 KV heads of 64, the number of"
              " query heads not known; ");
    EXPECT_EQ(found([](RunSample& s) { s.run.headDim = 0; }),
              "model shape 4 layers, 8 query and 2 KV heads of 64 against 4 layers, 2 KV heads, their size not known, 8"
              " query heads; ");
    EXPECT_THAT(found([](RunSample& s) { s.run.queryHeads = 0, s.run.headDim = 32; }),
                testing::EndsWith("not known! "));
    EXPECT_EQ(found([](RunSample& s) { s.run.device = ""; }), "device a GPU against not known; ");
    // A run that knows no link times has none that are measured or modelled.
    EXPECT_EQ(found([](RunSample& s) { s.run.timing = Timing::Measured; }), "link times modelled against measured! ");
    EXPECT_EQ(found([](RunSample& s) {
                  s.run.timing = Timing::Measured, s.run.knows = s.run.knows.without(Known::TransferTimes);
              }),
              "");
}

TEST(Compare, SamplesAreWhatTheTraceHolds) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::RunShape shape;
    shape.decodeSteps = 60;
    shape.oracle = true;
    synthetic::recordFile(file, shape);
    const TraceReader reader(file);
    const RunSample sample = loadRunSample(reader, 1);
    const auto recorded = synthetic::stepsOf(shape);
    ASSERT_EQ(sample.steps.size(), 60u);
    for (std::size_t i = 0; i < sample.steps.size(); ++i) {
        const StepRecord& step = recorded[i + 1]; // 0 is the prefill
        const StepSample& s = sample.steps[i];
        EXPECT_EQ(s.step, step.step);
        EXPECT_EQ(s.durationNs, step.durationNs);
        EXPECT_EQ(s.mark.opensBlock, step.opensBlock);
        EXPECT_EQ(std::accumulate(s.componentNs.begin(), s.componentNs.end(), std::int64_t(0)), step.durationNs);
        std::int64_t ffn = 0, exposed = 0;
        for (const LayerRecord& layer : step.layers) {
            ffn += layer.stageNs[std::size_t(Stage::Ffn)];
            exposed += layer.exposedNs;
        }
        EXPECT_EQ(s.componentNs[std::size_t(Stage::Ffn)], ffn);
        EXPECT_EQ(s.componentNs[kStageCount], step.stepStageNs[0]);
        EXPECT_EQ(s.exposedNs, exposed);
    }
    EXPECT_TRUE(sample.oracle);
    EXPECT_EQ(sample.promptStart.size(), std::size_t(shape.promptTokens));
    EXPECT_EQ(componentName(int(Stage::Ffn)), "ffn");
    EXPECT_EQ(componentName(kStageCount), "embed");
    EXPECT_EQ(componentName(kComponentCount - 1), "other");
    shape.oracle = false;
    synthetic::recordFile(folder / "plain.kvtrace", shape);
    EXPECT_FALSE(loadRunSample(TraceReader((folder / "plain.kvtrace").string()), 1).oracle);
    EXPECT_THROW(loadRunSample(reader, 2), Error);
}

TEST(Compare, ASampleReadInPiecesIsTheSampleReadAtOnce) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordFile(file, {.sequences = 2, .decodeSteps = 70});
    const TraceReader reader(file);
    const RunSample whole = loadRunSample(reader, 1);
    RunSample pieces;
    int readings = 1;
    while (!extendRunSample(pieces, reader, 1, 9)) ++readings;
    EXPECT_EQ(readings, 8); // 71 steps with the prefill, 9 at a time
    ASSERT_EQ(pieces.steps.size(), whole.steps.size());
    for (std::size_t i = 0; i < whole.steps.size(); ++i) {
        EXPECT_EQ(pieces.steps[i].step, whole.steps[i].step);
        EXPECT_EQ(pieces.steps[i].durationNs, whole.steps[i].durationNs);
        EXPECT_EQ(pieces.steps[i].componentNs, whole.steps[i].componentNs);
    }
    EXPECT_EQ(pieces.promptStart, whole.promptStart);
    EXPECT_EQ(pieces.summary.hits, whole.summary.hits);
    EXPECT_EQ(pieces.summary.decodedTokens, whole.summary.decodedTokens);
    EXPECT_EQ(pieces.summary.localityCount, whole.summary.localityCount);
    EXPECT_NEAR(pieces.summary.localityMean, whole.summary.localityMean, 1e-12);
    EXPECT_EQ(pieces.summary.localityMin, whole.summary.localityMin);
    ASSERT_EQ(pieces.summary.components.size(), whole.summary.components.size());
    for (std::size_t i = 0; i < whole.summary.components.size(); ++i)
        EXPECT_EQ(pieces.summary.components[i].totalNs, whole.summary.components[i].totalNs);
    EXPECT_TRUE(extendRunSample(pieces, reader, 1, 9)) << "there is nothing more";
    EXPECT_EQ(pieces.steps.size(), whole.steps.size());
}

TEST(Compare, AGlanceHasTheEvenStepsOfTheWholeSample) {
    const test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordFile(file, {.sequences = 2, .decodeSteps = 90});
    const TraceReader reader(file);
    const RunSample whole = loadRunSample(reader, 1);
    const EvenSteps even = evenSteps(81, 20); // beside a run of 80 decode steps
    EXPECT_EQ(even.stride, 5);
    const RunSample glance = glanceAtRun(reader, 1, even);
    ASSERT_EQ(glance.steps.size(), 16u); // 1, 6, ... 76
    for (const StepSample& step : glance.steps) {
        const StepSample& same = whole.steps[std::size_t(step.step - 1)];
        EXPECT_EQ((step.step - 1) % 5, 0);
        EXPECT_EQ(step.durationNs, same.durationNs);
        EXPECT_EQ(step.exposedNs, same.exposedNs);
        EXPECT_EQ(step.mark.opensBlock, same.mark.opensBlock);
        EXPECT_EQ(step.componentNs, same.componentNs);
    }
    EXPECT_EQ(glance.promptStart, whole.promptStart);
    EXPECT_EQ(glance.summary.tokensPerSecond, whole.summary.tokensPerSecond);
    EXPECT_EQ(glance.summary.hitRate, whole.summary.hitRate);
    EXPECT_EQ(glance.summary.decodeSteps, whole.summary.decodeSteps);
    EXPECT_EQ(glance.summary.localityCount, 0) << "not known from the steps alone";
    EXPECT_GT(whole.summary.localityCount, 0);
    EXPECT_EQ(evenSteps(10, 512).stride, 1);
    EXPECT_EQ(evenSteps(100'000, 512).stride % 2, 1) << "blocks open every 2^n steps";
    EXPECT_EQ(evenSteps(2'048, 512).stride % 2, 1);
}

TEST(Compare, ARunThatIsRecordedIsComparedSoFar) {
    const test::Folder folder;
    const std::string file = (folder / "live.kvtrace").string();
    const synthetic::RunShape shape{.decodeSteps = 60};
    Recorder recorder(file, {});
    recorder.beginRun(synthetic::infoOf(shape));
    synthetic::RunGenerator generator(shape);
    const auto record = [&](int steps) {
        generator.recordNext(recorder, steps);
        recorder.flush();
    };
    record(11); // the prefill and 10 decode steps
    const TraceReader reader(file);
    RunSample live = loadRunSample(reader, recorder.runId());
    const auto obstaclesNow = [&] { return findObstacles(std::span(&live, 1), std::span(&live, 1)); };
    for (const Obstacle& obstacle : obstaclesNow()) EXPECT_TRUE(obstacle.untilItEnds) << obstacle.what;
    EXPECT_THAT(obstaclesNow().back().what, HasSubstr("a verdict needs 20"));
    record(40);
    EXPECT_TRUE(extendRunSample(live, reader, recorder.runId()));
    EXPECT_EQ(live.steps.size(), 50u);
    for (const Obstacle& obstacle : obstaclesNow()) EXPECT_TRUE(obstacle.mayBeIgnored) << obstacle.what;
    EXPECT_EQ(compareOne(live, live).verdict, Verdict::NoDifference);
    record(10);
    recorder.endRun(RunStatus::Finished, "");
    recorder.flush();
    EXPECT_TRUE(extendRunSample(live, reader, recorder.runId()));
    EXPECT_EQ(live.steps.size(), 60u);
    EXPECT_TRUE(obstaclesNow().empty()) << obstaclesNow().front().what;
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
