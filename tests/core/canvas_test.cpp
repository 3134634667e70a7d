// Masked-diffusion models: what their configurations must say, the loops of LLaDA and Dream, and what is refused.
#include "core/diffusion/canvas_choice.h"
#include "core/diffusion/canvas_run.h"
#include "core/diffusion/changed_values.h"
#include "core/diffusion/computed_tokens.h"
#include "core/diffusion/kept_tokens.h"
#include "core/diffusion/tile_mask.h"
#include "core/engine/cpu/cpu_canvas_features.h"
#include "core/session/model_summary.h"
#include "tests/core/diffusion_model.h"
#include "tests/support/places.h"
#include "tests/support/refusal.h"

#include <array>
#include <bit>
#include <cmath>
#include <fmt/format.h>
#include <fstream>
#include <gmock/gmock.h>
#include <limits>
#include <map>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::denoise;
using test::DenoisedRun;
using test::randomSdar;
using test::somePrompt;
using ::testing::HasSubstr;

constexpr int kMask = 60;

nlohmann::json configOf(const std::string& family) {
    return nlohmann::json::parse(std::ifstream(test::source("tests/golden/denoise/" + family + "/config.json")));
}

ModelConfig parse(const nlohmann::json& config) { return ModelConfig::parse(config.dump(), "config.json"); }

SessionOptions optionsOf(int newTokens, std::vector<std::pair<std::string, std::string>> settings = {}) {
    SessionOptions options;
    options.method = "full";
    options.maxNewTokens = newTokens;
    options.stopAtEos = false;
    options.settings = std::move(settings);
    options.threads = 1;
    return options;
}

std::vector<std::int32_t> prompt(int tokens, unsigned seed = 3) { return somePrompt(tokens, 2, kMask, seed); }

std::vector<std::int32_t> writesOf(const DenoisedRun& run) {
    std::vector<std::int32_t> counts;
    for (std::size_t i = 1; i < run.steps.size(); ++i) counts.push_back(run.steps[i].denoise.forwards.front().written);
    return counts;
}

TEST(Canvas, ConfigurationsAreReadAndAMissingKeyIsAnError) {
    const ModelConfig llada = parse(configOf("llada")), dream = parse(configOf("dream"));
    EXPECT_EQ(llada.family, "llada");
    EXPECT_TRUE(llada.diffusion && llada.diffusion->canvas && !llada.diffusion->shifted);
    EXPECT_EQ(llada.diffusion->maskId, kMask);
    EXPECT_EQ(llada.attentionBias, Bias::None);
    EXPECT_EQ(dream.family, "dream");
    EXPECT_TRUE(dream.diffusion && dream.diffusion->canvas && dream.diffusion->shifted);
    EXPECT_EQ(dream.attentionBias, Bias::All);
    const auto refuses = [](const std::string& family, const char* key) {
        auto config = configOf(family);
        config.erase(key);
        EXPECT_NE(test::refusalOf([&] { parse(config); }, ""), "") << family << key;
    };
    for (const char* key : {"d_model", "n_layers", "n_heads", "n_kv_heads", "mlp_hidden_size", "vocab_size",
                            "embedding_size", "rms_norm_eps", "rope", "rope_theta", "activation_type", "block_type",
                            "layer_norm_type", "weight_tying", "max_sequence_length", "mask_token_id"})
        refuses("llada", key);
    for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
                            "intermediate_size", "vocab_size", "rms_norm_eps", "rope_theta", "hidden_act",
                            "tie_word_embeddings", "max_position_embeddings", "mask_token_id"})
        refuses("dream", key);
}

TEST(Canvas, OtherFormsOfTheClassesAreRefused) {
    const auto refuses = [](const char* family, const char* key, const nlohmann::json& value) {
        auto config = configOf(family);
        config[key] = value;
        EXPECT_NE(test::refusalOf([&] { parse(config); }, key), "") << key;
    };
    for (const char* key : {"alibi", "input_emb_norm", "scale_logits", "attention_layer_norm", "include_bias"})
        refuses("llada", key, true);
    refuses("llada", "rope", false);
    refuses("llada", "block_type", "sequential");
    refuses("llada", "layer_norm_type", "default");
    refuses("llada", "embedding_size", 32);
    refuses("llada", "mask_token_id", 64);
    refuses("dream", "use_sliding_window", true);
    refuses("dream", "mask_token_id", nullptr);
}

TEST(Canvas, QuotasOfABlockAddUpToItsMasks) {
    for (int block = 1; block <= 64; ++block)
        for (int steps = 1; steps <= 64; ++steps) {
            CanvasOptions options;
            options.length = options.block = block, options.steps = steps;
            int left = block, forwards = 0;
            for (; left > 0; ++forwards) left -= options.quota(forwards, block, left);
            EXPECT_EQ(left, 0);
            EXPECT_EQ(forwards, std::min(block, steps));
        }
}

TEST(Canvas, DreamWritesEverythingAtOneStepAndAtMoreStepsThanMasks) {
    const auto model = randomSdar(configOf("dream"));
    for (const char* alg : {"origin", "maskgit_plus", "topk_margin", "entropy"})
        for (const char* steps : {"1", "5", "40"}) {
            const auto run = denoise(model, {prompt(9)}, optionsOf(12, {{"alg", alg}, {"steps", steps}}));
            EXPECT_EQ(run.generated.front().size(), 12u) << alg << steps;
            const int forwards = int(run.steps.size()) - 1;
            EXPECT_LE(forwards, std::stoi(steps));
            if (std::string(alg) != "origin") {
                EXPECT_EQ(forwards, std::stoi(steps)) << "some write nothing";
            }
        }
}

TEST(Canvas, MaskIdsOfAPromptStayAndNoneIsWritten) {
    auto ids = prompt(11);
    ids[3] = ids[10] = kMask;
    for (const char* family : {"llada", "dream"}) {
        const auto run = denoise(randomSdar(configOf(family)), {ids}, optionsOf(16));
        EXPECT_EQ(run.generated.front().size(), 16u);
        for (const std::int32_t id : run.generated.front()) EXPECT_LT(id, kMask);
        for (std::size_t i = 1; i < run.steps.size(); ++i)
            for (const DenoiseToken& token : run.steps[i].denoise.tokens) EXPECT_GE(token.position, 11);
    }
}

TEST(Canvas, OneTokenIsGenerated) {
    for (const char* family : {"llada", "dream"})
        EXPECT_EQ(denoise(randomSdar(configOf(family)), {prompt(1)}, optionsOf(1)).generated.front().size(), 1u);
}

TEST(Canvas, SequencesDoNotSeeEachOther) {
    for (const char* family : {"llada", "dream"}) {
        const auto model = randomSdar(configOf(family));
        const auto both = denoise(model, {prompt(70), prompt(5, 8)}, optionsOf(8));
        EXPECT_EQ(both.generated[0], denoise(model, {prompt(70)}, optionsOf(8)).generated[0]) << family;
    }
}

TEST(Canvas, ACacheThatIsRefreshedEveryStepChangesNothing) {
    const auto model = randomSdar(configOf("llada"));
    const auto plain = denoise(model, {prompt(40)}, optionsOf(16, {{"block_length", "4"}, {"steps", "4"}}));
    for (const char* cache : {"prefix", "dual"}) { // one step a block, which refreshes
        const auto cached =
            denoise(model, {prompt(40)}, optionsOf(16, {{"block_length", "4"}, {"steps", "4"}, {"cache", cache}}));
        EXPECT_EQ(cached.generated, plain.generated);
    }
    // All that follows the prompt is computed anew, and with one layer nothing before the block depends on it.
    auto shallow = configOf("llada");
    shallow["n_layers"] = 1;
    const auto one = randomSdar(shallow);
    EXPECT_EQ(denoise(one, {prompt(40)}, optionsOf(16, {{"cache", "prefix"}})).generated,
              denoise(one, {prompt(40)}, optionsOf(16)).generated);
}

SessionOptions evicting(int newTokens, std::vector<std::pair<std::string, std::string>> settings) {
    auto options = optionsOf(newTokens, std::move(settings));
    options.method = "sparse-dllm";
    return options;
}

TEST(Canvas, ALayerIsDoneForAllSequencesBeforeTheNext) {
    const auto run = denoise(randomSdar(configOf("llada")), {prompt(60), prompt(30, 4), prompt(45, 5)}, optionsOf(8));
    for (std::size_t i = 1; i < run.steps.size(); ++i) {
        const auto& layers = run.steps[i].layers;
        for (std::size_t layer = 0; layer + 1 < layers.size(); ++layer) {
            std::int64_t end = layers[layer].startNs;
            for (const std::int64_t ns : layers[layer].stageNs) end += ns;
            EXPECT_LE(end, layers[layer + 1].startNs);
        }
    }
    EXPECT_TRUE(std::isnan(run.summary.localityMean)) << "nothing is chosen";
}

TEST(Canvas, KeptTokensAreTheBestOfTheirNeighbourhoods) {
    const std::vector<double> importance{1, 5, 2, 0, 0, 4, 0};
    EXPECT_EQ(keptTokens(importance, 1, 2), (std::vector<std::int32_t>{1, 5}));
    EXPECT_EQ(keptTokens(importance, 3, 3), (std::vector<std::int32_t>{0, 1, 2})) << "all three have 5";
    EXPECT_EQ(keptTokens(importance, 3, 4), (std::vector<std::int32_t>{0, 1, 2, 4})) << "equal ones: the lower";
    EXPECT_EQ(keptTokens(importance, 255, 2), (std::vector<std::int32_t>{0, 1}));
    EXPECT_TRUE(keptTokens(importance, 3, 0).empty());
    EXPECT_EQ(keptTokens(importance, 3, 7).size(), 7u);
}

TEST(Canvas, KeepingEverythingIsTheDualCacheRefreshedOnceMore) {
    // With two forwards a block nothing is evicted before the block is written.
    const auto model = randomSdar(configOf("llada"));
    const auto plain = denoise(model, {prompt(40)}, optionsOf(16, {{"block_length", "8"}, {"steps", "4"}}));
    const auto two = denoise(model, {prompt(40)}, evicting(16, {{"block_length", "8"}, {"steps", "4"}}));
    EXPECT_EQ(two.generated, plain.generated);
    // A single layer sees the same keys and values of the others in every forward.
    auto shallow = configOf("llada");
    shallow["n_layers"] = 1;
    const auto one = randomSdar(shallow);
    EXPECT_EQ(denoise(one, {prompt(40)}, evicting(16, {{"block_length", "16"}, {"ratio", "1"}})).generated,
              denoise(one, {prompt(40)}, optionsOf(16)).generated);
}

TEST(Canvas, EvictionIsRecordedAsWhatALayerKept) {
    const auto model = randomSdar(configOf("llada"));
    const auto run =
        denoise(model, {prompt(40), prompt(9, 5)}, evicting(16, {{"block_length", "8"}, {"ratio", "0.3"}}));
    EXPECT_EQ(run.info.blockSize, 1);
    EXPECT_EQ(run.info.budgetBlocks, 14) << "a share of 0.3 of 48 tokens";
    int sparse = 0;
    for (std::size_t i = 1; i < run.steps.size(); ++i) {
        const StepRecord& step = run.steps[i];
        std::size_t selection = 0;
        for (const DenoiseLayer& layer : step.denoise.layers) {
            const auto forward = std::find_if(step.denoise.forwards.begin(), step.denoise.forwards.end(),
                                              [&](const auto& f) { return f.sequence == layer.sequence; });
            ASSERT_NE(forward, step.denoise.forwards.end());
            ASSERT_EQ(layer.sparse, forward->step >= 2);
            if (!layer.sparse) continue;
            const int tokens = layer.sequence == 0 ? 40 : 9, others = tokens + 8, begin = tokens + forward->block * 8;
            const SelectionRecord& chosen = step.selections.at(selection++);
            EXPECT_EQ(chosen.selected, int(others * 0.3));
            EXPECT_EQ(chosen.kept, forward->step == 2 ? -1 : chosen.selected);
            EXPECT_NEAR(layer.density, double(chosen.selected) / others, 1e-6);
            for (int k = 0; k < chosen.selected; ++k) {
                const std::int32_t position = step.blocks.at(chosen.first + std::size_t(k)).id();
                EXPECT_TRUE(position < begin || position >= begin + 8) << "the block itself is not chosen";
                EXPECT_LT(position, tokens + 16);
            }
            ++sparse;
        }
        EXPECT_EQ(selection, step.selections.size());
    }
    EXPECT_GT(sparse, 50);
    EXPECT_GT(run.summary.densityMean, 0.2);
}

TEST(Canvas, SequencesKeepTheirOwnTokens) {
    const auto model = randomSdar(configOf("llada"));
    const auto options = evicting(16, {{"block_length", "8"}, {"ratio", "0.25"}});
    const auto both = denoise(model, {prompt(70), prompt(5, 8)}, options);
    EXPECT_EQ(both.generated[0], denoise(model, {prompt(70)}, options).generated[0]);
    EXPECT_EQ(both.generated[1], denoise(model, {prompt(5, 8)}, options).generated[0]);
}

TEST(Canvas, OnDreamsModelsABlockBeginsWithItsFirstToken) {
    const auto model = randomSdar(configOf("dream"));
    const auto run = denoise(model, {prompt(40)}, evicting(24, {{"block_length", "8"}, {"steps", "12"}}));
    // Quotas of 2 tokens, of which the first forward writes 1: a fifth forward writes what is left.
    EXPECT_EQ(writesOf(run), (std::vector<std::int32_t>{1, 2, 2, 2, 1, 1, 2, 2, 2, 1, 1, 2, 2, 2, 1}));
    for (std::size_t i = 1; i < run.steps.size(); ++i)
        for (const DenoiseToken& token : run.steps[i].denoise.tokens)
            if (const DenoiseForward& forward = run.steps[i].denoise.forwards.front(); forward.step == 0) {
                EXPECT_EQ(token.written, token.position == 40 + forward.block * 8);
            }
    EXPECT_EQ(run.generated.front().size(), 24u);
    const auto options = evicting(16, {{"block_length", "8"}, {"ratio", "0.25"}});
    const auto both = denoise(model, {prompt(70), prompt(5, 8)}, options);
    EXPECT_EQ(both.generated[0], denoise(model, {prompt(70)}, options).generated[0]);
    EXPECT_EQ(both.generated[1], denoise(model, {prompt(5, 8)}, options).generated[0]);
}

TEST(Canvas, DreamsCachesAreWhatTheyAreWhereTheyMustBeExact) {
    const auto model = randomSdar(configOf("dream"));
    const std::vector<std::pair<std::string, std::string>> best{{"alg", "maskgit_plus"}, {"parallel", "threshold"}};
    const auto with = [&](const char* cache, const char* block, const char* threshold) {
        auto settings = best;
        settings.insert(settings.end(), {{"cache", cache}, {"threshold", threshold}});
        if (std::string(block) != "0") settings.emplace_back("block_length", block);
        return denoise(model, {prompt(40), prompt(5, 8)}, optionsOf(16, settings));
    };
    // The canvas in one block: nothing follows the block.
    EXPECT_EQ(with("prefix", "0", "0.6").generated, with("dual", "0", "0.6").generated);
    // Blocks of one token: every forward computes everything and writes the leftmost mask.
    EXPECT_EQ(with("prefix", "1", "0.6").generated, with("dual", "1", "0.6").generated);
    EXPECT_EQ(writesOf(denoise(model, {prompt(40)}, optionsOf(6, {{"block_length", "1"}, {"cache", "dual"}}))),
              std::vector<std::int32_t>(6, 1));
    // At most two forwards a block where every confidence is enough, as many as tokens where none is.
    const auto writes = [&](const char* threshold) {
        auto settings = best;
        settings.insert(settings.end(), {{"cache", "dual"}, {"block_length", "8"}, {"threshold", threshold}});
        return writesOf(denoise(model, {prompt(40)}, optionsOf(16, settings)));
    };
    EXPECT_EQ(writes("0"), (std::vector<std::int32_t>{1, 7, 1, 7}));
    EXPECT_EQ(writes("1.1"), std::vector<std::int32_t>(16, 1));
    // With Dream's own quotas a block ends with its share of the steps.
    EXPECT_EQ(denoise(model, {prompt(40)},
                      optionsOf(16, {{"cache", "dual"}, {"block_length", "8"}, {"steps", "8"}, {"alg", "entropy"}}))
                  .steps.size(),
              9u);
    const auto options = optionsOf(16, {{"cache", "prefix"}, {"block_length", "8"}, {"alg", "entropy"}});
    const auto both = denoise(model, {prompt(70), prompt(5, 8)}, options);
    EXPECT_EQ(both.generated[0], denoise(model, {prompt(70)}, options).generated[0]);
    EXPECT_EQ(both.generated[1], denoise(model, {prompt(5, 8)}, options).generated[0]);
}

SessionOptions tiled(int newTokens, std::vector<std::pair<std::string, std::string>> settings) {
    auto options = optionsOf(newTokens, std::move(settings));
    options.method = "sparsed";
    return options;
}

TEST(Canvas, MasksOfAllTilesAreFullAttention) {
    for (const char* family : {"llada", "dream"}) {
        const auto model = randomSdar(configOf(family));
        const bool blocks = std::string(family) == "llada";
        for (const int tokens : {5, 16, 33, 90}) {
            std::vector<std::pair<std::string, std::string>> loop;
            if (blocks)
                loop = {{"block_length", "8"}};
            else
                loop = {{"alg", "entropy"}};
            const auto plain = denoise(model, {prompt(tokens)}, optionsOf(16, loop));
            auto settings = loop;
            settings.insert(settings.end(), {{"tile", "16"}, {"select", "1"}, {"skip", "0"}});
            const auto masked = denoise(model, {prompt(tokens)}, tiled(16, settings));
            EXPECT_EQ(masked.generated, plain.generated) << family << tokens;
            EXPECT_NEAR(masked.summary.densityMean, 1, 1e-6);
        }
    }
}

TEST(Canvas, MasksAreMadeOnceAndStay) {
    const auto model = randomSdar(configOf("llada"));
    const auto run = denoise(model, {prompt(70), prompt(20, 4)},
                             tiled(32, {{"block_length", "8"}, {"tile", "16"}, {"select", "0.3"}, {"skip", "0.2"}}));
    EXPECT_EQ(run.info.blockSize, 16);
    std::map<std::array<int, 3>, std::vector<std::int32_t>> firstOf; // by layer, sequence and KV head
    for (std::size_t i = 1; i < run.steps.size(); ++i) {
        const StepRecord& step = run.steps[i];
        std::size_t selection = 0;
        for (const DenoiseLayer& layer : step.denoise.layers) {
            ASSERT_EQ(layer.sparse, i - 1 > 7u) << "forwards 0 to floor(32 * 0.2) + 1 are dense";
            if (!layer.sparse) continue;
            const SelectionRecord& chosen = step.selections.at(selection++);
            std::vector<std::int32_t> tiles;
            for (int k = 0; k < chosen.selected; ++k)
                tiles.push_back(step.blocks.at(chosen.first + std::size_t(k)).id());
            const auto& first = firstOf.try_emplace({layer.layer, layer.sequence, layer.kvHead}, tiles).first->second;
            EXPECT_EQ(tiles, first);
            EXPECT_EQ(chosen.kept, i - 1 == 8u ? -1 : chosen.selected);
            EXPECT_EQ(layer.rows, layer.sequence == 0 ? 7 : 4) << "a row for each tile of 102 and of 52 tokens";
            ASSERT_GE(layer.firstRow, 0);
        }
    }
    EXPECT_FALSE(firstOf.empty());
}

TEST(Canvas, ACanvasesTilesAreTheBestOfAllAndTheBestOfTheGenerated) {
    std::mt19937 random(9);
    for (int tiles = 1; tiles <= 9; ++tiles)
        for (const double select : {0.0, 0.1, 0.3, 0.5, 1.0}) {
            const int tokens = tiles * 16 - int(random() % 16), promptTokens = int(random() % unsigned(tokens));
            const int first = firstGeneratedTile(promptTokens, tokens, 16);
            EXPECT_TRUE(first == tiles - 1 || (first * 16 >= promptTokens && (first - 1) * 16 < promptTokens));
            std::vector<float> all, generated;
            for (int i = 0; i < tiles; ++i) all.push_back(float(random() % 8)); // with equal ones
            for (int i = first; i < tiles; ++i) generated.push_back(float(random() % 8));
            TileMask mask;
            mask.begin(1, tiles, tokens, 16);
            mask.chooseOnCanvas(0, tiles - 1, all, generated, select);
            const auto kept = mask.row(0, tiles - 1);
            // A tile is kept where fewer than so many are better than it.
            const auto isAmong = [](const std::vector<float>& values, int place, int count) {
                int better = 0;
                for (int i = 0; i < int(values.size()); ++i)
                    better += values[std::size_t(i)] > values[std::size_t(place)] ||
                              (values[std::size_t(i)] == values[std::size_t(place)] && i < place);
                return better < count;
            };
            int tokensKept = 0;
            for (int i = 0; i < tiles; ++i) {
                const bool wanted = i < first
                                        ? isAmong(all, i, std::max(1, int(tiles * select) + 1))
                                        : isAmong(generated, i - first, std::max(1, int((tiles - first) * select) + 1));
                EXPECT_EQ(kept[std::size_t(i)] != 0, wanted) << tiles << select << i;
                tokensKept += wanted ? std::min(16, tokens - 16 * i) : 0;
            }
            EXPECT_NEAR(mask.density(0, tiles - 1), double(tokensKept) / tokens, 1e-6);
        }
}

std::vector<std::pair<std::string, std::string>> features(const char* prompts, const char* canvas, const char* ratio,
                                                          const char* reference = "last") {
    return {{"cache", "dllm"},
            {"prompt_interval_steps", prompts},
            {"gen_interval_steps", canvas},
            {"transfer_ratio", ratio},
            {"reference", reference}};
}

TEST(Canvas, FeaturesThatAreAllComputedChangeNothing) {
    for (const char* family : {"llada", "dream"}) {
        const auto model = randomSdar(configOf(family));
        const bool blocks = std::string(family) == "llada";
        std::vector<std::pair<std::string, std::string>> loop;
        if (blocks)
            loop = {{"block_length", "8"}};
        else
            loop = {{"alg", "entropy"}};
        const auto plain = denoise(model, {prompt(40)}, optionsOf(16, loop));
        for (const char* reference : {"last", "last_recomputed"})
            for (const auto& cache : {features("1", "1", "0", reference), features("1", "1000", "1", reference)}) {
                auto settings = loop;
                settings.insert(settings.end(), cache.begin(), cache.end());
                const auto cached = denoise(model, {prompt(40)}, optionsOf(16, settings));
                EXPECT_EQ(cached.generated, plain.generated) << family;
                for (const StepRecord& step : cached.steps)
                    for (const DenoiseLayer& layer : step.denoise.layers) EXPECT_FALSE(layer.sparse);
            }
    }
}

TEST(Canvas, FeaturesAreRefreshedByTheirIntervals) {
    const auto model = randomSdar(configOf("llada"));
    auto settings = features("5", "3", "0.25");
    settings.push_back({"block_length", "8"});
    const auto run = denoise(model, {prompt(40), prompt(9, 5)}, optionsOf(16, settings));
    EXPECT_EQ(run.info.blockSize, 1);
    for (std::size_t i = 1; i < run.steps.size(); ++i) {
        const StepRecord& step = run.steps[i];
        const bool prompts = (i - 1) % 5 == 0, canvas = (i - 1) % 3 == 0;
        std::size_t selection = 0;
        for (const DenoiseLayer& layer : step.denoise.layers) {
            ASSERT_EQ(layer.sparse, layer.layer > 0 && !(prompts && canvas)) << "the first layer computes all";
            if (!layer.sparse) continue;
            const int tokens = layer.sequence == 0 ? 40 : 9;
            const SelectionRecord& chosen = step.selections.at(selection++);
            EXPECT_EQ(chosen.selected, (prompts ? tokens : 0) + (canvas ? 16 : 4));
            EXPECT_NEAR(layer.density, double(chosen.selected) / (tokens + 16), 1e-6);
            int ofPrompt = 0, ofBlock = 0;
            const int begin = tokens + 8 * step.denoise.forwards[std::size_t(layer.sequence)].block;
            for (int k = 0; k < chosen.selected; ++k) {
                const int position = step.blocks.at(chosen.first + std::size_t(k)).id();
                ofPrompt += position < tokens;
                if (position >= begin && position < begin + 8) {
                    ++ofBlock;
                    EXPECT_TRUE((layer.active >> (position - begin) & 1) != 0);
                }
            }
            EXPECT_EQ(ofPrompt, prompts ? tokens : 0);
            EXPECT_EQ(std::popcount(layer.active), ofBlock);
            EXPECT_EQ(layer.firstChange >= 0, !canvas && layer.kvHead == 0) << "values are compared";
        }
    }
    const auto alone = denoise(model, {prompt(40)}, optionsOf(16, settings));
    EXPECT_EQ(run.generated[0], alone.generated[0]);
}

TEST(Canvas, FeaturesTakeTwoStreamsAToken) {
    const ModelConfig config = parse(configOf("llada"));
    CanvasOptions options;
    const int prompts[] = {10, 7}, tokens[] = {26, 23};
    const std::int64_t streams = std::int64_t(26 + 23) * config.layers * 2 * config.hidden * 4;
    EXPECT_EQ(CpuCanvasFeatures::bytes(config, options, prompts, tokens), streams);
    options.sinceComputed = true;
    EXPECT_EQ(CpuCanvasFeatures::bytes(config, options, prompts, tokens),
              streams + std::int64_t(16 + 16) * config.layers * config.kvHeads * config.headDim * 4);
}

TEST(Canvas, ComputedTokensAreComparedWithTheForwardBeforeInsideABlock) {
    ComputedTokens computed;
    const auto next = [&](std::vector<std::int32_t> positions, int block) {
        computed.begin();
        computed.positions = std::move(positions);
        computed.compare(block, 100);
        return computed.kept;
    };
    EXPECT_EQ(next({3, 60, 61, 99}, 60), -1) << "there is none before";
    EXPECT_EQ(computed.among(60, 40), std::uint64_t(1) | std::uint64_t(1) << 1 | std::uint64_t(1) << 39);
    EXPECT_EQ(computed.among(60, 2), 3u);
    EXPECT_EQ(computed.among(0, 100), std::uint64_t(1) << 3 | std::uint64_t(1) << 60 | std::uint64_t(1) << 61);
    EXPECT_EQ(next({60, 70, 99}, 60), 2);
    EXPECT_EQ(next({60, 70, 99}, 70), -1) << "another block";
    EXPECT_EQ(next({}, 70), 0);
    computed.begin();
    computed.add(0, 100);
    computed.compare(70, 100);
    EXPECT_EQ(computed.kept, -1) << "all tokens";
    EXPECT_EQ(next({60, 70}, 70), -1) << "behind a forward of all tokens";
    EXPECT_EQ(next({70, 71}, 70), 1);
}

TEST(Canvas, TheTokensOfLeastLikenessAreComputed) {
    const std::vector<float> a{1, 2, 3}, twice{2, 4, 6}, opposite{-1, -2, -3}, across{0, 3, -2}, nothing{0, 0, 0};
    EXPECT_EQ(likeness(a, twice), 1) << "only the direction counts";
    EXPECT_NEAR(likeness(a, opposite), -1, 1e-12);
    EXPECT_NEAR(likeness(a, across), 0, 1e-12);
    EXPECT_EQ(likeness(nothing, a), 0);
    const std::vector<double> values{1, 0.5, 1, 0.25, 0.5};
    EXPECT_EQ(leastAlike(values, 2), (std::vector<std::int32_t>{1, 3})) << "equal ones: the lower";
    EXPECT_EQ(leastAlike(values, 4), (std::vector<std::int32_t>{0, 1, 3, 4}));
    EXPECT_TRUE(leastAlike(values, 0).empty());
}

TEST(Canvas, ThresholdsDecideHowManyForwardsABlockTakes) {
    const auto model = randomSdar(configOf("llada"));
    const auto forwards = [&](const char* threshold, const char* cache) {
        return writesOf(denoise(
            model, {prompt(30)},
            optionsOf(16,
                      {{"block_length", "8"}, {"parallel", "threshold"}, {"threshold", threshold}, {"cache", cache}})));
    };
    for (const char* cache : {"none", "prefix", "dual"}) {
        EXPECT_EQ(forwards("1.1", cache), std::vector<std::int32_t>(16, 1));
        EXPECT_EQ(forwards("0", cache), std::vector<std::int32_t>(2, 8));
    }
}

TEST(Canvas, TheFactorRuleIsItsFormula) {
    std::mt19937 random(5);
    for (int masks = 1; masks <= 64; ++masks) {
        CanvasOptions options;
        options.length = options.block = masks, options.steps = 1;
        options.writes = CanvasWrites::Factor;
        options.factor = 1 + double(random() % 100) / 50;
        std::vector<Candidate> candidates(std::size_t(masks), Candidate{});
        std::vector<double> ranks, sorted;
        for (int i = 0; i < masks; ++i) {
            candidates[std::size_t(i)].position = i;
            ranks.push_back(candidates[std::size_t(i)].confidence = double(random() % 100000) / 1e5);
        }
        sorted = ranks;
        std::sort(sorted.rbegin(), sorted.rend());
        std::size_t count = 1;
        while (count < sorted.size() && sorted[count] >= 1 - options.factor / double(count + 2)) ++count;
        std::set<double> best(sorted.begin(), sorted.begin() + std::ptrdiff_t(count));
        const auto written = chooseOnCanvas(options, 0, masks, candidates, ranks, [] { return 0.0; });
        ASSERT_EQ(written.size(), count);
        for (const std::int32_t i : written) EXPECT_TRUE(best.contains(ranks[std::size_t(i)]));
    }
}

TEST(Canvas, RandomRemaskingFollowsTheSeedAndWritesAll) {
    const auto model = randomSdar(configOf("llada"));
    const auto order = [&](std::uint64_t seed) {
        auto options = optionsOf(16, {{"remasking", "random"}});
        options.sampling.temperature = 0.7;
        options.sampling.seed = seed;
        std::vector<std::int32_t> positions;
        for (const StepRecord& step : denoise(model, {prompt(9)}, options).steps)
            for (const DenoiseToken& token : step.denoise.tokens)
                if (token.written) positions.push_back(token.position);
        EXPECT_EQ(std::set<std::int32_t>(positions.begin(), positions.end()).size(), 16u);
        return positions;
    };
    EXPECT_EQ(order(1), order(1));
    EXPECT_NE(order(1), order(2));
}

TEST(Canvas, GenerationEndsWithTheBlockThatHoldsTheEndOfText) {
    CanvasRun run({2, 3, 4}, 8, {1}, 4, kMask);
    for (const int position : {5, 3, 4}) run.write(position, position == 4 ? 1 : 9);
    run.forwardDone();
    EXPECT_FALSE(run.finished()) << "position 6 is masked";
    EXPECT_EQ(run.step(), 1);
    run.write(6, 7);
    run.forwardDone();
    EXPECT_TRUE(run.finished());
    EXPECT_EQ(run.generated(), (std::vector<std::int32_t>{9, 1}));
}

TEST(Canvas, TextBehindAnEndIsShownWhereTrimEndSaysNo) {
    CanvasRun run({2, 3, 4}, 8, {1}, 4, kMask, false);
    for (const int position : {5, 3, 4}) run.write(position, position == 4 ? 1 : 9);
    run.forwardDone();
    EXPECT_EQ(run.generated(), (std::vector<std::int32_t>{9, 1, 9}));
    EXPECT_FALSE(run.finished()) << "position 6 is masked";
    run.write(6, 7);
    run.forwardDone();
    EXPECT_TRUE(run.finished()) << "the next block is not begun";
    EXPECT_EQ(run.generated(), (std::vector<std::int32_t>{9, 1, 9, 7}));
}

TEST(Canvas, EveryMethodShowsTextBehindAnEndWhereTrimEndSaysNo) {
    for (const char* family : {"llada", "dream"})
        for (const std::string method : {"full", "sparsed", "sparse-dllm"}) {
            SCOPED_TRACE(fmt::format("{} {}", family, method));
            SessionOptions options = optionsOf(16);
            options.method = method;
            if (method == "sparse-dllm" || (method == "sparsed" && family == std::string("llada")))
                options.settings = {{"block_length", "16"}};
            nlohmann::json config = configOf(family);
            const auto all = denoise(randomSdar(config), {prompt(9)}, options).generated.front();
            const std::int32_t end = all[5];
            config["eos_token_id"] = end;
            options.stopAtEos = true;
            options.settings.emplace_back("trim_end", "no");
            EXPECT_EQ(denoise(randomSdar(config), {prompt(9)}, options).generated.front(), all);
            options.settings.back().second = "yes";
            const std::vector<std::int32_t> shown(all.begin(), std::find(all.begin(), all.end(), end) + 1);
            EXPECT_EQ(denoise(randomSdar(config), {prompt(9)}, options).generated.front(), shown);
        }
}

TEST(Canvas, WhatDoesNotFitIsRefusedInASentence) {
    const auto llada = randomSdar(configOf("llada")), dream = randomSdar(configOf("dream"));
    NullSink sink;
    const auto refusal = [&](const auto& model, SessionOptions options, const char* word) {
        EXPECT_NE(test::refusalOf([&] { DecodeSession(model, {prompt(9)}, options, sink); }, word), "") << word;
    };
    for (const char* method : {"quest", "losa", "nosa", "h2o"})
        for (const auto& model : {llada, dream}) {
            auto options = optionsOf(8);
            options.method = method;
            refusal(model, options, method);
        }
    auto evicting = optionsOf(32);
    evicting.method = "sparse-dllm";
    evicting.settings = {{"kernel", "4"}};
    refusal(llada, evicting, "odd");
    refusal(dream, evicting, "odd");
    evicting.settings = {{"alg", "origin"}};
    refusal(dream, evicting, "alg");
    auto tiled = optionsOf(32, {{"tile", "24"}});
    tiled.method = "sparsed";
    refusal(llada, tiled, "16");
    tiled.settings = {{"cache", "dllm"}};
    refusal(dream, tiled, "cache");
    refusal(llada, optionsOf(8, {{"cache", "dllm"}, {"prompt_interval_steps", "0"}}), "prompt_interval_steps");
    evicting.settings = {{"block_length", "12"}};
    refusal(llada, evicting, "block");
    evicting.settings = {{"cache", "dual"}};
    refusal(llada, evicting, "cache");
    refusal(llada, optionsOf(10, {{"block_length", "4"}}), "block");
    refusal(llada, optionsOf(8, {{"block_length", "4"}, {"steps", "3"}}), "steps");
    refusal(llada, optionsOf(8, {{"alg", "entropy"}}), "alg");
    refusal(dream, optionsOf(8, {{"block_length", "4"}}), "block_length");
    refusal(dream, optionsOf(8, {{"block_length", "4"}, {"cache", "dllm"}}), "block_length");
    refusal(dream, optionsOf(10, {{"block_length", "4"}, {"cache", "dual"}}), "block");
    refusal(dream, optionsOf(8, {{"block_length", "4"}, {"cache", "dual"}, {"steps", "3"}}), "steps");
    refusal(dream, optionsOf(8, {{"parallel", "threshold"}, {"alg", "entropy"}}), "maskgit_plus");
    refusal(dream, optionsOf(8, {{"parallel", "factor"}}), "maskgit_plus");
    refusal(llada, optionsOf(8, {{"remasking", "random"}, {"parallel", "factor"}}), "random");
    auto options = optionsOf(8);
    options.deviceKvBlocks = 16;
    refusal(llada, options, "--device-kv");
    refusal(dream, optionsOf(1020), "context");
    DecodeSession session(llada, {prompt(9)}, optionsOf(8), sink);
    EXPECT_NE(test::refusalOf([&] { session.logits(0); }, "logits"), "");
    EXPECT_NE(test::refusalOf([&] { session.forceNextTokens({3}); }, "next token"), "");
}

TEST(Canvas, IsRefusedInTheSentencesOfBlocks) {
    const auto sdar = randomSdar(test::sdarConfig()), llada = randomSdar(configOf("llada"));
    NullSink sink;
    const auto line = [&](const std::shared_ptr<const Model>& model, const auto& change) {
        auto options = optionsOf(8);
        change(options);
        std::string said = test::refusalOf([&] { DecodeSession(model, {prompt(9)}, options, sink); }, "");
        const std::size_t at = said.find(model->name());
        return at == std::string::npos ? said : said.replace(at, model->name().size(), "MODEL");
    };
    const auto same = [&](const auto& change) {
        const std::string said = line(llada, change);
        EXPECT_NE(said, "");
        EXPECT_EQ(said, line(sdar, change));
    };
    same([](SessionOptions& options) { options.deviceKvBlocks = 16; });
    same([](SessionOptions& options) { options.deviceKvBytes = 1 << 20; });
    same([](SessionOptions& options) { options.cachePolicy = "lru"; });
    same([](SessionOptions& options) { options.oracle = true; });
}

TEST(Canvas, LogitsThatAreNoNumbersAreRefused) {
    const std::string folder = testing::TempDir() + "llada-nan";
    test::writeCheckpoint(folder, configOf("llada"), 7);
    std::fstream file(folder + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-64, std::ios::end); // overwrites the end of the last tensor
    const std::vector<float> broken(16, std::numeric_limits<float>::infinity());
    file.write(reinterpret_cast<const char*>(broken.data()), 64);
    file.close();
    NullSink sink;
    DecodeSession session(Model::load(folder), {prompt(9)}, optionsOf(8), sink);
    session.prefill();
    EXPECT_NE(test::refusalOf([&] { session.step(); }, "finite"), "");
}

TEST(Canvas, IsDescribedWithTheMethodThatRunsOnIt) {
    for (const char* family : {"llada", "dream"}) {
        const ModelSummary summary = summarize(*randomSdar(configOf(family)));
        EXPECT_THAT(summary.attention, HasSubstr("every token sees every other one"));
        for (const MethodFit& fit : summary.methods) {
            const bool chooses = fit.name == "sparse-dllm" || fit.name == "sparsed";
            EXPECT_EQ(fit.applies, fit.name == "full" || chooses) << fit.name;
        }
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
