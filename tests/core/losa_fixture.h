// The fixtures of losa-tiny (tests/golden/losa/README.md) as the tests of both backends read them.
#pragma once

#include "core/session/decode_session.h"
#include "core/session/denoise_engine.h"
#include "tests/support/places.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace kvscope::test {

inline const std::string kLosaFixtures = source("tests/golden/losa/");

/// A checkout without the fixtures has one test, which says that it is skipped.
inline std::vector<std::string> losaRunNames() {
    std::vector<std::string> names;
    std::ifstream file(kLosaFixtures + "index.json");
    if (!file) return {"left_out"};
    for (const nlohmann::json& run : nlohmann::json::parse(file)) names.push_back(run.at("name"));
    return names;
}

/// Keeps what the tensors of a run are compared with, of its first two forwards: merged [layer, block, query heads,
/// channels], log sums [layer, block, query heads], and the logits of the first.
class KeptAttention final : public DenoiseObserver {
public:
    void attended(LayerId, RowId, std::span<const float> merged, std::span<const float> sums) override {
        if (forwards_ > 1) return;
        merged_[forwards_].insert(merged_[forwards_].end(), merged.begin(), merged.end());
        sums_[forwards_].insert(sums_[forwards_].end(), sums.begin(), sums.end());
    }
    void logits(RowId, std::span<const float> logits) override {
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

/// The largest difference as a share of the largest number of `want`. Expects that the engine has no prefix where the
/// fixture has none (a log sum of -1e30).
inline double errorOf(std::span<const float> got, std::span<const float> want) {
    EXPECT_EQ(got.size(), want.size());
    double difference = 0, largest = 0;
    for (std::size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
        if (want[i] <= -1e29f) {
            EXPECT_LT(got[i], -1e29f);
            continue;
        }
        EXPECT_TRUE(std::isfinite(got[i])) << i;
        difference = std::max(difference, std::abs(double(got[i]) - double(want[i])));
        largest = std::max(largest, std::abs(double(want[i])));
    }
    return largest > 0 ? difference / largest : difference;
}

/// The request of a fixture's run.
inline SessionOptions losaOptions(const nlohmann::json& run) {
    SessionOptions options;
    const nlohmann::json& method = run.at("method");
    options.method = method.at("name") == "dense" ? "full" : method.at("name").get<std::string>();
    options.maxNewTokens = run.at("max_new_tokens");
    for (const nlohmann::json& settings : {run.at("options"), method})
        for (const auto& [key, value] : settings.items())
            if (key != "name")
                options.settings.emplace_back(key, value.is_string() ? value.get<std::string>() : value.dump());
    return options;
}

/// A margin of a forward or layer; infinite where the fixture has none.
inline double marginOf(const nlohmann::json& of, const char* name) {
    return of.contains(name) && !of.at(name).is_null() ? of.at(name).get<double>() : INFINITY;
}

/// The places of the bits that are set.
inline std::vector<std::int32_t> bitsOf(std::uint64_t bits) {
    std::vector<std::int32_t> places;
    for (int i = 0; i < 64; ++i)
        if ((bits >> i & 1) != 0) places.push_back(i);
    return places;
}

} // namespace kvscope::test
