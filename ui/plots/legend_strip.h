// A legend as a row of swatches that continues in the next line when the width is used up. It is part of the plot, so
// that exported pictures contain it.
#pragma once

#include <qcustomplot.h>

namespace kvscope::ui {

struct Theme;

struct Swatch {
    QString text;
    QColor colour;
    enum class Mark { Fill, Hatch, Line, Dashes, Dot, Tick, Foot, Frame } mark = Mark::Fill;
    QColor hatch; // Hatch: colour of the lines over the fill. Foot: colour of the bar at the bottom of the fill
};

class LegendStrip final : public QCPLayoutElement {
    Q_OBJECT
public:
    explicit LegendStrip(QCustomPlot* plot);
    void setSwatches(QVector<Swatch> swatches);
    const QVector<Swatch>& swatches() const { return swatches_; }
    void applyTheme(const Theme& theme);

    void update(UpdatePhase phase) override;

protected:
    void applyDefaultAntialiasingHint(QCPPainter* painter) const override;
    void draw(QCPPainter* painter) override;

private:
    QVector<QRect> arrange(int width) const;
    QVector<Swatch> swatches_;
    QColor text_, border_;
    QFont font_;
};

} // namespace kvscope::ui
