// Draws a waterfall: a row per loss, read downwards, each bar beginning where the one above it ended.
#pragma once

#include <qcustomplot.h>

#include <utility>
#include <vector>

namespace kvscope::ui {

class WaterfallPlottable final : public QCPAbstractPlottable {
    Q_OBJECT
public:
    struct Row {
        double from = 0; // where the bar begins on the time axis
        /// The bar's pieces, one behind the other; a negative one goes to the left.
        std::vector<std::pair<double, QColor>> parts;
        QString value;        // beside the bar
        bool strong = false;  // a sum of others: its value is bold
        bool hatched = false; // not known what it is
        double end() const;
    };
    /// Rows lie along the value axis, whose range is reversed: row 0 is at the top.
    WaterfallPlottable(QCPAxis* time, QCPAxis* rows);
    void setRows(std::vector<Row> rows) { rows_ = std::move(rows); }
    const std::vector<Row>& rows() const { return rows_; }
    void setColours(const QColor& text, const QColor& line) { text_ = text, line_ = line; }

    double selectTest(const QPointF&, bool, QVariant*) const override { return -1; }
    QCPRange getKeyRange(bool& found, QCP::SignDomain) const override;
    QCPRange getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const override;

protected:
    void draw(QCPPainter* painter) override;
    void drawLegendIcon(QCPPainter*, const QRectF&) const override {}

private:
    std::vector<Row> rows_;
    QColor text_, line_;
};

} // namespace kvscope::ui
