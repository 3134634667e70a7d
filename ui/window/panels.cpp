#include "ui/window/panels.h"

#include "ui/frame/small_widgets.h"
#include "ui/frame/workspace.h"
#include "ui/widgets/filter_bar.h"
#include "ui/window/view_area.h"

#include <QAction>
#include <QDockWidget>
#include <QLayout>
#include <QMainWindow>
#include <QTimer>

#include <algorithm>
#include <utility>

namespace kvscope::ui {

namespace {

constexpr int kInspectorFrom = 1100;            // px; narrower windows hide the inspector unless the user opens it
constexpr int kLeastColumn = 330;               // px of each of several views side by side beside the inspector
constexpr int kViewsShare = 50;                 // least share of the width for the views, in percent
constexpr int kSession = 330, kInspector = 300; // widths at first, px
constexpr int kSmallSession = 290, kSmallInspector = 250, kSmallFrom = 1250;
constexpr int kLow = 760;        // px; lower windows have one line of tokens, and a filter bar only if it is in use
constexpr int kTokens = 150;     // height of the tokens at first, px
constexpr int kTokensFrom = 800; // px; in a lower window the tokens get kFewTokens
constexpr int kFewTokens = 100;  // px

/// At which side of the window a panel is at first.
Qt::DockWidgetArea areaOf(Panel panel) {
    return panel == Panel::Tokens      ? Qt::BottomDockWidgetArea
           : panel == Panel::Inspector ? Qt::RightDockWidgetArea
                                       : Qt::LeftDockWidgetArea;
}

} // namespace

Panels::Panels(QMainWindow& window, const ViewArea& views, const Workspace& workspace)
    : QObject(&window), window_(window), views_(views), workspace_(workspace) {
    // The docks at the left and at the right have the full height, and the token strip lies between them.
    window.setCorner(Qt::BottomLeftCorner, Qt::LeftDockWidgetArea);
    window.setCorner(Qt::BottomRightCorner, Qt::RightDockWidgetArea);
}

void Panels::add(Panel panel, const QString& title, const char* name, QWidget* content, QWidget* beside) {
    auto* added = new QDockWidget(title, &window_);
    added->setObjectName(QLatin1String(name));
    added->setFeatures(QDockWidget::DockWidgetMovable | QDockWidget::DockWidgetClosable |
                       QDockWidget::DockWidgetFloatable);
    added->setWidget(content);
    auto* bar = new DockTitle(title, beside);
    connect(bar, &DockTitle::closeRequested, added, &QDockWidget::hide);
    added->setTitleBarWidget(bar);
    window_.addDockWidget(areaOf(panel), added);
    docks_[std::size_t(panel)] = added;
    if (panel == Panel::Inspector)
        connect(added->toggleViewAction(), &QAction::triggered, this, [this](bool shown) {
            inspectorWaits_ = false; // the user has decided
            inspectorWanted_ = shown;
            giveRoom();
        });
    if (panel != Panel::Queue) return;
    window_.tabifyDockWidget(dock(Panel::Runs), added);
    added->hide(); // until a run is queued
}

void Panels::show(Panel panel) {
    dock(panel)->show();
    dock(panel)->raise();
}

void Panels::arrange(QSize window) {
    const bool narrow = window.width() < kSmallFrom, low = window.height() < kTokensFrom;
    inspectorWaits_ = window.width() < kInspectorFrom;
    inspectorWanted_ = false;
    roomyColumns_.clear();
    dock(Panel::Inspector)->setVisible(!inspectorWaits_);
    window_.resizeDocks({dock(Panel::Session), dock(Panel::Inspector)},
                        narrow ? QList{kSmallSession, kSmallInspector} : QList{kSession, kInspector}, Qt::Horizontal);
    window_.resizeDocks({dock(Panel::Session), dock(Panel::Runs)}, {low ? 400 : 760, 150}, Qt::Vertical);
    window_.resizeDocks({dock(Panel::Tokens)}, {low ? kFewTokens : kTokens}, Qt::Vertical);
    roomyTokens_ = 0;
    filterWaits_ = filterWanted_ = false;
    filter_->show();
    giveHeight();
}

void Panels::setFilter(FilterBar& filter, const QAction& goesTo) {
    filter_ = &filter;
    connect(filter.toggleViewAction(), &QAction::triggered, this, &Panels::wantFilter);
    connect(&goesTo, &QAction::triggered, this, [this] { wantFilter(true); });
    connect(&filter, &FilterBar::left, this, [this] {
        emit viewWanted();
        if (viewsOnly_) return filter_->hide();
        filterWanted_ = false;
        giveRoom();
    });
    // A filter that changes numbers must be visible.
    connect(&workspace_, &Workspace::filterChanged, this, [this] {
        if (!workspace_.filter().empty() && std::exchange(filterWaits_, false)) filter_->show();
    });
}

/// While only the views are shown, the bar is hidden again when the user leaves it, and the layout to which the window
/// will return does not change.
void Panels::wantFilter(bool shown) {
    if (viewsOnly_) return;
    filterWaits_ = false;
    filterWanted_ = shown;
}

void Panels::askForRoom() {
    if (std::exchange(roomAsked_, true)) return;
    QTimer::singleShot(0, this, [this] {
        roomAsked_ = false;
        giveRoom();
    });
}

/// Several views side by side need more room than one.
bool Panels::inspectorHasRoom() const {
    if (window_.width() < kInspectorFrom) return false;
    const int columns = views_.columns();
    const bool inspector = dock(Panel::Inspector)->isVisible() && !dock(Panel::Inspector)->isFloating();
    const int wanted =
        std::clamp(dock(Panel::Inspector)->width(), kSmallInspector, 2 * kInspector); // while it is hidden
    const int spare = views_.width() - (inspector ? 0 : wanted);
    return columns < 2 || spare >= columns * kLeastColumn;
}

void Panels::showInspector(bool shown) {
    dock(Panel::Inspector)->setVisible(shown);
    window_.layout()->activate(); // the views keep their shares of what is left
}

void Panels::setDefault() { default_ = window_.saveState(); }

void Panels::reset() {
    window_.restoreState(default_);
    arrange(window_.size());
}

PanelLayout Panels::layout() const {
    return {viewsOnly_ ? aroundViews_ : window_.saveState(), inspectorWaits_, filterWaits_, roomyTokens_};
}

void Panels::restore(const PanelLayout& layout) {
    window_.restoreState(layout.docks);
    inspectorWaits_ = layout.inspectorWaits;
    filterWaits_ = layout.filterWaits;
    roomyTokens_ = layout.roomyTokens;
}

void Panels::setViewsOnly(bool on) {
    if (on == viewsOnly_) return;
    if (on) {
        aroundViews_ = window_.saveState();
        viewsOnly_ = true;
        for (QDockWidget* dock : docks_)
            if (!dock->isFloating()) dock->hide();
        filter_->hide();
        emit viewWanted();
    } else {
        viewsOnly_ = false;
        window_.restoreState(aroundViews_);
        giveRoom();
    }
    emit viewsOnlyChanged(on);
}

/// In a low window, makes the tokens one line high and hides the filter bar while there is no filter. In a higher
/// window, undoes both.
void Panels::giveHeight() {
    const bool low = window_.height() < kLow;
    if (!low) filterWanted_ = false;
    if (!low && std::exchange(filterWaits_, false))
        filter_->show();
    else if (low && !filter_->isHidden() && !filterWanted_ && workspace_.filter().empty())
        filter_->setHidden(filterWaits_ = true);

    if (dock(Panel::Tokens)->isHidden() || dock(Panel::Tokens)->isFloating() ||
        window_.dockWidgetArea(dock(Panel::Tokens)) != Qt::BottomDockWidgetArea)
        return;
    // Done once: if the user makes the tokens higher afterwards, they stay higher.
    if (low && roomyTokens_ == 0) {
        roomyTokens_ = std::max(dock(Panel::Tokens)->height(), kFewTokens);
        window_.resizeDocks({dock(Panel::Tokens)}, {dock(Panel::Tokens)->minimumSizeHint().height()}, Qt::Vertical);
    } else if (!low && roomyTokens_ > 0) {
        window_.resizeDocks({dock(Panel::Tokens)}, {std::exchange(roomyTokens_, 0)}, Qt::Vertical);
    }
}

void Panels::giveRoom() {
    if (viewsOnly_) return;
    giveHeight();
    const bool room = inspectorHasRoom();
    if (room) inspectorWanted_ = false; // the user opened it while there was little room
    if (inspectorWaits_ && room) {
        inspectorWaits_ = false;
        showInspector(true);
    } else if (!room && dock(Panel::Inspector)->isVisible() && !dock(Panel::Inspector)->isFloating() &&
               !inspectorWanted_) {
        inspectorWaits_ = true;
        showInspector(false);
    }
    giveColumns();
}

/// If the docks at the sides leave too little room for the views, they shrink, at most to their least width. When there
/// is room again, they get back the widths that they had before.
void Panels::giveColumns() {
    const auto columnOf = [this](const QDockWidget* dock) {
        return dock->isVisible() && !dock->isFloating() &&
                       (window_.dockWidgetArea(const_cast<QDockWidget*>(dock)) &
                        (Qt::LeftDockWidgetArea | Qt::RightDockWidgetArea))
                   ? dock->width()
                   : 0;
    };
    const QList<QDockWidget*> columns{dock(Panel::Session), dock(Panel::Inspector)};
    // If one dock lies above or behind the other, both are one column.
    const bool isOne = window_.dockWidgetArea(dock(Panel::Session)) == window_.dockWidgetArea(dock(Panel::Inspector)) &&
                       (window_.tabifiedDockWidgets(dock(Panel::Session)).contains(dock(Panel::Inspector)) ||
                        (dock(Panel::Session)->x() <= dock(Panel::Inspector)->geometry().right() &&
                         dock(Panel::Inspector)->x() <= dock(Panel::Session)->geometry().right()));
    const auto together = [&](int session, int inspector) {
        return isOne ? std::max(session, inspector) : session + inspector;
    };
    const int taken = together(columnOf(dock(Panel::Session)), columnOf(dock(Panel::Inspector)));
    const int spare = window_.width() * (100 - kViewsShare) / 100;
    if (taken > spare) {
        if (roomyColumns_.isEmpty())
            for (const QDockWidget* dock : columns) roomyColumns_ << std::max(columnOf(dock), dock->minimumWidth());
        QList<int> least;
        for (const QDockWidget* dock : columns)
            least << std::max(dock->minimumSizeHint().width(), spare * dock->width() / taken);
        window_.resizeDocks(columns, least, Qt::Horizontal);
        return;
    }
    if (roomyColumns_.isEmpty() || inspectorWaits_) return;
    const auto wantedBy = [&](int i) { return columnOf(columns[i]) > 0 ? roomyColumns_[i] : 0; };
    if (together(wantedBy(0), wantedBy(1)) > spare) return;
    window_.resizeDocks(columns, std::exchange(roomyColumns_, {}), Qt::Horizontal);
}

} // namespace kvscope::ui
