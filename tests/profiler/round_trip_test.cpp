// What the engine said is what the reader gives back.
#include "profiler/read/trace_reader.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <cmath>
#include <gtest/gtest.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using synthetic::RunShape;

struct Case {
    const char* name;
    RunShape shape;
    RecordLevel level;
};

std::vector<Case> cases() {
    RunShape batch;
    batch.sequences = 3;
    batch.layers = 3;
    batch.decodeSteps = 40;
    batch.oracle = true;
    RunShape mixed;
    mixed.denseLayers = 2;
    mixed.seed = 5;
    RunShape dense;
    dense.denseLayers = dense.layers;
    RunShape large;
    large.promptTokens = 9000;
    large.queryAware = 40;
    large.decodeSteps = 70;
    RunShape none;
    none.decodeSteps = 0;
    return {{"full", {}, RecordLevel::Full},           {"selections", {}, RecordLevel::Selections},
            {"counters", {}, RecordLevel::Counters},   {"batch", batch, RecordLevel::Full},
            {"mixed", mixed, RecordLevel::Full},       {"dense", dense, RecordLevel::Full},
            {"large", large, RecordLevel::Selections}, {"prefill_only", none, RecordLevel::Full}};
}

class RoundTrip : public testing::TestWithParam<Case> {
protected:
    void SetUp() override {
        synthetic::recordFile(file, GetParam().shape, GetParam().level);
        expected = synthetic::stepsOf(GetParam().shape, GetParam().level);
    }
    test::Folder folder;
    std::string file = (folder / "run.kvtrace").string();
    std::vector<StepRecord> expected;
};

TEST_P(RoundTrip, ReturnsTheRunsDescription) {
    TraceReader reader(file);
    const RunInfo info = synthetic::infoOf(GetParam().shape);
    ASSERT_EQ(reader.runs().size(), 1u);
    const RunRow run = reader.runs().front();
    EXPECT_EQ(run.runId, 1);
    EXPECT_EQ(run.name, info.name);
    EXPECT_EQ(run.model, info.model);
    EXPECT_EQ(run.method, info.method);
    EXPECT_EQ(run.paramsJson, info.paramsJson);
    EXPECT_EQ(run.backend.text(), info.backend);
    EXPECT_EQ(run.device, info.device);
    EXPECT_EQ(run.link, info.link);
    EXPECT_EQ(run.timing, Timing::Modelled);
    EXPECT_EQ(run.level, GetParam().level);
    EXPECT_EQ(run.status, RunStatus::Finished);
    EXPECT_EQ(run.blockSize, info.blockSize);
    EXPECT_EQ(run.layers, info.layers);
    EXPECT_EQ(run.kvHeads, info.kvHeads);
    EXPECT_EQ(run.queryHeads, info.queryHeads);
    EXPECT_EQ(run.headDim, info.headDim);
    EXPECT_EQ(run.sequences, info.sequences);
    EXPECT_EQ(run.deviceSlots, info.deviceSlots);
    EXPECT_EQ(run.budgetBlocks, info.budgetBlocks);
    EXPECT_EQ(run.blockBytes, info.blockBytes);
    EXPECT_DOUBLE_EQ(run.linkGbps, info.linkGbps);
    EXPECT_DOUBLE_EQ(run.linkLatencyUs, info.linkLatencyUs);
    EXPECT_EQ(run.createdUtc.size(), 20u);
    EXPECT_EQ(run.droppedSteps, 0);
    EXPECT_FALSE(run.stale);
    EXPECT_EQ(run.steps, int(expected.size()));
    EXPECT_EQ(reader.stepCount(1), int(expected.size()));
}

TEST_P(RoundTrip, ReturnsEveryStep) {
    TraceReader reader(file);
    const auto steps = reader.steps(1);
    ASSERT_EQ(steps.size(), expected.size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
        const StepRecord& want = expected[i];
        EXPECT_EQ(steps[i].step, want.step);
        EXPECT_EQ(steps[i].phase, want.phase);
        EXPECT_EQ(steps[i].tokens, want.tokens);
        EXPECT_EQ(steps[i].opensBlock, want.opensBlock);
        EXPECT_EQ(steps[i].startNs, want.startNs);
        EXPECT_EQ(steps[i].durationNs, want.durationNs);
        std::int64_t selected = 0, kept = 0, hits = 0, misses = 0, h2d = 0, d2h = 0, transfer = 0, exposed = 0;
        bool defined = true;
        for (const LayerRecord& layer : want.layers) {
            selected += layer.selected;
            kept += layer.kept;
            defined &= layer.kept >= 0;
            hits += layer.hits;
            misses += layer.misses;
            h2d += layer.h2dBytes;
            d2h += layer.d2hBytes;
            transfer += layer.transferNs;
            exposed += layer.exposedNs;
        }
        EXPECT_EQ(steps[i].selected, selected);
        EXPECT_EQ(steps[i].kept, defined && selected > 0 ? kept : -1);
        EXPECT_EQ(steps[i].hits, hits);
        EXPECT_EQ(steps[i].misses, misses);
        EXPECT_EQ(steps[i].h2dBytes, h2d);
        EXPECT_EQ(steps[i].d2hBytes, d2h);
        EXPECT_EQ(steps[i].transferNs, transfer);
        EXPECT_EQ(steps[i].exposedNs, exposed);
    }
}

TEST_P(RoundTrip, ReturnsEveryLayer) {
    TraceReader reader(file);
    for (const StepRecord& want : expected) {
        const auto layers = reader.layers(1, want.step);
        ASSERT_EQ(layers.size(), want.layers.size());
        for (std::size_t i = 0; i < layers.size(); ++i) {
            EXPECT_EQ(layers[i].startNs, want.layers[i].startNs);
            EXPECT_EQ(layers[i].stageNs, want.layers[i].stageNs);
            EXPECT_EQ(layers[i].selected, want.layers[i].selected);
            EXPECT_EQ(layers[i].kept, want.layers[i].kept);
            EXPECT_EQ(layers[i].hits, want.layers[i].hits);
            EXPECT_EQ(layers[i].misses, want.layers[i].misses);
            EXPECT_EQ(layers[i].h2dBlocks, want.layers[i].h2dBlocks);
            EXPECT_EQ(layers[i].d2hBlocks, want.layers[i].d2hBlocks);
            EXPECT_EQ(layers[i].h2dBytes, want.layers[i].h2dBytes);
            EXPECT_EQ(layers[i].d2hBytes, want.layers[i].d2hBytes);
            EXPECT_EQ(layers[i].transferNs, want.layers[i].transferNs);
            EXPECT_EQ(layers[i].exposedNs, want.layers[i].exposedNs);
        }
    }
}

TEST_P(RoundTrip, ReturnsEverySelection) {
    TraceReader reader(file);
    std::size_t found = 0;
    for (const StepRecord& want : expected)
        for (const SelectionRecord& selection : want.selections) {
            const auto row = reader.selection(1, want.step, selection.layer, selection.sequence, selection.kvHead);
            ASSERT_TRUE(row.has_value());
            ++found;
            EXPECT_EQ(row->kept, selection.kept);
            EXPECT_EQ(row->hits, selection.hits);
            EXPECT_EQ(row->misses, selection.misses);
            if (std::isnan(selection.mass)) {
                EXPECT_TRUE(std::isnan(row->mass));
            } else {
                EXPECT_EQ(row->mass, selection.mass);
            }
            if (selection.kept < 0) {
                EXPECT_TRUE(std::isnan(row->locality()));
            } else {
                EXPECT_DOUBLE_EQ(row->locality(), double(selection.kept) / selection.selected);
            }
            if (GetParam().level == RecordLevel::Counters) {
                EXPECT_TRUE(row->blocks.empty());
                continue;
            }
            const auto part = [&](const auto& all) {
                using Vector = std::decay_t<decltype(all)>;
                return all.empty()
                           ? Vector{}
                           : Vector(all.begin() + selection.first, all.begin() + selection.first + selection.selected);
            };
            EXPECT_EQ(row->blocks, part(want.blocks));
            EXPECT_TRUE(row->knowsHits);
            EXPECT_EQ(row->scores, part(want.scores));
        }
    std::size_t total = 0;
    const RunShape& shape = GetParam().shape;
    for (int layer = 0; layer < shape.layers; ++layer)
        for (int sequence = 0; sequence < shape.sequences; ++sequence)
            for (int head = 0; head < shape.kvHeads; ++head)
                total += reader.selections(1, layer, sequence, head).size();
    EXPECT_EQ(total, found);
}

TEST_P(RoundTrip, ReturnsEveryTokenByteForByte) {
    TraceReader reader(file);
    const RunInfo info = synthetic::infoOf(GetParam().shape);
    for (int sequence = 0; sequence < GetParam().shape.sequences; ++sequence) {
        std::vector<TokenRecord> want;
        std::vector<int> wantSteps;
        for (const StepRecord& step : expected)
            for (const TokenRecord& token : step.generated)
                if (token.sequence == sequence) want.push_back(token), wantSteps.push_back(step.step);
        const auto tokens = reader.tokens(1, sequence);
        ASSERT_EQ(tokens.size(), want.size());
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            EXPECT_EQ(tokens[i].step, wantSteps[i]);
            EXPECT_EQ(tokens[i].sequence, sequence);
            EXPECT_EQ(tokens[i].position, want[i].position);
            EXPECT_EQ(tokens[i].id, want[i].id);
            EXPECT_EQ(tokens[i].bytes, want[i].bytes);
        }
        const auto prompt = reader.prompt(1, sequence);
        const auto wantPrompt = info.prompts.of(std::size_t(sequence));
        ASSERT_EQ(prompt.size(), wantPrompt.size());
        for (std::size_t i = 0; i < prompt.size(); ++i) {
            EXPECT_EQ(prompt[i].position, int(i));
            EXPECT_EQ(prompt[i].id, wantPrompt[i]);
            EXPECT_EQ(prompt[i].bytes, info.prompts.bytesOf(wantPrompt[i]));
        }
    }
}

TEST_P(RoundTrip, SplitsTransferTimeByDirectionWithoutLosingAny) {
    TraceReader reader(file);
    const auto transfers = reader.transfers(1);
    std::size_t next = 0;
    for (const StepRecord& step : expected)
        for (std::size_t layer = 0; layer < step.layers.size(); ++layer) {
            const LayerRecord& want = step.layers[layer];
            std::int64_t start = want.startNs, total = 0;
            for (int stage = 0; stage < int(Stage::Offloading); ++stage) start += want.stageNs[std::size_t(stage)];
            for (const bool toDevice : {true, false}) {
                if ((toDevice ? want.h2dBytes : want.d2hBytes) == 0) continue;
                ASSERT_LT(next, transfers.size());
                const TransferRow& row = transfers[next++];
                EXPECT_EQ(row.step, step.step);
                EXPECT_EQ(row.layer, int(layer));
                EXPECT_EQ(row.toDevice, toDevice);
                EXPECT_EQ(row.mechanism, "block copy, modelled link");
                EXPECT_EQ(row.blocks, toDevice ? want.h2dBlocks : want.d2hBlocks);
                EXPECT_EQ(row.bytes, toDevice ? want.h2dBytes : want.d2hBytes);
                EXPECT_EQ(row.startNs, start);
                // On demand, the loads are what is exposed.
                if (toDevice) {
                    EXPECT_EQ(row.durationNs, want.exposedNs);
                }
                total += row.durationNs;
            }
            EXPECT_EQ(total, want.transferNs);
        }
    EXPECT_EQ(next, transfers.size());
}

TEST_P(RoundTrip, ReturnsTheBreakdownOfEveryStep) {
    TraceReader reader(file);
    const auto steps = reader.breakdownSteps(1);
    ASSERT_EQ(steps.size(), expected.size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
        std::array<std::int64_t, kStageCount> stages{};
        std::int64_t named = 0;
        for (const LayerRecord& layer : expected[i].layers)
            for (std::size_t s = 0; s < stages.size(); ++s) stages[s] += layer.stageNs[s], named += layer.stageNs[s];
        for (const std::int64_t ns : expected[i].stepStageNs) named += ns;
        EXPECT_EQ(steps[i].stageNs, stages);
        EXPECT_EQ(steps[i].stepStageNs, expected[i].stepStageNs);
        EXPECT_EQ(steps[i].durationNs, expected[i].durationNs);
        EXPECT_EQ(steps[i].otherNs, expected[i].durationNs - named);
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, RoundTrip, testing::ValuesIn(cases()),
                         [](const auto& instance) { return std::string(instance.param.name); });

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
