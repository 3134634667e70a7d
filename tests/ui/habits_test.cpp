// What a person's hands expect of every window: back and forward, keys for everything, copying, names for screen
// readers, colours that stay as chosen, a second window.
#include "tests/ui/nameless_controls.h"
#include "tests/ui/window_fixture.h"

#include "ui/frame/cursor_history.h"
#include "ui/frame/small_widgets.h"
#include "ui/look/theme.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"
#include "ui/widgets/colour_map_menu.h"
#include "ui/widgets/help_overlay.h"
#include "ui/widgets/inspector.h"
#include "ui/widgets/session_form.h"
#include "ui/widgets/sql_editor.h"
#include "ui/widgets/token_strip.h"
#include "ui/window/shortcut_list.h"

#include <QAbstractSpinBox>
#include <QAccessible>
#include <QClipboard>
#include <QComboBox>
#include <QDialog>
#include <QDockWidget>
#include <QLabel>
#include <QMenu>
#include <QMenuBar>
#include <QPushButton>
#include <QScrollBar>
#include <QShortcut>
#include <QSpinBox>
#include <QTabWidget>
#include <QToolBar>
#include <QToolButton>

#include <map>

namespace kvscope::ui {
namespace KVSCOPE_TEST_FILE {

class HabitsTest : public WindowTest {
protected:
    static PlotCanvas& canvasOf(MainWindow& window) { return dynamic_cast<PlotView&>(*window.currentView()).canvas(); }
    static void clickStep(MainWindow& window, int step) {
        PlotCanvas& plot = canvasOf(window);
        const QCPAxisRect* panel = plot.panels().front();
        const QPoint at(int(panel->axis(QCPAxis::atBottom)->coordToPixel(step)), panel->rect().center().y());
        QTest::mouseClick(&plot, Qt::LeftButton, {}, at);
    }
    /// Looks at every view once, so that all of them exist.
    static void lookAtEverything(MainWindow& window) {
        for (const ViewEntry& entry : views()) {
            window.showView(QLatin1String(entry.id));
            settle(window);
        }
        window.showView(QLatin1String(views().front().id));
        settle(window);
    }
};

TEST(Help, HasTheTimelinesKeys) {
    const QWidget window;
    const auto all = shortcutsOf(window);
    EXPECT_TRUE(std::any_of(all.begin(), all.end(), [](const ShortcutText& line) {
        return line.group == QStringLiteral("Timeline") && line.keys.contains(QStringLiteral("Shift+N"));
    }));
}

TEST(MeasuredLabel, HasTheSizesOfAPlainOneWhateverChanges) {
    MeasuredLabel measured;
    QLabel plain;
    const auto same = [&](const char* when) {
        for (int round = 0; round < 2; ++round) { // the first round measures, the second one reads what was remembered
            for (const int width : {40, 90, 300})
                EXPECT_EQ(measured.heightForWidth(width), plain.heightForWidth(width)) << when << ", width " << width;
            EXPECT_EQ(measured.sizeHint(), plain.sizeHint()) << when;
            EXPECT_EQ(measured.minimumSizeHint(), plain.minimumSizeHint()) << when;
        }
    };
    const auto both = [&](const char* when, const auto& change) {
        change(measured);
        change(plain);
        same(when);
    };
    same("empty");
    both("text", [](QLabel& label) { label.setText(QStringLiteral("a value of several words that wraps")); });
    both("wrapped", [](QLabel& label) { label.setWordWrap(true); });
    both("selectable", [](QLabel& label) { label.setTextInteractionFlags(Qt::TextSelectableByMouse); });
    both("rich", [](QLabel& label) { label.setText(QStringLiteral("<b>bold</b><br>second<sup>?</sup>")); });
    both("margin", [](QLabel& label) { label.setMargin(7); });
    both("larger", [](QLabel& label) {
        QFont font = label.font();
        font.setPointSizeF(font.pointSizeF() * 2);
        label.setFont(font);
    });
    both("shorter", [](QLabel& label) { label.setText(QStringLiteral("1")); });
    both("margins of the frame", [](QLabel& label) { label.setContentsMargins(3, 9, 3, 9); });
}

TEST_F(HabitsTest, AltArrowsAndTheMousesSideButtonsGoBackAndForward) {
    const auto window = windowOnTrace();
    window->history().setPause(0);
    Workspace& workspace = window->workspace();
    window->showView("locality");
    settle(*window);
    canvasOf(*window).replot();
    clickStep(*window, 2);
    clickStep(*window, 5);
    ASSERT_EQ(workspace.cursor().step, 5);
    QTest::keySequence(&canvasOf(*window), QKeySequence("Alt+Left")); // a plot has arrow keys of its own
    EXPECT_EQ(workspace.cursor().step, 2);
    QTest::keySequence(window.get(), QKeySequence("Alt+Right"));
    EXPECT_EQ(workspace.cursor().step, 5);
    QTest::mouseClick(&canvasOf(*window), Qt::BackButton);
    EXPECT_EQ(workspace.cursor().step, 2);
    QTest::mouseClick(window->tokens().strip()->viewport(), Qt::ForwardButton);
    EXPECT_EQ(workspace.cursor().step, 5);
    EXPECT_FALSE(window->action("cursorForward")->isEnabled());
    EXPECT_TRUE(window->action("cursorBack")->toolTip().contains("step 2"));
    EXPECT_TRUE(window->action("cursorBack")->toolTip().contains("Alt+Left"));
    bool onToolBar = false;
    for (const auto* button : window->findChildren<QToolButton*>())
        onToolBar = onToolBar || (button->defaultAction() == window->action("cursorBack") && button->isVisible());
    EXPECT_TRUE(onToolBar);
}

TEST_F(HabitsTest, EveryStepViewLinksInBothDirections) {
    const auto window = windowOnTrace();
    Workspace& workspace = window->workspace();
    for (const char* id : {"locality", "selection", "transfers", "breakdown"}) {
        SCOPED_TRACE(id);
        window->showView(id);
        settle(*window);
        canvasOf(*window).replot();
        clickStep(*window, 4);
        EXPECT_EQ(workspace.cursor().step, 4) << "a click moves the shared cursor";
        Cursor cursor = workspace.cursor();
        cursor.step = 2;
        workspace.setCursor(cursor);
        const CursorMark mark = canvasOf(*window).overlay().markOf(canvasOf(*window).panels().front());
        ASSERT_TRUE(mark.x) << "the shared cursor is marked";
        EXPECT_EQ(*mark.x, 2);
    }
    QTest::mouseClick(window->tokens().strip()->viewport(), Qt::LeftButton, {},
                      window->tokens().strip()->revealStep(3));
    EXPECT_EQ(workspace.cursor().step, 3);
    EXPECT_TRUE(until([&] { return window->inspector().stepFacts()->value("Step") == "3"; }));
}

TEST_F(HabitsTest, APlaceOutsideTheZoomIsBroughtIntoSight) {
    const auto window = windowOnTrace(true, {.decodeSteps = 60});
    window->showView("transfers");
    settle(*window);
    PlotCanvas& plot = canvasOf(*window);
    plot.zoomTo({10, 20});
    Cursor cursor = window->workspace().cursor();
    cursor.step = 50;
    window->workspace().setCursor(cursor);
    EXPECT_GE(plot.visibleX().upper, 50.4);
    EXPECT_NEAR(plot.visibleX().size(), 10, 1e-6) << "panned, not zoomed";
    cursor.step = 5;
    window->workspace().setCursor(cursor, CursorMove::Follow);
    EXPECT_GE(plot.visibleX().lower, 20) << "a live run does not pull the plot along";
}

TEST_F(HabitsTest, ZoomIsUndoneAndRedoneWithTheSameKeysInEveryPlot) {
    const auto window = windowOnTrace(true, {.decodeSteps = 60});
    for (const ViewEntry& entry : views()) {
        window->showView(QLatin1String(entry.id));
        settle(*window);
        auto* view = dynamic_cast<PlotView*>(window->currentView());
        if (!view || !view->emptyText().isEmpty() || view->canvas().panels().empty()) continue;
        SCOPED_TRACE(entry.id);
        PlotCanvas& plot = view->canvas();
        const QCPRange whole = plot.visibleX();
        plot.setFocus();
        QTest::keyClick(&plot, Qt::Key_Plus);
        const QCPRange zoomed = plot.visibleX();
        ASSERT_LT(zoomed.size(), whole.size() * 0.99);
        QTest::keySequence(window.get(), QKeySequence("Ctrl+Z"));
        EXPECT_NEAR(plot.visibleX().size(), whole.size(), 1e-9);
        QTest::keySequence(window.get(), QKeySequence("Ctrl+Y"));
        EXPECT_NEAR(plot.visibleX().size(), zoomed.size(), 1e-9);
        QTest::keySequence(window.get(), QKeySequence("Ctrl+0"));
        EXPECT_NEAR(plot.visibleX().size(), whole.size(), 1e-9);
    }
}

TEST_F(HabitsTest, TheHelpListsEveryShortcutOfTheWindow) {
    const auto window = windowOnTrace();
    lookAtEverything(*window);
    trigger(*window, "shortcuts");
    const QString text = window->help().text();
    int shortcuts = 0;
    for (const QAction* action : window->findChildren<QAction*>()) {
        for (const QKeySequence& key : action->shortcuts()) {
            if (key.isEmpty()) continue;
            ++shortcuts;
            EXPECT_TRUE(text.contains(key.toString(QKeySequence::NativeText))) << action->text().toStdString();
        }
    }
    EXPECT_GT(shortcuts, 30);
    for (const QShortcut* shortcut : window->findChildren<QShortcut*>())
        EXPECT_FALSE(shortcut->whatsThis().isEmpty())
            << shortcut->key().toString().toStdString() << " has no words for the help";
    for (const auto& gestures : {PlotCanvas::gestures(), TokenStrip::gestures()})
        for (const ShortcutText& gesture : gestures)
            EXPECT_TRUE(text.contains(gesture.action)) << gesture.action.toStdString();
}

TEST_F(HabitsTest, TheHelpKnowsTheKeysOfViewsThatNobodyHasLookedAt) {
    const auto window = windowOnTrace();
    ASSERT_EQ(window->findChild<SqlEditor*>(), nullptr);
    trigger(*window, "shortcuts");
    EXPECT_TRUE(window->help().text().contains(QStringLiteral("Ctrl+Return"))) << "which runs a query";
    EXPECT_TRUE(window->help().text().contains(QStringLiteral("F11")));
}

TEST_F(HabitsTest, TheKeysGoToTheViewThatARunBringsUnlessSomebodyIsAtTheForm) {
    const auto window = windowOnTrace();
    EXPECT_TRUE(window->currentView()->isAncestorOf(window->focusWidget()));
    const auto other = std::unique_ptr<MainWindow>(window->newWindow());
    other->setAttribute(Qt::WA_DeleteOnClose, false);
    ASSERT_TRUE(until([&] { return other->workspace().current() && other->workspace().idle(); }));
    EXPECT_TRUE(other->currentView()->isAncestorOf(other->focusWidget()))
        << (other->focusWidget() ? other->focusWidget()->objectName().toStdString() : "nothing") << " has it";

    const auto busy = makeWindow();
    auto* length = busy->form().findChild<QSpinBox*>(QStringLiteral("maxNewTokens"));
    length->setFocus();
    busy->openFiles({window->workspace().current()->key.path});
    ASSERT_TRUE(until([&] { return busy->workspace().current() && busy->workspace().idle(); }));
    EXPECT_EQ(busy->focusWidget(), length);
}

TEST_F(HabitsTest, AViewThatEmptiesGivesTheFocusToNoButton) {
    const auto window = windowOnTrace();
    window->showView("selection");
    settle(*window);
    canvasOf(*window).setFocus();
    Filter nothing;
    nothing.text = QStringLiteral("no token says this");
    window->workspace().setFilter(nothing);
    settle(*window);
    const auto* view = dynamic_cast<PlotView*>(window->currentView());
    ASSERT_FALSE(view->emptyText().isEmpty());
    EXPECT_TRUE(view->isAncestorOf(window->focusWidget()));
    EXPECT_EQ(qobject_cast<QPushButton*>(window->focusWidget()), nullptr) << "Space would press it";
}

TEST_F(HabitsTest, NoTwoActionsClaimTheSameKey) {
    const auto window = windowOnTrace();
    lookAtEverything(*window);
    std::map<QString, QString> owners;
    for (const QAction* action : window->findChildren<QAction*>()) {
        if (action->shortcutContext() != Qt::WindowShortcut) continue;
        for (const QKeySequence& key : action->shortcuts()) {
            if (key.isEmpty()) continue;
            const auto [owner, added] = owners.emplace(key.toString(), action->objectName());
            EXPECT_TRUE(added) << key.toString().toStdString() << ": " << owner->second.toStdString() << " and "
                               << action->objectName().toStdString();
        }
    }
}

TEST_F(HabitsTest, NumberedViewsStandInTheOrderOfTheirKeys) {
    int last = 0;
    for (const ViewEntry& entry : views()) {
        const QString key = QString::fromLatin1(entry.shortcut);
        if (!key.startsWith("Ctrl+") || !key.back().isDigit()) continue;
        EXPECT_GT(key.back().digitValue(), last) << entry.id;
        last = key.back().digitValue();
    }
    EXPECT_GE(last, 7);
}

TEST_F(HabitsTest, EveryActionIsInAMenu) {
    const auto window = windowOnTrace();
    QSet<const QAction*> inMenus;
    for (const QMenu* menu : window->menuBar()->findChildren<QMenu*>())
        for (const QAction* action : menu->actions()) inMenus.insert(action);
    for (const QAction* action : window->actions())
        if (!action->objectName().isEmpty()) {
            EXPECT_TRUE(inMenus.contains(action)) << action->objectName().toStdString();
        }
}

TEST_F(HabitsTest, EveryControlHasANameForScreenReaders) {
    const auto window = windowOnTrace();
    lookAtEverything(*window);
    int checked = 0;
    const QStringList nameless = namelessControls(*window, checked);
    EXPECT_GT(checked, 80);
    EXPECT_TRUE(nameless.isEmpty()) << nameless.join("\n").toStdString();
}

TEST_F(HabitsTest, APlotIsAChartThatSaysWhatIsUnderTheCursor) {
    const auto window = windowOnTrace();
    window->showView("transfers");
    settle(*window);
    Cursor cursor = window->workspace().cursor();
    cursor.step = 3;
    window->workspace().setCursor(cursor);
    QAccessibleInterface* reader = QAccessible::queryAccessibleInterface(&canvasOf(*window));
    ASSERT_NE(reader, nullptr);
    EXPECT_EQ(reader->role(), QAccessible::Chart);
    EXPECT_TRUE(reader->text(QAccessible::Name).contains("Transfers"));
    EXPECT_TRUE(reader->text(QAccessible::Value).contains("step 3")) << reader->text(QAccessible::Value).toStdString();
    EXPECT_TRUE(reader->text(QAccessible::Description).contains("Arrow keys"));
}

TEST_F(HabitsTest, TheViewInFrontIsCopiedAsTablePictureAndSql) {
    const auto window = windowOnTrace();
    window->showView("transfers");
    settle(*window);
    QApplication::clipboard()->clear();
    trigger(*window, "copyTable");
    ASSERT_TRUE(until([] { return !QApplication::clipboard()->text().isEmpty(); })) << "a worker writes it";
    const QStringList lines = QApplication::clipboard()->text().split('\n', Qt::SkipEmptyParts);
    ASSERT_EQ(lines.size(), 7) << "a header and six decode steps";
    EXPECT_EQ(lines[0], "run\tstep\thits\tmisses\th2d_bytes\td2h_bytes\ttransfer_ns\texposed_ns");
    EXPECT_EQ(lines[3].split('\t').size(), 8);
    trigger(*window, "copyImage");
    EXPECT_GT(QApplication::clipboard()->image().width(), 800);
    trigger(*window, "copySql");
    EXPECT_TRUE(QApplication::clipboard()->text().startsWith("SELECT step, hits"));
    window->workspace().setCursor({.step = 3});
    ASSERT_TRUE(until([&] { return window->inspector().stepFacts()->value("Step") == "3"; }));
    window->inspector().stepFacts()->actions().first()->trigger();
    EXPECT_TRUE(QApplication::clipboard()->text().startsWith("Step\t3\nWall time\t"))
        << QApplication::clipboard()->text().toStdString();
}

TEST_F(HabitsTest, ColourMapsAreTriedTakenAndRemembered) {
    const auto before = Theme::sequential(0.5);
    {
        const auto window = windowOnTrace(false);
        window->showView("locality");
        settle(*window);
        QAction* inferno = nullptr;
        for (QAction* action : window->colourMaps().actions())
            if (action->data() == "inferno") inferno = action;
        ASSERT_NE(inferno, nullptr);
        const QImage plain = window->currentView()->grab().toImage();
        inferno->hover();
        EXPECT_NE(Theme::sequential(0.5), before);
        settle(*window);
        EXPECT_NE(window->currentView()->grab().toImage(), plain) << "the plot shows what is tried";
        emit window->colourMaps().aboutToHide();
        EXPECT_EQ(Theme::sequential(0.5), before);
        inferno->trigger();
        EXPECT_NE(Theme::sequential(0.5), before);
        window->close();
    }
    Theme::chooseMaps({}, {});
    {
        const auto window = makeWindow(false);
        EXPECT_EQ(window->colourMaps().sequential(), "inferno");
        EXPECT_NE(Theme::sequential(0.5), before);
        window->setColourMaps({}, {});
    }
    EXPECT_EQ(Theme::sequential(0.5), before);
}

TEST_F(HabitsTest, ASecondWindowShowsTheSamePlaceAndFollows) {
    const auto window = windowOnTrace();
    ASSERT_TRUE(until([&] { return window->controller().model() != nullptr; }));
    window->showView("transfers");
    window->workspace().setCursor({.step = 4, .layer = 1});
    MainWindow* second = window->newWindow();
    ASSERT_TRUE(until([&] {
        return second->workspace().current() && second->workspace().idle() && second->workspace().cursor().step == 4;
    }));
    EXPECT_EQ(second->workspace().cursor(), window->workspace().cursor());
    EXPECT_EQ(second->findChild<QTabWidget*>("views")->currentIndex(),
              window->findChild<QTabWidget*>("views")->currentIndex());
    ASSERT_TRUE(until([&] { return second->controller().model() != nullptr; }));
    EXPECT_EQ(second->controller().model(), window->controller().model()) << "not read a second time";
    second->workspace().setCursor({.step = 2});
    EXPECT_EQ(window->workspace().cursor().step, 2);
    trigger(*second, "linkCursor"); // off
    second->workspace().setCursor({.step = 6});
    EXPECT_EQ(window->workspace().cursor().step, 2);
    second->setTheme("dark");
    EXPECT_TRUE(window->action("theme")->isChecked());
    window->setTheme("light");
    EXPECT_FALSE(second->action("theme")->isChecked());
    const QPointer<MainWindow> gone = second;
    second->close();
    EXPECT_TRUE(until([&] { return gone.isNull(); }));
    EXPECT_TRUE(window->isVisible());
}

TEST_F(HabitsTest, PanelsFloatAndTheLayoutComesBackOrIsReset) {
    {
        const auto window = windowOnTrace(false);
        auto* dock = window->findChild<QDockWidget*>("inspectorDock");
        ASSERT_TRUE(dock->features().testFlag(QDockWidget::DockWidgetFloatable));
        window->findChild<QDockWidget*>("runsDock")->hide();
        window->addDockWidget(Qt::LeftDockWidgetArea, dock);
        EXPECT_TRUE(window->close());
    }
    const auto window = makeWindow(false);
    EXPECT_EQ(window->dockWidgetArea(window->findChild<QDockWidget*>("inspectorDock")), Qt::LeftDockWidgetArea);
    EXPECT_TRUE(window->findChild<QDockWidget*>("runsDock")->isHidden());
    trigger(*window, "resetLayout");
    EXPECT_EQ(window->dockWidgetArea(window->findChild<QDockWidget*>("inspectorDock")), Qt::RightDockWidgetArea);
    EXPECT_FALSE(window->findChild<QDockWidget*>("runsDock")->isHidden());
}

TEST_F(HabitsTest, AFailedReadIsSaidAboveTheViewsAndNothingIsModal) {
    const auto window = windowOnTrace();
    emit window->workspace().failed("the trace went away; open it again");
    auto* banner = window->findChild<InlineMessage*>("banner");
    ASSERT_NE(banner, nullptr);
    EXPECT_TRUE(banner->isVisible());
    EXPECT_EQ(banner->text(), "the trace went away; open it again");
    EXPECT_EQ(QApplication::activeModalWidget(), nullptr);
    trigger(*window, "exportFigure");
    const auto* dialog = window->findChild<QDialog*>();
    ASSERT_NE(dialog, nullptr);
    EXPECT_FALSE(dialog->isModal());
}

TEST_F(HabitsTest, RecentFilesAreNumberedSayTheirFolderAndCanBeCleared) {
    const auto window = windowOnTrace();
    QMenu* recent = nullptr;
    for (QMenu* menu : window->menuBar()->findChildren<QMenu*>())
        if (menu->title().contains("Recent")) recent = menu;
    ASSERT_NE(recent, nullptr);
    ASSERT_GE(recent->actions().size(), 3);
    EXPECT_EQ(recent->actions().first()->text(), "&1 small.kvtrace");
    EXPECT_EQ(recent->actions().first()->toolTip(), QFileInfo(folder.filePath("small.kvtrace")).absoluteFilePath());
    recent->actions().last()->trigger();
    EXPECT_FALSE(recent->isEnabled());
}

TEST_F(HabitsTest, UnitsAgreeWithTheirNumber) {
    QSpinBox spin;
    spin.setRange(0, 10);
    spin.setValue(1);
    setUnit(&spin, "blocks");
    EXPECT_EQ(spin.text(), "1 block");
    spin.setValue(2);
    EXPECT_EQ(spin.text(), "2 blocks");
    spin.setValue(0);
    EXPECT_EQ(spin.text(), "0 blocks");
}

} // namespace KVSCOPE_TEST_FILE
} // namespace kvscope::ui
