// The selection mask: which blocks were selected at which step, coloured by origin, misses hatched over it.
#pragma once

#include "profiler/tiles/mask_pyramid.h"
#include "ui/plots/step_columns.h"

#include <qcustomplot.h>

namespace kvscope::ui {

struct Theme;

class MaskPlottable final : public QCPAbstractPlottable {
    Q_OBJECT
public:
    enum class Colouring { Origin, Residency };

    /// Blocks at 0, 1, ... on the value axis. `data` must outlive it.
    MaskPlottable(QCPAxis* steps, QCPAxis* blocks, const MaskPyramid& data);
    /// What a pixel shows that covers several cells: that any of them was selected, or, by how strong the colour is,
    /// which share of them was.
    enum class Zoomed { Any, Share };

    void setColouring(Colouring colouring, bool hatchMisses);
    void setZoomed(Zoomed zoomed);
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
    /// What was drawn last and can be shown again where the same steps lie under a pixel: panning moves most of it.
    struct Frame {
        QImage image;
        std::vector<StepColumn> columns;
        QCPRange blocks;
        unsigned revision = 0, colours = 0;
    };
    struct Lines;
    void rebuildColours();
    QRgb shareColour(MaskBits bits, std::uint64_t selected, std::uint64_t missed, std::uint64_t cells) const;
    int reuse(const Frame& before, int x, QImage& image) const;
    const MaskPyramid& data_;
    Colouring colouring_ = Colouring::Origin;
    bool hatch_ = true;
    std::array<QRgb, 5> origin_{};
    QRgb hit_ = 0, miss_ = 0, unknown_ = 0, hatchRgb_ = 0;
    std::array<QRgb, 128> colour_{};
    Zoomed zoomed_ = Zoomed::Any;
    unsigned colours_ = 0; // grows when colours change
    mutable Frame frame_;
    double stepsPerPixel_ = 0, blocksPerPixel_ = 0;
    bool hatchVisible_ = true;
};

} // namespace kvscope::ui
