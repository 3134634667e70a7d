// The panels around the views: docks and the filter bar. In a small window they become smaller or are hidden first, so
// that the views have their room.
#pragma once

#include "ui/window/settings.h"

#include <QList>
#include <QObject>
#include <QSize>

#include <array>

class QAction;
class QDockWidget;
class QMainWindow;
class QWidget;

namespace kvscope::ui {

class FilterBar;
class ViewArea;
class Workspace;

enum class Panel { Session, Runs, Queue, Tokens, Inspector };

class Panels final : public QObject {
    Q_OBJECT
public:
    /// Neither the docks nor the filter bar are there yet: add makes each dock, and setFilter comes before arrange.
    Panels(QMainWindow& window, const ViewArea& views, const Workspace& workspace);

    /// Makes the dock of a panel. `beside`: a widget of the content that stands in the dock's title bar; may be null.
    void add(Panel panel, const QString& title, const char* name, QWidget* content, QWidget* beside = nullptr);
    /// `goesTo`: the action that gives the keyboard to the filter bar.
    void setFilter(FilterBar& filter, const QAction& goesTo);
    QDockWidget* dock(Panel panel) const { return docks_[std::size_t(panel)]; }
    const std::array<QDockWidget*, 5>& docks() const { return docks_; }
    void show(Panel panel); // in front of the panels that share its place

    /// Arranges the docks as they are at first in a window of this size.
    void arrange(QSize window);
    /// Remembers the present arrangement for reset, which arranges the docks as they were then.
    void setDefault();
    void reset();
    /// What the next start shows; while only the views are shown, the arrangement to which the window will return.
    PanelLayout layout() const;
    void restore(const PanelLayout& layout);

    /// Gives the views their room when the docks have got their new sizes.
    void askForRoom();
    bool viewsOnly() const { return viewsOnly_; }
    void setViewsOnly(bool on);

signals:
    void viewsOnlyChanged(bool on);
    void viewWanted(); // the keyboard goes to the view in front

private:
    void wantFilter(bool shown);
    void giveRoom();
    void giveHeight();
    void giveColumns();
    bool inspectorHasRoom() const;
    void showInspector(bool shown);

    QMainWindow& window_;
    const ViewArea& views_;
    const Workspace& workspace_;
    std::array<QDockWidget*, 5> docks_{};
    FilterBar* filter_ = nullptr;
    QByteArray default_;
    /// Widths of the docks at the sides before the window became too narrow for them, in pixels; empty: the window is
    /// wide enough.
    QList<int> roomyColumns_;
    /// Height of the tokens before the window became too low for it, in pixels; 0: the window is high enough.
    int roomyTokens_ = 0;
    /// Waits: the inspector is hidden because the window is small. Wanted: the user opened it in a small window.
    bool inspectorWaits_ = false, inspectorWanted_ = false;
    bool filterWaits_ = false, filterWanted_ = false; // the same for the filter bar
    bool viewsOnly_ = false;                          // the user has hidden everything around the views
    QByteArray aroundViews_;                          // the layout to which the window returns then
    bool roomAsked_ = false;
};

} // namespace kvscope::ui
