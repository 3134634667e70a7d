// A trace whose prompts are read in pieces, written by hand from docs/trace-format.md: it keeps every rule, and every
// reader knows which steps read prompts, decode, or do both.
#include "profiler/check/check.h"
#include "profiler/compare/alignment.h"
#include "profiler/compare/common_steps.h"
#include "profiler/export/export.h"
#include "profiler/insights/insight.h"
#include "profiler/merge/merge.h"
#include "profiler/read/span_batch.h"
#include "profiler/read/span_index.h"
#include "profiler/read/span_kind.h"
#include "profiler/read/step_kind.h"
#include "profiler/read/summary.h"
#include "profiler/read/trace_list.h"
#include "profiler/replay/replay.h"
#include "profiler/replay/selection_trace.h"
#include "profiler/report/html.h"
#include "profiler/report/report.h"
#include "profiler/report/run_data.h"
#include "profiler/roofline/measured_run.h"
#include "profiler/tiles/step_numbers.h"
#include "profiler/waterfall/step_times.h"
#include "tests/profiler/prompt_pieces.h"
#include "tests/profiler/temporary_folder.h"

#include <cmath>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sstream>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class PromptPieces : public testing::Test {
protected:
    PromptPieces() { test::writePromptPieces(file); }
    std::string value(const std::string& query) const { return test::value(file, query); }
    void change(const std::string& sql) const { test::sql(file, sql, SQLITE_OPEN_READWRITE); }
    std::string broken() const {
        std::string text;
        for (const RunCheck& check : checkTrace(TraceReader(file)))
            for (const Violation& each : check.examples)
                text += each.rule + ": " + each.where + ": " + each.what + "\n";
        return text;
    }
    test::Folder folder;
    std::string file = (folder / "pieces.kvtrace").string();
};

/// Numbers of the steps for which `is` holds, of the twelve.
template <class Is> std::vector<int> stepsThat(const Is& is) {
    std::vector<int> steps;
    for (int step = 0; step < 12; ++step)
        if (is(step)) steps.push_back(step);
    return steps;
}

TEST_F(PromptPieces, KeepEveryRule) {
    EXPECT_EQ(broken(), "");
    EXPECT_EQ(value("SELECT group_concat(kind || ' ' || prompt_tokens || '+' || decode_tokens, ', ') FROM v_step_kind"),
              "prompt 32+0, prompt 32+0, prompt 20+0, decode 0+1, decode 0+1, mixed 24+1, mixed 8+1, decode 0+2,"
              " decode 0+2, prompt 17+0, decode 0+2, decode 0+2");
    EXPECT_EQ(value("SELECT group_concat(seq || ' ' || begins || ' ' || first || ' ' || tokens, ', ') FROM"
                    " v_prompt_piece"),
              "0 1 0 32, 0 0 32 32, 0 0 64 20, 1 1 0 24, 1 0 24 8, 1 1 0 17");
}

TEST_F(PromptPieces, AreToldByTheReader) {
    const TraceReader reader(file);
    const PromptSteps prompts = reader.run(1)->prompts;
    EXPECT_THAT(stepsThat([&](int step) { return prompts.reads(step) == StepReads::Prompt; }), ElementsAre(0, 1, 2, 9));
    EXPECT_THAT(stepsThat([&](int step) { return prompts.reads(step) == StepReads::Mixed; }), ElementsAre(5, 6));
    EXPECT_EQ(prompts.firstDecode(), 3);
    EXPECT_EQ(prompts.decodesBelow(12), 8);
    EXPECT_EQ(prompts.promptsWithin(1, 8), 2);
    EXPECT_EQ(prompts.decodeBefore(10), 8);
    EXPECT_EQ(prompts.decodeBefore(3), -1);
    EXPECT_FALSE(prompts.severalPrompts(0));
    EXPECT_TRUE(prompts.severalPrompts(1));
    EXPECT_EQ(reader.blockText(1, 0, 0), std::string(16, 'p'));
    EXPECT_EQ(reader.blockText(1, 0, 5), "pppp" + std::string(9, 't')) << "the prompt's end and the tokens behind it";
    EXPECT_EQ(reader.blockText(1, 1, 2), "") << "of which of its prompts?";
    EXPECT_EQ(prompts.promptAt(1, 8), 0);
    EXPECT_EQ(prompts.promptAt(1, 9), 1);
    EXPECT_EQ(prompts.promptAt(0, 11), 0);
    EXPECT_TRUE(prompts.readsPieceOf(1, 6));
    EXPECT_FALSE(prompts.readsPieceOf(0, 6));
    const std::vector<StepRow> steps = reader.steps(1, 4, 9);
    ASSERT_EQ(steps.size(), 6u);
    EXPECT_EQ(steps[1].promptTokens, 24);
    EXPECT_EQ(steps[1].decodeTokens(), 1);
    EXPECT_TRUE(steps[1].mixed());
    EXPECT_EQ(steps[5].promptTokens, 17);
    EXPECT_FALSE(steps[5].mixed());
    EXPECT_EQ(steps[0].promptTokens, 0);
}

TEST_F(PromptPieces, RatesLeaveColdAndMixedStepsOut) {
    const TraceReader reader(file);
    const RunRow run = reader.run(1).value();
    std::vector<StepRow> decodes = reader.steps(1);
    std::erase_if(decodes, [](const StepRow& row) { return row.phase == Phase::Prefill; });
    using enum StepKind;
    EXPECT_THAT(kindsOf(reader, run, decodes), ElementsAre(Cold, Steady, Mixed, Mixed, Cold, Steady, Cold, Steady));
    EXPECT_THAT(coldStepsOf(reader, 1), ElementsAre(3, 5, 6, 7, 10));

    const RunSummary summary = summarize(reader, 1);
    EXPECT_EQ(summary.promptTokens, 133);
    EXPECT_EQ(summary.promptSteps, 4);
    EXPECT_DOUBLE_EQ(summary.prefillMs, 17);
    EXPECT_EQ(summary.decodeSteps, 8);
    EXPECT_EQ(summary.decodedTokens, 12);
    EXPECT_DOUBLE_EQ(summary.decodeMs, 24);
    EXPECT_EQ(summary.coldSteps, 3);
    EXPECT_EQ(summary.mixedSteps, 2);
    EXPECT_EQ(summary.countedSteps, 3);
    EXPECT_DOUBLE_EQ(summary.tokensPerSecond, 5 / 3.5e-3);
    EXPECT_DOUBLE_EQ(summary.stepMs, 3.5 / 3);
    EXPECT_DOUBLE_EQ(summary.hitRate, 24.0 / 28);
    EXPECT_EQ(summary.hits + summary.misses, 68) << "totals count every step";
    EXPECT_EQ(summary.ratesCount(), "3 cold and 2 mixed steps left out");
    setColdSteps(ColdSteps::Counted);
    const RunSummary all = summarize(reader, 1);
    setColdSteps(ColdSteps::LeftOut);
    EXPECT_DOUBLE_EQ(all.tokensPerSecond, 12 / 24e-3) << "without the tokens of prompts";
    EXPECT_EQ(all.ratesCount(), "all steps, 3 cold and 2 mixed ones among them");
}

TEST_F(PromptPieces, OneMixedStepIsNamedAlone) {
    change("DELETE FROM selection; DELETE FROM layer_step; UPDATE step SET selected = 0, kept = 0, hits = 0, misses ="
           " 0, h2d_blocks = 0, h2d_bytes = 0, transfer_ns = 0, exposed_ns = 0; DELETE FROM token; DELETE FROM"
           " prompt_piece WHERE id >> 20 & 0x1FFFFFF = 6; UPDATE step SET tokens = 1 WHERE id & 0x1FFFFFF = 6");
    EXPECT_EQ(broken(), "");
    const TraceReader reader(file);
    EXPECT_THAT(coldStepsOf(reader, 1), ElementsAre(3, 5)) << "it never selects: the first step behind the prompts";
    EXPECT_EQ(summarize(reader, 1).ratesCount(), "1 cold and 1 mixed steps left out");
}

TEST_F(PromptPieces, AreNamedOnTheTimeline) {
    const TraceReader reader(file);
    const SpanBatch batch = readSpans(reader, 1, {}, 1 << 20);
    std::string names, exported;
    SpanIndex index;
    for (const SpanRow& span : batch.spans)
        if (span.depth == 0 && batch.texts[std::size_t(span.track)] == kHostTrack)
            names += std::to_string(span.step) + batch.texts[std::size_t(span.name)] + " ";
    EXPECT_EQ(names, "0prefill 1prefill 2prefill 3decode 4decode 5mixed 6mixed 7decode 8decode 9prefill 10decode"
                     " 11decode ");
    for (const auto& row : test::sql(file, "SELECT step, name FROM v_span WHERE depth = 0 ORDER BY step").rows)
        exported += row[0] + row[1] + " ";
    EXPECT_EQ(exported, names) << "v_span says the same";
    std::ostringstream chrome;
    exportChromeTrace(file, chrome);
    EXPECT_THAT(chrome.str(), HasSubstr(R"("name":"mixed")"));
    index.append(batch);
    const int host = index.trackOf(kHostTrack);
    for (int lane = 0; lane < index.laneCount(); ++lane) {
        if (index.lane(lane).track != host || index.lane(lane).depth != 2) continue;
        for (std::uint32_t i = 0; i < index.lane(lane).spans; ++i) {
            const auto kind = kindOfSpan(index, {lane, i}, reader.run(1)->prompts);
            const std::size_t steps = index.at({lane, i}).step == 5   ? 2 // the mixed ones
                                      : index.at({lane, i}).step == 9 ? 4 // prompts
                                      : index.at({lane, i}).step == 4 ? 6
                                                                      : 0;
            if (steps > 0 && kind) {
                EXPECT_EQ(kind->spans, steps * 2) << index.at({lane, i}).step; // of two layers
            }
        }
    }
}

TEST_F(PromptPieces, NumbersOfStepsKeepThePhasesApart) {
    const TraceReader reader(file);
    const auto defined = [&](Phase phase, StepNumbers numbers) {
        StepRequest request;
        request.runId = 1, request.phase = phase, request.numbers = numbers;
        const std::vector<float> columns = stepColumns(reader, request, 0, 11);
        const auto rows = std::size_t(rowsOf(numbers));
        return stepsThat([&](int step) {
            const auto first = columns.begin() + std::ptrdiff_t(std::size_t(step) * rows);
            return std::any_of(first, first + std::ptrdiff_t(rows), [](float v) { return !std::isnan(v); });
        });
    };
    EXPECT_THAT(defined(Phase::Prefill, StepNumbers::Stages), ElementsAre(0, 1, 2, 9));
    EXPECT_THAT(defined(Phase::Decode, StepNumbers::Stages), ElementsAre(3, 4, 5, 6, 7, 8, 10, 11));
    EXPECT_THAT(defined(Phase::Decode, StepNumbers::Transfers), ElementsAre(3, 4, 5, 6, 7, 8, 10, 11));
    std::int64_t prefill = 0, decode = 0;
    for (const BreakdownRow& row : reader.breakdown(1)) (row.phase == Phase::Prefill ? prefill : decode) += row.totalNs;
    EXPECT_EQ(prefill, 17'000'000);
    EXPECT_EQ(decode, 24'000'000);
}

TEST_F(PromptPieces, AreNoDecodeStepsOfAFolder) {
    const ListedTrace listed = listTrace(file);
    ASSERT_EQ(listed.problem, "");
    ASSERT_EQ(listed.runs.size(), 1u);
    EXPECT_EQ(listed.runs[0].decodeSteps(), 8);
}

TEST_F(PromptPieces, AreInNoMeanOfTheRoofline) {
    const TraceReader reader(file);
    const MeasuredRun run = measuredRun(reader, 1);
    EXPECT_EQ(run.steps, 3);
    EXPECT_EQ(run.coldSteps, 3);
    EXPECT_EQ(run.mixedSteps, 2);
    EXPECT_DOUBLE_EQ(run.stepNs, 3.5e6 / 3);
    EXPECT_DOUBLE_EQ(run.batch, 5.0 / 3);
    const double parts = run.parts.projectionsNs + run.parts.selectionNs + run.parts.attentionNs + run.parts.exposedNs +
                         run.parts.otherNs;
    EXPECT_NEAR(parts, run.stepNs, 1) << "without the prompt between them";
    EXPECT_NEAR(run.context, (86 + 89 + 33 + 90 + 34 + 91 + 18 + 92 + 19) / 9.0, 1e-9)
        << "of steps that decode alone, from the first counted one on";
}

TEST_F(PromptPieces, AreReplayedWithAPoolForEachPrompt) {
    const SelectionTrace trace = loadSelectionTrace(TraceReader(file), 1);
    ASSERT_EQ(trace.steps.count(), 8);
    EXPECT_EQ(trace.steps[2].tokens, 1) << "of step 5, without its prompt";
    std::vector<int> left;
    for (const ReplayStep& step : trace.steps)
        if (step.cold) left.push_back(step.step);
    EXPECT_THAT(left, ElementsAre(3, 5, 6, 7, 10));
    ASSERT_EQ(trace.pools.size(), 6u) << "two layers, three prompts";
    for (const PoolTrace& pool : trace.pools) {
        std::vector<int> steps;
        for (const std::int32_t at : pool.steps)
            if (at >= 0) steps.push_back(trace.steps[at].step);
        if (pool.sequence == 0)
            EXPECT_THAT(steps, ElementsAre(3, 4, 5, 6, 7, 8, 10, 11));
        else if (pool.request == 1)
            EXPECT_THAT(steps, ElementsAre(7, 8));
        else
            EXPECT_THAT(steps, ElementsAre(10, 11));
    }
    ASSERT_EQ(trace.leaves.size(), 1u);
    EXPECT_EQ(trace.leaves[0].step, 9);
    EXPECT_EQ(trace.leaves[0].request, 1);
    const auto configs = replay(trace, {{"lru"}, {8}, {}});
    ASSERT_EQ(configs.size(), 1u);
    EXPECT_EQ(configs[0].hits + configs[0].misses, 68);
}

TEST_F(PromptPieces, AreInInsightsReportsComparisonsAndWaterfalls) {
    TraceReader reader(file);
    const ExposureReport exposure = insightsOf(reader, 1).exposure;
    EXPECT_EQ(exposure.all.steps, 8);
    EXPECT_EQ(exposure.warm.steps, 3);
    EXPECT_EQ(exposure.mixedSteps, 2);
    EXPECT_EQ(exposure.warm.wallNs, 3'500'000);
    EXPECT_THAT(exposure.detail, HasSubstr("5 steps that are cold or read prompts as well left out"));

    const reports::RunData data = reports::readRun(reader, reader.run(1).value());
    EXPECT_THAT(data.notes, testing::IsEmpty()) << "no rule is broken";
    EXPECT_EQ(data.countedSteps().size(), 3u);
    EXPECT_TRUE(std::isnan(data.meanContext())) << "prompts come and go";
    const std::string page = reports::html(reports::makeReport({file}));
    EXPECT_THAT(page, HasSubstr("Mixed steps"));
    EXPECT_THAT(page, HasSubstr("Prompt steps"));
    EXPECT_THAT(page, HasSubstr("3 cold and 2 mixed steps left out"));

    const StepIndex index = loadStepIndex(reader, 1);
    EXPECT_EQ(index.steps.size(), 8u);
    const RunSample sample = loadRunSample(reader, 1);
    EXPECT_EQ(commonSteps(std::span(&sample, 1), {}).first, 5);

    const MeasuredRun run = measuredRun(reader, 1);
    const StepTimes times = stepTimesOf(reader, run, exposureOf(reader, 1));
    EXPECT_EQ(times.steps, 3);
    EXPECT_DOUBLE_EQ(times.wallNs, 3.5e6);
    ASSERT_TRUE(times.prefill);
    EXPECT_EQ(times.prefill->step, 0);
}

TEST_F(PromptPieces, AreCopiedByAMerge) {
    change("INSERT INTO run_meta VALUES (1, 'rank', '0'), (1, 'group', 'job')");
    const std::string other = (folder / "other.kvtrace").string(), merged = (folder / "merged.kvtrace").string();
    std::filesystem::copy_file(file, other);
    test::sql(other, "UPDATE run_meta SET value = '1' WHERE key = 'rank'", SQLITE_OPEN_READWRITE);
    mergeTraces({file, other}, merged, false);
    EXPECT_EQ(test::value(merged, "SELECT count(*) FROM v_prompt_piece WHERE run_id = 2"), "6");
    EXPECT_EQ(test::value(merged, "SELECT count(*) FROM v_step_kind WHERE kind = 'mixed'"), "4");
}

TEST_F(PromptPieces, OlderFilesAndOtherToolsTablesReadAsBefore) {
    change("DROP TABLE prompt_piece; CREATE TABLE prompt_piece (id INTEGER PRIMARY KEY, colour TEXT)");
    const TraceReader strange(file);
    EXPECT_FALSE(strange.run(1)->prompts.inPieces());
    change("DROP VIEW v_step_kind; DROP VIEW v_prompt_piece; DROP VIEW v_span; DROP TABLE prompt_piece");
    const TraceReader older(file);
    EXPECT_FALSE(older.run(1)->prompts.inPieces());
    EXPECT_EQ(older.run(1)->prompts.firstDecode(), 1);
    EXPECT_THAT(broken(), HasSubstr("step-phase: step 1: phase is 0")) << "nothing says why";
}

TEST_F(PromptPieces, EveryEditByHandIsFound) {
    const std::string good = (folder / "good.kvtrace").string();
    std::filesystem::copy_file(file, good);
    const std::pair<const char*, const char*> edits[] = {
        {"UPDATE step SET phase = 0 WHERE id & 0x1FFFFFF = 4", "step-phase"},
        {"UPDATE step SET phase = 7 WHERE id & 0x1FFFFFF = 4", "step-phase"},
        {"UPDATE selection SET kept = 1 WHERE id >> 30 & 0x1FFFFFF = 10 AND id >> 10 & 1023 = 1", "blob-kept"},
        {"UPDATE selection SET kept = 0 WHERE id >> 30 & 0x1FFFFFF = 10 AND id >> 10 & 1023 = 0", "blob-kept"},
        {"UPDATE token SET position = 83 WHERE id >> 20 & 0x1FFFFFF = 2", "piece-token"},
        {"UPDATE token SET position = position + 1 WHERE id >> 20 & 0x1FFFFFF > 7", "token-positions"},
        {"UPDATE token SET position = 80 WHERE id >> 20 & 0x1FFFFFF = 4", "token-order"},
    };
    for (const auto& [edit, rule] : edits) {
        std::filesystem::copy_file(good, file, std::filesystem::copy_options::overwrite_existing);
        change(edit);
        EXPECT_THAT(broken(), HasSubstr(std::string(rule) + ":")) << edit;
    }
}

TEST(BlockIds, AsLargeAsTheFormatHasAreReplayed) {
    const test::Folder folder;
    const std::string file = (folder / "far.kvtrace").string();
    test::writePromptPieces(file);
    const SelectionTrace near = loadSelectionTrace(TraceReader(file), 1);
    EXPECT_FALSE(near.renumbered);
    // The newest block of every selection moves from n to 2^28 - 1 - 64 + n: as many gaps, one of them four bytes more.
    std::string edit = "BEGIN;";
    const auto rows = test::sql(file, "SELECT id, hex(blocks) FROM selection").rows;
    for (const auto& row : rows) {
        std::string hex = row[1];
        const int count = std::stoi(hex.substr(2, 2), nullptr, 16);
        if (count < 2) continue;
        int last = -1;
        for (int i = 0; i < count - 1; ++i) last += std::stoi(hex.substr(4 + 2 * std::size_t(i), 2), nullptr, 16) + 1;
        const std::size_t at = 4 + 2 * std::size_t(count - 1);
        const int newest = last + std::stoi(hex.substr(at, 2), nullptr, 16) + 1;
        std::uint32_t gap = std::uint32_t((1 << 28) - 1 - 64 + newest - last - 1);
        std::string varint;
        for (; gap >= 128; gap >>= 7) varint += fmt::format("{:02x}", (gap & 127) | 128);
        hex.replace(at, 2, varint + fmt::format("{:02x}", gap));
        edit += fmt::format("UPDATE selection SET blocks = x'{}' WHERE id = {};", hex, row[0]);
    }
    test::sql(file, edit + "COMMIT", SQLITE_OPEN_READWRITE);
    const SelectionTrace far = loadSelectionTrace(TraceReader(file), 1);
    EXPECT_TRUE(far.renumbered);
    ASSERT_EQ(far.pools.size(), near.pools.size());
    EXPECT_EQ(far.hits, near.hits);
    for (const char* policy : {"lru", "belady", "fifo", "lfu", "arc"}) {
        const auto a = replay(near, {{policy}, {3}, {}}), b = replay(far, {{policy}, {3}, {}});
        ASSERT_EQ(a.size(), 1u);
        EXPECT_EQ(a[0].misses, b[0].misses) << policy;
    }
}

TEST(FarSteps, OfARunWithManyLayersAreInTheReport) {
    const test::Folder folder;
    const std::string file = (folder / "far.kvtrace").string();
    test::writePromptPieces(file);
    test::sql(
        file,
        "UPDATE run SET layers = 1024; UPDATE step SET id = (1 << 25) | 0x1FFFFFF WHERE id & 0x1FFFFFF = 11;"
        "UPDATE layer_step SET id = ((1 << 35) | (0x1FFFFFF << 10)) | (id & 1023) WHERE (id >> 10) & 0x1FFFFFF = 11;"
        "UPDATE selection SET id = (1 << 55) | (0x1FFFFFF << 30) | (id & 0x3FFFFFFF) WHERE (id >> 30) & 0x1FFFFFF ="
        " 11; UPDATE token SET id = (1 << 45) | (0x1FFFFFF << 20) | (id & 0xFFFFF) WHERE (id >> 20) & 0x1FFFFFF ="
        " 11; UPDATE health SET dropped_steps = 33554420",
        SQLITE_OPEN_READWRITE);
    const std::string page = reports::html(reports::makeReport({file}));
    EXPECT_THAT(page, HasSubstr("33554431"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
