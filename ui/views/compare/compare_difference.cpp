// The page Difference: B - A of a metric as a layer x step heatmap with a diverging map centred on zero, or layer by
// layer with confidence intervals. difference_values.* reads the runs, difference_plots.* draws.
#include "base/indexed.h"
#include "profiler/compare/difference.h"
#include "profiler/compare/overlap.h"
#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/plots/colour_bar.h"
#include "ui/plots/heat_plottable.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"
#include "ui/views/compare/compare_pages.h"
#include "ui/views/compare/compare_ways.h"
#include "ui/views/compare/difference_plots.h"
#include "ui/views/compare/difference_values.h"
#include "ui/views/compare/pair_feed.h"
#include "ui/views/run_text.h"
#include "ui/views/sequence_choice.h"
#include "ui/widgets/loading_strip.h"

#include <QComboBox>
#include <QSignalBlocker>

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvscope::ui {

namespace {

constexpr int kChunkPairs = 2048;

enum class Along { Steps, Tokens, Layers };

class DifferencePage final : public PlotView {
    Q_OBJECT
public:
    DifferencePage(Workspace& workspace, QWidget* parent)
        : PlotView(workspace, tr("Difference"), parent), feed_(workspace, this, "compare difference", kChunkPairs) {
        metric_ = addPicker(QStringLiteral("metric"), tr("Metric"), tr("What is subtracted"));
        for (const MetricInfo& info : metrics()) {
            metric_->addItem(QString::fromUtf8(info.title), QString::fromUtf8(info.id));
            metric_->setItemData(metric_->count() - 1, QString::fromUtf8(info.help), Qt::ToolTipRole);
        }
        metric_->addItem(tr("Overlap of the selections"), QStringLiteral("overlap"));
        metric_->setItemData(metric_->count() - 1, overlapHelp(), Qt::ToolTipRole);
        along_ = addPicker(QStringLiteral("align"), tr("Aligned by"),
                           tr("Step: steps with equal numbers are compared. Token: steps at equal positions of one "
                              "sequence. Layer: the mean of each layer over all steps"));
        along_->addItems({tr("Step"), tr("Token"), tr("Layer")});
        other_ = addPicker(QStringLiteral("other"), tr("Against A"), tr("The run that A is subtracted from"));
        sequence_ = addPicker(QStringLiteral("sequence"), tr("Sequence"),
                              tr("One sequence of the batch, or all that the runs have in common. Tokens are aligned "
                                 "by one of them: the chosen one, else the first"));
        fillSequences(*sequence_, 1);
        aggregate_ = addPicker(QStringLiteral("aggregate"), tr("Zoomed out"),
                               tr("What a pixel shows that covers several steps"));
        aggregate_->addItems({tr("Mean"), tr("Lowest"), tr("Highest")});
        for (QComboBox* picker : {metric_, along_, other_, sequence_})
            connect(picker, &QComboBox::currentIndexChanged, this, &DifferencePage::reload);
        connect(aggregate_, &QComboBox::currentIndexChanged, this, [this] {
            if (heat_) heat_->setAggregate(Aggregate(aggregate_->currentIndex()));
            replot();
        });
        strip_ = new LoadingStrip(this);
        addAbovePlot(strip_);
        strip_->steer(feed_, [this] { strip_->show(feed_); });
    }

    QString exportCsv() const override { return textOf(numbers()); }

    NumberWriter numbers() const override {
        if (along() == Along::Layers) {
            if (deltas_.empty()) return {};
            QString csv = QStringLiteral("layer,pairs,a,b,difference,low,high\n");
            for (const LayerDelta& d : deltas_)
                csv += QStringLiteral("%1,%2,%3,%4,%5,%6,%7\n")
                           .arg(d.layer)
                           .arg(d.pairs)
                           .arg(plain(d.a), plain(d.b), plain(d.delta.value), plain(d.delta.low), plain(d.delta.high));
            return numbersOf(csv);
        }
        if (pairs_.empty()) return {};
        const QCPRange visible = const_cast<DifferencePage*>(this)->canvas().visibleX();
        return differenceNumbers(pieces_, pairs_, {origin_ + visible.lower, origin_ + visible.upper}, overlap(),
                                 along() == Along::Tokens);
    }

protected:
    void runChanged() override {
        feed_.stop();
        data_.reset(0);
        pairs_.clear();
        deltas_.clear();
        ++generation_;
        pieces_ = {};
        coverage_ = {};
        origin_ = -1;
        if (showEmptyWithoutRun(tr("This page subtracts one run from another, layer by layer and step by step.")))
            return;
        strip_->show(feed_);
        const auto others = othersOf(workspace());
        if (others.empty()) {
            showEmpty(tr("Choose a second run to compare with"),
                      tr("Open another trace or record another run, then choose it under “Compare with…”. Blue will "
                         "mean that B has less than A, orange that it has more."),
                      waysToCompare(*this, workspace()));
            return;
        }
        if (const QString missing = waitsFor(workspace()); !missing.isEmpty()) return showWaiting(missing);
        fillOthers(others);
        fillSequences(*sequence_, commonSequences(workspace()));
        const OpenRun& b = *others[std::size_t(std::clamp(other_->currentIndex(), 0, int(others.size()) - 1))];
        bName_ = runName(b, workspace().runs());
        if (overlap()) {
            if (const std::string refusal = overlapRefusal(run()->row, b.row, letter().toStdString());
                !refusal.empty()) {
                showEmpty(tr("The selections cannot be compared"), QString::fromStdString(refusal) + QLatin1Char('.'));
                return;
            }
        }
        showEmpty({}, {});
        buildPanels();
        DifferenceRequest request;
        request.runA = run()->key.runId, request.runB = b.key.runId;
        request.overlap = overlap();
        if (!overlap()) request.metric = info().metric;
        request.filter = workspace().filter(), request.read = appliedFilter();
        request.kvHeads = run()->row.kvHeads;
        request.sequence = chosenSequence(*sequence_);
        request.factor = unit().factor;
        feed_.start(
            run()->key, b.key, letter(), along() == Along::Tokens ? AlignBy::Token : AlignBy::Step,
            std::max(request.sequence, 0),
            [request = std::move(request)](const TraceReader& readerA, const TraceReader& readerB,
                                           std::span<const StepPair> pairs) {
                return readDifference(request, readerA, readerB, pairs);
            },
            [this] { aligned(); },
            [this](DifferenceChunk chunk, std::span<const StepPair> pairs) { return take(std::move(chunk), pairs); });
        cursorMoved();
    }

    void runGrew() override {
        if (!run() || othersOf(workspace()).empty()) return;
        if (!feed_.active()) return runChanged(); // the page waited for a run's description
        feed_.grew(!someGrow(workspace()));
    }

    void cursorMoved() override {
        CursorMark mark;
        const Cursor& cursor = workspace().cursor();
        if (run() && panel_) {
            if (along() == Along::Layers) {
                mark.x = cursor.layer;
            } else {
                const auto at = [&](int step) -> std::optional<double> {
                    if (along() == Along::Steps) return step - std::max(origin_, 0);
                    for (const StepPair& pair : pairs_)
                        if (pair.a == step) return pair.at - origin_;
                    return std::nullopt;
                };
                mark.x = at(cursor.step);
                mark.y = cursor.layer;
                if (const auto first = at(cursor.firstStep), last = at(cursor.lastStep);
                    cursor.firstStep >= 0 && first && last)
                    mark.selectedSteps = QCPRange(*first, *last);
            }
        }
        showMark(mark, canvas().panels());
    }

    void themed(const Theme& theme) override {
        if (legend_) legend_->applyTheme(theme);
        if (heat_) heat_->setColours(colours_, theme.undefinedCell);
        if (scale_) themeColourBar(*scale_, *panel_, theme);
        if (along() == Along::Layers) presentLayers();
    }

    void clickedAt(int, QPointF at) override {
        if (!run()) return;
        Cursor cursor = workspace().cursor();
        if (along() == Along::Layers) {
            cursor.layer = std::max(0, int(std::lround(at.x())));
        } else {
            const StepPair* pair = pairAt(at.x());
            const int layer = int(std::lround(at.y()));
            if (!pair || layer < 0 || layer >= data_.rows()) return;
            cursor.step = pair->a;
            cursor.layer = layer;
        }
        workspace().setCursor(cursor);
    }

    QString tooltipAt(int, QPointF at) override {
        if (along() == Along::Layers) return layerTooltip(int(std::lround(at.x())));
        const StepPair* pair = pairAt(at.x());
        const int layer = int(std::lround(at.y()));
        if (!pair || layer < 0 || layer >= data_.rows()) return {};
        const auto value = double(data_.at(pair->at - origin_, layer));
        const QString where =
            pair->a == pair->b ? stepName(run()->row, pair->a) : tr("step %1 of A, %2 of B").arg(pair->a).arg(pair->b);
        QString html = QStringLiteral("<b>%1, layer %2</b>").arg(where).arg(layer);
        if (along() == Along::Tokens) html += tr("<br>position %1").arg(formatCount(pair->at));
        if (overlap()) {
            html += tr("<br>Jaccard of the selected blocks: <b>%1</b>").arg(formatValue(Unit::Fraction, value));
        } else {
            const auto [a, b] = pieces_.at(int(pair - pairs_.data()), layer);
            html += tr("<br>%1: A %2, %3 %4<br>Difference <b>%5</b>")
                        .arg(metric_->currentText().toHtmlEscaped(), shown(a), letter(), shown(b), signedText(value));
        }
        return html + QStringLiteral("<p>%1</p>").arg(help().toHtmlEscaped());
    }

    int filterParts() const override {
        const bool times = ofTimes();
        const bool stages = !overlap() && info().metric == Metric::LayerTime;
        return FilterLayers | FilterSteps | FilterText | (times ? 0 : FilterKvHeads) | (stages ? FilterComponent : 0);
    }

    QString note() const override {
        if (!feed_.error().isEmpty()) return tr("Reading stopped: %1.").arg(feed_.error());
        QStringList notes;
        for (const std::string& text : feed_.alignment().notes) {
            QString sentence = QString::fromStdString(text);
            sentence[0] = sentence[0].toUpper();
            notes << sentence + QLatin1Char('.');
        }
        QString how;
        if (along() == Along::Layers)
            how =
                tr("Mean over %1 pairs of steps without the first and those that open a block; 95 % intervals by block "
                   "bootstrap.")
                    .arg(formatCount(steady()));
        else if (heat_)
            how = aggregationNote(heat_->stepsPerPixel(), aggregate_->currentText().toLower());
        const QString capped =
            capped_ ? tr("The strongest colour stands for everything beyond ±%1.").arg(shown(colours_.upper))
                    : QString();
        return sentences({sequenceText(), soFarNote(workspace()), how, capped,
                          overlap() ? tr("1: the same blocks, 0: none in common.") : QString(),
                          loadingNote(feed_.loading(), feed_.loaded(), feed_.total()), notes.join(QLatin1Char(' ')),
                          healthNote()});
    }

    QString pictureTitle() const override {
        if (!run()) return PlotView::pictureTitle();
        return overlap() ? tr("%1 of %2 and %3").arg(metric_->currentText(), aName(), bName_)
                         : tr("%1: %3 (%4) minus %2 (A)").arg(metric_->currentText(), aName(), bName_, letter());
    }

private:
    bool overlap() const { return metric_->currentData().toString() == QLatin1String("overlap"); }
    Along along() const { return Along(std::max(along_->currentIndex(), 0)); }
    static const MetricInfo& metricOf(Metric metric) {
        return *std::find_if(metrics().begin(), metrics().end(),
                             [&](const MetricInfo& each) { return each.metric == metric; });
    }
    const MetricInfo& info() const {
        return metrics()[std::size_t(std::clamp(metric_->currentIndex(), 0, int(metrics().size()) - 1))];
    }
    NamedUnit unit() const {
        return overlap() ? NamedUnit{Unit::Fraction, 1} : unitFromName(QString::fromUtf8(info().unit));
    }
    static QString overlapHelp() {
        return tr(
            "Jaccard: blocks that both select over blocks that either selects, mean over the KV heads and sequences "
            "that select in both runs.");
    }
    QString help() const { return overlap() ? overlapHelp() : QString::fromUtf8(info().help); }
    QString shown(double value) const { return formatValue(unit().unit, value); }
    QString signedText(double value) const { return (value > 0 ? QStringLiteral("+") : QString()) + shown(value); }
    QString aName() const { return run() ? runName(*run(), workspace().runs()) : QString(); }
    bool ofTimes() const {
        return !overlap() && (info().metric == Metric::ExposedTime || info().metric == Metric::LayerTime);
    }
    QString sequenceText() const {
        if (ofTimes() && chosenSequence(*sequence_) >= 0)
            return tr("Times are recorded of whole steps, not of single sequences: choose all of them.");
        const bool byOne = along() == Along::Tokens && sequence_->count() > 2 && chosenSequence(*sequence_) < 0;
        return sentences({sequenceNote(*sequence_), byOne ? tr("Tokens are aligned by sequence 0.") : QString()});
    }
    void showWaiting(const QString& why) {
        showEmpty(tr("Waiting for the first decode step"), tr("%1. The difference appears as it is recorded.").arg(why),
                  {stopRun()});
    }
    std::size_t otherPlace() const { return std::size_t(std::max(other_->currentIndex(), 0)) + 1; }
    QString letter() const { return runLetter(otherPlace()); }
    QColor otherColour() const { return runColour(otherPlace()); }
    static QString plain(double value) { return std::isnan(value) ? QString() : QString::number(value, 'g', 9); }
    qint64 steady() const {
        return std::count_if(pairs_.begin(), pairs_.end(), [](const StepPair& pair) { return pair.steady; });
    }
    const StepPair* pairAt(double x) const {
        const int at = int(std::lround(x)) + std::max(origin_, 0);
        const auto found = std::lower_bound(pairs_.begin(), pairs_.end(), at,
                                            [](const StepPair& pair, int wanted) { return pair.at < wanted; });
        return found != pairs_.end() && found->at == at ? &*found : nullptr;
    }

    void fillOthers(const std::vector<const OpenRun*>& others) {
        const QSignalBlocker quiet(other_);
        const int before = std::max(other_->currentIndex(), 0);
        other_->clear();
        for (std::size_t i = 0; i < others.size(); ++i) other_->addItem(letteredName(i + 1, workspace()));
        other_->setCurrentIndex(std::min(before, other_->count() - 1));
        other_->setEnabled(others.size() > 1);
    }

    void buildPanels() {
        PlotCanvas& plot = canvas();
        plot.clearPanels();
        heat_ = nullptr;
        scale_ = nullptr;
        legend_ = nullptr;
        lower_ = nullptr;
        capped_ = false;
        aggregate_->setEnabled(along() != Along::Layers);
        if (along() == Along::Layers) {
            legend_ = new LegendStrip(&plot);
            plot.plotLayout()->addElement(0, 0, legend_);
            panel_ = plot.addPanel(false);
            panel_->axis(QCPAxis::atBottom)->setTickLabels(false);
            setIntegerAxis(panel_->axis(QCPAxis::atBottom), {});
            if (!overlap()) {
                lower_ = plot.addPanel(false);
                setIntegerAxis(lower_->axis(QCPAxis::atBottom), tr("Layer"));
            } else {
                panel_->axis(QCPAxis::atBottom)->setTickLabels(true);
                setIntegerAxis(panel_->axis(QCPAxis::atBottom), tr("Layer"));
            }
            plot.setMinimumSpan(1);
        } else {
            panel_ = plot.addPanel(true);
            panel_->axis(QCPAxis::atLeft)->setRangeReversed(true); // layer 0 on top
            panel_->axis(QCPAxis::atLeft)->grid()->setVisible(false);
            heat_ = new HeatPlottable(panel_->axis(QCPAxis::atBottom), panel_->axis(QCPAxis::atLeft), data_);
            heat_->setAggregate(Aggregate(std::max(aggregate_->currentIndex(), 0)));
            heat_->setColourMap(overlap() ? Theme::sequential : Theme::diverging);
            scale_ = addColourBar(plot, 0, 1, panel_);
            fillColourBar(*scale_, overlap() ? Theme::sequential : Theme::diverging);
            plot.setMinimumSpan(2);
        }
        plot.applyTheme(Theme::current());
        if (heat_) panel_->axis(QCPAxis::atLeft)->grid()->setVisible(false);
        themed(Theme::current());
    }

    void aligned() {
        if (!feed_.error().isEmpty() && pairs_.empty()) {
            showEmpty(tr("The runs cannot be read here"), feed_.error());
            return;
        }
        if (!feed_.alignment().refusal.empty()) {
            const QString refusal = QString::fromStdString(feed_.alignment().refusal);
            if (feed_.alignment().tooEarly && someGrow(workspace())) return showWaiting(refusal);
            showEmpty(tr("These runs cannot be aligned"), refusal + QLatin1Char('.'));
            return;
        }
        if (feed_.loaded() == 0) { // begun anew
            data_.reset(0);
            pairs_.clear();
            pieces_ = {};
            coverage_ = {};
            origin_ = along() == Along::Tokens ? feed_.alignment().pairs.front().at : 0;
        }
        showEmpty({}, {});
        strip_->show(feed_);
    }

    bool take(DifferenceChunk chunk, NumberedSpan<const StepPair> pairs) {
        if (data_.rows() == 0) data_.reset(chunk.layers);
        const Extents<int, int> cells(int(pairs.size()), chunk.layers);
        std::vector<float> columns;
        int next = origin_ + data_.steps();
        for (int i = 0; i < cells.length(0); ++i) {
            for (; next < pairs[i].at; ++next)
                columns.insert(columns.end(), cells.under(0),
                               std::numeric_limits<float>::quiet_NaN()); // the step has no counterpart
            const auto column = cells.part(std::span(chunk.values), i);
            columns.insert(columns.end(), column.begin(), column.end());
            ++next;
        }
        data_.append(columns);
        pairs_.insert(pairs_.end(), pairs.begin(), pairs.end());
        coverage_.add(chunk.coverage);
        if (overlap()) chunk.a = chunk.b = chunk.values;
        pieces_.add({int(pairs.size()), chunk.layers, std::move(chunk.a), std::move(chunk.b)});
        const bool complete = int(pairs_.size()) == feed_.total();
        if (complete && !pieces_.definedInBoth()) {
            explainNothing();
        } else if (along() == Along::Layers) {
            if (complete) askLayers();
        } else {
            presentHeat();
        }
        strip_->show(feed_);
        return true;
    }

    /// All steps are read and there is no value to subtract: why, in place of an empty plot.
    void explainNothing() {
        const QString title = tr("There is no difference to show"), metric = metric_->currentText();
        if (ofTimes() && chosenSequence(*sequence_) >= 0)
            return showEmpty(title, sequenceText(),
                             {{tr("Show all sequences"), [this] { sequence_->setCurrentIndex(0); }}});
        if (!appliedFilter().empty()) return showEmptyByFilter(tr("Nothing passes the filter"));
        const EmptyAction times{
            tr("Show layer times"),
            [this] { metric_->setCurrentIndex(metric_->findData(QString::fromUtf8(metricOf(Metric::LayerTime).id))); }};
        if (overlap()) {
            QString why = QString::fromStdString(coverageRefusal(coverage_, letter().toStdString()));
            if (why.isEmpty()) why = tr("no layer and step of both has selected blocks");
            why[0] = why[0].toUpper();
            return showEmpty(tr("There are no selections to compare"), why + QLatin1Char('.'), {times});
        }
        const QString what = metric.toLower();
        const QString which = !pieces_.definedA() && !pieces_.definedB()
                                  ? tr("Neither A nor %1 has a %2 in these steps.").arg(letter(), what)
                              : !pieces_.definedA() ? tr("A has no %1 in these steps.").arg(what)
                              : !pieces_.definedB() ? tr("%1 has no %2 in these steps.").arg(letter(), what)
                                                    : tr("No layer and step has a %1 in both runs.").arg(what);
        QString why;
        if (info().metric == Metric::Locality || info().metric == Metric::HitRate)
            why = tr("%1 needs blocks that were selected. Full attention selects none: it attends to every cached "
                     "block, so there is nothing to keep or to miss.")
                      .arg(metric);
        else if (info().metric == Metric::Mass || isOfOracle(info().metric))
            why = tr("%1 is recorded with the oracle only.").arg(metric);
        showEmpty(title, sentences({which, why}), {times});
    }

    void presentHeat() {
        QStringList ticks;
        for (int layer = 0; layer < data_.rows(); ++layer) ticks << QString::number(layer);
        setNamedAxis(panel_->axis(QCPAxis::atLeft), tr("Layer"), ticks);
        QCPAxis* x = panel_->axis(QCPAxis::atBottom);
        if (along() == Along::Tokens) {
            x->setTicker(QSharedPointer<OffsetTicker>::create(origin_));
            x->setLabel(tr("Position of the token in the sequence"));
        } else {
            setIntegerAxis(x, tr("Decode step"));
        }
        canvas().setFullX({pairs_.front().at - origin_ - 0.5, data_.steps() - 0.5});
        canvas().setFullY(0, {-0.5, data_.rows() - 0.5});
        chooseColours();
        replot();
    }

    void chooseColours() {
        const DifferenceColours chosen = overlap() ? DifferenceColours{{0, 1}, false} : differenceColours(data_);
        colours_ = chosen.range;
        capped_ = chosen.capped;
        scale_->setDataRange(colours_);
        setUnitAxis(scale_->axis(),
                    overlap() ? tr("Jaccard of the selected blocks")
                              : tr("%1, %2 minus A%3")
                                    .arg(metric_->currentText(), letter(),
                                         unit().unit == Unit::Count
                                             ? QStringLiteral(" (%1)").arg(QString::fromUtf8(info().unit))
                                             : QString()),
                    unit().unit);
        heat_->setColours(colours_, Theme::current().undefinedCell);
    }

    /// Resampling thousands of times is work for a thread that nobody waits for.
    void askLayers() {
        workspace().query<std::vector<LayerDelta>>(
            this, "compare layers", run()->key,
            [pieces = pieces_, pairs = pairs_](TraceReader&) { return layerDeltas(pieces.joined(), pairs); },
            [this, generation = generation_](std::vector<LayerDelta> deltas) {
                if (generation != generation_) return; // something else is shown by now
                deltas_ = std::move(deltas);
                presentLayers();
            });
    }

    void presentLayers() {
        if (deltas_.empty() || !panel_ || heat_) return;
        canvas().clearPlottables();
        const Theme& theme = Theme::current();
        const LayerRanges ranges = overlap() ? drawLayers(deltas_, *panel_, theme.accent)
                                             : drawLayers(deltas_, *panel_, *lower_, theme.runA, otherColour());
        canvas().setFullX({-0.5, double(deltas_.size()) - 0.5});
        canvas().setFullY(0, ranges.means);
        setUnitAxis(panel_->axis(QCPAxis::atLeft), metric_->currentText(), unit().unit);
        if (lower_) {
            canvas().setFullY(1, ranges.differences);
            setUnitAxis(lower_->axis(QCPAxis::atLeft), tr("%1 minus A").arg(letter()), unit().unit);
        }
        if (overlap())
            legend_->setSwatches(
                {Swatch{tr("A and %1: %2").arg(letter(), bName_), theme.accent, Swatch::Mark::Line, {}}});
        else
            legend_->setSwatches(
                {Swatch{tr("A: %1").arg(aName()), theme.runA, Swatch::Mark::Line, {}},
                 Swatch{tr("%1: %2").arg(letter(), bName_), otherColour(), Swatch::Mark::Line, {}},
                 Swatch{tr("%1 has less").arg(letter()), QColor(Theme::diverging(0.15)), Swatch::Mark::Fill, {}},
                 Swatch{tr("%1 has more").arg(letter()), QColor(Theme::diverging(0.85)), Swatch::Mark::Fill, {}}});
        replot();
    }

    QString layerTooltip(int layer) const {
        if (layer < 0 || layer >= deltas_.count()) return {};
        const LayerDelta& d = deltas_[layer];
        QString html = tr("<b>Layer %1</b>, mean over %2 pairs of steps").arg(layer).arg(d.pairs);
        if (overlap()) return html + tr("<br>Jaccard <b>%1</b>").arg(shown(d.a));
        html += tr("<br>A %1, %2 %3<br>Difference <b>%4</b>")
                    .arg(shown(d.a), letter(), shown(d.b), signedText(d.delta.value));
        if (!std::isnan(d.delta.low))
            html += tr(", 95 % interval %1 to %2").arg(signedText(d.delta.low), signedText(d.delta.high));
        return html;
    }

    PairFeed<DifferenceChunk> feed_;
    QComboBox *metric_ = nullptr, *along_ = nullptr, *other_ = nullptr, *sequence_ = nullptr, *aggregate_ = nullptr;
    LoadingStrip* strip_ = nullptr;
    StepPyramid data_; // columns from origin_ on
    std::vector<StepPair> pairs_;
    DifferenceValues pieces_;    // in the unit shown
    SelectionCoverage coverage_; // of an overlap, of the steps read so far
    Numbered<LayerDelta> deltas_;
    int origin_ = -1, generation_ = 0;
    QString bName_;
    QCPAxisRect *panel_ = nullptr, *lower_ = nullptr;
    QCPColorScale* scale_ = nullptr;
    LegendStrip* legend_ = nullptr;
    HeatPlottable* heat_ = nullptr;
    QCPRange colours_{-1, 1};
    bool capped_ = false;
};

} // namespace

View* makeCompareDifference(Workspace& workspace, QWidget* parent) { return new DifferencePage(workspace, parent); }

} // namespace kvscope::ui

#include "compare_difference.moc"
