// Diffusion models of three families on tiny random checkpoints against tests/golden/denoise/runs.jsonl, which
// tools/make_denoise_reference.py computed in float64: every forward's ids, candidates, confidences and written
// positions, of SparseD the tiles, of Sparse-dLLM what it keeps, and of full attention over blocks how much queries,
// keys and values changed. No decision of the fixtures is within rounding, so that all of them must be the same.
#include "tests/core/diffusion_model.h"
#include "tests/support/packed_blocks.h"
#include "tests/support/places.h"

#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <map>
#include <nlohmann/json.hpp>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using Json = nlohmann::json;

constexpr double kConfidence = 2e-5, kDensity = 1e-6;

const std::string kFolder = test::source("tests/golden/denoise/");
constexpr const char* kNoFixtures = "left_out"; // the name of the run where a checkout leaves the fixtures out

/// The lines of the fixtures by the names of their runs, which every line begins with. They are parsed when their test
/// runs: every test's process asks for the names.
const std::map<std::string, std::string>& allRuns() {
    static const std::map<std::string, std::string> runs = [] {
        constexpr std::string_view kBeginning = "{\"name\":\"";
        std::map<std::string, std::string> byName;
        std::ifstream file(kFolder + "runs.jsonl");
        for (std::string line; std::getline(file, line);) {
            const std::size_t end = line.find('"', kBeginning.size());
            EXPECT_TRUE(line.starts_with(kBeginning) && end != std::string::npos) << line.substr(0, 40);
            byName[line.substr(kBeginning.size(), end - kBeginning.size())] = line;
        }
        return byName;
    }();
    return runs;
}

std::vector<std::string> names() {
    std::vector<std::string> all;
    for (const auto& [name, line] : allRuns()) all.push_back(name);
    if (!std::filesystem::exists(kFolder + "runs.jsonl")) all.push_back(kNoFixtures);
    return all;
}

SessionOptions optionsOf(const Json& run) {
    SessionOptions options;
    options.method = run.at("method");
    options.maxNewTokens = run.at("max_new_tokens");
    options.stopAtEos = false;
    options.threads = 1;
    for (const auto& [key, value] : run.at("options").items())
        options.settings.emplace_back(key, value.is_string() ? value.get<std::string>() : value.dump());
    if (run.at("family") == "sdar") options.settings.emplace_back("strategy", "low_confidence_static");
    return options;
}

void compareTokens(const Json& want, const StepRecord& got) {
    ASSERT_EQ(got.denoise.forwards.size(), 1u);
    const DenoiseForward& forward = got.denoise.forwards.front();
    EXPECT_EQ(forward.block, want.at("block"));
    EXPECT_EQ(forward.step, want.at("step"));
    std::vector<std::int32_t> ids, masked, written, tokens;
    std::vector<float> confidence;
    for (const DenoiseToken& token : got.denoise.tokens) {
        ids.push_back(token.id);
        if (token.written) written.push_back(token.position);
        if (token.candidate < 0) continue;
        masked.push_back(token.position);
        tokens.push_back(token.candidate);
        confidence.push_back(token.confidence);
    }
    EXPECT_EQ(ids, want.at("ids").get<std::vector<std::int32_t>>());
    EXPECT_EQ(masked, want.at("masked").get<std::vector<std::int32_t>>());
    EXPECT_EQ(tokens, want.at("tokens").get<std::vector<std::int32_t>>());
    EXPECT_EQ(written, want.at("written").get<std::vector<std::int32_t>>());
    const auto expected = want.at("confidence").get<std::vector<float>>();
    ASSERT_EQ(confidence.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(confidence[i], expected[i], kConfidence) << i;
}

/// The changes of queries, keys and values of a dense layer, which stand with its first KV head.
void compareChanges(const Json& want, const StepRecord& got, const DenoiseLayer& head) {
    const std::size_t block = got.denoise.forwards.front().tokens;
    const auto near = [&](const char* key, const std::vector<float>& all, std::int64_t first) {
        ASSERT_EQ(first >= 0, want.contains(key)) << key;
        if (first < 0) return;
        const auto expected = want.at(key).get<std::vector<double>>();
        ASSERT_EQ(expected.size(), block) << key;
        for (std::size_t i = 0; i < block; ++i)
            EXPECT_NEAR(double(all.at(std::size_t(first) + i)), expected[i], 1e-4 * expected[i] + 1e-8) << key << i;
    };
    near("delta", got.denoise.changes, head.firstChange);
    near("delta_keys", got.denoise.kvChanges, head.firstKvChange);
    near("delta_values", got.denoise.kvChanges, head.firstKvChange < 0 ? -1 : head.firstKvChange + std::int64_t(block));
}

void compareLayer(const Json& want, const StepRecord& got, int layer) {
    std::size_t selection = 0;
    for (const DenoiseLayer& head : got.denoise.layers) {
        const bool sparse = want.at("mode") == "sparse";
        if (head.layer == layer) {
            ASSERT_EQ(head.sparse, sparse);
            if (want.contains("delta_keys") && head.kvHead == 0) compareChanges(want, got, head);
            if (sparse) {
                const auto g = std::size_t(head.kvHead);
                const SelectionRecord& chosen = got.selections.at(selection);
                EXPECT_EQ(test::idsOf(got, chosen), want.at("pages").at(g).get<std::vector<std::int32_t>>());
                EXPECT_NEAR(head.density, want.at("density").at(g).get<double>(), kDensity);
                std::vector<float> rows;
                if (want.contains("rows")) // SparseD's
                    for (const Json& queryHead : want.at("rows").at(g))
                        for (const Json& row : queryHead) rows.push_back(row);
                ASSERT_EQ(std::size_t(head.rows), rows.size());
                for (std::size_t i = 0; i < rows.size(); ++i)
                    EXPECT_NEAR(got.denoise.rowDensities.at(std::size_t(head.firstRow) + i), rows[i], kDensity);
            }
        }
        selection += head.sparse;
    }
}

class DenoiseGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(DenoiseGolden, EveryForwardIsTheReference) {
    if (GetParam() == kNoFixtures) GTEST_SKIP() << "this checkout leaves out tests/golden/denoise/runs.jsonl";
    const Json run = Json::parse(allRuns().at(GetParam()));
    ASSERT_EQ(run.at("name"), GetParam());
    const std::shared_ptr<const Model> model = Model::load(kFolder + run.at("family").get<std::string>());
    const auto got = test::denoise(model, {run.at("prompt_ids").get<std::vector<std::int32_t>>()}, optionsOf(run));
    const Json& forwards = run.at("forwards");
    ASSERT_EQ(got.steps.size(), forwards.size() + 1);
    for (std::size_t i = 0; i < forwards.size(); ++i) {
        SCOPED_TRACE(i);
        compareTokens(forwards[i], got.steps[i + 1]);
        if (forwards[i].contains("layers"))
            for (int layer = 0; layer < 2; ++layer)
                compareLayer(forwards[i].at("layers").at(std::size_t(layer)), got.steps[i + 1], layer);
        if (HasFailure()) return;
    }
    EXPECT_EQ(got.generated.front(), run.at("generated_ids").get<std::vector<std::int32_t>>());
}

INSTANTIATE_TEST_SUITE_P(Runs, DenoiseGolden, ::testing::ValuesIn(names()));

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
