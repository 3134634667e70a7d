// Denoising: the run of a model that denoises blocks or a canvas, with positions of a sequence downwards and steps to
// the right. A cell is masked, written at its step, or written before. Below the cells stands the share of the prefix
// that each step read, where there is a prefix.
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
    /// Reads the numbers from the trace: a line for each position of each forward in view.
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
    /// The request that the pickers and the cursor make.
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
    /// Places the density panel, or leaves it out where the plot is low or every forward reads everything.
    void placeDensity();
    bool wantsDensity() const;
    bool onCanvas() const { return run() && denoisesCanvas(run()->row); }

    // The curves of the density panel. Each is read for as many columns as the panel has device pixels.
    enum Curve { DenseSteps, ChosenDensity, MeanDensity, RowDensity };
    std::vector<float> densities(Curve curve, int pixels);
    bool isMeanOfAll() const { return shown_.layer < 0 && shown_.kvHead < 0; }
    /// Whether active tokens are marked: where one layer is shown in which some tokens are not active.
    bool marksActive() const { return number() != Number::Active && shown_.layer >= 0 && data_.hasReuse(); }

    // In denoising_words.cpp:
    bool explainRun();         // says why the run has nothing to read here. @return whether it has nothing
    void explainNothing();     // says why no forward was found
    QString placeName() const; // "layer 3, KV head 0", "all layers, all KV heads"
    QString describeCell(int step, int position) const;
    QString describeStep(int step) const;
    QString describeActivity(const ForwardRow& row, const ForwardCell& cell) const;
    QString allThatIsSeen() const; // "all of the prefix": what a dense forward attends to
    int tokensOutside(
        const Forward& forward) const; // what density is a share of: the prefix; on a canvas all but the block
    QString forwardName(const ForwardRow& row) const;
    QString tokenText(std::int32_t id) const; // HTML: the text in quotes and the id, or only the id
    void askForTexts(int step, int position);

    DenoiseSteps data_;
    TileFeed<DenoiseTile> feed_;
    DenoiseRequest shown_; // what data_ holds
    QComboBox *number_ = nullptr, *rows_ = nullptr, *layer_ = nullptr, *head_ = nullptr, *sequence_ = nullptr;
    bool allLayers_ = false, allHeads_ = false; // the pickers ask for all layers or heads, in place of the cursor's
    LoadingStrip* loading_ = nullptr;
    LegendStrip* legend_ = nullptr;
    QCPAxisRect *panel_ = nullptr, *densityPanel_ = nullptr;
    QCPColorScale* bar_ = nullptr;
    DenoisePlottable* cells_ = nullptr;
    std::array<StepMargin*, 4> curves_{}; // [Curve]
    bool densityShown_ = true;
    double highestChange_ = 1;           // the colours end at this change
    bool legendHasDots_ = true;          // the legend shows dots for what was written
    int position_ = -1;                  // the position that was pointed at; -1: none
    QHash<std::int32_t, QString> texts_; // [token] text as HTML; null: the trace has none
    int hoverStep_ = -1, hoverPosition_ = -1;
};

} // namespace kvscope::ui
