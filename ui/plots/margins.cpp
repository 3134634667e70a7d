#include "ui/plots/margins.h"

#include "ui/look/theme.h"
#include "ui/plots/plot_canvas.h"

#include <QApplication>
#include <QMouseEvent>
#include <QWheelEvent>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {
constexpr int kStepHeight = 54, kRowWidth = 84;      // logical pixels, without labels
constexpr int kLeastWidth = 420, kLeastHeight = 300; // of a plot with margins
} // namespace

Margins::Margins(PlotCanvas& plot, QCPAxisRect* main, StepMargin::Columns columns, QObject* parent)
    : QObject(parent), plot_(plot), main_(main), leastHeight_(kLeastHeight) {
    stepRect_ = plot.addPanel(false);
    stepPanel_ = int(plot.panels().size()) - 1;
    QCPLayoutGrid& grid = *plot.plotLayout();
    const int row = grid.rowCount() - 2;
    layoutRow_ = row + 1;
    grid.take(main_);
    grid.take(stepRect_);
    grid.addElement(row, 0, stepRect_);
    grid.addElement(row + 1, 0, main_);
    rowRect_ = new QCPAxisRect(&plot, false);
    rowRect_->addAxis(QCPAxis::atLeft);
    rowRect_->addAxis(QCPAxis::atBottom);
    for (QCPAxis* axis : rowRect_->axes()) {
        axis->setLayer(QStringLiteral("axes"));
        axis->grid()->setLayer(QStringLiteral("grid"));
    }
    grid.addElement(row + 1, 1, rowRect_);
    stepRect_->setMinimumSize(0, kStepHeight);
    stepRect_->setMaximumSize(QWIDGETSIZE_MAX, kStepHeight);
    rowRect_->setMinimumSize(kRowWidth, 0);
    rowRect_->setMaximumSize(kRowWidth, QWIDGETSIZE_MAX);
    auto* level = new QCPMarginGroup(&plot); // aligns their top and bottom edges
    main_->setMarginGroup(QCP::msTop | QCP::msBottom, level);
    rowRect_->setMarginGroup(QCP::msTop | QCP::msBottom, level);

    QCPAxis *mainRows = main_->axis(QCPAxis::atLeft), *rows = rowRect_->axis(QCPAxis::atLeft);
    connect(mainRows, qOverload<const QCPRange&>(&QCPAxis::rangeChanged), rows,
            [rows, mainRows](const QCPRange& range) {
                rows->setRangeReversed(mainRows->rangeReversed());
                rows->setRange(range);
            });
    steps_ = new StepMargin(stepRect_->axis(QCPAxis::atBottom), stepValues(), std::move(columns));
    rows_ = new RowMargin(rowValues(), rows);
    plot.installEventFilter(this);
}

StepMargin* Margins::addCurve(StepMargin::Columns columns) {
    return new StepMargin(stepRect_->axis(QCPAxis::atBottom), stepValues(), std::move(columns));
}

void Margins::setWanted(bool wanted) {
    wanted_ = wanted;
    place();
}

void Margins::setLeastHeight(int pixels) {
    leastHeight_ = pixels;
    place();
}

void Margins::place() {
    const bool shown = wanted_ && plot_.width() >= kLeastWidth && plot_.height() >= leastHeight_;
    if (shown == shown_) return;
    shown_ = shown;
    for (QCPAxisRect* rect : {stepRect_, rowRect_}) {
        rect->setVisible(shown);
        // The size limits of a hidden panel include its labels, so that the heatmap gets all of its room.
        rect->setSizeConstraintRect(shown ? QCPLayoutElement::scrInnerRect : QCPLayoutElement::scrOuterRect);
        rect->setAutoMargins(shown ? QCP::msAll : QCP::msNone);
        if (!shown) rect->setMargins({});
    }
    stepRect_->setMinimumSize(0, shown ? kStepHeight : 0);
    stepRect_->setMaximumSize(QWIDGETSIZE_MAX, shown ? kStepHeight : 0);
    rowRect_->setMinimumSize(shown ? kRowWidth : 0, 0);
    rowRect_->setMaximumSize(shown ? kRowWidth : 0, QWIDGETSIZE_MAX);
    plot_.replot(QCustomPlot::rpQueuedReplot);
}

void Margins::applyTheme(const Theme& theme) {
    rowRect_->setBackground(theme.plotBackground);
    QFont ticks = QApplication::font();
    ticks.setPointSizeF(std::max(7.5, ticks.pointSizeF() - 1));
    const QCPAxis* like = main_->axis(QCPAxis::atBottom);
    for (QCPAxis* axis : rowRect_->axes()) {
        axis->setBasePen(like->basePen());
        axis->setTickPen(like->tickPen());
        axis->setSubTickPen(Qt::NoPen);
        axis->setTickLength(0, 4);
        axis->setLabelFont(like->labelFont());
        axis->setLabelColor(theme.mutedText);
        axis->setTickLabelFont(ticks);
        axis->setTickLabelColor(theme.mutedText);
        axis->setLabelPadding(like->labelPadding());
        axis->setTickLabelPadding(like->tickLabelPadding());
        axis->setPadding(like->padding());
        axis->grid()->setPen(QPen(theme.plotGrid, 1));
        axis->grid()->setSubGridVisible(false);
        axis->grid()->setZeroLinePen(Qt::NoPen);
        axis->grid()->setVisible(axis->axisType() == QCPAxis::atBottom);
        axis->setSelectableParts(QCPAxis::spNone);
    }
    QCPAxis *rows = rowRect_->axis(QCPAxis::atLeft), *steps = stepRect_->axis(QCPAxis::atBottom);
    for (QCPAxis* shared : {rows, steps}) { // the heatmap's own axes show the numbers
        shared->setTickLabels(false);
        shared->setTicks(false);
        shared->grid()->setVisible(false);
    }
    stepValues()->setLabelColor(theme.mutedText);
    steps_->setPen(QPen(theme.runA, 1));
    rows_->setPen(Qt::NoPen);
    rows_->setBrush(theme.runA);
    for (QCPAbstractPlottable* plottable :
         {static_cast<QCPAbstractPlottable*>(steps_), static_cast<QCPAbstractPlottable*>(rows_)})
        plottable->setAntialiased(false);
}

std::optional<int> Margins::rowAt(QPointF pixel) const {
    if (!shown_ || !QRectF(rowRect_->rect()).contains(pixel)) return std::nullopt;
    return int(std::lround(rowRect_->axis(QCPAxis::atLeft)->pixelToCoord(pixel.y())));
}

bool Margins::eventFilter(QObject*, QEvent* event) {
    switch (event->type()) {
    case QEvent::Resize:
        place();
        return false;
    case QEvent::MouseMove: {
        const auto* mouse = static_cast<QMouseEvent*>(event);
        const auto row = mouse->buttons() == Qt::NoButton ? rowAt(mouse->position()) : std::nullopt;
        if (row)
            emit rowHovered(*row, mouse->globalPosition().toPoint());
        else if (hovering_)
            emit rowHoverEnded();
        hovering_ = row.has_value();
        return hovering_; // the plot must not see the event: it would end its own hover
    }
    case QEvent::MouseButtonPress: {
        const auto* mouse = static_cast<QMouseEvent*>(event);
        pressed_ = mouse->button() == Qt::LeftButton && rowAt(mouse->position()).has_value();
        return pressed_;
    }
    case QEvent::MouseButtonRelease: {
        const auto* mouse = static_cast<QMouseEvent*>(event);
        if (!std::exchange(pressed_, false)) return false;
        if (const auto row = rowAt(mouse->position())) emit rowClicked(*row);
        return true;
    }
    case QEvent::Wheel: {
        const auto* wheel = static_cast<QWheelEvent*>(event);
        if (!rowAt(wheel->position())) return false;
        // Sends the plot the event as if the pointer were over the heatmap's row axis, which zooms the rows.
        const QPointF at(main_->rect().left() - 2, wheel->position().y());
        QWheelEvent moved(at, wheel->globalPosition(), wheel->pixelDelta(), wheel->angleDelta(), wheel->buttons(),
                          wheel->modifiers(), wheel->phase(), wheel->inverted());
        QApplication::sendEvent(&plot_, &moved);
        return true;
    }
    default:
        return false;
    }
}

} // namespace kvscope::ui
