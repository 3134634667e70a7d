// Draws a lane per fact of the prompt over the steps: how many heads had one of its blocks, by origin, and how many of
// them had to load it.
#pragma once

#include "profiler/read/needle_evidence.h"

#include <qcustomplot.h>

#include <array>
#include <vector>

namespace kvscope::ui {

/// Lane n covers n - 0.5 to n + 0.5 of the value axis, whose range is reversed. A bar's height in its lane is the share
/// of the heads that chose blocks in the step; zoomed out, a pixel column shows the mean of its steps and the most
/// missed of any.
class NeedlePlottable final : public QCPAbstractPlottable {
    Q_OBJECT
public:
    NeedlePlottable(QCPAxis* steps, QCPAxis* lanes) : QCPAbstractPlottable(steps, lanes) { setAntialiased(false); }
    void setColours(const std::array<QColor, kNeedleOrigins>& origins, const QColor& missed, const QColor& ground);
    /// [lane]: its steps, ascending
    void setSights(const std::vector<std::vector<NeedleSight>>* sights) { sights_ = sights; }

    double selectTest(const QPointF&, bool, QVariant*) const override { return -1; }
    QCPRange getKeyRange(bool& found, QCP::SignDomain) const override;
    QCPRange getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const override;

protected:
    void draw(QCPPainter* painter) override;
    void drawLegendIcon(QCPPainter*, const QRectF&) const override {}

private:
    void drawLane(QCPPainter& painter, const std::vector<NeedleSight>& sights, int lane) const;

    const std::vector<std::vector<NeedleSight>>* sights_ = nullptr; // of the owner
    std::array<QColor, kNeedleOrigins> origins_;
    QColor missed_, ground_;
};

} // namespace kvscope::ui
