// Rotary tables against the formulas of their papers, in float64 where the library rounds to float32.
#include "core/model/model_config.h"

#include <cmath>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using Json = nlohmann::json;

ModelConfig configWith(const Json& scaling, int maxPositions = 4096) {
    Json json = {{"architectures", {"LlamaForCausalLM"}},
                 {"model_type", "llama"},
                 {"num_hidden_layers", 2},
                 {"hidden_size", 64},
                 {"num_attention_heads", 4},
                 {"intermediate_size", 64},
                 {"vocab_size", 100},
                 {"max_position_embeddings", maxPositions},
                 {"rms_norm_eps", 1e-5},
                 {"rope_theta", 10000.0}};
    if (!scaling.is_null()) json["rope_scaling"] = scaling;
    return ModelConfig::parse(json.dump(), "config.json");
}

double plain(int i, double theta = 10000) { return std::pow(theta, -2.0 * i / 16); }

TEST(Rope, PlainAndLinearFrequencies) {
    const auto none = configWith(nullptr).rope.frequencies(100);
    const auto linear = configWith({{"type", "linear"}, {"factor", 4}}).rope.frequencies(100);
    ASSERT_EQ(none.size(), 8u);
    for (int i = 0; i < 8; ++i) {
        EXPECT_NEAR(none[std::size_t(i)], plain(i), 1e-7 * plain(i));
        EXPECT_NEAR(linear[std::size_t(i)], plain(i) / 4, 1e-7 * plain(i));
    }
}

TEST(Rope, DynamicGrowsItsBaseBeyondTheContext) {
    const RopeConfig rope = configWith({{"rope_type", "dynamic"}, {"factor", 2}}, 1000).rope;
    EXPECT_EQ(rope.frequencies(10), rope.frequencies(1000));
    const auto grown = rope.frequencies(3000);
    const double theta = 10000 * std::pow(2.0 * 3000 / 1000 - 1, 16.0 / 14);
    for (int i = 0; i < 8; ++i) EXPECT_NEAR(grown[std::size_t(i)], plain(i, theta), 1e-5 * plain(i, theta));
}

TEST(Rope, Llama3LeavesShortWavesAndStretchesLongOnes) {
    const RopeConfig rope = configWith({{"rope_type", "llama3"},
                                        {"factor", 8},
                                        {"low_freq_factor", 1},
                                        {"high_freq_factor", 4},
                                        {"original_max_position_embeddings", 512}})
                                .rope;
    const auto got = rope.frequencies(100);
    int untouched = 0, stretched = 0;
    for (int i = 0; i < 8; ++i) {
        const double wave = 2 * M_PI / plain(i);
        double want = plain(i);
        if (wave > 512)
            want /= 8, ++stretched;
        else if (wave < 128)
            ++untouched;
        else
            want *= (1 - (512 / wave - 1) / 3) / 8 + (512 / wave - 1) / 3;
        EXPECT_NEAR(got[std::size_t(i)], want, 1e-6 * want) << i;
    }
    EXPECT_GT(untouched, 0);
    EXPECT_GT(stretched, 0);
}

TEST(Rope, LongRopeTakesTheListOfTheActualLength) {
    const std::vector<double> brief{1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7}, lengthy{1, 2, 3, 4, 5, 6, 7, 8};
    const RopeConfig rope = configWith({{"rope_type", "longrope"},
                                        {"short_factor", brief},
                                        {"long_factor", lengthy},
                                        {"original_max_position_embeddings", 1024}})
                                .rope;
    EXPECT_NEAR(rope.attentionFactor, std::sqrt(1 + std::log(4.0) / std::log(1024.0)), 1e-12);
    for (std::size_t i = 0; i < 8; ++i) {
        EXPECT_NEAR(rope.frequencies(1024)[i], plain(int(i)) / brief[i], 1e-6);
        EXPECT_NEAR(rope.frequencies(1025)[i], plain(int(i)) / lengthy[i], 1e-6);
    }
    // A prompt that fits is rotated for its own length, a token beyond it for the length at its turn.
    const int prompts[] = {1000, 10}, most[] = {1030, 20};
    const RopeTables tables(rope, prompts, most);
    EXPECT_EQ(tables.rows(), 1050);
    EXPECT_EQ(tables.first(1), 1030);
    const auto angleOf = [&](int row, int i) {
        return std::atan2(tables.sin()[row * 8 + i], tables.cos()[row * 8 + i]);
    };
    const auto wrapped = [](double angle) { return std::remainder(angle, 2 * M_PI); };
    EXPECT_NEAR(angleOf(999, 4), wrapped(999 * plain(4) / brief[4]), 1e-5);
    EXPECT_NEAR(angleOf(1023, 4), wrapped(1023 * plain(4) / brief[4]), 1e-5);
    EXPECT_NEAR(angleOf(1024, 4), wrapped(1024 * plain(4) / lengthy[4]), 1e-5);
    EXPECT_NEAR(angleOf(1030 + 15, 4), wrapped(15 * plain(4) / brief[4]), 1e-5);
    EXPECT_NEAR(std::hypot(tables.sin()[8], tables.cos()[8]), rope.attentionFactor, 1e-6);
}

TEST(Rope, YarnRampsBetweenTheTwo) {
    const RopeConfig rope =
        configWith({{"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 1024}}).rope;
    EXPECT_NEAR(rope.attentionFactor, 0.1 * std::log(4.0) + 1, 1e-12); // YaRN, section 3.4
    const auto got = rope.frequencies(5);
    const auto channel = [](double turns) {
        return 16 * std::log(1024 / (turns * 2 * M_PI)) / (2 * std::log(10000.0));
    };
    const double low = std::floor(channel(32)), high = std::ceil(channel(1));
    for (int i = 0; i < 8; ++i) {
        const double ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
        const double want = plain(i) / 4 * ramp + plain(i) * (1 - ramp);
        EXPECT_NEAR(got[std::size_t(i)], want, 1e-6 * plain(i)) << i;
    }
}

TEST(Rope, TheContextFollowsTheScaling) {
    EXPECT_EQ(configWith(nullptr).maxPositions, 4096);
    EXPECT_EQ(configWith({{"rope_type", "dynamic"}, {"factor", 2}}).maxPositions, 8192);
    EXPECT_EQ(
        configWith({{"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 2048}}).maxPositions,
        8192);
    EXPECT_EQ(
        configWith({{"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 512}}).maxPositions,
        4096);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
