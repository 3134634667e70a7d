// MSA on the GPU against the CPU backend, on random tiny checkpoints of MiniMax-M3's form with the same bf16 weights.
// Without a GPU: that the family runs there.
#include "tests/core/block_indexer_config.h"
#include "tests/core/indexed_on_cuda.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <random>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

class Msa : public test::IndexedShapes {
protected:
    Msa() : IndexedShapes("msa") {}
};

TEST_P(Msa, RunsOnCudaByItsEntry) { expectRunsOnCuda(); }

class MsaOnCuda : public Msa {
protected:
    void SetUp() override { skipWithoutGpu(); }
};

/// The ids that a selection has chosen by score, and their scores.
struct Scored {
    test::Ids ids;
    std::vector<float> scores;
};
Scored scoredOf(const StepRecord& step, const SelectionRecord& selection) {
    Scored scored;
    const auto blocks = step.blocksOf(selection);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        if (blocks[i].origin() != Origin::QueryAware) continue;
        scored.ids.push_back(blocks[i].id());
        scored.scores.push_back(step.scores.at(selection.first + i));
    }
    return scored;
}

/// Blocks that the CPU has chosen, and those among them that the GPU has not.
struct Agreement {
    std::int64_t chosen = 0, differing = 0;
    double widest = 0; // score of a differing block above the CPU's worst chosen one, as a share of the CPU's largest
    double overlap() const { return 1 - double(differing) / double(chosen); }
    void add(const Scored& cpu, const Scored& gpu, const StepRecord& step, const SelectionRecord& at) {
        chosen += std::int64_t(cpu.ids.size());
        float largest = 0, least = std::numeric_limits<float>::infinity();
        for (const float score : cpu.scores)
            largest = std::max(largest, std::abs(score)), least = std::min(least, score);
        for (std::size_t i = 0; i < cpu.ids.size(); ++i) {
            if (std::find(gpu.ids.begin(), gpu.ids.end(), cpu.ids[i]) != gpu.ids.end()) continue;
            ++differing;
            const double gap = double(cpu.scores.at(i) - least) / double(largest);
            widest = std::max(widest, gap);
            std::printf("step %d, layer %d, KV head %d: only the CPU has block %d, %.2e above its worst\n", step.step,
                        at.layer, at.kvHead, cpu.ids[i], gap);
        }
    }
    void print(const char* where) const {
        std::printf("%s: overlap %.4f of %lld blocks, %lld differ, widest gap %.2e of the largest score\n", where,
                    overlap(), static_cast<long long>(chosen), static_cast<long long>(differing), widest);
    }
};

/// Both are fed the same tokens. In the first layer that chooses, the inputs of both differ by bf16's rounding alone,
/// and the blocks that only one has chosen scored close to the worst that both have. The layers behind it get inputs
/// for which other blocks were attended, in the prompt too.
TEST_P(MsaOnCuda, ChoosesWhatTheCpuChooses) {
    const std::vector<bool>& indexed = model_->config().blockIndexer->layers;
    const int firstIndexed = int(std::find(indexed.begin(), indexed.end(), true) - indexed.begin());
    Agreement first, all;
    std::vector<double> errors;
    for (const int tokens : {40, 300, 900}) {
        const std::vector<test::Ids> prompts{prompt(tokens)};
        const test::Ids forced = prompt(24);
        const test::Outcome cpu = decode(prompts, optionsOf(Backend::Cpu, 24, true), forced),
                            gpu = decode(prompts, optionsOf(Backend::Cuda, 24, true), forced);
        ASSERT_EQ(cpu.steps.size(), gpu.steps.size());
        for (const double error : errorsOf(cpu, gpu)) errors.push_back(error);
        for (std::size_t step = 1; step < cpu.steps.size(); ++step) {
            const StepRecord &a = cpu.steps[step], &b = gpu.steps[step];
            ASSERT_EQ(a.selections.size(), b.selections.size());
            for (std::size_t i = 0; i < a.selections.size(); ++i) {
                const SelectionRecord& at = a.selections[i];
                ASSERT_EQ(at.layer, b.selections[i].layer);
                ASSERT_EQ(at.kvHead, b.selections[i].kvHead);
                const Scored one = scoredOf(a, at), other = scoredOf(b, b.selections[i]);
                ASSERT_EQ(one.ids.size(), other.ids.size());
                all.add(one, other, a, at);
                if (at.layer == firstIndexed) first.add(one, other, a, at);
            }
        }
    }
    ASSERT_GT(first.chosen, 0);
    first.print("the first layer that chooses");
    all.print("all layers");
    std::printf("half of the logits within %.2e\n", test::middleOf(errors));
    EXPECT_GE(first.overlap(), 0.95);
    EXPECT_LT(first.widest, 0.02) << "a block that both ought to have chosen";
    EXPECT_GE(all.overlap(), 0.9);
    if (!model_->config().experts) { // where a token may have other experts
        EXPECT_LT(test::middleOf(errors), 0.1) << "bf16 through the layers, and a few other blocks";
    }
}

/// With every block in the budget only bf16 lies between the two.
TEST_P(MsaOnCuda, LogitsAreTheCpusWhereEverythingIsAttended) {
    const BlockIndexer& indexer = *model_->config().blockIndexer;
    expectNear(errorsOf(indexer.blocks * indexer.blockTokens - 20, "msa", false));
}

/// Without a selection: norms, partly rotated heads, bounded gates and experts alone.
TEST_P(MsaOnCuda, LogitsOfFullAttentionAreTheCpus) { EXPECT_LT(test::middleOf(errorsOf(70, "full", false)), 0.05); }

TEST_P(MsaOnCuda, OffloadedAndResidentGiveTheSameIds) {
    const std::vector<test::Ids> prompts{prompt(700), prompt(33), prompt(410)};
    const test::Outcome offloaded = decode(prompts, optionsOf(Backend::Cuda, 60, true)),
                        resident = decode(prompts, optionsOf(Backend::Cuda, 60, false));
    EXPECT_EQ(offloaded.ids, resident.ids);
    EXPECT_GT(offloaded.summary.misses, 0);
    EXPECT_EQ(resident.summary.misses, 0);
    EXPECT_EQ(offloaded.logits, resident.logits);
}

test::IndexedShape shapeOf(const char* name, const nlohmann::json& changes) {
    return {name, [changes] { return test::blockIndexerConfig(changes); }};
}

std::vector<test::IndexedShape> shapes() {
    const std::vector<std::string> dense(3, "dense");
    return {shapeOf("experts", nlohmann::json::object()), shapeOf("dense", {{"mlp_layer_types", dense}}),
            shapeOf("blocks_of_32", {{"mlp_layer_types", dense}, {"index_block_size", 32}, {"index_local_blocks", 2}}),
            shapeOf("heads_rotated_whole",
                    {{"mlp_layer_types", dense},
                     {"rotary_dim", 64},
                     {"rope_parameters",
                      {{"partial_rotary_factor", 1.0}, {"rope_theta", 10000.0}, {"rope_type", "default"}}}}),
            shapeOf("wide_heads", {{"mlp_layer_types", dense},
                                   {"head_dim", 128},
                                   {"rotary_dim", 64},
                                   {"index_n_heads", 1},
                                   {"index_head_dim", 128}})};
}

const auto kNames = [](const auto& tested) { return std::string(tested.param.name); };
INSTANTIATE_TEST_SUITE_P(Shapes, MsaOnCuda, ::testing::ValuesIn(shapes()), kNames);
INSTANTIATE_TEST_SUITE_P(Shapes, Msa, ::testing::ValuesIn(shapes()), kNames);

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
