// A merged trace has every row of the traces it was made of, under the new numbers, and obeys the rules of the format.
#include "base/error.h"
#include "profiler/check/check.h"
#include "profiler/merge/clock_offset.h"
#include "profiler/merge/merge.h"
#include "profiler/merge/rank_group.h"
#include "profiler/merge/rank_numbers.h"
#include "profiler/read/trace_reader.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_denoise.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/synthetic_serving.h"
#include "tests/profiler/temporary_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <gmock/gmock.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class MergeTest : public testing::Test {
protected:
    std::string path(const std::string& name) const { return (folder / name).string(); }
    static void change(const std::string& file, const std::string& sql) {
        test::sql(file, sql, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
    }
    std::string record(const std::string& name, const synthetic::RunShape& shape = {}) const {
        synthetic::recordFile(folder / name, shape);
        return path(name);
    }
    /// A rank's trace, with keys of run_meta.
    std::string rank(int number, const std::string& keys, const synthetic::RunShape& shape = {}) const {
        const std::string file = record(fmt::format("rank{}.kvtrace", number), shape);
        change(file,
               fmt::format("INSERT OR REPLACE INTO run_meta SELECT 1, key, value FROM (SELECT 'rank' AS key, '{}' "
                           "AS value UNION ALL SELECT * FROM (VALUES ('group', 'job'){}{}))",
                           number, keys.empty() ? "" : ", ", keys));
        return file;
    }
    /// Every view has the same rows for a run of the merged trace as for the run it was copied from, times apart.
    static void expectSameRows(const std::string& merged, int run, const std::string& source, int from,
                               std::int64_t addNs = 0) {
        const std::string attach = fmt::format("ATTACH '{}' AS src;", source);
        for (const char* view : {"v_step",         "v_layer",          "v_locality",      "v_lookahead",
                                 "v_oracle",       "v_denoise",        "v_denoise_token", "v_denoise_layer",
                                 "v_denoise_tile", "v_denoise_change", "v_request",       "v_request_span",
                                 "v_iteration",    "v_member",         "v_row_event",     "v_served_selection",
                                 "v_breakdown",    "v_transfer",       "v_token",         "v_prompt",
                                 "v_counter",      "v_span",           "v_kernel",        "v_gauge",
                                 "v_flow",         "v_clock_sync",     "v_step_kind",     "v_prompt_piece"}) {
            std::string mine, theirs;
            for (const auto& row :
                 test::sql(merged, fmt::format("SELECT name FROM pragma_table_info('{}')", view)).rows) {
                const std::string& column = row[0];
                if (column == "run_id" || column == "from_span" || column == "to_span" || column == "span_id") continue;
                const bool time = column == "start_ns" || column == "time_ns" || column == "arrival_ns" ||
                                  column == "first_sched_ns" || column == "first_token_ns" || column == "end_ns" ||
                                  column == "token_ns" || column == "from_start_ns" || column == "to_start_ns" ||
                                  column == "own_ns";
                mine += (mine.empty() ? "" : ", ") + column;
                theirs += (theirs.empty() ? "" : ", ") + (time ? fmt::format("{} + {}", column, addNs) : column);
            }
            const std::string a = fmt::format("SELECT {} FROM main.{} WHERE run_id = {}", mine, view, run);
            const std::string b = fmt::format("SELECT {} FROM src.{} WHERE run_id = {}", theirs, view, from);
            const auto count = [](const std::string& query) { return "(SELECT count(*) FROM (" + query + "))"; };
            const std::vector<std::string> counts =
                test::sql(merged, attach + "SELECT " + count(a) + ", " + count(b) + ", " + count(a + " EXCEPT " + b) +
                                      ", " + count(b + " EXCEPT " + a))
                    .rows.at(0);
            EXPECT_EQ(counts[0], counts[1]) << view;
            EXPECT_EQ(counts[2], "0") << view;
            EXPECT_EQ(counts[3], "0") << view;
        }
    }
    static void expectRulesHold(const std::string& file) {
        for (const RunCheck& check : checkTrace(TraceReader(file)))
            EXPECT_EQ(check.violations(), 0) << check.sentence();
    }
    test::Folder folder;
};

TEST_F(MergeTest, CopiesEveryRowOfEveryKindOfRun) {
    const std::string a = record("a.kvtrace", {.oracle = true}), served = path("served.kvtrace"),
                      denoised = path("denoised.kvtrace"), out = path("out.kvtrace");
    {
        Recorder recorder(a, {});
        recorder.beginRun(synthetic::infoOf({}));
        synthetic::RunGenerator generator({});
        std::vector<SpanRecord> spans;
        for (int i = 0; i < generator.steps(); ++i) {
            auto step = recorder.acquire();
            generator.fillNext(*step, RecordLevel::Full);
            spans.push_back({step->step, 0, SpanRecord::Kind::Kernel, "stream 7", fmt::format("kernel {}", i % 5),
                             step->startNs, step->durationNs / 4, 0});
            recorder.take(std::move(step));
        }
        recorder.take(std::move(spans));
        recorder.endRun(RunStatus::Finished, {});
    }
    change(a, "INSERT INTO note VALUES (NULL, 2, 5, 0, 'here', '2026-01-01T00:00:00Z');"
              "INSERT INTO flow SELECT NULL, 2, min(id), max(id) FROM span WHERE run_id = 2;"
              "INSERT INTO span_detail SELECT min(id), (SELECT id FROM text LIMIT 1), '{\"a\":1}' FROM span;"
              "INSERT INTO gauge SELECT NULL, 2, id, 7, 1.5 FROM text LIMIT 1;"
              "INSERT INTO counter SELECT NULL, 2, id, 7, 3, 9 FROM text LIMIT 1;"
              "INSERT INTO clock_sync SELECT NULL, 2, id, 7, 5000, 9 FROM text LIMIT 1");
    synthetic::recordServing(served, 12, true, RunStatus::Finished, true);
    synthetic::recordDenoising(denoised, {});
    // b's texts come first, so that the numbers of a's texts and spans differ from those in their own file
    const MergeResult result = mergeTraces({served, a, denoised}, out, false);
    EXPECT_THAT(result.remarks, IsEmpty());
    ASSERT_EQ(result.runs.size(), 4u);
    expectSameRows(out, 1, served, 1);
    expectSameRows(out, 2, a, 1);
    expectSameRows(out, 3, a, 2);
    expectSameRows(out, 4, denoised, 1);
    EXPECT_EQ(test::value(out, "SELECT count(*) FROM note WHERE run_id = 3 AND text = 'here'"), "1");
    EXPECT_EQ(test::value(out, "SELECT count(*) FROM span_detail"), "1");
    EXPECT_EQ(test::value(out, "SELECT count(*) FROM flow f JOIN span a ON a.id = f.from_span JOIN span b ON b.id ="
                               " f.to_span WHERE a.run_id = 3 AND b.run_id = 3"),
              "1");
    EXPECT_EQ(test::value(out, "SELECT value FROM run_meta WHERE run_id = 3 AND key = 'merged_from'"), "a.kvtrace:2");
    expectRulesHold(out);
    EXPECT_FALSE(fs::exists(out + "-wal"));
    // merging what was merged changes nothing but where the runs come from
    mergeTraces({out}, path("again.kvtrace"), false);
    for (int run = 1; run <= 4; ++run) expectSameRows(path("again.kvtrace"), run, out, run);
}

TEST_F(MergeTest, RanksGetTheModelsHeadsAndLayersAndOneClock) {
    const auto keys = [](int heads, int layers, std::int64_t own, std::int64_t clock) {
        return fmt::format("('head_first', '{}'), ('layer_first', '{}'), ('world', '4'), ('clocks', "
                           "'[[\"monotonic:a\",{},{},50]]')",
                           heads, layers, own, clock);
    };
    rank(1, keys(2, 4, 0, 5'002'000'000), {.decodeSteps = 2, .seed = 2});
    rank(0, keys(0, 4, 1'000'000, 5'001'000'000), {.decodeSteps = 2, .seed = 1}); // began at 5.000 s
    rank(3, keys(6, 0, 0, 4'999'000'000), {.decodeSteps = 2, .seed = 3});
    const std::string out = path("all.kvtrace");
    const MergeResult result = mergeTraces({folder.path().string()}, out, false);
    EXPECT_THAT(result.remarks, ElementsAre("rank 2 of 4 is missing from group job"));
    ASSERT_EQ(result.runs.size(), 3u);
    const std::vector<std::int64_t> added{1'000'000, 3'000'000, 0}; // rank 3 began first
    const std::vector<int> ranks{0, 1, 3}, heads{0, 2, 6}, layers{4, 4, 0};
    for (std::size_t i = 0; i < 3; ++i) {
        const MergedRun& run = result.runs[i];
        EXPECT_EQ(run.rank, ranks[i]);
        EXPECT_EQ(run.addedNs, added[i]);
        EXPECT_EQ(run.errorNs, i == 0 ? 0 : 100);
        EXPECT_EQ(run.clock, i == 0 ? "reference" : "monotonic");
        EXPECT_TRUE(run.name.ends_with(fmt::format(", rank {}", ranks[i]))) << run.name;
        const std::string merged = fmt::format("FROM v_locality WHERE run_id = {}", run.runId);
        EXPECT_EQ(test::value(out, "SELECT min(kv_head) || '..' || max(kv_head) " + merged),
                  fmt::format("{}..{}", heads[i], heads[i] + 1));
        EXPECT_EQ(test::value(out, "SELECT min(layer) || '..' || max(layer) " + merged),
                  fmt::format("{}..{}", layers[i], layers[i] + 3));
        const auto row = TraceReader(out).run(run.runId);
        EXPECT_EQ(row->kvHeads, 8);
        EXPECT_EQ(row->layers, 8);
        EXPECT_EQ(row->metaOr("head_first"), "") << "numbers are the model's now";
        EXPECT_EQ(row->metaOr("head_range"), fmt::format("{}..{}", heads[i], heads[i] + 1));
        const std::string start = "SELECT min(start_ns) FROM v_step WHERE run_id = ";
        const std::string source = path(fmt::format("rank{}.kvtrace", ranks[i]));
        EXPECT_EQ(std::stoll(test::value(out, start + std::to_string(run.runId))),
                  std::stoll(test::value(source, start + "1")) + added[i]);
    }
    expectRulesHold(out);
    // a second merge finds them aligned and numbered
    const MergeResult again = mergeTraces({out}, path("again.kvtrace"), false);
    for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(again.runs[i].addedNs, 0);
        EXPECT_EQ(again.runs[i].name, result.runs[i].name);
        expectSameRows(path("again.kvtrace"), again.runs[i].runId, out, result.runs[i].runId);
    }
}

TEST_F(MergeTest, SaysWhichClockIsOff) {
    const auto keys = [](std::int64_t monotonic, std::int64_t utc) {
        return fmt::format("('clocks', '[[\"monotonic:a\",0,{},10],[\"utc\",0,{},10]]')", monotonic, utc);
    };
    constexpr std::int64_t kUtc = 1'800'000'000'000'000'000;
    rank(0, keys(7'000'000'000, kUtc));
    rank(1, keys(7'000'500'000, kUtc + 1'000'500'000));
    const MergeResult result = mergeTraces({folder.path().string()}, path("all.kvtrace"), false);
    EXPECT_THAT(result.remarks,
                ElementsAre("rank 1 of group job beside rank 0: its clock utc is 1.000 s ahead by monotonic"));
    EXPECT_EQ(result.runs[1].addedNs, 500'000);
}

TEST_F(MergeTest, SaysWhatIsTwiceUnreadableOrHasNoClock) {
    rank(0, "");
    fs::copy_file(path("rank0.kvtrace"), path("twice.kvtrace"));
    std::ofstream(path("bad.kvtrace")) << "no trace";
    change(rank(1, ""), "UPDATE run SET created_utc = 'some day'");
    const MergeResult result = mergeTraces({folder.path().string()}, path("all.kvtrace"), false);
    EXPECT_THAT(result.remarks,
                ElementsAre(HasSubstr("bad.kvtrace is left out: "),
                            "rank 0 of group job is in rank0.kvtrace and in twice.kvtrace: they are kept as different "
                            "runs of that rank",
                            "rank 1 of group job has no clock in common with rank 0: its times are not shifted"));
}

TEST_F(MergeTest, RefusesWhatCannotBeMerged) {
    const std::string a = record("a.kvtrace"), text = path("text.kvtrace");
    std::ofstream(text) << "no trace";
    fs::create_directory(path("empty"));
    const auto refusal = [](const std::vector<std::string>& inputs, const std::string& out, bool overwrite = false) {
        try {
            mergeTraces(inputs, out, overwrite);
            return std::string("merged");
        } catch (const Error& error) {
            return oneLine(error);
        }
    };
    EXPECT_THAT(refusal({a}, a), HasSubstr("exists"));
    EXPECT_THAT(refusal({a}, a, true), HasSubstr("into itself"));
    EXPECT_THAT(refusal({a, text}, path("out.kvtrace")), HasSubstr("text.kvtrace is not a KVScope trace"));
    EXPECT_THAT(refusal({path("empty")}, path("out.kvtrace")), HasSubstr("no run to merge"));
    EXPECT_THAT(refusal({path("none")}, path("out.kvtrace")), HasSubstr("no file"));
    EXPECT_THAT(refusal({a}, path("none/out.kvtrace")), testing::Not("merged"));
    change(a, "INSERT OR REPLACE INTO run_meta VALUES (1, 'rank', '0'), (1, 'head_first', '1023')");
    EXPECT_THAT(refusal({a}, path("out.kvtrace")), HasSubstr("KV heads from 1023"));
    EXPECT_FALSE(fs::exists(path("out.kvtrace")));
}

TEST_F(MergeTest, ReplacesNoTraceThatIsBeingRecorded) {
    const std::string a = record("a.kvtrace"), live = path("live.kvtrace");
    Recorder recorder(live, {});
    try {
        mergeTraces({a}, live, true);
        ADD_FAILURE() << "merged";
    } catch (const Error& error) {
        EXPECT_THAT(oneLine(error), HasSubstr(live + " is being written by this program already"));
    }
    synthetic::record(recorder, {});
    recorder.flush();
    EXPECT_EQ(recorder.health().error, "");
    EXPECT_EQ(TraceReader(live).steps(1).size(), 21u);
}

TEST(RankGroups, LayoutsDecideWhatIsCountedTwice) {
    std::vector<RunRow> runs(4);
    const auto set = [&](const std::vector<std::pair<std::string, int>>& layouts) {
        for (std::size_t i = 0; i < runs.size(); ++i) {
            runs[i].runId = int(i) + 1;
            runs[i].kvHeads = 2;
            runs[i].meta = {{"rank", std::to_string(i)},
                            {"group", "g"},
                            {"layout", layouts[i].first},
                            {"head_first", std::to_string(layouts[i].second)}};
        }
        const std::vector<RankGroup> groups = rankGroups(runs);
        EXPECT_EQ(groups.size(), 1u);
        std::string replicas;
        for (const RankedRun& ranked : groups[0].ranks)
            replicas += ranked.replicaOf ? std::to_string(*ranked.replicaOf) : "-";
        return replicas + (groups[0].otherRequests ? " other" : "") + fmt::format(" {}", groups[0].world);
    };
    // tensor parallel, heads sharded; replicated in pairs; latent attention; data-parallel attention; both
    EXPECT_EQ(set({{"tp=0/4", 0}, {"tp=1/4", 2}, {"tp=2/4", 4}, {"tp=3/4", 6}}), "---- 4");
    EXPECT_EQ(set({{"tp=0/4", 0}, {"tp=1/4", 0}, {"tp=2/4", 2}, {"tp=3/4", 2}}), "-0-2 4");
    EXPECT_EQ(set({{"tp=0/4", 0}, {"tp=1/4", 0}, {"tp=2/4", 0}, {"tp=3/4", 0}}), "-000 4");
    EXPECT_EQ(set({{"dp=0/4", 0}, {"dp=1/4", 0}, {"dp=2/4", 0}, {"dp=3/4", 0}}), "---- other 4");
    EXPECT_EQ(set({{"tp=0/2 dp=0/4", 0}, {"tp=1/2 dp=0/4", 0}, {"tp=0/2 dp=1/4", 0}, {"tp=1/2 dp=1/4", 0}}),
              "-0-2 other 8");
    EXPECT_EQ(set({{"tp=0/4 ep=0/4", 0}, {"tp=1/4 ep=1/4", 2}, {"broken", 4}, {"tp=9/4", 6}}), "---- 4");
    runs.erase(runs.begin() + 1);
    const RankGroup group = rankGroups(runs).at(0);
    EXPECT_THAT(group.missing, ElementsAre(1));
    EXPECT_EQ(missingSentence(group), "rank 1 of 4 is missing from group g");
}

TEST(RankClocks, TheSurestWayIsTakenAndTheOthersAreCompared) {
    RankClock a, b;
    for (int i = 0; i < 20; ++i) {
        a.collectives.push_back({fmt::format("all_reduce {}", i), 1'000'000 * i});
        b.collectives.push_back({fmt::format("all_reduce {}", i), 1'000'000 * i + 700'000 + 100 * (i % 3)});
        a.steps.push_back({std::to_string(i), 1'000'000 * i});
        b.steps.push_back({std::to_string(i), 1'000'000 * i + 1'000'000'000});
    }
    a.medianStepNs = b.medianStepNs = 900'000;
    ClockOffset offset = offsetBetween(a, b, false);
    EXPECT_EQ(offset.by, "collectives");
    EXPECT_EQ(offset.addNs, -700'100);
    EXPECT_EQ(offset.errorNs, 100);
    EXPECT_EQ(offset.doubt, "");
    a.readings = {{"utc", 0, 5'000'000'000, 10}};
    b.readings = {{"utc", 0, 5'999'300'000, 10}};
    offset = offsetBetween(a, b, false);
    EXPECT_EQ(offset.by, "collectives");
    EXPECT_EQ(offset.doubt, "its clock utc is 1.000 s ahead by collectives");
    a.collectives.clear();
    a.readings = {{"monotonic:x", 5, 1005, 1}, {"utc", 0, 5'000'000'000, 10}};
    b.readings = {{"monotonic:x", 5, 2005, 1}, {"monotonic:y", 0, 9, 0}, {"utc", 0, 5'000'001'000, 10}};
    offset = offsetBetween(a, b, false);
    EXPECT_EQ(offset.by, "monotonic");
    EXPECT_EQ(offset.addNs, 1000);
    EXPECT_EQ(offset.doubt, "");
    offset = offsetBetween(a, b, true);
    EXPECT_THAT(offset.doubt, HasSubstr("its steps begin 1.000 s later than the same steps there"));
    a.readings.clear();
    EXPECT_EQ(offsetBetween(a, b, false).by, "");
}

TEST(RankClocks, AShiftMovesReadingsAlongAndLeavesOtherTextAlone) {
    EXPECT_EQ(shiftedClocks(R"([["utc",5,7,1],["x"]])", 10), R"([["utc",15,7,1],["x"]])");
    EXPECT_EQ(shiftedClocks("none", 10), "none");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
