// What the C interface refuses: each with a status and one sentence, and the file stays as it was.
#include "tests/sdk/sdk_fixture.h"

#include <filesystem>
#include <fstream>
#include <limits>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using namespace test;
using ::testing::HasSubstr;

class SdkRefusals : public SdkTest {
protected:
    SdkRefusals() : writer(open(path("run.kvtrace"))), run(begin(writer, runOf(KVTRACE_KNOWS_SELECTIONS, 2, 1, 2))) {}
    ~SdkRefusals() override { kvtrace_close(writer, 30000); }
    void expect(std::int32_t status, std::int32_t expected, const char* sentence) {
        EXPECT_EQ(status, expected);
        EXPECT_THAT(kvtrace_last_error(), HasSubstr(sentence));
    }
    kvtrace_writer writer;
    kvtrace_run run;
};

TEST_F(SdkRefusals, NullAndOddArguments) {
    kvtrace_writer other = 0;
    expect(kvtrace_open(nullptr, nullptr, &other), KVTRACE_INVALID, "path is null");
    expect(kvtrace_open("x", nullptr, nullptr), KVTRACE_INVALID, "writer is null");
    expect(kvtrace_open(path("a%z.kvtrace").c_str(), nullptr, &other), KVTRACE_INVALID, "write %% for %");
    expect(kvtrace_open(path("no/such/folder.kvtrace").c_str(), nullptr, &other), KVTRACE_STORAGE,
           "create the folder first");
    expect(kvtrace_open(path("run.kvtrace").c_str(), nullptr, &other), KVTRACE_STORAGE,
           "being written by this program already");
    expect(kvtrace_run_begin(writer, nullptr, &run), KVTRACE_INVALID, "kvtrace_run_info is null");
    const kvtrace_run_info info = runOf(0);
    expect(kvtrace_run_begin(writer, &info, &run), KVTRACE_STATE, "end it before another one begins");
    expect(kvtrace_step_begin(writer, KVTRACE_DECODE, 1, KVTRACE_NOW, &other), KVTRACE_CLOSED,
           "this is not a run, but a writer");
    expect(kvtrace_flush(12345, 10), KVTRACE_CLOSED, "no handle at all");
    expect(kvtrace_run_end(run, 9, nullptr), KVTRACE_INVALID, "KVTRACE_FINISHED");
}

TEST_F(SdkRefusals, RunsThatATraceCannotHold) {
    ASSERT_EQ(kvtrace_run_end(run, KVTRACE_FINISHED, nullptr), KVTRACE_OK);
    const auto refused = [&](const kvtrace_run_info& info, const char* sentence) {
        kvtrace_run none = 0;
        expect(kvtrace_run_begin(writer, &info, &none), KVTRACE_INVALID, sentence);
        EXPECT_EQ(none, 0U);
    };
    refused(runOf(0, 2000), "layers is 2000; a trace holds 1 to 1024");
    refused(runOf(0, 1, 1, 1, 0), "block_size is 0");
    refused(runOf(1024), "knows is 1024");
    kvtrace_run_info info = runOf(0);
    info.method = nullptr;
    refused(info, "method is empty");
    info = runOf(0);
    info.backend = "tpu";
    refused(info, "backend is \"tpu\"");
    info = runOf(KVTRACE_KNOWS_SELECTIONS);
    info.block_bytes = 0;
    refused(info, "block_bytes is 0");
    info = runOf(0);
    info.modelled = 1;
    refused(info, "link_gbps above 0");
    for (const char* params : {"[1]", "{\"k\": 64", "64", "{\"k\": 1e999}"}) {
        info = runOf(0);
        info.params_json = params;
        refused(info, "give one JSON object");
    }
    info = runOf(0);
    const kvtrace_pair knows{"knows", "[]"};
    info.meta = &knows, info.meta_count = 1;
    refused(info, "written by the library");
    info = runOf(0);
    info.size = 0;
    refused(info, "has no size");
}

TEST_F(SdkRefusals, FieldsOfANewerHeaderAreRefusedOnlyIfTheyAreSet) {
    ASSERT_EQ(kvtrace_run_end(run, KVTRACE_FINISHED, nullptr), KVTRACE_OK);
    struct Newer {
        kvtrace_run_info info = runOf(0);
        std::int64_t more = 0;
    } newer;
    newer.info.size = sizeof newer;
    ASSERT_EQ(kvtrace_run_begin(writer, &newer.info, &run), KVTRACE_OK) << kvtrace_last_error();
    ASSERT_EQ(kvtrace_run_end(run, KVTRACE_FINISHED, nullptr), KVTRACE_OK);
    newer.more = 1;
    expect(kvtrace_run_begin(writer, &newer.info, &run), KVTRACE_UNSUPPORTED, "install a newer libkvscope_trace");
    kvtrace_run_info older = runOf(0);
    older.size = offsetof(kvtrace_run_info, prompts); // a header from before there were prompts
    older.prompts = reinterpret_cast<const kvtrace_prompt*>(1), older.meta_count = 99;
    EXPECT_EQ(kvtrace_run_begin(writer, &older, &run), KVTRACE_OK) << kvtrace_last_error();
}

TEST_F(SdkRefusals, SelectionsThatBreakARuleLeaveNothingBehind) {
    const kvtrace_step step = beginStep(run);
    const std::vector<std::int64_t> positions{40, 50};
    const auto refused = [&](const kvtrace_selection& selection, std::int32_t status, const char* sentence) {
        expect(kvtrace_step_select(step, &selection), status, sentence);
    };
    const std::vector<std::int32_t> ids{0, 1, 0, 2};
    refused(selectionOf(ids, positions, 2, 1, KVTRACE_BLOCKS), KVTRACE_INVALID, "is of no layer: the run has 2");
    refused(selectionOf(ids, positions, 0, 2, KVTRACE_BLOCKS), KVTRACE_INVALID, "the run has 1 KV heads");
    refused(selectionOf(ids, positions, 0, 1, 9), KVTRACE_INVALID, "KVTRACE_BLOCKS, KVTRACE_TOKENS or KVTRACE_BITMASK");
    const std::vector<std::int32_t> bad{0, 1, 0, -7};
    refused(selectionOf(bad, positions, 0, 1, KVTRACE_BLOCKS), KVTRACE_INVALID, "id -7 of layer 0 is negative");
    kvtrace_selection selection = selectionOf(ids, positions, 0, 1, KVTRACE_BLOCKS);
    const std::vector<std::int32_t> twice{1, 1};
    selection.sequence = twice.data();
    refused(selection, KVTRACE_INVALID, "sequence 1 twice");
    const std::vector<std::uint8_t> hit(4, 1);
    selection = selectionOf(ids, positions, 0, 1, KVTRACE_BLOCKS);
    selection.hit = hit.data();
    refused(selection, KVTRACE_INVALID, "add KVTRACE_KNOWS_HITS");
    selection.hit = nullptr, selection.ids = nullptr;
    refused(selection, KVTRACE_INVALID, "kvtrace_selection.ids is null");
    select(step, selectionOf(ids, positions, 0, 1, KVTRACE_BLOCKS));
    refused(selectionOf(ids, positions, 0, 1, KVTRACE_BLOCKS), KVTRACE_STATE, "is there already for sequence 0");
    auto layer = sized<kvtrace_layer>();
    layer.h2d_bytes = 5;
    expect(kvtrace_step_layer(step, &layer), KVTRACE_INVALID, "add KVTRACE_KNOWS_BYTES");
    ASSERT_EQ(kvtrace_step_commit(step, KVTRACE_NOW), KVTRACE_OK) << kvtrace_last_error();
    expect(kvtrace_step_commit(step, KVTRACE_NOW), KVTRACE_CLOSED, "this step is closed");
    finish(writer, run);
    EXPECT_EQ(read(path("run.kvtrace"), "selections")["selected"].ints, (std::vector<std::int64_t>{2, 2}));
    expectGood(path("run.kvtrace"));
}

TEST_F(SdkRefusals, StepsInAnOrderThatThereIsNot) {
    const kvtrace_step step = beginStep(run);
    kvtrace_step other = 0;
    expect(kvtrace_step_begin(run, KVTRACE_PREFILL, 1, KVTRACE_NOW, &other), KVTRACE_STATE, "a run has one prefill");
    ASSERT_EQ(kvtrace_run_end(run, KVTRACE_FINISHED, nullptr), KVTRACE_OK);
    expect(kvtrace_step_commit(step, KVTRACE_NOW), KVTRACE_STATE, "this run has ended");
    expect(kvtrace_step_begin(run, KVTRACE_DECODE, 1, KVTRACE_NOW, &other), KVTRACE_CLOSED, "this run is closed");
    auto health = sized<kvtrace_health>();
    ASSERT_EQ(kvtrace_get_health(writer, &health), KVTRACE_OK);
    EXPECT_EQ(health.discarded_steps, 1);
}

TEST_F(SdkRefusals, MissesWithoutARoomToMissThemIn) {
    ASSERT_EQ(kvtrace_run_end(run, KVTRACE_FINISHED, nullptr), KVTRACE_OK);
    run = begin(writer, runOf(KVTRACE_KNOWS_HITS, 1));
    auto layer = sized<kvtrace_layer>();
    layer.misses = 1;
    expect(kvtrace_step_layer(beginStep(run), &layer), KVTRACE_INVALID, "device_slots is 0");
}

TEST_F(SdkRefusals, TimesThatCannotBe) {
    ASSERT_EQ(kvtrace_run_end(run, KVTRACE_FINISHED, nullptr), KVTRACE_OK);
    run = begin(writer, runOf(127, 2));
    kvtrace_step step = beginStep(run, KVTRACE_DECODE, 1000);
    auto layer = sized<kvtrace_layer>();
    layer.start_ns = 1000, layer.stage_ns[3] = 500, layer.exposed_ns = 1;
    expect(kvtrace_step_layer(step, &layer), KVTRACE_INVALID, "more than its transfer_ns");
    layer.exposed_ns = 0;
    ASSERT_EQ(kvtrace_step_layer(step, &layer), KVTRACE_OK) << kvtrace_last_error();
    expect(kvtrace_step_commit(step, 1200), KVTRACE_INVALID, "does not lie within the step's time");
    expect(kvtrace_step_begin(run, KVTRACE_DECODE, 1, 900, &step), KVTRACE_INVALID, "before the step before it");
    step = beginStep(run, KVTRACE_DECODE, 2000);
    layer.start_ns = 2000;
    ASSERT_EQ(kvtrace_step_layer(step, &layer), KVTRACE_OK);
    layer.layer = 1, layer.start_ns = 2400;
    ASSERT_EQ(kvtrace_step_layer(step, &layer), KVTRACE_OK);
    expect(kvtrace_step_commit(step, 9000), KVTRACE_INVALID, "begins before the layer before it ends");
    step = beginStep(run, KVTRACE_DECODE, 10'000);
    ASSERT_EQ(kvtrace_step_commit(step, 11'000), KVTRACE_OK) << kvtrace_last_error();
    step = beginStep(run, KVTRACE_DECODE, 10'500);
    expect(kvtrace_step_commit(step, 12'000), KVTRACE_INVALID, "was committed before it ends");
    step = beginStep(run, KVTRACE_DECODE, 12'000);
    expect(kvtrace_step_commit(step, 1999), KVTRACE_INVALID, "ends before it starts");
}

TEST_F(SdkRefusals, TimesOfAnotherClockThanTheRuns) {
    ASSERT_EQ(kvtrace_run_end(run, KVTRACE_FINISHED, nullptr), KVTRACE_OK);
    run = begin(writer, runOf(127, 2));
    constexpr std::int64_t utc = 1'790'000'000'000'000'000, never = std::numeric_limits<std::int64_t>::max();
    kvtrace_step step = 0;
    for (const std::int64_t ns : {utc, never}) {
        step = beginStep(run, KVTRACE_DECODE, 1000);
        expect(kvtrace_step_stages(step, ns, 0, 0), KVTRACE_INVALID, "from the beginning of the run");
        ASSERT_EQ(kvtrace_step_discard(step), KVTRACE_OK);
        expect(kvtrace_step_begin(run, KVTRACE_DECODE, 1, ns, &step), KVTRACE_INVALID, "from the beginning of the run");
        expect(kvtrace_span(run, "t", "n", ns, 1, -1, -1, 0, -1), KVTRACE_INVALID, "from the beginning of the run");
        expect(kvtrace_span(run, "t", "n", 1, ns, -1, -1, 0, -1), KVTRACE_INVALID, "from the beginning of the run");
        expect(kvtrace_counter(run, "c", ns, 1, 1), KVTRACE_INVALID, "from the beginning of the run");
        expect(kvtrace_clock(run, "utc", ns, ns, 0), KVTRACE_INVALID, "from the beginning of the run");
        step = beginStep(run, KVTRACE_DECODE, 1000); // what was refused moved nothing
        expect(kvtrace_step_commit(step, ns), KVTRACE_INVALID, "from the beginning of the run");
    }
    EXPECT_EQ(kvtrace_clock(run, "utc", 5, utc, 0), KVTRACE_OK) << kvtrace_last_error();
    step = beginStep(run, KVTRACE_DECODE, 2000);
    for (int i = 0; i < 2; ++i) {
        auto layer = sized<kvtrace_layer>();
        layer.layer = i, layer.start_ns = 2000;
        layer.stage_ns[9] = never;
        expect(kvtrace_step_layer(step, &layer), KVTRACE_INVALID, "from the beginning of the run");
        layer.stage_ns[9] = 0, layer.h2d_bytes = never;
        expect(kvtrace_step_layer(step, &layer), KVTRACE_UNSUPPORTED, "more than 2^50 bytes");
        layer.h2d_bytes = 0;
        for (std::int64_t& stage : layer.stage_ns) stage = std::int64_t(1) << 58;
        ASSERT_EQ(kvtrace_step_layer(step, &layer), KVTRACE_OK) << kvtrace_last_error();
    }
    expect(kvtrace_step_commit(step, 9000), KVTRACE_INVALID, "does not lie within the step's time");
    expect(kvtrace_span(run, "t", "n", 1, 1, -1, 2, 0, -1), KVTRACE_INVALID, "the run has 2 layers");
    expect(kvtrace_span(run, "t", "n", 1, 1, 1 << 25, -1, 0, -1), KVTRACE_INVALID, "a span is of step 33554432");
}

TEST_F(SdkRefusals, FilesThatAreNoTraces) {
    std::ofstream(path("notes.txt")) << "hello";
    kvtrace_table table = 0;
    expect(kvtrace_read(path("notes.txt").c_str(), "steps", 0, &table), KVTRACE_INVALID, "notes.txt");
    expect(kvtrace_read(path("run.kvtrace").c_str(), "tables", 0, &table), KVTRACE_INVALID, "there are runs, steps");
    std::filesystem::create_directory(path("runs"));
    expect(kvtrace_read(path("runs").c_str(), "steps", 0, &table), KVTRACE_INVALID, "runs is a folder");
    kvtrace_writer other = 0;
    expect(kvtrace_open(path("notes.txt").c_str(), nullptr, &other), KVTRACE_STORAGE, "notes.txt");
    expect(kvtrace_read(path("absent.kvtrace").c_str(), "steps", 0, &table), KVTRACE_STORAGE, "absent.kvtrace");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
