// The margins of a heatmap: a curve with the mean of each column and bars with the mean of each row. Both follow the
// heatmap's zoom.
#pragma once

#include "base/indexed.h"

#include <qcustomplot.h>

#include <functional>
#include <vector>

namespace kvscope::ui {

/// Draws a value per device pixel column of the heatmap below, as a filled area or a line. The heatmap hands over the
/// values that it drew, so that both show the same.
class StepMargin final : public QCPAbstractPlottable {
    Q_OBJECT
public:
    /// Called while drawing with the number of device pixel columns; returns a value for each, NaN for no value.
    using Columns = std::function<std::vector<float>(int pixels)>;
    StepMargin(QCPAxis* steps, QCPAxis* values, Columns columns)
        : QCPAbstractPlottable(steps, values), columns_(std::move(columns)) {}
    void setFilled(bool filled) { filled_ = filled; }

    double selectTest(const QPointF&, bool, QVariant*) const override { return -1; }
    QCPRange getKeyRange(bool& found, QCP::SignDomain) const override;
    QCPRange getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const override;

protected:
    void draw(QCPPainter* painter) override;
    void drawLegendIcon(QCPPainter*, const QRectF&) const override {}

private:
    Columns columns_;
    bool filled_ = true;
};

/// Draws a bar per row, from the lower end of the value axis to the row's value.
class RowMargin final : public QCPAbstractPlottable {
    Q_OBJECT
public:
    RowMargin(QCPAxis* values, QCPAxis* rows) : QCPAbstractPlottable(values, rows) {}
    /// `values` are in the order of the places on the row axis; NaN: no bar.
    void setValues(std::vector<float> values) { values_ = std::move(values); }
    /// Draws a second bar over each first one in a colour of its own; empty: no second bars.
    void setInner(std::vector<float> values, const QColor& colour);
    const std::vector<float>& values() const { return values_; }
    const std::vector<float>& inner() const { return inner_; }

    double selectTest(const QPointF&, bool, QVariant*) const override { return -1; }
    QCPRange getKeyRange(bool& found, QCP::SignDomain) const override;
    QCPRange getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const override;

protected:
    void draw(QCPPainter* painter) override;
    void drawLegendIcon(QCPPainter*, const QRectF&) const override {}

private:
    void drawBars(QCPPainter& painter, NumberedSpan<const float> values, const QColor& colour) const;
    std::vector<float> values_, inner_;
    QColor innerColour_;
};

} // namespace kvscope::ui
