#include "tests/ui/view_fixture.h"

#include "base/error.h"

#include <QFile>
#include <QSignalSpy>

#include <condition_variable>
#include <mutex>
#include <thread>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

using synthetic::RunShape;

class WorkspaceTest : public ViewTest {};

TEST_F(WorkspaceTest, OpensATraceWithoutBlockingAndShowsItsFirstRun) {
    const QString path = recorded("a.kvtrace", {});
    QSignalSpy changed(&workspace, &Workspace::currentChanged);
    workspace.open(path);
    EXPECT_TRUE(workspace.runs().empty()) << "open must not read on the GUI thread";
    EXPECT_FALSE(workspace.idle());
    ASSERT_TRUE(idle());
    ASSERT_TRUE(workspace.current());
    EXPECT_EQ(workspace.current()->row.steps, 21);
    EXPECT_EQ(workspace.current()->row.layers, 4);
    EXPECT_EQ(changed.count(), 1);
}

TEST_F(WorkspaceTest, ListsFilesInTheOrderOfOpeningWhicheverIsReadFirst) {
    QStringList paths;
    for (const char* name : {"c", "a", "e", "b", "d"})
        paths << recorded(std::string(name) + ".kvtrace", {.decodeSteps = *name == 'c' ? 400 : 3});
    for (int round = 0; round < 3; ++round) {
        for (const QString& path : paths) workspace.open(path);
        ASSERT_TRUE(idle());
        QStringList listed;
        for (const OpenRun& run : workspace.runs()) listed << run.key.path;
        EXPECT_EQ(listed, paths);
        EXPECT_EQ(workspace.current()->key.path, paths.back());
        const auto runs = workspace.runs();
        for (const OpenRun& run : runs) workspace.close(run.key);
        std::reverse(paths.begin(), paths.end());
    }
}

TEST_F(WorkspaceTest, NamesTheFileThatCannotBeOpened) {
    QSignalSpy failed(&workspace, &Workspace::openFailed);
    workspace.open(file("missing.kvtrace"));
    ASSERT_TRUE(idle());
    ASSERT_EQ(failed.count(), 1);
    EXPECT_TRUE(failed[0][1].toString().contains(QStringLiteral("missing.kvtrace")));

    QFile text(file("text.kvtrace"));
    ASSERT_TRUE(text.open(QIODevice::WriteOnly));
    text.write("this is no trace");
    text.close();
    workspace.open(text.fileName());
    ASSERT_TRUE(idle());
    EXPECT_EQ(failed.count(), 2);
    EXPECT_FALSE(workspace.current());
}

TEST_F(WorkspaceTest, ClampsTheCursorToTheRun) {
    RunShape shape;
    shape.sequences = 2;
    open(recorded("a.kvtrace", shape));
    Cursor cursor;
    cursor.step = 1000;
    cursor.layer = -3;
    cursor.kvHead = 9;
    cursor.sequence = 5;
    cursor.firstStep = 12;
    cursor.lastStep = 3;
    cursor.block = -7;
    workspace.setCursor(cursor);
    const Cursor expected{20, 3, 12, 1, 0, 1, -1};
    EXPECT_EQ(workspace.cursor(), expected);
    QSignalSpy moved(&workspace, &Workspace::cursorChanged);
    workspace.setCursor(cursor);
    EXPECT_EQ(moved.count(), 0) << "an equal cursor is no change";
}

TEST_F(WorkspaceTest, ARangeOfStepsBelongsToItsRun) {
    open(recorded("a.kvtrace", {.decodeSteps = 20}));
    const RunKey a = workspace.current()->key;
    open(recorded("b.kvtrace", {.decodeSteps = 20, .seed = 2}));
    const RunKey b = workspace.current()->key;
    open(recorded("short.kvtrace", {.decodeSteps = 5, .seed = 3}));
    const RunKey shorter = workspace.current()->key;
    const auto choose = [&](const RunKey& run) {
        workspace.setCurrent(run);
        workspace.setCursor({.step = 9, .firstStep = 8, .lastStep = 12});
        ASSERT_EQ(workspace.cursor().firstStep, 8);
    };
    choose(a);
    workspace.setCurrent(b);
    EXPECT_EQ(workspace.cursor().firstStep, -1) << "another run";
    EXPECT_EQ(workspace.cursor().step, 9) << "the cursor stays where it was";

    workspace.setCurrent(a);
    workspace.setCompare(b);
    choose(a);
    workspace.setCurrent(b);
    EXPECT_EQ(workspace.cursor().firstStep, 8) << "the same steps of the run beside it";
    EXPECT_EQ(workspace.cursor().lastStep, 12);
    workspace.setCompare(shorter);
    workspace.setCurrent(shorter);
    EXPECT_EQ(workspace.cursor().firstStep, -1) << "it does not have them";

    workspace.setCompare(std::nullopt);
    choose(a);
    workspace.addLive({file("live.kvtrace"), 1}); // a session was started: it has no step yet
    EXPECT_EQ(workspace.cursor().firstStep, -1);
    choose(a);
    workspace.close(a);
    EXPECT_EQ(workspace.cursor().firstStep, -1);
}

TEST_F(WorkspaceTest, ARangeBehindTheEndIsNone) {
    open(recorded("a.kvtrace", {.decodeSteps = 20}));
    workspace.setCursor({.step = 3, .firstStep = 40, .lastStep = 60});
    EXPECT_EQ(workspace.cursor().firstStep, -1);
    EXPECT_EQ(workspace.cursor().lastStep, -1);
    workspace.setCursor({.step = 3, .firstStep = 15, .lastStep = 60});
    EXPECT_EQ(workspace.cursor().lastStep, 20);
}

TEST_F(WorkspaceTest, NeverComparesARunWithItself) {
    open(recorded("a.kvtrace", {}));
    const RunKey a = workspace.current()->key;
    open(recorded("b.kvtrace", {.seed = 2}));
    const RunKey b = workspace.current()->key;
    workspace.setCompare(b);
    EXPECT_FALSE(workspace.compare());
    workspace.setCompare(a);
    ASSERT_TRUE(workspace.compare());
    QSignalSpy changed(&workspace, &Workspace::compareChanged);
    workspace.setCurrent(a);
    ASSERT_TRUE(workspace.compare());
    EXPECT_EQ(workspace.compare()->key, b) << "the run shown before takes the place of the one shown now";
    EXPECT_EQ(changed.count(), 1);
}

TEST_F(WorkspaceTest, ComparesAsManyRunsAsAreAskedForInTheirOrder) {
    std::vector<RunKey> keys;
    for (const char* name : {"a.kvtrace", "b.kvtrace", "c.kvtrace", "d.kvtrace"}) {
        open(recorded(name, {.decodeSteps = 4}));
        keys.push_back(workspace.current()->key);
    }
    workspace.setCurrent(keys[0]);
    const auto sides = [&] {
        std::vector<int> found;
        for (const OpenRun* run : workspace.sides())
            found.push_back(int(std::find(keys.begin(), keys.end(), run->key) - keys.begin()));
        return found;
    };
    EXPECT_EQ(sides(), (std::vector{0}));
    for (const std::size_t each : {2u, 1u, 3u}) workspace.setCompared(keys[each], true);
    EXPECT_EQ(sides(), (std::vector{0, 2, 1, 3}));
    workspace.setCompared(keys[0], true); // no effect: the run is the shown one
    workspace.setCompared(keys[1], true); // no effect: the run is compared already
    EXPECT_EQ(sides(), (std::vector{0, 2, 1, 3}));
    workspace.setCurrent(keys[1]);
    EXPECT_EQ(sides(), (std::vector{1, 2, 0, 3})) << "two exchange their places, the others keep theirs";
    workspace.setCompared(keys[2], false);
    EXPECT_EQ(sides(), (std::vector{1, 0, 3}));
    workspace.close(keys[0]);
    EXPECT_EQ(sides(), (std::vector{1, 3}));
    workspace.close(keys[1]); // its neighbour is shown, and compared with nothing if that was in the comparison
    EXPECT_EQ(sides().size() + (workspace.current()->key == keys[3] ? 1 : 0), 2u);
    workspace.setCompare(std::nullopt);
    EXPECT_EQ(sides().size(), 1u);
}

TEST_F(WorkspaceTest, ClosingTheCurrentRunShowsANeighbour) {
    open(recorded("a.kvtrace", {}));
    const RunKey a = workspace.current()->key;
    open(recorded("b.kvtrace", {.seed = 2}));
    workspace.close(workspace.current()->key);
    ASSERT_TRUE(workspace.current());
    EXPECT_EQ(workspace.current()->key, a);
    workspace.close(a);
    EXPECT_FALSE(workspace.current());
    EXPECT_TRUE(workspace.runs().empty());
}

TEST_F(WorkspaceTest, DropsLateAnswersAndInterruptsTheirRead) {
    open(recorded("a.kvtrace", {.layers = 1, .kvHeads = 1, .decodeSteps = 1000}));
    std::mutex mutex;
    std::condition_variable entered;
    bool inside = false, interrupted = false;
    QObject context;
    int answers = 0;
    workspace.query<int>(
        &context, "slot", workspace.current()->key,
        [&](TraceReader& reader) {
            {
                const std::lock_guard lock(mutex);
                inside = true;
            }
            entered.notify_all();
            for (;;) { // ends only because the reader is told to give up
                try {
                    reader.steps(1);
                    reader.selections(1, 0, 0, 0);
                } catch (const Error& error) {
                    const std::lock_guard lock(mutex);
                    interrupted = error.kind == ErrorKind::Cancelled;
                    throw;
                }
            }
            return 1;
        },
        [&](int) { answers += 100; });
    {
        std::unique_lock lock(mutex);
        ASSERT_TRUE(entered.wait_for(lock, std::chrono::seconds(10), [&] { return inside; }));
    }
    workspace.query<int>(
        &context, "slot", workspace.current()->key, [](TraceReader&) { return 2; },
        [&](int value) { answers += value; });
    ASSERT_TRUE(idle());
    EXPECT_EQ(answers, 2);
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(interrupted);
}

TEST_F(WorkspaceTest, DropsAnswersWhoseContextDied) {
    open(recorded("a.kvtrace", {}));
    auto context = std::make_unique<QObject>();
    bool answered = false;
    workspace.query<int>(
        context.get(), "slot", workspace.current()->key, [](TraceReader& reader) { return reader.stepCount(1); },
        [&](int) { answered = true; });
    context.reset();
    ASSERT_TRUE(idle());
    EXPECT_FALSE(answered);
}

TEST_F(WorkspaceTest, ReportsAFailedReadInOneSentence) {
    open(recorded("a.kvtrace", {}));
    QSignalSpy failed(&workspace, &Workspace::failed);
    QObject context;
    workspace.query<int>(
        &context, "slot", workspace.current()->key,
        [](TraceReader&) -> int { throw Error(ErrorKind::BadInput, "block 7 is damaged", "record it again"); },
        [](int) { FAIL() << "a failed read has no answer"; });
    ASSERT_TRUE(idle());
    ASSERT_EQ(failed.count(), 1);
    EXPECT_EQ(failed[0][0].toString(), QStringLiteral("block 7 is damaged; record it again"));
}

TEST_F(WorkspaceTest, SignalsBusyOnceAroundOverlappingReads) {
    open(recorded("a.kvtrace", {}));
    QSignalSpy busy(&workspace, &Workspace::busyChanged);
    QObject context;
    for (const char* slot : {"one", "two", "three"})
        workspace.query<int>(
            &context, slot, workspace.current()->key, [](TraceReader& reader) { return reader.stepCount(1); },
            [](int) {});
    ASSERT_TRUE(idle());
    ASSERT_EQ(busy.count(), 2);
    EXPECT_TRUE(busy[0][0].toBool());
    EXPECT_FALSE(busy[1][0].toBool());
}

TEST_F(WorkspaceTest, FollowsALiveRunAndCoalescesItsNews) {
    const QString path = file("live.kvtrace");
    RunShape shape;
    shape.decodeSteps = 200;
    Recorder recorder(path.toStdString(), {.onCommit = [this](std::int64_t) { workspace.traceAdvanced(); }});
    recorder.beginRun(synthetic::infoOf(shape));
    recorder.flush();
    QSignalSpy advanced(&workspace, &Workspace::advanced);
    workspace.addLive({path, recorder.runId()});
    ASSERT_TRUE(workspace.current());
    EXPECT_TRUE(workspace.current()->live);
    synthetic::RunGenerator generator(shape);
    QElapsedTimer clock;
    clock.start();
    for (int step = 0; step < generator.steps(); ++step) {
        generator.recordNext(recorder);
        recorder.flush(); // a commit, and so a notification, for every step
        QCoreApplication::processEvents();
    }
    ASSERT_TRUE(waitFor([&] { return workspace.current()->row.steps == generator.steps(); }));
    EXPECT_LE(advanced.count(), clock.elapsed() / 250 + 3);
    recorder.endRun(RunStatus::Finished, "");
    recorder.flush();
    workspace.finishLive(workspace.current()->key);
    ASSERT_TRUE(waitFor([&] { return workspace.current()->row.status == RunStatus::Finished; }));
    EXPECT_FALSE(workspace.current()->live);
}

/// The last row of a run may be read before its session says that it is over; the views are told all the same.
TEST_F(WorkspaceTest, TellsOfTheEndOfARunWhoseLastRowWasReadBefore) {
    const QString path = file("live.kvtrace");
    Recorder recorder(path.toStdString(), {});
    recorder.beginRun(synthetic::infoOf({}));
    recorder.flush();
    workspace.addLive({path, recorder.runId()});
    recorder.endRun(RunStatus::Stopped, "");
    recorder.flush();
    workspace.traceAdvanced();
    ASSERT_TRUE(waitFor([&] { return workspace.current()->row.status == RunStatus::Stopped && workspace.idle(); }));
    EXPECT_TRUE(workspace.current()->live);
    QSignalSpy advanced(&workspace, &Workspace::advanced);
    workspace.finishLive(workspace.current()->key);
    EXPECT_EQ(advanced.count(), 1);
    EXPECT_FALSE(workspace.current()->live);
}

TEST_F(WorkspaceTest, SeesARunGrowThatAnotherProgramRecords) {
    const QString path = file("foreign.kvtrace");
    RunShape shape;
    Recorder recorder(path.toStdString(), {});
    recorder.beginRun(synthetic::infoOf(shape));
    synthetic::RunGenerator generator(shape);
    const auto next = [&] {
        generator.recordNext(recorder);
        recorder.flush();
    };
    next();
    open(path);
    EXPECT_EQ(workspace.current()->row.steps, 1);
    next();
    next();
    EXPECT_TRUE(waitFor([&] { return workspace.current()->row.steps == 3; })) << "nobody calls traceAdvanced here";
    recorder.endRun(RunStatus::Finished, "");
}

TEST_F(WorkspaceTest, ReopensAFileThatWasReplaced) {
    const QString path = recorded("a.kvtrace", {.decodeSteps = 5});
    open(path);
    EXPECT_EQ(workspace.current()->row.steps, 6);
    ASSERT_TRUE(QFile::remove(path));
    recorded("a.kvtrace", {.decodeSteps = 9});
    open(path);
    EXPECT_EQ(workspace.current()->row.steps, 10);
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
