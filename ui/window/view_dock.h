// A view that has left the tabs: it stands beside or below them, or in a window of its own.
#pragma once

#include <QDockWidget>

class QScrollArea;

namespace kvscope::ui {

class ViewTitle;

/// Lies in a ViewArea. A docked view is dragged by its title bar. A floating view is a window with the frame of the
/// system, so that it can be maximised on a second screen; it has no menu bar, but all shortcuts of the main window.
class ViewDock final : public QDockWidget {
    Q_OBJECT
public:
    /// `titleHeight`: in pixels; that of the bar with the tabs, so that title and tabs stand in one line.
    ViewDock(const QString& title, int titleHeight, QWidget* parent);
    /// The scroll area that holds the view. The view is hidden while the dock lies behind another one, because
    /// QMainWindow only moves such a dock out of sight, and a view that counts as visible reads every step.
    QScrollArea& page() { return *page_; }
    /// Marks the title as that of the view that menus and shortcuts apply to.
    void setInFront(bool inFront);
    /// When the view becomes a window, it gets at least this size, in pixels. Beside the tabs it may be narrower.
    void setLeastWindow(QSize size) { leastWindow_ = size; }
    /// To be called after the theme changed, because the icons have its colours.
    void updateIcons();

signals:
    void pressed(); // the user has pressed a mouse button on the title or beside the view
    void menuRequested(const QPoint& global);
    void placeRequested(bool floating); // the user wants the view in a window, or in the main window again
    void closed();                      // the user has closed the dock or its window
    void shownChanged(bool shown);      // the view came into sight or went out of it
    void moved();                       // to another place, size or window

protected:
    bool event(QEvent* event) override;
    void contextMenuEvent(QContextMenuEvent* event) override;
    void closeEvent(QCloseEvent* event) override;

private:
    void followVisibility(bool visible);
    void becomeWindow(bool inFront);
    void showPlace();

    const QString title_;
    ViewTitle* bar_;
    QScrollArea* page_;
    QSize leastWindow_; // invalid: any size
    bool shown_ = false;
};

} // namespace kvscope::ui
