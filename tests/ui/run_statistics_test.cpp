// The tool bar's numbers belong to the run that the window shows: opened or live, in every window.
#include "tests/ui/window_fixture.h"

#include "profiler/format/trace_keys.h"
#include "profiler/read/summary.h"
#include "tests/profiler/renumbered_step.h"
#include "ui/models/format.h"
#include "ui/session/session_controller.h"
#include "ui/widgets/run_statistics.h"
#include "ui/widgets/session_form.h"

#include <QComboBox>
#include <QLabel>
#include <QSpinBox>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class RunStatisticsTest : public WindowTest {
protected:
    QString recorded(const QString& name, const SmallTrace& shape) {
        const QString path = folder.filePath(name);
        recordSmallTrace(path, shape);
        return path;
    }
    static QString number(MainWindow& window, const char* name) {
        const auto* label = window.findChild<QLabel*>(QString::fromLatin1(name));
        return label && label->isVisible() ? label->text() : QStringLiteral("(hidden)");
    }
    static QStringList numbers(MainWindow& window) {
        return {number(window, "tokenRate"), number(window, "hitRate"), number(window, "locality")};
    }
    /// What a report says of the same run.
    static QStringList wanted(const QString& path) {
        const RunSummary summary = summarize(TraceReader(path.toStdString()), 1);
        return {formatRate(summary.tokensPerSecond),
                QString::number(summary.hitRate * 100, 'f', 1) + QStringLiteral(" %"),
                formatRatio(summary.localityMean)};
    }
    static void open(MainWindow& window, const QString& path) {
        window.openFiles({path});
        ASSERT_TRUE(until([&] {
            return window.workspace().current() && window.workspace().current()->key.path == path &&
                   window.workspace().idle();
        }));
    }
};

TEST_F(RunStatisticsTest, FollowTheRunThatIsShown) {
    const QString a = recorded("a.kvtrace", {.missesPerHead = 1}),
                  b = recorded("b.kvtrace", {.decodeSteps = 9, .missesPerHead = 0, .stepNs = 1'000'000});
    const auto window = makeWindow();
    EXPECT_EQ(number(*window, "tokenRate"), QStringLiteral("(hidden)")) << "no run, no numbers";
    open(*window, a);
    ASSERT_NE(wanted(a), wanted(b));
    EXPECT_TRUE(until([&] { return numbers(*window) == wanted(a); })) << numbers(*window).join(' ').toStdString();
    open(*window, b);
    EXPECT_TRUE(until([&] { return numbers(*window) == wanted(b); })) << numbers(*window).join(' ').toStdString();
    window->workspace().setCurrent({a, 1});
    EXPECT_TRUE(until([&] { return numbers(*window) == wanted(a); })) << numbers(*window).join(' ').toStdString();

    MainWindow* second = window->newWindow();
    ASSERT_TRUE(until([&] { return second->workspace().current() && second->workspace().idle(); }));
    EXPECT_TRUE(until([&] { return numbers(*second) == wanted(a); })) << numbers(*second).join(' ').toStdString();
    second->workspace().setCurrent({b, 1});
    EXPECT_TRUE(until([&] { return numbers(*second) == wanted(b); }));
    EXPECT_EQ(numbers(*window), wanted(a)) << "each window shows its own";
    second->close();

    for (const QString& path : {a, b}) window->workspace().close({path, 1});
    EXPECT_TRUE(until([&] { return number(*window, "tokenRate") == QStringLiteral("(hidden)"); }));
}

TEST_F(RunStatisticsTest, FollowTheSwitchForColdStepsInEveryWindow) {
    const QString a = recorded("a.kvtrace", {.missesPerHead = 1});
    const auto window = makeWindow();
    open(*window, a);
    MainWindow* second = window->newWindow();
    ASSERT_TRUE(until([&] { return second->workspace().current() && second->workspace().idle(); }));
    const QStringList without = wanted(a);
    ASSERT_TRUE(until([&] { return numbers(*window) == without && numbers(*second) == without; }));
    trigger(*window, "countCold");
    const QStringList with = wanted(a);
    ASSERT_NE(with, without) << "the cold step misses every block";
    EXPECT_TRUE(until([&] { return numbers(*window) == with; })) << numbers(*window).join(' ').toStdString();
    EXPECT_TRUE(until([&] { return numbers(*second) == with; })) << numbers(*second).join(' ').toStdString();
    EXPECT_TRUE(second->action("countCold")->isChecked()) << "one switch for all windows";
    trigger(*second, "countCold");
    EXPECT_TRUE(until([&] { return numbers(*window) == without && numbers(*second) == without; }));
    EXPECT_FALSE(window->action("countCold")->isChecked());
    second->close();
}

TEST_F(RunStatisticsTest, StayWithTheShownRunWhileAnotherIsRecorded) {
    const QString a = recorded("a.kvtrace", {});
    const auto window = makeWindow();
    open(*window, a);
    ASSERT_TRUE(until([&] {
        return window->form().problem().isEmpty() && window->controller().state() == SessionController::State::Idle;
    }));
    window->form().findChild<QComboBox*>("promptKind")->setCurrentIndex(int(PromptSource::Kind::Needle));
    window->form().findChild<QSpinBox*>("needleTokens")->setValue(300);
    window->form().findChild<QSpinBox*>("needleCount")->setValue(1);
    window->form().findChild<QSpinBox*>("maxNewTokens")->setValue(40);
    window->form().setValues({{"stopAtEos", false}});
    QSignalSpy finished(&window->controller(), &SessionController::finished);
    window->action("run")->trigger();
    Workspace& workspace = window->workspace();
    ASSERT_TRUE(until([&] { return workspace.current() && workspace.current()->key.path != a; }));
    const QString live = workspace.current()->key.path;
    workspace.setCurrent({a, 1}); // the session goes on behind it
    EXPECT_TRUE(until([&] { return numbers(*window) == wanted(a); })) << numbers(*window).join(' ').toStdString();
    ASSERT_TRUE(until([&] { return !finished.isEmpty(); }));
    QTest::qWait(600);
    EXPECT_EQ(numbers(*window), wanted(a)) << "a session that is not shown changes nothing here";
    workspace.setCurrent({live, 1});
    EXPECT_TRUE(until([&] { return numbers(*window) == wanted(live); }))
        << numbers(*window).join(' ').toStdString() << " not " << wanted(live).join(' ').toStdString();
}

TEST_F(RunStatisticsTest, GrowWithALiveRun) {
    const QString path = folder.filePath(QStringLiteral("live.kvtrace"));
    recordSmallTrace(path, {.decodeSteps = 3});
    Workspace workspace;
    workspace.addLive({path, 1});
    RunStatistics statistics(workspace);
    statistics.setAttribute(Qt::WA_DontShowOnScreen);
    const auto text = [&](const char* name) {
        return statistics.findChild<QLabel*>(QString::fromLatin1(name))->text();
    };
    EXPECT_TRUE(until([&] { return text("tokenRate") == wanted(path)[0] && text("locality") == wanted(path)[2]; }))
        << text("tokenRate").toStdString() << ' ' << text("locality").toStdString();
}

/// Rows bound the work: it took as many reads as the number has pieces.
TEST_F(RunStatisticsTest, CountAStepWhoseNumberIsFarAway) {
    const QString path = recorded("far.kvtrace", {.decodeSteps = 9, .missesPerHead = 1});
    test::renumberStep(path.toStdString(), 9, trace::kMaxStep);
    const auto window = makeWindow();
    open(*window, path);
    EXPECT_TRUE(until([&] { return numbers(*window) == wanted(path); })) << numbers(*window).join(' ').toStdString();
}

TEST(Rates, OfFiveDigitsAreGroupedAsElsewhere) {
    EXPECT_EQ(formatRate(41.74), QStringLiteral("41.7"));
    EXPECT_EQ(formatRate(999.4), QStringLiteral("999"));
    EXPECT_EQ(formatRate(10'447.3), QStringLiteral("10,447"));
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
