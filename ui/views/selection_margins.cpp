#include "ui/views/selection_margins.h"

#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/step_columns.h"

#include <QToolTip>

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvscope::ui {

SelectionMargins::SelectionMargins(PlotCanvas& plot, QCPAxisRect* mask, const MaskPyramid& data, QObject* parent)
    : QObject(parent), plot_(plot), data_(data) {
    // Both curves of the step margin come from one pass, when the steps in view or the data change.
    margins_ = new Margins(
        plot, mask,
        [this](int pixels) {
            countSteps(pixels);
            return selectedPerStep_;
        },
        this);
    missedCurve_ = margins_->addCurve([this](int) { return missedPerStep_; });
    missedCurve_->setFilled(false);
    connect(margins_, &Margins::rowHovered, this, [this](int block, QPoint global) {
        const QString html = blockTooltip(block);
        if (!html.isEmpty()) QToolTip::showText(global, html, &plot_, {}, 60'000);
    });
    connect(margins_, &Margins::rowHoverEnded, this, [] { QToolTip::hideText(); });
    connect(margins_, &Margins::rowClicked, this, [this](int block) {
        if (block >= 0 && block < data_.blocks()) emit blockClicked(block);
    });
}

void SelectionMargins::countSteps(int pixels) {
    const QCPRange visible = plot_.visibleX();
    const float nothing = std::numeric_limits<float>::quiet_NaN();
    selectedPerStep_.assign(std::size_t(pixels), nothing);
    missedPerStep_.assign(std::size_t(pixels), nothing);
    const auto columns = stepColumns(visible.lower, visible.upper, pixels, data_.steps());
    for (std::size_t x = 0; x < columns.size(); ++x) {
        if (columns[x].first >= columns[x].last) continue;
        const auto [selected, missed] = data_.perStep(columns[x].first, columns[x].last);
        selectedPerStep_[x] = float(selected);
        missedPerStep_[x] = float(missed);
    }
}

/// Steps in view, the first and the one after the last.
std::pair<int, int> SelectionMargins::visibleSteps() const {
    const QCPRange visible = plot_.visibleX();
    const int first = std::clamp(int(std::ceil(visible.lower)), 0, data_.steps());
    return {first, std::clamp(int(std::floor(visible.upper)) + 1, first, data_.steps())};
}

void SelectionMargins::summarise() {
    const auto [first, last] = visibleSteps();
    const auto blocks = std::size_t(data_.blocks());
    std::vector<std::uint32_t> selected(blocks), missed(blocks);
    const int steps = data_.counts(first, last, {selected, missed});
    const auto shares = [&](const std::vector<std::uint32_t>& counts) {
        std::vector<float> result(blocks, 0.f);
        for (std::size_t i = 0; i < blocks && steps > 0; ++i) result[i] = float(counts[i]) / float(steps);
        return result;
    };
    margins_->rows().setValues(shares(selected));
    margins_->rows().setInner(shares(missed), Theme::current().miss);
}

void SelectionMargins::rescale() {
    double most = 0;
    constexpr int kPieces = 512;
    for (const StepColumn& piece : stepColumns(-0.5, data_.steps() - 0.5, kPieces, data_.steps()))
        if (const double selected = data_.perStep(piece.first, piece.last)[0]; selected > most) most = selected;
    margins_->stepValues()->setRange(0, std::max(1.0, most * 1.05));
    margins_->rowValues()->setRange(0, 1);
    setUnitAxis(margins_->stepValues(), tr("Blocks"), Unit::Count);
    setUnitAxis(margins_->rowValues(), tr("Share"), Unit::Fraction);
    for (QCPAxis* values : {margins_->stepValues(), margins_->rowValues()}) values->ticker()->setTickCount(2);
}

void SelectionMargins::applyTheme(const Theme& theme) {
    margins_->applyTheme(theme);
    missedCurve_->setPen(QPen(theme.miss, 1));
    missedCurve_->setAntialiased(false);
    summarise();
}

QString SelectionMargins::blockTooltip(int block) const {
    if (block < 0 || block >= data_.blocks()) return {};
    const auto [first, last] = visibleSteps();
    const auto count = data_.count(block, first, last);
    return tr("<b>Block %1</b><br>Steps %2 to %3: selected %4 times, missed %5 times")
        .arg(formatCount(block), formatCount(first), formatCount(std::max(last - 1, first)), formatCount(count[0]),
             formatCount(count[1]));
}

} // namespace kvscope::ui
