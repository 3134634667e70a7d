// Margins of a heatmap: what its columns and rows hold on average, beside it and in step with its zoom.
#pragma once

#include <qcustomplot.h>

#include <functional>
#include <vector>

namespace kvscope::ui {

/// A value per device pixel column of the plot below, as filled area or line. The columns come from whoever drew that
/// plot, so that both say the same.
class StepMargin final : public QCPAbstractPlottable {
    Q_OBJECT
public:
    /// Called while drawing, with the number of device pixels: one value each, NaN where there is none.
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

/// A bar per row, from 0 or from the axis' lower end.
class RowMargin final : public QCPAbstractPlottable {
    Q_OBJECT
public:
    RowMargin(QCPAxis* values, QCPAxis* rows) : QCPAbstractPlottable(values, rows) {}
    /// By place on the row axis; NaN: none.
    void setValues(std::vector<float> values) { values_ = std::move(values); }
    /// A second, stronger bar inside the first; empty: none.
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
    void drawBars(QCPPainter& painter, const std::vector<float>& values, const QColor& colour) const;
    std::vector<float> values_, inner_;
    QColor innerColour_;
};

} // namespace kvscope::ui
