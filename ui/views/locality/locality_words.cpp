// The words of the locality view: about a cell, a row, a step, the whole picture, and a run that has no values.
#include "profiler/read/denoising.h"
#include "ui/frame/broken_rules.h"
#include "ui/frame/step_words.h"
#include "ui/plots/plot_canvas.h"
#include "ui/views/locality/locality_view.h"
#include "ui/views/run_text.h"
#include "ui/views/tile_text.h"

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

QString LocalityView::tooltipAt(int panel, QPointF at) {
    const int step = int(std::lround(at.x())), place = int(std::lround(at.y()));
    if (step < 0 || step >= data_.steps()) return {};
    if (panel != 0) return stepTooltip(step);
    if (place < 0 || place >= heat_->places()) return {};
    const int row = heat_->dataRow(place);
    const MetricInfo& metric = info();
    const Unit shown = unit().unit;
    const float value = data_.at(step, row);
    QString html =
        QStringLiteral("<b>%1, %2</b><br>").arg(stepName(run()->row, step), lines_.title(row).toHtmlEscaped());
    if (!data_.tiles().knows(step)) return html + notReadYet(data_.tiles().stride());
    html += QStringLiteral("%1: <b>%2</b>")
                .arg(QString::fromUtf8(metric.title).toHtmlEscaped(), formatValue(shown, double(value)));
    if (std::isnan(value)) html += QStringLiteral("<br>") + undefinedReason(step);
    const double perPixel = heat_->stepsPerPixel();
    if (perPixel > 1) {
        const int first = int(at.x() + 0.5 - perPixel / 2), last = first + int(std::ceil(perPixel));
        const CellStats stats = data_.stats(row, first, last);
        if (stats.count > 0)
            html += tr("<br>Around it, steps %1 to %2: %3")
                        .arg(formatCount(std::max(first, 0)), formatCount(std::min(last, data_.steps()) - 1),
                             described(stats));
    }
    return html + QStringLiteral("<p>%1</p>").arg(QString::fromUtf8(metric.help).toHtmlEscaped());
}

QString LocalityView::note() const {
    if (!feed_.error().isEmpty())
        return tr("Reading stopped after %1 steps: %2.").arg(formatCount(feed_.loaded()), feed_.error());
    const QString how = aggregate() == Aggregate::Mean  ? tr("mean")
                        : aggregate() == Aggregate::Min ? tr("minimum")
                                                        : tr("maximum");
    QString capped;
    const auto shown = [this](double value) { return formatValue(unit().unit, value); };
    if (scale_.clipsBelow())
        capped += tr("The darkest colour stands for everything below %1 (lowest: %2). ")
                      .arg(shown(scale_.low), shown(scale_.smallest));
    else if (scale_.largest - scale_.smallest < 0.25 * (scale_.high - scale_.low) && scale_.largest > scale_.smallest &&
             range_->currentIndex() == 0)
        capped = tr("All values lie between %1 and %2: Colours, Lowest to highest shows how they differ.")
                     .arg(shown(scale_.smallest), shown(scale_.largest));
    if (scale_.clipsAbove())
        capped += tr("The brightest colour stands for everything above %1 (highest: %2).")
                      .arg(shown(scale_.high), shown(scale_.largest));
    QString rows;
    if (heat_->rowsPerPixel() > 1 && heat_->places() > 1)
        rows = tr("1 pixel = %1 rows.").arg(heat_->rowsPerPixel(), 0, 'f', 1);
    QString sorted;
    if (sorting() != Sort::AsRecorded && !lines_.order().empty())
        sorted = tr("Rows sorted by their mean over steps %1 to %2.")
                     .arg(formatCount(sortedOver_.first), formatCount(sortedOver_.second - 1));
    QString preview;
    if (data_.tiles().hasPreview()) preview = previewNote(data_.tiles().stride());
    QString means;
    const auto [first, last] = const_cast<LocalityView*>(this)->visibleSteps();
    if (const int cold = coldBetween(first, last); cold > 0 && cold < last - first)
        means = tr("Means of rows leave %1 out.").arg(leftOutSteps(run()->row, cold));
    return sentences({aggregationNote(heat_->stepsPerPixel(), how), rows, sorted, means, preview,
                      run() && run()->row.serves() ? tr("Grey: undefined, such as iterations that decode nothing.")
                                                   : tr("Grey: undefined, such as the prefill."),
                      capped.trimmed(),
                      info().metric == Metric::ExposedTime && run()
                          ? tr("Times of the link are %1.").arg(timingWord(run()->row))
                          : QString(),
                      loadingNote(feed_.loading(), feed_.loaded(), feed_.total()), healthNote()});
}

QString LocalityView::described(const CellStats& stats) const {
    const Unit shown = unit().unit;
    return tr("mean %1, minimum %2, maximum %3")
        .arg(formatValue(shown, double(stats.value(Aggregate::Mean))), formatValue(shown, double(stats.min)),
             formatValue(shown, double(stats.max)));
}

QString LocalityView::rowTooltip(int place) {
    if (place < 0 || place >= heat_->places()) return {};
    const int row = heat_->dataRow(place);
    const auto [first, last] = visibleSteps();
    const CellStats& stats = rowStats_[row];
    return QStringLiteral("<b>%1</b><br>%2<br>%3: %4")
        .arg(lines_.title(row).toHtmlEscaped(),
             tr("Steps %1 to %2").arg(formatCount(first), formatCount(std::max(last - 1, first))),
             QString::fromUtf8(info().title).toHtmlEscaped(), stats.count > 0 ? described(stats) : tr("undefined"));
}

QString LocalityView::stepTooltip(int step) {
    if (!data_.tiles().knows(step))
        return QStringLiteral("<b>%1</b><br>%2").arg(stepName(run()->row, step), notReadYet(data_.tiles().stride()));
    const QCPRange rows = panel_->axis(QCPAxis::atLeft)->range();
    CellStats stats;
    int count = 0;
    for (int place = std::max(0, int(std::ceil(rows.lower)));
         place <= std::min(heat_->places() - 1, int(std::floor(rows.upper))); ++place, ++count)
        stats.add(data_.stats(heat_->dataRow(place), step, step + 1));
    return QStringLiteral("<b>%1</b><br>%2<br>%3: %4")
        .arg(stepName(run()->row, step), tr("%1 rows in view").arg(formatCount(count)),
             QString::fromUtf8(info().title).toHtmlEscaped(), stats.count > 0 ? described(stats) : tr("undefined"));
}

QString LocalityView::undefinedReason(int step) const {
    if (!workspace().filter().hasStep(step)) return tr("The filter leaves this step out.");
    if (!appliedFilter().empty()) return tr("The filter leaves it out, or it is undefined for this step.");
    if (run() ? run()->row.prompts.readsPrompt(step) : step == 0) return tr("The prefill selects nothing.");
    if (run() && denoisingBlock(run()->row) > 0)
        return tr(
            "Forwards that attend to everything choose nothing, and the first one of a block that does choose has "
            "none before it to compare with.");
    if (step == (run() ? run()->row.prompts.firstDecode() : 1))
        return tr("The first decode step has no step before it to compare with.");
    return tr("This value was not recorded for this step.");
}

bool LocalityView::explainNothing() {
    const Metric metric = info().metric;
    if (run() && !run()->row.knows.has(neededBy(metric))) {
        showEmpty(tr("%1 is not known in this run").arg(QString::fromUtf8(info().title)),
                  whyUnknown(workspace(), run()->key,
                             tr("The engine that recorded it did not see it. What the run knows: %1.")
                                 .arg(QString::fromStdString(run()->row.knows.list()))),
                  neededBy(metric) != Known::Selections && run()->row.knows.has(Known::Selections)
                      ? std::vector<EmptyAction>{{tr("Show locality"), [this] { showMetric(Metric::Locality); }}}
                      : std::vector<EmptyAction>{showView("breakdown"), showView("timeline")});
        return true;
    }
    if (metric == Metric::H2dBytes && (perHead() || !appliedFilter().kvHeads.empty())) {
        showEmpty(tr("Bytes are not known per KV head in this run"),
                  tr("A trace has the bytes of whole layers. Those of a KV head follow from its misses only where a "
                     "layer loads nothing but blocks that are missed; this method loads blocks ahead, or a part of "
                     "them. Look at the layers, or at misses."),
                  {{tr("Show misses"), [this] { showMetric(Metric::Misses); }}});
        return true;
    }
    if (!appliedFilter().empty()) {
        showEmptyByFilter(tr("Nothing passes the filter"));
        return true;
    }
    if (metric == Metric::Locality || metric == Metric::HitRate) {
        showEmpty(tr("Nothing was chosen in this run"),
                  tr("%1 needs blocks that were chosen. Full attention reads everything at every step: there is "
                     "nothing to keep or to miss. Look at its times, or record a sparse method to compare it "
                     "with.")
                      .arg(QString::fromUtf8(info().title)),
                  {{tr("Show layer times"), [this] { showMetric(Metric::LayerTime); }}, showView("breakdown")});
        return true;
    }
    if (metric == Metric::Mass || isOfOracle(metric)) {
        showEmpty(tr("%1 was not recorded").arg(QString::fromUtf8(info().title)),
                  tr("It compares every step with full attention, which takes time: record the run with the oracle "
                     "(Oracle in the form, --oracle on the command line)."),
                  {{tr("Show locality"), [this] { showMetric(Metric::Locality); }}});
        return true;
    }
    return false;
}

} // namespace kvscope::ui
