// What the timeline reads of a trace, against the trace's own SQL views; arrows and notes on recorded files.
#include "base/error.h"
#include "core/trace/stage.h"
#include "profiler/read/link_clock.h"
#include "profiler/read/notes.h"
#include "profiler/read/reader_impl.h"
#include "profiler/read/span_batch.h"
#include "profiler/read/span_flow.h"
#include "profiler/read/span_index.h"
#include "profiler/read/step_counters.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/places.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

const std::string kSample = test::source("resources/samples/h200-nosa-8b.kvtrace");

/// Everything of a run, read `rows` at a time.
std::vector<SpanBatch> readAll(const TraceReader& reader, int run, int rows) {
    std::vector<SpanBatch> batches;
    SpanPosition at;
    do {
        batches.push_back(readSpans(reader, run, at, rows));
        at = batches.back().next;
    } while (!batches.back().atEnd && batches.size() < 100'000);
    return batches;
}

std::vector<std::string> linesOf(const std::vector<SpanBatch>& batches, bool links) {
    std::vector<std::string> lines;
    for (const SpanBatch& batch : batches)
        for (const SpanRow& span : batch.spans) {
            const std::string& track = batch.texts[span.track];
            if ((isLinkTrack(track, kToDeviceTrack) || isLinkTrack(track, kToHostTrack)) != links) continue;
            lines.push_back(fmt::format("{} {} {}|{}|{} {} {}", span.step, span.layer, track, batch.texts[span.name],
                                        span.startNs, span.durationNs, span.depth));
        }
    std::sort(lines.begin(), lines.end());
    return lines;
}

std::vector<std::string> sqlLines(const std::string& file, const std::string& query) {
    std::vector<std::string> lines;
    for (const auto& row : test::sql(file, query).rows) lines.push_back(row[0]);
    std::sort(lines.begin(), lines.end());
    return lines;
}

TEST(TimelineReading, GivesTheSpansOfTheView) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordFile(file, {.denseLayers = 1});
    synthetic::recordFile(file, {.layers = 2, .decodeSteps = 9, .seed = 3});
    for (const auto& [path, run] : std::vector<std::pair<std::string, int>>{{file, 1}, {file, 2}, {kSample, 1}}) {
        const TraceReader reader(path);
        const auto wanted =
            sqlLines(path, fmt::format("SELECT step || ' ' || layer || ' ' || track || '|' || name || '|' || start_ns"
                                       " || ' ' || duration_ns || ' ' || depth FROM v_span WHERE run_id={}",
                                       run));
        ASSERT_GT(wanted.size(), 100u);
        for (const int rows : {16, 100, 1'000'000})
            EXPECT_EQ(linesOf(readAll(reader, run, rows), false), wanted) << path << rows;
    }
}

TEST(TimelineReading, GivesTheModelledTransfersOfTheView) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    synthetic::recordFile(file, {});
    const auto wanted = sqlLines(
        file, "SELECT step || ' ' || layer || ' ' || CASE direction WHEN 'h2d' THEN 'link, host to device (modelled)|"
              "to device' ELSE 'link, device to host (modelled)|to host' END || '|' || start_ns || ' ' || duration_ns"
              " || ' 0' FROM v_transfer WHERE run_id=1 AND bytes > 0");
    ASSERT_GT(wanted.size(), 50u);
    EXPECT_EQ(linesOf(readAll(TraceReader(file), 1, 500), true), wanted);
}

struct Bar {
    std::string track;
    std::int64_t startNs = 0, endNs = 0;
};

/// The bars of a run's transfers to the device, by step and layer.
std::map<std::pair<int, int>, Bar> transferBars(const TraceReader& reader) {
    std::map<std::pair<int, int>, Bar> bars;
    for (const SpanBatch& batch : readAll(reader, 1, 500))
        for (const SpanRow& span : batch.spans)
            if (const std::string& track = batch.texts[span.track]; isLinkTrack(track, kToDeviceTrack))
                bars[{span.step, span.layer}] = {track, span.startNs, span.startNs + span.durationNs};
    return bars;
}

// The stage that moves blocks first finds out which: a bar that began with it began 6 us before the kernel did.
TEST(TimelineReading, PutsATransferOnTheKernelThatMovedItsBytes) {
    const TraceReader reader(kSample);
    const auto bars = transferBars(reader);
    std::size_t compared = 0;
    std::vector<std::int64_t> apart;
    for (const auto& row : test::sql(kSample, "SELECT step, layer, start_ns, start_ns + duration_ns FROM v_kernel"
                                              " WHERE run_id = 1 AND name LIKE 'offloading: gather%'")
                               .rows) {
        const auto bar = bars.find({std::stoi(row[0]), std::stoi(row[1])});
        if (bar == bars.end()) continue;
        ++compared;
        EXPECT_EQ(bar->second.track, "link, host to device (CUPTI's clock)");
        const std::int64_t begins = std::stoll(row[2]), ends = std::stoll(row[3]);
        apart.push_back(std::max(std::abs(bar->second.startNs - begins), std::abs(bar->second.endNs - ends)));
        EXPECT_LT(apart.back(), 3000) << "step " << row[0] << ", layer " << row[1];
    }
    ASSERT_GT(compared, 500u);
    std::nth_element(apart.begin(), apart.begin() + std::ptrdiff_t(apart.size() / 2), apart.end());
    EXPECT_LT(apart[apart.size() / 2], 500) << "in half of the layers within half a microsecond";
    const LinkClock clock = linkClockOf(*ReaderAccess::of(reader).connection, 1);
    EXPECT_EQ(clock.source, LinkClock::Source::Cupti);
    EXPECT_NEAR(double(clock.offsetNs), 1240, 200) << "the two clocks of this GPU";
    EXPECT_LT(clock.spreadNs, 300) << "what remains, and is stated";
}

TEST(TimelineReading, PutsATransferBehindTheSelectionWhereNoKernelsWereRecorded) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    std::filesystem::copy_file(kSample, file);
    test::sql(file, "DELETE FROM span", SQLITE_OPEN_READWRITE);
    const TraceReader reader(file);
    const auto bars = transferBars(reader);
    ASSERT_GT(bars.size(), 500u);
    for (const auto& row :
         test::sql(file,
                   "SELECT step, layer, start_ns + qkv_linear_ns + rope_ns + compression_ns + stage1_ns + pooling_ns,"
                   " start_ns + qkv_linear_ns + rope_ns + compression_ns + stage1_ns + pooling_ns + offloading_ns"
                   " FROM v_layer WHERE run_id = 1 AND phase = 'decode' AND h2d_bytes > 0 AND d2h_bytes = 0")
             .rows) {
        const Bar& bar = bars.at({std::stoi(row[0]), std::stoi(row[1])});
        EXPECT_EQ(bar.track, "link, host to device (GPU timer)");
        EXPECT_GT(bar.startNs, std::stoll(row[2])) << "the selection still runs until then";
        EXPECT_EQ(bar.endNs, std::stoll(row[3])) << "the attention begins with the last block";
    }
}

TEST(TimelineReading, SaysThatATransferStandsOnTheClockOfAnotherEngine) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    std::filesystem::copy_file(kSample, file);
    test::sql(file,
              "CREATE TABLE IF NOT EXISTS run_meta(run_id INTEGER, key TEXT, value TEXT);"
              "INSERT INTO run_meta VALUES (1, 'engine', 'another')",
              SQLITE_OPEN_READWRITE);
    EXPECT_EQ(transferBars(TraceReader(file)).begin()->second.track, "link, host to device (engine's clock)");
}

TEST(TimelineReading, ContinuesWhereARunGrew) {
    test::Folder folder;
    const std::string file = (folder / "run.kvtrace").string();
    const synthetic::RunShape shape;
    Recorder recorder(file, {});
    recorder.beginRun(synthetic::infoOf(shape));
    synthetic::RunGenerator generator(shape);
    const auto record = [&](int steps) {
        for (int i = 0; i < steps; ++i) {
            auto step = recorder.acquire();
            generator.fillNext(*step, RecordLevel::Full);
            recorder.take(std::vector<SpanRecord>{
                SpanRecord{step->step, -1, SpanRecord::Kind::Kernel, "stream 1", "k", step->startNs, 10, 0}});
            recorder.take(std::move(step));
        }
        recorder.flush();
    };
    record(5);
    const TraceReader reader(file);
    auto batches = readAll(reader, 1, 1000);
    EXPECT_TRUE(readSpans(reader, 1, batches.back().next, 1000).spans.empty());
    record(6);
    SpanBatch more = readSpans(reader, 1, batches.back().next, 100'000);
    EXPECT_EQ(more.steps.size(), 6u);
    batches.push_back(more);
    recorder.endRun(RunStatus::Finished, "");
    recorder.flush();
    EXPECT_EQ(linesOf(batches, false), linesOf(readAll(reader, 1, 100'000), false));
}

TEST(TimelineReading, RefusesARunThatIsNotThere) {
    const TraceReader reader(kSample);
    EXPECT_THROW(readSpans(reader, 99, {}, 100), Error);
}

TEST(StepCounters, AreTheRatesOfTheSteps) {
    StepCounters counters(100);
    std::vector<StepRow> steps(3);
    steps[0] = {.step = 0, .phase = Phase::Prefill, .tokens = 50, .startNs = 0, .durationNs = 1'000'000};
    steps[1] = {.step = 1,
                .tokens = 2,
                .startNs = 1'000'000,
                .durationNs = 1'000'000,
                .selected = 100,
                .hits = 40,
                .misses = 60,
                .h2dBytes = 3'000};
    steps[2] = {
        .step = 2, .tokens = 2, .startNs = 3'000'000, .durationNs = 500'000, .selected = 100, .hits = 10, .misses = 90};
    counters.append(steps);
    using C = StepCounters;
    EXPECT_TRUE(std::isnan(counters.at(C::TokenRate, 500'000))) << "a prefill gives no rate of decoding";
    EXPECT_DOUBLE_EQ(counters.at(C::TokenRate, 1'500'000), 2000);
    EXPECT_NEAR(counters.at(C::HitRate, 1'000'000), 0.4, 1e-6);
    EXPECT_NEAR(counters.at(C::ToDevice, 1'999'999), 3e6, 1);
    EXPECT_TRUE(std::isnan(counters.at(C::ToDevice, 2'500'000))) << "no step runs then";
    EXPECT_NEAR(counters.at(C::Occupancy, 2'500'000), 0.6, 1e-6) << "blocks stay where they are";
    EXPECT_NEAR(counters.at(C::Occupancy, 1'500'000), 0.6, 1e-6);
    EXPECT_NEAR(counters.at(C::Occupancy, 3'100'000), 1, 1e-6) << "150 loads into 100 slots";
    EXPECT_TRUE(std::isnan(counters.at(C::TokenRate, 4'000'000))) << "after the end";
    EXPECT_EQ(counters.stepAt(2'999'999), 1);
    EXPECT_EQ(counters.stepAt(-1), -1);
    EXPECT_FALSE(C(0).has(C::HitRate));
}

/// Two steps, 72 s of nothing, two steps: what a session leaves that was paused.
TEST(StepCounters, EndWhereTheirStepEnds) {
    constexpr std::int64_t kMs = 1'000'000, kPause = 72'000 * kMs;
    std::vector<StepRow> steps(4);
    for (int i = 0; i < 4; ++i)
        steps[std::size_t(i)] = {.step = i + 1,
                                 .tokens = 4,
                                 .startNs = i * kMs + (i >= 2 ? kPause : 0),
                                 .durationNs = kMs * 9 / 10,
                                 .selected = 10,
                                 .hits = 9,
                                 .misses = 1,
                                 .h2dBytes = 4096};
    StepCounters counters(16);
    counters.append(steps);
    using C = StepCounters;
    const std::int64_t pause = 2 * kMs + kPause / 2;
    float low = 0, high = 0;
    for (const auto counter : {C::TokenRate, C::HitRate, C::ToDevice}) {
        EXPECT_TRUE(std::isnan(counters.at(counter, pause))) << C::info(counter).id;
        EXPECT_TRUE(std::isnan(counters.at(counter, kMs * 95 / 100))) << "nor between two steps";
        EXPECT_FALSE(counters.range(counter, 2 * kMs, kPause, low, high)) << C::info(counter).id;
        EXPECT_FALSE(counters.range(counter, kMs * 19 / 10, 2 * kMs + kPause, low, high)) << "ends are no part";
        EXPECT_TRUE(counters.range(counter, kMs * 19 / 10 - 1, 2 * kMs, low, high)) << C::info(counter).id;
        EXPECT_TRUE(counters.range(counter, kPause, kPause + 2 * kMs + 1, low, high)) << C::info(counter).id;
        EXPECT_TRUE(counters.range(counter, 0, kPause * 2, low, high));
        EXPECT_FALSE(counters.range(counter, kPause * 2, kPause * 3, low, high));
    }
    EXPECT_TRUE(counters.range(C::Occupancy, 2 * kMs, kPause, low, high));
    EXPECT_NEAR(counters.at(C::Occupancy, pause), 2.0 / 16, 1e-6) << "a pause empties no slot";
    EXPECT_TRUE(std::isnan(counters.at(C::Occupancy, kPause * 2))) << "after the end";
}

TEST(StepCounters, KeepTheExtremesOfAnyRange) {
    StepCounters counters;
    std::vector<StepRow> steps;
    for (int i = 0; i < 1000; ++i)
        steps.push_back({.step = i, .tokens = 1 + (i * 7919) % 997, .startNs = i * 1000, .durationNs = 1000});
    counters.append(steps);
    for (const auto& [first, last] :
         std::vector<std::pair<int, int>>{{0, 999}, {3, 3}, {10, 700}, {63, 64}, {64, 127}, {1, 999}}) {
        float low = 0, high = 0;
        ASSERT_TRUE(counters.range(StepCounters::TokenRate, first * 1000, last * 1000 + 1, low, high));
        int least = 1 << 30, most = 0;
        for (int i = first; i <= last; ++i) {
            least = std::min(least, steps[std::size_t(i)].tokens);
            most = std::max(most, steps[std::size_t(i)].tokens);
        }
        EXPECT_FLOAT_EQ(low, float(least) * 1e6F) << first << ' ' << last;
        EXPECT_FLOAT_EQ(high, float(most) * 1e6F) << first << ' ' << last;
    }
}

class SampleFlows : public testing::Test {
protected:
    void SetUp() override {
        const TraceReader reader(kSample);
        for (const SpanBatch& batch : readAll(reader, 1, 100'000)) index.append(batch);
    }
    SpanRef find(const std::string& track, const std::string& name, int step, int layer) const {
        for (int lane = 0; lane < index.laneCount(); ++lane)
            for (std::uint32_t i = 0; i < index.lane(lane).spans; ++i) {
                const TimelineSpan span = index.at({lane, i});
                if (span.step == step && span.layer == layer && index.names()[span.name] == name &&
                    index.tracks()[index.lane(lane).track] == track)
                    return {lane, i};
            }
        ADD_FAILURE() << "no " << name;
        return {0, 0};
    }
    std::string words(const SpanFlow& flow) const {
        const auto name = [&](SpanRef ref) { return index.names()[index.at(ref).name]; };
        return fmt::format("{} {} > {}", flow.kind == SpanFlow::Kind::Launch ? "launch" : "transfer", name(flow.from),
                           name(flow.to));
    }
    SpanIndex index;
};

TEST_F(SampleFlows, LeadFromAStageToItsKernels) {
    const SpanRef gather = find("stream 14", "offloading: gatherKernel", 3, 7);
    const auto flows = flowsOf(index, gather);
    ASSERT_EQ(flows.size(), 1u);
    EXPECT_EQ(words(flows[0]), "launch offloading > offloading: gatherKernel");
    EXPECT_EQ(flows[0].to, gather);
    EXPECT_EQ(index.at(flows[0].from).layer, 7);
    EXPECT_EQ(index.at(flows[0].from).step, 3);
    EXPECT_EQ(flowsOf(index, find("host", "ffn", 3, 7)).size(), 3u) << "normalise and two products";
}

TEST_F(SampleFlows, LeadFromATransferToTheAttentionThatUsesIt) {
    const SpanRef transfer = find("link, host to device (CUPTI's clock)", kToDeviceName, 3, 7);
    std::vector<std::string> said;
    for (const SpanFlow& flow : flowsOf(index, transfer)) said.push_back(words(flow));
    EXPECT_THAT(said, testing::UnorderedElementsAre("launch offloading > to device", "transfer to device > stage2",
                                                    "transfer to device > stage2: decodeKernel<128, 8>"));
    const auto back = flowsOf(index, find("stream 14", "stage2: decodeKernel<128, 8>", 3, 7));
    EXPECT_TRUE(std::any_of(back.begin(), back.end(), [&](const SpanFlow& flow) { return flow.from == transfer; }));
}

TEST_F(SampleFlows, SayWhatASpanWaitedFor) {
    SpanIndex small;
    SpanBatch batch;
    batch.texts = {"host", "stream 1", "a", "b", "copy"};
    batch.spans = {
        {0, 10, 0, 2, -1, -1, 0}, {30, 10, 0, 3, -1, -1, 0}, {5, 20, 1, 4, -1, -1, 0}, {28, 9, 1, 4, -1, -1, 0}};
    small.append(batch);
    const auto second = SpanRef{0, 1};
    const SpanWait wait = waitOf(small, second);
    EXPECT_EQ(wait.idleNs, 20);
    ASSERT_TRUE(wait.before && wait.lastToEnd);
    EXPECT_EQ(small.at(*wait.lastToEnd).startNs, 5) << "the one that ended at 25, not the one still running";
    EXPECT_EQ(waitOf(small, {0, 0}).idleNs, 0);
}

Note noteOf(int run, std::int64_t start, std::int64_t duration = 0, const std::string& text = {}) {
    Note note;
    note.runId = run;
    note.startNs = start;
    note.durationNs = duration;
    note.text = text;
    return note;
}

class NotesTest : public testing::Test {
protected:
    NotesTest() { synthetic::recordFile(file, {.decodeSteps = 3}); }
    test::Folder folder;
    std::string file = (folder / "run.kvtrace").string();
};

TEST_F(NotesTest, AreKeptInTheTrace) {
    const TraceReader reader(file); // open all the time, as in the desktop
    EXPECT_TRUE(readNotes(reader, 1).empty());
    const auto late = addNote(file, noteOf(1, 900, 50, "here it's \"slow\"\n"));
    const auto early = addNote(file, noteOf(1, 100));
    addNote(file, noteOf(2, 1, 0, "another run's"));
    auto notes = readNotes(reader, 1);
    ASSERT_EQ(notes.size(), 2u);
    EXPECT_EQ(notes[0].id, early.id);
    EXPECT_EQ(notes[0].createdUtc, early.createdUtc);
    EXPECT_EQ(notes[1].text, "here it's \"slow\"\n");
    EXPECT_EQ(notes[1].durationNs, 50);
    EXPECT_THAT(notes[1].createdUtc, testing::MatchesRegex("2[0-9-]+T[0-9:]+Z"));
    changeNote(file, late, "fast");
    removeNote(file, early);
    notes = readNotes(reader, 1);
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_EQ(notes[0].text, "fast");
    EXPECT_FALSE(std::filesystem::exists(file + "-journal"));
}

TEST_F(NotesTest, ComeBackAsTheyWereAfterTheyWereRemoved) {
    const TraceReader reader(file);
    addNote(file, noteOf(1, 10, 0, "first"));
    const auto id = addNote(file, noteOf(1, 100, 50, "second")).id;
    test::sql(file, "UPDATE note SET created_utc='2020-02-02T20:20:20Z'", SQLITE_OPEN_READWRITE);
    const Note before = readNotes(reader, 1).at(1);
    removeNote(file, before);
    EXPECT_EQ(addNote(file, before).id, id);
    const Note after = readNotes(reader, 1).at(1);
    EXPECT_EQ(after.id, before.id);
    EXPECT_EQ(after.createdUtc, "2020-02-02T20:20:20Z");
    EXPECT_EQ(after.text, "second");
    EXPECT_NE(addNote(file, before).id, id) << "another note may have taken its place";
    EXPECT_EQ(readNotes(reader, 1).size(), 3u);
}

TEST_F(NotesTest, OfSomebodyElseUnderTheSameIdAreLeftAlone) {
    const TraceReader reader(file);
    const Note mine = addNote(file, noteOf(1, 10, 0, "mine"));
    removeNote(file, mine);
    const auto refusal = [&](const auto& change) {
        try {
            change();
        } catch (const Error& error) {
            return oneLine(error);
        }
        return std::string();
    };
    const auto changeMine = [&] { changeNote(file, mine, "mine again"); };
    const auto removeMine = [&] { removeNote(file, mine); };
    EXPECT_THAT(refusal(changeMine), testing::StartsWith("the note was changed elsewhere")) << "it is gone";
    EXPECT_THAT(refusal(removeMine), testing::StartsWith("the note was changed elsewhere"));
    const Note theirs = addNote(file, noteOf(1, 20, 0, "theirs"));
    ASSERT_EQ(theirs.id, mine.id) << "ids are given again";
    EXPECT_THAT(refusal(changeMine), testing::StartsWith("the note was changed elsewhere"));
    EXPECT_THAT(refusal(removeMine), testing::StartsWith("the note was changed elsewhere"));
    EXPECT_EQ(readNotes(reader, 1).at(0).text, "theirs");
    changeNote(file, theirs, "theirs, reworded");
    EXPECT_THAT(refusal([&] { removeNote(file, theirs); }), testing::StartsWith("the note was changed elsewhere"))
        << "the text is not the one that was seen";
    EXPECT_EQ(readNotes(reader, 1).size(), 1u);
}

TEST_F(NotesTest, BringTheTableToTracesOfBefore) {
    const auto columns = test::sql(file, "SELECT name, type, \"notnull\", pk FROM pragma_table_info('note')").rows;
    test::sql(file, "DROP TABLE note", SQLITE_OPEN_READWRITE);
    const TraceReader reader(file);
    EXPECT_TRUE(readNotes(reader, 1).empty());
    addNote(file, noteOf(1, 5, 0, "kept"));
    ASSERT_EQ(readNotes(reader, 1).size(), 1u);
    EXPECT_EQ(test::sql(file, "SELECT name, type, \"notnull\", pk FROM pragma_table_info('note')").rows, columns)
        << "the table that is added later is the one of the schema";
}

TEST_F(NotesTest, CanBeLeftWhileTheRunIsRecorded) {
    const std::string live = (folder / "live.kvtrace").string();
    const synthetic::RunShape shape;
    Recorder recorder(live, {});
    recorder.beginRun(synthetic::infoOf(shape));
    synthetic::RunGenerator generator(shape);
    for (int i = 0; i < 10; ++i) {
        generator.recordNext(recorder);
        if (i == 5) addNote(live, noteOf(1, 7, 0, "meanwhile"));
    }
    recorder.endRun(RunStatus::Finished, "");
    recorder.flush();
    const TraceReader reader(live);
    EXPECT_EQ(readNotes(reader, 1).size(), 1u);
    EXPECT_EQ(reader.stepCount(1), 10);
}

TEST_F(NotesTest, SayWhyTheyCannotBeKept) {
    const auto refusal = [&](const std::string& path) {
        try {
            addNote(path, noteOf(1, 0));
        } catch (const Error& error) {
            return oneLine(error);
        }
        return std::string();
    };
    EXPECT_THAT(refusal((folder / "none.kvtrace").string()), testing::HasSubstr("no longer there"));
    EXPECT_FALSE(std::filesystem::exists(folder / "none.kvtrace")) << "no file may appear";
    test::sql((folder / "other.db").string(), "CREATE TABLE x(y)", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
    EXPECT_THAT(refusal((folder / "other.db").string()), testing::HasSubstr("not a KVScope trace"));
    if (geteuid() == 0) GTEST_SKIP() << "root may write everything";
    chmod(file.c_str(), 0444);
    EXPECT_THAT(refusal(file), testing::HasSubstr("cannot be written: permission denied"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
