// A trace of another engine that tells of its requests, written by hand from docs/trace-format.md without iterations:
// it keeps every rule, and readers know which request has a row in which step.
#include "profiler/check/check.h"
#include "profiler/read/served_load.h"
#include "profiler/read/serving.h"
#include "profiler/replay/selection_trace.h"
#include "profiler/report/report.h"
#include "profiler/store/trace_store.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/places.h"

#include <cmath>
#include <fmt/format.h>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kMs = 1'000'000;

struct Fed {
    int row = 0, position = 0;
    bool first = false; // of its request
};
/// Row 0 has a request in steps 1 to 3 and another one from step 4 on, row 1 one in steps 2 to 4.
const std::vector<std::vector<Fed>> kSteps{
    {}, {{0, 20, true}}, {{0, 21}, {1, 40, true}}, {{0, 22}, {1, 41}}, {{0, 10, true}, {1, 42}}, {{0, 11}}};

void writeRequests(const std::string& path) {
    std::ifstream file(test::source("resources/sql/schema.sql"));
    const std::string schema{std::istreambuf_iterator<char>(file), {}};
    std::string sql =
        "PRAGMA page_size=16384; PRAGMA application_id=0x4B565343; PRAGMA user_version=1; BEGIN;" + schema;
    sql += "INSERT INTO run VALUES (1,'served','2026-01-31T12:00:00Z','my-model','my-method','{}','cuda','my GPU','',"
           "'measured',0,0,16,1,1,1,128,2,0,0,8192,'selections','finished','');"
           "INSERT INTO health VALUES (1,'my engine 1.0',0,0,1769860860000,'');"
           "INSERT INTO run_meta VALUES (1,'engine','my engine'), (1,'knows','[\"selections\",\"step_times\"]');";
    for (std::int64_t s = 1; s < std::int64_t(kSteps.size()); ++s) {
        const std::int64_t key = std::int64_t(1) << 25 | s;
        int selected = 0, kept = 0;
        bool known = true;
        for (const auto& [row, position, first] : kSteps[std::size_t(s)]) {
            const int block = position / 16, count = block > 0 ? 2 : 1;
            const std::string ids = block > 0 ? fmt::format("00{:02x}0a", block - 1) : "0002"; // and their origins
            sql +=
                fmt::format("INSERT INTO selection VALUES ({},0,{},{},0,0,NULL,x'00{:02x}{}');",
                            (key << 10) << 20 | row << 10, count, first ? "NULL" : std::to_string(count), count, ids);
            sql += fmt::format("INSERT INTO token VALUES ({},{},7,'t',NULL);", key << 20 | row << 10, position + 1);
            selected += count, kept += count, known &= !first;
        }
        const std::string keptText = known ? std::to_string(kept) : "NULL";
        sql += fmt::format("INSERT INTO layer_step VALUES ({},{},0,0,0,0,0,0,0,0,0,0,{},{},0,0,0,0,0,0,0,0,0,NULL);",
                           key << 10, 2 * kMs * s, selected, keptText);
        sql += fmt::format("INSERT INTO step VALUES ({},1,{},0,{},{},0,0,0,{},{},0,0,0,0,0,0,0,0);", key,
                           kSteps[std::size_t(s)].size(), 2 * kMs * s, kMs, selected, keptText);
    }
    const auto request = [&](int number, int row, int arrival, int first, int last, int made, const char* status) {
        const bool open = std::string_view(status) == "decode";
        const std::int64_t sched = 2 * kMs * first, token = sched + kMs, end = 2 * kMs * last + kMs;
        sql +=
            fmt::format("INSERT INTO request VALUES ({},{},'chat',{},{},{},{},0,0,{},'{}','',0,0,0,0,0,0,0,0,0,'r{}',"
                        "{},{});",
                        std::int64_t(1) << 40 | number, row, arrival, sched, token, open ? "NULL" : std::to_string(end),
                        made, status, number, first, last);
        for (const auto& [state, from, to] :
             {std::tuple("queued", std::int64_t(arrival), sched), {"prefill", sched, token}, {"decode", token, end}})
            if (state != std::string_view("decode") || !open)
                sql +=
                    fmt::format("INSERT INTO request_span(request, state, start_ns, end_ns, id) SELECT {0}, '{1}', {2},"
                                " {3}, coalesce(max(id), (1 << 40) - 1) + 1 FROM request_span;",
                                number, state, from, to);
    };
    request(0, 0, 0, 1, 3, 3, "stop");
    request(1, 1, int(kMs), 2, 4, 3, "length");
    request(2, 0, int(2 * kMs), 4, 5, 2, "decode");
    sql += "INSERT INTO text VALUES (1,'waiting'),(2,'scheduler'),(3,'plan');"
           "INSERT INTO gauge VALUES (1,1,1,2000000,1.5),(2,1,1,9000000,0);"
           "INSERT INTO span VALUES (1,1,1,-1,0,2,3,2000000,1000,0,NULL,NULL),(2,1,1,-1,2,2,3,2002000,500,1,NULL,64);"
           "INSERT INTO span_detail VALUES (1,3,'{\"rows\":2}'); INSERT INTO flow VALUES (1,1,1,2); COMMIT;";
    test::sql(path, sql, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
}

class EngineRequests : public testing::Test {
protected:
    EngineRequests() { writeRequests(file); }
    void change(const std::string& sql) const { test::sql(file, sql, SQLITE_OPEN_READWRITE); }
    std::string broken() const {
        std::string text;
        for (const RunCheck& check : checkTrace(TraceReader(file)))
            for (const Violation& each : check.examples)
                text += each.rule + ": " + each.where + ": " + each.what + "\n";
        return text;
    }
    test::Folder folder;
    std::string file = (folder / "served.kvtrace").string();
};

TEST_F(EngineRequests, KeepEveryRule) { EXPECT_EQ(broken(), ""); }

TEST_F(EngineRequests, TellWhoseARowIs) {
    const TraceReader reader(file);
    const PromptSteps prompts = reader.run(1)->prompts;
    EXPECT_FALSE(prompts.inPieces());
    EXPECT_EQ(prompts.reads(4), StepReads::Decode);
    EXPECT_EQ(prompts.firstDecode(), 1);
    EXPECT_EQ(prompts.promptAt(0, 3), 0);
    EXPECT_EQ(prompts.promptAt(0, 4), 1);
    EXPECT_EQ(prompts.promptAt(1, 4), 0);
    EXPECT_TRUE(prompts.severalPrompts(0));
    EXPECT_FALSE(prompts.severalPrompts(1));
    const SelectionTrace trace = loadSelectionTrace(reader, 1);
    ASSERT_EQ(trace.pools.size(), 3u) << "one for each request, in the only layer";
    ASSERT_EQ(trace.leaves.size(), 1u);
    EXPECT_EQ(trace.leaves.front().step, 4) << "where the row's next request begins";
}

TEST_F(EngineRequests, HaveLatencies) {
    const TraceReader reader(file);
    EXPECT_TRUE(isServing(reader, 1));
    std::vector<TokenGap> gaps;
    const ServingRows rows = readServing(reader, 1, &gaps);
    ASSERT_EQ(rows.requests.size(), 3u);
    EXPECT_EQ(rows.requests[1].row, 1);
    EXPECT_TRUE(rows.iterations.empty());
    std::vector<std::int64_t> whose;
    for (const TokenGap& gap : gaps) {
        whose.push_back(gap.request);
        EXPECT_EQ(gap.gapNs, 2 * kMs);
    }
    EXPECT_THAT(whose, ElementsAre(0, 0, 1, 1, 2)) << "of every token but the first of its request";
    const auto summary = summarizeServing(reader, 1);
    ASSERT_TRUE(summary);
    EXPECT_EQ(summary->finished, 2);
    EXPECT_EQ(summary->open, 1);
    EXPECT_THAT(summary->ttftMs, ElementsAre(3, 4, 7));
    EXPECT_THAT(summary->tbtMs, ElementsAre(2, 2, 2, 2, 2));
    const auto load = readServedLoad(reader, 1);
    ASSERT_TRUE(load);
    EXPECT_EQ(load->requests, 2) << "that arrived in the window";
    EXPECT_TRUE(std::isnan(load->decodeRows)) << "of iterations that nobody told of";
}

TEST_F(EngineRequests, AreChecked) {
    change("UPDATE request SET last_step = 4 WHERE external_id = 'r0'");
    EXPECT_THAT(broken(), HasSubstr("request-steps: request 2"));
    change("UPDATE request SET last_step = 3 WHERE external_id = 'r0'");
    change("UPDATE request SET first_step = NULL WHERE external_id = 'r1'");
    EXPECT_THAT(broken(), HasSubstr("request-steps: request 1"));
    change("UPDATE request SET first_step = 2, row = 2 WHERE external_id = 'r1'");
    EXPECT_THAT(broken(), HasSubstr("request-steps: request 1"));
    change("UPDATE request SET row = 1 WHERE external_id = 'r1'");
    EXPECT_EQ(broken(), "");
    change("UPDATE selection SET kept = 1 WHERE id = (((1 << 25 | 4) << 10) << 20)");
    EXPECT_THAT(broken(), HasSubstr("behind another prompt"));
    change("UPDATE selection SET kept = NULL WHERE id = (((1 << 25 | 4) << 10) << 20)");
    change("UPDATE request SET first_step = NULL, last_step = NULL");
    EXPECT_THAT(broken(), HasSubstr("token-positions")) << "without the requests, positions of a row fall";
    change("UPDATE request SET output_tokens = 5, max_tokens = 4 WHERE external_id = 'r1'");
    EXPECT_THAT(broken(), HasSubstr("request-counts: request 1"));
    change("INSERT INTO run_meta VALUES (1, 'sample_every', '2')");
    EXPECT_THAT(broken(), HasSubstr("sample-every"));
}

TEST_F(EngineRequests, OfAnOlderTraceLackTheLaterColumns) {
    change(
        "DROP VIEW v_request; CREATE TABLE older AS SELECT id, row, class, arrival_ns, first_sched_ns, first_token_ns,"
        " end_ns, prompt_tokens, max_tokens, output_tokens, status, reason, paused_ns, pauses, hits, misses, h2d_bytes,"
        " host_bytes, device_bytes, slo_ttft_ms, slo_tbt_ms FROM request; DROP TABLE request;"
        "ALTER TABLE older RENAME TO request");
    {
        const TraceReader reader(file);
        EXPECT_EQ(readServing(reader, 1).requests.size(), 3u);
        EXPECT_FALSE(reader.run(1)->prompts.severalPrompts());
    }
    TraceStore(file, false).finish(); // what records another run into the file adds them
    EXPECT_EQ(test::sql(file, "SELECT count(external_id), count(*) FROM v_request").rows.front(),
              (std::vector<std::string>{"0", "3"}));
    EXPECT_EQ(readServing(TraceReader(file), 1).requests.size(), 3u);
}

TEST_F(EngineRequests, AreInTheReport) {
    const reports::Report report = reports::makeReport({file});
    ASSERT_NE(report.table("serving"), nullptr);
    ASSERT_NE(report.table("serving_classes"), nullptr);
    EXPECT_EQ(report.table("serving_plans"), nullptr) << "nobody knows what bound the plans";
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
