#include "ui/plots/plot_canvas.h"

#include "ui/look/theme.h"
#include "ui/plots/tick_fit.h"

#include <QApplication>
#include <QKeyEvent>
#include <QMouseEvent>
#include <QWheelEvent>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {
constexpr double kZoomKey = 0.7, kZoomWheel = 0.85;
constexpr double kHandleReach = 6; // pixels to either side of a handle where a press takes hold of it

bool same(const QCPRange& a, const QCPRange& b) {
    const double tolerance = 1e-9 * std::max({1.0, std::abs(a.upper), std::abs(a.lower)});
    return std::abs(a.lower - b.lower) < tolerance && std::abs(a.upper - b.upper) < tolerance;
}
} // namespace

/// Fills the plot below everything else. This makes the plot's buffer opaque, so that paintEvent can copy it to the
/// window without blending.
class PlotCanvas::Ground final : public QCPLayerable {
public:
    explicit Ground(QCustomPlot& plot) : QCPLayerable(&plot, QStringLiteral("background")) {}
    void setColour(const QColor& colour) { colour_ = colour; }
    const QColor& colour() const { return colour_; }

protected:
    /// One pixel more at the bottom: QCustomPlot clips a layer one pixel too high, so that the last row of pixels would
    /// stay transparent and show as black.
    QRect clipRect() const override { return mParentPlot->viewport().adjusted(0, 0, 0, 1); }
    void applyDefaultAntialiasingHint(QCPPainter* painter) const override { painter->setAntialiasing(false); }
    void draw(QCPPainter* painter) override { painter->fillRect(mParentPlot->viewport(), colour_); }

private:
    QColor colour_ = Qt::white;
};

PlotCanvas::PlotCanvas(QWidget* parent) : QCustomPlot(parent) {
    plotLayout()->clear();
    plotLayout()->simplify();
    plotLayout()->setMargins(QMargins(12, 10, 14, 8));
    plotLayout()->setRowSpacing(6);
    margins_ = new QCPMarginGroup(this);
    plotLayout()->setColumnSpacing(12);
    setInteractions({});
    setNoAntialiasingOnDrag(false);
    setFocusPolicy(Qt::StrongFocus);
    setMouseTracking(true);
    setMinimumSize(240, 140);
    fitTicksToRoom(*this);
    layer(QStringLiteral("overlay"))->setMode(QCPLayer::lmLogical); // the layer for selections; no plot uses it
    ground_ = new Ground(*this);
    addLayer(QStringLiteral("kvscope.overlay"), nullptr, QCustomPlot::limAbove);
    layer(QStringLiteral("kvscope.overlay"))->setMode(QCPLayer::lmBuffered);
    overlay_ = new Overlay(this, QStringLiteral("kvscope.overlay"));
    setCurrentLayer(QStringLiteral("main"));
}

QCPAxisRect* PlotCanvas::addPanel(bool zoomY, int group) {
    auto* rect = new QCPAxisRect(this, false);
    rect->addAxis(QCPAxis::atLeft);
    rect->addAxis(QCPAxis::atBottom);
    for (QCPAxis* axis : rect->axes()) axis->setLayer(QStringLiteral("axes"));
    for (QCPAxis* axis : rect->axes()) axis->grid()->setLayer(QStringLiteral("grid"));
    rect->axis(QCPAxis::atBottom)->setRange(visibleX(group));
    rect->axis(QCPAxis::atLeft)->setRange(0, 1);
    plotLayout()->addElement(plotLayout()->rowCount(), 0, rect);
    rect->setMarginGroup(QCP::msLeft | QCP::msRight, margins_); // stacked panels share the step axis
    rects_.push_back(rect);
    panels_.emplaceBack(group, zoomY);
    groupOf(group);
    if (theme_) styleAxisRect(*rect);
    return rect;
}

void PlotCanvas::clearPanels() {
    gesture_ = Gesture::None;
    overlay_->clear();
    overlay_->setBox(std::nullopt);
    clearPlottables();
    clearItems();
    rects_.clear();
    panels_.clear();
    history_.clear();
    plotLayout()->clear();
    plotLayout()->simplify();
}

PlotCanvas::Group& PlotCanvas::groupOf(int group) {
    if (group >= groups_.size()) groups_.resize(group + 1);
    return groups_[group];
}

QCPRange PlotCanvas::fullX(int group) const { return group < groups_.size() ? groups_[group].full : Group().full; }

QCPRange PlotCanvas::visibleX(int group) const {
    for (int i = 0; i < rects_.size(); ++i)
        if (panels_[i].group == group) return rects_[i]->axis(QCPAxis::atBottom)->range();
    return fullX(group);
}

void PlotCanvas::setMinimumSpan(double steps, int group) { groupOf(group).minimumSpan = steps; }

void PlotCanvas::setHandle(int panel, std::optional<double> x) { panels_[panel].handle = x; }

PlotCanvas::View PlotCanvas::view() const {
    View now;
    for (int group = 0; group < groups_.size(); ++group) now.x.push_back(visibleX(group));
    for (const QCPAxisRect* rect : rects_) now.y.push_back(rect->axis(QCPAxis::atLeft)->range());
    return now;
}

void PlotCanvas::setView(const View& wanted) {
    for (int group = 0; group < wanted.x.size(); ++group) setX(group, wanted.x[group]);
    for (int i = 0; i < rects_.size() && i < wanted.y.size(); ++i)
        if (panels_[i].zoomY) setY(i, wanted.y[i]);
}

QCPRange PlotCanvas::clamped(QCPRange wanted, QCPRange full, double smallest) const {
    const double most = full.size();
    double size = std::min(wanted.size(), most);
    if (size < std::min(smallest, most)) size = std::min(smallest, most);
    double lower = wanted.size() == size ? wanted.lower : wanted.center() - size / 2;
    lower = std::clamp(lower, full.lower, std::max(full.lower, full.upper - size));
    return {lower, lower + size};
}

void PlotCanvas::setX(int group, QCPRange wanted) {
    const QCPRange range = clamped(wanted, fullX(group), groupOf(group).minimumSpan);
    const bool changed = !same(range, visibleX(group));
    for (int i = 0; i < rects_.size(); ++i)
        if (panels_[i].group == group) rects_[i]->axis(QCPAxis::atBottom)->setRange(range);
    if (changed) emit visibleXChanged();
}

void PlotCanvas::setY(int panel, QCPRange wanted) {
    rects_[panel]->axis(QCPAxis::atLeft)->setRange(clamped(wanted, panels_[panel].fullY, panels_[panel].minimumY));
}

void PlotCanvas::setFullX(QCPRange full, int group) {
    const bool whole = same(visibleX(group), fullX(group));
    groupOf(group).full = full;
    setX(group, whole ? full : visibleX(group));
}

void PlotCanvas::showAllX(int group) { setX(group, fullX(group)); }

void PlotCanvas::setFullY(int panel, QCPRange full) {
    QCPAxis* values = rects_[panel]->axis(QCPAxis::atLeft);
    const QCPRange now = values->range();
    const bool whole = !panels_[panel].zoomY || same(now, panels_[panel].fullY);
    panels_[panel].fullY = full;
    if (whole)
        values->setRange(full);
    else
        setY(panel, now);
}

bool PlotCanvas::isZoomed() const {
    for (int group = 0; group < groups_.size(); ++group)
        if (!same(visibleX(group), fullX(group))) return true;
    for (int i = 0; i < rects_.size(); ++i)
        if (panels_[i].zoomY && !same(rects_[i]->axis(QCPAxis::atLeft)->range(), panels_[i].fullY)) return true;
    return false;
}

void PlotCanvas::resetZoom() {
    if (!isZoomed()) return;
    history_.remember(view());
    View whole;
    for (const Group& group : groups_) whole.x.push_back(group.full);
    for (const Panel& panel : panels_) whole.y.push_back(panel.fullY);
    setView(whole);
    replot(rpQueuedReplot);
}

void PlotCanvas::forgetZoom() {
    resetZoom();
    history_.clear();
}

void PlotCanvas::undoZoom() {
    const auto before = history_.undo(view());
    if (!before) return;
    setView(*before);
    replot(rpQueuedReplot);
}

void PlotCanvas::redoZoom() {
    const auto after = history_.redo(view());
    if (!after) return;
    setView(*after);
    replot(rpQueuedReplot);
}

void PlotCanvas::zoomBy(double factor, QPointF at, bool vertical) {
    if (rects_.empty()) return;
    const int panel = std::max({panelAt(at), panelOfAxis(at), 0}), group = panels_[panel].group;
    const auto scaled = [factor](const QCPRange& range, double centre) {
        return QCPRange(centre - (centre - range.lower) * factor, centre + (range.upper - centre) * factor);
    };
    const QPointF centre = dataAt(panel, at);
    if (vertical) {
        if (panels_[panel].zoomY) setY(panel, scaled(rects_[panel]->axis(QCPAxis::atLeft)->range(), centre.y()));
    } else {
        setX(group, scaled(visibleX(group), centre.x()));
    }
    replot(rpQueuedReplot);
}

void PlotCanvas::zoomTo(QCPRange x) {
    history_.remember(view());
    setX(0, x);
    replot(rpQueuedReplot);
}

void PlotCanvas::reveal(double x) {
    QCPRange now = visibleX();
    if (x - 0.5 < now.lower)
        now += x - 0.5 - now.lower;
    else if (x + 0.5 > now.upper)
        now += x + 0.5 - now.upper;
    else
        return;
    setX(0, now);
    replot(rpQueuedReplot);
}

void PlotCanvas::revealMark() {
    for (int i = 0; i < rects_.size(); ++i) {
        const CursorMark mark = overlay_->markOf(rects_[i]);
        const auto moved = [half = mark.size / 2](QCPRange range, double cell) {
            if (cell - half < range.lower) return range + (cell - half - range.lower);
            if (cell + half > range.upper) return range + (cell + half - range.upper);
            return range;
        };
        const QCPRange x = visibleX(panels_[i].group), y = rects_[i]->axis(QCPAxis::atLeft)->range();
        const QCPRange toX = mark.x ? moved(x, *mark.x) : x, toY = mark.y && panels_[i].zoomY ? moved(y, *mark.y) : y;
        if (same(x, toX) && same(y, toY)) continue;
        setX(panels_[i].group, toX);
        if (panels_[i].zoomY) setY(i, toY);
        replot(rpQueuedReplot);
    }
}

std::vector<ShortcutText> PlotCanvas::gestures() {
    const QString plots = tr("Plots");
    return {
        {plots, tr("Move the cursor by a step, by a layer"), tr("← →, ↑ ↓")},
        {plots, tr("Move it by ten"), tr("Shift+arrows")},
        {plots, tr("First and last step"), tr("Home, End")},
        {plots, tr("Values at the cursor"), tr("Space")},
        {plots, tr("Zoom the steps"), tr("+, −, wheel")},
        {plots, tr("Zoom the values"), tr("Ctrl++, Ctrl+−, Ctrl+wheel")},
        {plots, tr("Show everything"), tr("0, double click")},
        {plots, tr("Pan"), tr("Drag, sideways wheel")},
        {plots, tr("Zoom into a box"), tr("Shift+drag")},
        {plots, tr("Choose a range of steps"), tr("Ctrl+drag")},
        {plots, tr("Give up a drag"), tr("Esc")},
        {plots, tr("Copy and export"), tr("Right click, Menu key")},
    };
}

void PlotCanvas::replotOverlay() {
    // Before the first full replot there is no layout to draw into, and that replot will draw the overlay too.
    if (isVisible() && !rects_.empty() && rects_.front()->rect().width() > 0)
        layer(QStringLiteral("kvscope.overlay"))->replot();
}

int PlotCanvas::panelAt(QPointF pixel) const {
    for (int i = 0; i < rects_.size(); ++i)
        if (rects_[i]->visible() && QRectF(rects_[i]->rect()).contains(pixel)) return i;
    return -1;
}

int PlotCanvas::panelOfAxis(QPointF pixel) const {
    for (int i = 0; i < rects_.size(); ++i) {
        const QRectF inner = rects_[i]->rect(), outer = rects_[i]->outerRect();
        if (rects_[i]->visible() && pixel.x() >= outer.left() && pixel.x() < inner.left() && pixel.y() >= inner.top() &&
            pixel.y() <= inner.bottom())
            return i;
    }
    return -1;
}

int PlotCanvas::handleAt(QPointF pixel) const {
    const int panel = panelAt(pixel);
    if (panel < 0 || !panels_[panel].handle) return -1;
    const QCPAxis* axis = rects_[panel]->axis(QCPAxis::atBottom);
    return std::abs(axis->coordToPixel(*panels_[panel].handle) - pixel.x()) <= kHandleReach ? panel : -1;
}

QPointF PlotCanvas::dataAt(int panel, QPointF pixel) const {
    const QCPAxisRect* rect = rects_[panel];
    return {rect->axis(QCPAxis::atBottom)->pixelToCoord(pixel.x()),
            rect->axis(QCPAxis::atLeft)->pixelToCoord(pixel.y())};
}

void PlotCanvas::mousePressEvent(QMouseEvent* event) {
    event->accept();
    if (event->button() != Qt::LeftButton) return;
    pressed_ = event->position();
    pressedPanel_ = panelAt(pressed_);
    moved_ = false;
    if (pressedPanel_ < 0) return;
    atPress_ = view();
    const bool box = event->modifiers().testFlag(Qt::ShiftModifier);
    const bool steps = event->modifiers().testFlag(Qt::ControlModifier);
    gesture_ = box ? Gesture::Box : steps ? (selectsSteps_ ? Gesture::Steps : Gesture::Box) : Gesture::Pan;
    if (gesture_ == Gesture::Pan && handleAt(pressed_) >= 0) {
        gesture_ = Gesture::Handle;
        handleAtPress_ = *panels_[pressedPanel_].handle;
    }
}

void PlotCanvas::mouseMoveEvent(QMouseEvent* event) {
    event->accept();
    const QPointF at = event->position();
    if (gesture_ == Gesture::None || pressedPanel_ < 0) {
        const int panel = panelAt(at);
        if (handleAt(at) >= 0)
            setCursor(Qt::SplitHCursor);
        else
            unsetCursor();
        if (panel >= 0)
            emit hovered(panel, dataAt(panel, at), event->globalPosition().toPoint());
        else
            emit hoverEnded();
        return;
    }
    if (!moved_) {
        if ((at - pressed_).manhattanLength() < QApplication::startDragDistance()) return;
        moved_ = true;
        emit hoverEnded();
        if (gesture_ == Gesture::Pan) {
            history_.remember(view());
            setCursor(Qt::ClosedHandCursor);
        }
    }
    const int i = pressedPanel_;
    const QRectF area = rects_[i]->rect();
    if (gesture_ == Gesture::Handle) {
        emit handleDragged(pressedPanel_, dataAt(pressedPanel_, at).x());
        return;
    }
    if (gesture_ == Gesture::Pan) {
        const int group = panels_[i].group;
        QCPRange x = atPress_.x[group];
        x -= (at.x() - pressed_.x()) / area.width() * x.size();
        setX(group, x);
        if (panels_[i].zoomY) {
            const QCPAxis* axis = rects_[i]->axis(QCPAxis::atLeft);
            QCPRange y = atPress_.y[i];
            y += (at.y() - pressed_.y()) / area.height() * y.size() * (axis->rangeReversed() ? -1 : 1);
            setY(i, y);
        }
        replot(rpQueuedReplot);
        return;
    }
    QRectF box = QRectF(pressed_, at).normalized() & area;
    if (gesture_ == Gesture::Steps || !panels_[i].zoomY) {
        box.setTop(area.top());
        box.setBottom(area.bottom());
    }
    overlay_->setBox(box);
    replotOverlay();
}

void PlotCanvas::mouseReleaseEvent(QMouseEvent* event) {
    event->accept();
    if (event->button() != Qt::LeftButton) return;
    const Gesture gesture = std::exchange(gesture_, Gesture::None);
    unsetCursor();
    overlay_->setBox(std::nullopt);
    const int panel = std::exchange(pressedPanel_, -1);
    if (panel < 0 || panel >= rects_.size()) return;
    const QPointF at = event->position();
    if (gesture == Gesture::Handle) {
        if (moved_) emit handleReleased(panel);
        return;
    }
    if (!moved_) {
        if (gesture != Gesture::Box) emit clicked(panel, dataAt(panel, pressed_));
        return;
    }
    if (gesture == Gesture::Pan) return;
    const QRectF area = rects_[panel]->rect();
    const QRectF box = QRectF(pressed_, at).normalized() & area;
    const QPointF a = dataAt(panel, box.topLeft()), b = dataAt(panel, box.bottomRight());
    if (gesture == Gesture::Steps) {
        emit stepsSelected(a.x(), b.x());
    } else if (box.width() >= 4 || box.height() >= 4) {
        history_.remember(view());
        if (box.width() >= 4) setX(panels_[panel].group, {a.x(), b.x()});
        if (panels_[panel].zoomY && box.height() >= 4) setY(panel, {std::min(a.y(), b.y()), std::max(a.y(), b.y())});
    }
    replot(rpQueuedReplot);
}

void PlotCanvas::mouseDoubleClickEvent(QMouseEvent* event) {
    event->accept();
    gesture_ = Gesture::None;
    pressedPanel_ = -1;
    if (event->button() == Qt::LeftButton) resetZoom();
}

void PlotCanvas::wheelEvent(QWheelEvent* event) {
    event->accept();
    if (rects_.empty()) return;
    const QPointF at = event->position();
    const int group = panels_[std::max({panelAt(at), panelOfAxis(at), 0})].group;
    // A sideways wheel or a two-finger swipe to the side pans. With Alt it does not, because some systems report the
    // ordinary wheel as sideways while Alt is held.
    const QPoint angle = event->angleDelta();
    if (std::abs(angle.x()) > std::abs(angle.y()) && !event->modifiers().testFlag(Qt::AltModifier)) {
        history_.remember(view(), group);
        QCPRange x = visibleX(group);
        x -= angle.x() / 120.0 * 0.1 * x.size();
        setX(group, x);
        replot(rpQueuedReplot);
        return;
    }
    const double clicks = (angle.y() != 0 ? angle.y() : angle.x()) / 120.0;
    if (clicks == 0) return;
    // The wheel over a value axis, or with Ctrl, zooms the value axis instead of the x axis.
    const bool vertical = event->modifiers().testFlag(Qt::ControlModifier) || panelOfAxis(at) >= 0;
    history_.remember(view(), group);
    zoomBy(std::pow(kZoomWheel, clicks), at, vertical);
}

void PlotCanvas::leaveEvent(QEvent* event) {
    QCustomPlot::leaveEvent(event);
    emit hoverEnded();
}

void PlotCanvas::keyPressEvent(QKeyEvent* event) {
    const int stride = event->modifiers().testFlag(Qt::ShiftModifier) ? 10 : 1;
    const auto zoom = [this, vertical = event->modifiers().testFlag(Qt::ControlModifier)](double factor) {
        if (rects_.empty()) return;
        history_.remember(view(), 0);
        const QRectF area = rects_.front()->rect();
        zoomBy(factor, area.center(), vertical);
    };
    switch (event->key()) {
    case Qt::Key_Left:
        emit cursorMoveRequested(-stride, 0);
        break;
    case Qt::Key_Right:
        emit cursorMoveRequested(stride, 0);
        break;
    case Qt::Key_Up:
        emit cursorMoveRequested(0, -stride);
        break;
    case Qt::Key_Down:
        emit cursorMoveRequested(0, stride);
        break;
    case Qt::Key_Home:
        emit cursorJumpRequested(false);
        break;
    case Qt::Key_End:
        emit cursorJumpRequested(true);
        break;
    case Qt::Key_Plus:
    case Qt::Key_Equal:
        zoom(kZoomKey);
        break;
    case Qt::Key_Minus:
    case Qt::Key_Underscore:
        zoom(1 / kZoomKey);
        break;
    case Qt::Key_Space:
        emit detailsRequested();
        break;
    case Qt::Key_0:
        resetZoom();
        break;
    case Qt::Key_Escape:
        if (gesture_ == Gesture::None) {
            event->ignore();
            return;
        }
        if (gesture_ == Gesture::Handle) emit handleDragged(pressedPanel_, handleAtPress_);
        gesture_ = Gesture::None; // ends the drag and restores the view from before it
        pressedPanel_ = -1;
        overlay_->setBox(std::nullopt);
        unsetCursor();
        setView(atPress_);
        replot(rpQueuedReplot);
        break;
    default:
        QWidget::keyPressEvent(event);
        return;
    }
    event->accept();
}

void PlotCanvas::contextMenuEvent(QContextMenuEvent* event) {
    event->accept();
    emit menuRequested(event->globalPos(), event->reason() == QContextMenuEvent::Mouse);
}

bool PlotCanvas::event(QEvent* event) {
    // The plot claims the arrow keys, Home and End, which would otherwise move the focus. It claims no other key:
    // Ctrl+Z, for one, belongs to the window.
    if (event->type() == QEvent::ShortcutOverride) {
        switch (static_cast<QKeyEvent*>(event)->key()) {
        case Qt::Key_Left:
        case Qt::Key_Right:
        case Qt::Key_Up:
        case Qt::Key_Down:
        case Qt::Key_Home:
        case Qt::Key_End:
            if (!(static_cast<QKeyEvent*>(event)->modifiers() & (Qt::ControlModifier | Qt::AltModifier)))
                event->accept();
            break;
        default:
            break;
        }
    }
    return QCustomPlot::event(event);
}

void PlotCanvas::styleAxisRect(QCPAxisRect& rect) const {
    rect.setBackground(theme_->plotBackground);
    QFont labels = QApplication::font();
    QFont ticks = labels;
    ticks.setPointSizeF(std::max(7.5, labels.pointSizeF() - 1));
    for (QCPAxis* axis : rect.axes()) {
        const bool value = axis->axisType() == QCPAxis::atLeft;
        axis->setBasePen(QPen(theme_->plotAxis, 1));
        axis->setTickPen(QPen(theme_->plotAxis, 1));
        axis->setSubTickPen(Qt::NoPen);
        axis->setSubTicks(false);
        axis->setTickLength(0, 4);
        axis->setLabelColor(theme_->text);
        axis->setTickLabelColor(theme_->mutedText);
        axis->setLabelFont(labels);
        axis->setTickLabelFont(ticks);
        axis->setLabelPadding(value ? 8 : 4);
        axis->setTickLabelPadding(4);
        axis->setPadding(2);
        axis->grid()->setPen(QPen(theme_->plotGrid, 1));
        axis->grid()->setSubGridVisible(false);
        axis->grid()->setZeroLinePen(Qt::NoPen);
        axis->grid()->setVisible(value);
        axis->setSelectableParts(QCPAxis::spNone);
    }
}

/// Copies the plot's buffers to the window, like QCustomPlot's own function, but copies the opaque first buffer without
/// blending and blends the others only where the overlay drew something.
void PlotCanvas::paintEvent(QPaintEvent*) {
    QCPPainter painter(this);
    if (!painter.isActive()) return;
    painter.setCompositionMode(QPainter::CompositionMode_Source); // copies: the ground is opaque
    // Right after a resize the buffer is smaller than the window until the next replot; the rest gets the ground's
    // colour.
    const QSize drawn = mPaintBuffers.isEmpty() ? QSize() : mPaintBuffers.front()->size();
    for (const QRect& bare : QRegion(rect()) - QRect(QPoint(), drawn)) painter.fillRect(bare, ground_->colour());
    for (const auto& buffer : mPaintBuffers) {
        if (buffer != mPaintBuffers.front()) {
            painter.setCompositionMode(QPainter::CompositionMode_SourceOver);
            painter.setClipRegion(overlay_->covered());
        }
        buffer->draw(&painter);
    }
}

void PlotCanvas::applyTheme(const Theme& theme) {
    theme_ = &theme;
    setBackground(theme.plotBackground);
    ground_->setColour(theme.plotBackground);
    overlay_->setColours(theme.cursor, theme.accent);
    for (QCPAxisRect* rect : rects_) styleAxisRect(*rect);
}

} // namespace kvscope::ui
