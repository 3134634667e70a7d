// Draws stacked components: for every step of a pyramid, or as a few given bars.
#pragma once

#include "base/indexed.h"
#include "profiler/tiles/step_pyramid.h"

#include <qcustomplot.h>

#include <vector>

namespace kvscope::ui {

/// Stacks the rows of a pyramid at every step, the first row at the bottom. Zoomed out, a pixel column shows the means
/// of its steps. The last row of the pyramid holds the total of the step and is not stacked; zoomed out, its maximum in
/// each pixel column is drawn as a line above the means.
class StepStackPlottable final : public QCPAbstractPlottable {
    Q_OBJECT
public:
    StepStackPlottable(QCPAxis* steps, QCPAxis* values, const StepPyramid& data);
    void setColours(std::vector<QColor> components, const QColor& extreme);
    /// Draws each component as a percentage of its step instead of its absolute value.
    void setRelative(bool relative) { relative_ = relative; }
    double stepsPerPixel() const { return stepsPerPixel_; }
    /// The largest total of a step in a range of the step axis; 0 if there is no step.
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
    double centre = 0, width = 0.8; // in coordinates of the key axis
    Numbered<double> parts;         // [component] absolute value
    QColor foot;                    // colour of a strip at the bar's foot that tells the run; invalid: no strip
    std::vector<QString> labels;    // [component] drawn beside the part where there is room; may be empty
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
    /// The indices of the bar and of its component at a point; -1 for each that is not there.
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
