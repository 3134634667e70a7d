// Gauges, spans with names given once, and flows through the C interface.
#include "tests/sdk/sdk_fixture.h"

#include <cmath>
#include <limits>
#include <thread>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using namespace test;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SdkTimeline : public SdkTest {
protected:
    static std::int32_t nameOf(kvtrace_writer writer, const char* text) {
        std::int32_t id = 0;
        EXPECT_EQ(kvtrace_intern(writer, text, -1, &id), KVTRACE_OK) << kvtrace_last_error();
        return id;
    }
    static kvtrace_span_info spanAt(std::int32_t track, std::int32_t name, std::int64_t start, std::int64_t ns) {
        auto span = sized<kvtrace_span_info>();
        span.track = track, span.name = name;
        span.start_ns = start, span.duration_ns = ns;
        span.bytes = span.step = span.layer = -1;
        return span;
    }
    static void expect(std::int32_t status, std::int32_t wanted, const char* sentence) {
        EXPECT_EQ(status, wanted);
        EXPECT_THAT(kvtrace_last_error(), HasSubstr(sentence));
    }
    static void decodeOnce(kvtrace_run run) {
        const kvtrace_step step = beginStep(run);
        for (int layer = 0; layer < 2; ++layer) select(step, selectionOf({0, 6}, {100}, layer, 1, KVTRACE_BLOCKS));
        EXPECT_EQ(kvtrace_step_commit(step, KVTRACE_NOW), KVTRACE_OK) << kvtrace_last_error();
    }
};

TEST_F(SdkTimeline, GaugesSpansAndFlowsAreInTheFileAsTheyWereGiven) {
    const std::string file = path("timeline.kvtrace");
    const kvtrace_writer writer = open(file);
    const kvtrace_run run = begin(writer, runOf(KVTRACE_KNOWS_SELECTIONS));
    decodeOnce(run);
    ASSERT_EQ(kvtrace_gauge(run, "KV cache used (bytes)", 1000, 4096.5), KVTRACE_OK) << kvtrace_last_error();
    ASSERT_EQ(kvtrace_gauge(run, "KV cache used (bytes)", 3000, -1e300), KVTRACE_OK) << kvtrace_last_error();
    ASSERT_EQ(kvtrace_gauge(run, "waiting", KVTRACE_NOW, 7), KVTRACE_OK) << kvtrace_last_error();
    const std::int32_t host = nameOf(writer, "scheduler"), link = nameOf(writer, "link"), call = nameOf(writer, "load");
    EXPECT_EQ(nameOf(writer, "link"), link) << "the same text has the same number";
    ASSERT_EQ(kvtrace_span(run, "scheduler", "plan", 500, 4000, -1, -1, 0, -1), KVTRACE_OK) << kvtrace_last_error();
    std::vector<kvtrace_span_info> spans{spanAt(host, call, 1000, 50),
                                         spanAt(link, nameOf(writer, "host to device"), 1060, 900)};
    spans[0].depth = 1;
    spans[0].category = nameOf(writer, "request");
    spans[0].args = "{\"rows\": 4}";
    spans[1].kind = 2, spans[1].bytes = 65536, spans[1].step = 1, spans[1].layer = 1;
    std::int64_t first = 0;
    ASSERT_EQ(kvtrace_spans(run, spans.data(), 2, &first), KVTRACE_OK) << kvtrace_last_error();
    EXPECT_EQ(first, 2) << "the span before has a number, too";
    ASSERT_EQ(kvtrace_flow(run, first, first + 1), KVTRACE_OK) << kvtrace_last_error();
    ASSERT_EQ(kvtrace_counter(run, "tokens", 0, 1000, 5), KVTRACE_OK);
    finish(writer, run);
    expectGood(file);
    auto gauges = read(file, "gauges"), all = read(file, "spans"), flows = read(file, "flows");
    EXPECT_THAT(gauges["track"].texts, ElementsAre("KV cache used (bytes)", "KV cache used (bytes)", "waiting"));
    EXPECT_THAT(gauges["value"].reals, ElementsAre(4096.5, -1e300, 7));
    EXPECT_EQ(gauges["time_ns"].ints[1], 3000);
    EXPECT_THAT(all["track"].texts, ElementsAre("scheduler", "scheduler", "link"));
    EXPECT_THAT(all["name"].texts, ElementsAre("plan", "load", "host to device"));
    EXPECT_THAT(all["depth"].ints, ElementsAre(0, 1, 0));
    EXPECT_THAT(all["category"].texts, ElementsAre("", "request", ""));
    EXPECT_THAT(all["args"].texts, ElementsAre("", "{\"rows\": 4}", ""));
    EXPECT_THAT(all["bytes"].present, ElementsAre(0, 0, 1));
    EXPECT_EQ(all["bytes"].ints[2], 65536);
    EXPECT_EQ(all["step"].ints[2], 1);
    EXPECT_EQ(all["layer"].ints[2], 1);
    EXPECT_THAT(flows["from_name"].texts, ElementsAre("load"));
    EXPECT_THAT(flows["to_name"].texts, ElementsAre("host to device"));
    EXPECT_THAT(read(file, "counters")["value"].ints, ElementsAre(5));
    const Finished timeline = cli({"export", file, "--format", "chrome-trace"});
    for (const char* part : {"KV cache used", "scheduler", "\"rows\": 4", "65536 bytes host to device", "\"ph\":\"s\""})
        EXPECT_THAT(timeline.out, HasSubstr(part));
}

TEST_F(SdkTimeline, TheSecondRunOfAFileHasSpansAndFlowsOfItsOwn) {
    const std::string file = path("two.kvtrace");
    for (int i = 0; i < 2; ++i) {
        const kvtrace_writer writer = open(file);
        const kvtrace_run run = begin(writer, runOf(KVTRACE_KNOWS_SELECTIONS));
        decodeOnce(run);
        const std::int32_t track = nameOf(writer, "host");
        const std::vector<kvtrace_span_info> spans{spanAt(track, nameOf(writer, "a"), 10 + i, 5),
                                                   spanAt(track, nameOf(writer, "b"), 30 + i, 5)};
        std::int64_t first = 0;
        ASSERT_EQ(kvtrace_spans(run, spans.data(), 2, &first), KVTRACE_OK) << kvtrace_last_error();
        EXPECT_EQ(first, 1);
        ASSERT_EQ(kvtrace_flow(run, 1, 2), KVTRACE_OK) << kvtrace_last_error();
        finish(writer, run);
    }
    expectGood(file);
    EXPECT_THAT(read(file, "flows")["from_start_ns"].ints, ElementsAre(10, 11));
    EXPECT_THAT(read(file, "flows")["to_start_ns"].ints, ElementsAre(30, 31));
}

TEST_F(SdkTimeline, EveryThreadMayAddThemAndNumbersAreGivenOnce) {
    const std::string file = path("threads.kvtrace");
    const kvtrace_writer writer = open(file);
    const kvtrace_run run = begin(writer, runOf(KVTRACE_KNOWS_SELECTIONS));
    decodeOnce(run);
    std::vector<std::thread> threads;
    constexpr int kThreads = 4, kEach = 200;
    for (int thread = 0; thread < kThreads; ++thread)
        threads.emplace_back([&, thread] {
            const std::int32_t track = nameOf(writer, fmt::format("thread {}", thread).c_str());
            const std::vector<kvtrace_span_info> spans{spanAt(track, nameOf(writer, "from"), 100, 10),
                                                       spanAt(track, nameOf(writer, "to"), 200, 10)};
            for (int i = 0; i < kEach; ++i) {
                std::int64_t first = 0;
                EXPECT_EQ(kvtrace_spans(run, spans.data(), 2, &first), KVTRACE_OK) << kvtrace_last_error();
                EXPECT_EQ(kvtrace_flow(run, first, first + 1), KVTRACE_OK) << kvtrace_last_error();
                EXPECT_EQ(kvtrace_gauge(run, "level", i, i), KVTRACE_OK) << kvtrace_last_error();
            }
        });
    for (std::thread& thread : threads) thread.join();
    finish(writer, run);
    const Finished check = cli({"check", file});
    EXPECT_EQ(check.status, 0) << check.out;
    auto flows = read(file, "flows");
    ASSERT_EQ(flows["from_track"].texts.size(), std::size_t(kThreads * kEach));
    EXPECT_EQ(flows["from_track"].texts, flows["to_track"].texts) << "a flow joins the spans of one call";
    EXPECT_EQ(read(file, "spans")["run"].ints.size(), std::size_t(2 * kThreads * kEach));
    EXPECT_EQ(read(file, "gauges")["run"].ints.size(), std::size_t(kThreads * kEach));
}

TEST_F(SdkTimeline, AFullQueueDropsThemAndCountsThem) {
    auto options = sized<kvtrace_options>();
    options.level = KVTRACE_SELECTIONS;
    options.queue_bytes = 4096;
    kvtrace_writer writer = 0;
    const std::string file = path("full.kvtrace");
    ASSERT_EQ(kvtrace_open(file.c_str(), &options, &writer), KVTRACE_OK) << kvtrace_last_error();
    const kvtrace_run run = begin(writer, runOf(KVTRACE_KNOWS_SELECTIONS));
    decodeOnce(run);
    ASSERT_EQ(kvtrace_flush(writer, 30000), KVTRACE_OK) << kvtrace_last_error();
    const std::int32_t name = nameOf(writer, "a");
    const std::vector<kvtrace_span_info> spans(64, spanAt(name, name, 10, 5)); // more than the queue holds
    std::int64_t first = 0;
    ASSERT_EQ(kvtrace_spans(run, spans.data(), 64, &first), KVTRACE_OK) << kvtrace_last_error();
    ASSERT_EQ(kvtrace_spans(run, spans.data(), 1, nullptr), KVTRACE_OK) << kvtrace_last_error();
    ASSERT_EQ(kvtrace_flow(run, first, first + 64), KVTRACE_OK) << kvtrace_last_error();
    auto health = sized<kvtrace_health>();
    ASSERT_EQ(kvtrace_get_health(writer, &health), KVTRACE_OK) << kvtrace_last_error();
    EXPECT_EQ(health.dropped_events, 1) << "one call, whole";
    EXPECT_LE(health.queue_bytes, 4096);
    EXPECT_GT(health.file_bytes, 0);
    finish(writer, run);
    expectGood(file); // the flow from a span that was dropped is left out
    EXPECT_TRUE(read(file, "flows")["run"].ints.empty());
    EXPECT_EQ(read(file, "spans")["run"].ints.size(), 1u);
}

TEST_F(SdkTimeline, WhatCannotBeIsRefused) {
    const kvtrace_writer writer = open(path("refused.kvtrace"));
    const kvtrace_run run = begin(writer, runOf(KVTRACE_KNOWS_SELECTIONS));
    expect(kvtrace_gauge(run, nullptr, 0, 1), KVTRACE_INVALID, "track is null");
    expect(kvtrace_gauge(run, "", 0, 1), KVTRACE_INVALID, "track of a gauge is empty");
    expect(kvtrace_gauge(run, "a", 0, std::nan("")), KVTRACE_INVALID, "no finite number");
    expect(kvtrace_gauge(run, "a", 0, std::numeric_limits<double>::infinity()), KVTRACE_INVALID, "no finite number");
    expect(kvtrace_gauge(run, "a", std::int64_t(1) << 60, 1), KVTRACE_INVALID, "kvtrace_run_now");
    std::int32_t name = 5;
    expect(kvtrace_intern(writer, nullptr, -1, &name), KVTRACE_INVALID, "text is null");
    EXPECT_EQ(name, 0);
    expect(kvtrace_intern(writer, "a", -2, &name), KVTRACE_INVALID, "length -2");
    expect(kvtrace_intern(run, "a", -1, &name), KVTRACE_CLOSED, "not a writer");
    ASSERT_EQ(kvtrace_intern(writer, "ab\0c", 4, &name), KVTRACE_OK);
    std::int64_t first = 5;
    kvtrace_span_info span = spanAt(name, name, 0, 1);
    expect(kvtrace_spans(run, nullptr, 1, &first), KVTRACE_INVALID, "spans is null");
    EXPECT_EQ(first, 0);
    expect(kvtrace_spans(run, &span, -1, nullptr), KVTRACE_INVALID, "negative");
    for (const auto& [change, sentence] : std::vector<std::pair<void (*)(kvtrace_span_info&), const char*>>{
             {[](kvtrace_span_info& of) { of.track = 99; }, "name 99"},
             {[](kvtrace_span_info& of) { of.name = 0; }, "name 0"},
             {[](kvtrace_span_info& of) { of.category = -1; }, "name -1"},
             {[](kvtrace_span_info& of) { of.depth = -1; }, "depth -1"},
             {[](kvtrace_span_info& of) { of.duration_ns = -1; }, "negative duration"},
             {[](kvtrace_span_info& of) { of.kind = 3; }, "kind 3"},
             {[](kvtrace_span_info& of) { of.layer = 2; }, "layers"},
             {[](kvtrace_span_info& of) { of.args = "[1]"; }, "JSON object"},
             {[](kvtrace_span_info& of) { of.args = "{\"a\""; }, "JSON object"},
             {[](kvtrace_span_info& of) { of.size = 0; }, "no size"}}) {
        kvtrace_span_info broken = span;
        change(broken);
        expect(kvtrace_spans(run, &broken, 1, nullptr), KVTRACE_INVALID, sentence);
    }
    expect(kvtrace_flow(run, 1, 2), KVTRACE_INVALID, "the run has 0");
    ASSERT_EQ(kvtrace_spans(run, &span, 1, nullptr), KVTRACE_OK) << kvtrace_last_error();
    expect(kvtrace_flow(run, 1, 1), KVTRACE_INVALID, "to itself");
    expect(kvtrace_flow(run, 0, 1), KVTRACE_INVALID, "span 0");
    finish(writer, run);
    expect(kvtrace_gauge(run, "a", 0, 1), KVTRACE_CLOSED, "closed");
    expect(kvtrace_flow(run, 1, 1), KVTRACE_CLOSED, "closed");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
