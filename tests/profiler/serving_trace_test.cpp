// Serving runs in traces: what was recorded is read back, summed up and exported.
#include "profiler/export/export.h"
#include "profiler/read/serving.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_serving.h"
#include "tests/profiler/temporary_folder.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <map>
#include <sstream>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::HasSubstr;

class ServingTraceTest : public ::testing::Test {
protected:
    ServingTraceTest() { synthetic::recordServing(file()); }
    std::string file() const { return (folder_ / "s.kvtrace").string(); }

    test::Folder folder_;
};

TEST_F(ServingTraceTest, IsReadBackAsItWasRecorded) {
    const TraceReader reader(file());
    EXPECT_TRUE(isServing(reader, 1));
    const ServingRows rows = readServing(reader, 1);
    ASSERT_EQ(rows.requests.size(), 12u);
    EXPECT_EQ(rows.requests[1].status, ServedStatus::Refused);
    EXPECT_EQ(rows.requests[1].reason, "it can never run");
    EXPECT_EQ(rows.requests[1].firstTokenNs, -1);
    EXPECT_EQ(rows.requests[0].kind, "even");
    EXPECT_EQ(rows.requests[0].firstTokenNs, 2 * synthetic::kIterationNs - 500'000);
    EXPECT_EQ(rows.requests[2].pauses, 1);
    EXPECT_EQ(rows.requests[2].pausedNs, 3 * synthetic::kIterationNs);
    EXPECT_FALSE(rows.requests[11].ended());
    EXPECT_EQ(rows.requests[11].status, ServedStatus::Decode);
    ASSERT_EQ(rows.late.size(), 1u) << "the token behind the pause";
    EXPECT_EQ(rows.late[0].request, 2);
    EXPECT_EQ(rows.late[0].gapNs, 4 * synthetic::kIterationNs);
    std::map<std::int64_t, std::vector<RequestSpanRow>> spans;
    for (const RequestSpanRow& span : rows.spans) spans[span.request].push_back(span);
    for (const RequestRow& request : rows.requests) {
        const auto& of = spans.at(request.number);
        EXPECT_EQ(of.front().startNs, request.arrivalNs);
        if (request.ended()) {
            EXPECT_EQ(of.back().endNs, request.endNs);
        }
        for (std::size_t i = 1; i < of.size(); ++i) EXPECT_EQ(of[i].startNs, of[i - 1].endNs);
    }
    const std::vector<MemberRow> members = readMembers(reader, 1, 2);
    ASSERT_GE(members.size(), 2u);
    EXPECT_FALSE(members[0].prefill);
    EXPECT_EQ(members[0].misses, 1);
    EXPECT_TRUE(members[1].prefill);
    EXPECT_TRUE(readMembers(reader, 1, 100'000).empty());
}

TEST_F(ServingTraceTest, IsSummedUpLikeItsRows) {
    const auto summary = summarizeServing(TraceReader(file()), 1);
    ASSERT_TRUE(summary.has_value());
    EXPECT_EQ(summary->requests, 12);
    EXPECT_EQ(summary->finished, 10);
    EXPECT_EQ(summary->refused, 1);
    EXPECT_EQ(summary->open, 1);
    EXPECT_EQ(std::to_string(summary->tokens), test::value(file(), "SELECT sum(output_tokens) FROM v_request"));
    EXPECT_EQ(summary->ttftMs.size(), 11u);
    EXPECT_EQ(summary->tbtMs.size(), std::size_t(summary->tokens) - 11);
    EXPECT_DOUBLE_EQ(summary->tbtMs.back(), 40) << "the pause";
    EXPECT_EQ(std::to_string(std::int64_t(summary->ttftMs.back() * 1e6)),
              test::value(file(), "SELECT max(ttft_ns) FROM v_request"));
    synthetic::recordFile(folder_ / "plain.kvtrace", {});
    EXPECT_FALSE(summarizeServing(TraceReader((folder_ / "plain.kvtrace").string()), 1).has_value());
}

TEST_F(ServingTraceTest, SelectionsOfARowAreThoseOfItsRequest) {
    const std::string path = (folder_ / "steps.kvtrace").string();
    synthetic::recordServing(path, 12, true, RunStatus::Finished, true);
    const TraceReader reader(path);
    EXPECT_TRUE(reader.run(1)->serves());
    EXPECT_GT(reader.steps(1).size(), 10u);
    for (const StepRow& step : reader.steps(1)) EXPECT_EQ(step.phase, Phase::Decode) << step.step;
    EXPECT_EQ(test::value(path, "SELECT count(*) FROM v_served_selection"),
              test::value(path, "SELECT count(*) FROM selection"));
    EXPECT_EQ(test::value(path, "SELECT min(requests) > 1 FROM (SELECT count(DISTINCT request) AS requests"
                                " FROM v_row_event GROUP BY row)"),
              "1")
        << "one request after another has a row";
    for (const char* request : {"0", "2", "3"}) {
        const std::string of = std::string(" WHERE request = ") + request;
        EXPECT_EQ(test::value(path, "SELECT sum(misses) FROM v_served_selection" + of),
                  test::value(path, "SELECT misses FROM v_request" + of));
        EXPECT_EQ(test::value(path, "SELECT count(DISTINCT step) FROM v_served_selection" + of),
                  test::value(path, "SELECT output_tokens - 1 FROM v_request" + of));
        EXPECT_EQ(test::value(path, "SELECT group_concat(kind, ' ') FROM (SELECT kind FROM v_row_event" + of +
                                        " ORDER BY event)"),
                  std::string(request) == "2" ? "admitted paused resumed released" : "admitted released");
    }
    std::ostringstream out;
    EXPECT_EQ(exportTable(path, ExportTable::ServedSelections, ExportFormat::Jsonl, out, {}).note, "");
    EXPECT_THAT(out.str(), HasSubstr("{\"run_id\":1,\"request\":0,\"step\":2,\"layer\":0,\"row\":0,\"kv_head\":0,"));
    EXPECT_THAT(exportTable(file(), ExportTable::ServedSelections, ExportFormat::Csv, out, {}).note,
                HasSubstr("--record selections"));
}

TEST_F(ServingTraceTest, TracesOfBeforeHaveNoServingRuns) {
    test::sql(file(), "DROP VIEW v_served_selection", SQLITE_OPEN_READWRITE);
    for (const char* name : {"request", "request_span", "iteration", "member", "row_event"})
        for (const char* what : {"VIEW v_", "TABLE "})
            test::sql(file(), std::string("DROP ") + what + name, SQLITE_OPEN_READWRITE);
    EXPECT_FALSE(isServing(TraceReader(file()), 1));
    std::ostringstream out;
    EXPECT_THAT(exportTable(file(), ExportTable::Requests, ExportFormat::Csv, out, {}).note,
                HasSubstr("no serving runs"));
    // Recording into such a file makes the tables.
    RecorderOptions options;
    options.level = RecordLevel::Counters;
    {
        Recorder recorder(file(), options);
        RunInfo info = synthetic::infoOf(synthetic::RunShape{});
        recorder.beginRun(info);
        for (ServingRecord& record : synthetic::SyntheticServer(4).records())
            recorder.take(std::make_unique<ServingRecord>(std::move(record)));
        recorder.endRun(RunStatus::Finished, "");
    }
    EXPECT_TRUE(isServing(TraceReader(file()), 2));
    EXPECT_EQ(test::value(file(), "SELECT count(*) FROM v_request WHERE run_id = 2"), "4");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
