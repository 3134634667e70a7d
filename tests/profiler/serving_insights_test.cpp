// Findings about a server, each on a serving run that is written to have its cause, and none on one that serves well.
#include "tests/profiler/insights_fixture.h"
#include "tests/profiler/synthetic_serving.h"

#include "core/trace/serving_record.h"
#include "profiler/sqlite/sqlite.h"

#include <gmock/gmock.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using ::testing::HasSubstr;

constexpr std::int64_t kMs = 1'000'000;

/// A server with one request that decodes from the first iteration on. What iterations are like is set by a test.
struct Server {
    std::vector<ServedRequest> requests;
    std::vector<RequestSpan> spans;
    std::vector<ServingIteration> iterations;
    std::int64_t writerBusyNs = 0; // as the trace is made to say

    explicit Server(int iterationCount) {
        ServedRequest request;
        request.row = 0, request.status = ServedStatus::Length;
        request.promptTokens = 100, request.maxTokens = request.outputTokens = iterationCount;
        request.firstScheduledNs = 0, request.ttftBoundMs = 1000, request.tbtBoundMs = 25;
        request.hits = 900, request.misses = 100;
        requests.push_back(request);
        for (int i = 0; i < iterationCount; ++i) {
            ServingIteration row;
            row.iteration = i, row.durationNs = row.predictedNs = 10 * kMs, row.decodeNs = 8 * kMs;
            row.limitedBy = "none";
            row.workingSetBytes = 1 << 20, row.availableBytes = 8 << 20;
            iterations.push_back(row);
        }
    }

    /// Requests that arrive at the beginning, wait for the whole run and get no row.
    void addWaiting(int count, const char* limitedBy) {
        for (int i = 0; i < count; ++i) {
            ServedRequest request;
            request.number = std::int64_t(requests.size());
            request.status = ServedStatus::Queued, request.promptTokens = 5000, request.maxTokens = 10;
            request.ttftBoundMs = 200, request.tbtBoundMs = 25;
            requests.push_back(request);
        }
        for (ServingIteration& row : iterations) row.waiting = count, row.limitedBy = limitedBy;
    }

    InsightReport report() {
        std::int64_t now = 0;
        for (ServingIteration& row : iterations) {
            row.startNs = now, now += row.durationNs;
            IterationMember member;
            member.tokens = 1, member.tokenNs = now, member.workingSetBytes = row.workingSetBytes;
            row.members = {member};
        }
        requests.front().firstTokenNs = iterations.front().durationNs, requests.front().endNs = now;
        const test::Folder folder;
        const std::string file = (folder / "served.kvtrace").string();
        RecorderOptions options;
        options.level = RecordLevel::Counters;
        Recorder recorder(file, options);
        RunInfo info = synthetic::infoOf(synthetic::RunShape{});
        info.meta.emplace_back("serving", R"({"rows":3})");
        info.prompts = {};
        recorder.beginRun(info);
        auto record = std::make_unique<ServingRecord>();
        record->requests = requests, record->spans = spans, record->iterations = iterations;
        recorder.take(std::move(record));
        recorder.endRun(RunStatus::Finished, "");
        recorder.flush();
        EXPECT_EQ(recorder.health().error, "");
        Connection(file, Connection::Mode::ReadWrite)
            .execute(fmt::format("UPDATE health SET writer_busy_ns = {}", writerBusyNs));
        const TraceReader reader(file);
        return insightsOf(reader, 1);
    }
};

const char* const kServingRules[] = {"refused-requests", "queue-bound",  "prefill-stalls-decode", "working-sets-beyond",
                                     "long-pauses",      "estimate-off", "plan-times-off"};

TEST(ServingInsights, FindNothingWhereAllGoesWell) {
    const InsightReport report = Server(200).report();
    for (const char* rule : kServingRules) EXPECT_EQ(test::find(report, rule), nullptr) << rule << test::listed(report);
}

TEST(ServingInsights, PromptsStallDecodes) {
    Server server(200);
    for (const int i : {50, 90, 130}) {
        ServingIteration& row = server.iterations[std::size_t(i)];
        row.durationNs = row.predictedNs = 110 * kMs, row.prefillNs = 100 * kMs;
    }
    server.iterations[130].durationNs = 210 * kMs, server.iterations[130].prefillNs = 200 * kMs;
    server.iterations[20].durationNs = 90 * kMs; // late for another reason
    const InsightReport report = server.report();
    const Insight* found = test::find(report, "prefill-stalls-decode");
    ASSERT_NE(found, nullptr) << test::listed(report);
    EXPECT_EQ(found->severity, Severity::Alarm);
    EXPECT_EQ(test::figure(*found, "late_tokens"), 4);
    EXPECT_EQ(test::figure(*found, "late_by_prompts"), 3);
    EXPECT_NEAR(found->impact, 3.0 / 199, 1e-12);
    EXPECT_EQ(found->evidence.view, "serving");
    EXPECT_EQ(found->evidence.firstStep, 130) << "the iteration of the longest gap";
    EXPECT_THAT(found->detail, testing::ContainsRegex("request 0: 210.*prompts took 200"));
}

TEST(ServingInsights, LateTokensWithoutPromptsBlameNoPrompt) {
    Server server(200);
    for (const int i : {50, 90, 130}) server.iterations[std::size_t(i)].durationNs = 110 * kMs;
    EXPECT_EQ(test::find(server.report(), "prefill-stalls-decode"), nullptr);
}

TEST(ServingInsights, TheQueueIsBoundByWhatThePlansNamed) {
    Server server(100);
    server.addWaiting(4, "host_memory");
    for (int i = 0; i < 20; ++i) server.iterations[std::size_t(i)].limitedBy = "rows";
    const InsightReport report = server.report();
    const Insight* found = test::find(report, "queue-bound");
    ASSERT_NE(found, nullptr) << test::listed(report);
    EXPECT_THAT(found->title, HasSubstr("80 % of the requests"));
    EXPECT_THAT(found->title, HasSubstr("the host store is full"));
    EXPECT_THAT(found->detail, HasSubstr("80 % of the time"));
    EXPECT_THAT(found->advice, HasSubstr("--host-kv"));
    EXPECT_EQ(test::figure(*found, "late_first_tokens"), 4);
    EXPECT_EQ(test::figure(*found, "longest_wait_ms"), 1000);
}

TEST(ServingInsights, EveryReasonOfThePlansHasWords) {
    for (const char* limit :
         {"rows", "host_memory", "device_memory", "prefill_scratch", "working_sets", "hard_need", "prefill_lane",
          "paused_first", "holders_first", "barrier", "time_budget", "token_budget"}) {
        Server server(100);
        server.addWaiting(4, limit);
        const InsightReport report = server.report();
        const Insight* found = test::find(report, "queue-bound");
        ASSERT_NE(found, nullptr) << limit;
        EXPECT_THAT(found->title, Not(HasSubstr("they wait in the queue"))) << limit;
    }
}

TEST(ServingInsights, WorkingSetsExceedTheDevice) {
    Server server(100);
    for (int i = 40; i < 60; ++i) server.iterations[std::size_t(i)].workingSetBytes = 9 << 20;
    server.iterations[45].workingSetBytes = 12 << 20;
    const InsightReport report = server.report();
    const Insight* found = test::find(report, "working-sets-beyond");
    ASSERT_NE(found, nullptr) << test::listed(report);
    EXPECT_NEAR(found->impact, 0.2, 1e-9);
    EXPECT_EQ(found->severity, Severity::Alarm);
    EXPECT_EQ(found->evidence.firstStep, 45);
    EXPECT_EQ(test::figure(*found, "working_sets_bytes"), 12 << 20);
}

TEST(ServingInsights, APauseIsLongerThanATokenMayTake) {
    Server server(100);
    server.requests.front().pauses = 2, server.requests.front().pausedNs = 60 * kMs;
    RequestSpan span;
    span.state = ServedState::Paused, span.startNs = 505 * kMs, span.endNs = 565 * kMs;
    span.firstIteration = span.lastIteration = -1;
    server.spans.push_back(span);
    const InsightReport report = server.report();
    const Insight* found = test::find(report, "long-pauses");
    ASSERT_NE(found, nullptr) << test::listed(report);
    EXPECT_THAT(found->detail, HasSubstr("Request 0 was paused 2 times for 60"));
    EXPECT_EQ(found->evidence.firstStep, 50);
}

TEST(ServingInsights, SelectionsLeaveTheEstimates) {
    Server server(100);
    server.iterations[7].surprises = 40, server.iterations[8].surprises = 30;
    const InsightReport report = server.report();
    const Insight* found = test::find(report, "estimate-off");
    ASSERT_NE(found, nullptr) << test::listed(report);
    EXPECT_NEAR(found->impact, 0.07, 1e-12);
    EXPECT_EQ(found->severity, Severity::Note);
    EXPECT_EQ(found->evidence.firstStep, 7);
}

TEST(ServingInsights, PlansAreMadeFromWrongTimes) {
    Server server(100);
    for (ServingIteration& row : server.iterations) row.predictedNs = 4 * kMs;
    const InsightReport report = server.report();
    const Insight* found = test::find(report, "plan-times-off");
    ASSERT_NE(found, nullptr) << test::listed(report);
    EXPECT_NEAR(test::figure(*found, "median_error"), 0.6, 1e-12);
    EXPECT_THAT(found->detail, HasSubstr("longer than predicted"));
    EXPECT_THAT(found->detail, HasSubstr("tokens come late"));
    for (ServingIteration& row : server.iterations) row.predictedNs = 40 * kMs;
    const InsightReport slower = server.report();
    const Insight* less = test::find(slower, "plan-times-off");
    ASSERT_NE(less, nullptr) << test::listed(slower);
    EXPECT_THAT(less->detail, HasSubstr("less than predicted"));
    EXPECT_THAT(less->detail, HasSubstr("smaller parts"));
    Server fewer(20);
    for (ServingIteration& row : fewer.iterations) row.predictedNs = 4 * kMs;
    EXPECT_EQ(test::find(fewer.report(), "plan-times-off"), nullptr) << "too few for a median";
}

TEST(ServingInsights, TheWriterIsJudgedAgainstTheIterations) {
    Server server(200);
    server.writerBusyNs = 400 * kMs;
    const InsightReport report = server.report();
    const Insight* found = test::find(report, "recorder-overhead");
    ASSERT_NE(found, nullptr) << test::listed(report);
    EXPECT_EQ(test::figure(*found, "wall_ms"), 2000);
    EXPECT_NEAR(test::figure(*found, "share"), 0.2, 1e-12);
    EXPECT_THAT(found->detail, HasSubstr("of iterations"));
    server.writerBusyNs = 100 * kMs;
    EXPECT_EQ(test::find(server.report(), "recorder-overhead"), nullptr);
}

TEST(ServingInsights, RequestsAreRefused) {
    Server server(100);
    ServedRequest request;
    request.number = 1, request.status = ServedStatus::Refused, request.reason = "it can never run";
    request.promptTokens = 777, request.endNs = 305 * kMs, request.arrivalNs = 305 * kMs;
    server.requests.push_back(request);
    const InsightReport report = server.report();
    const Insight* found = test::find(report, "refused-requests");
    ASSERT_NE(found, nullptr) << test::listed(report);
    EXPECT_THAT(found->title, HasSubstr("50 % of the requests are refused"));
    EXPECT_THAT(found->detail, HasSubstr("777 prompt tokens: it can never run"));
    EXPECT_EQ(found->evidence.firstStep, 30);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
