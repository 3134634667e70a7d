// Draws a StepPyramid as a heatmap in device pixels. A pixel that covers several cells shows their exact aggregate: the
// mean, the lowest or the highest value.
#pragma once

#include "base/indexed.h"
#include "profiler/tiles/step_pyramid.h"

#include <qcustomplot.h>

namespace kvscope::ui {

class HeatPlottable final : public QCPAbstractPlottable {
    Q_OBJECT
public:
    /// The rows lie at 0, 1, ... on the value axis. `data` must outlive this object.
    HeatPlottable(QCPAxis* steps, QCPAxis* rows, const StepPyramid& data);
    void setAggregate(Aggregate aggregate) { aggregate_ = aggregate; }
    /// `map` gives the colour of a share from 0 to 1 of the way between the two ends of the values. The default is
    /// Theme::sequential.
    void setColourMap(QRgb (*map)(double));
    void setColours(QCPRange values, const QColor& undefined);
    /// Sets which row of the data lies at each place of the value axis; rows that are not named are not shown. Empty:
    /// all rows, in the order of the data.
    void setOrder(std::vector<int> order) { order_ = std::move(order); }
    int places() const { return order_.empty() ? data_.rows() : int(order_.size()); }
    const std::vector<int>& order() const { return order_; }
    int dataRow(int place) const { return place >= 0 && place < order_.count() ? order_[place] : place; }
    /// Steps and rows per device pixel of the last drawing; below 1, every step or row had pixels of its own.
    double stepsPerPixel() const { return stepsPerPixel_; }
    double rowsPerPixel() const { return rowsPerPixel_; }
    /// Mean of the visible rows for every device pixel column of the last drawing; NaN where no value is defined.
    const std::vector<float>& columnMeans() const { return columnMeans_; }

    /// Draws these steps and rows into an image of `size` device pixels; pixels outside the data are transparent.
    /// `columnMeans`, if given, receives what columnMeans() describes.
    QImage render(QCPRange steps, QCPRange rows, bool rowsDown, QSize size,
                  Numbered<float>* columnMeans = nullptr) const;

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
    Numbered<QRgb> lut_;
    Numbered<int> order_;
    Numbered<float> columnMeans_;
    double stepsPerPixel_ = 0, rowsPerPixel_ = 0;
};

} // namespace kvscope::ui
