// Every method on every architecture (MHA, GQA, MQA, latent attention, experts, windows): it runs, or a sentence says
// why it cannot, the same one that the model page shows.
#include "base/error.h"
#include "core/session/decode_session.h"
#include "core/session/model_summary.h"
#include "tests/core/golden_file.h"
#include "tests/support/places.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;

const fs::path kFamilies = test::source("tests/golden/families");

std::vector<std::string> families() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(kFamilies)) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
}

/// Budgets of a few blocks of 16 tokens, under whatever names the method has for them.
SessionOptions smallBudget(const MethodEntry& method, const ModelConfig& config) {
    SessionOptions options;
    options.method = method.name;
    options.maxNewTokens = 24;
    options.stopAtEos = false;
    const auto defaults = resolveDefaults(method, config);
    for (const auto& [key, value] : std::vector<std::pair<const char*, const char*>>{
             {"block_size", "16"},    {"kernel_size", "8"},    {"kernel_stride", "4"},    {"sink_blocks", "1"},
             {"window_blocks", "1"},  {"total_blocks", "5"},   {"select_blocks", "1"},    {"skip_layers", "0"},
             {"dense_len", "0"},      {"dense_layers", "1"},   {"heavy_tokens", "30"},    {"k_b", "5"},
             {"k_t", "30"},           {"window_tokens", "8"},  {"capacity_tokens", "60"}, {"page_budget", "6"},
             {"local_tokens", "32"},  {"init_tokens", "16"},   {"topk_blocks", "2"},      {"cached_blocks", "4"},
             {"budget_tokens", "40"}, {"outlier_tokens", "8"}, {"warmup_tokens", "64"},   {"index_topk", "40"}})
        if (defaults.has(key)) options.settings.emplace_back(key, value);
    return options;
}

struct Outcome {
    std::vector<std::vector<float>> logits;
    std::int64_t visits = 0; // blocks that selections asked for
};

Outcome decode(const std::shared_ptr<const Model>& model, const std::vector<std::int32_t>& prompt,
               const SessionOptions& options) {
    CollectingSink sink;
    DecodeSession session(model, {prompt}, options, sink);
    Outcome out;
    session.prefill();
    do {
        if (const float* logits = session.logits(0)) out.logits.emplace_back(logits, logits + model->config().vocab);
    } while (session.step());
    out.visits = session.summary().hits + session.summary().misses;
    return out;
}

class MethodsOnFamily : public ::testing::TestWithParam<std::string> {};

TEST_P(MethodsOnFamily, RunOrSayWhyNot) {
    const std::string folder = (kFamilies / GetParam()).string();
    const auto model = Model::load(folder);
    const auto prompt = test::GoldenFile(folder + "/reference.safetensors").ints("prompt_ids");
    int ran = 0;
    for (const MethodFit& fit : summarize(*model).methods) {
        SCOPED_TRACE(fit.name);
        SessionOptions options = smallBudget(findMethod(fit.name), model->config());
        if (!fit.applies) {
            EXPECT_FALSE(fit.remark.empty());
            try {
                (void)decode(model, prompt, options);
                ADD_FAILURE() << "it runs, though the model page says: " << fit.remark;
            } catch (const Error& error) {
                EXPECT_THAT(oneLine(error), ::testing::HasSubstr(fit.remark));
            }
            continue;
        }
        ++ran;
        const Outcome offloaded = decode(model, prompt, options);
        ASSERT_EQ(offloaded.logits.size(), 24u);
        for (const auto& logits : offloaded.logits)
            for (const float value : logits) ASSERT_TRUE(std::isfinite(value));
        if (fit.name != "full") {
            EXPECT_GT(offloaded.visits, 0) << "nothing was selected: this run shows nothing";
        }
        options.offload = false;
        EXPECT_EQ(decode(model, prompt, options).logits, offloaded.logits) << "resident, the logits are others";
    }
    EXPECT_GE(ran, 10) << "most methods need nothing that an architecture could lack";
}

INSTANTIATE_TEST_SUITE_P(Architectures, MethodsOnFamily, ::testing::ValuesIn(families()), [](const auto& tested) {
    std::string name = tested.param;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
});

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
