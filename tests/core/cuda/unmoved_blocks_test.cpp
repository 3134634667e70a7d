// Steps without their transfers, which benchmarks compare with the steps: the same misses, and nothing moves.
#include "core/cuda/cuda_engine.h"
#include "core/cuda/device_model.h"
#include "core/cuda/testing/filled_context.h"
#include "core/cuda/testing/planted_steps.h"
#include "core/select/method.h"
#include "tests/core/backend.h"

#include <gtest/gtest.h>
#include <numeric>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

struct Totals {
    std::vector<std::int64_t> misses; // by step
    std::int64_t loaded = 0, writtenBack = 0, exposedNs = 0;
};

/// Planted selections, of which a good part changes in every step; each miss is of a block that only the host has.
Totals run(bool moveBlocks) {
    constexpr int kSequences = 2, kContext = 4000, kSteps = 70; // longer than a block: full ones are written back
    const auto model = Model::load(kDefaultModel);
    const MethodEntry& method = findMethod("nosa");
    CudaEngineOptions options;
    options.method.parameters = resolveDefaults(method, model->config());
    options.spec = method.make(options.method.parameters, model->config());
    options.maxTokens.assign(kSequences, kContext + kSteps + 16);
    options.promptTokens.assign(kSequences, kContext);
    options.slots = options.spec.budgetBlocks();
    options.plans = LayerPlans(model->config(), options.spec, {});
    options.level = RecordLevel::Selections;
    PlantedSteps changes;
    changes.planted = 0.5f;
    changes.moveBlocks = moveBlocks;
    options.changes = &changes;
    CudaEngine engine(DeviceModel::random(model->config(), true, 3), options);
    fillContext(engine, kContext, 5);
    std::vector<ActiveSequence> active;
    for (int s = 0; s < kSequences; ++s) active.push_back({RowId{s}, 0});
    Totals out;
    StepRecord record;
    for (int step = 0; step < kSteps; ++step) {
        engine.launch();
        engine.wait();
        record.clear();
        engine.fill(record, active);
        out.misses.push_back(0);
        for (const LayerRecord& layer : record.layers) {
            out.misses.back() += layer.misses;
            out.loaded += layer.h2dBlocks, out.writtenBack += layer.d2hBlocks;
            out.exposedNs += layer.exposedNs;
        }
    }
    return out;
}

TEST(UnmovedBlocksOnCuda, AreMissedAsOftenAsOnesThatMove) {
    if (!test::onCuda()) GTEST_SKIP() << "asks the GPU's engine";
    const Totals moved = run(true), unmoved = run(false);
    EXPECT_EQ(moved.misses, unmoved.misses);
    const std::int64_t misses = std::accumulate(moved.misses.begin(), moved.misses.end(), std::int64_t(0));
    EXPECT_GT(misses, 0);
    EXPECT_EQ(moved.loaded, misses);
    EXPECT_GT(moved.writtenBack, 0);
    EXPECT_GT(moved.exposedNs, 0);
    EXPECT_EQ(unmoved.loaded, 0);
    EXPECT_EQ(unmoved.writtenBack, 0);
    EXPECT_EQ(unmoved.exposedNs, 0);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
