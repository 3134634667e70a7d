// Locality: a layer x step (or KV head x step) heatmap of one metric, with its margins.
#pragma once

#include "base/indexed.h"
#include "profiler/read/trace_reader.h"
#include "profiler/tiles/tile_cache.h"
#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/plots/heat_plottable.h"
#include "ui/plots/plot_view.h"
#include "ui/views/colour_range.h"
#include "ui/views/locality/locality_rows.h"
#include "ui/views/tile_feed.h"

#include <QComboBox>

#include <algorithm>
#include <utility>
#include <vector>

class QCPAxisRect;
class QCPColorScale;

namespace kvscope::ui {

class LoadingStrip;
class Margins;

class LocalityView final : public PlotView {
    Q_OBJECT
public:
    LocalityView(Workspace& workspace, QWidget* parent);

    QString exportCsv() const override { return textOf(numbers()); }
    /// Reads the numbers from the trace itself, so that steps that the view has not read yet are among them.
    NumberWriter numbers() const override;
    QString sql() const override;

protected:
    void runChanged() override;
    void runGrew() override;
    void cursorMoved() override;
    void visibleStepsChanged() override;
    void themed(const Theme& theme) override;
    void clickedAt(int panel, QPointF at) override;
    QString tooltipAt(int panel, QPointF at) override;
    QString note() const override;
    int filterParts() const override;
    QString pictureTitle() const override;

private:
    using Rows = LocalityRows::Kind;
    using Sort = LocalityRows::Sort;

    void addPickers();
    void buildPlot();
    const MetricInfo& info() const { return metrics()[std::size_t(std::max(metric_->currentIndex(), 0))]; }
    NamedUnit unit() const { return unitFromName(QString::fromUtf8(info().unit)); }
    Rows shownRows() const { return Rows(std::max(rows_->currentIndex(), 0)); }
    Aggregate aggregate() const { return Aggregate(std::max(aggregate_->currentIndex(), 0)); }
    bool perHead() const { return shownRows() != Rows::Layers || sequence_->currentData().toInt() >= 0; }
    Sort sorting() const { return Sort(std::max(sort_->currentIndex(), 0)); }

    void fillSequences(int count);
    void labelRows();
    /// Steps in view, the first and the one after the last.
    std::pair<int, int> visibleSteps();
    /// Sorts the rows by the steps that are in view now.
    void sortRows();
    void order();
    /// The bars: means of the steps in view.
    void summariseRows();
    /// Statistics of every row over those steps of [first, last) that means count. If all steps in view are cold, over
    /// the cold ones.
    Numbered<CellStats> meansOver(int first, int last) const;
    /// Reads which steps are cold. They are among the first ones, so later ones are not looked at.
    void askCold();
    int coldBetween(int first, int last) const; // cold steps in [first, last) that means leave out

    // Words about a cell, a row, a step, and a run without a single value (locality_words.cpp).
    QString described(const CellStats& stats) const;
    QString rowTooltip(int place);
    QString stepTooltip(int step);
    QString undefinedReason(int step) const;
    /// If every cell of the decode steps is undefined, shows why. @return false: some cell has a value, or the reason
    /// is not known
    bool explainNothing();

    void take(TileFeed<HeatTile>::Arrival arrival);
    void showMetric(Metric wanted);
    void chooseColours();
    void colourCells() { heat_->setColours({scale_.low, scale_.high}, Theme::current().undefinedCell); }

    StepPyramid data_;
    TileFeed<HeatTile> feed_;
    TileCache::Place cache_;
    QComboBox *metric_ = nullptr, *rows_ = nullptr, *sequence_ = nullptr, *aggregate_ = nullptr, *range_ = nullptr,
              *sort_ = nullptr;
    LoadingStrip* loading_ = nullptr;
    Margins* margins_ = nullptr;
    QCPAxisRect* panel_ = nullptr;
    QCPColorScale* bar_ = nullptr;
    HeatPlottable* heat_ = nullptr;
    TileFeed<HeatTile>::Read readTile_; // reads the steps of one tile for what is shown
    LocalityRows lines_;
    std::pair<int, int> sortedOver_{0, 0};
    Numbered<CellStats> rowStats_; // of the steps in view
    std::vector<int> cold_;        // steps that means leave out, ascending
    int coldAmong_ = 0;            // how many steps were looked at for them
    ColourScale scale_;
};

} // namespace kvscope::ui
