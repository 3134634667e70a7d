#include "profiler/export/export.h"

#include "base/error.h"
#include "profiler/read/trace_reader.h"
#include "profiler/read/window_overlap.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/refusal.h"

#include <functional>
#include <gmock/gmock.h>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::failureOf;

using testing::HasSubstr;

/// RFC 4180, strict: a quote is only legal around a whole field or doubled inside one.
std::vector<std::vector<std::string>> parseCsv(const std::string& text) {
    std::vector<std::vector<std::string>> rows(1);
    rows[0].emplace_back();
    bool quoted = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        std::string& field = rows.back().back();
        if (quoted) {
            if (text[i] != '"')
                field += text[i];
            else if (i + 1 < text.size() && text[i + 1] == '"')
                field += '"', ++i;
            else
                quoted = false;
        } else if (text[i] == '"') {
            EXPECT_TRUE(field.empty()) << "a quote inside an unquoted field at " << i;
            quoted = true;
        } else if (text[i] == ',') {
            rows.back().emplace_back();
        } else if (text[i] == '\n') {
            rows.emplace_back().emplace_back();
        } else {
            field += text[i];
        }
    }
    EXPECT_FALSE(quoted);
    EXPECT_EQ(rows.back(), std::vector<std::string>{""}); // the last line ends
    rows.pop_back();
    return rows;
}

class ExportTest : public testing::Test {
protected:
    void SetUp() override {
        shape.sequences = 2;
        shape.decodeSteps = 30;
        synthetic::recordFile(file, shape);
        synthetic::RunShape second;
        second.decodeSteps = 4;
        synthetic::recordFile(file, second);
    }
    std::string text(ExportTable table, ExportFormat format, ExportOptions options = {}) {
        std::ostringstream out;
        last = exportTable(file, table, format, out, options);
        return out.str();
    }
    test::Folder folder;
    std::string file = (folder / "run.kvtrace").string();
    synthetic::RunShape shape;
    ExportResult last;
};

TEST_F(ExportTest, SelectionsHaveARowPerBlock) {
    const auto rows = parseCsv(text(ExportTable::Selections, ExportFormat::Csv, {1}));
    EXPECT_EQ(rows[0],
              (std::vector<std::string>{"run_id", "step", "layer", "seq", "kv_head", "block", "origin", "hit"}));
    std::size_t next = 1;
    const std::map<Origin, std::string> names{{Origin::Sink, "sink"},
                                              {Origin::Window, "window"},
                                              {Origin::QueryAware, "query-aware"},
                                              {Origin::QueryAgnostic, "query-agnostic"},
                                              {Origin::TokenLevel, "token-level"}};
    for (const StepRecord& step : synthetic::stepsOf(shape))
        for (const SelectionRecord& selection : step.selections)
            for (const PackedBlock block : step.blocksOf(selection)) {
                ASSERT_LT(next, rows.size());
                ASSERT_EQ(rows[next],
                          (std::vector<std::string>{"1", std::to_string(step.step), std::to_string(selection.layer),
                                                    std::to_string(selection.sequence),
                                                    std::to_string(selection.kvHead), std::to_string(block.id()),
                                                    names.at(block.origin()), block.hit() ? "1" : "0"}));
                ++next;
            }
    EXPECT_EQ(next, rows.size());
    EXPECT_EQ(last.rows, std::int64_t(rows.size()) - 1);
    EXPECT_EQ(last.note, "");
}

TEST_F(ExportTest, BothFormatsHoldTheSameValues) {
    for (const std::string& name : exportTableNames()) {
        const ExportTable table = parseExportTable(name);
        const auto csv = parseCsv(text(table, ExportFormat::Csv));
        const std::int64_t rows = last.rows;
        std::istringstream lines(text(table, ExportFormat::Jsonl));
        EXPECT_EQ(last.rows, rows);
        ASSERT_EQ(std::int64_t(csv.size()), rows + 1) << name;
        std::size_t next = 1;
        for (std::string line; std::getline(lines, line); ++next) {
            const auto object = nlohmann::ordered_json::parse(line);
            ASSERT_EQ(object.size(), csv[0].size());
            std::size_t column = 0;
            for (const auto& [key, value] : object.items()) {
                EXPECT_EQ(key, csv[0][column]);
                const std::string& cell = csv[next][column++];
                if (value.is_null())
                    EXPECT_EQ(cell, "");
                else if (value.is_string())
                    EXPECT_EQ(cell, value.get<std::string>());
                else
                    EXPECT_EQ(cell, value.dump());
            }
        }
        EXPECT_EQ(std::int64_t(next) - 1, rows);
    }
}

TEST_F(ExportTest, TablesHaveTheRowsOfTheirViews) {
    const std::map<std::string, std::string> views{{"steps", "v_step"},
                                                   {"breakdown", "v_breakdown"},
                                                   {"transfers", "v_transfer"},
                                                   {"tokens", "v_token"},
                                                   {"kernels", "v_kernel"},
                                                   {"layers", "v_layer"},
                                                   {"locality", "v_locality"},
                                                   {"spans", "v_span"},
                                                   {"counters", "v_counter"},
                                                   {"gauges", "v_gauge"},
                                                   {"flows", "v_flow"},
                                                   {"prompt", "v_prompt"},
                                                   {"runs", "runs"},
                                                   {"denoising", "v_denoise"},
                                                   {"requests", "v_request"},
                                                   {"request-spans", "v_request_span"},
                                                   {"iterations", "v_iteration"},
                                                   {"members", "v_member"},
                                                   {"row-events", "v_row_event"},
                                                   {"served-selections", "v_served_selection"}};
    EXPECT_EQ(views.size() + 5, exportTableNames().size())
        << "all but the selections, the overlap of layers and the numbers of figures, which have tests of their own";
    for (const auto& [name, view] : views)
        for (const int run : {0, 1, 2, 3}) {
            text(parseExportTable(name), ExportFormat::Csv, run > 0 ? ExportOptions{run} : ExportOptions{});
            EXPECT_EQ(std::to_string(last.rows),
                      test::value(file, "SELECT count(*) FROM " + view +
                                            (run > 0 ? " WHERE run_id=" + std::to_string(run) : std::string())))
                << name << " of run " << run;
        }
}

TEST_F(ExportTest, NumbersOfFiguresAreThoseOfTheReader) {
    const TraceReader reader(file);
    for (const int run : {1, 2}) {
        const auto rows = parseCsv(text(ExportTable::WindowOverlap, ExportFormat::Csv, ExportOptions{run}));
        EXPECT_EQ(rows[0], (std::vector<std::string>{"run_id", "window", "overlap", "working_set", "held_by_pool"}));
        const WindowOverlap sums = readWindowOverlap(reader, run);
        ASSERT_EQ(rows.size(), sums.windows.size() + 1);
        for (std::size_t w = 1; w < rows.size(); ++w) {
            EXPECT_EQ(rows[w][0], std::to_string(run));
            EXPECT_EQ(rows[w][1], std::to_string(w));
            EXPECT_EQ(std::stod(rows[w][2]), sums.overlap(int(w)));
            EXPECT_EQ(std::stod(rows[w][3]), sums.workingSet(int(w)));
            EXPECT_EQ(std::stod(rows[w][4]), sums.heldByPool(int(w)));
        }
    }
    EXPECT_EQ(text(ExportTable::ActiveSets, ExportFormat::Csv), "run_id,active,rows,pages,density\n");
    EXPECT_THAT(last.note, HasSubstr("no tokens of a block chose pages"));
    EXPECT_EQ(text(ExportTable::TokenChanges, ExportFormat::Jsonl), "");
    EXPECT_THAT(last.note, HasSubstr("no changes of queries"));
}

TEST_F(ExportTest, TokenTextsSurviveCsv) {
    const auto rows = parseCsv(text(ExportTable::Tokens, ExportFormat::Csv));
    std::set<std::string> texts;
    for (const auto& row : rows) texts.insert(row[4]);
    EXPECT_EQ(texts.count("text"), 1u);
    EXPECT_EQ(texts.count(","), 1u);
    EXPECT_EQ(texts.count(" \"quoted\""), 1u);
    EXPECT_EQ(texts.count("\n"), 1u);
    EXPECT_EQ(texts.count("\xEF\xBF\xBD"), 1u);
}

TEST_F(ExportTest, SaysThatNoKernelsWereRecorded) {
    const std::string csv = text(ExportTable::Kernels, ExportFormat::Csv);
    EXPECT_EQ(csv, "run_id,step,layer,track,name,start_ns,duration_ns\n");
    EXPECT_THAT(last.note, HasSubstr("no kernels"));
    text(ExportTable::Flows, ExportFormat::Csv);
    EXPECT_THAT(last.note, HasSubstr("GPUs at level full record")); // not imports alone
    EXPECT_EQ(text(ExportTable::Kernels, ExportFormat::Jsonl), "");
}

TEST_F(ExportTest, SaysWhySelectionsAreMissing) {
    const std::string counters = (folder / "counters.kvtrace").string(), dense = (folder / "dense.kvtrace").string();
    synthetic::recordFile(counters, {}, RecordLevel::Counters);
    synthetic::RunShape all;
    all.denseLayers = all.layers;
    synthetic::recordFile(dense, all);
    std::ostringstream out;
    EXPECT_THAT(exportTable(counters, ExportTable::Selections, ExportFormat::Csv, out).note,
                HasSubstr("level counters"));
    EXPECT_THAT(exportTable(dense, ExportTable::Selections, ExportFormat::Csv, out).note,
                HasSubstr("attends every block"));
    const std::string sums = (folder / "sums.kvtrace").string();
    synthetic::recordFile(sums, {});
    test::sql(sums, "DELETE FROM selection", SQLITE_OPEN_READWRITE);
    EXPECT_EQ(exportTable(sums, ExportTable::Selections, ExportFormat::Csv, out).note,
              "the trace has no selections, only how many blocks its layers selected");
    test::sql(sums, "DELETE FROM layer_step", SQLITE_OPEN_READWRITE);
    EXPECT_THAT(exportTable(sums, ExportTable::Selections, ExportFormat::Csv, out).note, HasSubstr("was recorded"));
    test::sql(sums, "INSERT OR REPLACE INTO run_meta VALUES (1, 'knows', '[\"hits\"]')", SQLITE_OPEN_READWRITE);
    EXPECT_THAT(exportTable(sums, ExportTable::Selections, ExportFormat::Csv, out).note, HasSubstr("does not know"));
}

TEST_F(ExportTest, RefusesUnknownNamesAndListsTheKnown) {
    EXPECT_THAT(
        failureOf([] { parseExportTable("dreams"); }),
        HasSubstr(
            "selections, steps, breakdown, transfers, tokens, kernels, layers, locality, spans, counters, gauges, "
            "flows, prompt, runs"));
    EXPECT_THAT(failureOf([] { parseExportFormat("xml"); }), HasSubstr("csv or jsonl"));
}

TEST_F(ExportTest, NoticesAStreamThatDoesNotTakeIt) {
    std::ostringstream out;
    out.setstate(std::ios::badbit);
    EXPECT_THAT(failureOf([&] { exportTable(file, ExportTable::Steps, ExportFormat::Csv, out); }),
                HasSubstr("could not be written"));
}

TEST_F(ExportTest, CanBeInterrupted) {
    const std::atomic<bool> stop = true;
    std::ostringstream out;
    EXPECT_THAT(failureOf([&] {
                    exportTable(file, ExportTable::Selections, ExportFormat::Csv, out, {{}, &stop});
                }),
                HasSubstr("cancelled"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
