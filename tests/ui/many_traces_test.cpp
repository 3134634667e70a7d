// Two windows and six traces in random order: whatever was shown before, a view draws what a fresh one draws.
// KVSCOPE_PICTURES_SEED: another order; KVSCOPE_PICTURES_MOVES: so many openings instead of 24.
#include "tests/ui/view_fixture.h"
#include "tests/ui/window_fixture.h"

#include "profiler/record/recorder.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_denoise.h"
#include "tests/profiler/synthetic_run.h"
#include "tests/profiler/synthetic_serving.h"
#include "ui/frame/proposals.h"
#include "ui/widgets/session_form.h"

#include <QScrollArea>
#include <QToolTip>

#include <random>
#include <span>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

/// The views that have something to show of a run: of one that decodes token by token, of block diffusion, of a server.
/// Others name views instead, with buttons that only a window has.
std::span<const char* const> viewsOf(int number) {
    static constexpr const char* kDecoded[] = {"timeline",  "locality", "selection", "transfers",
                                               "breakdown", "insights", "cache",     "waterfall"};
    static constexpr const char* kDenoised[] = {"denoising"};
    static constexpr const char* kServed[] = {"serving", "rates", "slo"};
    if (number < 3) return kDecoded;
    return number == 3 ? std::span<const char* const>(kDenoised) : kServed;
}
constexpr Cursor kCursor{.step = 3, .layer = 1};

class ManyTraces : public WindowTest {
protected:
    /// A run of its own shape, with kernels whose names have other numbers than in the other runs.
    /// Views tell runs of one name apart by more than that, and a fresh one knows no other run.
    static QString named(const QString& path, int number) {
        test::sql(path.toStdString(), "UPDATE run SET name = 'run " + std::to_string(number) + "'",
                  SQLITE_OPEN_READWRITE);
        return path;
    }
    /// The last two are of servers, one with the steps of its rows, and the one before is of block diffusion.
    QString trace(int number) {
        const QString path = folder.filePath(QStringLiteral("run%1.kvtrace").arg(number));
        if (number == 3) {
            synthetic::recordDenoising(path.toStdString(), {});
            return named(path, number);
        }
        if (number >= 4) {
            synthetic::recordServing(path.toStdString(), 4 + 4 * number, number == 4, RunStatus::Finished, number == 4,
                                     synthetic::kServerFacts);
            return named(path, number);
        }
        const synthetic::RunShape shape{.layers = 2 + number % 3,
                                        .kvHeads = 1 + number % 2,
                                        .denseLayers = number == 2 ? 1 : 0,
                                        .decodeSteps = 8 + 5 * number,
                                        .seed = std::uint64_t(number) + 1};
        Recorder recorder(path.toStdString(), {});
        RunInfo info = synthetic::infoOf(shape);
        info.name = "run " + std::to_string(number);
        recorder.beginRun(info);
        std::vector<SpanRecord> spans;
        synthetic::RunGenerator generator(shape);
        for (int i = 0; i < generator.steps(); ++i) {
            auto step = recorder.acquire();
            generator.fillNext(*step, RecordLevel::Full);
            for (int kernel = 0; kernel < 3; ++kernel)
                spans.push_back({step->step, 0, SpanRecord::Kind::Kernel, "stream 7",
                                 "kernel " + std::to_string((number + kernel) % 5),
                                 step->startNs + kernel * step->durationNs / 3, step->durationNs / 4, 0});
            recorder.take(std::move(step));
        }
        recorder.take(std::move(spans));
        recorder.endRun(RunStatus::Finished, {});
        recorder.flush();
        return path;
    }
    static QImage grabbed(View& view, Workspace& workspace) {
        workspace.setCursor(kCursor);
        view.resetZoom();
        QToolTip::hideText();
        if (QWidget* focused = QApplication::focusWidget())
            focused->clearFocus();        // a frame around what has the focus is no part of what a view shows
        for (int quiet = 0; quiet < 3;) { // an answer may lead to another question
            QCoreApplication::processEvents();
            EXPECT_TRUE(until([&] { return isSettled(workspace); }));
            QTest::qWait(5);
            quiet = workspace.idle() ? quiet + 1 : 0;
        }
        return view.grab().toImage();
    }
    /// What is around a view in the window: its style sheet looks at that, and its buttons ask for the window's
    /// sessions.
    class Frame final : public QScrollArea, public RunsChanges {
    public:
        explicit Frame(const RunsChanges& runner) : runner_(runner) {}
        QString whyNoRun() const override { return runner_.whyNoRun(); }
        void runWith(const ProposedChange&) override {}

    private:
        const RunsChanges& runner_;
    };

    /// What a view draws that has shown nothing else, in a frame that runs sessions where the window does.
    static QImage fresh(const char* id, const QString& path, QSize size, const RunsChanges& runner) {
        Workspace workspace;
        workspace.open(path);
        EXPECT_TRUE(until([&] { return workspace.idle() && workspace.current(); }));
        std::unique_ptr<View> view;
        for (const ViewEntry& entry : views())
            if (std::string_view(entry.id) == id) view.reset(entry.make(workspace, nullptr));
        view->applyTheme(Theme::current());
        Frame frame(runner);
        frame.setWidgetResizable(true);
        frame.setFrameShape(QFrame::NoFrame);
        View& shown = *view;
        frame.setWidget(view.release());
        frame.resize(size);
        frame.show();
        EXPECT_TRUE(QTest::qWaitForWindowExposed(&frame));
        shown.resize(size);
        return grabbed(shown, workspace);
    }
};

TEST_F(ManyTraces, LookAsInAFreshWindowWhateverWasShownBefore) {
    QStringList paths;
    for (int number = 0; number < 6; ++number) paths << trace(number);
    const auto first = makeWindow(true, {1300, 850});
    MainWindow* second = first->newWindow();
    second->resize(1300, 850);
    second->action("linkCursor")->setChecked(false); // each goes its own way
    MainWindow* const windows[] = {first.get(), second};
    const auto given = [](const char* variable, int usual) {
        bool isNumber = false;
        const int value = qEnvironmentVariableIntValue(variable, &isNumber);
        return isNumber ? value : usual;
    };
    std::mt19937 random(std::mt19937::result_type(given("KVSCOPE_PICTURES_SEED", 19)));
    const auto below = [&](std::size_t limit) { return std::size_t(random() % limit); };
    const int moves = given("KVSCOPE_PICTURES_MOVES", 24);
    for (int move = 0; move < moves; ++move) {
        MainWindow& window = *windows[below(2)];
        const int number = int(below(6));
        const QString& path = paths[number];
        const char* view = viewsOf(number)[below(viewsOf(number).size())];
        SCOPED_TRACE(std::to_string(move) + ": " + view + " of " + path.toStdString());
        window.showView(QString::fromLatin1(view));
        window.openFiles({path}); // again, where it is open already
        ASSERT_TRUE(until([&] {
            return window.workspace().current() && window.workspace().current()->key.path == path &&
                   window.workspace().idle();
        }));
        ASSERT_NE(window.currentView(), nullptr);
        // Some views think on beside the workspace, and one of the two pictures may be too early.
        ASSERT_TRUE(until([&] {
            return grabbed(*window.currentView(), window.workspace()) ==
                   fresh(view, path, window.currentView()->size(), window);
        }));
    }
    second->close();
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
