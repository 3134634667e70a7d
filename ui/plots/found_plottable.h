// Marks the KV blocks in which a text was found, over the selection mask.
#pragma once

#include "profiler/read/prompt_search.h"

#include <qcustomplot.h>

#include <vector>

namespace kvscope::ui {

/// At the left edge every block has a square, filled where the head selected it at the step and else hollow, or a dash
/// where the head chose no blocks in the step. The cells of the step that the head passed over are outlined: there is
/// nothing else to see in them.
class FoundPlottable final : public QCPAbstractPlottable {
    Q_OBJECT
public:
    /// The blocks lie at 0, 1, ... on the value axis.
    FoundPlottable(QCPAxis* steps, QCPAxis* blocks) : QCPAbstractPlottable(steps, blocks) { setAntialiased(false); }
    void setColours(const QColor& mark, const QColor& ground);

    struct Mark {
        int block = 0;
        BlockChoice::Head head = BlockChoice::Head::ChoseNone;
    };
    void setMarks(int step, std::vector<Mark> marks);
    const std::vector<Mark>& marks() const { return marks_; }
    int step() const { return step_; }

    double selectTest(const QPointF&, bool, QVariant*) const override { return -1; }
    QCPRange getKeyRange(bool& found, QCP::SignDomain) const override;
    QCPRange getValueRange(bool& found, QCP::SignDomain, const QCPRange&) const override;

protected:
    void draw(QCPPainter* painter) override;
    void drawLegendIcon(QCPPainter*, const QRectF&) const override {}

private:
    QColor mark_, ground_;
    std::vector<Mark> marks_; // their blocks ascend
    int step_ = 0;
};

} // namespace kvscope::ui
