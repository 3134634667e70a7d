#include "ui/timeline/timeline_canvas.h"

#include "ui/look/theme.h"
#include "ui/timeline/timeline_curves.h"

#include <QPainter>
#include <QScrollBar>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {
constexpr double kLeastNs = 20; // the whole window; times are whole nanoseconds
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
    scrollBar_->installEventFilter(this);
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

/// The width of a track's title is measured once, because the layout is made anew with every piece that is read.
int TimelineCanvas::titleWidth(const TimelineRow& row, const QFontMetrics& metrics) const {
    if (row.curve >= 0) return metrics.horizontalAdvance(trackTitle(data_, row));
    if (titleWidths_.count() <= row.track) titleWidths_.resize(row.track + 1, -1);
    int& width = titleWidths_[row.track];
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
    pointerOver_ = false; // until it moves again: a tooltip describes a span of the run before
    emit hoverEnded();
    data_ = TimelineData();
    const quint64 revision = scene_.revision;
    scene_ = {};
    scene_.data = &data_;
    scene_.revision = revision + 1;
    arrangement_ = {};
    titleWidths_.clear();
    history_.clear();
    gesture_ = Gesture::None;
    whole_ = scene_.window = scene_.home = scene_.busy = data_.whole();
    layOut();
}

void TimelineCanvas::dataChanged() {
    ++scene_.revision;
    data_.filter.learn(data_.index);
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
    hoverAgain();
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
    hoverAgain();
}

void TimelineCanvas::setScroll(int scroll) {
    scroll = std::clamp(scroll, 0, std::max(0, scene_.layout.height - areas().body.height()));
    if (scroll == scene_.scroll && scrollBar_->value() == scroll) return;
    scene_.scroll = scroll;
    scrollBar_->setValue(scroll);
    update();
    hoverAgain();
}

double TimelineCanvas::leastNs() const { return std::min(std::max(kLeastNs, whole_.finest()), whole_.size()); }

void TimelineCanvas::setWindow(TimeRange wanted) {
    const double most = whole_.size(), size = std::clamp(wanted.size(), leastNs(), most);
    double from = wanted.from + (wanted.size() - size) / 2;
    from = std::clamp(from, whole_.from, std::max(whole_.from, whole_.to - size));
    TimeRange window = size >= most * (1 - 1e-9) ? whole_ : TimeRange{from, from + size};
    if (wanted == scene_.home) window = scene_.home; // exactly, so that it is known again
    if (window == scene_.window) return;
    scene_.window = window;
    update();
    emit windowChanged();
    // A resting pointer is over another time now.
    if (pointerOver_ && gesture_ == Gesture::None) hoverAt(hoverAt_, mapToGlobal(hoverAt_.toPoint()));
}

void TimelineCanvas::zoomTo(TimeRange window) {
    history_.remember(scene_.window);
    setWindow(window);
}

void TimelineCanvas::resetZoom() {
    if (isZoomed()) zoomTo(scene_.home);
}

void TimelineCanvas::showAll() {
    if (!(scene_.window == whole_)) zoomTo(whole_);
}

void TimelineCanvas::undoZoom() {
    if (const auto before = history_.undo(scene_.window)) setWindow(*before);
}

void TimelineCanvas::redoZoom() {
    if (const auto after = history_.redo(scene_.window)) setWindow(*after);
}

void TimelineCanvas::zoomBy(double factor, double x) {
    const double at = areas().timeAt(x, scene_.window);
    // At the ends of the scale the time under the pointer must not creep away while the size no longer changes.
    const double size = std::clamp(scene_.window.size() * factor, leastNs(), whole_.size());
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
    for (int track = 0; folded && track < data_.index.tracks().count(); ++track) arrangement_.folded.insert(track);
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
    // Arrows from the recorded calls are better than those that step and stage suggest.
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
    const TimelineSpan span = data_.index.at(ref);
    const int track = data_.index.lane(ref.lane).track;
    if (const std::string key = "track " + data_.index.tracks()[track]; arrangement_.hidden.contains(key))
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
        const TimelineSpan span = data_.index.at(*scene_.selected);
        const double length = std::max(double(span.durationNs), kLeastNs);
        zoomTo({double(span.startNs) - length * 0.1, double(span.startNs) + length * 1.1});
    } else if (scene_.range) {
        zoomTo({scene_.range->from - scene_.range->size() * 0.05, scene_.range->to + scene_.range->size() * 0.05});
    } else {
        resetZoom();
    }
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
    TimelinePainter once; // the caches of the canvas's own painter are for the widget's size
    once.paint(painter, size, scene, Theme::current(), smallFont(), ratio, vector);
}

void TimelineCanvas::resizeEvent(QResizeEvent*) { layOut(); }

} // namespace kvscope::ui
