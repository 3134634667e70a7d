#include "profiler/record/recorder.h"

#include "base/error.h"
#include "profiler/format/trace_keys.h"
#include "profiler/read/trace_reader.h"
#include "profiler/store/trace_store.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/temporary_folder.h"
#include "tests/support/refusal.h"

#include <atomic>
#include <condition_variable>
#include <fstream>
#include <gmock/gmock.h>
#include <memory>
#include <mutex>
#include <sqlite3.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

namespace kvscope {
namespace KVSCOPE_TEST_FILE {

using test::failureOf;

using synthetic::RunShape;
using testing::HasSubstr;

std::string contentsOf(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

void runSql(const std::string& path, const std::string& sql) {
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open(path.c_str(), &database), SQLITE_OK);
    char* message = nullptr;
    ASSERT_EQ(sqlite3_exec(database, sql.c_str(), nullptr, nullptr, &message), SQLITE_OK) << message;
    sqlite3_close(database);
}

class RecorderTest : public testing::Test {
protected:
    test::Folder folder;
    std::string file = (folder / "run.kvtrace").string();
};

TEST_F(RecorderTest, KeepsSpansOfOtherSourcesInBothRunsOfAFile) {
    for (int run = 1; run <= 2; ++run) {
        RunInfo info;
        info.name = "spans";
        info.model = info.method = info.backend = info.device = info.link = "x";
        Recorder recorder(file, {});
        recorder.beginRun(info);
        std::vector<SpanRecord> spans;
        for (int i = 0; i < 100; ++i) {
            SpanRecord span;
            span.step = i / 10;
            span.layer = i % 10 - 1;
            span.kind = i % 3 == 0 ? SpanRecord::Kind::Copy : SpanRecord::Kind::Kernel;
            span.track = "stream " + std::to_string(i % 2);
            span.name = "kernel" + std::to_string(i % 7);
            span.startNs = i * 1000;
            span.durationNs = 500 + i;
            spans.push_back(span);
        }
        recorder.take(spans);
        recorder.take(std::vector<SpanRecord>{});
        recorder.endRun(RunStatus::Finished, {});
        recorder.flush();
        EXPECT_EQ(recorder.health().error, "");
    }
    const auto kernels =
        test::sql(file, "SELECT count(*), sum(duration_ns), min(layer), max(step) FROM v_kernel WHERE run_id=2");
    EXPECT_EQ(kernels.rows.at(0), (std::vector<std::string>{"66", "36267", "-1", "9"}));
    const auto spans = test::sql(
        file, "SELECT run_id, step, layer, track, name, start_ns, duration_ns FROM v_span WHERE start_ns=98000");
    ASSERT_EQ(spans.rows.size(), 2u);
    EXPECT_EQ(spans.rows[1], (std::vector<std::string>{"2", "9", "7", "stream 0", "kernel0", "98000", "598"}));
}

/// Of a recorder whose steps do not say whether they begin a block (the benchmark's), the position of the fed token
/// tells it.
TEST_F(RecorderTest, AStepBeginsABlockWhereOneOfItsSequencesDoes) {
    const RunShape shape{.layers = 1, .kvHeads = 1, .decodeSteps = 40, .blockSize = 16};
    for (const bool parts : {false, true}) { // the method selects tokens, of which a block has 16
        Recorder recorder(file, {});
        RunInfo info = synthetic::infoOf(shape);
        if (parts) {
            info.blockSize = 1;
            info.meta.emplace_back("kv_block_tokens", "16");
        }
        recorder.beginRun(info);
        for (const StepRecord& step : synthetic::stepsOf(shape)) {
            auto copy = recorder.acquire();
            *copy = step;
            copy->opensBlock = false;
            recorder.take(std::move(copy));
        }
        recorder.endRun(RunStatus::Finished, {});
        recorder.flush();
        ASSERT_EQ(recorder.health().error, "");
    }
    for (const char* run : {"1", "2"}) {
        const std::string of = " WHERE run_id = " + std::string(run) + " AND opens_block = 1 ORDER BY step";
        std::vector<std::vector<std::string>> wanted;
        for (int step = 1; step <= shape.decodeSteps; ++step)
            if (synthetic::fedPosition(shape, 0, step) % 16 == 0) wanted.push_back({std::to_string(step)});
        ASSERT_GE(wanted.size(), 2u);
        EXPECT_EQ(test::sql(file, "SELECT step FROM v_step" + of).rows, wanted) << "run " << run;
        EXPECT_EQ(test::sql(file, "SELECT DISTINCT step FROM v_locality" + of).rows, wanted) << "run " << run;
    }
}

TEST_F(RecorderTest, LeavesOneFileBehind) {
    synthetic::recordFile(file, {});
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
        ++files;
        EXPECT_EQ(entry.path().string(), file);
    }
    EXPECT_EQ(files, 1);
}

TEST_F(RecorderTest, LeavesOneFileBehindWhenTheReaderThatKeptItFromThatIsGone) {
    const auto files = [&] {
        std::vector<std::string> names;
        for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
            names.push_back(entry.path().filename().string());
        return names;
    };
    auto recorder = std::make_unique<Recorder>(file, RecorderOptions{});
    synthetic::record(*recorder, {}, RunStatus::Stopped);
    recorder->flush();
    {
        Connection reader(file, Connection::Mode::ReadOnly);
        reader.execute("BEGIN; SELECT count(*) FROM step"); // it is in the middle of a query
        recorder.reset();
        ASSERT_GT(std::filesystem::file_size(file + "-wal"), 0u) << "the last rows cannot leave the log yet";
        TraceStore::settle(file);
        EXPECT_TRUE(std::filesystem::exists(file + "-wal")) << "somebody still reads";
    }
    TraceStore::settle(file);
    EXPECT_THAT(files(), testing::ElementsAre("run.kvtrace"));
    EXPECT_EQ(TraceReader(file).run(1)->status, RunStatus::Stopped);
    EXPECT_EQ(TraceReader(file).steps(1).size(), 21u);
}

TEST_F(RecorderTest, LeavesTheLogOfARunThatIsNotOver) {
    synthetic::recordFile(file, {});
    sqlite3* killed = nullptr; // a writer that ends without a word, as one that was killed
    ASSERT_EQ(sqlite3_open(file.c_str(), &killed), SQLITE_OK);
    ASSERT_EQ(
        sqlite3_exec(killed, "PRAGMA journal_mode=WAL; UPDATE run SET status = 'running'", nullptr, nullptr, nullptr),
        SQLITE_OK);
    std::filesystem::copy(file, folder / "left.kvtrace");
    std::filesystem::copy(file + "-wal", folder / "left.kvtrace-wal");
    sqlite3_close(killed);
    const std::string left = (folder / "left.kvtrace").string();
    const std::string log = contentsOf(left + "-wal");
    ASSERT_FALSE(log.empty());
    TraceStore::settle(left);
    EXPECT_TRUE(contentsOf(left + "-wal") == log);
}

TEST_F(RecorderTest, AppendsRunsToAnExistingTrace) {
    RunShape second;
    second.seed = 2;
    second.layers = 3;
    second.decodeSteps = 7;
    synthetic::recordFile(file, {});
    synthetic::recordFile(file, second);
    TraceReader reader(file);
    ASSERT_EQ(reader.runs().size(), 2u);
    EXPECT_EQ(reader.stepCount(1), 21);
    EXPECT_EQ(reader.stepCount(2), 8);
    EXPECT_EQ(reader.layers(2, 3).size(), 3u);
    EXPECT_EQ(reader.layers(1, 3).size(), 4u);
}

TEST_F(RecorderTest, RecordsSeveralRunsOneAfterTheOther) {
    Recorder recorder(file, {});
    for (int run = 1; run <= 3; ++run) {
        synthetic::record(recorder, {});
        EXPECT_EQ(recorder.runId(), run);
    }
    recorder.flush();
    EXPECT_EQ(TraceReader(file).runs().size(), 3u);
}

TEST_F(RecorderTest, ShowsStepsToAReaderWhileTheRunGoesOn) {
    Recorder recorder(file, {});
    synthetic::RunGenerator generator({});
    recorder.beginRun(synthetic::infoOf({}));
    TraceReader reader(file);
    for (int step = 0; step < generator.steps(); ++step) {
        generator.recordNext(recorder);
        recorder.flush();
        ASSERT_EQ(reader.stepCount(1), step + 1);
        ASSERT_EQ(reader.run(1)->status, RunStatus::Running);
        ASSERT_FALSE(reader.run(1)->stale);
    }
    recorder.endRun(RunStatus::Failed, "out of luck");
    recorder.flush();
    EXPECT_EQ(reader.run(1)->status, RunStatus::Failed);
    EXPECT_EQ(reader.run(1)->statusMessage, "out of luck");
}

/// The prompts of a run may be millions of tokens: nobody copies them, and the writer makes one text at a time.
TEST_F(RecorderTest, BorrowsThePromptsWhileItWritesThem) {
    const auto ids = std::make_shared<const RunPrompts::Ids>(
        RunPrompts::Ids{std::vector<std::int32_t>(20'000, 7), {}, {3, 4, 5, 6, 7, 8, 9, 10, 11}});
    std::atomic<int> texts = 0, here = 0;
    const std::thread::id engine = std::this_thread::get_id();
    const auto bytesOf = [&](std::int32_t id) {
        ++texts;
        if (std::this_thread::get_id() == engine) ++here;
        // Long enough to be kept apart from the string, and no text: stored as bytes beside it.
        return std::string(40, 'a') + std::to_string(id) + "\xff";
    };
    Recorder recorder(file, {});
    RunInfo info = synthetic::infoOf({});
    info.sequences = 3;
    info.prompts = {ids, bytesOf};
    recorder.beginRun(info);
    info = {};
    recorder.flush();
    EXPECT_EQ(ids.use_count(), 1) << "the writer has given them back";
    EXPECT_EQ(texts, 20'009);
    EXPECT_EQ(here, 0) << "the engine's thread does not wait for texts";
    TraceReader reader(file);
    EXPECT_EQ(reader.prompt(1, 0).size(), 20'000U);
    EXPECT_TRUE(reader.prompt(1, 1).empty());
    const auto last = reader.prompt(1, 2);
    ASSERT_EQ(last.size(), 9U);
    for (std::size_t i = 0; i < last.size(); ++i) {
        EXPECT_EQ(last[i].id, (*ids)[2][i]);
        EXPECT_EQ(last[i].bytes, bytesOf((*ids)[2][i])) << i;
    }
}

TEST_F(RecorderTest, EndsARunThatNobodyEndedAsStopped) {
    {
        Recorder recorder(file, {});
        recorder.beginRun(synthetic::infoOf({}));
        recorder.beginRun(synthetic::infoOf({}));
    }
    TraceReader reader(file);
    EXPECT_EQ(reader.run(1)->status, RunStatus::Stopped);
    EXPECT_EQ(reader.run(2)->status, RunStatus::Stopped);
}

TEST_F(RecorderTest, CommitsByItselfAndTellsSo) {
    std::mutex mutex;
    std::condition_variable changed;
    std::int64_t last = 0, calls = 0;
    bool growing = true;
    RecorderOptions options;
    options.onCommit = [&](std::int64_t revision) {
        const std::lock_guard lock(mutex);
        growing &= revision > last;
        last = revision;
        ++calls;
        changed.notify_all();
    };
    Recorder recorder(file, options);
    recorder.beginRun(synthetic::infoOf({}));
    std::unique_lock lock(mutex);
    const auto before = calls;
    lock.unlock();
    synthetic::RunGenerator generator({});
    generator.recordNext(recorder);
    lock.lock();
    EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(20), [&] { return calls > before + 1; }));
    EXPECT_TRUE(growing);
    lock.unlock();
    EXPECT_EQ(TraceReader(file).stepCount(1), 1);
}

TEST_F(RecorderTest, DropsAndCountsStepsThatDoNotFitItsQueue) {
    RecorderOptions options;
    std::atomic<bool> hold = false;
    std::mutex mutex;
    std::condition_variable changed;
    bool held = false, release = false;
    options.queueBytes = 64 << 10;
    options.onCommit = [&](std::int64_t) { // stops the writer, as a stalled disk would
        if (!hold) return;
        std::unique_lock lock(mutex);
        held = true;
        changed.notify_all();
        changed.wait(lock, [&] { return release; });
    };
    Recorder recorder(file, options);
    RunShape shape;
    shape.decodeSteps = 400;
    synthetic::RunGenerator generator(shape);
    recorder.beginRun(synthetic::infoOf(shape));
    recorder.flush();
    const auto commitOne = [&] { generator.recordNext(recorder); };
    hold = true;
    commitOne();
    {
        std::unique_lock lock(mutex);
        ASSERT_TRUE(changed.wait_for(lock, std::chrono::seconds(20), [&] { return held; }));
    }
    for (int step = 1; step < generator.steps(); ++step) commitOne();
    const std::int64_t dropped = recorder.health().droppedSteps;
    EXPECT_GT(dropped, 100);
    EXPECT_LT(dropped, 400);
    {
        const std::lock_guard lock(mutex);
        hold = false;
        release = true;
    }
    changed.notify_all();
    recorder.endRun(RunStatus::Finished, "");
    recorder.flush();
    TraceReader reader(file);
    EXPECT_EQ(reader.run(1)->droppedSteps, dropped);
    EXPECT_EQ(std::int64_t(reader.steps(1).size()), 401 - dropped);
    EXPECT_GT(reader.run(1)->writerBusyNs, 0);
}

TEST_F(RecorderTest, RecyclesRecords) {
    Recorder recorder(file, {});
    recorder.beginRun(synthetic::infoOf({}));
    synthetic::RunGenerator generator({});
    auto record = recorder.acquire();
    const StepRecord* address = record.get();
    generator.fillNext(*record, recorder.level());
    recorder.take(std::move(record));
    recorder.flush();
    record = recorder.acquire();
    EXPECT_EQ(record.get(), address);
    EXPECT_TRUE(record->layers.empty());
    EXPECT_TRUE(record->generated.empty());
    EXPECT_GT(record->layers.capacity(), 0u);
}

TEST_F(RecorderTest, NamesTheFolderThatIsNotThere) {
    const std::string path = (folder / "missing/run.kvtrace").string();
    const std::string message = failureOf([&] { Recorder(path, {}); });
    EXPECT_THAT(message, HasSubstr(path));
    EXPECT_THAT(message, HasSubstr("there is no folder"));
}

TEST_F(RecorderTest, RefusesToWriteOverOtherPeoplesFiles) {
    std::ofstream(file) << "the only copy of a thesis, which is no database";
    const std::string before = contentsOf(file);
    EXPECT_THAT(failureOf([&] { Recorder(file, {}); }), HasSubstr("is not a KVScope trace"));
    EXPECT_EQ(contentsOf(file), before);
}

TEST_F(RecorderTest, RefusesOtherDatabases) {
    runSql(file, "CREATE TABLE accounts(id INTEGER)");
    const std::string before = contentsOf(file);
    EXPECT_THAT(failureOf([&] { Recorder(file, {}); }), HasSubstr("is not a KVScope trace"));
    EXPECT_EQ(contentsOf(file), before);
}

TEST_F(RecorderTest, ReplacesAFileOnlyWhenTold) {
    std::ofstream(file) << "something";
    RecorderOptions options;
    options.overwrite = true;
    {
        Recorder recorder(file, options);
        synthetic::record(recorder, {});
    }
    EXPECT_EQ(TraceReader(file).runs().size(), 1u);
    {
        Recorder recorder(file, options);
        synthetic::record(recorder, {});
    }
    EXPECT_EQ(TraceReader(file).runs().size(), 1u);
}

TEST_F(RecorderTest, RefusesATraceOfANewerProgram) {
    synthetic::recordFile(file, {});
    runSql(file, "PRAGMA user_version=2");
    EXPECT_THAT(failureOf([&] { Recorder(file, {}); }), HasSubstr("update KVScope"));
}

TEST_F(RecorderTest, RefusesAFolderAsFile) {
    EXPECT_THAT(failureOf([&] { Recorder(folder.path().string(), {}); }), HasSubstr("it is a folder"));
    EXPECT_THAT(failureOf([&] { Recorder("/dev/null", {}); }), HasSubstr("not a regular file"));
    EXPECT_THAT(failureOf([&] { Recorder("", {}); }), HasSubstr("no file name"));
}

TEST_F(RecorderTest, RefusesAFolderItMayNotWriteTo) {
    if (geteuid() == 0) { // root may write everywhere but into /proc
        EXPECT_THAT(failureOf([&] { Recorder("/proc/run.kvtrace", {}); }), HasSubstr("/proc/run.kvtrace"));
        return;
    }
    chmod(folder.path().c_str(), 0500);
    const std::string message = failureOf([&] { Recorder(file, {}); });
    chmod(folder.path().c_str(), 0700);
    EXPECT_THAT(message, HasSubstr(file));
    EXPECT_THAT(message, HasSubstr("folder you may write to"));
}

TEST_F(RecorderTest, RefusesRunsTooLargeToNumber) {
    Recorder recorder(file, {});
    RunInfo info = synthetic::infoOf({});
    info.layers = trace::kMaxLayers + 1;
    EXPECT_THAT(failureOf([&] { recorder.beginRun(info); }), HasSubstr("1025"));
    info = synthetic::infoOf({});
    info.kvHeads = trace::kMaxKvHeads + 1;
    EXPECT_THAT(failureOf([&] { recorder.beginRun(info); }), HasSubstr("KV heads"));
    recorder.beginRun(synthetic::infoOf({})); // it works again
    EXPECT_EQ(recorder.runId(), 1);
}

TEST_F(RecorderTest, RefusesTheRunThatHasNoNumberLeft) {
    synthetic::recordFile(file, {});
    runSql(file, "UPDATE run SET run_id = 255");
    Recorder recorder(file, {});
    EXPECT_THAT(failureOf([&] { recorder.beginRun(synthetic::infoOf({})); }), HasSubstr("255 runs"));
}

TEST_F(RecorderTest, StopsRecordingWhenARecordBreaksTheRulesAndSaysWhich) {
    Recorder recorder(file, {});
    recorder.beginRun(synthetic::infoOf({}));
    synthetic::RunGenerator generator({});
    for (int step = 0; step < generator.steps(); ++step) {
        auto record = recorder.acquire();
        generator.fillNext(*record, recorder.level());
        if (step == 9) std::swap(record->blocks[0], record->blocks[1]);
        recorder.take(std::move(record));
        if (step == 5) recorder.flush();
    }
    recorder.endRun(RunStatus::Finished, "");
    recorder.flush();
    EXPECT_THAT(recorder.health().error, HasSubstr("step 9"));
    TraceReader reader(file);
    const int kept = int(reader.steps(1).size());
    EXPECT_GE(kept, 6);
    EXPECT_LE(kept, 9);
    EXPECT_EQ(recorder.health().droppedSteps, 21 - kept);
    EXPECT_EQ(reader.run(1)->droppedSteps, 21 - kept);
}

TEST_F(RecorderTest, StopsRecordingWhenAStepComesTwice) {
    Recorder recorder(file, {});
    recorder.beginRun(synthetic::infoOf({}));
    for (const int step : {0, 1, 2, 2, 3}) {
        auto record = recorder.acquire();
        record->step = step;
        recorder.take(std::move(record));
        recorder.flush();
    }
    recorder.endRun(RunStatus::Finished, "");
    recorder.flush();
    EXPECT_THAT(recorder.health().error, HasSubstr("step.id"));
    EXPECT_EQ(recorder.health().droppedSteps, 2);
    const TraceReader reader(file);
    EXPECT_EQ(reader.stepCount(1), 3);
    EXPECT_EQ(reader.run(1)->droppedSteps, 2);
    EXPECT_EQ(reader.run(1)->status, RunStatus::Failed);
}

TEST_F(RecorderTest, NumbersTheExtremesOfItsKeys) {
    Recorder recorder(file, {});
    RunInfo info = synthetic::infoOf({});
    info.layers = trace::kMaxLayers;
    info.kvHeads = trace::kMaxKvHeads;
    info.sequences = trace::kMaxSequences;
    info.prompts = {};
    recorder.beginRun(info);
    auto record = recorder.acquire();
    record->step = trace::kMaxStep;
    record->layers.resize(trace::kMaxLayers);
    record->layers.back().startNs = 77;
    SelectionRecord selection;
    selection.layer = trace::kMaxLayers - 1;
    selection.sequence = trace::kMaxSequences - 1;
    selection.kvHead = trace::kMaxKvHeads - 1;
    selection.selected = selection.hits = 1;
    record->selections.push_back(selection);
    record->blocks = {PackedBlock(5, Origin::TokenLevel, true)};
    record->generated.push_back({trace::kMaxSequences - 1, 3, 40, "x"});
    recorder.take(std::move(record));
    recorder.flush();
    EXPECT_EQ(recorder.health().error, "");
    TraceReader reader(file);
    EXPECT_EQ(reader.stepCount(1), trace::kMaxStep + 1);
    EXPECT_EQ(reader.layers(1, trace::kMaxStep).back().startNs, 77);
    const auto row = reader.selection(1, trace::kMaxStep, selection.layer, selection.sequence, selection.kvHead);
    ASSERT_TRUE(row.has_value());
    EXPECT_EQ(row->blocks, std::vector{PackedBlock(5, Origin::TokenLevel, true)});
    EXPECT_EQ(reader.tokens(1, trace::kMaxSequences - 1).size(), 1u);
    auto next = recorder.acquire();
    next->step = trace::kMaxStep + 1;
    recorder.take(std::move(next));
    recorder.flush();
    EXPECT_THAT(recorder.health().error, HasSubstr("cannot be numbered"));
}

/// SQLite may write a commit into a file that was truncated meanwhile and make it grow again, so that the file's length
/// proves nothing.
TEST_F(RecorderTest, AFileThatSqliteCallsDamagedWasTruncatedOrWrittenTo) {
    TraceStore store(file, false);
    const TraceStore::Loss damaged = store.lossBehind(Error(ErrorKind::BadInput, "the image is malformed"));
    EXPECT_THAT(damaged.sentence, HasSubstr(file + " was truncated while it was recorded, or another program wrote"));
    EXPECT_TRUE(damaged.everything);
    EXPECT_EQ(store.lossBehind(Error(ErrorKind::Storage, "the disk is full")).sentence, "");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope
