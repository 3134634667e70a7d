// Draws the forwards of a block-diffusion run: steps to the right, positions downwards. A cell is a position that one
// forward read. The colour of the cell shows a number; marks on it show what was written and which tokens were active.
#pragma once

#include "profiler/tiles/denoise_steps.h"

#include <qcustomplot.h>

#include <array>
#include <vector>

namespace kvscope::ui {

struct Theme;

class DenoisePlottable final : public QCPAbstractPlottable {
    Q_OBJECT
public:
    /// What the colour of a cell shows. Confidence is shown for masked positions; all others have a colour of their
    /// own.
    enum class Number { Confidence, Change, Active };

    /// What a row is: a position of the sequence, or a place in the block that each forward read.
    enum class Rows { Sequence, Block };

    /// The rows lie on the value axis, whose range is reversed. `data` must outlive this object.
    DenoisePlottable(QCPAxis* steps, QCPAxis* rows, const DenoiseSteps& data);
    void setNumber(Number number, double highest);
    void setRows(Rows rows) { rows_ = rows; }
    int rowOf(const Forward& forward, int position) const {
        return rows_ == Rows::Block ? position - forward.firstPosition() : position;
    }
    /// Active tokens get a mark where the colour shows something else.
    void setMarksActive(bool marks) { marksActive_ = marks; }
    /// False: the filter leaves steps out, and their columns stay empty.
    void setAllSteps(bool all) { allSteps_ = all; }
    void applyTheme(const Theme& theme);

    double stepsPerPixel() const { return stepsPerPixel_; }
    double rowsPerPixel() const { return rowsPerPixel_; }
    /// Whether the cells of the last drawing were large enough for marks.
    bool marksVisible() const { return marksVisible_; }

    // Colours of the cells that show no number, and of the marks; the legend shows them.
    static QColor writtenBefore(const Theme& theme);
    // the cell attended to the whole prefix, without a choice of active tokens
    static QColor dense(const Theme& theme);
    static QColor unknown(const Theme& theme); // no change is known
    static QColor active(const Theme& theme);

    /// Draws the cells into an image of `size` device pixels, without marks. `scale`: device pixels per logical pixel.
    QImage render(QCPRange steps, QCPRange rows, QSize size, double scale) const;

    double selectTest(const QPointF&, bool, QVariant*) const override { return -1; }
    QCPRange getKeyRange(bool& found, QCP::SignDomain) const override;
    QCPRange getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const override;

protected:
    void draw(QCPPainter* painter) override;
    void drawLegendIcon(QCPPainter*, const QRectF&) const override {}

private:
    /// What one pixel of a column shows.
    struct Pixel {
        float sum = 0;
        int count = 0;   // of numbers in the sum
        int without = 0; // cells for which the number is not known
        bool written = false, before = false;
    };
    class Column;
    QRgb colourOf(const Pixel& pixel, bool showsWritten) const;
    float numberOf(const ForwardCell& cell) const;
    void drawBlocks(QCPPainter& painter) const;
    void drawMarks(QCPPainter& painter) const;
    QRectF cellRect(int step, int row) const;

    const DenoiseSteps& data_;
    Number number_ = Number::Confidence;
    Rows rows_ = Rows::Sequence;
    double highest_ = 1;
    bool marksActive_ = true, allSteps_ = true;
    std::array<QRgb, 256> lut_{};
    QRgb before_ = 0, without_ = 0, written_ = 0;
    QColor mark_, halo_, active_, block_;
    double stepsPerPixel_ = 0, rowsPerPixel_ = 0;
    bool marksVisible_ = true;
};

} // namespace kvscope::ui
