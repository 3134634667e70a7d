// Stage and bytes of a span are fields from the recorder to the timeline; traces from before hold them in the name, and
// read the same.
#include "profiler/export/export.h"
#include "profiler/format/span_name.h"
#include "profiler/read/link_clock.h"
#include "profiler/read/open_trace.h"
#include "profiler/read/recorded_flows.h"
#include "profiler/read/span_index.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/places.h"

#include <filesystem>
#include <gmock/gmock.h>
#include <sstream>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using Kind = SpanRecord::Kind;
using testing::ElementsAre;
using testing::HasSubstr;
using Rows = std::vector<std::vector<std::string>>;

const std::string kOlder = test::source("resources/samples/h200-nosa-8b.kvtrace");

TEST(SpanName, IsMadeOfItsFields) {
    EXPECT_EQ((SpanName{"stage2", -1, "ringKernel<128>"}).shown(), "stage2: ringKernel<128>");
    EXPECT_EQ((SpanName{{}, 16384, "host to device"}).shown(), "16384 bytes host to device");
    EXPECT_EQ((SpanName{{}, 0, kSetName}).shown(), "0 bytes set");
    EXPECT_EQ((SpanName{{}, -1, "cudaGraphLaunch"}).shown(), "cudaGraphLaunch");
}

TEST(SpanName, AWholeNameIsTakenApartByItsKind) {
    const auto parts = [](Kind kind, std::string_view whole) {
        const SpanName name = SpanName::ofWhole(kind, whole);
        EXPECT_EQ(name.shown(), whole);
        return std::string(name.stage) + "|" + std::to_string(name.bytes) + "|" + std::string(name.name);
    };
    EXPECT_EQ(parts(Kind::Kernel, "stage2: ringKernel<128>"), "stage2|-1|ringKernel<128>");
    EXPECT_EQ(parts(Kind::Kernel, "lm_head: gemm"), "lm_head|-1|gemm");
    EXPECT_EQ(parts(Kind::Kernel, "request: gemm"), "|-1|request: gemm") << "no stage of ours";
    EXPECT_EQ(parts(Kind::Kernel, "gemm"), "|-1|gemm");
    EXPECT_EQ(parts(Kind::Range, "stage2: ringKernel"), "|-1|stage2: ringKernel");
    EXPECT_EQ(parts(Kind::Copy, "16384 bytes host to device"), "|16384|host to device");
    EXPECT_EQ(parts(Kind::Copy, "64 bytes set"), "|64|set");
    EXPECT_EQ(parts(Kind::Copy, "layer 3: 12 blocks"), "|-1|layer 3: 12 blocks");
    EXPECT_EQ(parts(Kind::Copy, "-5 bytes host to device"), "|-1|-5 bytes host to device");
    EXPECT_EQ(parts(Kind::Copy, "99999999999999999999 bytes set"), "|-1|99999999999999999999 bytes set");
    EXPECT_EQ(parts(Kind::Kernel, "64 bytes set"), "|-1|64 bytes set");
}

SpanRecord span(Kind kind, const char* track, const char* name, std::int64_t start, StageId stage = {},
                std::int64_t bytes = -1, std::uint32_t launch = 0) {
    SpanRecord record;
    record.step = 1;
    record.layer = 0;
    record.kind = kind;
    record.track = track;
    record.name = name;
    record.startNs = start;
    record.durationNs = 5;
    record.stage = stage;
    record.bytes = bytes;
    record.launch = launch;
    return record;
}

/// A call, the kernel and the copy that it started, and a remark.
void recordSpans(const std::string& file) {
    Recorder recorder(file, {});
    recorder.beginRun(synthetic::infoOf({}));
    recorder.take(std::vector<SpanRecord>{span(Kind::Range, "CUDA calls", "cudaGraphLaunch", 10, {}, -1, 8),
                                          span(Kind::Kernel, "stream 7", "ringKernel", 20, Stage::Stage2, -1, 8),
                                          span(Kind::Copy, "copies host to device", "host to device", 30, {}, 64, 8),
                                          span(Kind::Copy, "stream 7", "set", 40, {}, 32)});
    recorder.take(Remark{"nothing was lost"});
    recorder.endRun(RunStatus::Finished, "");
    recorder.flush();
    ASSERT_EQ(recorder.health().error, "");
}

SpanIndex indexOf(const TraceReader& reader, int run) {
    SpanIndex index;
    for (SpanPosition at;;) {
        const SpanBatch batch = readSpans(reader, run, at, 10'000);
        index.append(batch);
        at = batch.next;
        if (batch.atEnd) return index;
    }
}

int nameOf(const SpanIndex& index, std::string_view shown) {
    const auto at = std::find(index.names().begin(), index.names().end(), shown);
    return at == index.names().end() ? -1 : int(at - index.names().begin());
}

class SpanFields : public testing::Test {
protected:
    test::Folder folder_;
    const std::string file_ = (folder_ / "run.kvtrace").string();
};

TEST_F(SpanFields, AreColumnsAndTheViewsShowTheWholeName) {
    recordSpans(file_);
    EXPECT_EQ(test::sql(file_, "SELECT n.value, g.value, s.bytes FROM span s JOIN text n ON n.id = s.name"
                               " LEFT JOIN text g ON g.id = s.stage ORDER BY s.id")
                  .rows,
              (Rows{{"cudaGraphLaunch", "NULL", "NULL"},
                    {"ringKernel", "stage2", "NULL"},
                    {"host to device", "NULL", "64"},
                    {"set", "NULL", "32"},
                    {"nothing was lost", "NULL", "NULL"}}));
    EXPECT_EQ(test::sql(file_, "SELECT name FROM v_span WHERE track <> 'host' ORDER BY start_ns").rows,
              (Rows{{"nothing was lost"},
                    {"cudaGraphLaunch"},
                    {"stage2: ringKernel"},
                    {"64 bytes host to device"},
                    {"32 bytes set"}}));
    EXPECT_EQ(test::value(file_, "SELECT name FROM v_kernel"), "stage2: ringKernel");
    EXPECT_EQ(test::sql(file_, "SELECT from_name, to_name FROM v_flow ORDER BY to_start_ns").rows,
              (Rows{{"cudaGraphLaunch", "stage2: ringKernel"}, {"cudaGraphLaunch", "64 bytes host to device"}}));
    EXPECT_EQ(test::value(file_, "SELECT track FROM v_span WHERE name = 'nothing was lost'"), "recorder");
}

TEST_F(SpanFields, ReachTheTimelineAndItsArrows) {
    recordSpans(file_);
    const TraceReader reader(file_);
    const SpanIndex index = indexOf(reader, 1);
    const int kernel = nameOf(index, "stage2: ringKernel"), copy = nameOf(index, "64 bytes host to device"),
              call = nameOf(index, "cudaGraphLaunch");
    ASSERT_TRUE(kernel >= 0 && copy >= 0 && call >= 0);
    EXPECT_EQ(index.components()[std::size_t(kernel)], "stage2");
    EXPECT_EQ(index.components()[std::size_t(copy)], "64 bytes host to device");
    EXPECT_EQ(index.bytesOf(copy), 64);
    EXPECT_EQ(index.bytesOf(kernel), std::nullopt);
    EXPECT_EQ(index.bytesOf(call), std::nullopt);
    const std::vector<RecordedFlow> flows =
        recordedFlows(reader, 1, {"stream 7", "stage2: ringKernel", 20, 5, 0}, nullptr);
    ASSERT_EQ(flows.size(), 1U);
    EXPECT_EQ(flows[0].other.name, "cudaGraphLaunch");
    const std::vector<RecordedFlow> back =
        recordedFlows(reader, 1, {"CUDA calls", "cudaGraphLaunch", 10, 5, 0}, nullptr);
    ASSERT_EQ(back.size(), 2U);
    EXPECT_EQ(back[0].other.name, "stage2: ringKernel");
    EXPECT_EQ(back[1].other.name, "64 bytes host to device");
    EXPECT_THAT(recordedFlows(reader, 1, {"stream 7", "ringKernel", 20, 5, 0}, nullptr), testing::IsEmpty());
}

TEST_F(SpanFields, ChromeTracesPutCopiesWithTheLinkAndMemoryThatIsSetWithTheGpu) {
    recordSpans(file_);
    std::ostringstream out;
    exportChromeTrace(file_, out, {});
    const std::string text = out.str();
    EXPECT_THAT(text, HasSubstr("\"stage2: ringKernel\""));
    EXPECT_THAT(text, HasSubstr("\"64 bytes host to device\""));
    const auto processOf = [&](const std::string& name) {
        const std::size_t at = text.find("\"name\":\"" + name + "\"");
        const std::size_t begin = text.rfind('{', at), process = text.find("\"pid\":", begin) + 6;
        return text.substr(process, text.find_first_of(",}", process) - process);
    };
    EXPECT_EQ(processOf("32 bytes set"), processOf("stage2: ringKernel"));
    EXPECT_NE(processOf("64 bytes host to device"), processOf("stage2: ringKernel"));
}

TEST_F(SpanFields, TheKernelThatMovesBlocksTellsTheClockOfTheLink) {
    constexpr std::int64_t kApart = 300; // of CUPTI's clock and the GPU's timer
    RunInfo info = synthetic::infoOf({});
    info.backend = "cuda";
    info.linkTiming = Timing::Measured;
    info.layers = 1;
    Recorder recorder(file_, {});
    for (const Stage stage : {Stage::Stage1, Stage::Offloading}) { // run 1: a kernel of another stage says nothing
        recorder.beginRun(info);
        for (int step = 1; step <= 3; ++step) {
            auto record = recorder.acquire();
            record->step = step;
            record->startNs = step * 10'000;
            record->durationNs = 5'000;
            LayerRecord& layer = record->layers.emplace_back();
            layer.startNs = record->startNs;
            layer.stageNs[std::size_t(Stage::Offloading)] = 1'000;
            layer.h2dBytes = 64;
            layer.transferNs = 800;
            SpanRecord kernel = span(Kind::Kernel, "stream 7", "gatherKernel<128>", record->startNs + 500, stage);
            kernel.step = step;
            kernel.durationNs = 500 + kApart;
            recorder.take(std::move(record));
            recorder.take(std::vector<SpanRecord>{kernel});
        }
        recorder.endRun(RunStatus::Finished, "");
    }
    recorder.flush();
    const OpenTrace trace = openTrace(file_);
    EXPECT_EQ(linkClockOf(*trace.connection, 1).source, LinkClock::Source::GpuTimer);
    const LinkClock clock = linkClockOf(*trace.connection, 2);
    EXPECT_EQ(clock.source, LinkClock::Source::Cupti);
    EXPECT_EQ(clock.offsetNs, kApart);
    EXPECT_EQ(clock.samples, 3);
}

TEST_F(SpanFields, OfAnOlderTraceComeFromItsNames) {
    const TraceReader reader(kOlder);
    const SpanIndex index = indexOf(reader, 1);
    int stages = 0;
    for (const auto& row : test::sql(kOlder, "SELECT DISTINCT name FROM v_kernel").rows) {
        const int name = nameOf(index, row[0]);
        ASSERT_GE(name, 0) << row[0];
        EXPECT_EQ(index.components()[std::size_t(name)], row[0].substr(0, row[0].find(": "))) << row[0];
        stages += row[0].find(": ") != std::string::npos ? 1 : 0;
    }
    EXPECT_GT(stages, 5);
    int copies = 0;
    for (const auto& row : test::sql(kOlder, "SELECT DISTINCT n.value, CAST(n.value AS INTEGER) FROM span s"
                                             " JOIN text n ON n.id = s.name WHERE s.kind = 2 AND n.value LIKE"
                                             " '% bytes %'")
                               .rows) {
        const int name = nameOf(index, row[0]);
        ASSERT_GE(name, 0) << row[0];
        EXPECT_EQ(index.bytesOf(name), std::stoll(row[1]));
        ++copies;
    }
    EXPECT_GT(copies, 0);
}

TEST_F(SpanFields, AnOlderTraceGrowsTheColumnsWhenARunIsAddedAndItsNamesStay) {
    std::filesystem::copy_file(kOlder, file_);
    std::filesystem::permissions(file_, std::filesystem::perms::owner_write, std::filesystem::perm_options::add);
    const std::string before = "SELECT track, name, start_ns FROM v_span WHERE run_id = 1 ORDER BY 3, 1, 2";
    const Rows names = test::sql(file_, before).rows;
    ASSERT_EQ(test::value(file_, "SELECT count(*) FROM pragma_table_info('span') WHERE name IN ('stage', 'bytes')"),
              "0")
        << "no older trace";
    recordSpans(file_);
    EXPECT_EQ(test::sql(file_, before).rows, names);
    const std::string run = test::value(file_, "SELECT max(run_id) FROM run");
    EXPECT_EQ(test::value(file_, "SELECT name FROM v_kernel WHERE run_id = " + run), "stage2: ringKernel");
    EXPECT_EQ(test::value(file_, "SELECT count(*) FROM v_flow WHERE to_name = '64 bytes host to device'"), "1");
    EXPECT_EQ(test::value(file_, "PRAGMA integrity_check"), "ok");
    const TraceReader reader(file_);
    EXPECT_GE(nameOf(indexOf(reader, std::stoi(run)), "stage2: ringKernel"), 0);
    recordSpans(file_); // and once more: nothing is to be added now
    EXPECT_EQ(test::sql(file_, before).rows, names);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
