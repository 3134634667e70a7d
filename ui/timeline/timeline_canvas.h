// The timeline's widget: gestures and keys change the window, the painter draws it. What is chosen is told by signals.
#pragma once

#include "ui/timeline/timeline_painter.h"
#include "ui/timeline/timeline_scene.h"

#include <QElapsedTimer>
#include <QWidget>

#include <set>
#include <vector>

class QScrollBar;

namespace kvscope::ui {

class TimelineCanvas final : public QWidget {
    Q_OBJECT
public:
    explicit TimelineCanvas(QWidget* parent = nullptr);

    TimelineData& data() { return data_; }
    const TimelineScene& scene() const { return scene_; }
    TimelineAreas areas() const;
    /// Spans or counters were added, or notes or matches changed: lays out again. What was shown whole stays whole.
    void dataChanged();
    /// Another run: everything is forgotten.
    void reset();
    /// The scene with its colours onto something else, e.g. a file; `ratio` as for TimelinePainter.
    void paintPicture(QPainter& painter, QSize size, double ratio, bool vector);

    void select(std::optional<SpanRef> ref, bool reveal = false);
    void setRange(std::optional<TimeRange> range);
    void setCursorStep(std::optional<TimeRange> step);
    /// Shows this and remembers what was shown before.
    void zoomTo(TimeRange window);
    /// Pans, and scrolls, by the least that shows the span; zooms in where it would be too small to see.
    void reveal(SpanRef ref);
    void resetZoom();
    void undoZoom();
    void redoZoom();
    bool canUndoZoom() const { return !undo_.empty(); }
    bool canRedoZoom() const { return !redo_.empty(); }
    bool isZoomed() const { return !(scene_.window == whole_); }
    /// Fits the selected span, the range, or everything, whichever there is first.
    void fit();
    void zoomBy(double factor, double x);
    void panBy(double pixels);
    void scrollBy(int pixels);
    void toggleFold(int track);

signals:
    void spanClicked(SpanRef ref);
    void emptyClicked();
    void rangeSelected(); // by hand; scene().range is none when it was given up
    void windowChanged();
    void hovered(std::optional<SpanRef> ref, double ns, QPoint global); // span or not
    void hoverEnded();
    void cursorMoveRequested(int steps, int layers);
    void cursorJumpRequested(bool toEnd);
    void searchRequested();
    void matchRequested(bool forward);
    void noteRequested();
    void flowRequested(bool forward); // to the span at the other end of an arrow
    void menuRequested(QPoint global);

protected:
    void paintEvent(QPaintEvent* event) override;
    void resizeEvent(QResizeEvent* event) override;
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
    enum class Gesture { None, Pan, Range, Minimap, Zoom };
    enum class Change { Wheel, Key, Other };

    void setWindow(TimeRange wanted);
    void setScroll(int scroll);
    void remember(Change change);
    void layOut();
    std::optional<SpanRef> spanAt(QPointF where) const;
    void centreMinimap(double x);

    TimelineData data_;
    TimelineScene scene_;
    TimelinePainter painter_;
    TimeRange whole_;
    std::set<int> folded_;
    QScrollBar* scrollBar_;
    std::vector<TimeRange> undo_, redo_;
    Change lastChange_ = Change::Other;
    QElapsedTimer sinceChange_;
    Gesture gesture_ = Gesture::None;
    bool moved_ = false;
    QPointF pressed_;
    TimeRange atPress_;
    int scrollAtPress_ = 0;
    std::optional<TimeRange> rangeAtPress_;
};

} // namespace kvscope::ui
