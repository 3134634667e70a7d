// Gives the views their room: in a small window the panels around the views become smaller or are hidden first.
#include "ui/frame/view.h"
#include "ui/widgets/filter_bar.h"
#include "ui/window/main_window.h"
#include "ui/window/view_area.h"

#include <QAction>
#include <QDockWidget>
#include <QLayout>
#include <QTimer>

#include <algorithm>
#include <utility>

namespace kvscope::ui {

namespace {

constexpr int kInspectorFrom = 1000;            // px; narrower windows hide the inspector unless the user opens it
constexpr int kLeastColumn = 330;               // px of each of several views side by side beside the inspector
constexpr int kViewsShare = 50;                 // least share of the width for the views, in percent
constexpr int kSession = 330, kInspector = 300; // widths at first, px
constexpr int kSmallSession = 290, kSmallInspector = 250, kSmallFrom = 1250;
constexpr int kLow = 760;        // px; lower windows have one line of tokens, and a filter bar only if it is in use
constexpr int kTokens = 150;     // height of the tokens at first, px
constexpr int kTokensFrom = 800; // px; in a lower window the tokens get kFewTokens
constexpr int kFewTokens = 100;  // px

} // namespace

/// Arranges the docks as they are at first in a window of this size.
void MainWindow::arrangeDocks(QSize window) {
    const bool narrow = window.width() < kSmallFrom, low = window.height() < kTokensFrom;
    inspectorWaits_ = window.width() < kInspectorFrom;
    inspectorWanted_ = false;
    roomyColumns_.clear();
    inspectorDock_->setVisible(!inspectorWaits_);
    resizeDocks({sessionDock_, inspectorDock_},
                narrow ? QList{kSmallSession, kSmallInspector} : QList{kSession, kInspector}, Qt::Horizontal);
    resizeDocks({sessionDock_, runsDock_}, {low ? 400 : 760, 150}, Qt::Vertical);
    resizeDocks({tokensDock_}, {low ? kFewTokens : kTokens}, Qt::Vertical);
    roomyTokens_ = 0;
    filterWaits_ = filterWanted_ = false;
    filter_->show();
    giveViewsHeight();
}

void MainWindow::followPanelsToggles() {
    connect(inspectorDock_->toggleViewAction(), &QAction::triggered, this, [this](bool shown) {
        inspectorWaits_ = false; // the user has decided
        inspectorWanted_ = shown;
        giveViewsRoom();
    });
    const auto wantFilter = [this](bool shown) {
        // While only the views are shown, the bar is hidden again when the user leaves it. The layout to which the
        // window will return does not change.
        if (viewsOnly_) return;
        filterWaits_ = false;
        filterWanted_ = shown;
    };
    connect(filter_->toggleViewAction(), &QAction::triggered, this, wantFilter);
    connect(action("filter"), &QAction::triggered, this, [wantFilter] { wantFilter(true); });
    connect(filter_, &FilterBar::left, this, [this] {
        if (View* view = currentView()) view->setFocus();
        if (viewsOnly_) return filter_->hide();
        filterWanted_ = false;
        giveViewsRoom();
    });
    // A filter that changes numbers must be visible.
    connect(workspace_.get(), &Workspace::filterChanged, this, [this] {
        if (!workspace_->filter().empty() && std::exchange(filterWaits_, false)) filter_->show();
    });
}

void MainWindow::resizeEvent(QResizeEvent* event) {
    QMainWindow::resizeEvent(event);
    askForRoom();
}

/// Gives the views their room when the docks have got their new sizes.
void MainWindow::askForRoom() {
    if (std::exchange(roomAsked_, true)) return;
    QTimer::singleShot(0, this, [this] {
        roomAsked_ = false;
        giveViewsRoom();
    });
}

/// Several views side by side need more room than one.
bool MainWindow::inspectorHasRoom() const {
    if (width() < kInspectorFrom) return false;
    const int columns = area_->columns();
    const bool inspector = inspectorDock_->isVisible() && !inspectorDock_->isFloating();
    const int wanted = std::clamp(inspectorDock_->width(), kSmallInspector, 2 * kInspector); // while it is hidden
    const int spare = area_->width() - (inspector ? 0 : wanted);
    return columns < 2 || spare >= columns * kLeastColumn;
}

void MainWindow::showInspector(bool shown) {
    inspectorDock_->setVisible(shown);
    layout()->activate(); // the views keep their shares of what is left
}

QByteArray MainWindow::layoutState() const { return viewsOnly_ ? aroundViews_ : saveState(); }

void MainWindow::setViewsOnly(bool on) {
    if (on == viewsOnly_) return;
    if (on) {
        aroundViews_ = saveState();
        viewsOnly_ = true;
        for (QDockWidget* dock : docks())
            if (!dock->isFloating()) dock->hide();
        filter_->hide();
        if (View* view = currentView()) view->setFocus();
    } else {
        viewsOnly_ = false;
        restoreState(aroundViews_);
        giveViewsRoom();
    }
    action("viewsOnly")->setChecked(on);
}

/// In a low window, makes the tokens one line high and hides the filter bar while there is no filter. In a higher
/// window, undoes both.
void MainWindow::giveViewsHeight() {
    const bool low = height() < kLow;
    if (!low) filterWanted_ = false;
    if (!low && std::exchange(filterWaits_, false))
        filter_->show();
    else if (low && !filter_->isHidden() && !filterWanted_ && workspace_->filter().empty())
        filter_->setHidden(filterWaits_ = true);

    if (tokensDock_->isHidden() || tokensDock_->isFloating() || dockWidgetArea(tokensDock_) != Qt::BottomDockWidgetArea)
        return;
    // Done once: if the user makes the tokens higher afterwards, they stay higher.
    if (low && roomyTokens_ == 0) {
        roomyTokens_ = std::max(tokensDock_->height(), kFewTokens);
        resizeDocks({tokensDock_}, {tokensDock_->minimumSizeHint().height()}, Qt::Vertical);
    } else if (!low && roomyTokens_ > 0) {
        resizeDocks({tokensDock_}, {std::exchange(roomyTokens_, 0)}, Qt::Vertical);
    }
}

void MainWindow::giveViewsRoom() {
    if (viewsOnly_) return;
    giveViewsHeight();
    const bool room = inspectorHasRoom();
    if (room) inspectorWanted_ = false; // the user opened it while there was little room
    if (inspectorWaits_ && room) {
        inspectorWaits_ = false;
        showInspector(true);
    } else if (!room && inspectorDock_->isVisible() && !inspectorDock_->isFloating() && !inspectorWanted_) {
        inspectorWaits_ = true;
        showInspector(false);
    }

    // If the docks at the sides leave too little room for the views, they shrink, at most to their least width. When
    // there is room again, they get back the widths that they had before.
    const auto columnOf = [this](const QDockWidget* dock) {
        return dock->isVisible() && !dock->isFloating() &&
                       (dockWidgetArea(const_cast<QDockWidget*>(dock)) &
                        (Qt::LeftDockWidgetArea | Qt::RightDockWidgetArea))
                   ? dock->width()
                   : 0;
    };
    const QList<QDockWidget*> columns{sessionDock_, inspectorDock_};
    // If one dock lies above or behind the other, both are one column.
    const bool isOne = dockWidgetArea(sessionDock_) == dockWidgetArea(inspectorDock_) &&
                       (tabifiedDockWidgets(sessionDock_).contains(inspectorDock_) ||
                        (sessionDock_->x() <= inspectorDock_->geometry().right() &&
                         inspectorDock_->x() <= sessionDock_->geometry().right()));
    const auto together = [&](int session, int inspector) {
        return isOne ? std::max(session, inspector) : session + inspector;
    };
    const int taken = together(columnOf(sessionDock_), columnOf(inspectorDock_));
    const int spare = width() * (100 - kViewsShare) / 100;
    if (taken > spare) {
        if (roomyColumns_.isEmpty())
            for (const QDockWidget* dock : columns) roomyColumns_ << std::max(columnOf(dock), dock->minimumWidth());
        QList<int> least;
        for (const QDockWidget* dock : columns)
            least << std::max(dock->minimumSizeHint().width(), spare * dock->width() / taken);
        resizeDocks(columns, least, Qt::Horizontal);
        return;
    }
    if (roomyColumns_.isEmpty() || inspectorWaits_) return;
    const auto wantedBy = [&](int i) { return columnOf(columns[i]) > 0 ? roomyColumns_[i] : 0; };
    if (together(wantedBy(0), wantedBy(1)) > spare) return;
    resizeDocks(columns, std::exchange(roomyColumns_, {}), Qt::Horizontal);
}

} // namespace kvscope::ui
