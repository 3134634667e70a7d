// Selection method x transfer schedule x cache: every combination either runs, and then gives the tokens that the
// method gives with everything resident, or is refused with the reason and what to do instead.
#include "tests/core/backend.h"

#include "base/error.h"
#include "core/cache/cache_policy.h"
#include "core/session/decode_session.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using Settings = std::vector<std::pair<std::string, std::string>>;

std::shared_ptr<const Model> model() {
    static const auto loaded = Model::load(kDefaultModel);
    return loaded;
}

std::vector<std::int32_t> prompt() {
    std::mt19937 random(51);
    std::vector<std::int32_t> ids{0};
    while (ids.size() < 110) ids.push_back(std::int32_t(2 + random() % 4094));
    return ids;
}

/// Of methods that never fetch, and of those that fetch tokens, values or nothing in whole blocks.
bool hasOwnTier(const MethodEntry& method) {
    return method.make(resolveDefaults(method, model()->config()), model()->config()).ownDeviceTier;
}

/// Small enough that a prompt of 110 tokens does not fit.
Settings smallSettings(const std::string& method) {
    const ParameterValues defaults = resolveDefaults(findMethod(method), model()->config());
    Settings settings;
    for (const auto& [key, value] :
         std::initializer_list<std::pair<const char*, const char*>>{{"block_size", "16"},
                                                                    {"kernel_size", "8"},
                                                                    {"kernel_stride", "4"},
                                                                    {"window_blocks", "1"},
                                                                    {"total_blocks", "4"},
                                                                    {"select_blocks", "1"},
                                                                    {"heavy_tokens", "20"},
                                                                    {"k_b", "3"},
                                                                    {"k_t", "20"},
                                                                    {"window_tokens", "8"},
                                                                    {"page_budget", "5"},
                                                                    {"local_tokens", "20"},
                                                                    {"init_tokens", "16"},
                                                                    {"topk_blocks", "1"},
                                                                    {"cached_blocks", "2"},
                                                                    {"budget_tokens", "32"},
                                                                    {"outlier_tokens", "8"},
                                                                    {"stabilizers", "8"},
                                                                    {"prefill_chunk", "40"},
                                                                    {"local_len", "4"},
                                                                    {"capacity_tokens", "40"},
                                                                    {"max_num_kv", "10"}})
        if (defaults.has(key)) settings.emplace_back(key, value);
    return settings;
}

struct Outcome {
    std::vector<std::int32_t> ids;
    std::string problem, hint; // of a refusal
};

Outcome attempt(const SessionOptions& options) {
    try {
        NullSink sink;
        DecodeSession session(model(), {prompt()}, options, sink);
        session.prefill();
        while (session.step())
            ;
        session.end(RunStatus::Finished);
        return {session.generated().front(), {}, {}};
    } catch (const Error& error) {
        EXPECT_TRUE(error.kind == ErrorKind::BadInput || error.kind == ErrorKind::Unsupported);
        return {{}, error.what(), error.hint};
    }
}

/// What a method says about when it fetches.
std::vector<Settings> schedules(const std::string& method) {
    if (method == "arkvale") return {{{"prefetch_layers", "0"}}, {{"prefetch_layers", "1"}}};
    if (method == "asynctls") return {{{"lag", "0"}}, {{"lag", "1"}}};
    if (method == "nosa" || method == "infllmv2") return {{{"ahead", "none"}}, {{"ahead", "forecast"}}};
    if (method == "sparda") return {{{"backbone", "nosa"}}, {{"backbone", "infllmv2"}}};
    return {{}};
}

class Combination : public ::testing::TestWithParam<std::string> {};

TEST_P(Combination, RunsLikeTheResidentOneOrSaysWhyNot) {
    if (test::onCuda()) GTEST_SKIP() << "methods with a selector of their own run on the CPU";
    const std::string& method = GetParam();
    const bool noBlocks = method == "full" || hasOwnTier(findMethod(method));
    std::vector<std::string> policies{""};
    for (const CachePolicy& policy : cachePolicies()) policies.push_back(policy.name);
    int ran = 0, refused = 0;
    for (const auto& schedule : schedules(method)) {
        SessionOptions options;
        options.method = method;
        options.settings = smallSettings(method);
        options.settings.insert(options.settings.end(), schedule.begin(), schedule.end());
        options.maxNewTokens = 4;
        options.stopAtEos = false;
        options.offload = false;
        const Outcome resident = attempt(options);
        ASSERT_TRUE(resident.problem.empty()) << resident.problem;
        options.offload = true;
        for (const std::string& policy : policies)
            for (const bool sized : {false, true}) {
                SCOPED_TRACE(method + " " + (schedule.empty() ? "" : schedule[0].second) + " policy '" + policy + "'" +
                             (sized ? " sized" : ""));
                options.cachePolicy = policy;
                options.deviceKvBlocks = sized ? std::optional<std::int64_t>(100) : std::nullopt;
                const Outcome outcome = attempt(options);
                if (noBlocks && (sized || policy.starts_with("lru"))) {
                    EXPECT_NE(outcome.problem.find(sized ? "--device-kv" : "--cache-policy"), std::string::npos)
                        << outcome.problem;
                    EXPECT_NE(outcome.problem.find(method), std::string::npos);
                    EXPECT_FALSE(outcome.hint.empty());
                    ++refused;
                } else if (policy == "lru-s" && method != "infllm") {
                    EXPECT_NE(outcome.problem.find("lru-s"), std::string::npos) << outcome.problem;
                    EXPECT_NE(outcome.problem.find(method), std::string::npos);
                    EXPECT_NE(outcome.hint.find("infllm"), std::string::npos);
                } else {
                    EXPECT_TRUE(outcome.problem.empty()) << outcome.problem;
                    EXPECT_EQ(outcome.ids, resident.ids);
                    ++ran;
                }
            }
    }
    EXPECT_GT(ran, 0);
    EXPECT_EQ(refused > 0, noBlocks);
}

std::vector<std::string> allMethods() {
    std::vector<std::string> names;
    for (const MethodEntry& method : methods())
        if (method.decodesTokens && method.hasIndexer == nullptr) names.push_back(method.name);
    return names;
}

INSTANTIATE_TEST_SUITE_P(Methods, Combination, ::testing::ValuesIn(allMethods()), [](const auto& parameter) {
    std::string name = parameter.param;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
});

TEST(Combinations, APoolInBytesIsRefusedLikewise) {
    SessionOptions options;
    options.method = "h2o";
    options.deviceKvBytes = 1 << 20;
    const Outcome outcome = attempt(options);
    EXPECT_NE(outcome.problem.find("--device-kv has no effect with method h2o"), std::string::npos) << outcome.problem;
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
