// Shared by all windows: theme, colour maps, the way back through the cursor's places, and a second window.
#include "profiler/read/step_kind.h"
#include "ui/frame/as_written.h"
#include "ui/frame/cursor_history.h"
#include "ui/frame/home_window.h"
#include "ui/look/colour_maps.h"
#include "ui/look/theme.h"
#include "ui/session/session_controller.h"
#include "ui/widgets/colour_map_menu.h"
#include "ui/widgets/session_form.h"
#include "ui/window/main_window.h"
#include "ui/window/panels.h"
#include "ui/window/screen_room.h"
#include "ui/window/view_area.h"
#include "ui/window/window_server.h"

#include <QAction>
#include <QApplication>
#include <QMenu>
#include <QMouseEvent>
#include <QToolBar>
#include <QToolButton>

#include <algorithm>

namespace kvscope::ui {

namespace {

constexpr int kPlacesShown = 15; // entries in the menus for back and forward

std::vector<MainWindow*> allWindows() {
    std::vector<MainWindow*> windows;
    for (QWidget* widget : QApplication::topLevelWidgets())
        if (auto* window = qobject_cast<MainWindow*>(widget)) windows.push_back(window);
    return windows;
}

} // namespace

void MainWindow::setTheme(const QString& id) {
    Theme::apply(*qApp, Theme::byId(id));
    adoptTheme();
    for (MainWindow* window : allWindows())
        if (window != this) window->adoptTheme();
}

/// One switch for all windows: every view, and every tool bar, reads its numbers again.
void MainWindow::countCold(bool count) {
    const ColdSteps wanted = count ? ColdSteps::Counted : ColdSteps::LeftOut;
    if (wanted == coldSteps() && saved_.countCold == count) return; // another window has been here before
    setColdSteps(wanted);
    for (MainWindow* window : allWindows()) {
        window->saved_.countCold = count;
        window->action("countCold")->setChecked(count);
        emit window->workspace_->currentChanged();
    }
}

/// The first window brings back what was saved; the others look like it.
void MainWindow::restoreLook() {
    if (allWindows().size() > 1) {
        adoptTheme();
        colourMaps_->setChosen(saved_.sequentialMap, saved_.divergingMap);
        return;
    }
    // Copies, because setColourMaps writes to saved_.
    const QString sequential = saved_.sequentialMap, diverging = saved_.divergingMap;
    setColourMaps(sequential, diverging);
}

/// Draws this window in the program's theme and colour maps. Called after either changed.
void MainWindow::adoptTheme() {
    theme_ = Theme::current().id;
    saved_.sequentialMap = QLatin1String(Theme::sequentialMap().id);
    saved_.divergingMap = QLatin1String(Theme::divergingMap().id);
    area_->applyTheme();
    action("theme")->setChecked(theme_ == QLatin1String("dark"));
    updateIcons();
    updateActions();
    update();
}

void MainWindow::setColourMaps(const QString& sequential, const QString& diverging, bool remember) {
    const bool same = &colourMap(sequentialMaps(), sequential) == &Theme::sequentialMap() &&
                      &colourMap(divergingMaps(), diverging) == &Theme::divergingMap();
    if (same && !remember) return; // the menu was closed without trying a map
    Theme::chooseMaps(sequential, diverging);
    adoptTheme();
    for (MainWindow* window : allWindows()) {
        if (window != this) window->adoptTheme();
        if (remember) window->colourMaps_->setChosen(saved_.sequentialMap, saved_.divergingMap);
    }
    if (remember) colourMaps_->setChosen(saved_.sequentialMap, saved_.divergingMap);
}

void MainWindow::makeNavigation() {
    const auto add = [this](const char* name, const QString& title, QAction* before) {
        auto* button = new QToolButton;
        button->setDefaultAction(action(name));
        button->setToolButtonStyle(Qt::ToolButtonIconOnly);
        button->setPopupMode(QToolButton::DelayedPopup); // holding the button opens the list
        auto* menu = new QMenu(title, this);
        button->setMenu(menu);
        toolBar_->insertWidget(before, button);
        return menu;
    };
    QAction* first = toolBar_->actions().value(0);
    QMenu* back = add("cursorBack", tr("Places before"), first);
    QMenu* forward = add("cursorForward", tr("Places after"), first);
    if (first) toolBar_->insertSeparator(first);
    const auto fill = [this](QMenu* menu, int direction) {
        menu->clear();
        const auto& places = history_->places();
        const int at = history_->at();
        for (int by = direction; std::abs(by) <= kPlacesShown; by += direction) {
            const int place = at + by;
            if (place < 0 || place >= int(places.size())) break;
            menu->addAction(buttonText(history_->describe(places[std::size_t(place)], places[std::size_t(at)])), this,
                            [this, by] { history_->go(by); });
        }
    };
    connect(back, &QMenu::aboutToShow, this, [back, fill] { fill(back, -1); });
    connect(forward, &QMenu::aboutToShow, this, [forward, fill] { fill(forward, 1); });
    connect(history_, &CursorHistory::changed, this, &MainWindow::updateNavigation);
    updateNavigation();
}

void MainWindow::updateNavigation() {
    const auto& places = history_->places();
    const int at = history_->at();
    const auto show = [&](const char* name, bool possible, int place, const QString& what, const QString& empty) {
        QAction* shown = action(name);
        shown->setEnabled(possible);
        const QString keys = shown->shortcut().toString(QKeySequence::NativeText);
        shown->setToolTip(
            possible ? asWritten(tr("%1 to %2 (%3)")
                                     .arg(what, history_->describe(places[std::size_t(place)], places[std::size_t(at)]),
                                          keys))
                     : tr("%1 (%2)").arg(empty, keys));
    };
    show("cursorBack", history_->canGoBack(), at - 1, tr("Back"), tr("Back: no place before this one"));
    show("cursorForward", history_->canGoForward(), at + 1, tr("Forward"), tr("Forward: no place after this one"));
}

bool MainWindow::eventFilter(QObject* watched, QEvent* event) {
    if (event->type() == QEvent::MouseButtonPress || event->type() == QEvent::MouseButtonDblClick) {
        const Qt::MouseButton button = static_cast<QMouseEvent*>(event)->button();
        const auto* widget = qobject_cast<QWidget*>(watched);
        if ((button == Qt::BackButton || button == Qt::ForwardButton) && widget && homeOf(*widget) == this) {
            history_->go(button == Qt::BackButton ? -1 : 1);
            return true;
        }
    }
    if (event->type() == QEvent::DragEnter || event->type() == QEvent::DragMove || event->type() == QEvent::Drop)
        if (auto* over = qobject_cast<QWidget*>(watched); over && takesDrag(over, event)) return true;
    return QMainWindow::eventFilter(watched, event);
}

MainWindow* MainWindow::newWindow() {
    auto* window = new MainWindow(settings_);
    window->setAttribute(Qt::WA_DeleteOnClose);
    window->setReportProgram(reportProgram_);
    window->setServerProgram(served_->program());
    window->continueFrom(*this);
    window->show();
    return window;
}

/// Makes this new window show the traces, the place and the view of `other`, a little to the right and below.
void MainWindow::continueFrom(MainWindow& other) {
    other.saveSession(); // updates other.saved_, which has the recent files and the form
    saved_ = other.saved_;
    saved_.openFiles.clear();
    form_->setValues(saved_.form);
    updateRecent();
    const QPoint place = other.pos() + QPoint(36, 36);
    move(place);
    resize(other.size().boundedTo(roomFrom(*this, place)));
    panels_->restore(other.panels_->layout());
    form_->setFocus(); // restoring the panels has moved the focus
    showView(saved_.view);
    area_->restore({{}, {}, saved_.places.order}); // the views that have left the tabs stay with the other window
    if (other.controller_->model() && other.form_->hasModel())
        controller_->adoptModel(other.form_->modelName(), other.controller_->model());
    QStringList paths;
    for (const OpenRun& run : other.workspace_->runs())
        if (!paths.contains(run.key.path)) paths << run.key.path;
    for (const QString& path : paths) workspace_->open(path);
    const OpenRun* shown = other.workspace_->current();
    if (!shown) return;
    std::vector<RunKey> sides;
    for (const OpenRun* side : other.workspace_->sides()) sides.push_back(side->key);
    // Workspace::open shows the first run of each file that it has read. When all files are read, the run that `other`
    // shows is brought to the front.
    auto waiting = std::make_shared<QMetaObject::Connection>();
    *waiting = connect(workspace_.get(), &Workspace::busyChanged, this,
                       [this, waiting, key = shown->key, cursor = other.workspace_->cursor(), sides](bool busy) {
                           if (busy || !workspace_->find(key)) return;
                           disconnect(*waiting);
                           workspace_->setCurrent(key);
                           workspace_->setCursor(cursor, CursorMove::Follow);
                           workspace_->setCompare(std::nullopt);
                           for (const RunKey& side : sides) workspace_->setCompared(side, true);
                       });
}

} // namespace kvscope::ui
