// The page and block-cache methods on a GPU against the same methods on the CPU: the same prompts and the same tokens,
// chosen blocks compared at every step, layer and KV head.
#include "core/select/method.h"
#include "core/session/decode_session.h"
#include "core/session/engine.h"
#include "tests/core/backend.h"
#include "tests/support/random_prompt.h"

#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <random>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::randomPrompt;

using Settings = std::vector<std::pair<std::string, std::string>>;

std::shared_ptr<const Model> model() {
    static const auto loaded = Model::load(kDefaultModel);
    return loaded;
}

/// Seeds of our own, shown on failure.
struct Decoded {
    std::vector<std::vector<std::int32_t>> ids;
    CollectingSink sink;
};

struct Case {
    const char *name, *method;
    Settings settings;
    const char* policy = ""; // of the device tier; empty: the session's choice
};

/// forced: [sequence][step] tokens to feed in place of the run's own; null: its own.
void decode(Decoded& run, Backend backend, const std::vector<std::vector<std::int32_t>>& prompts, const Case& of,
            int steps, const std::vector<std::vector<std::int32_t>>* forced) {
    SessionOptions options;
    options.backend = backend;
    options.method = of.method;
    options.settings = of.settings;
    options.cachePolicy = of.policy;
    options.maxNewTokens = steps;
    options.stopAtEos = false;
    options.twoInFlight = forced == nullptr;
    options.oracle = true;
    DecodeSession session(model(), prompts, options, run.sink);
    session.prefill();
    for (std::size_t step = 0;; ++step) {
        if (forced != nullptr) {
            std::vector<std::int32_t> next;
            for (const auto& ids : *forced) next.push_back(ids[std::min(step, ids.size() - 1)]);
            session.forceNextTokens(next);
        }
        if (!session.step()) break;
    }
    run.ids = session.generated();
    session.end(RunStatus::Finished);
}

struct Agreement {
    double overlap = 0;  // mean over the selections of the share that both chose
    double mass[2] = {}; // mean of what the selections hold of the attention; NaN without the oracle
    std::int64_t hits[2] = {}, selected[2] = {}, h2d[2] = {}, d2h[2] = {};
};

Agreement compare(const CollectingSink& cpu, const CollectingSink& gpu) {
    Agreement out;
    std::int64_t count = 0;
    EXPECT_EQ(cpu.steps.size(), gpu.steps.size());
    for (std::size_t step = 0; step < std::min(cpu.steps.size(), gpu.steps.size()); ++step) {
        const StepRecord *a = &cpu.steps[step], *b = &gpu.steps[step];
        EXPECT_EQ(a->selections.size(), b->selections.size()) << "step " << step;
        for (std::size_t i = 0; i < std::min(a->selections.size(), b->selections.size()); ++i) {
            const SelectionRecord &x = a->selections[i], &y = b->selections[i];
            EXPECT_EQ(x.layer, y.layer);
            EXPECT_EQ(x.kvHead, y.kvHead);
            EXPECT_EQ(x.sequence, y.sequence);
            const int both = commonBlocks(a->blocksOf(x), b->blocksOf(y));
            out.overlap += double(both) / double(std::max(x.selected, y.selected));
            ++count;
            out.hits[0] += x.hits, out.hits[1] += y.hits;
            out.mass[0] += double(x.mass), out.mass[1] += double(y.mass);
            out.selected[0] += x.selected, out.selected[1] += y.selected;
            EXPECT_EQ(y.hits + y.misses, y.selected);
        }
        for (const LayerRecord& layer : a->layers) out.h2d[0] += layer.h2dBytes, out.d2h[0] += layer.d2hBytes;
        for (const LayerRecord& layer : b->layers) out.h2d[1] += layer.h2dBytes, out.d2h[1] += layer.d2hBytes;
    }
    EXPECT_GT(count, 0);
    for (double* mean : {&out.overlap, &out.mass[0], &out.mass[1]}) *mean /= double(std::max<std::int64_t>(1, count));
    return out;
}

class CudaAgainstCpu : public ::testing::TestWithParam<Case> {
protected:
    void SetUp() override {
        if (!test::onCuda()) GTEST_SKIP() << "compares the GPU with the CPU: KVSCOPE_TEST_BACKEND=cuda";
        if (!findMethod(GetParam().method).runsOnCuda()) GTEST_SKIP() << "the GPU backend does not have it";
    }
};

TEST_P(CudaAgainstCpu, ChoosesTheSameBlocksAndMovesTheSameBytes) {
    const unsigned seed = std::random_device{}();
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const std::vector<std::vector<std::int32_t>> prompts{randomPrompt(900, seed), randomPrompt(407, seed + 1)};
    constexpr int kSteps = 50;
    Decoded cpu, gpu;
    decode(cpu, Backend::Cpu, prompts, GetParam(), kSteps, nullptr);
    decode(gpu, Backend::Cuda, prompts, GetParam(), kSteps, &cpu.ids);
    const Agreement found = compare(cpu.sink, gpu.sink);
    RecordProperty("overlap", std::to_string(found.overlap));
    std::printf("%s: overlap %.4f, hits %.4f on the CPU, %.4f on the GPU\n", GetParam().name, found.overlap,
                double(found.hits[0]) / double(found.selected[0]), double(found.hits[1]) / double(found.selected[1]));
    // Keys, queries and the residual stream are bf16 on the GPU: blocks whose scores differ by less than that change
    // places. With random tokens many scores are close, and forced blocks always agree.
    EXPECT_GE(found.overlap, 0.97);
    // Where query heads choose apart, one that chooses otherwise changes how many there are together.
    const bool unites = std::string_view(GetParam().name).starts_with("quest_heads");
    EXPECT_NEAR(double(found.selected[0]), double(found.selected[1]), unites ? 0.01 * double(found.selected[0]) : 0);
    // A block in another place costs at most one hit, and one more when it comes back.
    EXPECT_NEAR(double(found.hits[0]), double(found.hits[1]), 0.03 * double(found.selected[0]));
    if (!std::isnan(found.mass[0])) {
        EXPECT_NEAR(found.mass[0], found.mass[1], 0.01) << "blocks whose scores are close hold about as much";
    }
    // bf16 against float32. Where few blocks move, each one that the other backend had at hand shows.
    const std::int64_t missed[2] = {found.selected[0] - found.hits[0], found.selected[1] - found.hits[1]};
    const double perMiss = double(found.h2d[1]) / double(std::max<std::int64_t>(1, missed[1]));
    const auto moved = [&](const std::int64_t* bytes, double apart) {
        EXPECT_NEAR(double(bytes[0]) / 2, double(bytes[1]), 0.1 * double(bytes[0]) / 2 + apart)
            << missed[0] << " and " << missed[1] << " blocks were missed";
    };
    moved(found.h2d, perMiss * std::abs(double(missed[0] - missed[1])));
    moved(found.d2h, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Methods, CudaAgainstCpu,
    ::testing::Values(
        Case{"arkvale", "arkvale", {{"block_size", "16"}, {"page_budget", "24"}}},
        Case{"infllm",
             "infllm",
             {{"block_size", "32"}, {"init_tokens", "32"}, {"local_tokens", "128"}, {"topk_blocks", "8"}}},
        Case{"infllm_heads",
             "infllm",
             {{"block_size", "16"},
              {"init_tokens", "16"},
              {"local_tokens", "100"},
              {"topk_blocks", "12"},
              {"cached_blocks", "16"},
              {"groups", "head"}}},
        Case{"infllm_scored",
             "infllm",
             {{"block_size", "16"},
              {"init_tokens", "16"},
              {"local_tokens", "100"},
              {"topk_blocks", "12"},
              {"cached_blocks", "16"},
              {"score_decay", "0.7"}},
             "lru-s"},
        Case{"shadowkv", "shadowkv", {{"budget_tokens", "160"}, {"outlier_tokens", "48"}, {"rank", "64"}}},
        Case{"shadowkv_chunks_of_64",
             "shadowkv",
             {{"chunk_tokens", "64"}, {"budget_tokens", "256"}, {"outlier_tokens", "64"}, {"local_chunks", "1"}}},
        Case{"quest_product", "quest", {{"block_size", "16"}, {"total_blocks", "12"}, {"bound", "product"}}},
        Case{"quest_cuboid", "quest", {{"block_size", "32"}, {"total_blocks", "9"}, {"bound", "cuboid-mean"}}},
        Case{"quest_largest",
             "quest",
             {{"block_size", "32"}, {"total_blocks", "9"}, {"bound", "cuboid-mean"}, {"group", "max"}}},
        Case{"quest_heads", "quest", {{"block_size", "16"}, {"total_blocks", "10"}, {"group", "per_query_head"}}},
        Case{"quest_heads_product",
             "quest",
             {{"block_size", "16"}, {"total_blocks", "10"}, {"group", "per_query_head"}, {"bound", "product"}}},
        Case{"quest_heads_cuboid",
             "quest",
             {{"block_size", "32"},
              {"total_blocks", "7"},
              {"sink_blocks", "1"},
              {"group", "per_query_head"},
              {"bound", "cuboid-mean"}}},
        Case{"quest_heads_forced",
             "quest",
             {{"block_size", "32"},
              {"total_blocks", "8"},
              {"sink_blocks", "1"},
              {"window_blocks", "2"},
              {"group", "per_query_head"}}},
        Case{"infllmv2_compressed",
             "infllmv2",
             {{"block_size", "32"}, {"total_blocks", "9"}, {"window_blocks", "2"}, {"lse", "compressed"}}},
        Case{"arkvale_heads", "arkvale", {{"page_budget", "14"}, {"groups", "head"}, {"digest", "bounds"}}}),
    [](const auto& parameter) { return std::string(parameter.param.name); });

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
