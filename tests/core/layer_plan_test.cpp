// What each layer of a session does, for every method, against the rules written out by hand.
#include "core/plan/layer_plan.h"

#include "core/kv/block_layout.h"
#include "core/plan/kv_format.h"
#include "core/select/method.h"
#include "kernels/cuda/device/kv_shape.h"

#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

ModelConfig shape(int layers) {
    ModelConfig config;
    config.layers = layers;
    config.queryHeads = 8, config.kvHeads = 2, config.headDim = 64;
    return config;
}

TEST(LayerPlan, LayersWithoutABlockIndexerAttendToEverythingWhereverTheyStand) {
    ModelConfig config = shape(4);
    config.blockIndexer = BlockIndexer{};
    config.blockIndexer->layers = {true, false, true, false};
    SelectionSpec spec;
    EXPECT_EQ(LayerPlans(config, spec, {}).sparse(), 4) << "another method's choice";
    spec.denseWithoutIndexer = true;
    const LayerPlans plans(config, spec, {.remembers = true});
    EXPECT_EQ(plans.sparse(), 2);
    EXPECT_EQ(plans.offloaded(), 2);
    for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(plans[LayerId{i}].sparse, i % 2 == 0) << i;
        EXPECT_EQ(plans[LayerId{i}].indexed, i % 2 == 0) << i;
        EXPECT_EQ(plans[LayerId{i}].chosen == Chosen::Never, i % 2 == 1) << i;
    }
    EXPECT_EQ(LayerPlans(shape(4), spec, {}).sparse(), 4) << "a shape without weights";
}

TEST(LayerPlan, TheFirstLayersAttendToEverythingAndStayOnTheDevice) {
    SelectionSpec spec;
    spec.denseLayers = 2;
    spec.queryScore = QueryScore::RangeBound;
    const LayerPlans plans(shape(5), spec, {});
    ASSERT_EQ(plans.size(), 5);
    EXPECT_EQ(plans.dense(), 2);
    EXPECT_EQ(plans.sparse(), 3);
    EXPECT_EQ(plans.offloaded(), 3);
    for (int i = 0; i < 5; ++i) {
        EXPECT_EQ(plans[LayerId{i}].sparse, i >= 2) << i;
        EXPECT_EQ(plans[LayerId{i}].offloaded, i >= 2) << i;
        EXPECT_EQ(plans[LayerId{i}].indexed, i >= 2) << i;
        EXPECT_EQ(plans.sparse(LayerId{i}), i >= 2) << i;
    }
    EXPECT_FALSE(plans.sparse(LayerId{5})) << "there is no layer after the last one";
    EXPECT_EQ(LayerPlans(shape(5), spec, {.offload = false}).offloaded(), 0);
    spec.denseLayers = 9;
    EXPECT_EQ(LayerPlans(shape(5), spec, {}).sparse(), 0);
}

TEST(LayerPlan, OfADenseMethodNoLayerChooses) {
    SelectionSpec spec;
    spec.dense = true;
    const LayerPlans plans(shape(3), spec, {.remembers = true});
    EXPECT_EQ(plans.dense(), 3);
    for (const LayerPlan& plan : plans) EXPECT_FALSE(plan.sparse || plan.offloaded || plan.indexed || plan.ownTier);
}

TEST(LayerPlan, ALayerIsIndexedWhereTheSpecOrASelectorRemembersTokens) {
    SelectionSpec spec;
    EXPECT_FALSE(LayerPlans(shape(1), spec, {})[LayerId{0}].indexed);
    EXPECT_TRUE(LayerPlans(shape(1), spec, {.remembers = true})[LayerId{0}].indexed);
    spec.agnosticScore = AgnosticScore::Eviction;
    EXPECT_TRUE(LayerPlans(shape(1), spec, {})[LayerId{0}].indexed);
}

TEST(LayerPlan, AMethodWithItsOwnTierLeavesNothingToTheCommonOne) {
    SelectionSpec spec;
    spec.ownDeviceTier = true;
    spec.denseLayers = 1;
    const LayerPlans plans(shape(3), spec, {});
    EXPECT_EQ(plans.offloaded(), 0);
    EXPECT_EQ(plans.ownTiers(), 2);
    EXPECT_FALSE(plans[LayerId{0}].ownTier);
}

TEST(LayerPlan, LayerZeroMayChooseAndStay) {
    SelectionSpec spec;
    spec.keepsLayer0 = true;
    const LayerPlans plans(shape(3), spec, {});
    EXPECT_TRUE(plans[LayerId{0}].sparse);
    EXPECT_FALSE(plans[LayerId{0}].offloaded);
    EXPECT_EQ(plans.offloaded(), 2);
}

TEST(LayerPlan, AWindowCountsWhereASequenceGrowsPastIt) {
    ModelConfig config = shape(3);
    config.windows = {0, 500, 40};
    const auto windows = [&](int longest) {
        std::vector<int> found;
        for (const LayerPlan& plan : LayerPlans(config, {}, {.longest = longest})) found.push_back(plan.window);
        return found;
    };
    EXPECT_EQ(windows(40), (std::vector{0, 0, 0}));
    EXPECT_EQ(windows(41), (std::vector{0, 0, 40}));
    EXPECT_EQ(windows(501), (std::vector{0, 500, 40}));
    EXPECT_EQ(windows(0), (std::vector{0, 500, 40}));
    EXPECT_EQ(LayerPlans(config, {}, {.longest = 501}).longestWindow(), 500);
}

TEST(LayerPlan, EveryMethodStatesItsOwn) {
    const ModelConfig config = shape(4);
    for (const MethodEntry& method : methods()) {
        if (!method.decodesTokens) continue; // of block-diffusion models alone, where nothing is offloaded
        const ParameterValues values = resolveDefaults(method, config);
        const SelectionSpec spec = method.make(values, config);
        const LayerPlans plans(config, spec, {true, method.hasSelector(values)});
        EXPECT_EQ(plans.dense(), spec.dense ? 4 : spec.denseLayers) << method.name;
        EXPECT_EQ(plans.offloaded(), spec.ownDeviceTier ? 0 : plans.sparse()) << method.name;
    }
}

TEST(KvFormat, IsWhatTheKernelsOfBothBackendsTake) {
    SelectionSpec spec;
    for (const int blockSize : {16, 64, 128})
        for (const int dim : {64, 128})
            for (const float bias : {0.f, 1.f}) {
                spec.blockSize = blockSize;
                spec.bias.scale = bias;
                ModelConfig config = shape(1);
                config.headDim = dim;
                EXPECT_EQ(kvFormat(Backend::Cuda, config, spec).blockBytes(),
                          std::int64_t(cuda::blockBytes(blockSize, dim)));
                const std::int64_t numbers = std::int64_t(blockSize) * (2 * dim + (bias != 0.f ? 1 : 0));
                EXPECT_EQ(kvFormat(Backend::Cpu, config, spec).blockBytes(), (numbers * 4 + 63) / 64 * 64);
                const BlockLayout layout{blockSize, dim, bias != 0.f, -1};
                EXPECT_EQ(layout.bytes(), kvFormat(Backend::Cpu, config, spec).blockBytes());
                EXPECT_GE(layout.floats(), layout.biasAt() + std::size_t(bias != 0.f ? blockSize : 0));
            }
    // Latent attention: keys alone.
    cuda::AttentionShape latent{16, 1, 576, 64, 512};
    EXPECT_EQ((KvFormat{KvType::BF16, 64, 576, 0, false}.blockBytes()), std::int64_t(cuda::blockBytes(latent)));
    EXPECT_EQ((KvFormat{KvType::F32, 16, 32, 0, false}.blockBytes()), 16 * 32 * 4);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
