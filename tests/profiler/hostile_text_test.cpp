// Every exporter with hostile text in every field that a stranger can write, and a reader for each of its formats.
#include "profiler/export/export.h"
#include "profiler/report/html.h"
#include "profiler/report/report.h"
#include "tests/profiler/markup.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_denoise.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/synthetic_serving.h"
#include "tests/profiler/temporary_folder.h"

#include <algorithm>
#include <fstream>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using testing::HasSubstr;
using testing::Not;

class HostileText : public testing::Test {
protected:
    HostileText() {
        synthetic::RunShape shape;
        shape.method = "nosa";
        synthetic::recordFile(file, shape);
        makeWords();
        change("UPDATE run SET name=(SELECT w FROM words), model=(SELECT w FROM words), device=(SELECT w FROM words),"
               " link=(SELECT w FROM words), status_message=(SELECT w FROM words), created_utc=(SELECT w FROM words),"
               " backend=(SELECT w FROM words), params_json=json_object((SELECT w FROM words), (SELECT w FROM words));"
               "UPDATE health SET program=(SELECT w FROM words), error=(SELECT w FROM words);"
               "UPDATE token SET text=(SELECT w FROM words), bytes=NULL; UPDATE prompt SET text=(SELECT w FROM words), "
               "bytes=NULL;"
               "INSERT INTO text(id, value) SELECT 901, w FROM words;"
               "INSERT INTO text(id, value) SELECT 902, w || ' of a span' FROM words;"
               "INSERT INTO span(id, run_id, step, layer, kind, track, name, start_ns, duration_ns, depth) VALUES "
               "(9001, 1, 2, 0, 1, 901, 902, 10, 20, 0), (9002, 1, 2, 1, 1, 901, 902, 15, 20, 0);"
               "INSERT INTO span_detail VALUES (9001, 901, (SELECT json_object(w, w) FROM words)),"
               " (9002, 902, (SELECT '{' || w FROM words));"
               "INSERT INTO counter VALUES (1, 1, 901, 0, 10, 5); INSERT INTO gauge VALUES (1, 1, 901, 7, 0.5);"
               "INSERT INTO flow VALUES (1, 1, 9001, 9002); INSERT INTO note SELECT 1, 1, 5, 6, w, w FROM words;");
    }
    /// A table with one text: everything that some format or terminal could take for more than text.
    void makeWords() const {
        // Markup, quotes, separators, controls, C1, a direction mark, half an emoji's escape, an entity, a formula.
        change("CREATE TABLE words AS SELECT '=R&D\"''<script>alert(1)</script><img src=x onerror=alert(2)>,;' || "
               "char(10) ||"
               " char(13) || char(9) || char(27) || '[2J' || char(1) || char(127) || char(0x9b) || char(0x202e) ||"
               " char(0xfffe) || char(0xffff) || ']]>--></style>{{}}%s%n\\u0000\\' AS w");
    }
    /// The same text in every field of a served or denoised run that holds words.
    void makeWordsOfRows() const {
        makeWords();
        change("UPDATE run SET name=(SELECT w FROM words); UPDATE run SET model=name, method=name, device=name,"
               " link=name, status_message=name, timing=name;"
               "UPDATE text SET value=(SELECT w FROM words) || id;"
               "UPDATE request SET class=(SELECT w FROM words), reason=(SELECT w FROM words);"
               "UPDATE request SET status=(SELECT w FROM words) WHERE id & 3 = 1;"
               "UPDATE request_span SET state=(SELECT w FROM words) WHERE id & 3 = 1;"
               "UPDATE iteration SET limited_by=(SELECT w FROM words) WHERE id & 3 = 1;"
               "UPDATE row_event SET kind=(SELECT w FROM words) WHERE id & 3 = 1;"
               "INSERT OR REPLACE INTO run_meta SELECT run_id, w, w FROM run, words;"
               "INSERT OR REPLACE INTO run_meta SELECT run_id, 'serving', w FROM run, words;"
               "INSERT OR REPLACE INTO run_meta SELECT run_id, 'group', w FROM run, words");
    }
    void change(const std::string& sql) const { test::sql(file, sql, SQLITE_OPEN_READWRITE); }
    std::string exported(ExportTable table, ExportFormat format, const ExportOptions& options = {}) const {
        std::ostringstream out;
        exportTable(file, table, format, out, options);
        return out.str();
    }
    /// Records of a CSV by RFC 4180. Empty: it is none.
    static std::vector<std::vector<std::string>> records(const std::string& csv) {
        std::vector<std::vector<std::string>> rows(1);
        rows.back().emplace_back();
        bool quoted = false;
        for (std::size_t i = 0; i < csv.size(); ++i) {
            const char c = csv[i];
            if (quoted) {
                if (c == '"' && i + 1 < csv.size() && csv[i + 1] == '"')
                    rows.back().back() += csv[++i];
                else if (c == '"')
                    quoted = false;
                else
                    rows.back().back() += c;
            } else if (c == '"' && rows.back().back().empty()) {
                quoted = true;
            } else if (c == '"') {
                return {};
            } else if (c == ',') {
                rows.back().emplace_back();
            } else if (c == '\n') {
                rows.emplace_back().emplace_back();
            } else {
                rows.back().back() += c;
            }
        }
        if (quoted || rows.back().size() != 1 || !rows.back().front().empty()) return {};
        rows.pop_back();
        return rows;
    }
    /// Every table, as CSV and as JSON lines, has as many fields in each row. named: those in which the text arrives as
    /// it is.
    void expectTables(const std::vector<ExportTable>& named) {
        const std::string words = test::value(file, "SELECT w FROM words");
        for (std::size_t i = 0; i < exportTableNames().size(); ++i) {
            SCOPED_TRACE(exportTableNames()[i]);
            const auto table = ExportTable(i);
            const auto rows = records(exported(table, ExportFormat::Csv));
            ASSERT_FALSE(rows.empty());
            bool found = false;
            for (const auto& row : rows) {
                ASSERT_EQ(row.size(), rows.front().size());
                for (const std::string& field : row) found = found || field == words;
            }
            std::istringstream lines(exported(table, ExportFormat::Jsonl));
            std::size_t count = 0;
            for (std::string line; std::getline(lines, line); ++count) {
                const auto object = nlohmann::json::parse(line, nullptr, false);
                ASSERT_TRUE(object.is_object()) << line;
                if (table != ExportTable::Denoising) { // whose lines hold whole forwards
                    EXPECT_EQ(object.size(), rows.front().size());
                }
            }
            EXPECT_EQ(count + 1, rows.size());
            if (std::count(named.begin(), named.end(), table) > 0) {
                EXPECT_TRUE(found) << "the text arrives as it is";
            }
        }
    }
    test::Folder folder;
    std::string file = (folder / "run.kvtrace").string();
};

TEST_F(HostileText, TablesStayTables) {
    expectTables({ExportTable::Tokens, ExportTable::Prompt, ExportTable::Runs, ExportTable::Kernels,
                  ExportTable::Counters, ExportTable::Gauges});
}

TEST_F(HostileText, FormulasAreGuardedWhereThatIsAskedFor) {
    ExportOptions guarded;
    guarded.guardFormulas = true;
    const auto plain = records(exported(ExportTable::Prompt, ExportFormat::Csv)),
               safe = records(exported(ExportTable::Prompt, ExportFormat::Csv, guarded));
    ASSERT_EQ(plain.size(), safe.size());
    ASSERT_GT(plain.size(), 1u);
    EXPECT_EQ(plain[1].back().front(), '=');
    EXPECT_EQ(safe[1].back(), "'" + plain[1].back());
    EXPECT_EQ(safe[1].front(), plain[1].front()) << "numbers are left alone";
}

TEST_F(HostileText, TheTimelineStaysJson) {
    std::ostringstream out;
    exportChromeTrace(file, out);
    const auto document = nlohmann::json::parse(out.str(), nullptr, false);
    ASSERT_TRUE(document.is_object());
    EXPECT_GT(document.at("traceEvents").size(), 100u);
}

TEST_F(HostileText, ServedAndDenoisedRunsStayTablesAndPages) {
    for (const bool served : {true, false}) {
        std::filesystem::remove(file);
        if (served)
            synthetic::recordServing(file, 12, true, RunStatus::Finished, true, synthetic::kServerFacts);
        else
            synthetic::recordDenoising(file, {});
        makeWordsOfRows();
        expectTables(served ? std::vector{ExportTable::Requests, ExportTable::Iterations} : std::vector<ExportTable>{});
        std::ostringstream timeline;
        exportChromeTrace(file, timeline);
        EXPECT_TRUE(nlohmann::json::accept(timeline.str()));
        const std::string page = reports::html(reports::makeReport({file, file}), {});
        const test::Markup markup = test::parseMarkup(page);
        EXPECT_EQ(markup.error, "");
        EXPECT_EQ(markup.elements.count("img"), 0u);
        EXPECT_EQ(markup.attributes.count("onerror"), 0u);
        EXPECT_THAT(page, Not(HasSubstr("<script>")));
        EXPECT_THAT(page, Not(HasSubstr("\u202e"))) << "it would turn round the page's own words";
    }
}

TEST_F(HostileText, TheReportIsAPageThatRunsNothingOfTheTraces) {
    change("UPDATE run SET timing=(SELECT w FROM words)");
    const reports::Report report = reports::makeReport({file, file});
    const std::string page = reports::html(report, {});
    const test::Markup markup = test::parseMarkup(page);
    EXPECT_EQ(markup.error, "");
    EXPECT_EQ(markup.elements.count("img"), 0u);
    EXPECT_EQ(markup.attributes.count("style"), 0u);
    EXPECT_EQ(markup.attributes.count("onerror"), 0u);
    EXPECT_THAT(page, Not(HasSubstr("unsafe-inline")));
    EXPECT_THAT(page, Not(HasSubstr("<script>")));
    EXPECT_THAT(page, Not(HasSubstr("\u202e"))) << "it would turn round the page's own words";
    EXPECT_THAT(page, HasSubstr("\\u202e"));
    EXPECT_THAT(page, HasSubstr("script-src 'nonce-"));
    // One script and one style may run: those that carry the page's own pass.
    const std::size_t begin = page.find("script-src 'nonce-") + 18;
    const std::string pass = page.substr(begin, page.find('\'', begin) - begin);
    EXPECT_GE(pass.size(), 22u);
    std::size_t passes = 0;
    for (std::size_t at = 0; (at = page.find("nonce=\"" + pass + "\"", at)) != std::string::npos; ++at) ++passes;
    EXPECT_EQ(passes, 2u);
    EXPECT_THAT(reports::html(report, {}), Not(HasSubstr(pass))) << "another one every time";

    reports::writeCsvFolder(report, (folder / "csv").string());
    for (const auto& entry : std::filesystem::directory_iterator(folder / "csv")) {
        std::ifstream stream(entry.path(), std::ios::binary);
        const std::string text{std::istreambuf_iterator<char>(stream), {}};
        if (entry.path().extension() == ".json") {
            EXPECT_TRUE(nlohmann::json::accept(text)) << entry.path();
            continue;
        }
        const auto rows = records(text);
        ASSERT_FALSE(rows.empty()) << entry.path();
        for (const auto& row : rows) EXPECT_EQ(row.size(), rows.front().size()) << entry.path();
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
