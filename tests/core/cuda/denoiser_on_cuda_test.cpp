// Block diffusion on a GPU: losa-tiny against the fixtures that an independent implementation computed in float64
// (tests/golden/losa/README.md), as far as bf16 allows and counted; several sequences beside the CPU backend; memory as
// declared.
#include "core/cuda/diffusion/cuda_denoiser.h"

#include "core/cuda/cuda_engine.h"
#include "core/cuda/gpu_device.h"
#include "core/select/method.h"
#include "kernels/cuda/device/owners.h"
#include "tests/core/cuda/declared_memory.h"
#include "tests/core/diffusion_model.h"
#include "tests/core/golden_file.h"
#include "tests/core/losa_fixture.h"
#include "tests/kernels/cuda/device.h"
#include "tests/support/packed_blocks.h"

#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <set>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using Json = nlohmann::json;

#define KVSCOPE_NEEDS_GPU_AND_LOSA_TINY()                                                                              \
    KVSCOPE_NEEDS_LOSA_TINY();                                                                                         \
    KVSCOPE_NEEDS_GPU()

/// What rounding to bf16 may do. Written positions or tokens that differ have a margin below these; the forwards after
/// it are not compared.
constexpr double kChoiceMargin = 0.08, kLogitMargin = 0.3; // of confidences, of logits
/// An active set or a union of pages that differs is a decision too, and what follows in the block is another
/// computation. Its margin lies below these: of changes as a share of the layer's largest change (on an H200 6.5e-5 at
/// most), of scores (0.12 at most).
constexpr double kActiveMargin = 1e-3, kPageMargin = 0.2;
/// Where every decision of the block was the reference's. On an H200 confidences differ by 1.2e-2 at most, changes
/// by 9.6e-3 of the layer's largest, logits, outputs and log sums by 5.9e-3 of the largest.
constexpr double kConfidence = 0.03, kOfLargest = 0.02;
constexpr double kMeanOverlap = 0.9; // of pages and of active tokens, in all forwards

/// A mean of overlaps |a and b| / |a or b|.
struct Overlap {
    double sum = 0, lowest = 1;
    int count = 0;
    void add(const std::vector<int>& a, const std::vector<int>& b) {
        const std::set<int> left(a.begin(), a.end());
        std::set<int> both(b.begin(), b.end());
        const auto common = double(std::count_if(left.begin(), left.end(), [&](int x) { return both.count(x) != 0; }));
        both.insert(a.begin(), a.end());
        const double share = both.empty() ? 1 : common / double(both.size());
        sum += share;
        lowest = std::min(lowest, share);
        ++count;
    }
    double mean() const { return count > 0 ? sum / count : 1; }
};

/// How far a run on the GPU is from its fixture.
struct Distance {
    Overlap pages, active;                // in all forwards
    double confidence = 0, change = 0;    // in forwards that no decision before them disturbs
    int comparedLayers = 0;               // sparse layers in which every decision was the reference's
    int sparseForwards = 0, followed = 0; // followed: every decision was the reference's
    int firstFlipLayer[2] = {-1, -1};     // of the run's first two forwards; -1: none
    std::vector<std::string> flips;       // the first decision of each block that differs
    std::string end;                      // why the comparison ended
};

/// Compares the layers of a forward up to the first decision that differs.
class LayerComparison {
public:
    LayerComparison(const Json& layers, const StepRecord& got, Distance& distance)
        : layers_(layers), got_(got), distance_(distance) {}

    /// disturbed: a decision before this forward was another, so that overlaps alone are counted.
    /// @return the layer of the first decision that differs, or -1
    int run(bool disturbed) {
        EXPECT_EQ(got_.denoise.layers.size(), layers_.size() * kHeads);
        int flipped = -1;
        for (std::size_t i = 0; i < layers_.size(); ++i) {
            const Json& layer = layers_[i];
            if (!disturbed && flipped < 0) compareChanges(i);
            bool active = true, pages = true;
            for (std::size_t g = 0; g < kHeads; ++g) {
                const DenoiseLayer& row = got_.denoise.layers[i * kHeads + g];
                EXPECT_EQ(row.sparse, layer.at("mode") == "sparse") << "layer " << i;
                if (!row.sparse) continue;
                const auto tokens = test::bitsOf(row.active);
                const auto wantTokens = layer.at("active")[g].get<std::vector<int>>();
                const auto chosen = pagesOf(int(i), int(g)), wantPages = layer.at("pages")[g].get<std::vector<int>>();
                distance_.active.add(tokens, wantTokens);
                distance_.pages.add(chosen, wantPages);
                active &= tokens == wantTokens;
                pages &= chosen == wantPages;
            }
            if (disturbed || flipped >= 0) continue;
            if (active && pages) {
                distance_.comparedLayers += layer.at("mode") == "sparse" ? 1 : 0;
                continue;
            }
            flipped = int(i);
            checkMargin(i, active);
        }
        return flipped;
    }

private:
    static constexpr std::size_t kHeads = 2;

    std::vector<int> pagesOf(int layer, int head) {
        const SelectionRecord& pages = got_.selections[selection_++];
        EXPECT_EQ(pages.layer, layer);
        EXPECT_EQ(pages.kvHead, head);
        return test::idsOf(got_, pages);
    }

    double largestChange(std::size_t i) const {
        double largest = 0;
        for (const Json& token : layers_[i].at("delta"))
            for (std::size_t g = 0; g < (token.is_array() ? kHeads : 1); ++g)
                largest = std::max(largest, token.is_array() ? token[g].get<double>() : token.get<double>());
        return largest;
    }

    void compareChanges(std::size_t i) {
        for (std::size_t g = 0; g < kHeads; ++g) {
            const DenoiseLayer& row = got_.denoise.layers[i * kHeads + g];
            if (row.firstChange < 0) continue;
            const Json& want = layers_[i].at("delta");
            double worst = 0;
            for (std::size_t t = 0; t < want.size(); ++t) {
                const double value = want[t].is_array() ? want[t][g].get<double>() : want[t].get<double>();
                worst =
                    std::max(worst, std::abs(value - double(got_.denoise.changes[std::size_t(row.firstChange) + t])));
            }
            if (const double largest = largestChange(i); largest > 0)
                distance_.change = std::max(distance_.change, worst / largest);
        }
    }

    /// The fixture has one margin for both KV heads: that of the closest decision.
    void checkMargin(std::size_t i, bool activeAlike) {
        const Json& layer = layers_[i];
        const double margin = activeAlike ? test::marginOf(layer, "margin_page")
                                          : test::marginOf(layer, "margin_active") / largestChange(i);
        distance_.flips.push_back(fmt::format("layer {} {} {:.1e}", i, activeAlike ? "pages" : "active", margin));
        EXPECT_LT(margin, activeAlike ? kPageMargin : kActiveMargin)
            << "layer " << i << (activeAlike ? ": pages " : ": active ") << layer.at(activeAlike ? "pages" : "active");
    }

    const Json& layers_;
    const StepRecord& got_;
    Distance& distance_;
    std::size_t selection_ = 0;
};

/// Follows a run forward by forward. A decision that differs disturbs the rest of its block. It disturbs later blocks
/// too where the clean forward is sparse, because keys and values of the prefix then come from another computation.
class Follower {
public:
    explicit Follower(Distance& distance) : distance_(distance) {}

    /// @return whether the forwards after this one can be compared
    bool follow(const Json& want, const StepRecord& got) {
        const DenoiseStep& step = got.denoise;
        std::vector<std::int32_t> ids, written;
        for (const DenoiseToken& token : step.tokens) {
            ids.push_back(token.id);
            if (token.written) written.push_back(token.position);
        }
        EXPECT_EQ(ids, want.at("ids").get<std::vector<std::int32_t>>());
        if (want.at("step") == 0 && !carried_) disturbed_ = false;
        const Json& layers = want.at("layers");
        const bool sparse =
            std::any_of(layers.begin(), layers.end(), [](const Json& layer) { return layer.at("mode") == "sparse"; });
        const int flipped = LayerComparison(layers, got, distance_).run(disturbed_);
        if (forward_ < 2) distance_.firstFlipLayer[forward_] = disturbed_ ? 0 : flipped;
        ++forward_;
        disturbed_ |= flipped >= 0;
        distance_.sparseForwards += sparse ? 1 : 0;
        distance_.followed += sparse && !disturbed_ ? 1 : 0;
        if (want.at("kind") == "final") {
            carried_ |= sparse && disturbed_;
            return true;
        }
        for (std::size_t i = 0; i < step.tokens.size() && !disturbed_; ++i)
            distance_.confidence = std::max(distance_.confidence, std::abs(double(step.tokens[i].confidence) -
                                                                           want.at("confidence")[i].get<double>()));
        return compareWritten(want, step, written);
    }

private:
    /// Behind a decision that differs another token may be right, so that nothing is asked of its margin.
    bool compareWritten(const Json& want, const DenoiseStep& step, const std::vector<std::int32_t>& written) {
        const double choice = test::marginOf(want, "margin_choice"), token = test::marginOf(want, "margin_token");
        if (written != want.at("written").get<std::vector<int>>()) {
            EXPECT_TRUE(disturbed_ || choice < kChoiceMargin) << "positions differ: " << want.at("written");
            distance_.end = fmt::format("other positions, margin {:.2g}", choice);
            return false;
        }
        for (std::size_t i = 0; i < step.tokens.size(); ++i)
            if (step.tokens[i].written && step.tokens[i].candidate != want.at("tokens")[i]) {
                EXPECT_TRUE(disturbed_ || token < kLogitMargin)
                    << "token " << i << " is " << step.tokens[i].candidate << " and not " << want.at("tokens")[i];
                distance_.end = fmt::format("another token, margin {:.2g}", token);
                return false;
            }
        return true;
    }

    Distance& distance_;
    int forward_ = 0;
    bool disturbed_ = false, carried_ = false;
};

class LosaGoldenOnCuda : public ::testing::TestWithParam<std::string> {};

/// The first `layers` of all layers of a tensor [layers, ...]; all of them where `layers` is below 0.
std::span<const float> layersOf(const std::vector<float>& tensor, int layers, std::size_t all) {
    return std::span(tensor).first(layers < 0 ? tensor.size() : tensor.size() / all * std::size_t(layers));
}

TEST_P(LosaGoldenOnCuda, FollowsTheReferenceUpToADecisionWithinRounding) {
    KVSCOPE_NEEDS_GPU_AND_LOSA_TINY();
    std::ifstream file(test::kLosaFixtures + GetParam() + ".json");
    if (!file) GTEST_SKIP() << "this checkout leaves out tests/golden/losa";
    const Json run = Json::parse(file);
    const std::vector<std::vector<std::int32_t>> prompts{run.at("prompt_ids").get<std::vector<std::int32_t>>()};
    SessionOptions options = test::losaOptions(run);
    options.backend = Backend::Cuda;
    const test::DenoisedRun got = test::denoise(test::losaTiny(), prompts, options);
    // Observed, kernels run one by one: the same forwards as by graphs.
    test::KeptAttention attention;
    options.denoiseObserver = &attention;
    EXPECT_EQ(test::denoise(test::losaTiny(), prompts, options).generated, got.generated);

    const Json& forwards = run.at("forwards");
    Distance distance;
    Follower follower(distance);
    std::size_t compared = 0;
    for (bool same = true; same && compared < forwards.size(); ++compared) {
        ASSERT_LT(compared + 1, got.steps.size());
        SCOPED_TRACE("forward " + std::to_string(compared));
        same = follower.follow(forwards[compared], got.steps[compared + 1]);
        if (HasFailure()) break;
    }
    double logits = 0, merged = 0, sums = 0;
    const std::size_t all = forwards[0].at("layers").size();
    for (const int forward : {0, 1}) {
        const test::GoldenFile tensors(test::kLosaFixtures + "tensors.safetensors");
        const std::string name = GetParam() + "." + std::to_string(forward);
        if (forward == 0 && tensors.has(name + ".logits"))
            logits = test::errorOf(attention.logits(), tensors.floats(name + ".logits"));
        if (!tensors.has(name + ".merged") || (forward == 1 && compared < 2)) continue;
        const int layers = distance.firstFlipLayer[forward]; // those before it are the reference's
        const auto error = [&](const std::vector<float>& mine, const char* what) {
            return test::errorOf(layersOf(mine, layers, all), layersOf(tensors.floats(name + what), layers, all));
        };
        merged = std::max(merged, error(attention.merged(forward), ".merged"));
        sums = std::max(sums, error(attention.sums(forward), ".prefix_lse"));
    }
    const auto want = run.at("generated_ids").get<std::vector<std::int32_t>>();
    const auto& ids = got.generated.front();
    const auto alike = std::mismatch(ids.begin(), ids.end(), want.begin(), want.end()).first - ids.begin();
    std::cout << fmt::format("{}: {} of {} forwards{}{}; of {} sparse ones {} have every decision of the reference ({} "
                             "sparse layers); "
                             "until then confidence {:.1e}, changes {:.1e}, logits {:.1e}, merged {:.1e}, log sums "
                             "{:.1e}; pages {:.4f} (lowest {:.2f}), active {:.4f} (lowest {:.2f}); {} of {} ids from "
                             "the start\n  first other decisions of a block: {}\n",
                             GetParam(), compared, forwards.size(), distance.end.empty() ? "" : ": ", distance.end,
                             distance.sparseForwards, distance.followed, distance.comparedLayers, distance.confidence,
                             distance.change, logits, merged, sums, distance.pages.mean(), distance.pages.lowest,
                             distance.active.mean(), distance.active.lowest, alike, want.size(),
                             fmt::join(distance.flips, ", "));
    EXPECT_LT(distance.confidence, kConfidence);
    EXPECT_LT(distance.change, kOfLargest);
    EXPECT_TRUE(distance.sparseForwards == 0 || distance.comparedLayers > 0) << "no sparse layer was compared";
    EXPECT_GE(distance.pages.mean(), kMeanOverlap);
    EXPECT_GE(distance.active.mean(), kMeanOverlap);
    EXPECT_LT(logits, kOfLargest);
    EXPECT_LT(merged, kOfLargest);
    EXPECT_LT(sums, kOfLargest);
}

INSTANTIATE_TEST_SUITE_P(Runs, LosaGoldenOnCuda, ::testing::ValuesIn(test::losaRunNames()),
                         [](const auto& run) { return run.param; });

std::vector<std::vector<std::int32_t>> somePrompts() {
    std::vector<std::vector<std::int32_t>> prompts;
    for (const int tokens : {1, 75, 160, 333}) prompts.push_back(test::somePrompt(tokens, 10, 4000, unsigned(tokens)));
    return prompts;
}

SessionOptions optionsFor(const std::string& method, const std::string& strategy, Backend backend) {
    SessionOptions options;
    options.backend = backend;
    options.method = method;
    options.maxNewTokens = 40;
    options.stopAtEos = false;
    options.settings = {{"block", "16"}, {"steps", "8"}, {"strategy", strategy}};
    if (method != "full") options.settings.emplace_back("budget", "64");
    return options;
}

class DenoiserOnCuda : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {};

/// Several sequences, of several lengths, which end at different forwards; each alone; and the CPU.
TEST_P(DenoiserOnCuda, SeveralSequencesHaveWhatEachHasAlone) {
    KVSCOPE_NEEDS_GPU_AND_LOSA_TINY();
    const auto& [method, strategy] = GetParam();
    const auto prompts = somePrompts();
    const SessionOptions options = optionsFor(method, strategy, Backend::Cuda);
    const test::DenoisedRun together = test::denoise(test::losaTiny(), prompts, options);
    const test::DenoisedRun onCpu =
        test::denoise(test::losaTiny(), prompts, optionsFor(method, strategy, Backend::Cpu));
    int alike = 0, likeCpu = 0, all = 0;
    for (std::size_t s = 0; s < prompts.size(); ++s) {
        const test::DenoisedRun alone = test::denoise(test::losaTiny(), {prompts[s]}, options);
        ASSERT_EQ(together.generated[s].size(), 40u);
        ASSERT_EQ(alone.generated[0].size(), 40u);
        for (std::size_t i = 0; i < 40; ++i, ++all) {
            alike += together.generated[s][i] == alone.generated[0][i] ? 1 : 0;
            likeCpu += together.generated[s][i] == onCpu.generated[s][i] ? 1 : 0;
        }
    }
    std::cout << fmt::format("{} {}: {} of {} ids as alone, {} as on the CPU\n", method, strategy, alike, all, likeCpu);
    // Random text has near ties, after which all ids of a sequence may differ.
    EXPECT_GE(alike, all / 2);
    EXPECT_GE(likeCpu, all / 2);
    EXPECT_EQ(together.generated, test::denoise(test::losaTiny(), prompts, options).generated) << "not repeatable";
    for (const StepRecord& step : together.steps) {
        EXPECT_GT(step.durationNs, 0);
        std::int64_t stages = 0;
        for (const LayerRecord& layer : step.layers)
            for (const std::int64_t ns : layer.stageNs) {
                EXPECT_GE(ns, 0);
                stages += ns;
            }
        EXPECT_LE(stages, step.durationNs);
    }
}

INSTANTIATE_TEST_SUITE_P(Methods, DenoiserOnCuda,
                         ::testing::Combine(::testing::Values("full", "quest", "losa", "sparsed"),
                                            ::testing::Values("sequential", "low_confidence_static",
                                                              "low_confidence_dynamic", "entropy_bounded")),
                         [](const auto& tested) {
                             return std::get<0>(tested.param) + "_" + std::get<1>(tested.param);
                         });

/// Blocks of every kind of length, pages that blocks do not divide: nothing but that it runs, and its ids are few
/// enough from the CPU's.
TEST(DenoisersOnCuda, RunWithAnyBlockAndPage) {
    KVSCOPE_NEEDS_GPU_AND_LOSA_TINY();
    int alike = 0, all = 0;
    for (const int block : {1, 3, 4, 24, 64})
        for (const int page : {16, 48, 256}) {
            SCOPED_TRACE(::testing::Message() << "block " << block << " page " << page);
            std::vector<std::vector<std::int32_t>> ids;
            for (const Backend backend : {Backend::Cuda, Backend::Cpu}) {
                SessionOptions options = optionsFor("losa", "low_confidence_static", backend);
                options.settings = {
                    {"block", std::to_string(block)}, {"page", std::to_string(page)}, {"budget", "256"}};
                options.maxNewTokens = 20;
                ids.push_back(
                    test::denoise(test::losaTiny(), {test::somePrompt(700, 10, 4000)}, options).generated.front());
            }
            ASSERT_EQ(ids[0].size(), ids[1].size());
            for (std::size_t i = 0; i < ids[0].size(); ++i, ++all) alike += ids[0][i] == ids[1][i] ? 1 : 0;
        }
    std::cout << fmt::format("{} of {} ids as on the CPU\n", alike, all);
    EXPECT_GE(alike, all / 2);
}

TEST(DenoisersOnCuda, SampleTheSameWayTwice) {
    KVSCOPE_NEEDS_GPU_AND_LOSA_TINY();
    SessionOptions options = optionsFor("losa", "low_confidence_dynamic", Backend::Cuda);
    options.sampling.temperature = 1;
    options.sampling.topP = 0.9;
    const auto first = test::denoise(test::losaTiny(), somePrompts(), options).generated;
    EXPECT_EQ(first, test::denoise(test::losaTiny(), somePrompts(), options).generated);
}

// ---- Beside the CPU -------------------------------------------------------------------------------------------------

/// The steps of two runs up to the first whose blocks hold other tokens.
std::size_t stepsAlike(const test::DenoisedRun& a, const test::DenoisedRun& b) {
    const auto idsOf = [](const StepRecord& step) {
        std::vector<std::int32_t> ids;
        for (const DenoiseToken& token : step.denoise.tokens) ids.push_back(token.id);
        return ids;
    };
    std::size_t alike = 0;
    while (alike < std::min(a.steps.size(), b.steps.size()) && idsOf(a.steps[alike]) == idsOf(b.steps[alike])) ++alike;
    return alike;
}

struct MaskDistance {
    Overlap tiles;
    double density = 0;
    int forwards = 0;
};

/// Adds how far the masks of one forward are from each other. Their rows must be alike.
void compareMasks(const StepRecord& got, const StepRecord& want, MaskDistance& distance) {
    ASSERT_EQ(got.denoise.layers.size(), want.denoise.layers.size());
    ASSERT_EQ(got.selections.size(), want.selections.size());
    for (std::size_t i = 0; i < got.denoise.layers.size(); ++i) {
        const DenoiseLayer &mine = got.denoise.layers[i], &theirs = want.denoise.layers[i];
        ASSERT_EQ(mine.sparse, theirs.sparse);
        ASSERT_EQ(mine.active, theirs.active);
        ASSERT_EQ(mine.rows, theirs.rows);
        for (int row = 0; row < mine.rows; ++row)
            distance.density = std::max(
                distance.density, std::abs(double(got.denoise.rowDensities[std::size_t(mine.firstRow + row)]) -
                                           double(want.denoise.rowDensities[std::size_t(theirs.firstRow + row)])));
    }
    for (std::size_t i = 0; i < got.selections.size(); ++i) {
        ASSERT_EQ(got.selections[i].layer, want.selections[i].layer);
        ASSERT_EQ(got.selections[i].kept >= 0, want.selections[i].kept >= 0);
        distance.tiles.add(test::idsOf(got, got.selections[i]), test::idsOf(want, want.selections[i]));
    }
    distance.forwards += got.selections.empty() ? 0 : 1;
}

/// Rows of tiles, incomplete tiles, blocks that tiles do not divide, and a clean forward under the mask.
TEST(DenoisersOnCuda, MakeTheMasksOfTheCpu) {
    KVSCOPE_NEEDS_GPU_AND_LOSA_TINY();
    MaskDistance distance;
    for (const int block : {4, 16, 64})
        for (const int tile : {16, 48})
            for (const char* clean : {"dense", "reuse"}) {
                SCOPED_TRACE(::testing::Message() << "block " << block << " tile " << tile << " final " << clean);
                std::vector<test::DenoisedRun> runs;
                for (const Backend backend : {Backend::Cuda, Backend::Cpu}) {
                    SessionOptions options = optionsFor("sparsed", "low_confidence_static", backend);
                    options.settings = {{"block", std::to_string(block)},
                                        {"tile", std::to_string(tile)},
                                        {"budget", "96"},
                                        {"final", clean},
                                        {"strategy", "sequential"}};
                    runs.push_back(test::denoise(test::losaTiny(), {test::somePrompt(700, 10, 4000)}, options));
                }
                const std::size_t alike = stepsAlike(runs[0], runs[1]);
                for (std::size_t step = 1; step < alike; ++step)
                    compareMasks(runs[0].steps[step], runs[1].steps[step], distance);
            }
    std::cout << fmt::format("{} forwards under masks: tiles {:.4f} (lowest {:.2f}), densities {:.1e}\n",
                             distance.forwards, distance.tiles.mean(), distance.tiles.lowest, distance.density);
    EXPECT_GT(distance.forwards, 20);
    EXPECT_GE(distance.tiles.mean(), kMeanOverlap);
    EXPECT_LE(distance.density, 48.0 / 640) << "a row keeps as many tiles; the last one may be incomplete";
}

/// The query-agnostic share of LoSA's pages is chosen by the first forward, which is dense on both backends.
TEST(DenoisersOnCuda, ChooseTheSharedPagesOfTheCpu) {
    KVSCOPE_NEEDS_GPU_AND_LOSA_TINY();
    std::vector<test::DenoisedRun> runs;
    for (const Backend backend : {Backend::Cuda, Backend::Cpu}) {
        SessionOptions options = optionsFor("losa", "low_confidence_static", backend);
        options.settings.back() = {"budget", "192"};
        options.settings.emplace_back("agnostic_share", "0.5");
        runs.push_back(test::denoise(test::losaTiny(), {test::somePrompt(700, 10, 4000)}, options));
    }
    const auto agnosticOf = [](const StepRecord& step, const SelectionRecord& selection) {
        std::vector<int> pages;
        for (const PackedBlock block : step.blocksOf(selection))
            if (block.origin() == Origin::QueryAgnostic) pages.push_back(block.id());
        return pages;
    };
    Overlap shared, all;
    const std::size_t alike = stepsAlike(runs[0], runs[1]);
    for (std::size_t step = 1; step < alike; ++step) {
        const StepRecord &got = runs[0].steps[step], &want = runs[1].steps[step];
        ASSERT_EQ(got.selections.size(), want.selections.size());
        for (std::size_t i = 0; i < got.selections.size(); ++i) {
            const auto mine = agnosticOf(got, got.selections[i]);
            EXPECT_EQ(mine.size(), 6u);
            shared.add(mine, agnosticOf(want, want.selections[i]));
            all.add(test::idsOf(got, got.selections[i]), test::idsOf(want, want.selections[i]));
        }
    }
    std::cout << fmt::format("{} selections: shared pages {:.4f} (lowest {:.2f}), all {:.4f}\n", shared.count,
                             shared.mean(), shared.lowest, all.mean());
    EXPECT_GT(shared.count, 50);
    EXPECT_GE(shared.mean(), kMeanOverlap);
    EXPECT_GE(all.mean(), kMeanOverlap);
}

/// With every tile kept, attention is full attention, added up in another order.
TEST(DenoisersOnCuda, AttendToEverythingUnderAMaskOfAllTiles) {
    KVSCOPE_NEEDS_GPU_AND_LOSA_TINY();
    std::vector<std::vector<std::vector<std::int32_t>>> ids;
    for (const char* method : {"full", "sparsed"}) {
        SessionOptions options = optionsFor(method, "low_confidence_static", Backend::Cuda);
        if (method == std::string("sparsed")) options.settings.back() = {"budget", "4096"};
        const auto run = test::denoise(test::losaTiny(), somePrompts(), options);
        for (const StepRecord& step : run.steps)
            for (const DenoiseLayer& layer : step.denoise.layers)
                if (layer.sparse) {
                    EXPECT_EQ(layer.density, 1);
                }
        ids.push_back(run.generated);
    }
    int alike = 0, all = 0;
    for (std::size_t s = 0; s < ids[0].size(); ++s)
        for (std::size_t i = 0; i < ids[0][s].size(); ++i, ++all) alike += ids[0][s][i] == ids[1][s][i] ? 1 : 0;
    std::cout << fmt::format("{} of {} ids as with full attention\n", alike, all);
    EXPECT_GE(alike, all / 2);
}

/// Full attention records how much keys and values changed, on both backends alike but for rounding.
TEST(DenoisersOnCuda, RecordTheChangesOfKeysAndValues) {
    KVSCOPE_NEEDS_GPU_AND_LOSA_TINY();
    constexpr double kOfLargestKv = 0.03; // bf16 against float32, as a share of the largest change of the forward
    std::vector<test::DenoisedRun> runs;
    for (const Backend backend : {Backend::Cuda, Backend::Cpu})
        runs.push_back(test::denoise(test::losaTiny(), {test::somePrompt(333, 10, 4000)},
                                     optionsFor("full", "low_confidence_static", backend)));
    const std::size_t alike = stepsAlike(runs[0], runs[1]);
    double worst = 0;
    int compared = 0;
    for (std::size_t step = 1; step < alike; ++step) {
        const DenoiseStep &got = runs[0].steps[step].denoise, &want = runs[1].steps[step].denoise;
        ASSERT_EQ(got.kvChanges.size(), want.kvChanges.size()) << "step " << step;
        for (std::size_t i = 0; i < got.layers.size(); ++i)
            ASSERT_EQ(got.layers[i].firstKvChange, want.layers[i].firstKvChange);
        if (want.kvChanges.empty()) continue;
        const double largest = double(*std::max_element(want.kvChanges.begin(), want.kvChanges.end()));
        for (std::size_t i = 0; i < want.kvChanges.size(); ++i)
            worst = std::max(worst, std::abs(double(got.kvChanges[i]) - double(want.kvChanges[i])) / largest);
        ++compared;
    }
    std::cout << fmt::format("{} forwards: changes of keys and values {:.1e} of the largest\n", compared, worst);
    EXPECT_GT(compared, 3);
    EXPECT_LT(worst, kOfLargestKv);
    const auto others = test::denoise(test::losaTiny(), {test::somePrompt(333, 10, 4000)},
                                      optionsFor("losa", "low_confidence_static", Backend::Cuda));
    for (const StepRecord& step : others.steps) EXPECT_TRUE(step.denoise.kvChanges.empty());
}

// ---- Memory ---------------------------------------------------------------------------------------------------------

DenoiseSetup setupOf(const std::vector<std::vector<std::int32_t>>& prompts, const std::string& method, bool perHead) {
    const MethodEntry& entry = findMethod(method);
    const auto model = test::losaTiny();
    ParameterValues values = resolveDefaults(entry, model->config());
    if (perHead) values.set(entry.denoisingParameters, "active_set", "kv_head");
    DenoiseSetup setup{model, prompts, select::denoiseOptions(values), entry.make(values, model->config()), {}};
    for (const auto& prompt : prompts) setup.maxTokens.push_back((int(prompt.size()) + 100 + 15) / 16 * 16);
    return setup;
}

TEST(DenoisersOnCuda, DeclareWhatTheyTake) {
    KVSCOPE_NEEDS_GPU_AND_LOSA_TINY();
    const auto prompts = somePrompts();
    const auto model = DeviceModel::of(test::losaTiny());
    for (const auto& [method, slots] : std::vector<std::pair<std::string, int>>{
             {"full", 0}, {"quest", 0}, {"losa", 0}, {"sparsed", 0}, {"quest", 1}, {"losa", 7}})
        for (const RecordLevel level : {RecordLevel::Counters, RecordLevel::Full}) {
            SCOPED_TRACE(::testing::Message() << method << ", " << slots << " slots");
            DenoiseSetup setup = setupOf(prompts, method, method == "losa");
            setup.level = level;
            setup.slots = slots;
            setup.options.fetchAhead = slots > 1;
            const MemoryPlan planned = CudaDenoiser::memory(model, setup, gpuLaunch(usableGpu()));
            test::expectDeclaredMemory(planned, [&] { return std::make_unique<CudaDenoiser>(model, setup); });
        }
}

/// Without a GPU: the keys and values of all layers, counted by hand; what a method adds.
TEST(DenoiserMemory, IsPlannedWithoutAGpu) {
    KVSCOPE_NEEDS_LOSA_TINY();
    const auto prompts = somePrompts();
    const auto model = DeviceModel::shapesOf(*test::losaTiny());
    cuda::Launch launch;
    launch.multiprocessors = 132;
    launch.blockShared = 232448;
    std::map<std::string, MemoryPlan> plans;
    for (const char* method : {"full", "quest", "losa", "sparsed"})
        plans.emplace(method, CudaDenoiser::memory(model, setupOf(prompts, method, false), launch));
    std::int64_t tokens = 0;
    for (const auto& prompt : prompts) tokens += (std::int64_t(prompt.size()) + 115) / 16 * 16;
    const std::int64_t layers = 8, kvHeads = 2, dim = 64, queryHeads = 6, block = 16, rows = 4;
    EXPECT_EQ(plans.at("losa").bytes("kv_resident"), tokens * layers * kvHeads * dim * 2 * 2);
    EXPECT_EQ(plans.at("losa").bytes("block_index"), tokens / 16 * layers * kvHeads * dim * 2 * 2);
    EXPECT_EQ(plans.at("quest").bytes("block_index"), plans.at("losa").bytes("block_index"));
    EXPECT_EQ(plans.at("full").bytes("block_index"), 0);
    const std::int64_t queries = rows * block * queryHeads;
    EXPECT_EQ(plans.at("full").bytes("block_memory"), layers * queries * 4);
    EXPECT_EQ(plans.at("losa").bytes("block_memory"), layers * queries * (2 * dim + 1) * 4);
    EXPECT_EQ(plans.at("sparsed").bytes("block_index"), 0);
    DenoiseSetup offloaded = setupOf(prompts, "losa", false);
    offloaded.slots = 7;
    const MemoryPlan tiers = CudaDenoiser::memory(model, offloaded, launch);
    const std::int64_t pages = tokens / 16, pageBytes = 16 * dim * 2 * 2;
    EXPECT_EQ(tiers.bytes("kv_resident"), 0);
    EXPECT_EQ(tiers.bytes("kv_store"), plans.at("losa").bytes("kv_resident"));
    EXPECT_EQ(tiers.bytes("kv_slots"), (layers * rows * 7 + pages) * kvHeads * pageBytes) << "and a layer's pages";
    EXPECT_EQ(tiers.bytes("kv_tails"), 0) << "a block of 16 tokens ends where a page does";
    offloaded.options.block = 8;
    EXPECT_EQ(CudaDenoiser::memory(model, offloaded, launch).bytes("kv_tails"), layers * rows * kvHeads * pageBytes);
    // Lists of 256 / 16 + 2 tiles for every query head, whose 16 tokens are one row, and how long they are.
    EXPECT_EQ(plans.at("sparsed").bytes("tile_masks"), layers * rows * queryHeads * (18 + 1) * 4);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
