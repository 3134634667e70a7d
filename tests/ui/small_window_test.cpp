// The window on a small screen, such as a laptop's at 200 %: 900 x 600 logical pixels are enough for everything.
#include "tests/profiler/synthetic_serving.h" // before any Qt header: its member `slots` is a macro there

#include "tests/ui/window_fixture.h"

#include "ui/plots/plot_canvas.h"
#include "ui/session/session_controller.h"
#include "ui/widgets/comparison_table.h"
#include "ui/widgets/filter_bar.h"
#include "ui/widgets/session_form.h"
#include "ui/widgets/token_strip.h"

#include <QDockWidget>
#include <QLabel>
#include <QLayout>
#include <QLineEdit>
#include <QScrollArea>
#include <QScrollBar>
#include <QToolBar>
#include <QToolButton>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class SmallWindow : public WindowTest {
protected:
    /// Widgets that a layout has put over each other, or outside their parent.
    static QStringList collisions(const QWidget& parent) {
        QStringList found;
        QList<const QWidget*> laid;
        for (const QWidget* child : parent.findChildren<QWidget*>(QString(), Qt::FindDirectChildrenOnly))
            if (child->isVisible() && !child->isWindow() && parent.layout() &&
                parent.layout()->indexOf(const_cast<QWidget*>(child)) >= 0)
                laid << child;
        const auto name = [](const QWidget* widget) {
            return QLatin1String(widget->metaObject()->className()) + QLatin1Char(' ') + widget->objectName();
        };
        for (int i = 0; i < laid.size(); ++i) {
            if (!parent.rect().adjusted(-1, -1, 1, 1).contains(laid[i]->geometry()))
                found << name(laid[i]) + QStringLiteral(" reaches out of ") + name(&parent);
            for (int j = i + 1; j < laid.size(); ++j)
                if (laid[i]->geometry().intersects(laid[j]->geometry()))
                    found << name(laid[i]) + QStringLiteral(" lies over ") + name(laid[j]);
        }
        for (const QWidget* child : parent.findChildren<QWidget*>(QString(), Qt::FindDirectChildrenOnly))
            if (child->isVisible() && !child->isWindow()) found << collisions(*child);
        return found;
    }
    /// px of the view in front that lie below the edge of its place.
    static int outOfSight(const MainWindow& window) {
        for (const QWidget* at = window.currentView(); at != nullptr; at = at->parentWidget())
            if (const auto* page = qobject_cast<const QScrollArea*>(at)) return page->verticalScrollBar()->maximum();
        ADD_FAILURE() << "the view stands in no page";
        return 0;
    }
};

TEST_F(SmallWindow, ShowsAllStripsOfAServer) {
    const QString path = folder.filePath(QStringLiteral("served.kvtrace"));
    synthetic::recordServing(path.toStdString());
    const auto window = makeWindow();
    window->openFiles({path});
    ASSERT_TRUE(until([&] { return window->workspace().current() && isSettled(window->workspace()); }));
    window->showView(QStringLiteral("serving"));
    settle(*window);
    auto* plot = window->currentView()->findChild<PlotCanvas*>();
    ASSERT_NE(plot, nullptr);
    ASSERT_EQ(plot->panels().size(), 5U);
    window->workspace().setCursor({.step = 5});
    settle(*window);
    EXPECT_TRUE(window->currentView()->findChild<QLabel*>(QStringLiteral("chosenIteration"))->isVisible());
    const int roomy = plot->panels()[2]->height();
    for (const QSize size : {QSize(1024, 700), QSize(960, 600)}) {
        window->resize(size);
        settle(*window);
        EXPECT_EQ(outOfSight(*window), 0) << size.width() << " x " << size.height();
        for (const QCPAxisRect* panel : plot->panels()) EXPECT_GE(panel->height(), 20) << size.width();
    }
    window->resize(1600, 1000);
    settle(*window);
    EXPECT_EQ(plot->panels()[2]->height(), roomy) << "and the strips are as high again";
}

TEST_F(SmallWindow, ComparesThreeRunsInOnePlace) {
    const auto window = makeWindow();
    QStringList paths;
    for (const char* name : {"NOSA on nosa-tiny", "InfLLM-V2 on nosa-tiny", "Full attention on nosa-tiny"}) {
        paths << folder.filePath(QStringLiteral("%1.kvtrace").arg(paths.size()));
        recordSmallTrace(paths.back(), {.decodeSteps = 60, .name = name, .stepNs = 2'000'000 + 100'000 * paths.size()});
    }
    window->openFiles(paths);
    Workspace& workspace = window->workspace();
    ASSERT_TRUE(until([&] { return workspace.runs().size() == 3 && isSettled(workspace); }));
    for (const OpenRun& run : workspace.runs())
        if (!(run.key == workspace.current()->key)) workspace.setCompared(run.key, true);
    window->showView(QStringLiteral("compare"));
    settle(*window);
    const auto* table = window->currentView()->findChild<ComparisonTable*>(QStringLiteral("keyNumbers"));
    ASSERT_TRUE(table != nullptr && until([&] { return table->isVisible() && table->rowCount() >= 10; }));
    const int row = table->rowHeight(0), roomy = table->height();
    EXPECT_GE(table->viewport()->height(), 10 * row);
    window->resize(1024, 700);
    settle(*window);
    EXPECT_EQ(outOfSight(*window), 0);
    EXPECT_GE(table->viewport()->height(), 3 * row) << "the other rows are scrolled to";
    window->resize(1600, 1000);
    settle(*window);
    EXPECT_EQ(table->height(), roomy);
}

TEST_F(SmallWindow, BecomesAsSmallAsItIsAskedTo) {
    const auto window = windowOnTrace();
    window->resize(900, 600);
    settle(*window);
    EXPECT_EQ(window->size(), QSize(900, 600)) << "what the panels need is " << window->minimumSizeHint().width()
                                               << " x " << window->minimumSizeHint().height();
    for (const ViewEntry& entry : views()) {
        window->showView(QLatin1String(entry.id));
        settle(*window);
        EXPECT_EQ(window->size(), QSize(900, 600)) << entry.id << " needs " << window->minimumSizeHint().width()
                                                   << " x " << window->minimumSizeHint().height();
    }
}

TEST_F(SmallWindow, LaysNothingOfTheSessionOverEachOther) {
    const auto window = windowOnTrace();
    for (const QSize size : {QSize(1600, 1000), QSize(960, 600), QSize(900, 600)}) {
        window->resize(size);
        settle(*window);
        EXPECT_EQ(collisions(window->form()).join(QStringLiteral("; ")).toStdString(), "")
            << size.width() << " x " << size.height();
        const auto* scroll = window->form().findChild<QScrollArea*>(QStringLiteral("sessionScroll"));
        EXPECT_LE(scroll->widget()->width(), scroll->viewport()->width()) << "nothing is cut at the side";
        EXPECT_TRUE(window->form().findChild<QWidget*>(QStringLiteral("runButton"))->isVisible());
    }
}

TEST_F(SmallWindow, APageThatIsShownAgainStandsWhereItWasLeft) {
    const auto window = windowOnTrace();
    window->resize(960, 540);
    window->action("view_insights")->trigger();
    settle(*window);
    QScrollArea* page = nullptr;
    for (QWidget* at = window->currentView(); at != nullptr && page == nullptr; at = at->parentWidget())
        page = qobject_cast<QScrollArea*>(at);
    ASSERT_NE(page, nullptr);
    ASSERT_GT(page->verticalScrollBar()->maximum(), 0) << "the page is higher than the window";
    EXPECT_EQ(page->verticalScrollBar()->value(), 0);
    window->action("view_selection")->trigger();
    settle(*window);
    window->action("view_insights")->trigger();
    settle(*window);
    EXPECT_EQ(page->verticalScrollBar()->value(), 0) << "the first card was in sight, not the plot that has the focus";
    page->verticalScrollBar()->setValue(40);
    window->action("view_selection")->trigger();
    settle(*window);
    window->action("view_insights")->trigger();
    settle(*window);
    EXPECT_EQ(page->verticalScrollBar()->value(), 40);
}

TEST_F(SmallWindow, NothingBesideAPlotIsCutAtItsSide) {
    const auto window = windowOnTrace();
    window->resize(960, 600);
    for (const ViewEntry& entry : views()) {
        window->showView(QLatin1String(entry.id));
        settle(*window);
        for (const QScrollArea* area : window->currentView()->findChildren<QScrollArea*>())
            if (area->isVisible() && area->widget() && area->horizontalScrollBarPolicy() == Qt::ScrollBarAlwaysOff) {
                EXPECT_LE(area->widget()->width(), area->viewport()->width()) << entry.id;
            }
    }
}

TEST_F(SmallWindow, KeepsTheToolBarWholeWhenItBecomesNarrower) {
    const auto window = windowOnTrace(); // with pauses, so that there is a fourth number in a wide window
    auto* bar = window->findChild<QToolBar*>(QStringLiteral("sessionToolBar"));
    const auto* locality = window->findChild<QLabel*>(QStringLiteral("locality"));
    const auto* clock = window->findChild<QLabel*>(QStringLiteral("clockRate"));
    ASSERT_TRUE(until([&] { return window->controller().state() == SessionController::State::Idle; }))
        << "while a model is loaded, its progress has the room of the numbers";
    ASSERT_TRUE(until([&] { return locality->isVisible() && clock->isVisible(); }));
    for (const QSize size : {QSize(1024, 700), QSize(900, 600)}) {
        window->resize(size);
        settle(*window);
        EXPECT_TRUE(window->findChild<QLabel*>(QStringLiteral("tokenRate"))->isVisible()) << size.width();
        for (const QToolButton* button : bar->findChildren<QToolButton*>(Qt::FindDirectChildrenOnly))
            if (button->defaultAction()) {
                EXPECT_TRUE(button->isVisible()) << button->text().toStdString() << " at " << size.width();
            }
    }
    window->resize(1600, 1000);
    settle(*window);
    EXPECT_TRUE(locality->isVisible());
}

TEST_F(SmallWindow, KeepsTheToolBarWholeWhileAPromptIsRead) {
    const auto window = windowOnTrace();
    window->resize(1024, 700);
    settle(*window);
    ASSERT_TRUE(until([&] {
        return window->form().problem().isEmpty() && window->controller().state() == SessionController::State::Idle;
    }));
    const auto* bar = window->findChild<QToolBar*>(QStringLiteral("sessionToolBar"));
    const auto* cancel = window->findChild<QToolButton*>(QStringLiteral("cancel"));
    const auto* rate = window->findChild<QLabel*>(QStringLiteral("tokenRate"));
    ASSERT_TRUE(bar && cancel && rate);
    trigger(*window, "run");
    ASSERT_TRUE(until([&] { return window->controller().state() == SessionController::State::Prefill; }));
    ASSERT_TRUE(until([&] { return cancel->isVisible(); }));
    QCoreApplication::processEvents();
    for (const QToolButton* button : bar->findChildren<QToolButton*>(Qt::FindDirectChildrenOnly))
        if (button->defaultAction()) {
            EXPECT_TRUE(button->isVisible()) << button->text().toStdString();
        }
    trigger(*window, "stop");
    ASSERT_TRUE(until([&] { return !window->controller().isActive(); }));
    EXPECT_TRUE(until([&] { return rate->isVisible(); })) << "the numbers are there again";
}

TEST_F(SmallWindow, GivesTheViewsMostOfItsHeight) {
    const auto window = windowOnTrace();
    const auto* tokens = window->findChild<QDockWidget*>(QStringLiteral("tokensDock"));
    const int roomy = tokens->height();
    window->resize(960, 600);
    settle(*window);
    EXPECT_GE(window->centralWidget()->height(), 600 * 65 / 100);
    EXPECT_TRUE(tokens->isVisible());
    EXPECT_GE(window->tokens().strip()->viewport()->height(), 20) << "a line of tokens is left";
    window->resize(1600, 1000);
    settle(*window);
    EXPECT_NEAR(tokens->height(), roomy, 4);
}

TEST_F(SmallWindow, ShowsTheFilterWhileThereIsOneOrItIsAskedFor) {
    const auto window = windowOnTrace();
    const auto* filter = window->findChild<FilterBar*>();
    ASSERT_TRUE(filter->isVisible());
    window->resize(960, 600);
    settle(*window);
    EXPECT_FALSE(filter->isVisible());
    trigger(*window, "filter");
    EXPECT_TRUE(filter->isVisible());
    settle(*window);
    auto* layers = filter->findChild<QLineEdit*>(QStringLiteral("filterLayers"));
    ASSERT_TRUE(layers->hasFocus());
    QTest::keyClicks(layers, QStringLiteral("1"));
    QTest::keyClick(layers, Qt::Key_Escape);
    EXPECT_EQ(layers->text(), QString());
    EXPECT_TRUE(filter->isVisible()) << "the first Escape empties the field";
    QTest::keyClick(layers, Qt::Key_Escape);
    EXPECT_FALSE(filter->isVisible()) << "the second leads back to the view";
    EXPECT_TRUE(window->currentView()->isAncestorOf(window->focusWidget()));

    Filter some;
    some.layers = IndexSet({{0, 0}});
    window->workspace().setFilter(some); // as the menus of the views do it
    EXPECT_TRUE(filter->isVisible()) << "nothing is left out unseen";
    settle(*window);
    window->workspace().setFilter({});
    window->resize(950, 600);
    settle(*window);
    EXPECT_FALSE(filter->isVisible());
    window->resize(1600, 1000);
    settle(*window);
    EXPECT_TRUE(filter->isVisible());
}

class Panels : public SmallWindow {
protected:
    static QDockWidget& dock(MainWindow& window, const char* name) {
        return *window.findChild<QDockWidget*>(QLatin1String(name));
    }
    static void resizeTo(MainWindow& window, QSize size) {
        window.resize(size);
        settle(window);
    }
};

TEST_F(Panels, GiveWayToTheViewsAndComeBack) {
    const auto window = windowOnTrace();
    const int session = dock(*window, "sessionDock").width(), inspector = dock(*window, "inspectorDock").width();
    for (const QSize size : {QSize(1100, 700), QSize(960, 600), QSize(900, 600)}) {
        resizeTo(*window, size);
        EXPECT_GE(window->centralWidget()->width(), size.width() * 45 / 100) << size.width();
        EXPECT_TRUE(dock(*window, "sessionDock").isVisible());
    }
    EXPECT_FALSE(dock(*window, "inspectorDock").isVisible()) << "there is no room for it";
    resizeTo(*window, {1600, 1000});
    EXPECT_TRUE(dock(*window, "inspectorDock").isVisible());
    EXPECT_NEAR(dock(*window, "sessionDock").width(), session, 4);
    EXPECT_NEAR(dock(*window, "inspectorDock").width(), inspector, 4);
}

TEST_F(Panels, LeaveTheViewTwoThirdsOfAWindowOf1024) {
    const auto window = windowOnTrace();
    resizeTo(*window, {1024, 700});
    EXPECT_FALSE(dock(*window, "inspectorDock").isVisible());
    EXPECT_GE(window->centralWidget()->width(), 1024 * 2 / 3 - 40);
    resizeTo(*window, {1100, 700});
    EXPECT_TRUE(dock(*window, "inspectorDock").isVisible());
}

TEST_F(Panels, OneAboveTheOtherTakeTheRoomOfOne) {
    const auto window = windowOnTrace();
    resizeTo(*window, {1600, 1000});
    window->addDockWidget(Qt::LeftDockWidgetArea, &dock(*window, "inspectorDock"));
    settle(*window);
    const int column = dock(*window, "sessionDock").width();
    ASSERT_LE(column, 550) << "half of a window of 1100 is enough for one";
    ASSERT_GT(2 * column, 550) << "and not for two";
    resizeTo(*window, {1100, 1000});
    EXPECT_NEAR(dock(*window, "sessionDock").width(), column, 4);
}

TEST_F(Panels, TheInspectorStaysWhereItIsAskedForAndGoneWhereItWasClosed) {
    const auto window = windowOnTrace();
    resizeTo(*window, {960, 600});
    dock(*window, "inspectorDock").toggleViewAction()->trigger();
    EXPECT_TRUE(dock(*window, "inspectorDock").isVisible());
    resizeTo(*window, {940, 600});
    EXPECT_TRUE(dock(*window, "inspectorDock").isVisible());
    resizeTo(*window, {1600, 1000});
    EXPECT_TRUE(dock(*window, "inspectorDock").isVisible());
    dock(*window, "inspectorDock").toggleViewAction()->trigger();
    resizeTo(*window, {960, 600});
    resizeTo(*window, {1600, 1000});
    EXPECT_FALSE(dock(*window, "inspectorDock").isVisible()) << "a person closed it";
}

TEST_F(Panels, AnInspectorThatWaitedComesBackInALargerWindowOfTheNextStart) {
    {
        const auto window = windowOnTrace(false);
        resizeTo(*window, {960, 600});
        ASSERT_FALSE(dock(*window, "inspectorDock").isVisible());
        window->close(); // which saves
    }
    const auto window = makeWindow(false, {1600, 1000});
    settle(*window);
    EXPECT_TRUE(dock(*window, "inspectorDock").isVisible());
}

TEST_F(Panels, TokensMadeHigherInALowWindowAreSoAtTheNextStart) {
    int wanted = 0;
    {
        const auto window = windowOnTrace(false);
        resizeTo(*window, {1600, 700});
        QDockWidget& tokens = dock(*window, "tokensDock");
        const int line = tokens.height();
        window->resizeDocks({&tokens}, {line + 80}, Qt::Vertical); // as with the mouse
        settle(*window);
        wanted = tokens.height();
        ASSERT_GT(wanted, line + 40);
        window->close(); // which saves
    }
    const auto window = makeWindow(false, {1600, 700});
    settle(*window);
    EXPECT_NEAR(dock(*window, "tokensDock").height(), wanted, 4);
    std::unique_ptr<MainWindow> other(window->newWindow());
    other->setAttribute(Qt::WA_DeleteOnClose, false);
    settle(*other);
    EXPECT_NEAR(dock(*other, "tokensDock").height(), wanted, 4);
}

TEST_F(Panels, TheFilterIsLeftWithEscapeAmongTheViewsAlone) {
    const auto window = windowOnTrace();
    const auto* filter = window->findChild<FilterBar*>();
    trigger(*window, "viewsOnly");
    settle(*window);
    trigger(*window, "filter");
    EXPECT_TRUE(filter->isVisible());
    QTest::keyClick(window->focusWidget(), Qt::Key_Escape);
    settle(*window);
    EXPECT_FALSE(filter->isVisible());
    EXPECT_TRUE(window->currentView()->isAncestorOf(window->focusWidget()));
    trigger(*window, "viewsOnly");
    settle(*window);
    EXPECT_TRUE(filter->isVisible()) << "as it was before";
}

TEST_F(Panels, ResetForgetsThatTheFilterWasAskedForOrWaits) {
    const auto window = windowOnTrace();
    const auto* filter = window->findChild<FilterBar*>();
    resizeTo(*window, {1600, 700});
    trigger(*window, "filter");
    settle(*window);
    ASSERT_TRUE(filter->isVisible()) << "it is wanted";
    trigger(*window, "resetLayout");
    settle(*window);
    EXPECT_FALSE(filter->isVisible()) << "a low window does without it";
    resizeTo(*window, {1600, 1000});
    EXPECT_TRUE(filter->isVisible());
}

TEST_F(Panels, GoAwayAndComeBackAsTheyWere) {
    const auto window = windowOnTrace(false);
    dock(*window, "runsDock").hide(); // by hand
    settle(*window);
    const int session = dock(*window, "sessionDock").width();
    QTest::keySequence(window.get(), QKeySequence("F11"));
    settle(*window);
    for (const char* name : {"sessionDock", "runsDock", "tokensDock", "inspectorDock"})
        EXPECT_FALSE(dock(*window, name).isVisible()) << name;
    EXPECT_FALSE(window->findChild<FilterBar*>()->isVisible());
    EXPECT_GE(window->centralWidget()->width(), window->width() - 4);
    EXPECT_TRUE(window->currentView()->isAncestorOf(window->focusWidget())) << "its keys work at once";
    window->resize(1400, 900); // a larger window brings no panels back while they are hidden
    settle(*window);
    EXPECT_FALSE(dock(*window, "inspectorDock").isVisible());
    window->resize(1600, 1000);
    window->saveSession(); // the saved layout is the one with the panels
    QTest::keySequence(window.get(), QKeySequence("F11"));
    settle(*window);
    for (const char* name : {"sessionDock", "tokensDock", "inspectorDock"})
        EXPECT_TRUE(dock(*window, name).isVisible()) << name;
    EXPECT_FALSE(dock(*window, "runsDock").isVisible());
    EXPECT_NEAR(dock(*window, "sessionDock").width(), session, 4);
    const auto next = makeWindow(false);
    EXPECT_TRUE(dock(*next, "sessionDock").isVisible());
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
