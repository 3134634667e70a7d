// The tables of a report against plain SQL on the same trace, table by table.
#include "profiler/report/report.h"

#include "base/error.h"
#include "profiler/report/html_charts.h"
#include "profiler/report/reproduce.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <cmath>
#include <fstream>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

namespace kvscope::reports {
namespace KVSCOPE_TEST_FILE {

/// RFC 4180, written from the standard: quotes doubled inside quotes, line breaks allowed there.
std::vector<std::vector<std::string>> parseCsv(const std::string& text) {
    std::vector<std::vector<std::string>> rows(1, std::vector<std::string>(1));
    bool quoted = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (quoted) {
            if (c != '"')
                rows.back().back() += c;
            else if (i + 1 < text.size() && text[i + 1] == '"')
                rows.back().back() += text[++i];
            else
                quoted = false;
        } else if (c == '"') {
            quoted = true;
        } else if (c == ',') {
            rows.back().emplace_back();
        } else if (c == '\n') {
            rows.emplace_back(1);
        } else {
            rows.back().back() += c;
        }
    }
    rows.pop_back(); // after the last line break
    return rows;
}

std::string contentOf(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

class ReportTables : public testing::Test {
protected:
    ReportTables() {
        shape.layers = 5;
        shape.denseLayers = 1;
        shape.sequences = 3;
        shape.decodeSteps = 48;
        file = (folder / "first.kvtrace").string();
        synthetic::recordFile(file, shape);
        synthetic::RunShape other = shape;
        other.seed = 7;
        other.queryAgnostic = 0;
        other.method = "infllmv2";
        second = (folder / "second.kvtrace").string();
        synthetic::recordFile(second, other);
        report = makeReport({file, second});
    }
    const std::string& fileOf(std::size_t run) const { return run == 0 ? file : second; }
    const std::string& nameOfRun(std::size_t run) const { return report.runs[run].row.name; }
    /// Rows of one run, in order.
    std::vector<std::vector<Cell>> rowsOf(const char* id, std::size_t run) const {
        std::vector<std::vector<Cell>> rows;
        for (const auto& row : report.table(id)->rows)
            if (raw(row[0]) == nameOfRun(run)) rows.push_back(row);
        return rows;
    }
    const Cell& cell(const char* id, const std::vector<Cell>& row, const char* column) const {
        const int at = report.table(id)->columnAt(column);
        EXPECT_GE(at, 0) << column;
        return row[std::size_t(at)];
    }
    void expectSame(const Cell& actual, const std::string& expected, const std::string& what) const {
        if (expected == "NULL") {
            EXPECT_EQ(actual.value.index(), 0U) << what;
        } else if (const auto* integer = std::get_if<std::int64_t>(&actual.value)) {
            EXPECT_EQ(std::to_string(*integer), expected) << what;
        } else {
            const double number = std::stod(expected); // SQLite prints 15 digits
            EXPECT_NEAR(actual.number(), number, 1e-12 * std::abs(number) + 1e-300) << what;
        }
    }
    test::Folder folder;
    synthetic::RunShape shape;
    std::string file, second;
    Report report;
};

TEST_F(ReportTables, RunsOfOneNameAreToldApart) {
    ASSERT_EQ(report.runs.size(), 2U);
    EXPECT_NE(nameOfRun(0), nameOfRun(1));
}

TEST_F(ReportTables, KeyNumbersAreWhatSqlSays) {
    const std::pair<const char*, const char*> queries[] = {
        {"Decode speed, tokens per second",
         "SELECT sum(tokens) * 1e9 / sum(duration_ns) FROM v_step WHERE step > 1"}, // 1 is cold
        {"Decode steps", "SELECT count(*) FROM v_step WHERE phase = 'decode'"},
        {"Cold steps", "SELECT count(*) FROM v_step WHERE phase = 'decode' AND selected > 0 AND kept IS NULL"},
        {"Tokens decoded", "SELECT sum(tokens) FROM v_step WHERE phase = 'decode'"},
        {"Prompt tokens", "SELECT count(*) FROM v_prompt"},
        {"Prefill time", "SELECT sum(duration_ns) FROM v_step WHERE phase = 'prefill'"},
        {"Decode time", "SELECT sum(duration_ns) FROM v_step WHERE phase = 'decode'"},
        {"Mean step", "SELECT avg(duration_ns) FROM v_step WHERE step > 1"},
        {"Slowest step", "SELECT max(duration_ns) FROM v_step WHERE phase = 'decode'"},
        {"Locality γ, mean", "SELECT avg(locality) FROM v_locality WHERE NOT opens_block"},
        {"Locality γ, smallest", "SELECT min(locality) FROM v_locality WHERE NOT opens_block"},
        {"Hit rate", "SELECT total(hits) / sum(hits + misses) FROM v_step WHERE step > 1"},
        {"Hits", "SELECT sum(hits) FROM v_step"},
        {"Misses", "SELECT sum(misses) FROM v_step"},
        {"Misses of the first decode step", "SELECT misses FROM v_step WHERE step = 1"},
        {"To device", "SELECT sum(h2d_bytes) FROM v_step"},
        {"To host", "SELECT sum(d2h_bytes) FROM v_step"},
        {"Transfer time", "SELECT sum(transfer_ns) FROM v_step"},
        {"Exposed transfer time", "SELECT sum(exposed_ns) FROM v_step"},
        {"Exposed per step", "SELECT avg(exposed_ns) FROM v_step WHERE step > 1"},
    };
    const Table& table = *report.table("key_numbers");
    EXPECT_EQ(table.rows.size(), std::size(queries)) << "every row has its query";
    for (const auto& [quantity, query] : queries) {
        const auto* row = table.find("quantity", quantity);
        ASSERT_NE(row, nullptr) << quantity;
        for (std::size_t run = 0; run < 2; ++run)
            expectSame((*row)[1 + run], test::value(fileOf(run), query), quantity);
    }
}

TEST_F(ReportTables, IntervalsHoldTheMeansOfSql) {
    const std::pair<const char*, const char*> queries[] = {
        {"Step time", "avg(duration_ns)"},
        {"Tokens per second", "sum(tokens) * 1e9 / sum(duration_ns)"},
        {"Hit rate", "total(hits) / sum(hits + misses)"},
        {"Misses per step", "avg(misses)"},
        {"Bytes to device per step", "avg(h2d_bytes)"},
        {"Exposed transfer time per step", "avg(exposed_ns)"},
    };
    for (std::size_t run = 0; run < 2; ++run) {
        const auto rows = rowsOf("intervals", run);
        ASSERT_EQ(rows.size(), std::size(queries));
        for (std::size_t i = 0; i < rows.size(); ++i) {
            EXPECT_EQ(raw(rows[i][1]), queries[i].first);
            expectSame(
                rows[i][2],
                test::value(fileOf(run), std::string("SELECT ") + queries[i].second + " FROM v_step WHERE step > 1"),
                queries[i].first);
            EXPECT_LE(rows[i][3].number(), rows[i][2].number()) << queries[i].first;
            EXPECT_GE(rows[i][4].number(), rows[i][2].number()) << queries[i].first;
        }
        EXPECT_EQ(rows.back()[2].basis, Basis::Modelled) << "exposed time of a modelled link";
        EXPECT_EQ(rows.front()[2].basis, Basis::Measured);
    }
}

/// SQL: time of a component in step 1.
std::string inFirstStep(const std::string& component) {
    for (const std::string_view stage : kStepStageNames)
        if (component == stage) return "SELECT " + component + "_ns FROM v_step WHERE step = 1";
    if (component != "other") return "SELECT sum(" + component + "_ns) FROM v_layer WHERE step = 1";
    return "SELECT duration_ns - embed_ns - lm_head_ns - sample_ns - (SELECT sum(duration_ns) FROM v_layer WHERE step "
           "= 1)"
           " FROM v_step WHERE step = 1";
}

TEST_F(ReportTables, BreakdownIsWhatSqlSays) {
    for (std::size_t run = 0; run < 2; ++run) {
        const auto expected =
            test::sql(fileOf(run), "SELECT phase, component, sum(total_ns), sum(total_ns) * 1.0 / (SELECT "
                                   "sum(duration_ns) FROM v_step s WHERE s.phase = b.phase), CASE phase WHEN 'decode' "
                                   "THEN sum(total_ns) END FROM v_breakdown b GROUP BY 1, 2")
                .rows;
        const auto rows = rowsOf("breakdown", run);
        ASSERT_EQ(rows.size(), expected.size());
        for (const auto& want : expected) {
            const auto found = std::find_if(rows.begin(), rows.end(), [&](const auto& row) {
                return raw(row[1]) == want[0] && raw(row[2]) == want[1];
            });
            ASSERT_NE(found, rows.end()) << want[0] << " " << want[1];
            expectSame((*found)[3], want[2], want[0] + " " + want[1]);
            if (want[0] != "decode") {
                expectSame((*found)[4], want[3], want[0] + " " + want[1]);
                continue;
            }
            // Mean and share leave out the first decode step, which is cold.
            const double first = std::stod(test::value(fileOf(run), inFirstStep(want[1])));
            const double steps = std::stod(test::value(fileOf(run), "SELECT count(*) FROM v_step WHERE step > 1"));
            const double whole =
                std::stod(test::value(fileOf(run), "SELECT sum(duration_ns) FROM v_step WHERE step > 1"));
            EXPECT_NEAR((*found)[4].number(), (std::stod(want[4]) - first) / whole, 1e-9) << want[1];
            EXPECT_NEAR((*found)[5].number(), (std::stod(want[4]) - first) / steps, 1e-6) << want[1];
            EXPECT_LE((*found)[6].number(), (*found)[5].number()) << want[1];
            EXPECT_GE((*found)[7].number(), (*found)[5].number()) << want[1];
        }
        std::int64_t decode = 0;
        for (const auto& row : rows)
            if (raw(row[1]) == "decode") decode += std::get<std::int64_t>(row[3].value);
        EXPECT_EQ(std::to_string(decode),
                  test::value(fileOf(run), "SELECT sum(duration_ns) FROM v_step WHERE phase = 'decode'"))
            << "components add up to the wall time";
    }
}

TEST_F(ReportTables, SlowestStepsAreWhatSqlSays) {
    for (std::size_t run = 0; run < 2; ++run) {
        const auto expected =
            test::sql(fileOf(run),
                      "SELECT step, duration_ns, duration_ns / (SELECT avg(duration_ns) FROM v_step WHERE step "
                      "> 1), misses, h2d_bytes, exposed_ns, opens_block FROM v_step WHERE phase = 'decode' ORDER BY "
                      "duration_ns DESC, step LIMIT 10")
                .rows;
        const auto rows = rowsOf("slowest_steps", run);
        ASSERT_EQ(rows.size(), expected.size());
        for (std::size_t i = 0; i < rows.size(); ++i) {
            for (std::size_t column = 0; column < 6; ++column)
                expectSame(rows[i][column + 1], expected[i][column], "column " + std::to_string(column));
            EXPECT_EQ(raw(rows[i].back()).find("opens a block") != std::string::npos, expected[i][6] == "1");
        }
    }
}

TEST_F(ReportTables, LayersAreWhatSqlSays) {
    for (std::size_t run = 0; run < 2; ++run) {
        const auto expected = test::sql(
            fileOf(run),
            "SELECT layer, count(*) AS steps, sum(duration_ns) AS duration_ns,"
            " avg(CASE WHEN step > 1 THEN duration_ns END) AS mean_ns,"
            " (SELECT avg(locality) FROM v_locality c WHERE c.layer = l.layer AND NOT opens_block) AS locality,"
            " (SELECT min(locality) FROM v_locality c WHERE c.layer = l.layer AND NOT opens_block) AS "
            "locality_min,"
            " total(CASE WHEN step > 1 THEN hits END) / nullif(sum(CASE WHEN step > 1 THEN hits + misses END), 0) AS"
            " hit_rate, sum(selected) AS selected, sum(hits) AS "
            "hits, sum(misses) AS misses, sum(h2d_bytes) AS h2d_bytes, sum(exposed_ns) AS exposed_ns "
            "FROM v_layer l WHERE phase = 'decode' GROUP BY layer ORDER BY layer");
        const auto rows = rowsOf("layers", run);
        ASSERT_EQ(rows.size(), expected.rows.size());
        for (std::size_t i = 0; i < rows.size(); ++i)
            for (std::size_t column = 0; column < expected.columns.size(); ++column)
                expectSame(cell("layers", rows[i], expected.columns[column].c_str()), expected.rows[i][column],
                           "layer " + std::to_string(i) + " " + expected.columns[column]);
        EXPECT_EQ(cell("layers", rows[0], "locality").value.index(), 0U) << "the dense layer selects nothing";
        const auto stages = rowsOf("layer_stages", run);
        ASSERT_EQ(stages.size(), rows.size());
        for (const std::string_view stage : kStageNames) {
            const std::string column = std::string(stage) + "_ns";
            const auto sums = test::sql(fileOf(run), "SELECT sum(" + column +
                                                         ") FROM v_layer WHERE phase = 'decode' "
                                                         "GROUP BY layer ORDER BY layer")
                                  .rows;
            for (std::size_t i = 0; i < stages.size(); ++i)
                expectSame(cell("layer_stages", stages[i], column.c_str()), sums[i][0], column);
        }
    }
}

TEST_F(ReportTables, TransfersAreWhatSqlSays) {
    for (std::size_t run = 0; run < 2; ++run) {
        const auto rows = rowsOf("transfers", run);
        const auto expected = test::sql(
            fileOf(run), "SELECT CASE t.step WHEN 0 THEN 'prefill' ELSE 'decode' END AS phase, CASE direction "
                         "WHEN 'h2d' THEN 'to device' ELSE 'to host' END AS direction, count(*) AS transfers, "
                         "sum(blocks) AS blocks, sum(bytes) AS bytes, avg(blocks) AS blocks_per_transfer, "
                         "sum(duration_ns) AS link_ns, total(bytes) / sum(duration_ns) AS bandwidth_gbps "
                         "FROM v_transfer t GROUP BY 1, 2");
        ASSERT_EQ(rows.size(), expected.rows.size());
        ASSERT_GE(rows.size(), 1U);
        for (const auto& want : expected.rows) {
            const auto found = std::find_if(rows.begin(), rows.end(), [&](const auto& row) {
                return raw(row[1]) == want[0] && raw(row[2]) == want[1];
            });
            ASSERT_NE(found, rows.end()) << want[0] << " " << want[1];
            for (std::size_t column = 2; column < expected.columns.size(); ++column)
                expectSame(cell("transfers", *found, expected.columns[column].c_str()), want[column],
                           expected.columns[column]);
        }
    }
}

TEST_F(ReportTables, ExposureIsWhatSqlSays) {
    for (std::size_t run = 0; run < 2; ++run) {
        const auto rows = rowsOf("exposure", run);
        ASSERT_EQ(rows.size(), 4U);
        const auto expected =
            test::sql(fileOf(run), "SELECT count(*) AS steps, sum(duration_ns) AS wall_ns, "
                                   "sum(transfer_ns) AS transfer_ns, sum(transfer_ns - exposed_ns) AS "
                                   "hidden_ns, sum(exposed_ns) AS exposed_ns FROM v_step WHERE phase = "
                                   "'decode'");
        for (std::size_t column = 0; column < expected.columns.size(); ++column) {
            const char* id = expected.columns[column].c_str();
            expectSame(cell("exposure", rows[0], id), expected.rows[0][column], id);
            EXPECT_EQ(cell("exposure", rows[1], id).number() + cell("exposure", rows[2], id).number(),
                      cell("exposure", rows[0], id).number())
                << "cold and warm steps are all steps";
        }
        const auto reasons = [&](const char* table, const std::vector<Cell>& row) {
            double sum = 0;
            for (const std::string_view name : kExposureNames)
                sum += cell(table, row, (std::string(name) + "_ns").c_str()).number();
            return sum;
        };
        for (const auto& row : rows) EXPECT_EQ(reasons("exposure", row), cell("exposure", row, "exposed_ns").number());
        double layers = 0, share = 0;
        for (const auto& row : rowsOf("exposure_by_layer", run)) {
            layers += cell("exposure_by_layer", row, "exposed_ns").number();
            share += cell("exposure_by_layer", row, "share").number();
            EXPECT_EQ(reasons("exposure_by_layer", row), cell("exposure_by_layer", row, "exposed_ns").number());
        }
        EXPECT_EQ(layers, cell("exposure", rows[2], "exposed_ns").number()) << "layers add up to the warm steps";
        EXPECT_NEAR(share, 1, 1e-9);
    }
}

TEST_F(ReportTables, InsightsAreThoseOfTheTrace) {
    for (std::size_t run = 0; run < 2; ++run) {
        const InsightReport found = insightsOf(TraceReader(fileOf(run)), 1);
        const auto rows = rowsOf("insights", run);
        ASSERT_EQ(rows.size(), found.insights.size());
        for (std::size_t i = 0; i < rows.size(); ++i) {
            EXPECT_EQ(raw(cell("insights", rows[i], "finding")), found.insights[i].title);
            EXPECT_EQ(cell("insights", rows[i], "impact").number(), found.insights[i].impact);
        }
    }
}

TEST_F(ReportTables, ComparisonHoldsTheValuesOfBothRuns) {
    const Table& table = *report.table("comparison");
    const char* decode = " FROM v_step WHERE step > 1"; // without the cold one
    const std::pair<const char*, std::string> queries[] = {
        {"Step time", std::string("SELECT avg(duration_ns)") + decode},
        {"Tokens per second", std::string("SELECT sum(tokens) * 1e9 / sum(duration_ns)") + decode},
        {"Locality γ", "SELECT avg(locality) FROM v_locality WHERE NOT opens_block"},
        {"Hit rate", std::string("SELECT total(hits) / sum(hits + misses)") + decode},
        {"Misses per step", std::string("SELECT avg(misses)") + decode},
        {"Bytes to device per step", std::string("SELECT avg(h2d_bytes)") + decode},
        {"Exposed transfer time per step", std::string("SELECT avg(exposed_ns)") + decode}};
    ASSERT_EQ(table.rows.size(), std::size(queries));
    for (std::size_t i = 0; i < table.rows.size(); ++i) {
        const auto& row = table.rows[i];
        EXPECT_EQ(raw(row[1]), queries[i].first);
        expectSame(row[2], test::value(file, queries[i].second), queries[i].first);
        expectSame(row[3], test::value(second, queries[i].second), queries[i].first);
        EXPECT_NEAR(row[4].number(), row[3].number() / row[2].number() - 1, 1e-12);
    }
    EXPECT_EQ(makeReport({file}).table("comparison"), nullptr) << "one run is compared with nothing";
}

TEST_F(ReportTables, VerdictIsThatOfTheSameTracesInSql) {
    const auto& row = report.table("verdict")->rows.at(0);
    // Steps of both runs, without the first and without those that open a block.
    const std::string common =
        "ATTACH '" + second +
        "' AS other; SELECT count(*), avg(a.duration_ns), "
        "avg(b.duration_ns) FROM v_step a JOIN other.v_step b ON a.step = b.step WHERE a.step > 1 "
        "AND NOT a.opens_block AND NOT b.opens_block";
    const auto expected = test::sql(file, common).rows.at(0);
    expectSame(cell("verdict", row, "steps"), expected[0], "steps");
    EXPECT_LE(cell("verdict", row, "ratio_low").number(), cell("verdict", row, "ratio").number());
    EXPECT_GE(cell("verdict", row, "ratio_high").number(), cell("verdict", row, "ratio").number());
    const Table& changes = *report.table("component_changes");
    const auto* step = changes.find("component", "step");
    ASSERT_NE(step, nullptr);
    expectSame((*step)[2], expected[1], "mean step of the first run");
    expectSame((*step)[3], expected[2], "mean step of the second run");
    double sum = 0;
    for (const auto& change : changes.rows) {
        if (&change == step) break;
        sum += change[4].number();
    }
    EXPECT_NEAR(sum, (*step)[4].number(), 1e-6 * std::abs((*step)[3].number())) << "components add up to the step";
    const Report twice = makeReport({file, file});
    EXPECT_EQ(raw(twice.table("verdict")->rows.at(0)[1]), "no difference within noise");
}

TEST_F(ReportTables, EveryReadingTellsHowFarItIsAndCanBeStopped) {
    std::vector<std::string> words;
    double last = 0;
    makeReport({file, second}, [&](double fraction, std::string_view what) {
        EXPECT_GE(fraction, last) << what;
        EXPECT_LE(fraction, 1) << what;
        last = fraction;
        if (words.empty() || words.back() != what) words.emplace_back(what);
    });
    const std::vector<std::string> ofARun{"reading steps", "reading layers", "reading localities"};
    std::vector<std::string> expected = ofARun;
    expected.insert(expected.end(), ofARun.begin(), ofARun.end());
    expected.insert(expected.end(), {"looking for what stands out", "comparing step times"});
    EXPECT_EQ(words, expected);
    for (const std::string& at : std::set<std::string>(expected.begin(), expected.end()))
        EXPECT_THROW(makeReport({file, second},
                                [&](double, std::string_view what) {
                                    if (what == at) throw Error(ErrorKind::Cancelled, "cancelled");
                                }),
                     Error)
            << at;
}

TEST_F(ReportTables, RunsThatCannotBeComparedSayWhy) {
    synthetic::RunShape alone = shape;
    alone.sequences = 1;
    const std::string other = (folder / "alone.kvtrace").string();
    synthetic::recordFile(other, alone, RecordLevel::Counters);
    const Report refused = makeReport({file, other});
    const auto& row = refused.table("verdict")->rows.at(0);
    EXPECT_EQ(raw(row[1]), "not comparable");
    EXPECT_NE(raw(row.back()).find("batch 3 against 1"), std::string::npos) << raw(row.back());
    EXPECT_TRUE(refused.table("component_changes")->rows.empty());
}

TEST_F(ReportTables, SetupIsWhatSqlSays) {
    const std::tuple<const char*, const char*, const char*> queries[] = {
        {"configuration", "Model", "model"},
        {"configuration", "Layers", "layers"},
        {"configuration", "Query heads", "query_heads"},
        {"configuration", "KV heads", "kv_heads"},
        {"configuration", "Head dimension", "head_dim"},
        {"configuration", "Sequences", "sequences"},
        {"configuration", "Method", "method"},
        {"configuration", "Block size", "block_size"},
        {"configuration", "Block bytes", "block_bytes"},
        {"configuration", "Budget", "budget_blocks"},
        {"configuration", "Device slots", "device_slots"},
        {"environment", "Program", "program"},
        {"environment", "Backend", "backend"},
        {"environment", "Device", "device"},
        {"environment", "Link", "link"},
        {"environment", "Link times are", "timing"},
        {"environment", "Recorded", "level"},
        {"environment", "Started", "created_utc"},
        {"environment", "Run", "run_id"},
        {"health", "Status", "status"},
        {"health", "Message", "status_message"},
        {"health", "Dropped steps", "dropped_steps"},
        {"health", "Writer time", "writer_busy_ns"},
        {"health", "Writer time against wall time",
         "CAST(writer_busy_ns AS REAL) / (SELECT sum(duration_ns) FROM v_step)"},
    };
    for (const auto& [id, quantity, column] : queries) {
        const auto* row = report.table(id)->find("quantity", quantity);
        ASSERT_NE(row, nullptr) << quantity;
        for (std::size_t run = 0; run < 2; ++run) {
            const Cell& actual = (*row)[1 + run];
            const std::string expected = test::value(fileOf(run), std::string("SELECT ") + column + " FROM runs");
            if (actual.isNumber())
                expectSame(actual, expected, quantity);
            else
                EXPECT_EQ(raw(actual), expected) << quantity;
        }
    }
    std::set<std::string> keys;
    for (const auto& row : test::sql(file, "SELECT key, value FROM runs, json_each(params_json)").rows) {
        const auto* shown = report.table("configuration")->find("quantity", row[0]);
        ASSERT_NE(shown, nullptr) << row[0];
        EXPECT_EQ(raw((*shown)[1]), row[1]);
        keys.insert(row[0]);
    }
    EXPECT_FALSE(keys.empty());
}

TEST_F(ReportTables, CsvReadsBackAsTheTables) {
    const auto files = writeCsvFolder(report, (folder / "csv" / "deep").string());
    EXPECT_EQ(files.size(), report.tables.size() + 2) << "a file per table and per prompt";
    for (const Table& table : report.tables) {
        const auto rows = parseCsv(contentOf(folder / "csv" / "deep" / (table.id + ".csv")));
        ASSERT_EQ(rows.size(), table.rows.size() + 1) << table.id;
        for (std::size_t column = 0; column < table.columns.size(); ++column)
            EXPECT_EQ(rows[0][column], table.columns[column].id);
        for (std::size_t row = 0; row < table.rows.size(); ++row) {
            ASSERT_EQ(rows[row + 1].size(), table.columns.size()) << table.id;
            for (std::size_t column = 0; column < table.columns.size(); ++column) {
                const Cell& cell = table.rows[row][column];
                const std::string& read = rows[row + 1][column];
                if (std::holds_alternative<double>(cell.value))
                    EXPECT_EQ(std::stod(read), cell.number()) << "all digits are there";
                else
                    EXPECT_EQ(read, raw(cell));
            }
        }
    }
    const auto prompts = nlohmann::json::parse(contentOf(folder / "csv" / "deep" / "prompt-1.json"));
    ASSERT_EQ(prompts.size(), 3U);
    for (int sequence = 0; sequence < 3; ++sequence) {
        const auto expected = test::sql(file, "SELECT token_id FROM v_prompt WHERE seq = " + std::to_string(sequence) +
                                                  " ORDER BY position")
                                  .rows;
        ASSERT_EQ(prompts[std::size_t(sequence)].size(), expected.size());
        for (std::size_t i = 0; i < expected.size(); ++i)
            EXPECT_EQ(std::to_string(prompts[std::size_t(sequence)][i].get<int>()), expected[i][0]);
    }
    std::ofstream(folder / "taken") << "a file";
    EXPECT_THROW(writeCsvFolder(report, (folder / "taken").string()), Error);
}

TEST(ReportCsv, QuotesWhatNeedsIt) {
    Table table{"x", "", "", {{"a,b", "", "", false}, {"c", "", "", true}}, {}};
    table.rows.push_back({text("say \"hi\"\nthere"), real(0.1, Quantity::Ratio)});
    table.rows.push_back({text(""), real(std::nan(""), Quantity::Ratio)});
    const std::vector<std::vector<std::string>> expected{{"a,b", "c"}, {"say \"hi\"\nthere", "0.1"}, {"", ""}};
    EXPECT_EQ(parseCsv(csv(table)), expected);
}

TEST(ReportHtml, TextHoldsNoCharacterThatXmlForbids) {
    EXPECT_EQ(escaped("a\x01z\x1b\x7f \xef\xbf\xbe|\xef\xbf\xbf|\xef\xbf\xbd"), "a z    | |\xef\xbf\xbd");
    EXPECT_EQ(escaped("a\xc2\x80z\xc2\x9b[2J\xc2\x9f|\xc2\xa0"), "a z [2J |\xc2\xa0");
    EXPECT_EQ(escaped("<b> & \"c\"\n"), "&lt;b&gt; &amp; &quot;c&quot;&#10;");
}

TEST(ReportNumbers, ReadAsPeopleWriteThem) {
    EXPECT_EQ(display(1234567, Quantity::Count), "1,234,567");
    EXPECT_EQ(display(-12, Quantity::Count), "-12");
    EXPECT_EQ(display(0.5, Quantity::Count), "0.5");
    EXPECT_EQ(display(4'560'000, Quantity::Nanoseconds), "4.56 ms");
    EXPECT_EQ(display(999, Quantity::Nanoseconds), "999 ns");
    EXPECT_EQ(display(0, Quantity::Bytes), "0 B");
    EXPECT_EQ(display(1536, Quantity::Bytes), "1.5 KiB");
    EXPECT_EQ(display(0.9731, Quantity::Share), "97.3 %");
    EXPECT_EQ(display(std::nan(""), Quantity::Share), "–");
    EXPECT_EQ(display(0.8765, Quantity::Ratio), "0.876"); // 0.8765 lies below its decimal
    EXPECT_EQ(display(51.25, Quantity::GigabytesPerSecond), "51.2 GB/s");
}

TEST(ReportEmpty, ARunWithoutDecodeStepsHasNoInventedNumbers) {
    test::Folder folder;
    synthetic::RunShape shape;
    shape.decodeSteps = 0;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordFile(file, shape, RecordLevel::Counters);
    const Report report = makeReport({file});
    const auto value = [&](const char* quantity) {
        return display((*report.table("key_numbers")->find("quantity", quantity))[1]);
    };
    EXPECT_EQ(value("Decode speed, tokens per second"), "–");
    EXPECT_EQ(value("Mean step"), "–");
    EXPECT_EQ(value("Slowest step"), "–");
    EXPECT_EQ(value("Hit rate"), "–");
    EXPECT_EQ(value("Decode steps"), "0");
    EXPECT_TRUE(report.table("intervals")->rows.empty());
    EXPECT_TRUE(report.table("slowest_steps")->rows.empty());
}

TEST(Reproduce, WordsSurviveAShell) {
    EXPECT_EQ(shellWord("total_blocks=16"), "total_blocks=16");
    EXPECT_EQ(shellWord("my run.kvtrace:1"), "'my run.kvtrace:1'");
    EXPECT_EQ(shellWord("it's"), "'it'\\''s'");
    EXPECT_EQ(shellWord(""), "''");
    EXPECT_EQ(shellWord("$HOME"), "'$HOME'");
}

TEST(Reproduce, ARunOfAnotherEngineHasNoCommand) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::RunShape shape;
    shape.method = "their-own-method";
    synthetic::recordFile(file, shape, RecordLevel::Counters);
    const Reproduction again = reproduce(readRuns({file}).front());
    EXPECT_TRUE(again.command().empty());
    ASSERT_EQ(again.notes.size(), 1U);
    EXPECT_NE(again.notes[0].find("not recorded by KVScope's own engine"), std::string::npos);
}

/// A report of rows that break rules of the format has no number that they make worthless, and says why.
TEST_F(ReportTables, LeavesOutWhatBrokenRulesMakeWorthless) {
    test::sql(file,
              "UPDATE selection SET kept = 3 * selected WHERE kept IS NOT NULL;"
              "UPDATE step SET exposed_ns = transfer_ns + 5 WHERE phase = 1",
              SQLITE_OPEN_READWRITE);
    const Report refused = makeReport({file});
    const auto shown = [&](const char* quantity) {
        const auto* row = refused.table("key_numbers")->find("quantity", quantity);
        return row == nullptr ? std::string("no such row") : display((*row)[1]);
    };
    EXPECT_EQ(shown("Locality γ, mean"), "–");
    EXPECT_EQ(shown("Locality γ, smallest"), "–");
    EXPECT_EQ(shown("Exposed transfer time"), "not known");
    EXPECT_NE(shown("Hit rate"), "–") << "hits are in order";
    EXPECT_NE(shown("Hit rate"), "not known");
    bool said = false;
    for (const Table& table : refused.tables)
        for (const auto& row : table.rows)
            for (const Cell& cell : row)
                said = said || display(cell).find("Rows break rules of the trace format") != std::string::npos;
    EXPECT_TRUE(said);
    EXPECT_EQ(refused.table("exposure")->rows.size(), 0u) << "no table of times that cannot be";
}

TEST_F(ReportTables, CountsNoTokensWhereTheirRowsBreakRules) {
    const auto intervals = [](const Report& made) {
        std::string names;
        for (const auto& row : made.table("intervals")->rows) names += display(row[1]) + "; ";
        return names;
    };
    EXPECT_NE(intervals(makeReport({file})).find("Tokens per second; "), std::string::npos);
    test::sql(file, "UPDATE step SET tokens = -5 WHERE id & 0x1FFFFFF = 7", SQLITE_OPEN_READWRITE);
    const Report refused = makeReport({file});
    for (const char* quantity : {"Tokens decoded", "Prompt tokens"}) {
        const auto* row = refused.table("key_numbers")->find("quantity", quantity);
        ASSERT_NE(row, nullptr) << quantity;
        EXPECT_EQ(display((*row)[1]), "not known") << quantity;
    }
    EXPECT_EQ(intervals(refused).find("Tokens per second; "), std::string::npos);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::reports
