// The heatmap: a StepPyramid as an image in device pixels, aggregated exactly wherever a pixel covers several cells.
#pragma once

#include "ui/plots/step_pyramid.h"

#include <qcustomplot.h>

namespace kvscope::ui {

class HeatPlottable final : public QCPAbstractPlottable {
    Q_OBJECT
public:
    /// Rows at 0, 1, ... on the value axis. `data` must outlive it.
    HeatPlottable(QCPAxis* steps, QCPAxis* rows, const StepPyramid& data);
    void setAggregate(Aggregate aggregate) { aggregate_ = aggregate; }
    /// Colours of 0..1 between the two ends of the values; Theme::sequential at first.
    void setColourMap(QRgb (*map)(double));
    void setColours(QCPRange values, const QColor& undefined);
    /// Steps per device pixel when it was last drawn; below 1: every step has its own pixels.
    double stepsPerPixel() const { return stepsPerPixel_; }

    /// The picture of a range, size in device pixels; pixels outside the data are transparent.
    QImage render(QCPRange steps, QCPRange rows, bool rowsDown, QSize size) const;

    double selectTest(const QPointF&, bool, QVariant*) const override { return -1; }
    QCPRange getKeyRange(bool& found, QCP::SignDomain) const override;
    QCPRange getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const override;

protected:
    void draw(QCPPainter* painter) override;
    void drawLegendIcon(QCPPainter*, const QRectF&) const override {}

private:
    const StepPyramid& data_;
    Aggregate aggregate_ = Aggregate::Mean;
    QCPRange values_{0, 1};
    QRgb undefined_ = 0;
    std::vector<QRgb> lut_;
    double stepsPerPixel_ = 0;
};

} // namespace kvscope::ui
