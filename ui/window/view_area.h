// The views of a window. All begin as tabs, whose order the user can change. The user can put a view beside or below
// the tabs, or into a window of its own, and back.
#pragma once

#include "base/indexed.h"
#include "ui/window/settings.h"

#include <QMainWindow>

#include <optional>
#include <vector>

class QMouseEvent;
class QScrollArea;
class QTabWidget;

namespace kvscope::ui {

class View;
class ViewDock;
class Workspace;

/// A main window inside the main window: the tabs are its central widget, every view that has left them a dock of it.
/// So Qt drags, nests, tabs, floats, saves and restores the views, and no view can get among the panels. Views have
/// indices as in views(), wherever their tabs stand; the tab of a view that has left the tabs is hidden and keeps its
/// place. A tab that is dragged along the bar changes its place, and one that is dragged out of it takes its view with
/// it. A view is made when it is first seen. At least one view stays in the tabs.
class ViewArea final : public QMainWindow {
    Q_OBJECT
public:
    explicit ViewArea(Workspace& workspace, QWidget* parent = nullptr);
    ~ViewArea() override;

    QTabWidget& tabs() { return *tabs_; }
    int inTabs() const { return tab_; } // the index of the view in front of the tabs
    /// The index of the view whose tab is `by` places to the right; behind the last one comes the first.
    int beside(int index, int by) const;
    View* view(int index) const { return views_[index]; }    // null: not made yet
    const std::vector<View*>& all() const { return views_; } // [index] null: not made yet
    void makeAll();
    /// The index of the view that menus and shortcuts apply to: the one that had the keyboard last, or whose tab or
    /// title was chosen last.
    int front() const { return front_; }
    void bringToFront(int index);
    /// Brings a view to the front that suits what is shown, unless someone has chosen a view.
    void offer(const QString& id);
    /// Whether a person has chosen the view in front. Otherwise it was the first view, or was offered.
    bool isChosen() const { return chosen_; }

    bool isApart(int index) const { return docks_[index] != nullptr; } // has left the tabs
    bool isFloating(int index) const;
    bool canMove(int index) const; // false: it is the last view in the tabs
    /// Moves the tab of a view over its neighbour. @return false: it is at the end of the bar, or not there
    bool shift(int index, int by);
    /// Puts the view to the right of the tabs (Qt::Horizontal) or below them (Qt::Vertical), where it gets half of
    /// their room.
    void split(int index, Qt::Orientation direction);
    void floatView(int index); // puts the view into a window of its own
    void rejoin(int index);    // puts the view back into the tabs, in front
    void rejoinAll();          // puts all views back into the tabs, in the first order
    int columns() const;       // how many views stand side by side; the tabs count as one

    /// To be called when the area has come into sight. Makes the view in the tabs and puts the views where they were.
    void appear();
    /// To be called when the area goes out of sight. Hides the windows of its views.
    void disappear();
    ViewPlaces places() const;
    /// Puts the views where they were, as soon as the area appears. A view whose place is not known stays in the tabs.
    void restore(const ViewPlaces& places) { waiting_ = places; }
    void applyTheme();

signals:
    void made(int index);
    void frontChanged();
    void rearranged(); // a view has left the tabs, has come back or has moved

protected:
    bool eventFilter(QObject* watched, QEvent* event) override;
    /// The views beside and below the tabs keep their shares of the area.
    void resizeEvent(QResizeEvent* event) override;

private:
    void addTabs();
    void connectTabs();
    void ensure(int index);
    int tabOf(int index) const;
    int indexAt(int tab) const;
    int neighbour(int index, int by) const;
    int tabBeside(int index) const;
    void arrangeTabs(const QStringList& order);
    void pullOut(int index, const QMouseEvent& drag);
    std::vector<int> docksBeside(Qt::Orientation direction) const;
    void rememberShare(int index);
    int indexHolding(const QWidget* widget) const;
    ViewDock& takeOut(int index);
    void connectDock(ViewDock& dock, int index);
    void putBack(int index);
    void closed(int index);
    void place(const ViewPlaces& places);
    void setFront(int index);
    void markFront();
    void focusFront();
    void showMenu(int index, QPoint global);

    Workspace& workspace_;
    QTabWidget* tabs_;
    Numbered<View*> views_;        // [index]
    Numbered<QScrollArea*> pages_; // [index] in the tabs
    Numbered<ViewDock*> docks_;    // [index] null: the view is in the tabs
    int front_ = 0;
    int tab_ = 0, tabBefore_ = 0;       // indices of the view in front of the tabs and of the one before it
    std::optional<ViewPlaces> waiting_; // where the views go when the area appears
    Numbered<QSizeF> shares_;           // [index] of the area's width and height; invalid: in the tabs, or not known
    QSize laidOut_; // the area's size for which the docks have their sizes; invalid: they get them now
    bool chosen_ = false;
};

} // namespace kvscope::ui
