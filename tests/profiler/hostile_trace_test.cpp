// Traces with SQL of their own in them: triggers, views and constraints that somebody wrote to be run by us.
#include "base/error.h"
#include "profiler/check/check.h"
#include "profiler/compare/compare.h"
#include "profiler/export/export.h"
#include "profiler/read/notes.h"
#include "profiler/read/open_trace.h"
#include "profiler/read/own_views.h"
#include "profiler/read/span_batch.h"
#include "profiler/read/summary.h"
#include "profiler/record/recorder.h"
#include "resources/resources.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/synthetic_serving.h"
#include "tests/profiler/temporary_folder.h"

#include <chrono>
#include <gmock/gmock.h>
#include <sstream>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using testing::HasSubstr;

class HostileTrace : public testing::Test {
protected:
    HostileTrace() { synthetic::recordFile(file, {}); }
    void change(const std::string& sql) const { test::sql(file, sql, SQLITE_OPEN_READWRITE); }
    std::string refusalOfRecording() const {
        try {
            Recorder recorder(file, {});
            synthetic::record(recorder, {});
            recorder.flush();
            return recorder.health().error;
        } catch (const Error& error) {
            return oneLine(error);
        }
    }
    test::Folder folder;
    std::string file = (folder / "run.kvtrace").string();
};

TEST_F(HostileTrace, RunsNoTriggerWhenARunIsRecordedIntoIt) {
    change("UPDATE run SET name='the first';"
           "CREATE TRIGGER t1 AFTER INSERT ON run BEGIN DELETE FROM run WHERE run_id < NEW.run_id; END;"
           "CREATE TRIGGER t2 AFTER UPDATE ON run BEGIN UPDATE run SET name='owned'; END;"
           "CREATE TRIGGER t3 BEFORE INSERT ON step BEGIN DELETE FROM step WHERE id < NEW.id; END;"
           "CREATE TRIGGER t4 AFTER UPDATE ON health BEGIN UPDATE run SET model='owned'; END;");
    EXPECT_EQ(refusalOfRecording(), "");
    const TraceReader reader(file);
    ASSERT_EQ(reader.runs().size(), 2u);
    EXPECT_EQ(reader.run(1)->name, "the first");
    EXPECT_NE(reader.run(2)->name, "owned");
    EXPECT_NE(reader.run(1)->model, "owned");
    EXPECT_EQ(reader.steps(1).size(), 21u);
    EXPECT_EQ(reader.steps(2).size(), 21u);
}

TEST_F(HostileTrace, RunsNoTriggerWhenANoteIsKept) {
    change("CREATE TRIGGER t AFTER INSERT ON note BEGIN DELETE FROM run; END");
    Note note;
    note.runId = 1;
    note.text = "a note";
    addNote(file, note);
    EXPECT_EQ(TraceReader(file).runs().size(), 1u);
}

TEST_F(HostileTrace, ReadsTheBeginningOfAnEndlessName) {
    constexpr std::size_t kMost = std::size_t(kLongestName) + 3; // an ellipsis has three bytes
    change("INSERT INTO text VALUES (901, 'name' || hex(zeroblob(5000000))), (902, 'a track');"
           "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200) INSERT INTO"
           " span(id, run_id, step, layer, kind, track, name, start_ns, duration_ns, depth) SELECT i, 1, 2, 0, 1, 902,"
           " 901, 10 * i, 5, 0 FROM n;"
           "INSERT INTO span_detail SELECT id, 901, 'args' || hex(zeroblob(100000)) FROM span LIMIT 1;"
           "INSERT INTO note VALUES (1, 1, 5, 6, 'note' || hex(zeroblob(5000000)), '2026-01-01T00:00:00Z');"
           "INSERT OR REPLACE INTO run_meta VALUES (1, 'engine', 'engine' || hex(zeroblob(5000000)));"
           "UPDATE health SET error = 'error' || hex(zeroblob(5000000))");
    const TraceReader reader(file);
    const SpanBatch spans = readSpans(reader, 1, {}, 1 << 20);
    ASSERT_GE(spans.spans.size(), 200u);
    std::size_t longest = 0;
    for (const std::string& text : spans.texts) longest = std::max(longest, text.size());
    EXPECT_EQ(longest, kMost);
    EXPECT_EQ(reader.run(1)->metaOr("engine").size(), kMost);
    EXPECT_EQ(reader.run(1)->error.size(), kMost);
    std::vector<Note> notes = readNotes(reader, 1);
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_EQ(notes[0].text.size(), kMost);
    EXPECT_THAT(notes[0].text, testing::AllOf(testing::StartsWith("note000"), testing::EndsWith("0…")));
    std::ostringstream timeline;
    exportChromeTrace(file, timeline);
    EXPECT_LT(timeline.str().size(), 205 * kMost) << "every span carries its name";
    changeNote(file, notes[0], "short"); // what was cut can still be changed
    EXPECT_EQ(readNotes(TraceReader(file), 1)[0].text, "short");
    EXPECT_EQ(test::value(file, "SELECT length(value) FROM text WHERE id = 901"), "10000004") << "the file keeps it";
}

TEST_F(HostileTrace, LosesNoRunToAConstraintThatReplaces) {
    change("ALTER TABLE run RENAME TO old");
    std::string table = test::value(file, "SELECT sql FROM sqlite_schema WHERE name='old'");
    table.replace(table.find("\"old\""), 5, "run");
    table.replace(table.rfind(')'), 1, ", UNIQUE(backend) ON CONFLICT REPLACE)");
    change("PRAGMA legacy_alter_table=1; " + table + "; INSERT INTO run SELECT * FROM old; DROP TABLE old;");
    EXPECT_THAT(refusalOfRecording(), HasSubstr("run.kvtrace"));
    EXPECT_EQ(TraceReader(file).steps(1).size(), 21u);
    EXPECT_EQ(TraceReader(file).runs().size(), 1u);
}

TEST_F(HostileTrace, IsRefusedForRecordingWhereAViewStandsForATable) {
    change("DROP VIEW v_gauge; DROP TABLE gauge; CREATE VIEW gauge AS SELECT 1 AS id");
    EXPECT_THAT(refusalOfRecording(), HasSubstr("its gauge is not an ordinary table"));
}

/// As many bytes as a test can hold; then it fails like a full disk.
class SmallDisk : public std::stringbuf {
    std::streamsize xsputn(const char* text, std::streamsize count) override {
        if ((written_ += count) > (16 << 20)) return 0;
        return std::stringbuf::xsputn(text, count);
    }
    std::streamsize written_ = 0;
};

TEST_F(HostileTrace, ExportsItsTablesAndNotItsViews) {
    const std::string endless =
        " AS WITH RECURSIVE n(run_id, step, start_ns, duration_ns, text) AS (SELECT 1, 0, 0, 1, 'x'"
        " UNION ALL SELECT 1, step + 1, 0, 1, text FROM n) SELECT * FROM n;";
    std::string sql;
    for (const char* view : {"runs", "v_step", "v_layer", "v_locality", "v_breakdown", "v_transfer", "v_token",
                             "v_prompt", "v_span", "v_kernel", "v_counter", "v_gauge", "v_flow"})
        sql += std::string("DROP VIEW ") + view + "; CREATE VIEW " + view + endless;
    change(sql);
    for (std::size_t table = 0; table < exportTableNames().size(); ++table) {
        SmallDisk disk;
        std::ostream out(&disk);
        const auto begin = std::chrono::steady_clock::now();
        ExportResult result;
        ASSERT_NO_THROW(result = exportTable(file, ExportTable(table), ExportFormat::Csv, out))
            << exportTableNames()[table];
        EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << exportTableNames()[table];
        if (ExportTable(table) == ExportTable::Steps) {
            EXPECT_EQ(result.rows, 21);
        }
        if (ExportTable(table) == ExportTable::Runs) {
            EXPECT_EQ(result.rows, 1);
        }
    }
    EXPECT_GT(TraceReader(file).transfers(1).size(), 0u);
}

TEST_F(HostileTrace, ReadsNoViewThatStandsForAnOptionalTable) {
    change("DROP VIEW v_gauge; DROP TABLE gauge; CREATE VIEW gauge AS WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL"
           " SELECT id + 1 FROM n) SELECT id, 1 AS run_id, 1 AS track, id AS time_ns, 1.0 AS value FROM n");
    std::ostringstream out;
    EXPECT_EQ(exportTable(file, ExportTable::Gauges, ExportFormat::Csv, out).rows, 0);
    exportChromeTrace(file, out);
    EXPECT_LT(out.str().size(), std::size_t(16) << 20);
}

TEST_F(HostileTrace, IsNoTraceWhereAVirtualTableStandsForOne) {
    change(
        "PRAGMA writable_schema=1; UPDATE sqlite_schema SET rootpage=0, sql='CREATE VIRTUAL TABLE span USING fts5(x)'"
        " WHERE name='span'");
    EXPECT_THROW(TraceReader reader(file), Error);
}

TEST_F(HostileTrace, OwnViewsGiveWhatAGoodTracesViewsGive) {
    synthetic::RunShape shape;
    shape.oracle = true;
    shape.sequences = 2;
    shape.denseLayers = 1;
    synthetic::recordFile(file, shape);
    synthetic::recordServing(file, 12, true, RunStatus::Finished, true);
    change("INSERT INTO text(id, value) VALUES (901, 'stream 7'), (902, 'kernel'), (903, 'category');"
           "INSERT INTO span(id, run_id, step, layer, kind, track, name, start_ns, duration_ns, depth) VALUES (9001, "
           "1, 2, 0, 1, 901, 902, 10, 20, 0), (9002, 2, -1, -1, 2, 901, 902, 30, 5, 1);"
           "INSERT INTO span_detail VALUES (9001, 903, '{\"a\":1}');"
           "INSERT INTO counter VALUES (1, 1, 901, 0, 10, 5); INSERT INTO gauge VALUES (1, 2, 901, 7, 0.5);"
           "INSERT INTO flow VALUES (1, 1, 9001, 9002); INSERT INTO clock_sync VALUES (1, 1, 901, 5, 500, 1);"
           "INSERT OR IGNORE INTO lookahead SELECT id, 4, 3, 1, 0, NULL FROM selection;"
           "INSERT INTO prompt_piece SELECT id << 20, 1, 0, 1 FROM step WHERE tokens > 1;"
           "INSERT INTO denoise SELECT id << 20, 0, 1, 0, 4, 2 FROM step;"
           "INSERT INTO denoise_token SELECT id << 20 | 3, 11, 9, 12, 0.75, 1 FROM step;"
           "INSERT INTO denoise_layer SELECT id, 1, 2, 5, 3, 0.25, x'0000803f' FROM selection;"
           "INSERT INTO denoise_change SELECT id, x'0000803f', x'00000040' FROM selection;"
           "INSERT INTO denoise_tile SELECT id, '[[0.25, 0.125], [0.5, 0.25]]' FROM selection;");
    const std::string schema(resources::text("sql/schema.sql").value());
    const OpenTrace trace = openTrace(file);
    int views = 0;
    for (std::size_t at = 0; (at = schema.find("CREATE VIEW ", at)) != std::string::npos; ++views) {
        at += 12;
        const std::string name = schema.substr(at, schema.find(' ', at) - at);
        const test::SqlRows theirs = test::sql(file, "SELECT * FROM " + name);
        Statement rows(*trace.connection, "SELECT * FROM " + name);
        ASSERT_EQ(rows.columns(), int(theirs.columns.size())) << name;
        for (int i = 0; i < rows.columns(); ++i) EXPECT_EQ(rows.columnName(i), theirs.columns[std::size_t(i)]) << name;
        std::size_t count = 0;
        for (; rows.step(); ++count) {
            ASSERT_LT(count, theirs.rows.size()) << name;
            for (int i = 0; i < rows.columns(); ++i)
                ASSERT_EQ(rows.isNull(i) ? "NULL" : std::string(rows.text(i)), theirs.rows[count][std::size_t(i)])
                    << name << "." << rows.columnName(i) << ", row " << count;
        }
        EXPECT_EQ(count, theirs.rows.size()) << name;
        EXPECT_GT(count, 0u) << name << " has nothing to compare";
    }
    EXPECT_GE(views, 15);
}

TEST_F(HostileTrace, ATraceOfBeforeReadsLikeOneWithEmptyTables) {
    change("DROP VIEW v_flow; DROP VIEW v_gauge; DROP VIEW v_span; DROP VIEW v_counter; DROP VIEW v_lookahead;"
           "DROP VIEW v_oracle; DROP TABLE flow; DROP TABLE gauge; DROP TABLE span_detail; DROP TABLE counter;"
           "DROP TABLE lookahead; DROP TABLE oracle; DROP TABLE note;");
    for (const ExportTable table :
         {ExportTable::Spans, ExportTable::Steps, ExportTable::Kernels, ExportTable::Breakdown}) {
        std::ostringstream out;
        EXPECT_NO_THROW(exportTable(file, table, ExportFormat::Csv, out)) << int(table);
    }
    std::ostringstream out;
    EXPECT_THROW(exportTable(file, ExportTable::Flows, ExportFormat::Csv, out), Error) << "it says that it has none";
    EXPECT_EQ(summarize(TraceReader(file), 1).decodeSteps, 20);
}

TEST_F(HostileTrace, RowsBoundTheWorkAndNotTheirNumbers) {
    change("UPDATE step SET id = (id & ~0x1FFFFFF) | 0x1FFFFFE WHERE id & 0x1FFFFFF = 20");
    const TraceReader reader(file);
    int pieces = 0;
    const Progress count = [&](double, std::string_view) { ++pieces; };
    EXPECT_EQ(summarize(reader, 1, count).decodeSteps, 20);
    EXPECT_LE(pieces, 3);
    pieces = 0;
    EXPECT_EQ(loadRunSample(reader, 1, count).steps.size(), 20u);
    EXPECT_LE(pieces, 3);
    EXPECT_THROW(reader.layerMatrix(1, Metric::Locality), Error) << "a picture that wide is refused, not tried";
}

TEST_F(HostileTrace, ANameOfARunIsCutAndEverythingElseWorks) {
    for (const int length : {70000, 10000000}) {
        change("UPDATE run SET name = printf('%.*c', " + std::to_string(length) +
               ", 'x'), method = 'foreign', params_json ="
               " '[' || hex(zeroblob(1000000)) || ']'");
        const TraceReader reader(file);
        const RunRow run = *reader.run(1);
        EXPECT_EQ(run.name.size(), std::size_t(kLongestName) + 3);
        EXPECT_THAT(run.name, testing::EndsWith("x…"));
        EXPECT_EQ(run.paramsJson, "{}") << "half a document is none";
        EXPECT_EQ(summarize(reader, 1).decodeSteps, 20);
        EXPECT_EQ(reader.steps(1).size(), 21u);
        EXPECT_THAT(checkFile(reader).sentence(), HasSubstr("run-length"));
        EXPECT_THAT(checkFile(reader).examples.front().what,
                    HasSubstr("name of run 1 has " + std::to_string(length) + " characters and begins with xxx"));
    }
}

TEST_F(HostileTrace, ANameOfMegabytesBehindANulIsDamage) {
    change("UPDATE run SET name = 'x' || char(0) || printf('%.*c', 10000000, 'x')");
    try {
        TraceReader reader(file);
        FAIL();
    } catch (const Error& error) {
        EXPECT_THAT(oneLine(error), HasSubstr("run 1 has a name of 10000002 bytes"));
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
