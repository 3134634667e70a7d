// A step is cold where a sequence, or a request of a server, selects for the first time. Whoever counts them counts the
// same ones: summaries, tables of runs, comparisons, insights, reports, replays and a query of one's own.
#include "core/trace/run_meta.h"
#include "profiler/compare/alignment.h"
#include "profiler/compare/common_steps.h"
#include "profiler/insights/exposure.h"
#include "profiler/read/run_numbers.h"
#include "profiler/read/step_kind.h"
#include "profiler/read/summary.h"
#include "profiler/record/recorder.h"
#include "profiler/replay/selection_trace.h"
#include "profiler/report/run_data.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/synthetic_serving.h"
#include "tests/profiler/temporary_folder.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <span>
#include <sqlite3.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

/// One decode step of a run of two sequences that denoise.
struct Forward {
    bool sparse[2];   // whether the sequence selects
    bool compares[2]; // and its block has selected before
    bool opensBlock;
};

/// Records such steps: a selection of two blocks a sequence, both missed where a sequence selects for the first time.
void recordForwards(const std::string& file, std::span<const Forward> forwards) {
    RunInfo info = synthetic::infoOf({.layers = 1, .kvHeads = 1, .sequences = 2});
    info.meta.emplace_back(run_meta::kDenoisingBlock, "16");
    RecorderOptions options;
    options.level = RecordLevel::Counters;
    Recorder recorder(file, options);
    recorder.beginRun(info);
    bool before[2] = {};
    for (std::size_t i = 0; i <= forwards.size(); ++i) {
        auto record = recorder.acquire();
        record->step = int(i), record->phase = i == 0 ? Phase::Prefill : Phase::Decode;
        record->startNs = std::int64_t(i) * 1000, record->durationNs = 500;
        record->layers.resize(1);
        record->layers[0].startNs = record->startNs;
        record->tokens = 2;
        if (i > 0) {
            const Forward& forward = forwards[i - 1];
            LayerRecord& layer = record->layers[0];
            record->opensBlock = forward.opensBlock;
            for (int sequence = 0; sequence < 2; ++sequence) {
                if (!forward.sparse[sequence]) continue;
                SelectionRecord selection;
                selection.sequence = sequence, selection.selected = 2;
                selection.misses = before[sequence] ? 0 : 2, selection.hits = 2 - selection.misses;
                selection.kept = forward.compares[sequence] ? 2 : -1;
                before[sequence] = true;
                layer.kept = (layer.selected == 0 || layer.kept >= 0) && selection.kept >= 0
                                 ? std::max(layer.kept, 0) + selection.kept
                                 : -1;
                layer.selected += 2, layer.hits += selection.hits, layer.misses += selection.misses;
                record->selections.push_back(selection);
            }
        }
        recorder.take(std::move(record));
    }
    recorder.endRun(RunStatus::Finished, "");
    recorder.flush();
}

/// What a person would ask the trace's views: the steps in which a sequence, or a request, selects for the first time.
std::vector<int> askedInSql(const std::string& file, const char* who, const char* view) {
    std::vector<int> steps;
    for (const auto& row : test::sql(file, fmt::format("SELECT DISTINCT min(step) FROM {1} WHERE selected > 0 GROUP BY"
                                                       " {0} ORDER BY 1",
                                                       who, view))
                               .rows)
        steps.push_back(std::stoi(row[0]));
    return steps;
}

template <class Steps, class IsCold> std::vector<int> coldAmong(const Steps& steps, const IsCold& isCold) {
    std::vector<int> cold;
    for (std::size_t i = 0; i < steps.size(); ++i)
        if (isCold(i)) cold.push_back(steps[i].step);
    return cold;
}

void expectEverywhere(const std::string& file, const std::vector<int>& cold) {
    TraceReader reader(file);
    const RunRow run = reader.run(1).value();
    EXPECT_EQ(coldStepsOf(reader, 1), cold);

    const RunSummary summary = summarize(reader, 1);
    EXPECT_EQ(summary.coldSteps, std::int64_t(cold.size()));
    EXPECT_EQ(summary.countedSteps, summary.decodeSteps - std::int64_t(cold.size()));
    std::int64_t hits = 0, misses = 0;
    for (const StepRow& step : reader.steps(1))
        if (step.phase == Phase::Decode && !std::ranges::binary_search(cold, step.step))
            hits += step.hits, misses += step.misses;
    EXPECT_DOUBLE_EQ(summary.hitRate, double(hits) / double(hits + misses));

    for (const int piece : {3, 1000}) { // as a table of runs, and as the tool bar reads a run that grows
        RunNumbers numbers;
        while (!extendRunNumbers(numbers, reader, run, piece)) {
        }
        EXPECT_EQ(numbers.sums.summary(run).coldSteps, summary.coldSteps);
        EXPECT_DOUBLE_EQ(numbers.sums.summary(run).hitRate, summary.hitRate);
        RunSample pieces;
        while (!extendRunSample(pieces, reader, 1, piece)) {
        }
        EXPECT_EQ(pieces.summary.coldSteps, summary.coldSteps);
        EXPECT_EQ(commonSteps(std::span(&pieces, 1), {}).first, int(cold.size()));
    }
    EXPECT_EQ(glanceAtRun(reader, 1, {1, run.steps}).summary.coldSteps, summary.coldSteps);

    const StepIndex index = loadStepIndex(reader, 1);
    EXPECT_EQ(coldAmong(index.steps, [&](std::size_t i) { return index.steps[i].cold; }), cold);
    const ExposureReport exposure = exposureOf(reader, 1);
    EXPECT_EQ(coldAmong(exposure.steps, [&](std::size_t i) { return exposure.steps[i].kind == StepKind::Cold; }), cold);
    const reports::RunData data = reports::readRun(reader, run);
    EXPECT_EQ(data.summary.coldSteps, summary.coldSteps);
    EXPECT_EQ(coldAmong(data.steps, [&](std::size_t i) { return data.kinds[i] == StepKind::Cold; }), cold);
}

TEST(ColdSteps, OfAServerAreThoseInWhichARequestSelectsForTheFirstTime) {
    const test::Folder folder;
    const std::string file = (folder / "served.kvtrace").string();
    synthetic::recordServing(file, 12, false, RunStatus::Finished, true);
    const std::vector<int> cold = askedInSql(file, "request", "v_served_selection");
    ASSERT_GT(int(cold.size()), synthetic::kServingRows) << "rows are reused";
    // A request that begins a block with its first token is as new as any other.
    ASSERT_NE(test::value(file, "SELECT count(*) FROM v_step s JOIN (SELECT min(step) AS step FROM v_served_selection"
                                " GROUP BY request) f ON f.step = s.step WHERE s.opens_block AND s.step > "
                                "(SELECT min(step) FROM v_served_selection)"),
              "0");
    expectEverywhere(file, cold);
    const TraceReader reader(file);
    const SelectionTrace trace = loadSelectionTrace(reader, 1);
    EXPECT_EQ(coldAmong(trace.steps, [&](std::size_t i) { return trace.steps[i].cold; }), cold);
}

TEST(ColdSteps, OfADenoisingRunAreThoseInWhichASequenceSelectsForTheFirstTime) {
    const test::Folder folder;
    const std::string file = (folder / "denoised.kvtrace").string();
    const Forward forwards[] = {
        {{false, false}, {false, false}, true}, // both begin a block, dense
        {{true, false}, {false, false}, true},  // the first selects: cold
        {{true, false}, {true, false}, false},
        {{false, true}, {false, false}, true}, // the first begins its next block, the second selects: cold
        {{true, true}, {false, true}, true},   // a new block of a sequence that has selected: not cold
        {{true, true}, {true, true}, false},
        {{true, true}, {true, false}, true},
        {{true, false}, {false, false}, false}, // a clean forward, which is compared with none
    };
    recordForwards(file, forwards);
    const std::vector<int> cold = askedInSql(file, "seq", "v_locality");
    ASSERT_THAT(cold, testing::ElementsAre(2, 4));
    expectEverywhere(file, cold);
    test::sql(file, "DELETE FROM selection", SQLITE_OPEN_READWRITE);
    EXPECT_THAT(coldStepsOf(TraceReader(file), 1), testing::ElementsAre(2)) << "whose first selection it is, is lost";
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
