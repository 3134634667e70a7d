// A person's own SQL: what it gives, what it may not do, how it ends.
#include "base/error.h"
#include "profiler/sql/format_document.h"
#include "profiler/sql/sql_session.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sstream>
#include <thread>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SqlSessionTest : public ::testing::Test {
protected:
    SqlSessionTest() {
        synthetic::recordFile(path, {.decodeSteps = 12});
        session = std::make_unique<SqlSession>(path);
    }
    SqlOutcome run(std::string_view sql, const SqlParameters& parameters = {}, const SqlLimits& limits = {}) {
        return session->run(
            sql, parameters, limits, [this](const auto& columns) { table.reset(columns); },
            [this](std::shared_ptr<const SqlRows> rows) { table.append(std::move(rows)); });
    }
    std::string refusal(std::string_view sql, const SqlParameters& parameters = {}) {
        try {
            run(sql, parameters);
        } catch (const Error& error) {
            EXPECT_EQ(error.kind, ErrorKind::BadInput) << sql;
            return oneLine(error);
        }
        return "was not refused";
    }
    test::Folder folder;
    std::string path = (folder / "a.kvtrace").string();
    std::unique_ptr<SqlSession> session;
    SqlTable table;
};

std::string shown(const std::string& value) { return value == "NULL" ? std::string() : value; }

std::string bytesOf(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

TEST_F(SqlSessionTest, GivesEveryCellAsAnotherClientReadsIt) {
    const std::string sql =
        "SELECT step, phase, misses, h2d_bytes, duration_ns / 1e6 AS ms, kept FROM v_step ORDER BY step";
    const SqlOutcome outcome = run(sql);
    const auto expected = test::sql(path, sql);
    ASSERT_EQ(outcome.rows, 13u);
    EXPECT_FALSE(outcome.truncated);
    ASSERT_EQ(table.rows(), expected.rows.size());
    EXPECT_THAT(table.columns(), ElementsAre("step", "phase", "misses", "h2d_bytes", "ms", "kept"));
    for (std::size_t row = 0; row < table.rows(); ++row)
        for (int column = 0; column < 6; ++column)
            if (column == 4)
                EXPECT_DOUBLE_EQ(table.number(row, 4), std::stod(expected.rows[row][4]));
            else
                EXPECT_EQ(table.text(row, column), shown(expected.rows[row][std::size_t(column)]));
    EXPECT_EQ(table.type(0, 5), SqlType::Null) << "the prefill keeps nothing";
    EXPECT_TRUE(std::isnan(table.number(0, 1))) << "text is no number";
}

TEST_F(SqlSessionTest, BindsTheParametersItKnowsAndNamesTheOthers) {
    run("SELECT count(*) FROM v_step WHERE run_id = :run_id AND step <= :step", {{":run_id", 1}, {":step", 4}});
    EXPECT_EQ(table.text(0, 0), "5");
    EXPECT_THAT(refusal("SELECT :layer", {{":step", 4}}),
                HasSubstr("the parameter :layer has no value here; known are :step"));
    EXPECT_THAT(refusal("SELECT ?"), HasSubstr("the parameter ? has no value"));
}

TEST_F(SqlSessionTest, RefusesEverythingThatIsNotReadingAndLeavesTheFileAsItWas) {
    const std::string before = bytesOf(path);
    for (const char* sql : {"INSERT INTO text VALUES (9, 'x')",
                            "UPDATE run SET name = 'x'",
                            "DELETE FROM step",
                            "UPDATE sqlite_schema SET sql = ''",
                            "DROP TABLE step",
                            "CREATE TABLE x (a)",
                            "CREATE TEMP TABLE x (a)",
                            "CREATE VIEW x AS SELECT 1",
                            "ALTER TABLE run RENAME TO r",
                            "ATTACH '/tmp/kvscope-other.db' AS o",
                            "DETACH main",
                            "VACUUM",
                            "VACUUM INTO '/tmp/kvscope-copy.db'",
                            "REINDEX",
                            "ANALYZE",
                            "BEGIN",
                            "COMMIT",
                            "SAVEPOINT s",
                            "PRAGMA query_only = 0",
                            "PRAGMA user_version = 7",
                            "PRAGMA journal_mode = DELETE",
                            "PRAGMA writable_schema = 1",
                            "PRAGMA wal_checkpoint",
                            "PRAGMA temp_store_directory = '/tmp'",
                            "SELECT load_extension('x')",
                            "WITH a AS (SELECT 1) DELETE FROM step",
                            "EXPLAIN DELETE FROM step",
                            "REPLACE INTO text VALUES (1, 'x')",
                            "CREATE VIRTUAL TABLE v USING fts5(a)",
                            "SELECT writefile('/tmp/kvscope-x', 'y')",
                            "SELECT readfile('/etc/passwd')",
                            "SELECT * FROM pragma_user_version(7)"})
        EXPECT_THAT(refusal(sql), ::testing::AnyOf(HasSubstr("only read here"), HasSubstr("no such"),
                                                   HasSubstr("not authorized"), HasSubstr("too many arguments"),
                                                   HasSubstr("may not be modified"), HasSubstr("locked")))
            << sql;
    EXPECT_THAT(refusal("DELETE FROM step"), HasSubstr("would delete rows, and a trace is only read here"));
    EXPECT_EQ(bytesOf(path), before);
    EXPECT_FALSE(std::filesystem::exists("/tmp/kvscope-other.db"));
    EXPECT_FALSE(std::filesystem::exists("/tmp/kvscope-copy.db"));
}

TEST_F(SqlSessionTest, LooksWithPragmasAndExplain) {
    run("PRAGMA user_version");
    EXPECT_EQ(table.text(0, 0), "1");
    run("PRAGMA table_info(v_step)");
    EXPECT_GT(table.rows(), 10u);
    run("SELECT name FROM pragma_table_info('step')");
    EXPECT_EQ(table.text(0, 0), "id");
    EXPECT_GT(run("EXPLAIN QUERY PLAN SELECT * FROM v_span").rows, 1u);
    run("WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 5) SELECT sum(i) FROM n");
    EXPECT_EQ(table.text(0, 0), "15");
}

TEST_F(SqlSessionTest, SaysWhereAStatementGoesWrong) {
    EXPECT_THAT(refusal("SELECT stepp FROM v_step"), HasSubstr("no such column: stepp"));
    EXPECT_EQ(session->errorOffset(), 7);
    EXPECT_THAT(refusal("SELEC 1"), HasSubstr("syntax error"));
    EXPECT_EQ(session->errorOffset(), 0);
    EXPECT_THAT(refusal(""), HasSubstr("no statement to run"));
    EXPECT_THAT(refusal(" -- nothing\n"), HasSubstr("no statement to run"));
    EXPECT_THAT(refusal("SELECT 1; SELECT 2"), HasSubstr("more than one statement"));
    EXPECT_EQ(run("SELECT 1; -- and no more\n").rows, 1u);
}

TEST_F(SqlSessionTest, StopsAtItsLimitsAndSaysSo) {
    const char* endless = "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT i FROM n";
    SqlOutcome outcome = run(endless, {}, {.rows = 10'000});
    EXPECT_TRUE(outcome.truncated);
    EXPECT_EQ(outcome.rows, 10'000u);
    EXPECT_EQ(table.text(9'999, 0), "10000");
    outcome = run("WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT zeroblob(1000) FROM n", {},
                  {.bytes = 1 << 20});
    EXPECT_TRUE(outcome.truncated);
    EXPECT_NEAR(double(outcome.rows), double(1 << 20) / 1009, 3) << "a cell of 8 bytes, its type, its thousand";
    EXPECT_FALSE(run("SELECT i FROM (WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 100)"
                     " SELECT i FROM n)",
                     {}, {.rows = 100})
                     .truncated)
        << "exactly the limit";
}

TEST_F(SqlSessionTest, CanBeInterruptedWhileItGivesNoRow) {
    std::thread stopper([this] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        session->interrupt();
    });
    try {
        run("WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n");
        ADD_FAILURE() << "an endless query ended";
    } catch (const Error& error) {
        EXPECT_EQ(error.kind, ErrorKind::Cancelled);
    }
    stopper.join();
    EXPECT_EQ(run("SELECT 1").rows, 1u) << "the session goes on";
}

TEST_F(SqlSessionTest, SortsAsSqliteDoes) {
    run("SELECT * FROM (VALUES ('b'), (2), (NULL), ('a'), (10), (2.5), (X'00'), (9007199254740993), "
        "(9007199254740992))");
    const auto expected = test::sql(path, "SELECT CASE typeof(column1) WHEN 'blob' THEN 'X''00''' ELSE column1 END "
                                          "FROM (VALUES ('b'), (2), (NULL), ('a'), (10), (2.5), (X'00'),"
                                          " (9007199254740993), (9007199254740992)) ORDER BY column1")
                              .rows;
    const auto order = table.order(0, false);
    ASSERT_EQ(order.size(), 9u);
    for (std::size_t i = 0; i < 9; ++i) EXPECT_EQ(table.text(order[i], 0), shown(expected[i][0])) << i;
    const auto backwards = table.order(0, true);
    for (std::size_t i = 0; i < 9; ++i) EXPECT_EQ(backwards[i], order[8 - i]);
}

TEST_F(SqlSessionTest, WritesTheWholeResultAsCsv) {
    std::string csv;
    std::size_t told = 0;
    const std::size_t rows = session->writeCsv(
        "SELECT 1 AS \"a,b\", 'x\"y' AS c, NULL AS d, 0.1 AS e, 'two\nlines' AS f, X'0AFF' AS g", {},
        [&](std::string_view text) { csv += text; }, [&](std::size_t count) { told = count; });
    EXPECT_EQ(rows, 1u);
    EXPECT_EQ(told, 1u);
    EXPECT_EQ(csv, "\"a,b\",c,d,e,f,g\n1,\"x\"\"y\",,0.1,\"two\nlines\",X'0AFF'\n");
}

TEST_F(SqlSessionTest, DescribesTheSchemaAsTheFormatDocumentDoes) {
    const auto schema = session->schema();
    ASSERT_FALSE(schema.empty());
    EXPECT_TRUE(schema.front().view);
    EXPECT_FALSE(schema.back().view);
    std::size_t described = 0, columns = 0;
    for (const SqlTableInfo& info : schema) {
        EXPECT_EQ(info.columns.size(),
                  test::sql(path, "SELECT * FROM pragma_table_info('" + info.name + "')").rows.size());
        for (const SqlColumnInfo& column : info.columns) {
            ++columns, described += !column.help.empty();
            EXPECT_FALSE(column.type.empty()) << info.name << '.' << column.name;
        }
    }
    EXPECT_GT(described * 2, columns) << "most columns are described";
    EXPECT_EQ(columnHelp("v_step", "exposed_ns").meaning, "of that, on the critical path");
    EXPECT_EQ(columnHelp("v_step", "hits").type, "integer");
    EXPECT_EQ(tableHelp("v_step"), "One row per step of the whole batch.");
    EXPECT_EQ(columnHelp("layer_step", "exposed_ns").meaning, "of both, on the critical path") << "as in its view";
    EXPECT_EQ(tableHelp("no_such"), "");
}

TEST(SqlStatements, AreSplitOutsideOfQuotesAndComments) {
    const std::string text = "SELECT ';' AS a; -- one; two\nSELECT \"b;\" /* ; */ FROM t ;\n\n";
    const auto at = [&](std::size_t position) {
        const auto [begin, length] = statementAt(text, position);
        return text.substr(begin, length);
    };
    EXPECT_EQ(at(0), "SELECT ';' AS a");
    EXPECT_EQ(at(12), "SELECT ';' AS a");
    EXPECT_EQ(at(40), "SELECT \"b;\" /* ; */ FROM t");
    EXPECT_EQ(at(text.size()), "SELECT \"b;\" /* ; */ FROM t") << "behind the last one";
    EXPECT_EQ(statementAt("  -- nothing\n", 3).second, 0u);
    EXPECT_EQ(statementAt("", 0).second, 0u);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
