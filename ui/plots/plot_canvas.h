// A QCustomPlot with the gestures that every plot of the program has: a drag pans, the wheel zooms at the pointer,
// Shift+drag zooms into a box, a double click resets the zoom, and keys move the cursor. Panels lie below each other.
// Panels of one group share their x axis; without a group of its own, a panel belongs to group 0.
#pragma once

#include "ui/frame/shortcuts.h"
#include "ui/frame/zoom_history.h"
#include "ui/plots/overlay.h"

#include <qcustomplot.h>

#include <QList>

#include <optional>
#include <vector>

namespace kvscope::ui {

struct Theme;

class PlotCanvas final : public QCustomPlot {
    Q_OBJECT
public:
    explicit PlotCanvas(QWidget* parent = nullptr);

    /// Adds a panel below the last one, with a left and a bottom axis. `zoomY`: the user can zoom its value axis;
    /// otherwise the owner fits that axis to the visible data. Panels of one group share the x axis.
    QCPAxisRect* addPanel(bool zoomY, int group = 0);
    /// Removes all panels and everything in them.
    void clearPanels();
    const QList<QCPAxisRect*>& panels() const { return rects_; }

    /// Sets the range of all data on the x axis of a group, or on the y axis of a panel. If the axis shows all of the
    /// old range, it then shows all of the new one; if it is zoomed, it stays as it is.
    void setFullX(QCPRange full, int group = 0);
    void setFullY(int panel, QCPRange full);
    QCPRange fullX(int group = 0) const;
    QCPRange visibleX(int group = 0) const;
    /// Resets the x axis of one group to its full range, for example because the axis now has another meaning.
    void showAllX(int group);
    bool isZoomed() const;
    void resetZoom();
    /// Resets all axes and forgets the zoom history, for example because the axes now have another meaning.
    void forgetZoom();
    void undoZoom();
    void redoZoom();
    bool canUndoZoom() const { return history_.canUndo(); }
    bool canRedoZoom() const { return history_.canRedo(); }
    /// Zooms one axis around a pixel, `at`, whose value stays in place. A factor below 1 zooms in.
    void zoomBy(double factor, QPointF at, bool vertical);
    void zoomTo(QCPRange x);
    /// Pans just so far that x becomes visible.
    void reveal(double x);
    /// Pans in both directions just so far that the cursor's mark becomes visible.
    void revealMark();
    /// What the mouse and the keys do in a plot, for the help.
    static std::vector<ShortcutText> gestures();
    /// The smallest range of the x axis, where zooming in ends.
    void setMinimumSpan(double steps, int group = 0);
    /// The smallest range of a panel's value axis, where zooming in ends.
    void setMinimumHeight(int panel, double values) { panels_[panel].minimumY = values; }
    /// False: the x axis does not count steps, and Ctrl+drag zooms into a box instead of selecting steps.
    void setSelectsSteps(bool selects) { selectsSteps_ = selects; }
    bool selectsSteps() const { return selectsSteps_; }
    /// Gives a panel a vertical line at x that the user can drag and that the owner draws. No value: the panel has no
    /// such line.
    void setHandle(int panel, std::optional<double> x);

    Overlay& overlay() { return *overlay_; }
    void replotOverlay();
    /// Gives axes, grid and text the colours of the theme, now and in panels added later.
    void applyTheme(const Theme& theme);

signals:
    void clicked(int panel, QPointF data);
    void stepsSelected(double first, double last); // Ctrl+drag
    void handleDragged(int panel, double x);
    void handleReleased(int panel);
    void hovered(int panel, QPointF data, QPoint global);
    void hoverEnded();
    void visibleXChanged();
    void cursorMoveRequested(int steps, int layers);
    void cursorJumpRequested(bool toEnd);
    void detailsRequested();                           // a key asks for the values under the cursor's mark
    void menuRequested(QPoint global, bool atPointer); // atPointer: by the mouse; otherwise by the keyboard

protected:
    void paintEvent(QPaintEvent* event) override;
    void mousePressEvent(QMouseEvent* event) override;
    void mouseMoveEvent(QMouseEvent* event) override;
    void mouseReleaseEvent(QMouseEvent* event) override;
    void mouseDoubleClickEvent(QMouseEvent* event) override;
    void wheelEvent(QWheelEvent* event) override;
    void leaveEvent(QEvent* event) override;
    void keyPressEvent(QKeyEvent* event) override;
    void contextMenuEvent(QContextMenuEvent* event) override;
    bool event(QEvent* event) override;

private:
    struct View {
        QList<QCPRange> x; // by group
        QList<QCPRange> y; // by panel
    };
    struct Panel {
        int group = 0;
        bool zoomY = false;
        QCPRange fullY{0, 1};
        double minimumY = 1;
        std::optional<double> handle;
    };
    struct Group {
        QCPRange full{-0.5, 0.5};
        double minimumSpan = 2;
    };
    enum class Gesture { None, Pan, Box, Steps, Handle };

    View view() const;
    void setView(const View& wanted);
    QCPRange clamped(QCPRange wanted, QCPRange full, double smallest) const;
    void setX(int group, QCPRange wanted);
    void setY(int panel, QCPRange wanted);
    int panelAt(QPointF pixel) const;
    int panelOfAxis(QPointF pixel) const; // the panel whose value axis is at the pixel; -1: none
    int handleAt(QPointF pixel) const;    // the panel whose handle is at the pixel; -1: none
    Group& groupOf(int group);
    QPointF dataAt(int panel, QPointF pixel) const;
    void styleAxisRect(QCPAxisRect& rect) const;

    QList<QCPAxisRect*> rects_; // by panel
    QList<Panel> panels_;       // the same ones
    QList<Group> groups_;
    bool selectsSteps_ = true;
    /// Clicks of the wheel, and keys that zoom, over panels of one group make one entry: the group is their series.
    ZoomHistory<View> history_;

    Gesture gesture_ = Gesture::None;
    bool moved_ = false;
    int pressedPanel_ = -1;
    QPointF pressed_;
    View atPress_;
    double handleAtPress_ = 0;

    class Ground;
    Ground* ground_ = nullptr;   // owned by the plot
    Overlay* overlay_ = nullptr; // owned by the plot; on a layer of its own
    QCPMarginGroup* margins_ = nullptr;
    const Theme* theme_ = nullptr;
};

} // namespace kvscope::ui
