// Ranks: a rank x step heatmap of the ranks of one run in several processes, with what is known of their clocks.
#pragma once

#include "profiler/merge/rank_steps.h"
#include "profiler/tiles/step_pyramid.h"
#include "ui/frame/growth_timer.h"
#include "ui/plots/heat_plottable.h"
#include "ui/plots/plot_view.h"
#include "ui/views/colour_range.h"

#include <QComboBox>
#include <QStringList>

#include <algorithm>
#include <memory>

class QCPAxisRect;
class QCPColorScale;

namespace kvscope::ui {

class InlineMessage;
class Margins;
class MutedLabel;

class RanksView final : public PlotView {
    Q_OBJECT
public:
    RanksView(Workspace& workspace, QWidget* parent);

    QString exportCsv() const override { return textOf(numbers()); }
    /// A line per step and rank in view, with every number that is known.
    NumberWriter numbers() const override;
    QString sql() const override;

protected:
    void runChanged() override;
    void runGrew() override;
    void cursorMoved() override;
    void visibleStepsChanged() override { summariseRanks(); }
    void themed(const Theme& theme) override;
    void clickedAt(int panel, QPointF at) override;
    void moveCursor(int steps, int layers) override;
    QString tooltipAt(int panel, QPointF at) override;
    QString note() const override;
    bool hasNumbers() const override { return read_ != nullptr; }
    int drawAbove(QPainter* painter, QRect area) const override;
    QString pictureTitle() const override;

private:
    /// What was read of the group of ranks to which the current run belongs.
    struct Read {
        RunKey of; // run that it was read for
        std::string created;
        QString group;
        RankSteps steps;
        QString headline, clocks, layout;
        QStringList problems; // a sentence each, without full stops
        bool modelled = false;
    };
    struct Answer {
        std::shared_ptr<const Read> read; // null: the run has no rank
        QString problem;                  // why nothing was read
    };
    static Answer readFor(TraceReader& reader, const OpenRun& run);

    void buildHeader();
    void buildPlot();
    void ask();
    void take(Answer answer);
    void showHeader();
    void fillNumbers();
    void fillCells();
    void chooseColours();
    void summariseRanks();
    void placeMark();
    /// Shows the run of a row, at a step; a missing rank has none.
    void goTo(int row, int step);
    bool isOfShownGroup() const;
    const RankNumberInfo& info() const;
    QString value(const RankNumberInfo& info, float value) const;
    QString rankName(int row) const; // "rank 2", "rank 2, missing"

    std::shared_ptr<const Read> read_;
    StepPyramid cells_;
    ColourScale scale_;
    GrowthTimer timer_;
    QComboBox *number_ = nullptr, *aggregate_ = nullptr, *range_ = nullptr;
    QWidget* header_ = nullptr;
    QLabel* headline_ = nullptr;
    InlineMessage* problems_ = nullptr;
    MutedLabel *clocks_ = nullptr, *layout_ = nullptr;
    Margins* margins_ = nullptr;
    QCPAxisRect* panel_ = nullptr;
    QCPColorScale* bar_ = nullptr;
    HeatPlottable* heat_ = nullptr;
};

} // namespace kvscope::ui
