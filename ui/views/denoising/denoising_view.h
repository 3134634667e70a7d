// Denoising: the positions of a sequence by the steps of a block-diffusion run. A cell is masked, written at this step
// or already written; below the cells is the share of the prefix that each step read.
#pragma once

#include "profiler/tiles/denoise_steps.h"
#include "ui/plots/denoise_plottable.h"
#include "ui/plots/plot_view.h"
#include "ui/views/tile_feed.h"

#include <QHash>

#include <array>
#include <optional>
#include <vector>

class QCPAxisRect;
class QCPColorScale;
class QComboBox;

namespace kvscope::ui {

class LegendStrip;
class LoadingStrip;
class StepMargin;

class DenoisingView final : public PlotView {
    Q_OBJECT
public:
    DenoisingView(Workspace& workspace, QWidget* parent);

    QString exportCsv() const override { return textOf(numbers()); }
    /// Straight from the trace, a line per position of each forward in view.
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
    int filterParts() const override { return FilterLayers | FilterKvHeads | FilterSteps | FilterText; }
    QString pictureTitle() const override;
    bool eventFilter(QObject* watched, QEvent* event) override;

private:
    using Number = DenoisePlottable::Number;
    using Rows = DenoisePlottable::Rows;

    void addPickers();
    void buildPlot();
    void addPositionKeys();
    Number number() const;
    Rows rows() const;
    void chooseRows();
    QCPRange fullRows() const;
    int positionAt(int step, int row) const; // -1: none
    /// What the pickers and the cursor ask for.
    DenoiseRequest wanted() const;
    void fillPickers(const RunRow& row);
    void showPickers();
    void takePickers();
    void take(TileFeed<DenoiseTile>::Arrival arrival);
    void chooseColours();
    void fillLegend();
    void placeMark();
    std::optional<double> rowOfMark() const; // of position_
    void movePosition(int by);
    /// The density panel is left out of a low plot.
    void placeDensity();

    // What is read of the density panel's columns, for as many device pixels.
    enum Curve { DenseSteps, ChosenDensity, MeanDensity };
    std::vector<float> densities(Curve curve, int pixels);
    bool isMeanOfAll() const { return shown_.layer < 0 && shown_.kvHead < 0; }

    // denoising_words.cpp
    bool explainRun();         // shows why there is nothing to read of this run. @return whether it does
    void explainNothing();     // shows why no forward was found
    QString placeName() const; // "layer 3, KV head 0", "all layers, all KV heads"
    QString describeCell(int step, int position) const;
    QString describeStep(int step) const;
    QString describeActivity(const ForwardRow& row, const ForwardCell& cell) const;
    QString forwardName(const ForwardRow& row) const;
    QString tokenText(std::int32_t id) const; // HTML: the text in quotes and the id, or only the id
    void askForTexts(int step, int position);

    DenoiseSteps data_;
    TileFeed<DenoiseTile> feed_;
    DenoiseRequest shown_; // what data_ holds
    QComboBox *number_ = nullptr, *rows_ = nullptr, *layer_ = nullptr, *head_ = nullptr, *sequence_ = nullptr;
    bool allLayers_ = false, allHeads_ = false; // of the pickers, in place of those of the cursor
    LoadingStrip* loading_ = nullptr;
    LegendStrip* legend_ = nullptr;
    QCPAxisRect *panel_ = nullptr, *densityPanel_ = nullptr;
    QCPColorScale* bar_ = nullptr;
    DenoisePlottable* cells_ = nullptr;
    std::array<StepMargin*, 3> curves_{}; // [Curve]
    bool densityShown_ = true;
    double highestChange_ = 1;           // where the colours of changes end
    bool legendHasDots_ = true;          // how it shows what was written
    int position_ = -1;                  // that was pointed at; -1: none
    QHash<std::int32_t, QString> texts_; // HTML by token; null: the trace has no text of it
    int hoverStep_ = -1, hoverPosition_ = -1;
};

} // namespace kvscope::ui
