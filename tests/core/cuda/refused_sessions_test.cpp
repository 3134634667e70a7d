// Sessions that are refused while their engine is being made leave nothing behind on the GPU.
#include "core/cuda/cuda_engine.h"
#include "core/cuda/device_model.h"
#include "core/cuda/gpu_device.h"
#include "core/session/decode_session.h"
#include "kernels/cuda/device/owners.h"
#include "tests/core/latent_experts.h"
#include "tests/core/random_checkpoint.h"
#include "tests/profiler/temporary_folder.h"

#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using nlohmann::json;

constexpr int kRefusals = 1000;

std::size_t freeBytes() {
    std::size_t free = 0, total = 0;
    cuda::check(cudaMemGetInfo(&free, &total), "asking for the GPU's free memory");
    return free;
}

class RefusedSessionsOnCuda : public ::testing::Test {
protected:
    void SetUp() override {
        try {
            (void)usableGpu();
        } catch (const Error& error) {
            GTEST_SKIP() << oneLine(error);
        }
    }
    std::shared_ptr<const Model> model(const std::string& family, const json& changes) {
        return Model::load(test::writeCheckpoint((folder_ / family).string(), test::familyConfig(family, changes), 5));
    }
    /// `start` ends in an Error that says `why`, a thousand times.
    static void expectNothingLost(const std::string& why, const std::function<void()>& start) {
        const auto refuse = [&] {
            try {
                start();
                FAIL() << "it was not refused";
            } catch (const Error& error) {
                ASSERT_THAT(oneLine(error), testing::HasSubstr(why));
            }
        };
        const cuda::Living before = cuda::living();
        refuse(); // modules are loaded, and the driver has its pools
        const std::size_t free = freeBytes();
        for (int i = 1; i < kRefusals && !HasFatalFailure(); ++i) refuse();
        EXPECT_EQ(cuda::living(), before);
        const std::size_t left = freeBytes();
        EXPECT_LT(free > left ? free - left : 0, std::size_t(32) << 20);
    }
    static void decode(const std::shared_ptr<const Model>& model, int promptTokens) {
        SessionOptions options;
        options.backend = Backend::Cuda;
        options.method = "h2o";
        options.maxNewTokens = 12;
        NullSink sink;
        DecodeSession session(model, {std::vector<std::int32_t>(std::size_t(promptTokens), 3)}, options, sink);
    }
    test::Folder folder_;
};

TEST_F(RefusedSessionsOnCuda, OutOfMemoryLosesNothing) {
    ModelConfig config = model("mistral-window", {{"hidden_size", 256},
                                                  {"head_dim", 64},
                                                  {"num_attention_heads", 4},
                                                  {"num_key_value_heads", 2},
                                                  {"vocab_size", 96},
                                                  {"intermediate_size", 192}})
                             ->config();
    config.windows.clear();
    const MethodEntry& method = findMethod("streaming");
    CudaEngineOptions options;
    options.method.parameters = resolveDefaults(method, config);
    options.spec = method.make(options.method.parameters, config);
    options.spec.bias.scale = 0;
    options.maxTokens = {4096};
    options.promptTokens = {4000};
    options.slots = 1 << 26; // of 16 KiB at least: no GPU has that much
    options.plans = LayerPlans(config, options.spec, {});
    const auto weights = DeviceModel::random(config, false, 3);
    expectNothingLost("GiB of GPU memory", [&] { CudaEngine engine(weights, options); });
}

TEST_F(RefusedSessionsOnCuda, AMethodWithoutLatentAttentionLosesNothing) {
    const auto latent =
        Model::load(test::writeCheckpoint((folder_ / "latent").string(), test::latentExpertsConfig(), 5));
    const auto weights = DeviceModel::of(latent); // uploaded once
    expectNothingLost("latent", [&] { decode(latent, 60); });
}

TEST_F(RefusedSessionsOnCuda, AMethodWithoutWindowsLosesNothing) {
    const auto windows = model("mistral-window", {{"hidden_size", 256},
                                                  {"head_dim", 64},
                                                  {"num_attention_heads", 4},
                                                  {"num_key_value_heads", 2},
                                                  {"vocab_size", 96},
                                                  {"intermediate_size", 192},
                                                  {"sliding_window", 100}});
    const auto weights = DeviceModel::of(windows);
    expectNothingLost("window of 100", [&] { decode(windows, 100); });
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
