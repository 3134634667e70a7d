// The selection mask: which blocks were selected at which step, coloured by origin, misses hatched over it.
#pragma once

#include "ui/plots/mask_pyramid.h"

#include <qcustomplot.h>

namespace kvscope::ui {

struct Theme;

class MaskPlottable final : public QCPAbstractPlottable {
    Q_OBJECT
public:
    enum class Colouring { Origin, Residency };

    /// Blocks at 0, 1, ... on the value axis. `data` must outlive it.
    MaskPlottable(QCPAxis* steps, QCPAxis* blocks, const MaskPyramid& data);
    void setColouring(Colouring colouring, bool hatchMisses);
    void applyTheme(const Theme& theme);
    double stepsPerPixel() const { return stepsPerPixel_; }
    double blocksPerPixel() const { return blocksPerPixel_; }

    /// Whether cells were large enough for a hatch when last drawn.
    bool hatchVisible() const { return hatchVisible_; }

    /// Device pixels; `scale`: device pixels per logical pixel, for the width of hatch and gaps.
    QImage render(QCPRange steps, QCPRange blocks, QSize size, double scale) const;
    /// The origin shown where several meet: query-aware, query-agnostic, token-level, window, sink. -1: nothing
    /// selected.
    static int shownOrigin(MaskBits bits);
    /// Colour of the hatch: dark in both themes, because it lies on origins that are brighter in the dark one.
    static QColor hatchColour(const Theme& theme);

    double selectTest(const QPointF&, bool, QVariant*) const override { return -1; }
    QCPRange getKeyRange(bool& found, QCP::SignDomain) const override;
    QCPRange getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const override;

protected:
    void draw(QCPPainter* painter) override;
    void drawLegendIcon(QCPPainter*, const QRectF&) const override {}

private:
    void rebuildColours();
    const MaskPyramid& data_;
    Colouring colouring_ = Colouring::Origin;
    bool hatch_ = true;
    std::array<QRgb, 5> origin_{};
    QRgb hit_ = 0, miss_ = 0, hatchRgb_ = 0;
    std::array<QRgb, 128> colour_{};
    double stepsPerPixel_ = 0, blocksPerPixel_ = 0;
    bool hatchVisible_ = true;
};

} // namespace kvscope::ui
