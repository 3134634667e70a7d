// The table of costs that is fitted to iterations finds the costs that the iterations were made with.
#include "core/serve/cost_fit.h"

#include "core/serve/random_draws.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <numeric>

namespace kvscope::serve {
namespace KVSCOPE_TEST_FILE {

/// What an iteration took, by formulas of this test's own: a term that the table forgets is missing there alone.
struct Truth {
    int layers = 6;
    double prefillUsPerToken = 40, prefillPsPerToken2 = 9000;
    double stepUsPerKtoken = 900;
    double offloadMs = 0.6, offloadUsPerRow = 70, gbps = 40; // 0: the server does not offload
    double gapMs = 0.4, gapUsPerRow = 30, admitMs = 2, admitUsPerToken = 1.5;
    double betweenMs = 0.2, betweenUsPerRow = 40, requestMs = 3;

    static double stepMs(int rows) { return rows == 1 ? 2.0 : rows == 2 ? 2.5 : 4.0; }
    double layerMs(double from, double to) const {
        return (to - from) * prefillUsPerToken / 1e3 + (to * to - from * from) * prefillPsPerToken2 / 1e9;
    }
    double decodeMs(int rows, double context, double bytes) const {
        double ms = stepMs(rows) + context * stepUsPerKtoken / 1e6;
        if (gbps > 0) ms += offloadMs + rows * offloadUsPerRow / 1e3 + bytes / (gbps * 1e6);
        return ms;
    }
    double hostMs(int rows, const std::vector<int>& admitted) const {
        double ms = gapMs + rows * gapUsPerRow / 1e3;
        for (const int tokens : admitted) ms += admitMs + tokens * admitUsPerToken / 1e3;
        return ms;
    }
    static Truth resident() {
        Truth truth;
        truth.gbps = 0;
        return truth;
    }
};

/// What the iterations are like, apart from their costs.
struct Kind {
    bool chunks = false, misses = true, noise = true;
};

/// Iterations that take what the truth says, 5 % more or less, but for one part in twenty, which takes ten times as
/// long, and the first prompt, which takes forty times as long: it loads libraries.
CostFit fitTo(const Truth& truth, const Kind& kind, std::uint64_t seed) {
    MemoryShape shape;
    shape.layers = truth.layers;
    Draws draws(seed);
    const auto noise = [&] {
        if (!kind.noise) return 1.0;
        return draws.below(20) == 0 ? 10 : 0.95 + 0.1 * draws.uniform();
    };
    const auto ns = [&](double ms) { return std::int64_t(noise() * ms * 1e6); };
    CostFit fit;
    for (int turn = 0; turn < 2000; ++turn) {
        IterationPlan plan;
        const int rows = 1 << draws.below(3), length = 512 * (1 + int(draws.below(6))) + int(draws.below(300));
        const auto context = std::int64_t(500 + draws.below(8000));
        for (int row = 0; row < rows; ++row) plan.decode.push_back({row, row});
        PrefillSegment segment;
        double ms = 0;
        if (kind.chunks) {
            segment.from = {0, 512}, segment.to = {0, std::min(1024, length)};
            ms = truth.layers * truth.layerMs(512, segment.to.token);
        } else { // the end of a layer, a whole one and the beginning of another
            segment.from = {1, 512}, segment.to = {3, 512};
            ms = truth.layerMs(512, length) + truth.layerMs(0, length) + truth.layerMs(0, 512);
        }
        plan.segments.push_back(segment);
        std::vector<int> admitted; // one or two in every fifth iteration
        if (draws.below(5) == 0)
            for (std::uint64_t i = 0; i <= draws.below(2); ++i) admitted.push_back(300 + int(draws.below(20000)));
        // A warm row misses a little, and one that begins, as some row does now and then, a whole selection.
        std::int64_t missed = 0;
        if (kind.misses)
            for (int row = 0; row < rows; ++row)
                missed += std::int64_t(draws.below(30) == 0 ? 100e6 : 1e6 + double(draws.below(8'000'000)));
        IterationReport report{plan, 0, 0, 0, {}, context, 90, 10, 100, missed, 0};
        report.decodeNs = ns(truth.decodeMs(rows, double(context), double(missed)));
        const std::int64_t read[] = {turn == 0 ? std::int64_t(40 * ms * 1e6) : ns(ms)};
        report.segmentNs = read;
        report.endNs = report.decodeNs + read[0] + ns(truth.hostMs(rows, admitted));
        report.gapRows = 1 << draws.below(3); // of the step before
        report.gapRequests = draws.below(6) == 0 ? 1 + int(draws.below(3)) : 0;
        report.gapNs =
            ns(truth.betweenMs + report.gapRows * truth.betweenUsPerRow / 1e3 + report.gapRequests * truth.requestMs);
        if (draws.below(40) == 0) report.gapNs = -1; // the engine had nothing to do
        fit.add(report, shape, kind.chunks, std::vector<int>{length}, admitted);
    }
    return fit;
}

void expectPromptsAndHost(const ServiceCosts& found, const Truth& truth) {
    EXPECT_EQ(found.planMs, 0);
    EXPECT_NEAR(found.gapMs, truth.gapMs, 0.03 * truth.gapMs);
    EXPECT_NEAR(found.gapUsPerRow, truth.gapUsPerRow, 0.1 * truth.gapUsPerRow);
    EXPECT_NEAR(found.admitMs, truth.admitMs, 0.12 * truth.admitMs);
    EXPECT_NEAR(found.admitUsPerToken, truth.admitUsPerToken, 0.03 * truth.admitUsPerToken);
    EXPECT_NEAR(found.betweenMs, truth.betweenMs, 0.03 * truth.betweenMs);
    EXPECT_NEAR(found.betweenUsPerRow, truth.betweenUsPerRow, 0.1 * truth.betweenUsPerRow);
    EXPECT_NEAR(found.requestMs, truth.requestMs, 0.03 * truth.requestMs);
    for (const int rows : {1, 4})
        EXPECT_NEAR(found.overhead(rows) + found.admission(5000), truth.hostMs(rows, {5000}),
                    0.03 * truth.hostMs(rows, {5000}));
    for (const int length : {600, 1024, 3000})
        EXPECT_NEAR(found.prefillLayer(0, length), truth.layerMs(0, length), 0.03 * truth.layerMs(0, length)) << length;
}

SchedulerOptions offloading(TransferPlan transfers = TransferPlan::Kernel) {
    SchedulerOptions options;
    options.transfers = transfers;
    return options;
}
SchedulerOptions resident() {
    SchedulerOptions options;
    options.offload = false;
    return options;
}

TEST(CostFit, FindsTheCostsOfWhatItWasShown) {
    for (const bool chunks : {false, true}) {
        const Truth truth = Truth::resident();
        ServiceCosts base;
        base.shape.layers = truth.layers, base.offloadMs[2] = 9;
        const ServiceCosts found = fitTo(truth, {chunks}, chunks ? 2 : 1).fit(base, resident());
        for (const int rows : {1, 2, 4}) {
            EXPECT_NEAR(found.decodeMs.at(rows), Truth::stepMs(rows), 0.04 * Truth::stepMs(rows));
            EXPECT_NEAR(found.residentDecode(rows, 4000), truth.decodeMs(rows, 4000, 0), 0.1);
        }
        EXPECT_NEAR(found.decodeUsPerKtoken, truth.stepUsPerKtoken, 20);
        expectPromptsAndHost(found, truth);
        EXPECT_EQ(found.offloadMs[2], 9) << "steps that load nothing say nothing about loads, ";
        EXPECT_EQ(found.linkGbps[2], base.linkGbps[2]) << "nor about the link";
        EXPECT_EQ(ServiceCosts::fromJson(found.toJson()).toJson(), found.toJson());
    }
}

TEST(CostFit, OfStepsThatOffloadHoldsTheirLoads) {
    const Truth truth;
    ServiceCosts base;
    base.offloadMs[0] = base.offloadUsPerRow[1] = 7; // of another table
    const ServiceCosts found = fitTo(truth, {.misses = false}, 3).fit(base, offloading());
    for (const int rows : {1, 2, 4})
        for (const std::int64_t context : {1000, 8000})
            EXPECT_NEAR(found.decode(rows, context, 50'000'000, offloading(TransferPlan::Calls)),
                        truth.decodeMs(rows, double(context), 0), 0.1)
                << rows << " rows";
    expectPromptsAndHost(found, truth);
    EXPECT_NEAR(found.partitionHits.at(2), 0.9, 1e-9);
}

TEST(CostFit, TellsApartWhatOffloadingCosts) {
    const Truth truth;
    for (const TransferPlan transfers : {TransferPlan::Calls, TransferPlan::Kernel}) {
        const auto at = std::size_t(transfers), other = std::size_t(TransferPlan::Batched);
        const ServiceCosts beside = fitTo(Truth::resident(), {.misses = false}, 4).fit({}, resident());
        const ServiceCosts found = fitTo(truth, {}, 5).fitOffload(beside, offloading(transfers));
        EXPECT_NEAR(found.offloadMs[at], truth.offloadMs, 0.15 * truth.offloadMs);
        EXPECT_NEAR(found.offloadUsPerRow[at], truth.offloadUsPerRow, 0.4 * truth.offloadUsPerRow);
        EXPECT_NEAR(found.linkGbps[at], truth.gbps, 0.08 * truth.gbps);
        EXPECT_EQ(found.offloadMs[other], 0);
        EXPECT_EQ(found.offloadUsPerRow[other], 0);
        EXPECT_EQ(found.linkGbps[other], beside.linkGbps[other]);
        EXPECT_EQ(found.decodeMs.points, beside.decodeMs.points) << "a step on the device costs what it cost";
        EXPECT_EQ(found.prefillUsPerToken, beside.prefillUsPerToken);
        EXPECT_EQ(found.partitionHits.points, beside.partitionHits.points);
        EXPECT_EQ(found.lruHits.points, beside.lruHits.points);
        for (const int rows : {1, 2, 4})
            for (const double bytes : {0.0, 100e6}) {
                const double ms = truth.decodeMs(rows, 4000, bytes);
                EXPECT_NEAR(found.decode(rows, 4000, std::int64_t(bytes), offloading(transfers)), ms, 0.02 * ms)
                    << rows << " rows, " << bytes << " bytes";
            }
        EXPECT_NEAR(found.residentDecode(2, 4000), Truth::resident().decodeMs(2, 4000, 0), 0.1);
        EXPECT_EQ(found.decode(2, 4000, 0, resident()), found.residentDecode(2, 4000));
        expectPromptsAndHost(found, truth);
    }
}

/// Without noise every term is there to the last digits, and each alone: whichever is taken away from the truth is
/// missing in the table, and no other changes.
TEST(CostFit, IdentifiesEveryTerm) {
    for (const bool chunks : {false, true}) {
        const Truth truth = Truth::resident();
        const ServiceCosts found = fitTo(truth, {.chunks = chunks, .noise = false}, 12).fit({}, resident());
        EXPECT_NEAR(found.decodeUsPerKtoken, truth.stepUsPerKtoken, 0.1);
        for (const int rows : {1, 2, 4}) EXPECT_NEAR(found.decodeMs.at(rows), Truth::stepMs(rows), 1e-3);
        for (const int length : {600, 1024, 3000})
            EXPECT_NEAR(found.prefillLayer(0, length), truth.layerMs(0, length), 1e-3 * truth.layerMs(0, length));
    }
    const auto termsOf = [](const Truth& truth) {
        const Kind exact{.noise = false};
        const ServiceCosts beside = fitTo(Truth::resident(), exact, 6).fit({}, resident());
        const ServiceCosts found = fitTo(truth, exact, 7).fitOffload(beside, offloading());
        return std::vector<double>{found.offloadMs[2], found.offloadUsPerRow[2], found.gapMs,     found.gapUsPerRow,
                                   found.admitMs,      found.admitUsPerToken,    found.betweenMs, found.betweenUsPerRow,
                                   found.requestMs};
    };
    double Truth::*const terms[] = {&Truth::offloadMs,   &Truth::offloadUsPerRow, &Truth::gapMs,
                                    &Truth::gapUsPerRow, &Truth::admitMs,         &Truth::admitUsPerToken,
                                    &Truth::betweenMs,   &Truth::betweenUsPerRow, &Truth::requestMs};
    for (std::size_t missing = 0; missing <= std::size(terms); ++missing) {
        Truth truth;
        if (missing < std::size(terms)) truth.*terms[missing] = 0;
        const std::vector<double> found = termsOf(truth);
        for (std::size_t i = 0; i < std::size(terms); ++i)
            EXPECT_NEAR(found[i], truth.*terms[i], std::max(0.005, 0.01 * Truth().*terms[i]))
                << "term " << i << " without term " << missing;
    }
}

/// Where nothing was missed, or every row missed as much, a step cannot tell what a byte costs.
TEST(CostFit, KeepsTheRateOfALinkThatCarriedNothing) {
    const ServiceCosts beside = fitTo(Truth::resident(), {.misses = false}, 8).fit({}, resident());
    const ServiceCosts found = fitTo({}, {.misses = false}, 9).fitOffload(beside, offloading());
    EXPECT_EQ(found.linkGbps[2], ServiceCosts().linkGbps[2]);
    EXPECT_NEAR(found.offloadMs[2], 0.6, 0.1);
    Truth free;
    free.gbps = 1e9;
    const Kind exact{.noise = false};
    const ServiceCosts exactly = fitTo(Truth::resident(), exact, 8).fit({}, resident());
    EXPECT_GT(fitTo(free, exact, 10).fitOffload(exactly, offloading()).linkGbps[2], 1000) << "bytes that took no time";
}

/// A burst of admissions: nearly all iterations admit somebody, and a few take far longer than they should.
TEST(CostFit, TheGapIsThatOfIterationsThatAdmitNobody) {
    MemoryShape shape;
    CostFit fit;
    for (int turn = 0; turn < 40; ++turn) {
        IterationPlan plan;
        plan.decode.push_back({0, 0});
        IterationReport report{plan, 0, 0, 1'000'000, {}, 1000, 1, 0, 0, 0, 0};
        const bool admits = turn % 8 != 0;
        const int tokens = 1000 * (1 + turn % 5);
        report.endNs =
            1'000'000 + 200'000 + (admits ? 3'000'000 + 1'000 * tokens : 0) + (turn % 10 == 7 ? 30'000'000 : 0);
        fit.add(report, shape, false, {}, admits ? std::vector<int>{tokens} : std::vector<int>{});
    }
    const ServiceCosts found = fit.fit({}, offloading());
    EXPECT_NEAR(found.overhead(1), 0.2, 1e-3) << "not the mean, which is above 6 ms";
    EXPECT_NEAR(found.admission(2000), 5, 0.01);
    EXPECT_NEAR(found.admission(5000), 8, 0.01);
}

/// The prompts of measureCosts on a GPU in a process that has just begun: 32 layers of 0.8 us a token, and 250 ms for
/// libraries beside the first and longest prompt.
TEST(CostFit, OfAFreshProcessIsThatOfAWarmOne) {
    MemoryShape shape;
    shape.layers = 32;
    CostFit fit;
    for (const int length : {2048, 1536, 1024, 768, 640, 512, 384, 256}) {
        IterationPlan plan;
        PrefillSegment segment;
        segment.to = {shape.layers, 0};
        plan.segments.push_back(segment);
        IterationReport report{plan, 0, 0, 0, {}, 0, 0, 0, 0, 0, 0};
        const std::int64_t read[] = {std::int64_t(32 * 0.8e3 * length) + (length == 2048 ? 250'000'000 : 0)};
        report.segmentNs = read;
        report.endNs = read[0];
        fit.add(report, shape, false, std::vector<int>{length}, {});
    }
    const ServiceCosts found = fit.fit({}, {});
    EXPECT_NEAR(found.prefillUsPerToken, 0.8, 0.01);
    EXPECT_NEAR(found.prefillPsPerToken2, 0, 1e-3);
}

/// Contexts of a hundred equally long steps differ by single tokens, and noise between them is no slope.
TEST(CostFit, TheSlopeComesFromContextsThatDiffer) {
    MemoryShape shape;
    CostFit fit;
    Draws draws(11);
    for (int turn = 0; turn < 240; ++turn) {
        IterationPlan plan;
        plan.decode.push_back({0, 0});
        const int context = (turn % 12 == 0 ? 2000 : 30000) + turn;
        IterationReport report{plan, 0, 0, 0, {}, context, 1, 0, 0, 0, 0};
        report.decodeNs = std::int64_t((4 + 0.01e-3 * context) * 1e6 * (0.99 + 0.02 * draws.uniform()));
        report.endNs = report.decodeNs;
        fit.add(report, shape, false, {}, {});
    }
    EXPECT_NEAR(fit.fit({}, resident()).decodeUsPerKtoken, 10, 1);
}

/// The rungs of the ladder that offload are simulated with costs that were measured with everything on the device.
TEST(CostFit, OfAResidentServerDoesNotSayThatEverythingHits) {
    const ServiceCosts truth;
    for (const bool offload : {true, false}) {
        CostFit fit;
        IterationPlan plan;
        plan.decode.push_back({0, 0});
        IterationReport report{plan, 0, 1'000'000, 1'000'000, {}, 4000, 100, 0, 0, 0, 0};
        fit.add(report, truth.shape, false, {}, {});
        SchedulerOptions options;
        options.offload = offload;
        const ServiceCosts found = fit.fit(truth, options);
        EXPECT_EQ(found.partitionHits.at(2), offload ? 1 : truth.partitionHits.at(2));
        const std::vector<std::string> keys = fit.fittedKeys(options);
        for (const char* key : {"decode_ms", "decode_us_per_ktoken", "plan_ms", "gap_ms"})
            EXPECT_EQ(std::ranges::count(keys, key), 1) << key;
        for (const char* key : {"link_gbps", "offload_ms", "offload_us_per_row", "partition_hits"})
            EXPECT_EQ(std::ranges::count(keys, key), offload ? 1 : 0) << key;
        for (const char* key : {"full_us_per_ktoken", "prefill_us_per_token", "drift", "lru_hits"})
            EXPECT_EQ(std::ranges::count(keys, key), 0) << key << ": nothing of it ran";
    }
}

/// Six steps of four rows, whose contexts grow by a token a row while the machine gets slower: each token of context
/// seemed to cost 75 us, and a step of short contexts a third of what it takes.
TEST(CostFit, ContextsOfNearlyOneLengthShowNoSlope) {
    CostFit fit;
    MemoryShape shape;
    for (int step = 0; step < 6; ++step) {
        IterationPlan plan;
        for (int row = 0; row < 4; ++row) plan.decode.push_back({row, row});
        IterationReport report{plan, 0, 0, 0, {}, 8000 + 4 * step, 1, 0, 0, 0, 0};
        report.decodeNs = report.endNs = 9'250'000 + 300'000 * step;
        fit.add(report, shape, false, {}, {});
    }
    const ServiceCosts found = fit.fit({}, resident());
    EXPECT_EQ(found.decodeUsPerKtoken, 0);
    EXPECT_NEAR(found.residentDecode(4, 2000), 10, 1e-9);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::serve
