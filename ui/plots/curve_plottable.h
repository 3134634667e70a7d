// One number per step as a line: a row of a StepPyramid. Zoomed out the line keeps the extremes of every pixel, so one
// bad step is never lost; drawing costs what the pixels cost, however long the run.
#pragma once

#include "profiler/tiles/step_pyramid.h"

#include <qcustomplot.h>

namespace kvscope::ui {

class CurvePlottable final : public QCPAbstractPlottable {
    Q_OBJECT
public:
    /// `data` must outlive it; its rows may come later.
    CurvePlottable(QCPAxis* steps, QCPAxis* values, const StepPyramid& data, int row);
    /// The area below the line is filled where steps have pixels of their own; Qt::NoBrush: never.
    void setFill(const QBrush& fill) { mBrush = fill; }
    /// A dot at every step: few steps are points, not a curve.
    void setDots(bool dots) { dots_ = dots; }
    /// NaN: undefined, or not read yet.
    double value(int step) const;
    /// Of the steps in a range of the step axis; count 0: none is defined there.
    CellStats within(QCPRange steps) const;

    double selectTest(const QPointF&, bool, QVariant*) const override { return -1; }
    QCPRange getKeyRange(bool& found, QCP::SignDomain) const override;
    QCPRange getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const override;

protected:
    void draw(QCPPainter* painter) override;
    void drawLegendIcon(QCPPainter*, const QRectF&) const override {}

private:
    void drawStretch(QCPPainter& painter, const QPolygonF& line, bool filled) const;

    const StepPyramid& data_;
    int row_ = 0;
    bool dots_ = false;
};

} // namespace kvscope::ui
