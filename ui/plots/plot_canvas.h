// A QCustomPlot with the one set of gestures that every plot of the program has: drag pans, wheel zooms at the pointer,
// Shift+drag zooms a box, double click resets, keys move the cursor. Panels are stacked and share the step axis, unless
// a panel is given a group of its own.
#pragma once

#include "ui/plots/overlay.h"
#include "ui/window/shortcut_list.h"

#include <qcustomplot.h>

#include <QElapsedTimer>

#include <optional>
#include <vector>

namespace kvscope::ui {

struct Theme;

class PlotCanvas final : public QCustomPlot {
    Q_OBJECT
public:
    explicit PlotCanvas(QWidget* parent = nullptr);

    /// Adds an axis rect below the last, with left and bottom axes. zoomY: its value axis can be zoomed by hand;
    /// otherwise the owner fits it to what is visible. Panels of one group share the x axis.
    QCPAxisRect* addPanel(bool zoomY, int group = 0);
    /// Removes all panels and everything in them.
    void clearPanels();
    const std::vector<QCPAxisRect*>& panels() const { return rects_; }

    /// Everything there is. A range that was not zoomed follows; a zoomed one stays.
    void setFullX(QCPRange full, int group = 0);
    void setFullY(int panel, QCPRange full);
    QCPRange fullX(int group = 0) const;
    QCPRange visibleX(int group = 0) const;
    /// Shows everything of one group, e.g. because its axis now means something else.
    void showAllX(int group);
    bool isZoomed() const;
    void resetZoom();
    /// Shows everything and forgets the history, e.g. because the axes now mean something else.
    void forgetZoom();
    void undoZoom();
    void redoZoom();
    bool canUndoZoom() const { return !undo_.empty(); }
    bool canRedoZoom() const { return !redo_.empty(); }
    /// Factor < 1 zooms in. `at`: pixel that stays where it is.
    void zoomBy(double factor, QPointF at, bool vertical);
    void zoomTo(QCPRange x);
    /// Pans by the least that makes x visible.
    void reveal(double x);
    /// The same for the cursor's mark, in both directions.
    void revealMark();
    /// What its mouse and keys do, for the help.
    static std::vector<ShortcutText> gestures();
    /// Smallest width of the x axis when zoomed in.
    void setMinimumSpan(double steps, int group = 0);
    /// The same of a panel's value axis.
    void setMinimumHeight(int panel, double values) { minimumY_[std::size_t(panel)] = values; }
    /// False: x is something else than steps, and Ctrl+drag zooms a box too.
    void setSelectsSteps(bool selects) { selectsSteps_ = selects; }
    /// A vertical line of a panel that can be dragged; the owner draws it. Nothing: the panel has none.
    void setHandle(int panel, std::optional<double> x);

    Overlay& overlay() { return *overlay_; }
    void replotOverlay();
    /// Axes, grid, text in the theme's colours; also for panels added later.
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
    void detailsRequested();                           // of what is under the cursor's mark, with the keyboard
    void menuRequested(QPoint global, bool atPointer); // not at the pointer: asked for with the keyboard

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
        std::vector<QCPRange> x; // by group
        std::vector<QCPRange> y; // by panel
    };
    struct Group {
        QCPRange full{-0.5, 0.5};
        double minimumSpan = 2;
    };
    enum class Gesture { None, Pan, Box, Steps, Handle };
    enum class Change { Wheel, Drag, Other };

    View view() const;
    void setView(const View& wanted);
    void remember(Change change, int group = 0);
    QCPRange clamped(QCPRange wanted, QCPRange full, double smallest) const;
    void setX(int group, QCPRange wanted);
    void setY(std::size_t panel, QCPRange wanted);
    int panelAt(QPointF pixel) const;
    int panelOfAxis(QPointF pixel) const; // whose value axis is there; -1: none
    int handleAt(QPointF pixel) const;    // panel, or -1
    Group& groupOf(int group);
    QPointF dataAt(int panel, QPointF pixel) const;
    void styleAxisRect(QCPAxisRect& rect) const;

    std::vector<QCPAxisRect*> rects_;
    std::vector<bool> zoomY_;
    std::vector<QCPRange> fullY_;
    std::vector<double> minimumY_;
    std::vector<int> groupOfPanel_;
    std::vector<std::optional<double>> handles_; // by panel
    std::vector<Group> groups_;
    bool selectsSteps_ = true;
    std::vector<View> undo_, redo_;
    Change lastChange_ = Change::Other;
    int lastGroup_ = 0;
    QElapsedTimer sinceWheel_;

    Gesture gesture_ = Gesture::None;
    bool moved_ = false;
    int pressedPanel_ = -1;
    QPointF pressed_;
    View atPress_;
    double handleAtPress_ = 0;

    class Ground;
    Ground* ground_ = nullptr;   // both owned by the plot
    Overlay* overlay_ = nullptr; // on a layer of its own
    QCPMarginGroup* margins_ = nullptr;
    const Theme* theme_ = nullptr;
};

} // namespace kvscope::ui
