// overlap=halves where no GPU is needed: the order of a step in halves, and who is refused.
#include "core/engine/step_order.h"
#include "core/select/refusal.h"
#include "core/serve/serves.h"
#include "core/session/engine_setup.h"
#include "tests/core/embedded_model.h"
#include "tests/support/refusal.h"

#include <algorithm>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Settings = std::vector<std::pair<const char*, const char*>>;

TEST(Halves, TakeTurns) {
    std::vector<std::string> order;
    const auto note = [&](const char* what) {
        return [&order, what](int half, LayerId layer) {
            order.push_back(fmt::format("{} {}{}", what, half == 0 ? "X" : "Y", int(layer)));
        };
    };
    inHalves(3, note("choose"), note("attend"));
    EXPECT_THAT(order, ElementsAre("choose X0", "choose Y0", "attend X0", "choose X1", "attend Y0", "choose Y1",
                                   "attend X1", "choose X2", "attend Y1", "choose Y2", "attend X2", "attend Y2"));
}

/// Between a half's choice and its attention the other half has something to do.
TEST(Halves, LeaveTransfersTheTimeOfTheOtherHalf) {
    constexpr int kLayers = 8;
    std::vector<std::pair<bool, int>> calls; // attends, half * kLayers + layer
    inHalves(
        kLayers, [&](int half, LayerId layer) { calls.emplace_back(false, half * kLayers + int(layer)); },
        [&](int half, LayerId layer) { calls.emplace_back(true, half * kLayers + int(layer)); });
    ASSERT_EQ(calls.size(), std::size_t(4 * kLayers)) << "each half chooses and attends once in each layer";
    for (int each = 0; each < 2 * kLayers; ++each) {
        const auto chosen = std::find(calls.begin(), calls.end(), std::pair(false, each)),
                   attended = std::find(calls.begin(), calls.end(), std::pair(true, each));
        ASSERT_LT(chosen, attended);
        const bool between = std::any_of(chosen + 1, attended,
                                         [&](const auto& call) { return (call.second < kLayers) != (each < kLayers); });
        EXPECT_TRUE(between) << each;
    }
}

class HalvesAreRefused : public ::testing::Test {
protected:
    void SetUp() override { KVSCOPE_NEEDS_NOSA_TINY(); }

    struct Use {
        const MethodEntry& method;
        ParameterValues values;
        SelectionSpec spec;
        MethodUse use;
        Use(const char* name, Backend backend, const Settings& settings)
            : method(findMethod(name)), values(valuesOf(method, settings)),
              spec(method.make(values, test::firstLayersOfEmbedded()->config())),
              use{values, spec, test::firstLayersOfEmbedded()->config(), backend} {}
        static ParameterValues valuesOf(const MethodEntry& method, const Settings& settings) {
            ParameterValues values = resolveDefaults(method, test::firstLayersOfEmbedded()->config());
            values.set(method.parameters, "overlap", "halves");
            for (const auto& [key, value] : settings) values.set(method.parameters, key, value);
            return values;
        }
    };
    static std::string refusalOf(const char* method, Backend backend, const Settings& settings = {}) {
        const Use use(method, backend, settings);
        return test::refusalOf([&] { refuseUnable(use.method, use.use, 1000); }, "overlap");
    }
};

TEST_F(HalvesAreRefused, WhereNothingComputesBesideTransfers) {
    for (const char* method : {"nosa", "infllmv2"}) {
        EXPECT_THAT(refusalOf(method, Backend::Cpu), HasSubstr("overlap=halves is for a GPU"));
        EXPECT_EQ(refusalOf(method, Backend::Cuda), "");
    }
}

TEST_F(HalvesAreRefused, WhereTheMethodWorksOnAllSequencesAtOnce) {
    for (const char* method : {"nosa", "infllmv2"})
        EXPECT_THAT(refusalOf(method, Backend::Cuda, {{"ahead", "forecast"}}), HasSubstr("overlap=none"));
    EXPECT_THAT(refusalOf("infllmv2", Backend::Cuda, {{"lse", "compressed"}}), HasSubstr("overlap=none"));
}

TEST_F(HalvesAreRefused, ToOneSequence) {
    const auto& model = test::firstLayersOfEmbedded();
    const auto setUp = [&](std::size_t sequences, bool offload) {
        const Use use("nosa", Backend::Cuda, {});
        SessionOptions options;
        options.backend = Backend::Cuda;
        options.method = "nosa";
        options.offload = offload;
        const std::vector<std::vector<std::int32_t>> prompts(sequences, std::vector<std::int32_t>(300, 7));
        engineSetup(model, prompts, options, use.method, use.values, use.spec, RecordLevel::Counters);
    };
    EXPECT_THAT(test::refusalOf([&] { setUp(1, true); }, "overlap=halves"), HasSubstr("one sequence"));
    EXPECT_EQ(test::refusalOf([&] { setUp(2, true); }, "overlap"), "");
    EXPECT_EQ(test::refusalOf([&] { setUp(1, false); }, "overlap"), "") << "nothing travels, and nothing is halved";
}

TEST_F(HalvesAreRefused, ByServers) {
    for (const Backend backend : {Backend::Cpu, Backend::Cuda}) {
        const Use use("nosa", backend, {});
        const auto why = serve::whyNotWithKnobs(use.method, use.use, {});
        ASSERT_TRUE(why);
        EXPECT_THAT(oneLine(*why), HasSubstr("overlap=halves"));
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
