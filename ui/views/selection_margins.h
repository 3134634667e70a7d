// The margins of the Selection view: above the mask how many blocks each step selected and missed, beside it in which
// share of the steps in view each block was selected and missed.
#pragma once

#include "profiler/tiles/mask_pyramid.h"
#include "ui/plots/margins.h"

#include <utility>
#include <vector>

namespace kvscope::ui {

class SelectionMargins final : public QObject {
    Q_OBJECT
public:
    /// mask: the panel of the mask, the last one that was added to the plot. data: what the mask shows; it outlives
    /// this object.
    SelectionMargins(PlotCanvas& plot, QCPAxisRect* mask, const MaskPyramid& data, QObject* parent);

    /// See Margins.
    int layoutRow() const { return margins_->layoutRow(); }
    int stepPanel() const { return margins_->stepPanel(); }
    void setWanted(bool wanted) { margins_->setWanted(wanted); }
    bool shown() const { return margins_->shown(); }
    /// Lanes above the mask take a part of the room that the margins need otherwise.
    void setBesideLanes(bool lanes) { margins_->setLeastHeight(lanes ? 430 : 300); }

    /// Counts the steps in view anew, for the bars beside the mask.
    void summarise();
    /// Fits the scales of both margins to all steps that are read.
    void rescale();
    void applyTheme(const Theme& theme);

signals:
    void blockClicked(int block); // only a block that some step selected

private:
    void countSteps(int pixels);
    std::pair<int, int> visibleSteps() const;
    QString blockTooltip(int block) const;

    PlotCanvas& plot_;
    const MaskPyramid& data_;
    Margins* margins_ = nullptr;
    StepMargin* missedCurve_ = nullptr;
    std::vector<float> selectedPerStep_, missedPerStep_; // by device pixel column, as last drawn
};

} // namespace kvscope::ui
