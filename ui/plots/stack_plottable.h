// Stacked components: per step over a pyramid of any length, or a few explicit bars.
#pragma once

#include "profiler/tiles/step_pyramid.h"

#include <qcustomplot.h>

#include <vector>

namespace kvscope::ui {

/// Stacks the rows of a pyramid at every step, the first row at the bottom; zoomed out, the mean of a pixel's steps.
/// The last row of the pyramid is not stacked: it holds the whole step, whose maximum is drawn as a line above the
/// means.
class StepStackPlottable final : public QCPAbstractPlottable {
    Q_OBJECT
public:
    StepStackPlottable(QCPAxis* steps, QCPAxis* values, const StepPyramid& data);
    void setColours(std::vector<QColor> components, const QColor& extreme);
    /// Shares of the step in percent instead of absolute values.
    void setRelative(bool relative) { relative_ = relative; }
    double stepsPerPixel() const { return stepsPerPixel_; }
    /// Largest step total in a range of the step axis; 0 if there is none.
    double largest(QCPRange steps) const;

    double selectTest(const QPointF&, bool, QVariant*) const override { return -1; }
    QCPRange getKeyRange(bool& found, QCP::SignDomain) const override;
    QCPRange getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const override;

protected:
    void draw(QCPPainter* painter) override;
    void drawLegendIcon(QCPPainter*, const QRectF&) const override {}

private:
    const StepPyramid& data_;
    std::vector<QColor> colours_;
    QColor extreme_;
    bool relative_ = false;
    double stepsPerPixel_ = 0;
};

/// One stacked bar.
struct StackBar {
    double centre = 0, width = 0.8; // on the key axis
    std::vector<double> parts;      // absolute, one per component
    QColor foot;                    // which run: a strip below the bar; invalid: none
    std::vector<QString> labels;    // beside each part where there is room; may be empty
    double total() const;
};

class BarStackPlottable final : public QCPAbstractPlottable {
    Q_OBJECT
public:
    BarStackPlottable(QCPAxis* keys, QCPAxis* values);
    void setBars(std::vector<StackBar> bars) { bars_ = std::move(bars); }
    const std::vector<StackBar>& bars() const { return bars_; }
    void setColours(std::vector<QColor> components, const QColor& text);
    void setRelative(bool relative) { relative_ = relative; }
    /// Index of the bar and component under a point, -1 where there is none.
    std::pair<int, int> at(double key, double value) const;

    double selectTest(const QPointF&, bool, QVariant*) const override { return -1; }
    QCPRange getKeyRange(bool& found, QCP::SignDomain) const override;
    QCPRange getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const override;

protected:
    void draw(QCPPainter* painter) override;
    void drawLegendIcon(QCPPainter*, const QRectF&) const override {}

private:
    std::vector<StackBar> bars_;
    std::vector<QColor> colours_;
    QColor text_;
    bool relative_ = false;
};

} // namespace kvscope::ui
