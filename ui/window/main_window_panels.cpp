// Room for the views: in a small window the panels around them give way before they do.
#include "ui/window/main_window.h"

#include <QDockWidget>
#include <QTimer>

#include <algorithm>
#include <utility>

namespace kvscope::ui {

namespace {

constexpr int kInspectorFrom = 1000;            // a narrower window does without it, unless somebody wants it
constexpr int kViewsShare = 50;                 // percent of the window that belong to the views at least
constexpr int kSession = 330, kInspector = 300; // as wide as they are at first
constexpr int kSmallSession = 290, kSmallInspector = 250, kSmallFrom = 1250;

} // namespace

/// As at first in a window of this size.
void MainWindow::arrangeDocks(QSize window) {
    const bool narrow = window.width() < kSmallFrom, low = window.height() < 800;
    inspectorWaits_ = window.width() < kInspectorFrom;
    inspectorWanted_ = false;
    roomyColumns_.clear();
    inspectorDock_->setVisible(!inspectorWaits_);
    resizeDocks({sessionDock_, inspectorDock_},
                narrow ? QList{kSmallSession, kSmallInspector} : QList{kSession, kInspector}, Qt::Horizontal);
    resizeDocks({sessionDock_, runsDock_}, {low ? 400 : 760, 150}, Qt::Vertical);
    resizeDocks({tokensDock_}, {window.height() < 650 ? 90 : low ? 120 : 172}, Qt::Vertical);
}

void MainWindow::followInspectorsToggle() {
    connect(inspectorDock_->toggleViewAction(), &QAction::triggered, this, [this](bool shown) {
        inspectorWaits_ = false; // a person has decided
        inspectorWanted_ = shown;
        giveViewsRoom();
    });
}

void MainWindow::resizeEvent(QResizeEvent* event) {
    QMainWindow::resizeEvent(event);
    if (std::exchange(roomAsked_, true)) return;
    QTimer::singleShot(0, this, [this] { // when the docks have their new sizes
        roomAsked_ = false;
        giveViewsRoom();
    });
}

void MainWindow::giveViewsRoom() {
    if (width() >= kInspectorFrom) inspectorWanted_ = false; // it was wanted in a small window
    if (inspectorWaits_ && width() >= kInspectorFrom) {
        inspectorWaits_ = false;
        inspectorDock_->show();
    } else if (width() < kInspectorFrom && inspectorDock_->isVisible() && !inspectorDock_->isFloating() &&
               !inspectorWanted_) {
        inspectorWaits_ = true;
        inspectorDock_->hide();
    }

    // The docks at the sides are wider than the window can spare: they shrink to what they need, and grow back to what
    // they were when there is room again.
    const auto columnOf = [this](const QDockWidget* dock) {
        return dock->isVisible() && !dock->isFloating() &&
                       (dockWidgetArea(const_cast<QDockWidget*>(dock)) &
                        (Qt::LeftDockWidgetArea | Qt::RightDockWidgetArea))
                   ? dock->width()
                   : 0;
    };
    const QList<QDockWidget*> columns{sessionDock_, inspectorDock_};
    // One above the other, or behind it, they are one column.
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
