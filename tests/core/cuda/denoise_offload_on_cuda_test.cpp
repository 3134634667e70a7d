// A prefix of a block-diffusion run that waits on the host, on a GPU: every number is that of the resident run, and
// what travels is what the CPU backend would have sent for the same selections.
#include "core/cache/cache_policy.h"
#include "core/cuda/cuda_engine.h"
#include "core/cuda/diffusion/cuda_denoiser.h"
#include "core/cuda/gpu_device.h"
#include "core/engine/cpu/cpu_prefix_transfers.h"
#include "core/select/method.h"
#include "kernels/kernels.h"
#include "tests/core/cuda/declared_memory.h"
#include "tests/core/diffusion_model.h"
#include "tests/kernels/cuda/device.h"
#include "tests/support/packed_blocks.h"
#include "tests/support/refusal.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <iostream>
#include <memory>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::denoise;
using test::DenoisedRun;
using test::somePrompt;
using Settings = std::vector<std::pair<std::string, std::string>>;

/// Two layers, four query heads of 64 channels on two KV heads: shapes that the GPU's kernels have.
std::shared_ptr<const Model> smallSdar(int block, int channels = 64) {
    nlohmann::json config = test::sdarConfig(block);
    config["head_dim"] = channels;
    return test::randomSdar(config);
}

SessionOptions optionsOf(const std::string& method, Settings settings, std::optional<std::int64_t> slots) {
    SessionOptions options;
    options.backend = Backend::Cuda;
    options.method = method;
    options.maxNewTokens = 24;
    options.stopAtEos = false;
    options.settings = std::move(settings);
    options.deviceKvBlocks = slots;
    return options;
}

std::vector<std::vector<std::int32_t>> prompts() {
    return {somePrompt(203), somePrompt(50, 2, 90, 4), somePrompt(1, 2, 90, 5)};
}

/// Confidences are exact functions of the logits, and densities and changes of what every layer computed.
void expectSameNumbers(const DenoisedRun& a, const DenoisedRun& b) {
    EXPECT_EQ(a.generated, b.generated);
    ASSERT_EQ(a.steps.size(), b.steps.size());
    for (std::size_t i = 0; i < a.steps.size(); ++i) {
        const DenoiseStep &mine = a.steps[i].denoise, &theirs = b.steps[i].denoise;
        ASSERT_EQ(mine.tokens.size(), theirs.tokens.size());
        for (std::size_t t = 0; t < mine.tokens.size(); ++t) {
            ASSERT_EQ(mine.tokens[t].confidence, theirs.tokens[t].confidence) << "step " << i << " token " << t;
            ASSERT_EQ(mine.tokens[t].candidate, theirs.tokens[t].candidate) << "step " << i << " token " << t;
        }
        ASSERT_EQ(mine.changes, theirs.changes) << "step " << i;
        ASSERT_EQ(mine.layers.size(), theirs.layers.size());
        for (std::size_t l = 0; l < mine.layers.size(); ++l) {
            ASSERT_EQ(mine.layers[l].active, theirs.layers[l].active);
            ASSERT_EQ(mine.layers[l].density, theirs.layers[l].density);
        }
        ASSERT_EQ(a.steps[i].selections.size(), b.steps[i].selections.size());
        for (std::size_t s = 0; s < a.steps[i].selections.size(); ++s) {
            ASSERT_EQ(test::idsOf(a.steps[i], a.steps[i].selections[s]),
                      test::idsOf(b.steps[i], b.steps[i].selections[s]));
            ASSERT_EQ(test::originsOf(a.steps[i].blocksOf(a.steps[i].selections[s])),
                      test::originsOf(b.steps[i].blocksOf(b.steps[i].selections[s])));
        }
    }
}

/// The tiers of the CPU backend, which move what a recorded run chose.
class CpuTiers {
public:
    CpuTiers(const DenoisedRun& run, const ModelConfig& config, int page, const std::string& policy,
             const std::vector<int>& maxTokens)
        : config_(config), page_(page) {
        spec_.blockSize = spec_.grid.blockSize = page;
        spec_.dense = false;
        KvCacheOptions options;
        options.shape = {config.layers, config.kvHeads, config.headDim, config.headDim};
        options.layout = {page, config.headDim, false, -1};
        options.maxTokens = maxTokens;
        options.slots = run.info.deviceSlots;
        options.plans = LayerPlans(config.layers, spec_, {.offload = true});
        cache_ = std::make_unique<KvCache>(options, spec_, findCachePolicy(policy));
        transfers_ = std::make_unique<CpuPrefixTransfers>(*kernels_, *cache_, Link(),
                                                          options.shape.heads(int(maxTokens.size())));
    }

    /// Expects the hits, misses and blocks of a recorded forward.
    void expectMoved(const StepRecord& step, int block) {
        std::size_t selection = 0, row = 0;
        for (const LayerId layer : idsUpTo<LayerId>(config_.layers)) {
            LayerRecord moved;
            for (const DenoiseForward& forward : step.denoise.forwards)
                for (const KvHeadId g : idsUpTo<KvHeadId>(config_.kvHeads)) {
                    const int first = step.denoise.tokens[forward.firstToken].position, complete = first / page_;
                    const RowId sequence{forward.sequence};
                    const DenoiseLayer& of = step.denoise.layers.at(row++);
                    if (forward.final) transfers_->store((first + block) / page_ - complete);
                    if (!of.sparse) {
                        transfers_->passThrough(cache_->head(sequence, layer, g), complete);
                        continue;
                    }
                    const SelectionRecord& chosen = step.selections.at(selection++);
                    ASSERT_EQ(chosen.layer, int(layer));
                    ASSERT_EQ(chosen.kvHead, int(g));
                    transfers_->fetch(layer, sequence, g, test::idsOf(step, chosen), complete, step.step, hit_);
                    EXPECT_EQ(test::hitsOf(step.blocksOf(chosen)), hit_) << "step " << step.step;
                    const int hits = int(std::count(hit_.begin(), hit_.end(), 1));
                    EXPECT_EQ(chosen.hits, hits);
                    EXPECT_EQ(chosen.misses, int(hit_.size()) - hits);
                    EXPECT_EQ(chosen.predicted, -1);
                }
            transfers_->account(moved, true);
            const LayerRecord& got = step.layers[std::size_t(layer)];
            EXPECT_EQ(got.h2dBlocks, moved.h2dBlocks) << "step " << step.step << " layer " << int(layer);
            EXPECT_EQ(got.d2hBlocks, moved.d2hBlocks) << "step " << step.step << " layer " << int(layer);
        }
    }

private:
    const ModelConfig& config_;
    const int page_;
    SelectionSpec spec_;
    const std::unique_ptr<Kernels> kernels_ = makeCpuKernels(1);
    std::unique_ptr<KvCache> cache_;
    std::unique_ptr<CpuPrefixTransfers> transfers_;
    std::vector<std::uint8_t> hit_;
};

void expectWhatTheCpuMoves(const DenoisedRun& run, const Model& model, int block, int page, const std::string& policy) {
    std::vector<int> maxTokens;
    int whole = 0; // pages of the prompts
    for (const auto& prompt : prompts()) {
        maxTokens.push_back((int(prompt.size()) + 24 + block) / block * block + page);
        whole += int(prompt.size()) / block * block / page;
    }
    const std::int64_t bytes = run.info.blockBytes;
    EXPECT_EQ(bytes, std::int64_t(page) * 2 * model.config().headDim * 2);
    CpuTiers tiers(run, model.config(), page, policy, maxTokens);
    std::int64_t misses = 0;
    for (const StepRecord& step : run.steps) {
        if (step.denoise.empty())
            for (const LayerRecord& layer : step.layers) EXPECT_EQ(layer.d2hBlocks, whole * model.config().kvHeads);
        else
            tiers.expectMoved(step, block);
        for (const LayerRecord& layer : step.layers) {
            EXPECT_EQ(layer.h2dBytes, layer.h2dBlocks * bytes);
            EXPECT_EQ(layer.d2hBytes, layer.d2hBlocks * bytes);
            EXPECT_EQ(layer.transferNs > 0, layer.h2dBlocks + layer.d2hBlocks > 0);
            EXPECT_EQ(layer.exposedNs, layer.transferNs) << "nothing computes meanwhile";
        }
        for (const SelectionRecord& chosen : step.selections) misses += chosen.misses;
    }
    EXPECT_EQ(run.summary.misses, misses);
    EXPECT_GT(misses, 0);
}

class DenoiseOffloadOnCuda : public ::testing::TestWithParam<std::string> {};

/// Blocks that divide a page, that pages divide, and neither; the smallest device tier and the largest.
TEST_P(DenoiseOffloadOnCuda, HasTheNumbersOfTheResidentRunAndMovesWhatTheCpuMoves) {
    KVSCOPE_NEEDS_GPU();
    for (const auto& [block, page] : std::vector<std::pair<int, int>>{{4, 16}, {16, 16}, {24, 16}, {8, 48}}) {
        const auto model = smallSdar(block);
        const Settings settings{
            {"page", std::to_string(page)}, {"budget", "48"}, {"final", block == 8 ? "dense" : "reuse"}};
        const auto resident = denoise(model, prompts(), optionsOf(GetParam(), settings, std::nullopt));
        EXPECT_EQ(resident.info.deviceSlots, 0);
        EXPECT_EQ(resident.summary.misses + resident.summary.h2dBytes + resident.summary.d2hBytes, 0);
        for (const std::int64_t slots : {1, 3, 7, 1000})
            for (const char* policy : {"lru", "keep-selected"}) {
                SCOPED_TRACE(::testing::Message()
                             << "block " << block << " page " << page << ", " << slots << " slots, " << policy);
                auto options = optionsOf(GetParam(), settings, slots);
                options.cachePolicy = policy;
                const auto offloaded = denoise(model, prompts(), options);
                expectSameNumbers(offloaded, resident);
                expectWhatTheCpuMoves(offloaded, *model, block, page, policy);
            }
    }
}

INSTANTIATE_TEST_SUITE_P(Methods, DenoiseOffloadOnCuda, ::testing::Values("losa", "quest"),
                         [](const auto& method) { return method.param; });

/// Heads of 128 channels and pages of 64 tokens; pages that are chosen once a block, by keys that come from the host.
TEST(DenoisersOffloadOnCuda, HaveTheNumbersOfTheResidentRunWithPagesChosenOnce) {
    KVSCOPE_NEEDS_GPU();
    for (const int page : {16, 64}) {
        const auto model = smallSdar(16, 128);
        const Settings settings{
            {"page", std::to_string(page)}, {"budget", std::to_string(4 * page)}, {"agnostic_share", "0.5"}};
        const auto resident = denoise(model, prompts(), optionsOf("losa", settings, std::nullopt));
        for (const std::int64_t slots : {1, 2, 1000}) {
            SCOPED_TRACE(::testing::Message() << "page " << page << ", " << slots << " slots");
            const auto offloaded = denoise(model, prompts(), optionsOf("losa", settings, slots));
            expectSameNumbers(offloaded, resident);
            expectWhatTheCpuMoves(offloaded, *model, 16, page, "lru");
        }
    }
}

/// The trained model with a longer prompt.
TEST(DenoisersOffloadOnCuda, HaveTheNumbersOfTheResidentRunOnTheTrainedModel) {
    KVSCOPE_NEEDS_LOSA_TINY();
    KVSCOPE_NEEDS_GPU();
    const std::vector<std::vector<std::int32_t>> ids{somePrompt(2100, 10, 4000), somePrompt(333, 10, 4000, 5)};
    for (const char* strategy : {"low_confidence_static", "low_confidence_dynamic"}) {
        const Settings settings{{"block", "16"}, {"budget", "128"}, {"strategy", strategy}};
        auto options = optionsOf("losa", settings, std::nullopt);
        options.maxNewTokens = 40;
        const auto resident = denoise(test::losaTiny(), ids, options);
        for (const std::int64_t slots : {1, 40}) {
            options.deviceKvBlocks = slots;
            const auto offloaded = denoise(test::losaTiny(), ids, options);
            expectSameNumbers(offloaded, resident);
            EXPECT_GT(offloaded.summary.misses, 0);
            EXPECT_GT(offloaded.summary.exposedNs, 0);
            EXPECT_EQ(denoise(test::losaTiny(), ids, options).summary.misses, offloaded.summary.misses);
        }
    }
}

// ---- Ahead ----------------------------------------------------------------------------------------------------------

Settings ahead(Settings settings) {
    settings.emplace_back("fetch", "ahead");
    return settings;
}

TEST(DenoisersAheadOnCuda, ChangeNoBit) {
    KVSCOPE_NEEDS_GPU();
    for (const int block : {4, 16, 24})
        for (const char* final : {"reuse", "dense"}) {
            const auto model = smallSdar(block);
            const Settings settings{{"page", "16"}, {"budget", "48"}, {"final", final}};
            const auto resident = denoise(model, prompts(), optionsOf("losa", settings, std::nullopt));
            for (const std::int64_t slots : {1, 3, 7, 1000}) {
                SCOPED_TRACE(::testing::Message() << "block " << block << " final " << final << " slots " << slots);
                expectSameNumbers(denoise(model, prompts(), optionsOf("losa", ahead(settings), slots)), resident);
            }
        }
}

TEST(DenoisersAheadOnCuda, ChangeNoBitOfTheTrainedModel) {
    KVSCOPE_NEEDS_LOSA_TINY();
    KVSCOPE_NEEDS_GPU();
    const std::vector<std::vector<std::int32_t>> ids{somePrompt(2100, 10, 4000), somePrompt(333, 10, 4000, 5)};
    const Settings settings{{"block", "16"}, {"budget", "128"}, {"agnostic_share", "0.25"}};
    const auto resident = denoise(test::losaTiny(), ids, optionsOf("losa", settings, std::nullopt));
    const auto onDemand = denoise(test::losaTiny(), ids, optionsOf("losa", settings, 80));
    const auto sent = denoise(test::losaTiny(), ids, optionsOf("losa", ahead(settings), 80));
    expectSameNumbers(onDemand, resident);
    expectSameNumbers(sent, resident);
    std::int64_t predicted = 0, used = 0;
    for (const StepRecord& step : sent.steps)
        for (const SelectionRecord& chosen : step.selections) predicted += chosen.predicted, used += chosen.used;
    EXPECT_GT(used, 0);
    EXPECT_LE(used, predicted);
    std::cout << fmt::format(
        "layers wait {:.2f} ms for {:.2f} MB on demand, {:.2f} ms for {:.2f} MB where pages are asked "
        "for ahead: {} of {} were used\n",
        double(onDemand.summary.exposedNs) * 1e-6, double(onDemand.summary.h2dBytes) * 1e-6,
        double(sent.summary.exposedNs) * 1e-6, double(sent.summary.h2dBytes) * 1e-6, used, predicted);
}

int completePages(const StepRecord& step, int sequence, int page) {
    for (const DenoiseForward& forward : step.denoise.forwards)
        if (forward.sequence == sequence) return step.denoise.tokens[forward.firstToken].position / page;
    return 0;
}

/// Every page that travels is a miss, a page that was sent in vain, or one that passes through in a dense forward.
TEST(DenoisersAheadOnCuda, AccountForEveryPage) {
    KVSCOPE_NEEDS_GPU();
    const auto model = smallSdar(8);
    for (const std::int64_t slots : {2, 5, 1000}) {
        const auto run = denoise(model, prompts(), optionsOf("losa", ahead({{"page", "16"}, {"budget", "32"}}), slots));
        std::int64_t predicted = 0, used = 0, sentAndUsed = 0;
        for (const StepRecord& step : run.steps) {
            if (step.denoise.empty()) continue;
            std::vector<std::int64_t> least(step.layers.size(), 0), most = least;
            std::size_t selection = 0;
            for (const DenoiseLayer& layer : step.denoise.layers) {
                const auto at = std::size_t(layer.layer);
                const int complete = completePages(step, layer.sequence, 16);
                if (!layer.sparse) {
                    most[at] += complete;
                    least[at] += std::max<std::int64_t>(0, complete - slots);
                    continue;
                }
                const SelectionRecord& chosen = step.selections.at(selection++);
                ASSERT_GE(chosen.predicted, 0) << "a sparse forward follows another one of its block";
                EXPECT_LE(chosen.predicted, std::min<std::int64_t>(complete, slots));
                EXPECT_LE(chosen.used + chosen.wasted, chosen.predicted);
                EXPECT_LE(chosen.used, chosen.selected);
                EXPECT_LE(chosen.late, chosen.predicted);
                least[at] += chosen.misses + chosen.wasted;
                most[at] += chosen.misses + chosen.wasted;
                predicted += chosen.predicted, used += chosen.used;
                sentAndUsed += std::max(0, chosen.used + chosen.misses - chosen.selected);
            }
            for (std::size_t layer = 0; layer < least.size(); ++layer) {
                EXPECT_GE(step.layers[layer].h2dBlocks, least[layer]);
                EXPECT_LE(step.layers[layer].h2dBlocks, most[layer]);
                EXPECT_EQ(step.layers[layer].h2dBytes, step.layers[layer].h2dBlocks * run.info.blockBytes);
                EXPECT_LE(step.layers[layer].exposedNs, step.layers[layer].transferNs);
            }
        }
        EXPECT_GT(used, 0);
        EXPECT_LE(used, predicted);
        EXPECT_GT(sentAndUsed, 0) << "some pages travel before they are needed";
    }
}

/// Before a block's second forward the first layer asks for what all its tokens would choose by the queries that they
/// had in the first one: what Quest reads there, where its first forward is sparse. Later forwards ask for the pages of
/// the forward before, too.
TEST(DenoisersAheadOnCuda, AskForWhatTheTokensWouldChoose) {
    KVSCOPE_NEEDS_GPU();
    const auto model = smallSdar(8);
    const Settings settings{{"page", "16"}, {"budget", "32"}, {"strategy", "low_confidence_static"}};
    const auto run = denoise(model, prompts(), optionsOf("losa", ahead(settings), 1000));
    Settings sparse = settings;
    sparse.emplace_back("first", "sparse");
    const auto first = denoise(model, prompts(), optionsOf("quest", sparse, 1000));
    int compared = 0, later = 0;
    for (const SelectionRecord& chosen : run.steps.at(2).selections)
        for (const SelectionRecord& all : first.steps.at(1).selections) {
            if (all.layer > 0 || chosen.layer > 0 || all.sequence != chosen.sequence || all.kvHead != chosen.kvHead)
                continue;
            const int complete = completePages(first.steps[1], all.sequence, 16);
            int wanted = 0;
            for (const PackedBlock page : first.steps[1].blocksOf(all)) wanted += page.id() < complete;
            EXPECT_EQ(chosen.predicted, wanted);
            ++compared;
        }
    EXPECT_EQ(compared, 4) << "two sequences have a prefix";
    for (std::size_t step = 3; step < run.steps.size(); ++step)
        for (const SelectionRecord& chosen : run.steps[step].selections)
            if (chosen.kept >= 0) { // a sparse forward of the block came before
                EXPECT_GE(chosen.used, chosen.kept - 1) << "but for a last page that is incomplete";
                EXPECT_GE(chosen.predicted, chosen.used);
                ++later;
            }
    EXPECT_GT(later, 20);
}

// ---- Memory, ends and refusals
// ----------------------------------------------------------------------------------------------

/// With tails, without, and with what is asked ahead.
TEST(DenoisersOffloadOnCuda, DeclareWhatTheyTake) {
    KVSCOPE_NEEDS_GPU();
    const MethodEntry& entry = findMethod("losa");
    const std::vector<std::vector<std::int32_t>> ids = prompts();
    for (const int block : {8, 16})
        for (const bool asks : {false, true})
            for (const int slots : {1, 9}) {
                const auto loaded = smallSdar(block);
                ParameterValues values = resolveDefaults(entry, loaded->config());
                values.set(entry.denoisingParameters, "page", "16");
                values.set(entry.denoisingParameters, "block", std::to_string(block));
                DenoiseSetup setup{
                    loaded, ids, select::denoiseOptions(values), entry.make(values, loaded->config()), {}};
                for (const auto& prompt : ids) setup.maxTokens.push_back((int(prompt.size()) + 100) / 16 * 16);
                setup.options.fetchAhead = asks;
                setup.slots = slots;
                const auto model = DeviceModel::of(loaded);
                const MemoryPlan planned = CudaDenoiser::memory(model, setup, gpuLaunch(usableGpu()));
                EXPECT_EQ(planned.bytes("kv_tails") > 0, block == 8);
                test::expectDeclaredMemory(planned, [&] { return std::make_unique<CudaDenoiser>(model, setup); });
            }
}

/// Tokens are drawn, so that each sequence ends somewhere in a block.
TEST(DenoisersOffloadOnCuda, EndWithinABlock) {
    KVSCOPE_NEEDS_GPU();
    const auto model = smallSdar(16);
    auto options = optionsOf("losa", {{"budget", "32"}}, std::nullopt);
    options.stopAtEos = true;
    options.maxNewTokens = 160;
    options.sampling.temperature = 1;
    const auto resident = denoise(model, prompts(), options);
    for (const std::int64_t slots : {1, 4}) {
        options.deviceKvBlocks = slots;
        expectSameNumbers(denoise(model, prompts(), options), resident);
    }
    std::size_t tokens = 0;
    for (const auto& ids : resident.generated) tokens += ids.size();
    EXPECT_LT(tokens, 3u * 160u) << "no sequence has ended early";
}

TEST(DenoisersOffloadOnCuda, AreRefusedInOneSentence) {
    const auto model = smallSdar(8);
    NullSink sink;
    const auto refusal = [&](const SessionOptions& options, const char* word) {
        EXPECT_NE(test::refusalOf([&] { DecodeSession(model, {somePrompt(9, 2, 60)}, options, sink); }, word), "")
            << word;
    };
    refusal(optionsOf("full", {}, 9), "--device-kv");
    refusal(optionsOf("sparsed", {}, 9), "--device-kv");
    refusal(optionsOf("losa", {}, 0), "--device-kv 1");
    auto options = optionsOf("losa", {}, 9);
    options.cachePolicy = "lru-s";
    refusal(options, "lru-s");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
