// Rehearsals: what they read and take, which is worked out without a GPU, and on a GPU that they change nothing.
#include "core/cuda/rehearsal.h"

#include "base/error.h"
#include "core/cuda/cuda_engine.h"
#include "core/cuda/gpu_device.h"
#include "core/cuda/gpu_memory.h"
#include "core/select/refusal.h"
#include "kernels/cuda/device/owners.h"
#include "tests/core/embedded_model.h"
#include "tests/core/latent_experts.h"
#include "tests/core/small_session.h"
#include "tests/profiler/temporary_folder.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <thread>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::SmallSession;
using ::testing::ElementsAre;

const std::shared_ptr<const Model>& embedded() {
    static const std::shared_ptr<const Model> loaded = Model::load(kDefaultModel);
    return loaded;
}

std::vector<const MethodEntry*> methodsOnCuda() {
    std::vector<const MethodEntry*> all;
    for (const MethodEntry& method : methods())
        if (method.decodesTokens && method.runsOnCuda()) all.push_back(&method);
    return all;
}

CudaEngineOptions withPrompts(const std::vector<int>& tokens) {
    CudaEngineOptions options;
    options.promptTokens = tokens;
    options.maxPrompt = tokens.empty() ? 1 : *std::ranges::max_element(tokens);
    for (const int prompt : tokens) options.maxTokens.push_back(prompt + 20);
    return options;
}

TEST(Rehearsal, ReadsAPromptForEveryLengthThatAPieceHas) {
    EXPECT_THAT(rehearsedLengths(withPrompts({300})), ElementsAre(300));
    EXPECT_THAT(rehearsedLengths(withPrompts({2048})), ElementsAre(2048));
    EXPECT_THAT(rehearsedLengths(withPrompts({4096})), ElementsAre(2048)) << "both pieces are whole";
    EXPECT_THAT(rehearsedLengths(withPrompts({5000})), ElementsAre(2048, 904));
    EXPECT_THAT(rehearsedLengths(withPrompts({100, 5000, 100, 2600})), ElementsAre(2048, 904, 552, 100));
}

TEST(Rehearsal, ReadsFewPromptsOfManyLengths) {
    EXPECT_THAT(rehearsedLengths(withPrompts({100, 200, 300, 400, 500, 600})), ElementsAre(400, 300, 200, 100));
    CudaEngineOptions unknown = withPrompts({});
    unknown.maxPrompt = 3000;
    EXPECT_THAT(rehearsedLengths(unknown), ElementsAre(2048, 952));
}

TEST(Rehearsal, HasTheSessionsRowsAndRecordsNothing) {
    KVSCOPE_NEEDS_NOSA_TINY();
    const auto model = DeviceModel::shapesOf(*embedded());
    int compared = 0;
    for (const MethodEntry* method : methodsOnCuda()) {
        SCOPED_TRACE(method->name);
        const SmallSession session(embedded(), *method,
                                   {.backend = Backend::Cuda, .oracle = true, .promptTokens = {150, 3000, 40}});
        if (findRefusal(*method, session.use(), 3024, embedded().get())) continue;
        const CudaEngineOptions usual = gpuEngineOptions(session.setup), options = rehearsalOptions(usual, *model);
        EXPECT_THAT(options.promptTokens, ElementsAre(2048, 1, 1));
        EXPECT_THAT(options.maxTokens, ElementsAre(2049, 2, 2));
        EXPECT_EQ(options.maxPrompt, 2048);
        EXPECT_EQ(options.method.makeSelector, nullptr);
        EXPECT_EQ(options.spec.dense, usual.spec.dense || usual.method.makeSelector != nullptr);
        EXPECT_EQ(options.spec.blockSize, usual.spec.blockSize);
        // The layers of the rehearsal are the first of the session's.
        ASSERT_LE(options.plans.size(), usual.plans.size());
        for (int i = 0; i < options.plans.size() && usual.method.makeSelector == nullptr; ++i) {
            const LayerPlan &ours = options.plans[LayerId{i}], &theirs = usual.plans[LayerId{i}];
            EXPECT_EQ(ours.sparse, theirs.sparse);
            EXPECT_EQ(ours.offloaded, theirs.offloaded);
            EXPECT_EQ(ours.ownTier, theirs.ownTier);
            EXPECT_EQ(ours.indexed, theirs.indexed);
            EXPECT_EQ(ours.chosen, theirs.chosen);
            EXPECT_EQ(ours.window, theirs.window);
        }
        EXPECT_FALSE(options.oracle);
        EXPECT_EQ(options.trace, nullptr);
        ++compared;
    }
    EXPECT_GT(compared, 3);
}

/// A session that fits keeps room for its rehearsal. Methods with a selector may keep less than full attention does.
TEST(Rehearsal, TakesLessMemoryThanTheSession) {
    KVSCOPE_NEEDS_NOSA_TINY();
    const auto model = DeviceModel::shapesOf(*embedded());
    cuda::Launch gpu; // an H200
    gpu.multiprocessors = 132;
    gpu.blockShared = 232448;
    int compared = 0;
    for (const MethodEntry* method : methodsOnCuda()) {
        SCOPED_TRACE(method->name);
        const SmallSession session(embedded(), *method, {.backend = Backend::Cuda, .promptTokens = {150, 3000, 40}});
        if (findRefusal(*method, session.use(), 3024, embedded().get()) ||
            method->hasSelector(session.setup.parameters))
            continue;
        const CudaEngineOptions usual = gpuEngineOptions(session.setup);
        const CudaEngineOptions options = rehearsalOptions(usual, *model);
        const auto layers = DeviceModel::firstLayers(model, options.plans.size());
        const MemoryPlan whole = CudaEngine::memory(model, usual, gpu),
                         rehearsed = CudaEngine::memory(layers, options, gpu);
        for (const MemoryTier tier : {MemoryTier::Device, MemoryTier::Host}) {
            EXPECT_LT(rehearsed.most(tier), whole.most(tier));
            EXPECT_GT(rehearsed.most(tier), 0);
        }
        ++compared;
    }
    EXPECT_GT(compared, 3);
}

TEST(Rehearsal, HasALayerOfEveryKind) {
    KVSCOPE_NEEDS_NOSA_TINY();
    const auto model = DeviceModel::shapesOf(*embedded());
    const ModelConfig& config = embedded()->config();
    ASSERT_GT(config.layers, 3);
    const SelectionSpec full = specOf(findMethod("full"), {}, config);
    EXPECT_EQ(layersOfEveryKind(*model, LayerPlans(config, full, {})), 1);
    const std::vector<std::pair<std::string, std::string>> skip{{"skip_layers", "2"}};
    const SelectionSpec quest = specOf(findMethod("quest"), skip, config);
    EXPECT_EQ(layersOfEveryKind(*model, LayerPlans(config, quest, {})), 3) << "two dense layers come first";
}

TEST(Rehearsal, HasALayerWithExperts) {
    test::Folder folder;
    const auto loaded =
        Model::load(test::writeCheckpoint((folder / "experts").string(), test::latentExpertsConfig(), 5));
    const ModelConfig& config = loaded->config();
    ASSERT_GT(config.layers, 1);
    const SelectionSpec full = specOf(findMethod("full"), {}, config);
    EXPECT_EQ(layersOfEveryKind(*DeviceModel::shapesOf(*loaded), LayerPlans(config, full, {})), 2)
        << "the first layer has no experts";
}

/// Whatever stops it, here a block size that no kernel takes or a machine without a GPU, the session only hears why.
TEST(Rehearsal, ThatFailsSaysWhyAndThrowsNothing) {
    KVSCOPE_NEEDS_NOSA_TINY();
    const SmallSession session(embedded(), findMethod("streaming"), {.backend = Backend::Cuda});
    CudaEngineOptions options = gpuEngineOptions(session.setup);
    options.spec.blockSize = 8;
    Rehearsal rehearsal(DeviceModel::shapesOf(*embedded()), options);
    rehearsal.finish();
    EXPECT_NE(rehearsal.problem(), "");
}

// ---- On a GPU -------------------------------------------------------------------------------------------------------

class RehearsalOnCuda : public ::testing::Test {
protected:
    void SetUp() override {
        try {
            (void)usableGpu();
        } catch (const Error& error) {
            GTEST_SKIP() << oneLine(error);
        }
        KVSCOPE_NEEDS_NOSA_TINY();
    }
    void TearDown() override { unsetenv("KVSCOPE_NO_REHEARSAL"); }
    static void rehearse(bool yes) {
        if (yes)
            unsetenv("KVSCOPE_NO_REHEARSAL");
        else
            setenv("KVSCOPE_NO_REHEARSAL", "1", 1);
    }
};

TEST_F(RehearsalOnCuda, RunsToItsEndAndGivesEverythingBack) {
    const auto weights = DeviceModel::of(embedded());
    for (const MethodEntry* method : methodsOnCuda())
        for (const bool offload : {true, false}) {
            SCOPED_TRACE(::testing::Message() << method->name << ", offload " << offload);
            const SmallSession session(embedded(), *method, {.backend = Backend::Cuda, .offload = offload});
            if (findRefusal(*method, session.use(), 324, embedded().get())) continue;
            const cuda::Living before = cuda::living();
            Rehearsal rehearsal(weights, gpuEngineOptions(session.setup));
            rehearsal.finish();
            EXPECT_EQ(rehearsal.problem(), "");
            EXPECT_EQ(cuda::living(), before);
        }
}

TEST_F(RehearsalOnCuda, CanBeGivenUpAtAnyMoment) {
    const auto weights = DeviceModel::of(embedded());
    const SmallSession session(embedded(), findMethod("nosa"), {.backend = Backend::Cuda});
    const cuda::Living before = cuda::living();
    for (int i = 0; i < 20; ++i) {
        const Rehearsal rehearsal(weights, gpuEngineOptions(session.setup));
        std::this_thread::sleep_for(std::chrono::milliseconds(i));
    }
    EXPECT_EQ(cuda::living(), before);
}

TEST_F(RehearsalOnCuda, RunsOnceForEachUpload) {
    const auto model = Model::load(kDefaultModel);
    const SmallSession session(model, findMethod("nosa"), {.backend = Backend::Cuda});
    const CudaEngineOptions options = gpuEngineOptions(session.setup);
    UploadTimes first, second, without;
    const auto weights = uploadRehearsing(model, options, &first);
    EXPECT_GT(first.rehearsal, 0);
    EXPECT_EQ(uploadRehearsing(model, options, &second), weights);
    EXPECT_EQ(second.rehearsal, 0);
    rehearse(false);
    (void)uploadRehearsing(Model::load(kDefaultModel), options, &without);
    EXPECT_EQ(without.rehearsal, 0);
}

TEST_F(RehearsalOnCuda, ChangesNoToken) {
    for (const char* method : {"full", "nosa", "quest", "streaming", "arkvale"}) {
        SCOPED_TRACE(method);
        std::vector<std::vector<std::vector<std::int32_t>>> tokens;
        for (const bool yes : {true, false}) {
            rehearse(yes);
            SessionOptions options;
            options.backend = Backend::Cuda;
            options.method = method;
            options.maxNewTokens = 12;
            options.stopAtEos = false;
            NullSink sink;
            DecodeSession session(Model::load(kDefaultModel), // uploaded by this session
                                  {test::randomPrompt(700, 1), test::randomPrompt(90, 2)}, options, sink);
            session.prefill();
            while (session.step()) {
            }
            tokens.push_back(session.generated());
        }
        EXPECT_EQ(tokens[0], tokens[1]);
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
