// The list of a folder's traces says what a reader that opens each of them says, also of files that are no good.
#include "base/error.h"
#include "profiler/read/run_labels.h"
#include "profiler/read/trace_list.h"
#include "profiler/read/trace_reader.h"
#include "profiler/record/recorder.h"
#include "profiler/sqlite/page_reader.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <fmt/format.h>
#include <fstream>
#include <gmock/gmock.h>
#include <random>
#include <sys/stat.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class TraceList : public testing::Test {
protected:
    std::string path(const std::string& name) const { return (folder / name).string(); }
    std::string record(const std::string& name, const synthetic::RunShape& shape = {}) const {
        synthetic::recordFile(folder / name, shape);
        return path(name);
    }
    static void change(const std::string& file, const std::string& sql) {
        test::sql(file, sql, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
    }
    /// The list agrees with a reader that opens the file.
    static void expectAsOpened(const std::string& file) {
        const ListedTrace listed = listTrace(file);
        EXPECT_EQ(listed.problem, "");
        const std::vector<RunRow> runs = TraceReader(file).runs();
        ASSERT_EQ(listed.runs.size(), runs.size()) << file;
        for (std::size_t i = 0; i < runs.size(); ++i) {
            EXPECT_EQ(listed.runs[i].runId, runs[i].runId);
            EXPECT_EQ(listed.runs[i].name, runs[i].name);
            EXPECT_EQ(listed.runs[i].createdUtc, runs[i].createdUtc);
            EXPECT_EQ(listed.runs[i].model, runs[i].model);
            EXPECT_EQ(listed.runs[i].method, runs[i].method);
            EXPECT_EQ(listed.runs[i].engine, runs[i].metaOr("engine"));
            EXPECT_EQ(listed.runs[i].status, runs[i].stale ? "interrupted" : runs[i].status.text());
            EXPECT_EQ(listed.runs[i].steps, runs[i].steps);
        }
    }
    /// Rows of a table as the pages have them: rowid and the texts and integers of the columns.
    static std::vector<std::string> rowsByPages(const std::string& file, const char* table) {
        const PageReader pages(file);
        std::vector<std::string> rows;
        pages.rows(*pages.find(table), [&](const PageRow& row) {
            std::string text = std::to_string(row.rowid);
            for (std::size_t i = 0; i < pages.find(table)->columns.size(); ++i)
                if (const auto number = row.integer(i))
                    text += fmt::format(",{}", *number);
                else
                    text += fmt::format(",{}", row.text(i).value_or("-"));
            rows.push_back(std::move(text));
        });
        return rows;
    }
    test::Folder folder;
};

TEST_F(TraceList, AgreesWithAReaderOnRunsOfManyShapes) {
    for (const synthetic::RunShape& shape :
         {synthetic::RunShape{}, synthetic::RunShape{.decodeSteps = 1}, synthetic::RunShape{.decodeSteps = 3000},
          synthetic::RunShape{.layers = 40, .kvHeads = 8, .decodeSteps = 30}}) {
        const std::string file = path(fmt::format("{}-{}.kvtrace", shape.layers, shape.decodeSteps));
        synthetic::recordFile(file, shape, RecordLevel::Counters);
        expectAsOpened(file);
        EXPECT_NO_THROW(PageReader{file}) << "a finished trace is read without SQLite";
    }
}

TEST_F(TraceList, ReadsAllRunsOfAFileWithManyAndLongTexts) {
    const std::string file = record("many.kvtrace", {.decodeSteps = 2});
    const std::string columns =
        "created_utc, model, method, params_json, backend, device, link, timing, link_gbps, link_latency_us,"
        " block_size, layers, kv_heads, query_heads, head_dim, sequences, device_slots, budget_blocks, block_bytes,"
        " level, status, status_message";
    change(file, "WITH n(i) AS (VALUES (2) UNION ALL SELECT i + 1 FROM n WHERE i < 255)"
                 " INSERT INTO run(run_id, name, " +
                     columns + ") SELECT i, 'run ' || i || ' of 255', " + columns + " FROM run, n WHERE run_id = 1;" +
                     // longer than a page: the row goes on in a chain of pages
                     "UPDATE run SET name = printf('%.30000c', 'n'), params_json = printf('{\"a\":\"%.40000c\"}', 'p')"
                     " WHERE run_id = 77;"
                     "WITH n(i) AS (VALUES (2) UNION ALL SELECT i + 1 FROM n WHERE i < 255) INSERT INTO step"
                     " SELECT i << 25 | i, 1,1,0, 0,9, 0,0,0, 0,NULL,0,0, 0,0,0,0, 0,0 FROM n;"
                     "WITH n(i) AS (VALUES (2) UNION ALL SELECT i + 1 FROM n WHERE i < 255) INSERT INTO run_meta"
                     " SELECT i, 'rank', i - 2 FROM n UNION ALL SELECT i, 'engine', 'engine ' || i FROM n"
                     " UNION ALL SELECT i, 'model_shape', printf('%.20000c', 'x') FROM n;"
                     "DELETE FROM run WHERE run_id = 100");
    expectAsOpened(file);
    const ListedTrace listed = listTrace(file);
    ASSERT_EQ(listed.runs.size(), 254u);
    EXPECT_EQ(listed.runs[40].name, "run 41 of 255");
    EXPECT_EQ(listed.runs[40].rank, 39);
    EXPECT_EQ(listed.runs[40].engine, "engine 41");
    EXPECT_EQ(listed.runs[76].name.size(), 30000u);
    EXPECT_EQ(listed.runs.back().steps, 256);
    EXPECT_EQ(listed.runs[0].rank, std::nullopt);
}

TEST_F(TraceList, RunsHaveTheNamesThatTheirLabelsGive) {
    const std::string file = record("labelled.kvtrace");
    setLabels(file, 1, {.name = "baseline", .note = "", .tags = {}, .pinned = true});
    EXPECT_NO_THROW(PageReader{file}) << "read without SQLite";
    expectAsOpened(file);
    EXPECT_EQ(listTrace(file).runs.at(0).name, "baseline");
    EXPECT_TRUE(listTrace(file).runs.at(0).pinned);
    // A note that is longer than a page hides nothing.
    setLabels(file, 1, {.name = "second", .note = std::string(50'000, 'n'), .tags = {}, .pinned = false});
    expectAsOpened(file);
    EXPECT_EQ(listTrace(file).runs.at(0).name, "second");
    EXPECT_FALSE(listTrace(file).runs.at(0).pinned);
    change(file, "UPDATE run_meta SET value = '{\"name\": 7' WHERE key = 'labels'"); // damaged: no labels
    expectAsOpened(file);
    EXPECT_EQ(listTrace(file).runs.at(0).name, TraceReader(file).runs().at(0).name);
}

TEST_F(TraceList, PagesHaveTheRowsThatSqliteHas) {
    const std::string file = record("pages.kvtrace", {.decodeSteps = 700});
    const auto rows = rowsByPages(file, "step");
    const test::SqlRows expected = test::sql(
        file, "SELECT id || ',-,' || phase || ',' || tokens || ',' || opens_block || ',' || start_ns || ',' ||"
              " duration_ns || ',' || embed_ns || ',' || lm_head_ns || ',' || sample_ns || ',' || selected || ',' ||"
              " coalesce(kept, '-') || ',' || hits || ',' || misses || ',' || h2d_blocks || ',' || d2h_blocks || ','"
              " || h2d_bytes || ',' || d2h_bytes || ',' || transfer_ns || ',' || exposed_ns FROM step ORDER BY id");
    ASSERT_EQ(rows.size(), expected.rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i], expected.rows[i][0]);
    const PageReader pages(file);
    for (const std::int64_t highest :
         {std::int64_t(0), std::int64_t(1) << 25, (std::int64_t(1) << 25) + 333, std::int64_t(1) << 40}) {
        const std::string newest = test::value(file, fmt::format("SELECT max(id) FROM step WHERE id <= {}", highest));
        const auto found = pages.lastRowid(*pages.find("step"), 0, highest);
        EXPECT_EQ(found ? std::to_string(*found) : "NULL", newest);
    }
}

TEST_F(TraceList, NamesFilesThatCannotBeReadAndGoesOn) {
    record("a.kvtrace");
    std::ofstream(path("b.kvtrace")) << "no trace at all";
    std::ofstream(path("c.kvtrace")).flush();
    record("d.kvtrace");
    change(path("d.kvtrace"), "PRAGMA user_version=7");
    record("e.kvtrace");
    fs::resize_file(path("e.kvtrace"), fs::file_size(path("e.kvtrace")) / 2);
    record("f.kvtrace");
    change(path("f.kvtrace"), "DROP TABLE token");
    fs::create_symlink(path("gone"), path("g.kvtrace"));
    ASSERT_EQ(mkfifo(path("h.kvtrace").c_str(), 0600), 0);
    change(path("i.kvtrace"), "CREATE TABLE other(a)");
    record("j.data"); // a trace by its content
    std::ofstream(path("notes.txt")) << "passed over";
    fs::create_directory(path("k.kvtrace"));
    const std::vector<std::string> paths = tracesOfFolder(folder.path().string());
    std::vector<ListedTrace> all(paths.size());
    listTraces(paths, [&](std::size_t place, ListedTrace trace) { all[place] = std::move(trace); });
    std::vector<std::string> names;
    for (const ListedTrace& trace : all) {
        names.push_back(trace.file);
        EXPECT_EQ(trace.runs.size(), trace.problem.empty() ? 1u : 0u) << trace.file << ": " << trace.problem;
    }
    EXPECT_THAT(names, ElementsAre("a.kvtrace", "b.kvtrace", "c.kvtrace", "d.kvtrace", "e.kvtrace", "f.kvtrace",
                                   "g.kvtrace", "h.kvtrace", "i.kvtrace", "j.data"));
    const std::vector<std::string> problems{"",
                                            "is not a KVScope trace",
                                            "is empty",
                                            "has trace format 7",
                                            "is damaged",
                                            "has no table token",
                                            "no file",
                                            "is not a file",
                                            "not a KVScope trace",
                                            ""};
    for (std::size_t i = 0; i < problems.size(); ++i) {
        EXPECT_THAT(all[i].problem, HasSubstr(problems[i])) << names[i];
        EXPECT_EQ(all[i].problem.empty(), problems[i].empty()) << names[i];
    }
}

TEST_F(TraceList, LiveAndUnusualFilesAreReadBySqlite) {
    const std::string live = path("live.kvtrace"), failed = record("failed.kvtrace"), utf16 = path("utf16.kvtrace");
    Recorder recorder(live, {});
    recorder.beginRun(synthetic::infoOf({}));
    recorder.flush();
    expectAsOpened(live);
    EXPECT_EQ(listTrace(live).runs.at(0).status, "running");
    change(failed, "UPDATE health SET error = 'the disk is full'");
    expectAsOpened(failed);
    EXPECT_EQ(listTrace(failed).runs.at(0).status, "failed");
    change(failed, "UPDATE health SET error = '', heartbeat_ms = 1; UPDATE run SET status = 'running'");
    expectAsOpened(failed);
    EXPECT_EQ(listTrace(failed).runs.at(0).status, "interrupted");
    record("old.kvtrace");
    change(path("old.kvtrace"), "DROP TABLE run_meta");
    expectAsOpened(path("old.kvtrace"));
    change(path("old.kvtrace"), "CREATE TABLE run_meta(other TEXT)");
    expectAsOpened(path("old.kvtrace"));
}

TEST_F(TraceList, DamagedBytesNeverDoHarm) {
    const std::string good = record("good.kvtrace", {.decodeSteps = 5}), bad = path("bad.kvtrace");
    std::ifstream in(good, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    std::mt19937 random(1);
    const auto below = [&](std::size_t limit) { return std::size_t(random()) % limit; };
    std::size_t read = 0, refused = 0;
    for (int i = 0; i < 400; ++i) {
        std::string damaged = bytes;
        // Most of the structure is at the beginning of a page.
        for (int k = 0; k < 4; ++k) {
            const std::size_t page = below(damaged.size() / 16384) * 16384;
            damaged[std::min(page + below(i % 2 == 0 ? 120 : 16384), damaged.size() - 1)] = char(random());
        }
        std::ofstream(bad, std::ios::binary) << damaged;
        const ListedTrace trace = listTrace(bad);
        ++(trace.problem.empty() ? read : refused);
        EXPECT_TRUE(trace.problem.empty() || trace.runs.empty());
    }
    EXPECT_GT(read, 0u);
    EXPECT_GT(refused, 0u);
}

TEST_F(TraceList, AStopEndsTheReading) {
    for (int i = 0; i < 5; ++i) record(fmt::format("{}.kvtrace", i), {.decodeSteps = 1});
    std::stop_source stop;
    stop.request_stop();
    EXPECT_THROW(tracesOfFolder(folder.path().string(), stop.get_token()), Error);
    EXPECT_THROW(
        listTraces(
            tracesOfFolder(folder.path().string()), [](std::size_t, const ListedTrace&) {}, {}, stop.get_token()),
        Error);
    EXPECT_THROW(tracesOfFolder(path("none")), Error);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
