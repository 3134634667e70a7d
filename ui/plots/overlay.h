// What lies over a plot and changes without it: the shared cursor, the selected step range, the zoom box.
#pragma once

#include <qcustomplot.h>

#include <optional>

namespace kvscope::ui {

/// Where the shared cursor is, in data coordinates of a panel.
struct CursorMark {
    std::optional<double> x, y;            // centre of a cell of size 1
    std::optional<QCPRange> selectedSteps; // first and last step
};

/// Lives on a buffered layer of its own, so that following the mouse never redraws the data.
class Overlay final : public QCPLayerable {
    Q_OBJECT
public:
    Overlay(QCustomPlot* plot, const QString& layer);
    void setMark(QCPAxisRect* panel, const CursorMark& mark);
    void clear();
    CursorMark markOf(const QCPAxisRect* panel) const; // empty: none
    void setBox(std::optional<QRectF> pixels) { box_ = pixels; }
    void setColours(const QColor& cursor, const QColor& accent);
    /// Where it drew last, in pixels of the plot: the rest of its layer is empty.
    const QRegion& covered() const { return covered_; }

protected:
    void applyDefaultAntialiasingHint(QCPPainter* painter) const override;
    void draw(QCPPainter* painter) override;

private:
    void drawMark(QCPPainter& painter, QCPAxisRect& panel, const CursorMark& mark);
    void drawLine(QCPPainter& painter, QPointF from, QPointF to);
    void cover(QRectF pixels);
    QVector<QPair<QPointer<QCPAxisRect>, CursorMark>> marks_;
    std::optional<QRectF> box_;
    QColor cursor_, accent_;
    QRegion covered_;
};

} // namespace kvscope::ui
