// The table of costs that is fitted to iterations finds the costs that the iterations were made with.
#include "core/serve/cost_fit.h"

#include "core/serve/random_draws.h"

#include <gtest/gtest.h>

namespace kvscope::serve {
namespace KVSCOPE_TEST_FILE {

/// Iterations whose times follow a table of costs, but for one in twenty, which takes ten times as long, and the first
/// prompt, which takes forty times as long: it loads libraries.
TEST(CostFit, FindsTheCostsOfWhatItWasShown) {
    for (const bool chunks : {false, true}) {
        ServiceCosts truth;
        truth.shape.layers = 6;
        truth.decodeMs = {{{1, 2.0}, {2, 2.5}, {4, 4.0}}};
        truth.decodeUsPerKtoken = 900, truth.prefillUsPerToken = 40, truth.prefillPsPerToken2 = 9000;
        truth.gapMs = 0.5, truth.planMs = 0;
        Draws draws(chunks ? 2 : 1);
        CostFit fit;
        for (int turn = 0; turn < 400; ++turn) {
            IterationPlan plan;
            const int rows = 1 << draws.below(3), length = 512 * (1 + int(draws.below(6))) + int(draws.below(300));
            const auto context = std::int64_t(500 + draws.below(8000));
            for (int row = 0; row < rows; ++row) plan.decode.push_back({row, row});
            PrefillSegment segment;
            double ms = 0;
            if (chunks) {
                segment.from = {0, 512}, segment.to = {0, std::min(1024, length)};
                ms = truth.shape.layers * truth.prefillLayer(512, segment.to.token);
            } else { // the end of a layer, a whole one and the beginning of another
                segment.from = {1, 512}, segment.to = {3, 512};
                ms = truth.prefillLayer(512, length) + truth.prefillLayer(0, length) + truth.prefillLayer(0, 512);
            }
            plan.segments.push_back(segment);
            const double slow = draws.below(20) == 0 ? 10 : 1;
            IterationReport report{plan, 0, 0, 0, {}, context, 90, 10, 0, 0, 0};
            report.decodeNs = std::int64_t(slow * truth.decode(rows, context, 0, TransferPlan::Kernel) * 1e6);
            const std::int64_t read[] = {std::int64_t((turn == 0 ? 40 : slow) * ms * 1e6)};
            report.segmentNs = read;
            report.endNs = report.decodeNs + read[0] + 500'000;
            fit.add(report, truth.shape, chunks, {length});
        }
        const ServiceCosts found = fit.fit(truth, {});
        for (const auto& [rows, ms] : truth.decodeMs.points) EXPECT_NEAR(found.decodeMs.at(rows), ms, 0.05 * ms);
        EXPECT_NEAR(found.decodeUsPerKtoken, 900, 20);
        EXPECT_NEAR(found.gapMs, 0.5, 0.001);
        EXPECT_NEAR(found.partitionHits.at(2), 0.9, 1e-9);
        for (const int length : {600, 1024, 3000})
            EXPECT_NEAR(found.prefillLayer(0, length), truth.prefillLayer(0, length),
                        0.01 * truth.prefillLayer(0, length))
                << length;
    }
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
        fit.add(report, shape, false, {length});
    }
    const ServiceCosts found = fit.fit({}, {});
    EXPECT_NEAR(found.prefillUsPerToken, 0.8, 0.01);
    EXPECT_NEAR(found.prefillPsPerToken2, 0, 1e-3);
}

/// The rungs of the ladder that offload are simulated with costs that were measured with everything on the device.
TEST(CostFit, OfAResidentServerDoesNotSayThatEverythingHits) {
    const ServiceCosts truth;
    for (const bool offload : {true, false}) {
        CostFit fit;
        IterationPlan plan;
        plan.decode.push_back({0, 0});
        IterationReport report{plan, 0, 1'000'000, 1'000'000, {}, 4000, 100, 0, 0, 0, 0};
        fit.add(report, truth.shape, false, {});
        SchedulerOptions options;
        options.offload = offload;
        const ServiceCosts found = fit.fit(truth, options);
        EXPECT_EQ(found.partitionHits.at(2), offload ? 1 : truth.partitionHits.at(2));
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::serve
