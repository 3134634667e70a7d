// What the Denoising view says: legend, tooltips, the line below the plot, and why there is nothing to show.
#include "ui/frame/units.h"
#include "ui/frame/waiting.h"
#include "ui/look/theme.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/plot_canvas.h"
#include "ui/views/denoising/denoising_view.h"
#include "ui/views/run_text.h"
#include "ui/views/tile_text.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

namespace kvscope::ui {

bool DenoisingView::explainRun() {
    const RunRow& row = run()->row;
    if (row.layers <= 0) {
        const auto [title, why] = waitingText(
            run(), tr("Waiting for the first step"),
            tr("The run has started. Its prompt is being read; the first column appears when that is done."));
        showEmpty(title, why, {stopRun()});
        return true;
    }
    if (denoisingBlock(row) == 0) {
        showEmpty(tr("This run decodes token by token"),
                  tr("Record one with a block-diffusion model such as losa-tiny: it fills a block of masked positions "
                     "over several steps, and this view shows when each position was written and how sure the model "
                     "was."),
                  {showView("selection"), showView("transfers")});
        return true;
    }
    const Filter& filter = workspace().filter();
    if ((shown_.layer < 0 || filter.hasLayer(shown_.layer)) && (shown_.kvHead < 0 || filter.hasKvHead(shown_.kvHead)))
        return false;
    QString place = placeName();
    place.replace(0, 1, place.at(0).toUpper());
    showEmptyByFilter(tr("%1 is left out by the filter").arg(place), {{tr("Show all layers and KV heads"), [this] {
                                                                           allLayers_ = allHeads_ = true;
                                                                           reload();
                                                                       }}});
    return true;
}

void DenoisingView::explainNothing() {
    if (!feed_.error().isEmpty()) {
        showEmpty(tr("The trace cannot be read here"), feed_.error());
        return;
    }
    if (!appliedFilter().empty() && data_.steps() > 1) {
        showEmptyByFilter(tr("No forward passes the filter"));
        return;
    }
    const auto [title, why] =
        waitingText(run(), tr("Waiting for the first forward"), tr("The prompt is being read; nothing is masked yet."));
    showEmpty(title, why, {stopRun(), showView("timeline")});
}

QString DenoisingView::placeName() const {
    return (shown_.layer < 0 ? tr("all layers") : tr("layer %1").arg(shown_.layer)) + QStringLiteral(", ") +
           (shown_.kvHead < 0 ? tr("all KV heads") : tr("KV head %1").arg(shown_.kvHead));
}

QString DenoisingView::pictureTitle() const {
    if (!run()) return PlotView::pictureTitle();
    return tr("Denoising, sequence %1, %2: %3")
        .arg(QString::number(shown_.sequence), placeName(), QString::fromStdString(run()->row.name));
}

void DenoisingView::fillLegend() {
    const Theme& theme = Theme::current();
    const QColor filled = QColor(Theme::sequential(0.6));
    QVector<Swatch> swatches;
    using Mark = Swatch::Mark;
    switch (number()) {
    case Number::Confidence:
        swatches << Swatch{tr("masked, by confidence"), filled, Mark::Fill, {}};
        break;
    case Number::Change:
        swatches << Swatch{tr("in the block, by change score"), filled, Mark::Fill, {}}
                 << Swatch{tr("no change score"), DenoisePlottable::unknown(theme), Mark::Fill, {}};
        break;
    case Number::Active:
        if (data_.hasSparse() && onCanvas())
            swatches << Swatch{
                tr("attends to the tokens that were kept"), QColor(Theme::sequential(1)), Mark::Fill, {}};
        else if (data_.hasSparse() && shown_.layer >= 0 && shown_.kvHead >= 0)
            swatches << Swatch{tr("active: attends to the prefix anew"), QColor(Theme::sequential(1)), Mark::Fill, {}}
                     << Swatch{tr("uses what it had"), QColor(Theme::sequential(0)), Mark::Fill, {}};
        else if (data_.hasSparse())
            swatches << Swatch{tr("in the block, by share of layers and heads"), filled, Mark::Fill, {}};
        if (data_.hasDense())
            swatches << Swatch{
                tr("attends to %1").arg(allThatIsSeen()), DenoisePlottable::dense(theme), Mark::Fill, {}};
        break;
    }
    swatches << Swatch{tr("written at this step"), theme.text, cells_->marksVisible() ? Mark::Dot : Mark::Fill, {}}
             << Swatch{tr("written before"), DenoisePlottable::writtenBefore(theme), Mark::Fill, {}};
    if (marksActive()) swatches << Swatch{tr("active"), filled, Mark::Foot, DenoisePlottable::active(theme)};
    swatches << Swatch{tr("block"), theme.plotAxis, Mark::Frame, {}};
    if (data_.hasSparse() && densityShown_) {
        swatches << Swatch{tr("density"), theme.runA, Mark::Line, {}};
        if (!isMeanOfAll()) swatches << Swatch{tr("its mean over all"), theme.text, Mark::Line, {}};
        if (data_.hasTileRows()) swatches << Swatch{tr("density of one row of tiles"), theme.runB, Mark::Line, {}};
    }
    if (densityShown_ && data_.hasDense() && (!onCanvas() || data_.hasSparse()))
        swatches << Swatch{tr("dense forward"), DenoisePlottable::dense(theme), Mark::Line, {}};
    legendHasDots_ = cells_->marksVisible();
    legend_->setSwatches(swatches);
}

QString DenoisingView::note() const {
    if (!feed_.error().isEmpty())
        return tr("Reading stopped after %1 steps: %2.").arg(formatCount(feed_.loaded()), feed_.error());
    QString numbers;
    if (number() == Number::Change)
        numbers =
            data_.hasChanges()
                ? tr("Change score: mean square change of a token's queries since the forward before; the colours "
                     "end at %1, which 2 % of the cells exceed.")
                      .arg(highestChange_, 0, 'g', 3)
            : run() && run()->row.level == RecordLevel::Counters
                ? tr("This run has no change scores: it was recorded at level counters.")
                : tr("This run has no change scores.");
    if (number() == Number::Active)
        numbers =
            data_.hasReuse() ? tr("Active tokens attend to their pages of the prefix anew; the others use the "
                                  "result of the forward before.")
            : data_.hasSparse() && onCanvas()
                ? tr("In a forward that is not dense every token attends to what its layer kept, and to its block.")
            : data_.hasSparse()
                ? tr("Every token attends to its pages of the prefix anew in every forward that is not dense.")
                : tr("Every forward of this run attends to %1.").arg(allThatIsSeen());
    QString positions;
    if (cells_->rowsPerPixel() > 1) positions = tr("1 pixel = %1 positions.").arg(cells_->rowsPerPixel(), 0, 'f', 1);
    const bool hidden = marksActive() && !cells_->marksVisible();
    QString preview;
    if (data_.tiles().hasPreview()) preview = previewNote(data_.tiles().stride());
    QString density;
    if (densityShown_)
        density = onCanvas() ? tr("Density: share of the tokens outside the block that a forward attends to.")
                             : tr("Density: share of the prefix that a forward's pages hold.");
    if (densityShown_ && data_.hasTileRows())
        density +=
            tr(" Of one row of tiles: the share that one query head keeps for its tokens; the KV head reads what "
               "its query heads and rows keep together.");
    const QString later = onCanvas() && data_.blocks().size() > 1 && rows() == Rows::Sequence
                              ? tr("Empty: masks of later blocks.")
                              : QString();
    return sentences({aggregationNote(cells_->stepsPerPixel(), tr("mean; written if any was written")), positions,
                      preview, numbers, density, later,
                      hidden ? tr("Zoom in to see active tokens marked, or colour by them.") : QString(),
                      loadingNote(feed_.loading(), feed_.loaded(), feed_.total()), healthNote()});
}

QString DenoisingView::tooltipAt(int panel, QPointF at) {
    const int step = int(std::lround(at.x())), row = int(std::lround(at.y()));
    hoverStep_ = -1;
    if (!run() || step < 0 || step >= data_.steps() || data_.empty()) return {};
    if (panel != 0) return describeStep(step);
    const int position = positionAt(step, row);
    if (position < 0) return {};
    hoverStep_ = step;
    hoverPosition_ = position;
    askForTexts(step, position);
    return describeCell(step, position);
}

QString DenoisingView::allThatIsSeen() const {
    return onCanvas() ? tr("all of prompt and canvas") : tr("all of the prefix");
}

int DenoisingView::tokensOutside(const Forward& forward) const {
    if (!onCanvas()) return forward.firstPosition();
    const int block = denoisingBlock(run()->row);
    const std::int64_t prompt = std::int64_t(forward.firstPosition()) - std::int64_t(forward.row->block) * block;
    return int(std::clamp<std::int64_t>(prompt + canvasTokens(run()->row) - block, 0, std::numeric_limits<int>::max()));
}

QString DenoisingView::forwardName(const ForwardRow& row) const {
    return row.final ? tr("clean forward of block %1").arg(formatCount(row.block))
                     : tr("forward %1 of block %2").arg(formatCount(row.denoiseStep + 1), formatCount(row.block));
}

QString DenoisingView::tokenText(std::int32_t id) const {
    const QString text = texts_.value(id);
    return text.isEmpty() ? tr("token %1").arg(id) : tr("“%1” (token %2)").arg(text, QString::number(id));
}

QString DenoisingView::describeStep(int step) const {
    if (!data_.tiles().knows(step))
        return tr("<b>%1</b><br>%2").arg(stepName(run()->row, step), notReadYet(data_.tiles().stride()));
    const Forward forward = data_.at(step);
    if (!forward) return {};
    const ForwardRow& row = *forward.row;
    QString html =
        tr("<b>%1</b>, %2<br>%3 positions masked, %4 written")
            .arg(stepName(run()->row, step), forwardName(row), formatCount(row.masked), formatCount(row.written));
    const int outside = tokensOutside(forward);
    if (row.layers == 0) return html + tr("<br>What its layers attended to is not recorded");
    if (row.dense && onCanvas()) return html + tr("<br>Attends to %1").arg(allThatIsSeen());
    if (row.dense)
        return html + tr("<br>Dense: %1 attend to all %2 tokens of the prefix").arg(placeName(), formatCount(outside));
    html += tr("<br>Density <b>%1</b> of %2 tokens: %3")
                .arg(formatValue(Unit::Percent, double(row.density) * 100), formatCount(outside), placeName());
    if (run()->row.blockSize > 1) {
        const int pages = (outside + run()->row.blockSize - 1) / run()->row.blockSize;
        html += tr("<br>%1 of %2 pages").arg(double(row.pages), 0, 'g', 4).arg(formatCount(pages));
    }
    if (!isMeanOfAll())
        html += tr("<br>Mean of all layers and KV heads: %1")
                    .arg(formatValue(Unit::Percent, double(row.meanDensity) * 100));
    if (!std::isnan(row.meanRow))
        html += tr("<br>Of a query head's row of tiles: %1 on average, %2 to %3")
                    .arg(formatValue(Unit::Percent, double(row.meanRow) * 100),
                         formatValue(Unit::Percent, double(row.leastRow) * 100),
                         formatValue(Unit::Percent, double(row.mostRow) * 100));
    return html;
}

QString DenoisingView::describeActivity(const ForwardRow& row, const ForwardCell& cell) const {
    if (row.layers == 0) return {};
    QString html;
    if (row.dense) {
        html = tr("<br>%1: attends to %2").arg(placeName(), allThatIsSeen());
    } else if (onCanvas()) {
        return tr("<br>%1: attends to %2 tokens that were kept, density %3, and to its block")
            .arg(placeName(), QString::number(double(row.pages), 'g', 4),
                 formatValue(Unit::Percent, double(row.density) * 100));
    } else if (shown_.layer >= 0 && shown_.kvHead >= 0) {
        html = (cell.active > 0 ? tr("<br>%1: <b>active</b>, attends to the prefix anew")
                                : tr("<br>%1: uses what it had of the prefix"))
                   .arg(placeName());
    } else {
        html =
            tr("<br>%1: active in %2 of them").arg(placeName(), formatValue(Unit::Percent, double(cell.active) * 100));
    }
    if (row.sparseLayers > 0 && cell.activeLayers >= 0)
        html += tr("<br>Active in %1 of %2 layers").arg(cell.activeLayers).arg(row.sparseLayers);
    if (!row.dense && run()->row.blockSize > 0)
        html += tr("<br>%1 pages, density %2")
                    .arg(double(row.pages), 0, 'g', 4)
                    .arg(formatValue(Unit::Percent, double(row.density) * 100));
    if (!std::isnan(cell.change)) html += tr("<br>Change score %1").arg(double(cell.change), 0, 'g', 3);
    return html;
}

QString DenoisingView::describeCell(int step, int position) const {
    const Forward forward = data_.at(step);
    const auto fact = data_.fact(position);
    QString html = tr("<b>%1, position %2</b>").arg(stepName(run()->row, step), formatCount(position));
    if (!data_.tiles().knows(step)) return html + QStringLiteral("<br>") + notReadYet(data_.tiles().stride());
    const auto written = [&] {
        return !fact || fact->masked ? tr("<br>Not written yet")
               : fact->written >= 0
                   ? tr("<br>Written at step %1: %2").arg(formatCount(fact->written), tokenText(fact->id))
                   : tr("<br>Of the prompt: %1").arg(tokenText(fact->id));
    };
    const auto inside = [&](const ForwardCell& each) { return each.position == position; };
    const auto cell = std::find_if(forward.cells.begin(), forward.cells.end(), inside);
    if (!forward || cell == forward.cells.end()) {
        const bool later = forward && position > forward.lastPosition();
        return html + (later ? tr("<br>Of a later block") : QString()) + written();
    }
    html += tr(" (%1)").arg(forwardName(*forward.row));
    if (cell->masked()) {
        html += tr("<br>Masked; candidate %1, confidence <b>%2</b>")
                    .arg(tokenText(cell->candidate), formatValue(Unit::Percent, double(cell->confidence) * 100));
        html += cell->written ? tr("<br><b>Written at this step</b>") : written();
    } else {
        html += written();
    }
    return html + describeActivity(*forward.row, *cell);
}

void DenoisingView::askForTexts(int step, int position) {
    std::set<std::int32_t> missing;
    const auto want = [&](std::int32_t id) {
        if (id >= 0 && !texts_.contains(id)) missing.insert(id);
    };
    if (const auto fact = data_.fact(position); fact && !fact->masked) want(fact->id);
    for (const ForwardCell& cell : data_.at(step).cells)
        if (cell.position == position && cell.masked()) want(cell.candidate);
    if (missing.empty()) return;
    using Texts = std::map<std::int32_t, std::string>;
    workspace().query<Texts>(
        this, "denoising texts", run()->key,
        [runId = run()->key.runId, sequence = shown_.sequence,
         ids = std::vector<std::int32_t>(missing.begin(), missing.end())](TraceReader& reader) {
            return tokenBytes(reader, runId, sequence, ids);
        },
        [this, missing, step, position](const Texts& found) {
            if (texts_.size() > 4096) texts_.clear();
            const bool growing = run() && isGrowing(*run()); // a later step may bring a text
            for (const std::int32_t id : missing) {
                const auto text = found.find(id);
                if (text != found.end())
                    texts_.insert(id, blockTextHtml(text->second));
                else if (!growing)
                    texts_.insert(id, {});
            }
            if (hoverStep_ == step && hoverPosition_ == position) updateTooltip(describeCell(step, position));
        });
}

} // namespace kvscope::ui
