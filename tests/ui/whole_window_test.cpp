// Nothing false in the whole window: whatever was shown before, its views, tool bar, inspector and tokens say what
// those of a fresh window say, which has never shown anything else.
// KVSCOPE_PICTURES_SEED: another order; KVSCOPE_PICTURES_MOVES: so many openings instead of 18.
#include "profiler/merge/merge.h"
#include "profiler/record/recorder.h"
#include "tests/profiler/sql_rows.h"
#include "tests/profiler/synthetic_denoise.h"
#include "tests/profiler/synthetic_run.h" // before any Qt header: its member `slots` is a macro there
#include "tests/profiler/synthetic_serving.h"
#include "tests/support/places.h"
#include "tests/ui/window_fixture.h"

#include "ui/look/theme.h"
#include "ui/widgets/inspector.h"
#include "ui/widgets/run_statistics.h"
#include "ui/widgets/token_strip.h"

#include <QLabel>
#include <QTabBar>
#include <QToolTip>

#include <map>
#include <random>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

constexpr Cursor kCursor{.step = 3, .layer = 1};

class WholeWindow : public WindowTest {
protected:
    QString file(const char* name) const { return folder.filePath(QLatin1String(name)); }
    QString synthetic(const char* name, const synthetic::RunShape& shape) const {
        Recorder recorder(file(name).toStdString(), {});
        RunInfo info = synthetic::infoOf(shape);
        info.name = name;
        recorder.beginRun(info);
        synthetic::RunGenerator generator(shape);
        generator.recordNext(recorder, generator.steps());
        recorder.endRun(RunStatus::Finished, {});
        recorder.flush();
        return file(name);
    }
    QString edited(const QString& path, const char* statement) const {
        test::sql(path.toStdString(), statement, SQLITE_OPEN_READWRITE);
        return path;
    }
    /// Two ranks of one model in one trace, each a run.
    QString twoRanks() const {
        std::vector<std::string> ranks;
        for (const char* rank : {"0", "1"}) {
            const QString path = synthetic(rank, {.layers = 2, .decodeSteps = 10, .seed = std::uint64_t(rank[0])});
            const std::string facts = "(1, 'group', 'job'), (1, 'world', '2'), (1, 'rank', '" + std::string(rank);
            edited(path, ("INSERT OR REPLACE INTO run_meta VALUES " + facts + "')").c_str());
            ranks.push_back(path.toStdString());
        }
        mergeTraces(ranks, file("ranks").toStdString(), false);
        return file("ranks");
    }
    /// Runs that have nothing in common: a sparse one, full attention, pauses between steps, a real GPU's, hits that
    /// are not known, rows that break rules, a server's, a model's that denoises, ranks of one model.
    QStringList traces() const {
        QStringList paths;
        paths << synthetic("sparse", {.layers = 3, .decodeSteps = 24, .oracle = true});
        paths << synthetic("dense", {.layers = 2, .denseLayers = 2, .decodeSteps = 15, .method = "full"});
        paths << file("pauses");
        recordSmallTrace(paths.back(), {.decodeSteps = 30, .name = "pauses"});
        paths << file("gpu");
        QFile::copy(QString::fromStdString(test::source("resources/samples/h200-nosa-tiny.kvtrace")), paths.back());
        paths << edited(synthetic("unknown", {.layers = 2, .decodeSteps = 12, .seed = 3}),
                        R"(UPDATE run_meta SET value = '["selections","step_times"]' WHERE key = 'knows')");
        paths << edited(synthetic("broken", {.layers = 4, .decodeSteps = 18, .seed = 4}),
                        "UPDATE selection SET hits = hits + 1 WHERE id >> 30 = (1 << 25 | 4)");
        paths << file("served");
        synthetic::recordServing(paths.back().toStdString(), 9, true, RunStatus::Finished, true,
                                 synthetic::kServerFacts);
        paths << file("denoised");
        synthetic::recordDenoising(paths.back().toStdString(), {.seed = 5});
        paths << twoRanks();
        return paths;
    }

    struct Shown {
        QStringList texts;
        QImage picture;
    };
    /// Texts of all labels that can be seen in a part of the window.
    static QStringList textsOf(const QWidget* part) {
        QStringList texts;
        if (part && !part->isVisible()) return texts;
        for (const QLabel* label : part->findChildren<QLabel*>())
            if (label->isVisibleTo(part) && !label->text().isEmpty()) texts << label->text();
        return texts;
    }
    static void open(MainWindow& window, const QString& path, const QString& view) {
        window.showView(view);
        window.openFiles({path});
        ASSERT_TRUE(until([&] {
            const OpenRun* run = window.workspace().current();
            return run && run->key.path == path && window.workspace().idle();
        }));
    }
    static Shown shownIn(MainWindow& window) {
        Workspace& workspace = window.workspace();
        workspace.setCursor(kCursor);
        window.currentView()->resetZoom();
        QToolTip::hideText();
        if (QWidget* focused = QApplication::focusWidget()) focused->clearFocus();
        for (int quiet = 0; quiet < 3;) { // an answer may lead to another question
            QCoreApplication::processEvents();
            EXPECT_TRUE(until([&] { return isSettled(workspace); }));
            QTest::qWait(5);
            quiet = workspace.idle() ? quiet + 1 : 0;
        }
        Shown shown;
        shown.texts << textsOf(window.findChild<RunStatistics*>()) << QStringLiteral("-- inspector")
                    << textsOf(&window.inspector()) << QStringLiteral("-- view") << textsOf(window.currentView());
        shown.picture = window.currentView()->grab().toImage();
        return shown;
    }
    static QString firstDifference(const QStringList& seen, const QStringList& wanted) {
        for (qsizetype i = 0; i < std::max(seen.size(), wanted.size()); ++i)
            if (seen.value(i) != wanted.value(i))
                return QStringLiteral("“%1” instead of “%2”").arg(seen.value(i), wanted.value(i));
        return {};
    }
};

TEST_F(WholeWindow, SaysWhatAFreshOneSaysWhateverWasShownBefore) {
    const QStringList paths = traces();
    const QSize size(1500, 950);
    const auto first = makeWindow(true, size);
    MainWindow* second = first->newWindow();
    second->resize(size);
    second->action("linkCursor")->setChecked(false);
    MainWindow* const windows[] = {first.get(), second};
    const auto given = [](const char* variable, int usual) {
        bool isNumber = false;
        const int value = qEnvironmentVariableIntValue(variable, &isNumber);
        return isNumber ? value : usual;
    };
    std::mt19937 random(std::mt19937::result_type(given("KVSCOPE_PICTURES_SEED", 2611)));
    const auto below = [&](std::size_t limit) { return std::size_t(random() % limit); };
    const int moves = given("KVSCOPE_PICTURES_MOVES", 18);
    std::map<std::pair<QString, QString>, Shown> fresh;
    for (int move = 0; move < moves; ++move) {
        MainWindow& window = *windows[below(2)];
        const QString& path = paths[qsizetype(below(std::size_t(paths.size())))];
        QString view = QLatin1String(views()[below(views().size())].id);
        // The roofline and the table show all runs that are open, and Compare offers them.
        if (view == QLatin1String("roofline") || view == QLatin1String("compare") || view == QLatin1String("runs") ||
            view == QLatin1String("sql"))
            view = QStringLiteral("timeline");
        SCOPED_TRACE(QStringLiteral("%1: %2 of %3").arg(move).arg(view, QFileInfo(path).fileName()).toStdString());
        if (window.workspace().current()) { // a range chosen, a span hovered over: of the run shown before
            window.workspace().setCursor({.step = 2, .firstStep = 1, .lastStep = 6, .block = 1});
            QCoreApplication::processEvents();
        }
        const bool another = !window.workspace().current() || window.workspace().current()->key.path != path;
        open(window, path, view);
        ASSERT_FALSE(HasFatalFailure());
        if (another) {
            EXPECT_EQ(window.workspace().cursor().firstStep, -1) << "the range belongs to the run before";
        }
        if (!fresh.contains({path, view})) {
            const auto alone = makeWindow(true, size);
            open(*alone, path, view);
            ASSERT_FALSE(HasFatalFailure());
            fresh[{path, view}] = shownIn(*alone);
        }
        const Shown& wanted = fresh[{path, view}];
        Shown seen;
        EXPECT_TRUE(until([&] { // some views think on beside the workspace
            seen = shownIn(window);
            return seen.texts == wanted.texts &&
                   (seen.picture == wanted.picture || seen.picture.size() != wanted.picture.size());
        })) << firstDifference(seen.texts, wanted.texts).toStdString();
        EXPECT_EQ(seen.picture.size(), wanted.picture.size()) << "the window is another: the pictures say nothing";
    }
    second->close();
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
