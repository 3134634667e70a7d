// Steps whose rows are two halves (overlap=halves), of which one computes while blocks of the other travel, against the
// same steps on demand.
#include "core/cuda/cuda_engine.h"
#include "core/cuda/device_model.h"
#include "core/cuda/testing/filled_context.h"
#include "core/cuda/testing/planted_steps.h"
#include "core/select/method.h"
#include "core/select/overlap.h"
#include "core/session/decode_session.h"
#include "tests/core/embedded_model.h"
#include "tests/core/small_budgets.h"
#include "tests/kernels/cuda/device.h"
#include "tests/support/packed_blocks.h"
#include "tests/support/random_prompt.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <gtest/gtest.h>
#include <optional>
#include <string>
#include <vector>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using Ids = std::vector<std::vector<std::int32_t>>;

struct Outcome {
    Ids ids;
    std::vector<std::vector<std::vector<float>>> logits; // [step][sequence], of the prompt first
    CollectingSink sink;
    SessionSummary summary;
};

struct Choices {
    const char *method = "nosa", *overlap = "halves";
    std::optional<KvType> kvType = {};
    bool oracle = false;
    int newTokens = 150; // many blocks of 16 tokens, which fill and are written back
    Ids given = {};
};

Outcome run(const Ids& prompts, const Choices& choices) {
    SessionOptions options;
    options.backend = Backend::Cuda;
    options.method = choices.method;
    options.settings =
        test::smallBudgets(resolveDefaults(findMethod(choices.method), test::firstLayersOfEmbedded()->config()));
    options.settings.emplace_back("overlap", choices.overlap);
    options.kvType = choices.kvType;
    options.oracle = choices.oracle;
    options.maxNewTokens = choices.newTokens;
    options.stopAtEos = false;
    options.given = choices.given;
    options.twoInFlight = false; // whose logits would be of the step after
    Outcome out;
    DecodeSession session(test::firstLayersOfEmbedded(), prompts, options, out.sink);
    session.prefill();
    const auto keep = [&] {
        auto& step = out.logits.emplace_back();
        for (int s = 0; s < int(prompts.size()); ++s)
            step.emplace_back(session.logits(s), session.logits(s) + test::firstLayersOfEmbedded()->config().vocab);
    };
    keep();
    while (session.step()) keep();
    session.end(RunStatus::Finished);
    out.ids = session.generated();
    out.summary = session.summary();
    return out;
}

/// Prompts of different lengths, each a few times its budget.
Ids somePrompts(int count) {
    Ids prompts;
    for (int i = 0; i < count; ++i) prompts.push_back(test::randomPrompt(331 - 27 * i, unsigned(i + 1)));
    return prompts;
}

class HalvesOnCuda : public ::testing::Test {
protected:
    void SetUp() override {
        KVSCOPE_NEEDS_GPU();
        KVSCOPE_NEEDS_NOSA_TINY();
    }
};

/// Both halves multiply as many rows by the same kernels, so equal sequences in the same places have equal bits; a half
/// that read or wrote the other's memory, or attended before its blocks were there, would not.
TEST_F(HalvesOnCuda, EqualSequencesAreEqualInBothHalves) {
    Ids prompts = somePrompts(3);
    prompts.insert(prompts.end(), {prompts[0], prompts[1], prompts[2]});
    for (const char* method : {"nosa", "infllmv2"})
        for (const std::optional<KvType> type : {std::optional<KvType>(), std::optional(KvType::INT8)}) {
            SCOPED_TRACE(testing::Message() << method << (type ? ", int8" : ""));
            const Outcome got = run(prompts, {.method = method, .kvType = type});
            EXPECT_GT(got.summary.misses, 0);
            for (std::size_t s = 0; s < 3; ++s) {
                EXPECT_EQ(got.ids[s], got.ids[s + 3]);
                for (std::size_t step = 0; step < got.logits.size(); ++step)
                    ASSERT_EQ(got.logits[step][s], got.logits[step][s + 3]) << "step " << step << ", sequence " << s;
            }
            std::int64_t written = 0;
            for (const StepRecord& record : got.sink.steps)
                for (const LayerRecord& layer : record.layers) written += record.step > 0 ? layer.d2hBlocks : 0;
            EXPECT_GT(written, 0);
        }
}

TEST_F(HalvesOnCuda, AGraphMakesTheStepsOfSingleLaunches) {
    const Ids prompts = somePrompts(5); // three rows and two
    const Outcome graph = run(prompts, {});
    setenv("KVSCOPE_NO_GRAPH", "1", 1);
    const Outcome launches = run(prompts, {});
    unsetenv("KVSCOPE_NO_GRAPH");
    EXPECT_EQ(graph.ids, launches.ids);
    EXPECT_EQ(graph.logits, launches.logits);
    EXPECT_EQ(graph.summary.misses, launches.summary.misses);
}

/// How far two runs that were fed the same tokens are apart: the relative distance of their logits, and how often the
/// best token is another.
struct Apart {
    double distance = 0, otherTokens = 0;
};
Apart apart(const Outcome& a, const Outcome& b, std::size_t sequences) {
    double sum = 0, size = 0, others = 0, all = 0;
    for (std::size_t step = 0; step < a.logits.size(); ++step)
        for (std::size_t s = 0; s < sequences; ++s) {
            const std::vector<float>&x = a.logits[step][s], &y = b.logits[step][s];
            for (std::size_t i = 0; i < x.size(); ++i) {
                const double d = double(y[i]) - double(x[i]);
                sum += d * d, size += double(x[i]) * double(x[i]);
            }
            others +=
                std::max_element(x.begin(), x.end()) - x.begin() != std::max_element(y.begin(), y.end()) - y.begin();
            ++all;
        }
    return {std::sqrt(sum / size), others / all};
}

/// Products of half as many rows, and attention on fewer multiprocessors, add in another order. Halves are as far from
/// the batch on demand as that batch's own first half alone is.
TEST_F(HalvesOnCuda, LogitsAreThoseOnDemandButForTheOrderOfSums) {
    const Ids prompts = somePrompts(12), first(prompts.begin(), prompts.begin() + 6);
    for (const char* method : {"nosa", "infllmv2"}) {
        SCOPED_TRACE(method);
        const Outcome demand = run(prompts, {.method = method, .overlap = "none"});
        const Ids& fed = demand.ids;
        const Outcome halves = run(prompts, {.method = method, .given = fed}),
                      alone =
                          run(first, {.method = method, .overlap = "none", .given = {fed.begin(), fed.begin() + 6}});
        const Apart got = apart(demand, halves, prompts.size()), usual = apart(demand, alone, first.size());
        RecordProperty(std::string(method) + " distance", std::to_string(got.distance));
        RecordProperty(std::string(method) + " distance of half the batch", std::to_string(usual.distance));
        RecordProperty(std::string(method) + " other tokens", std::to_string(got.otherTokens));
        EXPECT_LT(got.distance, 0.02);
        EXPECT_LT(got.distance, 3 * usual.distance + 0.001);
        EXPECT_LT(got.otherTokens, 0.02);
        double common = 0, selected = 0;
        std::int64_t written = 0, writtenOnDemand = 0;
        ASSERT_EQ(halves.sink.steps.size(), demand.sink.steps.size());
        for (std::size_t step = 1; step < halves.sink.steps.size(); ++step) {
            const StepRecord &a = demand.sink.steps[step], &b = halves.sink.steps[step];
            ASSERT_EQ(a.selections.size(), b.selections.size());
            for (std::size_t i = 0; i < a.selections.size(); ++i) {
                ASSERT_EQ(a.selections[i].sequence, b.selections[i].sequence);
                ASSERT_EQ(a.selections[i].layer, b.selections[i].layer);
                common += commonBlocks(a.blocksOf(a.selections[i]), b.blocksOf(b.selections[i]));
                selected += a.selections[i].selected;
            }
            for (std::size_t layer = 0; layer < a.layers.size(); ++layer)
                writtenOnDemand += a.layers[layer].d2hBlocks, written += b.layers[layer].d2hBlocks;
        }
        EXPECT_GE(common / selected, 0.98);
        EXPECT_EQ(written, writtenOnDemand);
    }
}

TEST_F(HalvesOnCuda, RecordsAddUp) {
    for (const bool oracle : {false, true}) {
        SCOPED_TRACE(oracle ? "with the oracle" : "without the oracle");
        const Outcome got = run(somePrompts(4), {.oracle = oracle, .newTokens = 40});
        for (const StepRecord& record : got.sink.steps) {
            if (record.step == 0) continue; // the prompts
            std::int64_t sum = 0, after = record.startNs;
            for (const std::int64_t ns : record.stepStageNs) sum += ns;
            for (const LayerRecord& layer : record.layers) {
                std::int64_t ofLayer = 0;
                for (const std::int64_t ns : layer.stageNs) {
                    EXPECT_GE(ns, 0);
                    ofLayer += ns;
                }
                EXPECT_GE(layer.startNs, after) << "layers begin one behind the other";
                after = layer.startNs + ofLayer;
                sum += ofLayer;
                EXPECT_EQ(layer.h2dBlocks, layer.misses);
                EXPECT_EQ(layer.h2dBytes, layer.h2dBlocks * got.sink.info.blockBytes);
                EXPECT_LE(layer.exposedNs, layer.transferNs);
                EXPECT_GT(layer.stageNs[Stage::Stage1], 0);
                EXPECT_GT(layer.stageNs[Stage::Stage2], 0);
                EXPECT_GT(layer.stageNs[Stage::Ffn], 0);
            }
            EXPECT_LE(after, record.startNs + record.durationNs);
            if (!oracle) {
                EXPECT_EQ(sum, record.durationNs);
            }
            for (const SelectionRecord& selection : record.selections) EXPECT_EQ(selection.predicted, -1);
        }
    }
}

/// What steps with planted selections chose and moved; their choice does not depend on sums.
struct Planted {
    std::vector<PackedBlock> blocks;
    std::vector<std::int32_t> misses, loaded, written; // [step, layer]
};

Planted planted(bool halves, int sequences, bool moveBlocks = true) {
    constexpr int kContext = 4000, kSteps = 70; // longer than a block: full ones are written back
    const auto& model = test::firstLayersOfEmbedded();
    const MethodEntry& method = findMethod("nosa");
    CudaEngineOptions options;
    options.method.parameters = resolveDefaults(method, model->config());
    options.spec = method.make(options.method.parameters, model->config());
    options.maxTokens.assign(sequences, kContext + kSteps + 16);
    options.promptTokens.assign(sequences, kContext);
    options.slots = options.spec.budgetBlocks();
    options.plans = LayerPlans(model->config(), options.spec, {});
    options.level = RecordLevel::Selections;
    options.halves = halves;
    PlantedSteps changes;
    changes.planted = 0.5f;
    changes.moveBlocks = moveBlocks;
    options.changes = &changes;
    CudaEngine engine(DeviceModel::random(model->config(), true, 3), options);
    fillContext(engine, kContext, 5);
    std::vector<ActiveSequence> active;
    for (int s = 0; s < sequences; ++s) active.push_back({RowId{s}, 0});
    Planted out;
    StepRecord record;
    for (int step = 0; step < kSteps; ++step) {
        engine.launch();
        engine.wait();
        record.clear();
        engine.fill(record, active);
        out.blocks.insert(out.blocks.end(), record.blocks.begin(), record.blocks.end());
        for (const LayerRecord& layer : record.layers) {
            out.misses.push_back(layer.misses);
            out.loaded.push_back(layer.h2dBlocks);
            out.written.push_back(layer.d2hBlocks);
        }
    }
    return out;
}

TEST_F(HalvesOnCuda, ChooseAndMoveWhatIsChosenAndMovedOnDemand) {
    for (const int sequences : {2, 5, 8}) {
        SCOPED_TRACE(sequences);
        const Planted demand = planted(false, sequences), halves = planted(true, sequences);
        EXPECT_EQ(test::idsOf(halves.blocks), test::idsOf(demand.blocks));
        EXPECT_EQ(test::hitsOf(halves.blocks), test::hitsOf(demand.blocks));
        EXPECT_EQ(halves.misses, demand.misses);
        EXPECT_EQ(halves.loaded, demand.loaded);
        EXPECT_EQ(halves.written, demand.written);
        EXPECT_GT(*std::max_element(halves.loaded.begin(), halves.loaded.end()), 0);
        EXPECT_GT(*std::max_element(halves.written.begin(), halves.written.end()), 0);
    }
    const Planted unmoved = planted(true, 4, false), moved = planted(true, 4);
    EXPECT_EQ(unmoved.misses, moved.misses);
    EXPECT_EQ(*std::max_element(unmoved.loaded.begin(), unmoved.loaded.end()), 0);
}

/// One transfer kernel for a whole step moves what a kernel for each layer of each half moves.
TEST_F(HalvesOnCuda, OneTransferKernelForTheStepMovesTheSame) {
    const Ids prompts = somePrompts(5);
    for (const std::optional<KvType> type : {std::optional<KvType>(), std::optional(KvType::INT8)}) {
        SCOPED_TRACE(type ? "int8" : "bf16");
        setenv("KVSCOPE_TRANSFER_LOOP", "0", 1);
        const Outcome perLayer = run(prompts, {.kvType = type});
        setenv("KVSCOPE_TRANSFER_LOOP", "1", 1);
        const Outcome perStep = run(prompts, {.kvType = type});
        unsetenv("KVSCOPE_TRANSFER_LOOP");
        EXPECT_EQ(perLayer.ids, perStep.ids);
        ASSERT_EQ(perLayer.logits, perStep.logits);
        std::int64_t loaded = 0, written = 0;
        for (std::size_t step = 1; step < perLayer.sink.steps.size(); ++step) {
            const StepRecord &a = perLayer.sink.steps[step], &b = perStep.sink.steps[step];
            EXPECT_EQ(test::idsOf(a.blocks), test::idsOf(b.blocks));
            EXPECT_EQ(test::hitsOf(a.blocks), test::hitsOf(b.blocks));
            for (std::size_t layer = 0; layer < a.layers.size(); ++layer) {
                EXPECT_EQ(a.layers[layer].h2dBlocks, b.layers[layer].h2dBlocks);
                EXPECT_EQ(a.layers[layer].d2hBlocks, b.layers[layer].d2hBlocks);
                loaded += b.layers[layer].h2dBlocks, written += b.layers[layer].d2hBlocks;
            }
        }
        EXPECT_GT(loaded, 0);
        EXPECT_GT(written, 0);
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
