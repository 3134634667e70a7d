// The timeline's gestures: mouse, wheel and keys.
#include "ui/timeline/timeline_canvas.h"

#include <QApplication>
#include <QKeyEvent>
#include <QMouseEvent>
#include <QToolTip>
#include <QWheelEvent>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {
constexpr double kZoomWheel = 0.8, kZoomKey = 0.8, kPanKey = 0.12;
}

double TimelineCanvas::mapTimeAt(double x) const {
    const QRect map = areas().minimap;
    const TimeRange mapped = mapOf(scene_);
    return mapped.from + (x - map.left()) / map.width() * mapped.size();
}

void TimelineCanvas::centreMinimap(double x) {
    const double at = mapTimeAt(x), half = scene_.window.size() / 2;
    setWindow({at - half, at + half});
}

void TimelineCanvas::mousePressEvent(QMouseEvent* event) {
    event->accept();
    setFocus(Qt::MouseFocusReason);
    if (event->button() != Qt::LeftButton) return;
    const TimelineAreas all = areas();
    pressed_ = event->position();
    moved_ = false;
    atPress_ = scene_.window;
    scrollAtPress_ = scene_.scroll;
    rangeAtPress_ = scene_.range;
    const bool shift = event->modifiers().testFlag(Qt::ShiftModifier);
    if (onGutterEdge(pressed_)) {
        gesture_ = Gesture::Gutter;
    } else if (all.minimap.contains(pressed_.toPoint())) {
        history_.remember(scene_.window);
        scene_.heldMap = mapOf(scene_);
        // Shift and drag on the map shows what is dragged over; a plain drag moves the window.
        gesture_ = shift ? Gesture::Zoom : Gesture::Minimap;
        if (!shift) centreMinimap(pressed_.x());
    } else if (all.body.contains(pressed_.toPoint())) {
        gesture_ = shift ? Gesture::Range : Gesture::Pan;
    } else if (beyondRect(scene_, all, smallFont(), true).contains(pressed_.toPoint()) ||
               beyondRect(scene_, all, smallFont(), false).contains(pressed_.toPoint())) {
        showAll();
    } else if (all.ruler.contains(pressed_.toPoint())) {
        gesture_ = Gesture::Range;
    } else if (all.gutter.contains(pressed_.toPoint())) {
        const TimelineRow* row = scene_.layout.rowAt(int(pressed_.y()) - all.gutter.top() + scene_.scroll);
        if (row && row->firstOfTrack && row->track >= 0) toggleFold(row->track);
    }
}

std::vector<ShortcutText> TimelineCanvas::gestures() {
    const QString timeline = tr("Timeline");
    return {
        {timeline, tr("Zoom at the pointer"), tr("W, S, +, −, wheel")},
        {timeline, tr("Pan"), tr("A, D, drag, Shift+wheel")},
        {timeline, tr("Fit the chosen span or range"), tr("F, double click")},
        {timeline, tr("Show everything"), tr("0")},
        {timeline, tr("First decode step, all decode steps"), tr("1, 2")},
        {timeline, tr("Measure a range"), tr("Shift+drag, drag on the ruler")},
        {timeline, tr("Search, next and previous hit"), tr("/, N, Shift+N")},
        {timeline, tr("Follow arrows back and forth"), tr("[, ]")},
        {timeline, tr("Leave a note"), tr("M")},
        {timeline, tr("Move the cursor by a step, by a layer"), tr("← →, ↑ ↓")},
        {timeline, tr("First and last step"), tr("Home, End")},
        {timeline, tr("Scroll the tracks"), tr("Page Up, Page Down, Ctrl+wheel")},
        {timeline, tr("Give up a drag, the range, the choice"), tr("Esc")},
    };
}

void TimelineCanvas::hoverAt(QPointF at, QPoint global) {
    const TimelineAreas all = areas();
    hoverAt_ = at;
    pointerOver_ = true;
    onGutterEdge(at) ? setCursor(Qt::SplitHCursor) : unsetCursor();
    const bool inside = all.body.contains(at.toPoint());
    scene_.hoverNs = inside ? std::optional(all.timeAt(at.x(), scene_.window)) : std::nullopt;
    update(QRect(0, 0, all.gutter.right() + 1, height())); // the counters' values under the pointer
    const TimelineRow* row = rowAt(at);
    if (row && row->curve >= 0)
        emit curveHovered(row->curve, scene_.hoverNs.value_or(scene_.window.from), global);
    else if (inside)
        emit hovered(spanAt(at), *scene_.hoverNs, global);
    else
        emit hoverEnded();
}

/// Rows or times have moved under a pointer that rests. A tooltip that is shown follows them. None appears by itself,
/// because a live run moves them several times a second.
void TimelineCanvas::hoverAgain() {
    if (!pointerOver_ || gesture_ != Gesture::None) return;
    if (QToolTip::isVisible()) return hoverAt(hoverAt_, mapToGlobal(hoverAt_.toPoint()));
    const TimelineAreas all = areas();
    if (all.body.contains(hoverAt_.toPoint())) scene_.hoverNs = all.timeAt(hoverAt_.x(), scene_.window);
    update(QRect(0, 0, all.gutter.right() + 1, height()));
}

void TimelineCanvas::endHover() {
    pointerOver_ = false;
    scene_.hoverNs.reset();
    emit hoverEnded();
    update();
}

void TimelineCanvas::mouseMoveEvent(QMouseEvent* event) {
    event->accept();
    const QPointF at = event->position();
    const TimelineAreas all = areas();
    if (gesture_ == Gesture::None) return hoverAt(at, event->globalPosition().toPoint());
    if (!moved_ && (at - pressed_).manhattanLength() < QApplication::startDragDistance()) return;
    if (!moved_) {
        if (gesture_ == Gesture::Pan) history_.remember(scene_.window);
        emit hoverEnded();
    }
    moved_ = true;
    switch (gesture_) {
    case Gesture::Pan: {
        setCursor(Qt::ClosedHandCursor);
        const double ns = (pressed_.x() - at.x()) / all.body.width() * atPress_.size();
        setWindow({atPress_.from + ns, atPress_.to + ns});
        setScroll(scrollAtPress_ + int(pressed_.y() - at.y()));
        break;
    }
    case Gesture::Range: {
        const double a = all.timeAt(pressed_.x(), scene_.window);
        const double b =
            all.timeAt(std::clamp(at.x(), double(all.body.left()), double(all.body.right())), scene_.window);
        setRange(TimeRange{std::min(a, b), std::max(a, b)});
        break;
    }
    case Gesture::Minimap:
        centreMinimap(at.x());
        break;
    case Gesture::Zoom: {
        const double a = mapTimeAt(pressed_.x()), b = mapTimeAt(at.x());
        setWindow({std::min(a, b), std::max(a, b)});
        break;
    }
    case Gesture::Gutter:
        setGutter(std::max(1, int(at.x())));
        break;
    case Gesture::None:
        break;
    }
}

TimelineCanvas::Gesture TimelineCanvas::endGesture() {
    if (std::exchange(scene_.heldMap, std::nullopt)) update(); // the map may show another part now
    return std::exchange(gesture_, Gesture::None);
}

void TimelineCanvas::mouseReleaseEvent(QMouseEvent* event) {
    event->accept();
    if (event->button() != Qt::LeftButton) return;
    unsetCursor();
    const Gesture gesture = endGesture();
    if (gesture == Gesture::Range && moved_) {
        emit rangeSelected();
    } else if ((gesture == Gesture::Pan || gesture == Gesture::Range) && !moved_) {
        if (const auto span = spanAt(pressed_))
            emit spanClicked(*span);
        else
            emit emptyClicked();
    }
}

void TimelineCanvas::mouseDoubleClickEvent(QMouseEvent* event) {
    event->accept();
    endGesture();
    if (event->button() == Qt::LeftButton && onGutterEdge(event->position())) return setGutter(0);
    if (event->button() != Qt::LeftButton || areas().gutter.contains(event->position().toPoint())) return;
    if (const auto span = spanAt(event->position())) {
        emit spanClicked(*span);
        fit();
    } else if (isZoomed()) {
        resetZoom();
    } else {
        showAll();
    }
}

void TimelineCanvas::wheelEvent(QWheelEvent* event) {
    event->accept();
    const QPointF at = event->position();
    const QPoint angle = event->angleDelta();
    const bool shift = event->modifiers().testFlag(Qt::ShiftModifier);
    if (std::abs(angle.x()) > std::abs(angle.y()) || shift) { // a swipe to the side, or Shift and wheel
        history_.remember(scene_.window, Wheel);
        panBy(-(angle.x() != 0 ? angle.x() : angle.y()) / 120.0 * 0.1 * areas().body.width());
        return;
    }
    if (areas().gutter.contains(at.toPoint()) || event->modifiers().testFlag(Qt::ControlModifier)) {
        scrollBy(-angle.y() * 3 * TimelineLayout::kLaneHeight / 120);
        return;
    }
    if (angle.y() == 0) return;
    history_.remember(scene_.window, Wheel);
    zoomBy(std::pow(kZoomWheel, angle.y() / 120.0), at.x());
}

void TimelineCanvas::leaveEvent(QEvent*) { endHover(); }

/// The pointer that goes to the scroll bar, which lies inside, is no longer over a span.
bool TimelineCanvas::eventFilter(QObject* watched, QEvent* event) {
    if (event->type() == QEvent::Enter && gesture_ == Gesture::None) endHover();
    return QWidget::eventFilter(watched, event);
}

void TimelineCanvas::keyPressEvent(QKeyEvent* event) {
    const bool shift = event->modifiers().testFlag(Qt::ShiftModifier);
    if (event->modifiers() & (Qt::ControlModifier | Qt::AltModifier | Qt::MetaModifier)) {
        QWidget::keyPressEvent(event);
        return;
    }
    const double middle = scene_.hoverNs ? areas().xOf(*scene_.hoverNs, scene_.window) : areas().body.center().x();
    const double speed = shift ? 3 : 1;
    const auto zoom = [&](double factor) {
        history_.remember(scene_.window, Keys);
        zoomBy(factor, middle);
    };
    const auto pan = [&](double share) {
        history_.remember(scene_.window, Keys);
        panBy(share * speed * areas().body.width());
    };
    event->accept();
    switch (event->key()) {
    case Qt::Key_W:
    case Qt::Key_Plus:
    case Qt::Key_Equal:
        return zoom(std::pow(kZoomKey, speed));
    case Qt::Key_S:
    case Qt::Key_Minus:
    case Qt::Key_Underscore:
        return zoom(std::pow(kZoomKey, -speed));
    case Qt::Key_A:
        return pan(-kPanKey);
    case Qt::Key_D:
        return pan(kPanKey);
    case Qt::Key_F:
        return fit();
    case Qt::Key_0:
        return showAll();
    case Qt::Key_1:
        return emit decodeRequested(false);
    case Qt::Key_2:
        return emit decodeRequested(true);
    case Qt::Key_Left:
        return emit cursorMoveRequested(shift ? -10 : -1, 0);
    case Qt::Key_Right:
        return emit cursorMoveRequested(shift ? 10 : 1, 0);
    case Qt::Key_Up:
        return emit cursorMoveRequested(0, -1);
    case Qt::Key_Down:
        return emit cursorMoveRequested(0, 1);
    case Qt::Key_Home:
        return emit cursorJumpRequested(false);
    case Qt::Key_End:
        return emit cursorJumpRequested(true);
    case Qt::Key_PageUp:
        return scrollBy(-areas().body.height() * 3 / 4);
    case Qt::Key_PageDown:
        return scrollBy(areas().body.height() * 3 / 4);
    case Qt::Key_Slash:
        return emit searchRequested();
    case Qt::Key_N:
        return emit matchRequested(!shift);
    case Qt::Key_M:
        return emit noteRequested();
    case Qt::Key_BracketLeft:
        return emit flowRequested(false);
    case Qt::Key_BracketRight:
        return emit flowRequested(true);
    case Qt::Key_Escape:
        if (gesture_ != Gesture::None) { // gives up the drag
            const Gesture gesture = endGesture();
            unsetCursor();
            if (gesture == Gesture::Range) setRange(rangeAtPress_);
            setWindow(atPress_);
            setScroll(scrollAtPress_);
        } else if (scene_.range || scene_.selected) {
            measure(std::nullopt);
            emit emptyClicked();
        } else {
            event->ignore();
        }
        return;
    default:
        QWidget::keyPressEvent(event);
    }
}

void TimelineCanvas::contextMenuEvent(QContextMenuEvent* event) {
    event->accept();
    TimelinePlace place = placeAt(event->pos());
    if (event->reason() == QContextMenuEvent::Keyboard && scene_.selected) { // of what is chosen
        place.kind = TimelinePlace::Kind::Span;
        place.span = scene_.selected;
        if (const TimelineRow* row = scene_.layout.rowOf(scene_.selected->lane)) place.row = *row;
    }
    emit menuRequested(event->globalPos(), place);
}

bool TimelineCanvas::event(QEvent* event) {
    // Single letters and arrows belong to the timeline while it has the focus, not to the window's shortcuts.
    if (event->type() == QEvent::ShortcutOverride) {
        const auto* key = static_cast<QKeyEvent*>(event);
        if (!(key->modifiers() & (Qt::ControlModifier | Qt::AltModifier | Qt::MetaModifier)) &&
            key->key() != Qt::Key_Question && (key->key() < Qt::Key_F1 || key->key() > Qt::Key_F35) &&
            key->key() != Qt::Key_Tab && key->key() != Qt::Key_Backtab)
            event->accept();
    }
    if (event->type() == QEvent::Hide) endHover();
    if (event->type() == QEvent::FontChange) layOut();
    if (event->type() == QEvent::PaletteChange) update();
    return QWidget::event(event);
}

} // namespace kvscope::ui
