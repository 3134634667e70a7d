// Block diffusion on losa-tiny against fixtures that an independent implementation computed in float64
// (tests/golden/losa/README.md): every forward's ids, candidates, confidences, written positions, active sets, pages,
// densities and changes; some logits, attention outputs and log sums. A run is compared up to the first decision that
// differs where the fixture's margin is within rounding.
#include "core/session/denoise_engine.h"
#include "tests/core/diffusion_model.h"
#include "tests/core/golden_file.h"
#include "tests/support/places.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace kvscope {
namespace {

using Json = nlohmann::json;

constexpr double kOfLargest = 5e-4, kConfidence = 3e-4, kDensity = 1e-6;
constexpr double kLogitMargin = 1e-3, kChoiceMargin = 3e-4, kActiveMargin = 1e-5, kPageMargin = 1e-3;

const std::string kFolder = test::source("tests/golden/losa/");

/// A checkout without the fixtures has one test, which says that it is skipped.
std::vector<std::string> runNames() {
    std::vector<std::string> names;
    std::ifstream file(kFolder + "index.json");
    if (!file) return {"left_out"};
    for (const Json& run : Json::parse(file)) names.push_back(run.at("name"));
    return names;
}

const test::GoldenFile& tensors() {
    static const test::GoldenFile file(kFolder + "tensors.safetensors");
    return file;
}

/// Keeps what the tensors of a run are compared with: of its first two forwards.
class Attention final : public DenoiseObserver {
public:
    void attended(int, int, std::span<const float> merged, std::span<const float> sums) override {
        if (forwards_ > 1) return;
        merged_[forwards_].insert(merged_[forwards_].end(), merged.begin(), merged.end());
        sums_[forwards_].insert(sums_[forwards_].end(), sums.begin(), sums.end());
    }
    void logits(int, std::span<const float> logits) override {
        if (forwards_ == 0) logits_.assign(logits.begin(), logits.end());
        ++forwards_;
    }
    const std::vector<float>& merged(int forward) const { return merged_[forward]; }
    const std::vector<float>& sums(int forward) const { return sums_[forward]; }
    const std::vector<float>& logits() const { return logits_; }

private:
    int forwards_ = 0;
    std::vector<float> merged_[2], sums_[2], logits_;
};

/// Largest difference as a share of the largest number; where the fixture has no prefix, so has the engine.
double errorOf(std::span<const float> got, const std::vector<float>& want) {
    EXPECT_EQ(got.size(), want.size());
    double difference = 0, largest = 0;
    for (std::size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
        if (want[i] <= -1e29f) {
            EXPECT_LT(got[i], -1e29f);
            continue;
        }
        difference = std::max(difference, std::abs(double(got[i]) - double(want[i])));
        largest = std::max(largest, std::abs(double(want[i])));
    }
    return largest > 0 ? difference / largest : difference;
}

bool within(const Json& forward, const char* margin, double rounding) {
    return forward.contains(margin) && !forward.at(margin).is_null() && forward.at(margin).get<double>() < rounding;
}

SessionOptions optionsOf(const Json& run, DenoiseObserver* observer) {
    SessionOptions options;
    const Json& method = run.at("method");
    options.method = method.at("name") == "dense" ? "full" : method.at("name").get<std::string>();
    options.maxNewTokens = run.at("max_new_tokens");
    options.denoiseObserver = observer;
    const auto set = [&](const Json& settings) {
        for (const auto& [key, value] : settings.items())
            if (key != "name")
                options.settings.emplace_back(key, value.is_string() ? value.get<std::string>() : value.dump());
    };
    set(run.at("options"));
    set(method);
    return options;
}

std::vector<std::int32_t> bitsOf(std::uint64_t bits) {
    std::vector<std::int32_t> places;
    for (int i = 0; i < 64; ++i)
        if ((bits >> i & 1) != 0) places.push_back(i);
    return places;
}

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
                const auto active = bitsOf(row.active);
                if (active != layer.at("active")[g].get<std::vector<int>>()) {
                    EXPECT_TRUE(within(layer, "margin_active", kActiveMargin)) << "layer " << i << layer.at("active");
                    return false;
                }
                const SelectionRecord& pages = got.selections[selection++];
                EXPECT_EQ(pages.layer, int(i));
                EXPECT_EQ(pages.kvHead, int(g));
                const std::vector<std::int32_t> chosen(got.blocks.begin() + pages.first,
                                                       got.blocks.begin() + pages.first + pages.selected);
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
    std::ifstream file(kFolder + GetParam() + ".json");
    if (!file) GTEST_SKIP() << "this checkout leaves out tests/golden/losa";
    const Json run = Json::parse(file);
    Attention attention;
    const test::DenoisedRun got = test::denoise(
        test::losaTiny(), {run.at("prompt_ids").get<std::vector<std::int32_t>>()}, optionsOf(run, &attention));
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
            EXPECT_LT(errorOf(attention.logits(), tensors().floats(name + ".logits")), kOfLargest);
        }
        if (!tensors().has(name + ".merged")) continue;
        EXPECT_LT(errorOf(attention.merged(forward), tensors().floats(name + ".merged")), kOfLargest) << forward;
        EXPECT_LT(errorOf(attention.sums(forward), tensors().floats(name + ".prefix_lse")), kOfLargest) << forward;
    }
}

INSTANTIATE_TEST_SUITE_P(Runs, LosaGolden, ::testing::ValuesIn(runNames()), [](const auto& run) { return run.param; });

} // namespace
} // namespace kvscope
