// Views that leave the tabs: beside and below them, in windows of their own, and back.
#include "tests/ui/window_fixture.h"

#include "ui/frame/cursor_history.h"
#include "ui/frame/growth_turn.h"
#include "ui/frame/view_request.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"
#include "ui/widgets/inspector.h"
#include "ui/widgets/run_list.h"
#include "ui/widgets/session_form.h"
#include "ui/window/view_area.h"
#include "ui/window/view_dock.h"

#include <QContextMenuEvent>
#include <QDockWidget>
#include <QMenu>
#include <QScrollArea>
#include <QTabBar>
#include <QTabWidget>
#include <QToolButton>

#include <cstdlib>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class ViewDocks : public WindowTest {
protected:
    static int indexOf(const char* id) {
        for (std::size_t index = 0; index < views().size(); ++index)
            if (QLatin1String(views()[index].id) == QLatin1String(id)) return int(index);
        ADD_FAILURE() << id;
        return 0;
    }
    static ViewArea& areaOf(const MainWindow& window) { return *window.findChild<ViewArea*>(); }
    static View& viewOf(const MainWindow& window, const char* id) { return *viewIn(window, QLatin1String(id)); }
    static PlotCanvas& canvasOf(const MainWindow& window, const char* id) {
        return dynamic_cast<PlotView&>(viewOf(window, id)).canvas();
    }
    static QTabWidget& tabsOf(const MainWindow& window) { return areaOf(window).tabs(); }
    static bool isInTabs(const MainWindow& window, const char* id) {
        return tabsOf(window).isTabVisible(indexOf(id)) &&
               tabsOf(window).widget(indexOf(id))->isAncestorOf(viewIn(window, QLatin1String(id)));
    }
    static QRect placeOf(const MainWindow& window, const char* id) {
        const QWidget& shown = *viewOf(window, id).parentWidget(); // a view may be larger than what is shown of it
        return {shown.mapTo(&window, QPoint()), shown.size()};
    }
    static void look(MainWindow& window, const char* id) {
        window.showView(QLatin1String(id));
        settle(window);
    }
    /// Waits until the view is seen in a window with a frame.
    static bool isWindow(const MainWindow& window, const char* id) {
        return until([&] {
            const View* view = viewIn(window, QLatin1String(id));
            return view && view->isVisible() && view->window() != &window && view->window()->windowType() == Qt::Window;
        });
    }
    static void clickStep(PlotCanvas& plot, int step) {
        const QCPAxisRect* panel = plot.panels().front();
        const QPoint at(int(panel->axis(QCPAxis::atBottom)->coordToPixel(step)), panel->rect().center().y());
        QTest::mouseClick(&plot, Qt::LeftButton, {}, at);
    }
    /// The views whose tabs are seen, from the left.
    static QStringList shownTabs(const MainWindow& window) {
        QStringList titles;
        for (int tab = 0; tab < tabsOf(window).count(); ++tab)
            if (tabsOf(window).isTabVisible(tab)) titles << tabsOf(window).tabText(tab);
        return titles;
    }
    /// The middle of a tab, in pixels of the window.
    static QPoint middleOfTab(const MainWindow& window, const QString& title) {
        const QTabBar& bar = *tabsOf(window).tabBar();
        for (int tab = 0; tab < bar.count(); ++tab)
            if (bar.tabText(tab) == title) return bar.mapTo(&window, bar.tabRect(tab).center());
        ADD_FAILURE() << title.toStdString();
        return {};
    }
    /// Drags with the left button through all points, in pixels of the window.
    static void drag(const MainWindow& window, const QList<QPoint>& path) {
        QTest::mousePress(window.windowHandle(), Qt::LeftButton, {}, path.front());
        for (qsizetype i = 1; i < path.size(); ++i)
            for (int part = 1; part <= 8; ++part)
                QTest::mouseMove(window.windowHandle(), path[i - 1] + (path[i] - path[i - 1]) * part / 8);
        QTest::mouseRelease(window.windowHandle(), Qt::LeftButton, {}, path.back());
    }
    /// Chooses an entry of the menu that a right click on the tab opens.
    static void chooseOfTab(MainWindow& window, const char* id, const QString& entry) {
        QTabBar* bar = tabsOf(window).tabBar();
        const QPoint at =
            bar->mapFrom(&window, middleOfTab(window, QLatin1String(views()[std::size_t(indexOf(id))].title)));
        QContextMenuEvent click(QContextMenuEvent::Mouse, at, bar->mapToGlobal(at));
        QApplication::sendEvent(bar, &click);
        auto* menu = window.findChild<QMenu*>(QStringLiteral("viewMenu"));
        ASSERT_NE(menu, nullptr);
        for (QAction* action : menu->actions())
            if (action->text() == entry) {
                EXPECT_TRUE(action->isEnabled());
                action->trigger();
            }
        menu->close();
        QCoreApplication::sendPostedEvents(menu, QEvent::DeferredDelete);
    }
};

TEST_F(ViewDocks, SplitRightPutsTheViewInFrontBesideTheTabs) {
    const auto window = windowOnTrace();
    look(*window, "locality");
    look(*window, "transfers");
    QTest::keySequence(window.get(), QKeySequence(QStringLiteral("F8")));
    settle(*window);
    ASSERT_TRUE(until([&] {
        const QRect left = placeOf(*window, "locality"), right = placeOf(*window, "transfers");
        return right.left() > left.right() && std::abs(right.width() - left.width()) < 60;
    })) << placeOf(*window, "locality").width()
        << " and " << placeOf(*window, "transfers").width();
    EXPECT_TRUE(viewOf(*window, "locality").isVisible()) << "the view that was looked at before stays";
    EXPECT_FALSE(tabsOf(*window).isTabVisible(indexOf("transfers"))) << "one view is in one place";
    EXPECT_EQ(window->currentView(), &viewOf(*window, "transfers"));
    EXPECT_TRUE(viewOf(*window, "transfers").isAncestorOf(window->focusWidget()));
    // Menus apply to the view that was clicked last.
    clickStep(canvasOf(*window, "locality"), 2);
    EXPECT_EQ(window->currentView(), &viewOf(*window, "locality"));
    EXPECT_FALSE(window->action("rejoinView")->isEnabled());
    auto* dock = window->findChild<ViewDock*>();
    QTest::mouseClick(dock->titleBarWidget(), Qt::LeftButton, {}, QPoint(8, 8));
    EXPECT_EQ(window->currentView(), &viewOf(*window, "transfers"));
    QTest::keySequence(window.get(), QKeySequence(QStringLiteral("Shift+F9")));
    settle(*window);
    EXPECT_TRUE(isInTabs(*window, "transfers"));
    EXPECT_EQ(window->currentView(), &viewOf(*window, "transfers"));
}

TEST_F(ViewDocks, ATabsMenuSplitsAViewThatIsNotInFront) {
    const auto window = windowOnTrace();
    look(*window, "locality");
    ASSERT_EQ(viewIn(*window, QStringLiteral("breakdown")), nullptr);
    chooseOfTab(*window, "breakdown", QStringLiteral("Split Down"));
    settle(*window);
    ASSERT_TRUE(until([&] { return placeOf(*window, "breakdown").top() > placeOf(*window, "locality").bottom(); }));
    EXPECT_TRUE(viewOf(*window, "locality").isVisible());
    EXPECT_EQ(window->findChildren<View*>().size(), 2) << "no view was made that nobody looks at";
    // The cross of the title puts it back and leaves the tab in front as it is.
    window->findChild<QToolButton*>(QStringLiteral("closeView"))->click();
    EXPECT_TRUE(isInTabs(*window, "breakdown"));
    EXPECT_EQ(window->currentView(), &viewOf(*window, "locality"));
    EXPECT_FALSE(viewOf(*window, "breakdown").isVisible());
}

TEST_F(ViewDocks, AFloatingViewIsAWindowWithoutPanelsAndWithTheSameCursor) {
    const auto window = windowOnTrace(true, {.decodeSteps = 40});
    window->history().setPause(0);
    look(*window, "locality");
    look(*window, "transfers");
    QTest::keySequence(window.get(), QKeySequence(QStringLiteral("F9")));
    ASSERT_TRUE(isWindow(*window, "transfers"));
    settle(*window);
    QWidget* floating = viewOf(*window, "transfers").window();
    EXPECT_EQ(floating->findChildren<Inspector*>().size(), 0);
    EXPECT_EQ(floating->findChildren<RunList*>().size(), 0);
    EXPECT_EQ(floating->findChildren<SessionForm*>().size(), 0);
    EXPECT_TRUE(floating->windowTitle().startsWith(QStringLiteral("Transfers – "))) << "a list of windows tells them";
    EXPECT_EQ(window->currentView(), &viewOf(*window, "transfers"));
    EXPECT_TRUE(viewOf(*window, "locality").isVisible());

    PlotCanvas &plot = canvasOf(*window, "transfers"), &other = canvasOf(*window, "locality");
    plot.replot();
    clickStep(plot, 5);
    EXPECT_EQ(window->workspace().cursor().step, 5);
    const CursorMark mark = other.overlay().markOf(other.panels().front());
    ASSERT_TRUE(mark.x);
    EXPECT_EQ(*mark.x, 5) << "the cursor moves in the view in the tabs";
    ASSERT_TRUE(QTest::qWaitForWindowActive(floating));
    QTest::keySequence(&plot, QKeySequence(QStringLiteral("Ctrl+Right")));
    EXPECT_EQ(window->workspace().cursor().step, 6) << "the keys of the main window work in it";
    const QCPRange whole = plot.visibleX();
    QTest::keyClick(&plot, Qt::Key_Plus);
    ASSERT_LT(plot.visibleX().size(), whole.size());
    QTest::keySequence(&plot, QKeySequence(QStringLiteral("Ctrl+Z")));
    EXPECT_NEAR(plot.visibleX().size(), whole.size(), 1e-9) << "and undo its zoom";
    QTest::mouseClick(&plot, Qt::BackButton);
    EXPECT_EQ(window->workspace().cursor().step, 5) << "the side buttons of the mouse go back";
    EXPECT_TRUE(requestView(viewOf(*window, "transfers"), QStringLiteral("selection")));
    EXPECT_EQ(window->currentView(), &viewOf(*window, "selection")) << "its menus lead to the views in the tabs";
    window->setTheme(QStringLiteral("dark"));
    const QColor corner = floating->grab().toImage().pixelColor(floating->width() - 2, floating->height() - 2);
    window->setTheme(QStringLiteral("light"));
    EXPECT_LT(corner.lightness(), 100);
}

TEST_F(ViewDocks, ClosingAFloatingViewPutsItBackAsItWas) {
    const auto window = windowOnTrace(true, {.decodeSteps = 60});
    look(*window, "transfers");
    canvasOf(*window, "transfers").zoomTo({10, 20});
    const View* before = window->currentView();
    trigger(*window, "floatView");
    ASSERT_TRUE(isWindow(*window, "transfers"));
    settle(*window);
    EXPECT_EQ(&viewOf(*window, "transfers"), before) << "not made a second time";
    EXPECT_NEAR(canvasOf(*window, "transfers").visibleX().lower, 10, 0.6);
    EXPECT_FALSE(window->action("floatView")->isEnabled());
    EXPECT_TRUE(before->window()->close());
    ASSERT_TRUE(isInTabs(*window, "transfers"));
    EXPECT_TRUE(until([&] { return window->findChildren<ViewDock*>().empty(); }));
    look(*window, "transfers");
    EXPECT_EQ(window->currentView(), before);
    EXPECT_TRUE(before->isVisible());
    EXPECT_NEAR(canvasOf(*window, "transfers").visibleX().lower, 10, 0.6);
    trigger(*window, "zoomUndo");
    EXPECT_LT(canvasOf(*window, "transfers").visibleX().lower, 5);
}

TEST_F(ViewDocks, TheNextStartPutsTheViewsWhereTheyWere) {
    QSize size;
    QPoint place;
    int width = 0;
    {
        const auto window = windowOnTrace(false);
        look(*window, "locality");
        chooseOfTab(*window, "breakdown", QStringLiteral("Split Right"));
        chooseOfTab(*window, "transfers", QStringLiteral("Float"));
        ASSERT_TRUE(isWindow(*window, "transfers"));
        QWidget* floating = viewOf(*window, "transfers").window();
        floating->resize(520, 430);
        floating->move(60, 70);
        settle(*window);
        size = floating->size(), place = floating->pos();
        areaOf(*window).resizeDocks({window->findChild<ViewDock*>(QStringLiteral("view_breakdownDock"))}, {300},
                                    Qt::Horizontal);
        ASSERT_TRUE(until([&] { return std::abs(placeOf(*window, "breakdown").width() - 300) < 8; }));
        width = placeOf(*window, "breakdown").width();
        trigger(*window, "quit");
        EXPECT_FALSE(window->isVisible());
        EXPECT_FALSE(floating->isVisible()) << "it closes with the window that it belongs to";
    }
    const auto window = makeWindow(false);
    ASSERT_TRUE(until([&] { return window->workspace().current() && isSettled(window->workspace()); }));
    ASSERT_TRUE(isWindow(*window, "transfers"));
    settle(*window);
    const QWidget* floating = viewOf(*window, "transfers").window();
    EXPECT_EQ(floating->size(), size);
    EXPECT_NEAR(floating->x(), place.x(), 2);
    EXPECT_NEAR(floating->y(), place.y(), 2);
    ASSERT_TRUE(areaOf(*window).isApart(indexOf("breakdown")));
    EXPECT_TRUE(until([&] { return std::abs(placeOf(*window, "breakdown").width() - width) < 8; }))
        << placeOf(*window, "breakdown").width() << ", before " << width;
    EXPECT_TRUE(until([&] { return window->currentView() == &viewOf(*window, "locality"); })) << "the tab in front";
    EXPECT_EQ(window->findChildren<View*>().size(), 3) << "no view is made that nobody looks at";

    trigger(*window, "resetLayout");
    settle(*window);
    for (const char* id : {"locality", "breakdown", "transfers"}) EXPECT_TRUE(isInTabs(*window, id)) << id;
    EXPECT_TRUE(until([&] { return window->findChildren<ViewDock*>().empty(); }));
}

TEST_F(ViewDocks, PlacesThatMeanNothingLeaveTheViewsInTheTabs) {
    windowOnTrace(false)->close();
    const Settings settings(false, folder.filePath(QStringLiteral("desktop.ini")));
    SavedSession saved = settings.load();
    ASSERT_EQ(saved.openFiles.size(), 1);
    saved.places = {{QStringLiteral("transfers"), QStringLiteral("a view of another version")},
                    "no state",
                    {QStringLiteral("a view of another version")}};
    settings.save(saved);
    const auto window = makeWindow(false);
    ASSERT_TRUE(until([&] { return window->workspace().current() && isSettled(window->workspace()); }));
    for (int index = 0; index < tabsOf(*window).count(); ++index) {
        EXPECT_FALSE(areaOf(*window).isApart(index));
        EXPECT_TRUE(tabsOf(*window).isTabVisible(index));
    }
    EXPECT_TRUE(window->currentView()->isVisible());
}

TEST_F(ViewDocks, TheLastViewStaysInTheTabs) {
    const auto window = windowOnTrace();
    ViewArea& area = areaOf(*window);
    for (int index = 0; index + 1 < int(views().size()); ++index) area.floatView(index);
    settle(*window);
    const int last = int(views().size()) - 1;
    area.bringToFront(last);
    EXPECT_FALSE(area.canMove(last));
    EXPECT_FALSE(window->action("splitRight")->isEnabled());
    EXPECT_FALSE(window->action("floatView")->isEnabled());
    area.floatView(last);
    EXPECT_FALSE(area.isApart(last));
    // Ctrl+PgDown walks through all views, wherever they stand.
    trigger(*window, "nextView");
    EXPECT_EQ(window->currentView()->id(), QLatin1String(views().front().id));
    trigger(*window, "previousView");
    EXPECT_EQ(window->currentView()->id(), QLatin1String(views().back().id));
}

TEST_F(ViewDocks, AViewBehindAnotherDockDoesNotFollowARun) {
    const auto window = windowOnTrace();
    look(*window, "locality");
    chooseOfTab(*window, "breakdown", QStringLiteral("Split Right"));
    chooseOfTab(*window, "transfers", QStringLiteral("Split Right"));
    settle(*window);
    const auto dockOf = [&](const char* id) {
        return window->findChild<ViewDock*>(QStringLiteral("view_%1Dock").arg(QLatin1String(id)));
    };
    EXPECT_TRUE(GrowthTurn::inSight(viewOf(*window, "breakdown")));
    EXPECT_TRUE(GrowthTurn::inSight(viewOf(*window, "transfers")));
    areaOf(*window).tabifyDockWidget(dockOf("breakdown"), dockOf("transfers"));
    dockOf("transfers")->raise();
    EXPECT_TRUE(until([&] {
        return GrowthTurn::inSight(viewOf(*window, "transfers")) && !GrowthTurn::inSight(viewOf(*window, "breakdown"));
    }));
    window->showView(QStringLiteral("breakdown"));
    EXPECT_TRUE(until([&] {
        return GrowthTurn::inSight(viewOf(*window, "breakdown")) && !GrowthTurn::inSight(viewOf(*window, "transfers"));
    }));
}

TEST_F(ViewDocks, WithoutRunsTheWindowsOfViewsWait) {
    const auto window = windowOnTrace();
    look(*window, "transfers");
    trigger(*window, "floatView");
    ASSERT_TRUE(isWindow(*window, "transfers"));
    settle(*window);
    const RunKey run = window->workspace().current()->key;
    window->workspace().close(run);
    EXPECT_TRUE(until([&] { return window->currentView() == nullptr; }));
    EXPECT_FALSE(viewOf(*window, "transfers").isVisible()) << "the start page stands for all views";
    EXPECT_FALSE(window->action("rejoinView")->isEnabled());
    window->openFiles({run.path});
    EXPECT_TRUE(isWindow(*window, "transfers"));
    EXPECT_TRUE(areaOf(*window).isFloating(indexOf("transfers")));
}

TEST_F(ViewDocks, ATabDraggedAlongTheBarStaysThereAtTheNextStart) {
    const QStringList atFirst = [&] {
        const auto window = windowOnTrace(false);
        look(*window, "locality");
        const QStringList titles = shownTabs(*window);
        const QPoint from = middleOfTab(*window, QStringLiteral("Locality")),
                     to = middleOfTab(*window, QStringLiteral("Breakdown"));
        drag(*window, {from, to + QPoint(30, 5)});
        const QStringList wanted{QStringLiteral("Selection"), QStringLiteral("Transfers"), QStringLiteral("Breakdown"),
                                 QStringLiteral("Locality")};
        EXPECT_TRUE(until([&] { return shownTabs(*window).mid(0, 4) == wanted; }))
            << shownTabs(*window).join(' ').toStdString();
        settle(*window);
        EXPECT_EQ(window->currentView(), &viewOf(*window, "locality"));
        EXPECT_TRUE(viewOf(*window, "locality").isVisible());
        // Tabs, keys and shortcuts lead to the views wherever their tabs stand.
        QTest::mouseClick(window->windowHandle(), Qt::LeftButton, {},
                          middleOfTab(*window, QStringLiteral("Breakdown")));
        settle(*window);
        EXPECT_EQ(window->currentView(), &viewOf(*window, "breakdown"));
        EXPECT_TRUE(viewOf(*window, "breakdown").isVisible());
        QTest::keySequence(window.get(), QKeySequence(QStringLiteral("Ctrl+PgDown")));
        EXPECT_EQ(window->currentView(), &viewOf(*window, "locality")) << "the tab to the right";
        QTest::keySequence(window.get(), QKeySequence(QStringLiteral("Ctrl+3")));
        EXPECT_EQ(window->currentView(), &viewOf(*window, "transfers"));
        EXPECT_TRUE(viewOf(*window, "transfers").isVisible());
        chooseOfTab(*window, "locality", QStringLiteral("Split Right"));
        settle(*window);
        EXPECT_TRUE(placeOf(*window, "locality").left() > placeOf(*window, "transfers").right());
        chooseOfTab(*window, "breakdown", QStringLiteral("Move Left"));
        EXPECT_EQ(shownTabs(*window).mid(0, 3),
                  (QStringList{QStringLiteral("Selection"), QStringLiteral("Breakdown"), QStringLiteral("Transfers")}));
        trigger(*window, "quit");
        return titles;
    }();
    const auto window = makeWindow(false);
    ASSERT_TRUE(until([&] { return window->workspace().current() && isSettled(window->workspace()); }));
    EXPECT_EQ(shownTabs(*window).mid(0, 3),
              (QStringList{QStringLiteral("Selection"), QStringLiteral("Breakdown"), QStringLiteral("Transfers")}));
    EXPECT_EQ(window->currentView()->id(), QStringLiteral("transfers"));
    std::unique_ptr<MainWindow> other(window->newWindow());
    other->setAttribute(Qt::WA_DeleteOnClose, false);
    ASSERT_TRUE(until([&] { return other->currentView() != nullptr; }));
    EXPECT_EQ(shownTabs(*other).mid(0, 4), (QStringList{QStringLiteral("Selection"), QStringLiteral("Breakdown"),
                                                        QStringLiteral("Transfers"), QStringLiteral("Locality")}));
    trigger(*window, "resetLayout");
    settle(*window);
    EXPECT_EQ(shownTabs(*window), atFirst);
    EXPECT_EQ(window->currentView()->id(), QStringLiteral("transfers"));
    EXPECT_TRUE(window->currentView()->isVisible());
}

TEST_F(ViewDocks, ATabDraggedOutOfTheBarFloats) {
    const auto window = windowOnTrace();
    look(*window, "locality");
    const QStringList atFirst = shownTabs(*window);
    const QPoint tab = middleOfTab(*window, QStringLiteral("Transfers"));
    drag(*window, {tab, tab + QPoint(3, 14), tab}); // an unsteady hand moves nothing
    settle(*window);
    EXPECT_EQ(shownTabs(*window), atFirst);
    EXPECT_TRUE(isInTabs(*window, "transfers"));
    look(*window, "locality");

    const ViewArea& area = areaOf(*window);
    const QPoint middle = area.mapTo(window.get(), area.rect().center());
    drag(*window, {tab, QPoint(tab.x(), middle.y()), middle});
    ASSERT_TRUE(isWindow(*window, "transfers"));
    settle(*window);
    const QWidget* floating = viewOf(*window, "transfers").window();
    EXPECT_TRUE(floating->geometry().contains(window->mapToGlobal(middle))) << "it lies where it was dropped";
    EXPECT_GE(floating->width(), 720) << "a window is no half of the tabs";
    EXPECT_EQ(window->currentView(), &viewOf(*window, "transfers"));
    EXPECT_TRUE(viewOf(*window, "locality").isVisible()) << "the view that was looked at before stays";
    QStringList others = atFirst;
    others.removeAll(QStringLiteral("Transfers"));
    EXPECT_EQ(shownTabs(*window), others);
    EXPECT_TRUE(viewOf(*window, "transfers").window()->close());
    EXPECT_EQ(shownTabs(*window), atFirst) << "it comes back where it was";
}

TEST_F(ViewDocks, ATabDroppedAtTheSideStandsBesideTheTabs) {
    const auto window = windowOnTrace();
    look(*window, "locality");
    const QPoint tab = middleOfTab(*window, QStringLiteral("Transfers"));
    const ViewArea& area = areaOf(*window);
    const QPoint side = area.mapTo(window.get(), QPoint(area.width() - 20, area.height() / 2));
    drag(*window, {tab, QPoint(tab.x(), side.y()), side});
    settle(*window);
    EXPECT_TRUE(until([&] {
        return areaOf(*window).isApart(indexOf("transfers")) && !areaOf(*window).isFloating(indexOf("transfers")) &&
               placeOf(*window, "transfers").left() > placeOf(*window, "locality").right();
    })) << placeOf(*window, "transfers").left()
        << " and " << placeOf(*window, "locality").right();
    EXPECT_EQ(window->currentView(), &viewOf(*window, "transfers"));
}

TEST_F(ViewDocks, InASmallWindowTheInspectorGivesWayToTwoViews) {
    const auto window = windowOnTrace();
    const auto* inspector = window->findChild<QDockWidget*>(QStringLiteral("inspectorDock"));
    window->resize(1100, 700);
    settle(*window);
    ASSERT_TRUE(inspector->isVisible());
    look(*window, "locality");
    look(*window, "transfers");
    QTest::keySequence(window.get(), QKeySequence(QStringLiteral("F8")));
    settle(*window);
    EXPECT_TRUE(until([&] { return !inspector->isVisible(); })) << "there is no room for it";
    EXPECT_TRUE(until([&] {
        const int left = placeOf(*window, "locality").width(), right = placeOf(*window, "transfers").width();
        return std::abs(left - right) < 60 && std::min(left, right) > 300;
    })) << placeOf(*window, "locality").width()
        << " and " << placeOf(*window, "transfers").width();
    // The inspector is shown where a person asks for it.
    window->findChild<QDockWidget*>(QStringLiteral("inspectorDock"))->toggleViewAction()->trigger();
    settle(*window);
    EXPECT_TRUE(inspector->isVisible());
    window->findChild<QDockWidget*>(QStringLiteral("inspectorDock"))->toggleViewAction()->trigger();
    QTest::keySequence(window.get(), QKeySequence(QStringLiteral("Shift+F9")));
    settle(*window);
    EXPECT_FALSE(inspector->isVisible()) << "a person closed it";
    trigger(*window, "resetLayout");
    settle(*window);
    ASSERT_TRUE(inspector->isVisible());
    QTest::keySequence(window.get(), QKeySequence(QStringLiteral("F8")));
    settle(*window);
    ASSERT_TRUE(until([&] { return !inspector->isVisible(); }));
    QTest::keySequence(window.get(), QKeySequence(QStringLiteral("Shift+F9")));
    settle(*window);
    EXPECT_TRUE(until([&] { return inspector->isVisible(); })) << "it comes back with the room";
}

/// The room that a larger window gives went to the tabs alone: a view beside them stayed as narrow as it was.
TEST_F(ViewDocks, ViewsKeepTheirSharesWhenTheWindowGrows) {
    const auto window = windowOnTrace();
    window->resize(1024, 700);
    settle(*window);
    look(*window, "locality");
    look(*window, "selection");
    trigger(*window, "splitRight");
    settle(*window);
    const auto widthShare = [&] { return placeOf(*window, "selection").width() / double(areaOf(*window).width()); };
    ASSERT_TRUE(until([&] { return std::abs(widthShare() - 0.5) < 0.05; })) << widthShare();
    window->resize(1600, 1000);
    settle(*window);
    EXPECT_TRUE(until([&] { return std::abs(widthShare() - 0.5) < 0.05; })) << widthShare();
    // Where the divider was put, it stays in proportion.
    auto* dock = window->findChild<ViewDock*>();
    const int there = areaOf(*window).width();
    areaOf(*window).resizeDocks({dock}, {there * 3 / 4}, Qt::Horizontal);
    ASSERT_TRUE(until([&] { return widthShare() > 0.7; })) << widthShare();
    window->resize(2000, 1000);
    settle(*window);
    EXPECT_GT(areaOf(*window).width(), there + 300);
    EXPECT_TRUE(until([&] { return std::abs(widthShare() - 0.75) < 0.04; })) << widthShare();
    window->resize(1600, 1000);
    settle(*window);
    EXPECT_TRUE(until([&] { return std::abs(widthShare() - 0.75) < 0.04; })) << widthShare();
}

TEST_F(ViewDocks, ViewsBelowTheTabsKeepTheirSharesToo) {
    const auto window = windowOnTrace();
    window->resize(1200, 800);
    settle(*window);
    look(*window, "locality");
    look(*window, "transfers");
    trigger(*window, "splitDown");
    settle(*window);
    const auto heightShare = [&] {
        return window->findChild<ViewDock*>()->height() / double(areaOf(*window).height());
    };
    const double before = heightShare();
    const int there = areaOf(*window).height();
    window->resize(1200, 1300);
    settle(*window);
    EXPECT_GT(areaOf(*window).height(), there + 300);
    EXPECT_TRUE(until([&] { return std::abs(heightShare() - before) < 0.03; })) << before << ", " << heightShare();
}

/// A tab that is dragged was painted over its neighbour's name.
TEST_F(ViewDocks, ATabThatIsDraggedHidesWhatItPasses) {
    const auto window = windowOnTrace();
    look(*window, "locality");
    QTabBar& bar = *tabsOf(*window).tabBar();
    const QPoint tab = bar.tabRect(tabsOf(*window).currentIndex()).center();
    QTest::mousePress(&bar, Qt::LeftButton, {}, tab);
    QTest::mouseMove(&bar, tab + QPoint(20, 0));
    QTest::mouseMove(&bar, tab + QPoint(40, 0));
    QWidget* moving = nullptr;
    for (auto* child : bar.findChildren<QWidget*>(QString(), Qt::FindDirectChildrenOnly))
        if (child->isVisible() && child->geometry().contains(tab + QPoint(20, 0))) moving = child;
    ASSERT_NE(moving, nullptr);
    QImage picture(moving->size(), QImage::Format_ARGB32);
    picture.fill(Qt::transparent);
    moving->render(&picture, {}, {}, {});
    for (int x = 1; x < picture.width() - 1; ++x) // a pixel at each end lies beyond the tab
        ASSERT_EQ(picture.pixelColor(x, picture.height() / 2).alpha(), 255) << "at " << x << " of " << picture.width();
    QTest::mouseRelease(&bar, Qt::LeftButton, {}, tab);
}

TEST_F(ViewDocks, TheLastTabCannotBeDraggedOut) {
    const auto window = windowOnTrace();
    ViewArea& area = areaOf(*window);
    for (int index = 1; index < int(views().size()); ++index) area.floatView(index);
    settle(*window);
    const QPoint tab = middleOfTab(*window, QStringLiteral("Locality"));
    drag(*window, {tab, tab + QPoint(0, 200)});
    settle(*window);
    EXPECT_TRUE(isInTabs(*window, "locality"));
    EXPECT_EQ(shownTabs(*window), QStringList{QStringLiteral("Locality")});
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
