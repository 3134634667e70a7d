// Draws the chart of the roofline view: predicted curves, coloured by the resource that limits them and named at their
// right ends, a vertical guide, and measured runs as dots, each with its own prediction.
#pragma once

#include "base/indexed.h"

#include <qcustomplot.h>

#include <vector>

namespace kvscope::ui {

struct Theme;

struct RooflineLine {
    QString name;
    Qt::PenStyle style = Qt::SolidLine;
    QVector<QPointF> points;   // axis coordinates in the order of x; y NaN: a gap
    std::vector<int> resource; // [point] the limiting resource, an index of Theme::resource
};

struct RooflinePoint {
    double x = 0, measured = 0, predicted = 0; // axis coordinates; predicted NaN: unknown
    QString label;
    QColor colour;
    bool filled = true; // false: measured under other conditions than those of the curves
};

struct RooflineGuide {
    double x = 0; // axis coordinate
    QString text;
};

class RooflinePlottable final : public QCPAbstractPlottable {
    Q_OBJECT
public:
    RooflinePlottable(QCPAxis* x, QCPAxis* y);
    void setLines(std::vector<RooflineLine> lines);
    void setPoints(std::vector<RooflinePoint> points) { points_ = std::move(points); }
    void setGuide(std::optional<RooflineGuide> guide) { guide_ = std::move(guide); }
    void applyTheme(const Theme& theme);
    const std::vector<RooflineLine>& lines() const { return lines_; }
    const std::vector<RooflinePoint>& points() const { return points_; }
    const std::optional<RooflineGuide>& guide() const { return guide_; }
    /// Pixels that the names of the curves need right of the plot.
    int nameWidth() const;

    double selectTest(const QPointF&, bool, QVariant*) const override { return -1; }
    QCPRange getKeyRange(bool& found, QCP::SignDomain) const override;
    QCPRange getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const override;

protected:
    QRect clipRect() const override; // larger than the panel: the names lie outside of the axes
    void draw(QCPPainter* painter) override;
    void drawLegendIcon(QCPPainter*, const QRectF&) const override {}

private:
    QPointF pixel(QPointF at) const;
    void drawLine(QCPPainter& painter, const RooflineLine& line) const;
    void drawNames(QCPPainter& painter, const QRect& area) const;
    void drawPoints(QCPPainter& painter, const QRect& area) const;
    void drawGuide(QCPPainter& painter, const QRect& area) const;

    std::vector<RooflineLine> lines_;
    std::vector<RooflinePoint> points_;
    std::optional<RooflineGuide> guide_;
    Numbered<QColor> resources_;
    QColor text_, muted_, background_;
    QFont font_;
};

} // namespace kvscope::ui
