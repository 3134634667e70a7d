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
namespace {

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
    EXPECT_EQ(rows.requests[1].status, "refused");
    EXPECT_EQ(rows.requests[1].reason, "it can never run");
    EXPECT_EQ(rows.requests[1].firstTokenNs, -1);
    EXPECT_EQ(rows.requests[0].kind, "even");
    EXPECT_EQ(rows.requests[0].firstTokenNs, 2 * synthetic::kIterationNs - 500'000);
    EXPECT_EQ(rows.requests[2].pauses, 1);
    EXPECT_EQ(rows.requests[2].pausedNs, 3 * synthetic::kIterationNs);
    EXPECT_FALSE(rows.requests[11].ended());
    EXPECT_EQ(rows.requests[11].status, "decode");
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

TEST_F(ServingTraceTest, TracesOfBeforeHaveNoServingRuns) {
    for (const char* name : {"request", "request_span", "iteration", "member"})
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

} // namespace
} // namespace kvscope
