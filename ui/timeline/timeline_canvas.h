// The timeline's widget: gestures and keys change the window, and the painter draws it. Signals say what is chosen.
#pragma once

#include "ui/frame/shortcuts.h"
#include "ui/frame/zoom_history.h"
#include "ui/timeline/timeline_painter.h"
#include "ui/timeline/timeline_scene.h"

#include <QWidget>

#include <string>
#include <vector>

class QScrollBar;

namespace kvscope::ui {

/// The row, span and note under the pointer when a menu is asked for.
struct TimelinePlace {
    enum class Kind { Empty, Span, Track, Ruler, Note };
    Kind kind = Kind::Empty; // Track: a label, or a curve
    double ns = 0;
    std::optional<SpanRef> span;
    std::optional<TimelineRow> row; // the track here, whatever the kind
    std::int64_t note = 0;          // id
};

class TimelineCanvas final : public QWidget {
    Q_OBJECT
public:
    explicit TimelineCanvas(QWidget* parent = nullptr);
    static std::vector<ShortcutText> gestures(); // for the help

    TimelineData& data() { return data_; }
    const TimelineScene& scene() const { return scene_; }
    TimelineAreas areas() const;
    /// Spans or counters were added, or notes, matches or the filter changed: lays out again. A window that showed all
    /// steps, or everything, goes on doing so.
    void dataChanged();
    /// Another run: everything is forgotten.
    void reset();
    /// The scene with its colours onto something else, e.g. a file; `ratio` as for TimelinePainter.
    void paintPicture(QPainter& painter, QSize size, double ratio, bool vector);

    void select(std::optional<SpanRef> ref, bool reveal = false);
    /// Adds arrows that were recorded. If there are any, they replace the arrows of launches that step and stage
    /// suggest.
    void addRecordedFlows(const std::vector<SpanFlow>& flows);
    void setFlows(std::vector<SpanFlow> flows); // replaces the arrows by the same ones at their new places
    void setRange(std::optional<TimeRange> range);
    /// Measures the range, like a drag over it; none: gives the range up.
    void measure(std::optional<TimeRange> range);
    void setCursorStep(std::optional<TimeRange> step);
    /// Zooms to a stretch of time and remembers what was shown before, for undoZoom.
    void zoomTo(TimeRange window);
    /// Pans, and scrolls, by the least that shows the span; zooms in where it would be too small to see.
    void reveal(SpanRef ref);
    /// Sets the opening window: the decode steps only, or all steps. follow: if the canvas shows the whole opening
    /// window, it then shows the whole of the new one.
    void setHomeIsDecode(bool decode, bool follow);
    void resetZoom(); // to the opening window: all steps
    void showAll();   // also shows the time before and after the runs' spans
    void undoZoom();
    void redoZoom();
    bool canUndoZoom() const { return history_.canUndo(); }
    bool canRedoZoom() const { return history_.canRedo(); }
    bool isZoomed() const { return !(scene_.window == scene_.home); }
    /// Fits the selected span, the range, or all steps, whichever there is first.
    void fit();
    void zoomBy(double factor, double x);
    void panBy(double pixels);
    void scrollBy(int pixels);
    void toggleFold(int track);
    const TrackArrangement& arrangement() const { return arrangement_; }
    void foldAll(bool folded);
    void setHidden(const std::string& trackKey, bool hidden);
    void showOnly(const std::string& trackKey); // hides all other tracks
    void showAllTracks();
    /// The width of the labels; 0: as wide as they need.
    void setGutter(int width);
    int gutter() const { return gutter_; }
    TimelinePlace placeAt(QPoint where) const;

signals:
    void spanClicked(SpanRef ref);
    void emptyClicked();
    void rangeSelected(); // by a person, who measured a range or gave it up: then scene().range is absent
    void windowChanged();
    void hovered(std::optional<SpanRef> ref, double ns, QPoint global); // ref: absent where no span is
    void curveHovered(int curve, double ns, QPoint global);
    void hoverEnded();
    void cursorMoveRequested(int steps, int layers);
    void cursorJumpRequested(bool toEnd);
    void searchRequested();
    void matchRequested(bool forward);
    void noteRequested();
    void flowRequested(bool forward); // to the span at the other end of an arrow
    void decodeRequested(bool whole); // show the first decode step, or all of them
    void menuRequested(QPoint global, TimelinePlace place);

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
    bool eventFilter(QObject* watched, QEvent* event) override;

private:
    enum class Gesture { None, Pan, Range, Minimap, Zoom, Gutter };
    enum Series { Wheel, Keys }; // changes that make one entry of the zoom history

    void setWindow(TimeRange wanted);
    double leastNs() const; // the shortest time that the window can show
    void setScroll(int scroll);
    void layOut();
    std::optional<SpanRef> spanAt(QPointF where) const;
    const TimelineRow* rowAt(QPointF where) const;
    bool onGutterEdge(QPointF where) const;
    int fittingGutter() const;
    int titleWidth(const TimelineRow& row, const QFontMetrics& metrics) const;
    QFont smallFont() const;
    void hoverAt(QPointF at, QPoint global);
    void hoverAgain();
    void endHover();
    QPointF hoverAt_;          // the last place of the pointer
    bool pointerOver_ = false; // whether the pointer is still over the canvas
    void findHome();
    double mapTimeAt(double x) const;
    void centreMinimap(double x);
    Gesture endGesture(); // @return the gesture that has ended

    TimelineData data_;
    TimelineScene scene_;
    TimelinePainter painter_;
    TimeRange whole_;
    TrackArrangement arrangement_;
    int gutter_ = 0;
    mutable QFont titlesFont_;
    mutable Numbered<int> titleWidths_; // of each track; -1: not measured
    QScrollBar* scrollBar_;
    ZoomHistory<TimeRange> history_;
    Gesture gesture_ = Gesture::None;
    bool moved_ = false;
    QPointF pressed_;
    TimeRange atPress_;
    int scrollAtPress_ = 0;
    std::optional<TimeRange> rangeAtPress_;
};

} // namespace kvscope::ui
