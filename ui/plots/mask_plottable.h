// Draws the selection mask: which blocks were selected at which step. Colours show a block's origin, and a hatch over
// the colour shows a miss.
#pragma once

#include "base/indexed.h"
#include "profiler/tiles/mask_pyramid.h"
#include "ui/plots/step_columns.h"

#include <qcustomplot.h>

namespace kvscope::ui {

struct Theme;

class MaskPlottable final : public QCPAbstractPlottable {
    Q_OBJECT
public:
    enum class Colouring { Origin, Residency };

    /// The blocks lie at 0, 1, ... on the value axis. `data` must outlive this object.
    MaskPlottable(QCPAxis* steps, QCPAxis* blocks, const MaskPyramid& data);
    /// What a pixel shows that covers several cells. Any: whether any of the cells was selected. Share: the share of
    /// selected cells, as the strength of the colour.
    enum class Zoomed { Any, Share };

    void setColouring(Colouring colouring, bool hatchMisses);
    void setZoomed(Zoomed zoomed);
    void applyTheme(const Theme& theme);
    double stepsPerPixel() const { return stepsPerPixel_; }
    double blocksPerPixel() const { return blocksPerPixel_; }

    /// Whether the cells of the last drawing were large enough for a hatch.
    bool hatchVisible() const { return hatchVisible_; }

    /// Draws these steps and blocks into an image of `size` device pixels. `scale`: device pixels per logical pixel,
    /// which sets the width of hatch lines and gaps.
    QImage render(QCPRange steps, QCPRange blocks, QSize size, double scale) const;
    /// The origin to show for a cell that has several: the first of query-aware, query-agnostic, token-level, window,
    /// sink. -1: nothing is selected.
    static int shownOrigin(MaskBits bits);
    /// Colour of the hatch. It is dark in both themes, because the dark theme draws the origins in brighter colours.
    static QColor hatchColour(const Theme& theme);

    double selectTest(const QPointF&, bool, QVariant*) const override { return -1; }
    QCPRange getKeyRange(bool& found, QCP::SignDomain) const override;
    QCPRange getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const override;

protected:
    void draw(QCPPainter* painter) override;
    void drawLegendIcon(QCPPainter*, const QRectF&) const override {}

private:
    /// The last image and what it shows. render copies those pixel columns that cover the same steps again, which are
    /// most of them while the user pans.
    struct Frame {
        QImage image;
        Numbered<StepColumn> columns;
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
    unsigned colours_ = 0; // counts changes of the colours, so that render does not reuse an older frame
    mutable Frame frame_;
    double stepsPerPixel_ = 0, blocksPerPixel_ = 0;
    bool hatchVisible_ = true;
};

} // namespace kvscope::ui
