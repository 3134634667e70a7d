// A legend as a row of swatches that continues in the next line when the width is used up. Where that would take too
// many lines of a small plot, long names are cut. It is part of the plot, so that exported pictures contain it.
#pragma once

#include <qcustomplot.h>

namespace kvscope::ui {

struct Theme;

struct Swatch {
    QString text;
    QColor colour;
    enum class Mark { Fill, Hatch, Line, Dashes, Dot, Tick, Foot, Frame, Diamond } mark = Mark::Fill;
    QColor hatch; // Hatch: colour of the lines over the fill. Foot: colour of the bar at the bottom of the fill
};

class LegendStrip final : public QCPLayoutElement {
    Q_OBJECT
public:
    explicit LegendStrip(QCustomPlot* plot);
    void setSwatches(QVector<Swatch> swatches);
    const QVector<Swatch>& swatches() const { return swatches_; }
    /// The most lines it may take; 0: a part of the plot's height decides.
    void setMostLines(int lines) { mostLines_ = lines; }
    /// What is written beside each swatch in a plot of this size, in pixels.
    QStringList shownNames(QSize plot) const;
    void applyTheme(const Theme& theme);

    void update(UpdatePhase phase) override;

protected:
    void applyDefaultAntialiasingHint(QCPPainter* painter) const override;
    void draw(QCPPainter* painter) override;

private:
    struct Layout {
        QVector<QRect> places; // by swatch
        int longest = 0;       // px, of a name
        int lines() const;
    };
    Layout arrange(int width, int longest) const;
    Layout fitted(QSize plot) const;
    QVector<Swatch> swatches_;
    int mostLines_ = 0;
    QColor text_, border_;
    QFont font_;
};

} // namespace kvscope::ui
