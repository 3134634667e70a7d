// Draws one row of a StepPyramid, a number per step, as a line. Zoomed out, the line goes through the lowest and the
// highest value of every pixel column, so that a single bad step stays visible. The time to draw depends on the number
// of pixels and not on the length of the run.
#pragma once

#include "profiler/tiles/step_pyramid.h"

#include <qcustomplot.h>

namespace kvscope::ui {

class CurvePlottable final : public QCPAbstractPlottable {
    Q_OBJECT
public:
    /// `data` must outlive this object; its rows may be added later.
    CurvePlottable(QCPAxis* steps, QCPAxis* values, const StepPyramid& data, int row);
    /// Fills the area below the line while every step has at least a pixel of its own. Qt::NoBrush: never fills.
    void setFill(const QBrush& fill) { mBrush = fill; }
    /// Draws a dot at every step, for plots of so few steps that they are points and not a curve.
    void setDots(bool dots) { dots_ = dots; }
    /// Value of a step; NaN if it is undefined or not read yet.
    double value(int step) const;
    /// Statistics of the steps in a range of the step axis; their count is 0 if no step there has a value.
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
