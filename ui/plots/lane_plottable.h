// Draws requests as lanes over time, downwards by their numbers: a bar for every time that a request was in one state,
// and marks at moments.
#pragma once

#include "base/indexed.h"

#include <qcustomplot.h>

#include <cstdint>
#include <vector>

namespace kvscope::ui {

class LanePlottable final : public QCPAbstractPlottable {
    Q_OBJECT
public:
    struct Bar {
        double from = 0, to = 0; // on the time axis
        double lane = 0;
        int state = 0; // of the colours
    };
    struct Mark {
        double at = 0, lane = 0;
        bool cross = false; // else a tick
    };
    /// Lanes lie along the value axis, whose range is reversed.
    LanePlottable(QCPAxis* time, QCPAxis* lanes);
    void setData(std::vector<Bar> bars, std::vector<Mark> marks);
    void setColours(std::vector<QColor> states, const QColor& mark);

    double selectTest(const QPointF&, bool, QVariant*) const override { return -1; }
    QCPRange getKeyRange(bool& found, QCP::SignDomain) const override;
    QCPRange getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const override;

protected:
    void draw(QCPPainter* painter) override;
    void drawLegendIcon(QCPPainter*, const QRectF&) const override {}

private:
    std::vector<Bar> bars_;
    std::vector<Mark> marks_;
    Numbered<QColor> states_;
    QColor mark_;
};

} // namespace kvscope::ui
