// Block diffusion on losa-tiny against fixtures that an independent implementation computed in float64
// (tests/golden/losa/README.md): every forward's ids, candidates, confidences, written positions, active sets, pages,
// densities and changes; some logits, attention outputs and log sums. A run is compared up to the first decision that
// differs where the fixture's margin is within rounding.
#include "tests/core/diffusion_model.h"
#include "tests/core/golden_file.h"
#include "tests/core/losa_fixture.h"
#include "tests/support/packed_blocks.h"

#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using Json = nlohmann::json;

constexpr double kOfLargest = 5e-4, kConfidence = 3e-4, kDensity = 1e-6;
constexpr double kLogitMargin = 1e-3, kChoiceMargin = 3e-4, kActiveMargin = 1e-5, kPageMargin = 1e-3;

const test::GoldenFile& tensors() {
    static const test::GoldenFile file(test::kLosaFixtures + "tensors.safetensors");
    return file;
}

bool within(const Json& of, const char* margin, double rounding) { return test::marginOf(of, margin) < rounding; }

class LosaGolden : public ::testing::TestWithParam<std::string> {
protected:
    /// @return whether the forwards after this one can be compared
    bool compare(const Json& want, const StepRecord& got) {
        const DenoiseStep& step = got.denoise;
        EXPECT_EQ(step.forwards.size(), 1u);
        const DenoiseForward& forward = step.forwards.front();
        EXPECT_EQ(forward.block, want.at("block"));
        EXPECT_EQ(forward.step, want.at("step"));
        EXPECT_EQ(forward.final, want.at("kind") == "final");
        std::vector<std::int32_t> ids, masked, written;
        for (const DenoiseToken& token : step.tokens) {
            ids.push_back(token.id);
            if (token.candidate >= 0) masked.push_back(token.position);
            if (token.written) written.push_back(token.position);
        }
        EXPECT_EQ(ids, want.at("ids").get<std::vector<std::int32_t>>());
        EXPECT_EQ(masked, want.at("masked").get<std::vector<int>>());
        return compareLayers(want.at("layers"), got) && (forward.final || compareTokens(want, step, written));
    }

    bool compareLayers(const Json& layers, const StepRecord& got) {
        const std::size_t heads = 2;
        EXPECT_EQ(got.denoise.layers.size(), layers.size() * heads);
        std::size_t selection = 0;
        for (std::size_t i = 0; i < layers.size(); ++i) {
            const Json& layer = layers[i];
            const bool sparse = layer.at("mode") == "sparse";
            for (std::size_t g = 0; g < heads; ++g) {
                const DenoiseLayer& row = got.denoise.layers[i * heads + g];
                EXPECT_EQ(row.sparse, sparse) << "layer " << i;
                compareChanges(layer, row, int(g), got.denoise.changes);
                if (!sparse) continue;
                const auto active = test::bitsOf(row.active);
                if (active != layer.at("active")[g].get<std::vector<int>>()) {
                    EXPECT_TRUE(within(layer, "margin_active", kActiveMargin)) << "layer " << i << layer.at("active");
                    return false;
                }
                const SelectionRecord& pages = got.selections[selection++];
                EXPECT_EQ(pages.layer, int(i));
                EXPECT_EQ(pages.kvHead, int(g));
                const auto chosen = test::idsOf(got, pages);
                if (chosen != layer.at("pages")[g].get<std::vector<int>>()) {
                    EXPECT_TRUE(within(layer, "margin_page", kPageMargin)) << "layer " << i;
                    return false;
                }
                EXPECT_NEAR(row.density, layer.at("density")[g].get<double>(), kDensity);
            }
        }
        return true;
    }

    static void compareChanges(const Json& layer, const DenoiseLayer& row, int head,
                               const std::vector<float>& changes) {
        const bool perHead = layer.contains("delta") && layer.at("delta")[0].is_array();
        EXPECT_EQ(row.firstChange >= 0, layer.contains("delta") && (perHead || head == 0));
        if (row.firstChange < 0) return;
        const Json& want = layer.at("delta");
        double largest = 0;
        const auto at = [&](std::size_t i) {
            return perHead ? want[i][std::size_t(head)].get<double>() : want[i].get<double>();
        };
        for (std::size_t i = 0; i < want.size(); ++i) largest = std::max(largest, at(i));
        for (std::size_t i = 0; i < want.size(); ++i)
            EXPECT_NEAR(changes[std::size_t(row.firstChange) + i], at(i), kOfLargest * largest) << "token " << i;
    }

    bool compareTokens(const Json& want, const DenoiseStep& step, const std::vector<std::int32_t>& written) {
        for (std::size_t i = 0; i < step.tokens.size(); ++i) // a candidate that is not written may be one of two alike
            EXPECT_NEAR(step.tokens[i].confidence, want.at("confidence")[i].get<double>(), kConfidence)
                << "token " << i;
        if (written != want.at("written").get<std::vector<int>>()) {
            EXPECT_TRUE(within(want, "margin_choice", kChoiceMargin)) << want.at("written");
            return false;
        }
        for (std::size_t i = 0; i < step.tokens.size(); ++i) {
            if (!step.tokens[i].written || step.tokens[i].candidate == want.at("tokens")[i]) continue;
            EXPECT_TRUE(within(want, "margin_token", kLogitMargin)) << "token " << i;
            return false;
        }
        return true;
    }
};

TEST_P(LosaGolden, EveryForwardIsThatOfTheReference) {
    KVSCOPE_NEEDS_LOSA_TINY();
    std::ifstream file(test::kLosaFixtures + GetParam() + ".json");
    if (!file) GTEST_SKIP() << "this checkout leaves out tests/golden/losa";
    const Json run = Json::parse(file);
    test::KeptAttention attention;
    SessionOptions options = test::losaOptions(run);
    options.denoiseObserver = &attention;
    const test::DenoisedRun got =
        test::denoise(test::losaTiny(), {run.at("prompt_ids").get<std::vector<std::int32_t>>()}, options);
    const Json& forwards = run.at("forwards");
    std::size_t compared = 0;
    for (bool same = true; same && compared < forwards.size(); ++compared) {
        ASSERT_LT(compared + 1, got.steps.size());
        SCOPED_TRACE("forward " + std::to_string(compared));
        same = compare(forwards[compared], got.steps[compared + 1]);
        if (HasFailure()) break;
    }
    RecordProperty("forwards_not_compared", int(forwards.size() - compared));
    if (compared == forwards.size() && !HasFailure()) {
        EXPECT_EQ(got.steps.size(), forwards.size() + 1);
        EXPECT_EQ(got.generated.front(), run.at("generated_ids").get<std::vector<std::int32_t>>());
        if (!run.at("mean_density").is_null()) {
            EXPECT_NEAR(got.summary.densityMean, run.at("mean_density").get<double>(), kDensity);
        }
    } else {
        std::cout << GetParam() << ": " << forwards.size() - compared << " of " << forwards.size()
                  << " forwards follow a decision within rounding and are not compared\n";
    }
    EXPECT_GE(compared, forwards.size() / 2);
    for (const int forward : {0, 1}) {
        const std::string name = GetParam() + "." + std::to_string(forward);
        if (tensors().has(name + ".logits")) {
            EXPECT_LT(test::errorOf(attention.logits(), tensors().floats(name + ".logits")), kOfLargest);
        }
        if (!tensors().has(name + ".merged")) continue;
        EXPECT_LT(test::errorOf(attention.merged(forward), tensors().floats(name + ".merged")), kOfLargest) << forward;
        EXPECT_LT(test::errorOf(attention.sums(forward), tensors().floats(name + ".prefix_lse")), kOfLargest)
            << forward;
    }
}

INSTANTIATE_TEST_SUITE_P(Runs, LosaGolden, ::testing::ValuesIn(test::losaRunNames()),
                         [](const auto& run) { return run.param; });

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
