#include "ui/timeline/timeline_canvas.h"

#include "ui/look/theme.h"
#include "ui/timeline/timeline_curves.h"

#include <QApplication>
#include <QKeyEvent>
#include <QMouseEvent>
#include <QPainter>
#include <QScrollBar>
#include <QWheelEvent>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {
constexpr double kZoomWheel = 0.8, kZoomKey = 0.8, kPanKey = 0.12;
constexpr double kLeastNs = 20; // the whole window; times are whole nanoseconds
constexpr int kPauseMs = 600;   // changes of one kind closer together are one entry in the zoom history
constexpr std::size_t kHistory = 100;
constexpr int kEdge = 4; // pixels on either side of the labels' edge that take hold of it
constexpr int kLeastGutter = 90, kMostFittingGutter = 340;
} // namespace

TimelineCanvas::TimelineCanvas(QWidget* parent) : QWidget(parent), scrollBar_(new QScrollBar(Qt::Vertical, this)) {
    setObjectName(QStringLiteral("timelineCanvas"));
    setAccessibleName(tr("Timeline of spans"));
    setAccessibleDescription(tr(
        "W and S zoom, A and D pan, F fits what is selected, 0 shows everything, 1 the first decode step, 2 all decode "
        "steps. The wheel zooms at the pointer, "
        "drag pans, Shift and drag measures a range, a double click fits a span. Slash searches, N and Shift+N go to "
        "the next and previous hit, M leaves a note, the bracket keys follow arrows. Arrow keys move the cursor."));
    setFocusPolicy(Qt::StrongFocus);
    setMouseTracking(true);
    setMinimumSize(240, 130);
    setAttribute(Qt::WA_OpaquePaintEvent);
    scrollBar_->setAccessibleName(tr("Tracks"));
    connect(scrollBar_, &QScrollBar::valueChanged, this, &TimelineCanvas::setScroll);
    scene_.data = &data_;
    reset();
}

TimelineAreas TimelineCanvas::areas() const {
    return TimelineAreas::of({width() - scrollBar_->sizeHint().width(), height()}, scene_.gutter);
}

QFont TimelineCanvas::smallFont() const {
    QFont small = font();
    small.setPointSizeF(std::max(7.5, small.pointSizeF() - 1));
    return small;
}

/// Of a track measured once: the layout is made anew with every piece that is read.
int TimelineCanvas::titleWidth(const TimelineRow& row, const QFontMetrics& metrics) const {
    if (row.curve >= 0) return metrics.horizontalAdvance(trackTitle(data_, row));
    if (titleWidths_.size() <= std::size_t(row.track)) titleWidths_.resize(std::size_t(row.track) + 1, -1);
    int& width = titleWidths_[std::size_t(row.track)];
    if (width < 0) width = metrics.horizontalAdvance(trackTitle(data_, row));
    return width;
}

/// Wide enough for every label with its share of busy time, within reason.
int TimelineCanvas::fittingGutter() const {
    if (const QFont small = smallFont(); titlesFont_ != small) {
        titlesFont_ = small;
        titleWidths_.clear();
    }
    const QFontMetrics metrics(titlesFont_);
    const int busy = metrics.horizontalAdvance(QStringLiteral("0.0000 %")) + 8;
    int widest = TimelineAreas::kGutter;
    for (const TimelineRow& row : scene_.layout.rows) {
        if (!row.firstOfTrack) continue;
        const int title = titleWidth(row, metrics);
        widest = std::max(
            widest, 20 + (row.curve >= 0 ? title : metrics.horizontalAdvance(QStringLiteral("▾ ")) + title + busy));
    }
    return std::min({widest, kMostFittingGutter, std::max(TimelineAreas::kGutter, width() / 4)});
}

void TimelineCanvas::setGutter(int width) {
    gutter_ = width <= 0 ? 0 : std::max(width, kLeastGutter);
    layOut();
}

void TimelineCanvas::reset() {
    data_ = TimelineData();
    const quint64 revision = scene_.revision;
    scene_ = {};
    scene_.data = &data_;
    scene_.revision = revision + 1;
    arrangement_ = {};
    titleWidths_.clear();
    undo_.clear();
    redo_.clear();
    gesture_ = Gesture::None;
    whole_ = scene_.window = scene_.home = scene_.busy = data_.whole();
    layOut();
}

void TimelineCanvas::dataChanged() {
    ++scene_.revision;
    data_.filter.learn(data_.index.names());
    const bool atHome = !isZoomed(), atWhole = scene_.window == whole_;
    whole_ = data_.whole();
    scene_.busy = data_.busy();
    findHome();
    if (atHome)
        scene_.window = scene_.home;
    else if (atWhole)
        scene_.window = whole_;
    layOut();
}

void TimelineCanvas::findHome() {
    const TimeRange steps = data_.steps(scene_.homeIsDecode); // a step may begin before or end after all spans
    scene_.home = {std::max(steps.from, whole_.from), std::min(steps.to, whole_.to)};
}

void TimelineCanvas::setHomeIsDecode(bool decode, bool follow) {
    if (scene_.homeIsDecode == decode) return;
    scene_.homeIsDecode = decode;
    const bool atHome = !isZoomed();
    findHome();
    if (!atHome || !follow) return update();
    scene_.window = scene_.home;
    update();
    emit windowChanged();
}

void TimelineCanvas::layOut() {
    scene_.layout = TimelineLayout::of(data_, arrangement_, areas().body.height());
    scene_.gutter = gutter_ > 0 ? std::min(gutter_, std::max(kLeastGutter, width() / 2)) : fittingGutter();
    const int visible = areas().body.height(), most = std::max(0, scene_.layout.height - visible);
    scrollBar_->setGeometry(width() - scrollBar_->sizeHint().width(), areas().body.top(),
                            scrollBar_->sizeHint().width(), visible);
    scrollBar_->setPageStep(visible);
    scrollBar_->setSingleStep(TimelineLayout::kLaneHeight);
    scrollBar_->setRange(0, most);
    scrollBar_->setVisible(most > 0);
    setScroll(std::clamp(scene_.scroll, 0, most));
    update();
}

void TimelineCanvas::setScroll(int scroll) {
    scroll = std::clamp(scroll, 0, std::max(0, scene_.layout.height - areas().body.height()));
    if (scroll == scene_.scroll && scrollBar_->value() == scroll) return;
    scene_.scroll = scroll;
    scrollBar_->setValue(scroll);
    update();
}

void TimelineCanvas::setWindow(TimeRange wanted) {
    const double most = whole_.size(), size = std::clamp(wanted.size(), std::min(kLeastNs, most), most);
    double from = wanted.from + (wanted.size() - size) / 2;
    from = std::clamp(from, whole_.from, std::max(whole_.from, whole_.to - size));
    TimeRange window = size >= most * (1 - 1e-9) ? whole_ : TimeRange{from, from + size};
    if (wanted == scene_.home) window = scene_.home; // exactly, so that it is known again
    if (window == scene_.window) return;
    scene_.window = window;
    update();
    emit windowChanged();
    // What lies under a resting pointer is another time now.
    if (scene_.hoverNs && gesture_ == Gesture::None) hoverAt(hoverAt_, mapToGlobal(hoverAt_.toPoint()));
}

void TimelineCanvas::remember(Change change) {
    const bool continues = change != Change::Other && change == lastChange_ && sinceChange_.isValid() &&
                           sinceChange_.elapsed() < kPauseMs && !undo_.empty();
    lastChange_ = change;
    sinceChange_.start();
    redo_.clear();
    if (continues) return;
    undo_.push_back(scene_.window);
    if (undo_.size() > kHistory) undo_.erase(undo_.begin());
}

void TimelineCanvas::zoomTo(TimeRange window) {
    remember(Change::Other);
    setWindow(window);
}

void TimelineCanvas::resetZoom() {
    if (isZoomed()) zoomTo(scene_.home);
}

void TimelineCanvas::showAll() {
    if (!(scene_.window == whole_)) zoomTo(whole_);
}

void TimelineCanvas::undoZoom() {
    if (undo_.empty()) return;
    redo_.push_back(scene_.window);
    const TimeRange back = undo_.back();
    undo_.pop_back();
    lastChange_ = Change::Other;
    setWindow(back);
}

void TimelineCanvas::redoZoom() {
    if (redo_.empty()) return;
    undo_.push_back(scene_.window);
    const TimeRange forward = redo_.back();
    redo_.pop_back();
    lastChange_ = Change::Other;
    setWindow(forward);
}

void TimelineCanvas::zoomBy(double factor, double x) {
    const double at = areas().timeAt(x, scene_.window);
    // At the ends of the scale the pointer's time must not creep away while the size no longer changes.
    const double size = std::clamp(scene_.window.size() * factor, std::min(kLeastNs, whole_.size()), whole_.size());
    const double scale = size / scene_.window.size();
    setWindow({at - (at - scene_.window.from) * scale, at + (scene_.window.to - at) * scale});
}

void TimelineCanvas::panBy(double pixels) {
    const double ns = pixels / areas().body.width() * scene_.window.size();
    setWindow({scene_.window.from + ns, scene_.window.to + ns});
}

void TimelineCanvas::scrollBy(int pixels) { setScroll(scene_.scroll + pixels); }

void TimelineCanvas::toggleFold(int track) {
    if (!arrangement_.folded.erase(track)) arrangement_.folded.insert(track);
    ++scene_.revision;
    layOut();
}

void TimelineCanvas::foldAll(bool folded) {
    arrangement_.folded.clear();
    for (int track = 0; folded && track < int(data_.index.tracks().size()); ++track) arrangement_.folded.insert(track);
    ++scene_.revision;
    layOut();
}

void TimelineCanvas::setHidden(const std::string& key, bool hidden) {
    if (hidden)
        arrangement_.hidden.insert(key);
    else
        arrangement_.hidden.erase(key);
    ++scene_.revision;
    layOut();
}

void TimelineCanvas::showOnly(const std::string& key) {
    for (const TimelineRow& row : TimelineLayout::of(data_, {}).rows)
        if (trackKey(data_, row) != key) arrangement_.hidden.insert(trackKey(data_, row));
    setHidden(key, false);
}

void TimelineCanvas::showAllTracks() {
    arrangement_.hidden.clear();
    ++scene_.revision;
    layOut();
}

void TimelineCanvas::select(std::optional<SpanRef> ref, bool revealIt) {
    scene_.selected = ref;
    scene_.flows = ref ? flowsOf(data_.index, *ref) : std::vector<SpanFlow>();
    if (ref && revealIt) reveal(*ref);
    update();
}

void TimelineCanvas::addRecordedFlows(const std::vector<SpanFlow>& flows) {
    // What the calls say is better than what step and stage suggest.
    if (!flows.empty())
        std::erase_if(scene_.flows, [](const SpanFlow& flow) { return flow.kind == SpanFlow::Kind::Launch; });
    scene_.flows.insert(scene_.flows.end(), flows.begin(), flows.end());
    update();
}

void TimelineCanvas::setFlows(std::vector<SpanFlow> flows) {
    scene_.flows = std::move(flows);
    update();
}

void TimelineCanvas::setRange(std::optional<TimeRange> range) {
    scene_.range = range;
    update();
}

void TimelineCanvas::measure(std::optional<TimeRange> range) {
    setRange(range);
    emit rangeSelected();
}

void TimelineCanvas::setCursorStep(std::optional<TimeRange> step) {
    if (scene_.cursorStep == step) return;
    scene_.cursorStep = step;
    update();
}

void TimelineCanvas::reveal(SpanRef ref) {
    const IndexedSpan span = data_.index.at(ref);
    const int track = data_.index.lane(ref.lane).track;
    if (const std::string key = "track " + data_.index.tracks()[std::size_t(track)]; arrangement_.hidden.contains(key))
        setHidden(key, false);
    if (!scene_.layout.rowOf(ref.lane)) toggleFold(track);
    if (const TimelineRow* row = scene_.layout.rowOf(ref.lane)) {
        const int visible = areas().body.height();
        if (row->y < scene_.scroll || row->y + row->height > scene_.scroll + visible) setScroll(row->y - visible / 3);
    }
    const double length = std::max(double(span.durationNs), 1.0),
                 pixels = length / scene_.window.size() * areas().body.width();
    const double centre = double(span.startNs) + length / 2;
    if (pixels < 4)
        zoomTo({centre - length * 20, centre + length * 20});
    else if (double(span.startNs) < scene_.window.from || double(span.endNs()) > scene_.window.to) {
        const double size = std::max(scene_.window.size(), length * 1.2);
        zoomTo({centre - size / 2, centre + size / 2});
    }
}

void TimelineCanvas::fit() {
    if (scene_.selected) {
        const IndexedSpan span = data_.index.at(*scene_.selected);
        const double length = std::max(double(span.durationNs), kLeastNs);
        zoomTo({double(span.startNs) - length * 0.1, double(span.startNs) + length * 1.1});
    } else if (scene_.range) {
        zoomTo({scene_.range->from - scene_.range->size() * 0.05, scene_.range->to + scene_.range->size() * 0.05});
    } else {
        resetZoom();
    }
}

/// The row at this height, of its label as well.
const TimelineRow* TimelineCanvas::rowAt(QPointF where) const {
    const int top = areas().body.top();
    return where.y() < top ? nullptr : scene_.layout.rowAt(int(where.y()) - top + scene_.scroll);
}

bool TimelineCanvas::onGutterEdge(QPointF where) const {
    return std::abs(where.x() - areas().body.left()) <= kEdge && where.y() >= areas().body.top();
}

TimelinePlace TimelineCanvas::placeAt(QPoint where) const {
    const TimelineAreas all = areas();
    TimelinePlace place;
    place.ns = all.timeAt(std::clamp(where.x(), all.body.left(), all.body.right()), scene_.window);
    for (const Note& note : data_.notes) { // its flag, or its band on the ruler
        const double left = all.xOf(double(note.startNs), scene_.window),
                     right = std::max(left + 10, all.xOf(double(note.startNs + note.durationNs), scene_.window));
        if (all.ruler.contains(where) && where.x() >= left - 1 && where.x() <= right) {
            place.kind = TimelinePlace::Kind::Note;
            place.note = note.id;
            return place;
        }
    }
    if (all.ruler.contains(where) || all.minimap.contains(where)) {
        place.kind = TimelinePlace::Kind::Ruler;
        return place;
    }
    if (const TimelineRow* row = rowAt(where)) {
        place.row = *row;
        place.span = spanAt(where);
        place.kind = place.span                                      ? TimelinePlace::Kind::Span
                     : row->curve >= 0 || all.gutter.contains(where) ? TimelinePlace::Kind::Track
                                                                     : TimelinePlace::Kind::Empty;
    }
    return place;
}

std::optional<SpanRef> TimelineCanvas::spanAt(QPointF where) const {
    const TimelineAreas all = areas();
    if (!QRectF(all.body).contains(where)) return std::nullopt;
    const TimelineRow* row = rowAt(where);
    if (!row || row->lane < 0) return std::nullopt;
    const double ns = all.timeAt(where.x(), scene_.window);
    if (const auto exact = data_.index.find(row->lane, std::int64_t(std::floor(ns)))) return exact;
    // Beside a short one: the nearest within two pixels.
    const double reach = 2 * scene_.window.size() / all.body.width();
    std::optional<SpanRef> nearest;
    double best = reach;
    const std::uint32_t next = data_.index.lowerBound(row->lane, std::int64_t(ns));
    for (std::uint32_t i = next > 0 ? next - 1 : 0; i < std::min(next + 1, data_.index.lane(row->lane).spans); ++i) {
        const IndexedSpan span = data_.index.at({row->lane, i});
        const double away = std::max({0.0, double(span.startNs) - ns, ns - double(span.endNs())});
        if (away <= best) {
            best = away;
            nearest = SpanRef{row->lane, i};
        }
    }
    return nearest;
}

void TimelineCanvas::paintEvent(QPaintEvent*) {
    QPainter painter(this);
    const Theme& theme = Theme::current();
    painter.fillRect(QRect(width() - scrollBar_->sizeHint().width(), 0, scrollBar_->sizeHint().width(), height()),
                     theme.plotBackground);
    painter_.paint(painter, {width() - scrollBar_->sizeHint().width(), height()}, scene_, theme, smallFont(),
                   devicePixelRatioF());
    if (hasFocus()) {
        painter.setPen(QPen(theme.accent, 1));
        painter.drawLine(areas().ruler.bottomLeft(), areas().ruler.bottomRight());
    }
}

void TimelineCanvas::paintPicture(QPainter& painter, QSize size, double ratio, bool vector) {
    TimelineScene scene = scene_;
    scene.hoverNs.reset();
    scene.heldMap.reset();
    scene.scroll = 0;
    scene.layout = TimelineLayout::of(data_, arrangement_, TimelineAreas::of(size, scene.gutter).body.height());
    TimelinePainter once; // its caches are for the widget's size
    once.paint(painter, size, scene, Theme::current(), smallFont(), ratio, vector);
}

void TimelineCanvas::resizeEvent(QResizeEvent*) { layOut(); }

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
        remember(Change::Other);
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

void TimelineCanvas::mouseMoveEvent(QMouseEvent* event) {
    event->accept();
    const QPointF at = event->position();
    const TimelineAreas all = areas();
    if (gesture_ == Gesture::None) return hoverAt(at, event->globalPosition().toPoint());
    if (!moved_ && (at - pressed_).manhattanLength() < QApplication::startDragDistance()) return;
    if (!moved_) {
        if (gesture_ == Gesture::Pan) remember(Change::Other);
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
    if (std::exchange(scene_.heldMap, std::nullopt)) update(); // it may be a map of another part now
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
        remember(Change::Wheel);
        panBy(-(angle.x() != 0 ? angle.x() : angle.y()) / 120.0 * 0.1 * areas().body.width());
        return;
    }
    if (areas().gutter.contains(at.toPoint()) || event->modifiers().testFlag(Qt::ControlModifier)) {
        scrollBy(-angle.y() * 3 * TimelineLayout::kLaneHeight / 120);
        return;
    }
    if (angle.y() == 0) return;
    remember(Change::Wheel);
    zoomBy(std::pow(kZoomWheel, angle.y() / 120.0), at.x());
}

void TimelineCanvas::leaveEvent(QEvent*) {
    scene_.hoverNs.reset();
    emit hoverEnded();
    update();
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
        remember(Change::Key);
        zoomBy(factor, middle);
    };
    const auto pan = [&](double share) {
        remember(Change::Key);
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
    if (event->type() == QEvent::FontChange) layOut();
    if (event->type() == QEvent::PaletteChange) update();
    return QWidget::event(event);
}

} // namespace kvscope::ui
