// The heatmap: a StepPyramid as an image in device pixels, aggregated exactly wherever a pixel covers several cells.
#pragma once

#include "profiler/tiles/step_pyramid.h"

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
    /// Row of the data at every place of the value axis. Empty: as they are.
    /// The rows that are shown, from the first place on; empty: all of them, as recorded.
    void setOrder(std::vector<int> order) { order_ = std::move(order); }
    int places() const { return order_.empty() ? data_.rows() : int(order_.size()); }
    const std::vector<int>& order() const { return order_; }
    int dataRow(int place) const { return std::size_t(place) < order_.size() ? order_[std::size_t(place)] : place; }
    /// Steps and rows per device pixel when it was last drawn; below 1: every one has its own pixels.
    double stepsPerPixel() const { return stepsPerPixel_; }
    double rowsPerPixel() const { return rowsPerPixel_; }
    /// Of every device pixel column drawn last: the mean of the visible rows; NaN: undefined.
    const std::vector<float>& columnMeans() const { return columnMeans_; }

    /// The picture of a range, size in device pixels; pixels outside the data are transparent.
    QImage render(QCPRange steps, QCPRange rows, bool rowsDown, QSize size,
                  std::vector<float>* columnMeans = nullptr) const;

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
    QRgb (*map_)(double) = nullptr;
    std::vector<QRgb> lut_;
    std::vector<int> order_;
    std::vector<float> columnMeans_;
    double stepsPerPixel_ = 0, rowsPerPixel_ = 0;
};

} // namespace kvscope::ui
