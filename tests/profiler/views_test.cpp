// The SQL contract: views, their columns, and sums that must agree whatever the trace.
#include "profiler/read/trace_reader.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"

#include <cstdlib>
#include <gmock/gmock.h>
#include <sstream>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using synthetic::RunShape;

class ViewsTest : public testing::Test {
protected:
    void SetUp() override {
        first.sequences = 2;
        first.denseLayers = 1;
        first.oracle = true;
        second.seed = 3;
        second.layers = 2;
        second.decodeSteps = 9;
        synthetic::recordFile(file, first);
        synthetic::recordFile(file, second);
    }
    std::string value(const std::string& query) const { return test::value(file, query); }
    test::Folder folder;
    std::string file = (folder / "run.kvtrace").string();
    RunShape first, second;
};

TEST_F(ViewsTest, BeginWithTheColumnsOfTheContract) {
    const std::vector<std::pair<std::string, std::string>> contract{
        {"runs",
         "run_id, name, created_utc, model, method, params_json, backend, device, link, block_size, layers, kv_heads, "
         "status"},
        {"v_step", "run_id, step, phase, tokens, start_ns, duration_ns, selected, hits, misses, h2d_bytes, d2h_bytes, "
                   "transfer_ns, exposed_ns"},
        {"v_locality", "run_id, step, layer, seq, kv_head, selected, kept, locality"},
        {"v_breakdown", "run_id, phase, layer, component, calls, total_ns"},
        {"v_transfer", "run_id, step, layer, direction, mechanism, blocks, bytes, start_ns, duration_ns"},
        {"v_token", "run_id, step, seq, token_id, text"},
        {"v_span", "run_id, step, layer, track, name, start_ns, duration_ns, depth"}};
    for (const auto& [view, columns] : contract) {
        std::vector<std::string> wanted;
        std::istringstream list(columns);
        for (std::string name; list >> name;)
            wanted.push_back(name.back() == ',' ? name.substr(0, name.size() - 1) : name);
        std::vector<std::string> actual = test::sql(file, "SELECT * FROM " + view + " LIMIT 1").columns;
        ASSERT_GE(actual.size(), wanted.size()) << view;
        actual.resize(wanted.size());
        EXPECT_EQ(actual, wanted) << view;
    }
}

TEST_F(ViewsTest, IdentifyTheFileAsATrace) {
    EXPECT_EQ(value("PRAGMA application_id"), std::to_string(0x4B565343));
    EXPECT_EQ(value("PRAGMA user_version"), "1");
    EXPECT_EQ(value("PRAGMA page_size"), "16384");
    EXPECT_EQ(value("PRAGMA journal_mode"), "delete");
    EXPECT_EQ(value("PRAGMA integrity_check"), "ok");
}

TEST_F(ViewsTest, ComponentsAndOtherAddUpToTheWallTime) {
    const auto sums = test::sql(file, "SELECT run_id, phase, sum(total_ns) FROM v_breakdown GROUP BY run_id, phase");
    const auto walls = test::sql(file, "SELECT run_id, phase, sum(duration_ns) FROM v_step GROUP BY run_id, phase");
    EXPECT_EQ(sums.rows.size(), 4u);
    EXPECT_EQ(sums.rows, walls.rows);
    EXPECT_EQ(value("SELECT count(*) FROM v_breakdown WHERE component = 'other' AND total_ns >= 0 AND layer = -1"),
              "4");
    EXPECT_EQ(value("SELECT min(calls) FROM v_breakdown WHERE component <> 'other'"),
              value("SELECT min(n) FROM (SELECT count(*) n FROM v_step GROUP BY run_id, phase)"));
}

TEST_F(ViewsTest, AgreeWithTheReadersOwnBreakdown) {
    const TraceReader reader(file);
    for (const int run : {1, 2}) {
        std::vector<std::vector<std::string>> rows;
        for (const BreakdownRow& row : reader.breakdown(run))
            rows.push_back({nameOf(row.phase), std::to_string(row.layer), row.component, std::to_string(row.calls),
                            std::to_string(row.totalNs)});
        EXPECT_THAT(
            rows, testing::UnorderedElementsAreArray(
                      test::sql(file, "SELECT phase, layer, component, calls, total_ns FROM v_breakdown WHERE run_id=" +
                                          std::to_string(run))
                          .rows));
    }
}

TEST_F(ViewsTest, ShowEveryComponentOfThePipelineThatRan) {
    const auto rows =
        test::sql(file, "SELECT DISTINCT component FROM v_breakdown WHERE run_id=1 AND phase='decode'").rows;
    std::vector<std::string> names;
    for (const auto& row : rows) names.push_back(row[0]);
    EXPECT_THAT(names, testing::UnorderedElementsAre("qkv_linear", "rope", "compression", "stage1", "pooling",
                                                     "offloading", "stage2", "attention", "o_linear", "ffn", "embed",
                                                     "lm_head", "sample", "other"));
    EXPECT_EQ(
        value("SELECT group_concat(DISTINCT layer) FROM v_breakdown WHERE component='attention' AND phase='decode'"),
        "0");
    EXPECT_EQ(value("SELECT count(*) FROM v_breakdown WHERE component='stage1' AND phase='prefill'"), "0");
}

TEST_F(ViewsTest, HitsAndMissesMakeTheSelected) {
    for (const char* view : {"v_step", "v_layer", "v_locality"})
        EXPECT_EQ(value(std::string("SELECT count(*) FROM ") + view + " WHERE hits + misses <> selected"), "0") << view;
    EXPECT_EQ(value("SELECT sum(misses) FROM v_step"), value("SELECT sum(misses) FROM v_locality"));
    EXPECT_EQ(value("SELECT sum(selected) FROM v_layer"), value("SELECT sum(selected) FROM v_locality"));
    EXPECT_EQ(value("SELECT sum(transfer_ns) FROM v_step"), value("SELECT sum(duration_ns) FROM v_transfer"));
    EXPECT_EQ(value("SELECT sum(h2d_bytes) FROM v_step"),
              value("SELECT sum(bytes) FROM v_transfer WHERE direction='h2d'"));
    EXPECT_EQ(value("SELECT sum(d2h_bytes) FROM v_step"),
              value("SELECT sum(bytes) FROM v_transfer WHERE direction='d2h'"));
}

TEST_F(ViewsTest, LocalityIsUndefinedAtTheFirstDecodeStepOnly) {
    EXPECT_EQ(value("SELECT group_concat(DISTINCT step) FROM v_locality WHERE locality IS NULL"), "1");
    EXPECT_EQ(value("SELECT count(*) FROM v_locality WHERE locality IS NULL AND kept IS NOT NULL"), "0");
    EXPECT_EQ(value("SELECT count(*) FROM v_locality WHERE locality < 0 OR locality > 1"), "0");
    EXPECT_EQ(value("SELECT count(*) FROM v_locality WHERE abs(locality * selected - kept) > 1e-9"), "0");
    EXPECT_EQ(value("SELECT count(*) FROM v_locality WHERE run_id=1 AND layer=0"), "0"); // dense
}

TEST_F(ViewsTest, MarkTheSequenceThatOpensABlock) {
    // Sequence 0 has a prompt of 200 tokens, 1 of 201; step k feeds position prompt + k - 1; blocks of 16.
    EXPECT_EQ(value("SELECT group_concat(DISTINCT step) FROM v_locality WHERE run_id=1 AND seq=0 AND opens_block"),
              "9");
    EXPECT_EQ(value("SELECT group_concat(DISTINCT step) FROM v_locality WHERE run_id=1 AND seq=1 AND opens_block"),
              "8");
}

TEST_F(ViewsTest, SpansNest) {
    EXPECT_EQ(value("SELECT count(*) FROM v_span WHERE depth=0"), value("SELECT count(*) FROM v_step"));
    EXPECT_EQ(value("SELECT count(*) FROM v_span WHERE name='layer'"), value("SELECT count(*) FROM v_layer"));
    EXPECT_EQ(value("SELECT sum(duration_ns) FROM v_span WHERE depth=2"),
              value("SELECT sum(duration_ns) FROM v_layer"));
    EXPECT_EQ(value("SELECT count(*) FROM v_span i LEFT JOIN v_span o ON o.run_id=i.run_id AND o.step=i.step"
                    " AND o.depth=i.depth-1 AND (o.layer=i.layer OR o.depth=0) AND o.start_ns<=i.start_ns"
                    " AND o.start_ns+o.duration_ns>=i.start_ns+i.duration_ns WHERE i.depth>0 AND o.run_id IS NULL"),
              "0");
    // Siblings do not overlap.
    EXPECT_EQ(
        value("SELECT count(*) FROM (SELECT start_ns, lag(start_ns + duration_ns) OVER (PARTITION BY run_id, depth"
              " ORDER BY start_ns) AS last_end FROM v_span) WHERE start_ns < last_end"),
        "0");
}

TEST_F(ViewsTest, StagesStartWhereTheOneBeforeEnds) {
    EXPECT_EQ(
        value(
            "SELECT count(*) FROM (SELECT start_ns, lag(start_ns + duration_ns) OVER (PARTITION BY run_id, step, layer"
            " ORDER BY start_ns) AS last_end FROM v_span WHERE depth=2) WHERE start_ns <> last_end"),
        "0");
}

TEST_F(ViewsTest, TokensJoinIntoTextAndPromptsAreApart) {
    EXPECT_EQ(value("SELECT count(*) FROM v_token WHERE run_id=1 AND seq=0"), "21");
    EXPECT_EQ(value("SELECT count(*) FROM v_token WHERE run_id=1 AND seq=1"), "16");
    EXPECT_EQ(value("SELECT min(position) FROM v_token WHERE run_id=1 AND seq=1"), "201");
    EXPECT_EQ(value("SELECT count(*) FROM v_prompt WHERE run_id=1 AND seq=1"), "201");
    EXPECT_EQ(value("SELECT count(*) FROM v_prompt WHERE run_id=2"), "200");
    EXPECT_EQ(value("SELECT text FROM v_prompt WHERE run_id=1 AND seq=0 AND position=0"), "The");
    // Half a character is U+FFFD as text and itself as bytes.
    EXPECT_EQ(value("SELECT DISTINCT text FROM v_prompt WHERE token_id=6"), "\xEF\xBF\xBD");
    EXPECT_EQ(value("SELECT DISTINCT hex(bytes) FROM v_prompt WHERE token_id=6"), "C3");
    EXPECT_EQ(value("SELECT DISTINCT hex(bytes) FROM v_prompt WHERE token_id=0"), "546865");
}

TEST_F(ViewsTest, SpansOfOtherSourcesJoinIn) {
    test::sql(file,
              "INSERT INTO text VALUES (1, 'stream 7'), (2, 'paged_gather');"
              "INSERT INTO span(id, run_id, step, layer, kind, track, name, start_ns, duration_ns, depth) VALUES (1, "
              "2, 3, 1, 1, 1, 2, 5000, 700, 0)",
              SQLITE_OPEN_READWRITE);
    EXPECT_EQ(value("SELECT track || name || start_ns FROM v_span WHERE run_id=2 AND track='stream 7'"),
              "stream 7paged_gather5000");
    EXPECT_EQ(value("SELECT count(*) FROM v_kernel WHERE run_id=2 AND step=3 AND layer=1"), "1");
    EXPECT_EQ(value("SELECT count(*) FROM v_kernel WHERE run_id=1"), "0");
}

TEST_F(ViewsTest, AreReadableByTheSqliteProgram) {
    const std::string command = "sqlite3 -readonly '" + file + "' \"SELECT count(*) FROM v_step\" > '" +
                                (folder / "out").string() + "' 2>/dev/null";
    if (std::system("command -v sqlite3 > /dev/null 2>&1") != 0) GTEST_SKIP() << "the sqlite3 program is not installed";
    EXPECT_EQ(std::system(command.c_str()), 0);
    EXPECT_EQ(std::filesystem::file_size(folder / "out"), 3u); // "31\n"
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
