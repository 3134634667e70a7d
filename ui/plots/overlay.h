// The overlay of a plot: the shared cursor, the selected range of steps and the zoom box. It changes without a new
// drawing of the plot.
#pragma once

#include <qcustomplot.h>

#include <optional>

namespace kvscope::ui {

/// Where the shared cursor lies, in the data coordinates of a panel.
struct CursorMark {
    std::optional<double> x, y;            // centre of the marked cell
    std::optional<QCPRange> selectedSteps; // first and last step
    double size = 1;                       // of the cell; 0: a place on an axis without cells
};

/// Draws on a buffered layer of its own, so that following the mouse never draws the data again.
class Overlay final : public QCPLayerable {
    Q_OBJECT
public:
    Overlay(QCustomPlot* plot, const QString& layer);
    void setMark(QCPAxisRect* panel, const CursorMark& mark);
    void clear();
    CursorMark markOf(const QCPAxisRect* panel) const; // empty if the panel has no mark
    void setBox(std::optional<QRectF> pixels) { box_ = pixels; }
    void setColours(const QColor& cursor, const QColor& accent);
    /// The pixels of the plot that the last drawing covered; the rest of the overlay's layer is empty.
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
