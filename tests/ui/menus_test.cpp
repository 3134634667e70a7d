// Context menus by mouse and by key, the way on that every empty page offers, and files as they are dropped.
#include "tests/ui/view_fixture.h"

#include "tests/ui/window_fixture.h"

#include "tests/profiler/sql_rows.h"
#include "ui/frame/small_widgets.h"
#include "ui/plots/outliers.h"
#include "ui/widgets/inspector.h"
#include "ui/widgets/run_list.h"
#include "ui/widgets/session_form.h"
#include "ui/widgets/token_strip.h"

#include <QClipboard>
#include <QComboBox>
#include <QContextMenuEvent>
#include <QDir>
#include <QDragEnterEvent>
#include <QDropEvent>
#include <QLabel>
#include <QLineEdit>
#include <QListView>
#include <QMenu>
#include <QMimeData>
#include <QPlainTextEdit>
#include <QPushButton>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class MenusTest : public WindowTest {
protected:
    static PlotView& plotOf(MainWindow& window) { return dynamic_cast<PlotView&>(*window.currentView()); }
    static void ask(QWidget& widget, QContextMenuEvent::Reason reason, QPoint at) {
        QContextMenuEvent event(reason, at, widget.mapToGlobal(at));
        QApplication::sendEvent(&widget, &event);
    }
    template <class Parent> static QMenu* menuOf(Parent& parent, const char* name) {
        QMenu* shown = nullptr;
        for (QMenu* menu : parent.template findChildren<QMenu*>(QLatin1String(name)))
            if (menu->isVisible()) shown = menu;
        return shown;
    }
    static bool choose(const QMenu& menu, const QString& text) {
        for (QAction* action : menu.actions())
            if (action->text() == text && action->isEnabled()) {
                action->trigger();
                return true;
            }
        return false;
    }
    static QPushButton* button(MainWindow& window, const QString& text) {
        for (auto* each : window.currentView()->findChildren<QPushButton*>())
            if (each->text() == text && each->objectName().startsWith(QStringLiteral("emptyAction"))) return each;
        return nullptr;
    }
};

TEST_F(MenusTest, APlotsMenuShowsThePlaceUnderThePointerInAnotherView) {
    const auto window = windowOnTrace();
    window->showView("transfers");
    settle(*window);
    PlotView& plot = plotOf(*window);
    plot.canvas().replot();
    const QCPAxisRect* panel = plot.canvas().panels().front();
    ask(plot.canvas(), QContextMenuEvent::Mouse,
        {int(panel->axis(QCPAxis::atBottom)->coordToPixel(4)), panel->rect().center().y()});
    QMenu* menu = menuOf(plot, "plotMenu");
    ASSERT_NE(menu, nullptr);
    auto* others = menu->findChild<QMenu*>("showIn");
    ASSERT_NE(others, nullptr);
    QStringList titles;
    for (const QAction* action : others->actions()) titles << action->text();
    EXPECT_TRUE(titles.contains("Selection"));
    EXPECT_FALSE(titles.contains("Transfers")) << "it is in front already";
    ASSERT_TRUE(choose(*others, "Selection"));
    menu->close();
    EXPECT_EQ(window->workspace().cursor().step, 4);
    settle(*window);
    EXPECT_EQ(window->currentView()->accessibleName(), "Selection");
}

TEST_F(MenusTest, TheMenuKeyOpensThePlotsMenuForTheCursor) {
    const auto window = windowOnTrace();
    window->workspace().setCursor({.step = 3, .layer = 1});
    window->showView("locality");
    settle(*window);
    PlotView& plot = plotOf(*window);
    plot.canvas().replot();
    plot.canvas().setFocus();
    ask(plot.canvas(), QContextMenuEvent::Keyboard, plot.canvas().rect().center());
    QMenu* menu = menuOf(plot, "plotMenu");
    ASSERT_NE(menu, nullptr);
    ASSERT_TRUE(choose(*menu->findChild<QMenu*>("showIn"), "Breakdown"));
    menu->close();
    EXPECT_EQ(window->workspace().cursor().step, 3) << "the cursor stays where it was";
}

TEST_F(MenusTest, WhatAPlotShowsOpensInTheSqlPage) {
    const auto window = windowOnTrace();
    window->showView("transfers");
    settle(*window);
    const QString statement = window->currentView()->sql();
    PlotView& plot = plotOf(*window);
    ask(plot.canvas(), QContextMenuEvent::Mouse, {50, 50});
    QMenu* menu = menuOf(plot, "plotMenu");
    ASSERT_NE(menu, nullptr);
    ASSERT_TRUE(choose(*menu, "Open in SQL page"));
    menu->close();
    EXPECT_EQ(window->currentView()->findChild<QPlainTextEdit*>()->toPlainText(), statement);
    EXPECT_TRUE(until([&] { return window->currentView()->exportCsv().count('\n') == 7; }))
        << "a header and six decode steps";
    window->showView("locality");
    settle(*window);
    const QString cells = window->currentView()->sql();
    trigger(*window, "openSql");
    EXPECT_EQ(window->currentView()->findChild<QPlainTextEdit*>()->toPlainText(), cells);
}

/// Every entry of the menu of every plot does what it says.
TEST_F(MenusTest, EveryViewCopiesAndZoomsFromItsMenu) {
    const auto window = windowOnTrace(true, {.decodeSteps = 40});
    const std::string trace = folder.filePath("small.kvtrace").toStdString();
    recordSmallTrace(folder.filePath("other.kvtrace"), {.decodeSteps = 40, .missesPerHead = 2});
    const RunKey first = window->workspace().current()->key;
    window->openFiles({folder.filePath("other.kvtrace")});
    ASSERT_TRUE(until([&] { return window->workspace().runs().size() == 2; }));
    window->workspace().setCurrent(first);
    window->workspace().setCompared(window->workspace().runs().back().key, true);
    int plots = 0, tables = 0, statements = 0;
    for (const ViewEntry& entry : views()) {
        window->showView(QLatin1String(entry.id));
        settle(*window);
        auto* plot = dynamic_cast<PlotView*>(window->currentView());
        for (PlotView* page : window->currentView()->findChildren<PlotView*>())
            if (!plot && page->isVisible()) plot = page;
        if (!plot || !plot->emptyText().isEmpty()) continue; // the timeline and the SQL page have menus of their own
        ASSERT_TRUE(until([&] { return window->workspace().idle(); }));
        ++plots;
        const auto trigger = [&](const char* text) {
            QApplication::clipboard()->clear();
            ask(plot->canvas(), QContextMenuEvent::Mouse, plot->canvas().rect().center());
            QMenu* menu = menuOf(*plot, "plotMenu");
            const bool done = menu && choose(*menu, QString::fromUtf8(text));
            if (menu) menu->close();
            return done;
        };
        const auto copied = [] { return QApplication::clipboard()->text(); };
        if (trigger("Copy as table")) {
            EXPECT_TRUE(until([&] { return !copied().isEmpty(); })) << entry.id;
            const QStringList lines = copied().split('\n', Qt::SkipEmptyParts);
            EXPECT_GT(lines.size(), 1) << entry.id;
            for (const QString& line : lines)
                EXPECT_EQ(line.count('\t'), lines[0].count('\t')) << entry.id << ": " << line.toStdString();
            ++tables;
        }
        ASSERT_TRUE(trigger("Copy image")) << entry.id;
        const QImage picture = QApplication::clipboard()->image();
        EXPECT_GT(picture.width(), plot->canvas().width()) << entry.id;
        if (trigger("Copy SQL")) {
            const test::SqlRows rows = test::sql(trace, copied().toStdString());
            EXPECT_GT(rows.columns.size(), 1u) << entry.id;
            EXPECT_FALSE(rows.rows.empty()) << entry.id << ": " << copied().toStdString();
            ++statements;
        }
        if (trigger("Reset zoom")) ADD_FAILURE() << entry.id << " was not zoomed";
        plot->canvas().setFocus();
        for (int i = 0; i < 3; ++i) QTest::keyClick(&plot->canvas(), Qt::Key_Plus);
        if (!plot->canvas().isZoomed()) continue; // the plot cannot be zoomed further
        EXPECT_TRUE(trigger("Undo zoom")) << entry.id;
        EXPECT_FALSE(plot->canvas().isZoomed()) << entry.id;
        EXPECT_TRUE(trigger("Redo zoom")) << entry.id;
        EXPECT_TRUE(plot->canvas().isZoomed()) << entry.id;
        EXPECT_TRUE(trigger("Reset zoom")) << entry.id;
        EXPECT_FALSE(plot->canvas().isZoomed()) << entry.id;
    }
    EXPECT_GE(plots, 7);
    EXPECT_GE(tables, 6);
    EXPECT_GE(statements, 5);
}

TEST_F(MenusTest, TheTokenStripCopiesCountsAndLeadsOn) {
    const auto window = windowOnTrace();
    TokenStrip& strip = *window->tokens().strip();
    ASSERT_TRUE(until([&] { return strip.lastStep() == 6; }));
    const QPoint at = strip.revealStep(2);
    ask(*strip.viewport(), QContextMenuEvent::Mouse, at);
    QMenu* menu = menuOf(window->tokens(), "tokenMenu");
    ASSERT_NE(menu, nullptr);
    ASSERT_TRUE(choose(*menu, "Copy this token"));
    EXPECT_EQ(QApplication::clipboard()->text(), " word2");
    ASSERT_TRUE(choose(*menu, "Copy the generated text"));
    EXPECT_EQ(QApplication::clipboard()->text(), " word0 word1 word2 word3 word4 word5 word6");
    menu->close();
    Cursor range = window->workspace().cursor();
    range.step = 4, range.firstStep = 3, range.lastStep = 5;
    window->workspace().setCursor(range);
    ask(strip, QContextMenuEvent::Keyboard, strip.rect().center());
    menu = menuOf(window->tokens(), "tokenMenu");
    ASSERT_NE(menu, nullptr);
    ASSERT_TRUE(choose(*menu, "Copy the text of steps 3 to 5"));
    EXPECT_EQ(QApplication::clipboard()->text(), " word3 word4 word5");
    ASSERT_TRUE(choose(*menu, "Count only steps 3 to 5"));
    EXPECT_EQ(window->workspace().filter().steps.text(), "3-5");
    ASSERT_TRUE(choose(*menu->findChild<QMenu*>("showIn"), "Selection"));
    menu->close();
    EXPECT_EQ(window->workspace().cursor().step, 4);
}

TEST_F(MenusTest, TheRunListsMenuComesWithTheKeyboardToo) {
    const auto window = windowOnTrace();
    auto* list = window->findChild<QListView*>("runList");
    list->setCurrentIndex(list->model()->index(0, 0));
    ask(*list, QContextMenuEvent::Keyboard, list->rect().bottomRight() - QPoint(2, 2)); // no run is there
    QMenu* menu = menuOf(*window, "runMenu");
    ASSERT_NE(menu, nullptr);
    ASSERT_TRUE(choose(*menu, "Copy file path"));
    EXPECT_TRUE(QApplication::clipboard()->text().endsWith("small.kvtrace"));
    menu->close();
}

class EmptyPages : public MenusTest {
protected:
    void on(MainWindow& window, const char* view) {
        window.showView(QLatin1String(view));
        settle(window);
    }
    QString text(MainWindow& window) { return plotOf(window).emptyText(); }
};

TEST_F(EmptyPages, FullAttentionSaysThatNothingWasChosenAndLeadsToTheTimes) {
    const QString path = folder.filePath("full.kvtrace");
    synthetic::recordFile(path.toStdString(), {.layers = 3, .denseLayers = 3, .method = "full"});
    const auto window = makeWindow();
    window->openFiles({path});
    ASSERT_TRUE(until([&] { return window->workspace().current() != nullptr; }));
    on(*window, "locality");
    EXPECT_TRUE(text(*window).startsWith("Nothing was chosen in this run")) << text(*window).toStdString();
    auto* times = button(*window, "Show layer times");
    ASSERT_NE(times, nullptr);
    times->click();
    settle(*window);
    EXPECT_EQ(text(*window), "");
    EXPECT_EQ(window->currentView()->findChild<QComboBox*>("metric")->currentData().toString(), "layer_time");
    on(*window, "selection");
    EXPECT_TRUE(text(*window).startsWith("Nothing was chosen here"));
    auto* next = button(*window, "Show the next layer");
    ASSERT_NE(next, nullptr);
    next->click();
    settle(*window);
    EXPECT_EQ(window->workspace().cursor().layer, 1);
    on(*window, "transfers");
    EXPECT_TRUE(text(*window).startsWith("No block moves in this run")) << text(*window).toStdString();
    ASSERT_NE(button(*window, "Show Breakdown"), nullptr);
    button(*window, "Show Breakdown")->click();
    settle(*window);
    EXPECT_EQ(window->currentView()->accessibleName(), "Breakdown");
}

TEST_F(EmptyPages, CountersOnlyLeadToWhatIsThere) {
    const QString path = folder.filePath("counters.kvtrace");
    synthetic::recordFile(path.toStdString(), {}, RecordLevel::Counters);
    const auto window = makeWindow();
    window->openFiles({path});
    ASSERT_TRUE(until([&] { return window->workspace().current() != nullptr; }));
    on(*window, "selection");
    EXPECT_TRUE(text(*window).startsWith("Selections were not recorded"));
    ASSERT_NE(button(*window, "Show Transfers"), nullptr);
    button(*window, "Show Transfers")->click();
    settle(*window);
    EXPECT_EQ(window->currentView()->accessibleName(), "Transfers");
    EXPECT_EQ(text(*window), "");
}

TEST_F(EmptyPages, ARunInPrefillIsWaitedForInEveryView) {
    const QString path = folder.filePath("prefill.kvtrace");
    Recorder recorder(path.toStdString(), {});
    recorder.beginRun(synthetic::infoOf({}));
    recorder.flush();
    const auto window = makeWindow();
    window->openFiles({path});
    ASSERT_TRUE(until([&] { return window->workspace().current() != nullptr; }));
    for (const char* view : {"locality", "selection", "transfers", "breakdown", "insights", "cache"}) {
        on(*window, view);
        EXPECT_TRUE(text(*window).startsWith("Waiting for the first")) << view << ": " << text(*window).toStdString();
    }
}

TEST_F(EmptyPages, ARunThatEndedBeforeItsFirstStepIsNotWaitedFor) {
    const QString path = folder.filePath("ended.kvtrace");
    const auto window = makeWindow();
    {
        Recorder recorder(path.toStdString(), {});
        recorder.beginRun(synthetic::infoOf({}));
        recorder.flush();
        window->openFiles({path});
        ASSERT_TRUE(until([&] { return window->workspace().current() != nullptr; }));
        on(*window, "selection");
        EXPECT_TRUE(text(*window).startsWith("Waiting for the first")) << text(*window).toStdString();
        recorder.endRun(RunStatus::Stopped, {});
    }
    EXPECT_TRUE(until([&] { return text(*window).startsWith("No decode step was recorded"); }))
        << "in front when it ended: " << text(*window).toStdString();
    for (const char* view : {"locality", "selection", "transfers", "breakdown", "insights", "cache"}) {
        on(*window, view);
        EXPECT_TRUE(text(*window).startsWith("No decode step was recorded"))
            << view << ": " << text(*window).toStdString();
    }
}

TEST_F(EmptyPages, AnImportedTimelineLeadsToTheTimeline) {
    const QString path = folder.filePath("other.json");
    QFile file(path);
    ASSERT_TRUE(file.open(QIODevice::WriteOnly));
    file.write(R"([{"ph":"X","pid":1,"tid":1,"ts":1,"dur":2,"name":"work"}])");
    file.close();
    const auto window = makeWindow();
    window->openFiles({path});
    ASSERT_TRUE(until([&] { return window->workspace().current() != nullptr; }));
    for (const char* view : {"locality", "selection", "transfers", "breakdown"}) {
        on(*window, view);
        ASSERT_TRUE(text(*window).startsWith("An imported timeline")) << view;
        auto* way = button(*window, "Show Timeline");
        ASSERT_NE(way, nullptr) << view;
        way->click();
        settle(*window);
        EXPECT_EQ(window->currentView()->accessibleName(), "Timeline");
    }
}

TEST_F(EmptyPages, WithoutARunTheWayOnIsToRunOrToOpen) {
    const auto window = makeWindow();
    Workspace empty;
    for (const ViewEntry& entry : views()) {
        if (entry.withoutRun) continue;
        const std::unique_ptr<View> view(entry.make(empty, nullptr));
        auto* plot = dynamic_cast<PlotView*>(view.get());
        if (!plot) continue;
        view->setParent(window.get());
        view->show();
        QCoreApplication::processEvents();
        QStringList ways;
        for (const auto* each : plot->findChildren<QPushButton*>())
            if (each->objectName().startsWith("emptyAction")) ways << each->text();
        EXPECT_EQ(ways, (QStringList{"Run the session", "Open a trace…"})) << entry.id;
        view->setParent(nullptr);
    }
}

class DroppedFiles : public WindowTest {
protected:
    static void drop(MainWindow& window, const QStringList& paths) { dropOn(window, paths); }
    static void dropOn(QWidget& where, const QStringList& paths, QPoint at = {50, 50}) {
        QMimeData data;
        QList<QUrl> urls;
        for (const QString& path : paths) urls << QUrl::fromLocalFile(path);
        data.setUrls(urls);
        QDragEnterEvent enter(at, Qt::CopyAction, &data, Qt::LeftButton, {});
        QApplication::sendEvent(&where, &enter);
        ASSERT_TRUE(enter.isAccepted());
        QDropEvent event(QPointF(at), Qt::CopyAction, &data, Qt::LeftButton, {});
        QApplication::sendEvent(&where, &event);
    }
    static QString message(MainWindow& window) { return window.findChild<QLabel*>("statusMessage")->text(); }
};

TEST_F(DroppedFiles, TwoTracesAtOnceAreBothOpen) {
    const QString a = folder.filePath("a.kvtrace"), b = folder.filePath("b.kvtrace");
    recordSmallTrace(a);
    recordSmallTrace(b, {.decodeSteps = 9});
    const auto window = makeWindow();
    drop(*window, {a, b});
    ASSERT_TRUE(until([&] { return window->workspace().runs().size() == 2; }));
    ASSERT_NE(window->workspace().current(), nullptr);
}

TEST_F(DroppedFiles, ATraceOpensWhereverItFalls) {
    const auto window = makeWindow();
    auto* kind = window->form().findChild<QComboBox*>("promptKind");
    kind->setCurrentIndex(2); // free text
    auto* editor = window->form().findChild<QPlainTextEdit*>("promptText");
    recordSmallTrace(folder.filePath("a.kvtrace"));
    dropOn(*editor->viewport(), {folder.filePath("a.kvtrace")});
    ASSERT_TRUE(until([&] { return window->workspace().runs().size() == 1 && window->workspace().idle(); }));
    EXPECT_EQ(editor->toPlainText(), QString()) << "its name is no prompt";
    window->showView("sql");
    settle(*window);
    auto* sql = window->currentView()->findChild<QPlainTextEdit*>("sqlEditor");
    const QString query = sql->toPlainText();
    recordSmallTrace(folder.filePath("b.kvtrace"));
    dropOn(*sql->viewport(), {folder.filePath("b.kvtrace")});
    ASSERT_TRUE(until([&] { return window->workspace().runs().size() == 2 && window->workspace().idle(); }));
    EXPECT_EQ(sql->toPlainText(), query);
}

TEST_F(DroppedFiles, ATextThatFallsOnThePromptIsThePrompt) {
    QFile text(folder.filePath("question.txt"));
    ASSERT_TRUE(text.open(QIODevice::WriteOnly));
    text.write("What is a block?");
    text.close();
    const auto window = makeWindow();
    auto* kind = window->form().findChild<QComboBox*>("promptKind");
    dropOn(*window, {text.fileName()}, kind->mapTo(window.get(), kind->rect().center()));
    EXPECT_EQ(kind->currentText(), QStringLiteral("Text file"));
    EXPECT_EQ(window->form().findChild<QLineEdit*>("promptFile")->text(), text.fileName());
    EXPECT_EQ(message(*window), QString());
    kind->setCurrentIndex(2); // an editor that would take the name as text
    dropOn(*window->form().findChild<QPlainTextEdit*>("promptText")->viewport(), {text.fileName()});
    EXPECT_EQ(kind->currentText(), QStringLiteral("Text file"));
    kind->setCurrentIndex(0);
    dropOn(*window, {text.fileName()}, window->rect().center()); // elsewhere it is a file that is no trace
    EXPECT_TRUE(until([&] { return message(*window).contains("question.txt"); })) << message(*window).toStdString();
    EXPECT_EQ(kind->currentIndex(), 0);
}

TEST_F(DroppedFiles, EveryBrokenFileIsNamed) {
    QStringList broken;
    for (const char* name : {"empty.kvtrace", "noise.kvtrace", "cut.json"}) {
        QFile file(folder.filePath(name));
        ASSERT_TRUE(file.open(QIODevice::WriteOnly));
        file.write(QByteArray(name).startsWith("noise") ? "no database at all" : "");
        if (QByteArray(name).endsWith("json")) file.write(R"({"traceEvents":[{"ph":"X","ts":)");
        broken << file.fileName();
    }
    recordSmallTrace(folder.filePath("good.kvtrace"));
    const auto window = makeWindow();
    drop(*window, broken + QStringList{folder.filePath("good.kvtrace")});
    EXPECT_TRUE(until([&] {
        const QString said = message(*window);
        return said.contains("empty.kvtrace") && said.contains("noise.kvtrace") && said.contains("cut.json");
    })) << message(*window).toStdString();
    EXPECT_TRUE(until([&] { return window->workspace().runs().size() == 1; })) << "the good one opens";
}

TEST_F(DroppedFiles, AFolderOpensTheTracesInIt) {
    QDir(folder.path()).mkpath("runs/deeper");
    recordSmallTrace(folder.filePath("runs/a.kvtrace"));
    recordSmallTrace(folder.filePath("runs/b.kvtrace"));
    recordSmallTrace(folder.filePath("runs/deeper/c.kvtrace"));
    QFile other(folder.filePath("runs/notes.txt"));
    ASSERT_TRUE(other.open(QIODevice::WriteOnly));
    other.close();
    const auto window = makeWindow();
    drop(*window, {folder.filePath("runs")});
    ASSERT_TRUE(until([&] { return window->workspace().runs().size() == 2 && window->workspace().idle(); }));
    QStringList names;
    for (const OpenRun& run : window->workspace().runs()) names << QFileInfo(run.key.path).fileName();
    names.sort();
    EXPECT_EQ(names, (QStringList{"a.kvtrace", "b.kvtrace"})) << "of the folder itself, and nothing else";
}

TEST_F(DroppedFiles, AFolderWithoutTracesSaysSo) {
    QDir(folder.path()).mkpath("nothing");
    const auto window = makeWindow();
    drop(*window, {folder.filePath("nothing")});
    const auto* said = window->findChild<InlineMessage*>("runListMessage");
    ASSERT_NE(said, nullptr);
    EXPECT_TRUE(until([&] {
        return said->text().contains("without .kvtrace files") || message(*window).contains("without .kvtrace files");
    })) << said->text().toStdString()
        << " / " << message(*window).toStdString();
    EXPECT_TRUE(window->workspace().runs().empty());
    EXPECT_EQ(QApplication::activeModalWidget(), nullptr);
}

TEST(Outliers, AreTheFewThatStandMoreThanTwiceAboveTheRest) {
    HighestPoints cold;
    cold.add(1, 500);
    for (int step = 2; step < 40; ++step) cold.add(step, 20 + step % 3);
    EXPECT_EQ(cold.result().highest, 22);
    ASSERT_EQ(cold.result().beyond.size(), 1u);
    EXPECT_EQ(cold.result().beyond[0], QPointF(1, 500));

    HighestPoints even, two, zero, none;
    for (int step = 0; step < 40; ++step) even.add(step, 10 + step % 10);
    EXPECT_TRUE(even.result().beyond.empty());
    EXPECT_EQ(even.result().highest, 19);
    for (int step = 0; step < 40; ++step) two.add(step, step < 2 ? 100 : 10);
    EXPECT_TRUE(two.result().beyond.empty()) << "of 40 points one may stand out, not two";
    for (int step = 40; step < 100; ++step) two.add(step, 10);
    EXPECT_EQ(two.result().beyond.size(), 2u) << "of 100 two may";
    for (int step = 0; step < 40; ++step) zero.add(step, step == 5 ? 7 : 0);
    EXPECT_TRUE(zero.result().beyond.empty()) << "above nothing but zeros it is what there is to see";
    none.add(3, std::numeric_limits<double>::quiet_NaN());
    EXPECT_EQ(none.result().highest, 0);
}

TEST_F(ViewTest, TransfersShowTheStepsBesideTheColdOneAndMarkIt) {
    open(recorded("a.kvtrace", {.layers = 8, .decodeSteps = 40}));
    show("transfers");
    const auto top = [&](std::size_t panel) { return canvas().panels()[panel]->axis(QCPAxis::atLeft)->range().upper; };
    const TraceReader reader(file("a.kvtrace").toStdString());
    double first = 0, rest = 0;
    for (const StepRow& row : reader.steps(1))
        if (row.step == 1)
            first = double(row.misses);
        else if (row.step > 1)
            rest = std::max(rest, double(row.misses));
    ASSERT_GT(first, 2 * rest) << "the case is there: an empty cache misses everything";
    EXPECT_NEAR(top(1), rest * 1.08, 1e-6);
    EXPECT_TRUE(plot().noteText().contains(QStringLiteral("Triangles mark steps beyond the plot")));
    bool said = false;
    for (int i = 0; i < canvas().itemCount(); ++i)
        if (const auto* label = qobject_cast<const QCPItemText*>(canvas().item(i)); label && label->visible())
            said = said || label->text() == QStringLiteral("step 1: %1").arg(first, 0, 'f', 0);
    EXPECT_TRUE(said) << "its value is there to read";
    child<QComboBox>("valueRange").setCurrentText(QStringLiteral("All"));
    canvas().replot();
    EXPECT_NEAR(top(1), first * 1.08, 1e-6);
    EXPECT_FALSE(plot().noteText().contains(QStringLiteral("Triangles")));
    canvas().zoomTo({2, 20}); // the cold step is out of sight
    EXPECT_LT(top(1), first);
}

TEST_F(ViewTest, TheColoursOfTheHeatmapGoWhereAPersonSays) {
    open(recorded("a.kvtrace", {.layers = 6, .decodeSteps = 80}));
    show("locality");
    const TraceReader reader(file("a.kvtrace").toStdString());
    const StepMatrix matrix = reader.layerMatrix(1, Metric::Locality);
    std::vector<float> cells;
    for (const float value : matrix.values)
        if (!std::isnan(value)) cells.push_back(value);
    std::sort(cells.begin(), cells.end());
    const auto* bar = canvas().findChild<QCPColorScale*>();
    ASSERT_NE(bar, nullptr);
    EXPECT_EQ(bar->dataRange(), QCPRange(0, 1)) << "the natural range of a share";
    auto& range = child<QComboBox>("colourRange");
    range.setCurrentText(QStringLiteral("Lowest to highest"));
    EXPECT_NEAR(bar->dataRange().lower, double(cells.front()), 1e-6);
    EXPECT_NEAR(bar->dataRange().upper, double(cells.back()), 1e-6);
    range.setCurrentText(QStringLiteral("Without outliers"));
    canvas().replot();
    // 480 cells: the percentiles are cells 1 % from either end.
    EXPECT_GE(bar->dataRange().lower, double(cells[std::size_t(double(cells.size()) * 0.005)]) - 1e-6);
    EXPECT_LE(bar->dataRange().lower, double(cells[std::size_t(double(cells.size()) * 0.02)]) + 1e-6);
    EXPECT_LE(bar->dataRange().upper, double(cells.back()) + 1e-6);
    EXPECT_GE(bar->dataRange().upper, double(cells[std::size_t(double(cells.size()) * 0.97)]) - 1e-6);
    if (bar->dataRange().lower > double(cells.front())) {
        EXPECT_TRUE(plot().noteText().contains(QStringLiteral("The darkest colour stands for everything below")))
            << plot().noteText().toStdString();
    }
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
