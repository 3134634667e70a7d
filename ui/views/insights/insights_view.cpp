// Insights: what the run says about itself. One sentence, then findings that lead to their evidence, then hidden and
// exposed transfer time per layer.
#include "base/indexed.h"
#include "profiler/insights/insight.h"
#include "profiler/waterfall/waterfall.h"
#include "ui/frame/growth_timer.h"
#include "ui/frame/proposals.h"
#include "ui/frame/run_names.h"
#include "ui/frame/units.h"
#include "ui/frame/view_request.h"
#include "ui/frame/waiting.h"
#include "ui/look/theme.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"
#include "ui/plots/stack_plottable.h"
#include "ui/views/headline.h"
#include "ui/views/insights/insight_cards.h"
#include "ui/views/make_views.h"
#include "ui/views/run_text.h"
#include "ui/widgets/loading_strip.h"

#include "base/error.h"

#include <QApplication>
#include <QPainter>
#include <QPointer>

#include <algorithm>
#include <cmath>
#include <optional>

namespace kvscope::ui {

namespace {

constexpr int kPlotHeight = 230;
constexpr int kHidden = kExposureCount; // the reasons of exposed time, then what is hidden
constexpr int kPictureRoom = 240;       // of a picture's height, for the plot

QString reasonTitle(int index) {
    const auto text = kExposureTitles[std::size_t(index)];
    return QString::fromUtf8(text.data(), qsizetype(text.size()));
}

QString quoted(const std::string& text) {
    return QStringLiteral("\"%1\"").arg(QString::fromStdString(text).replace(QLatin1Char('"'), QLatin1String("\"\"")));
}

class InsightsView final : public PlotView {
    Q_OBJECT
public:
    InsightsView(Workspace& workspace, QWidget* parent) : PlotView(workspace, tr("Insights"), parent) {
        strip_ = new LoadingStrip(this, tr("kinds of findings"));
        addAbovePlot(strip_);
        connect(strip_, &LoadingStrip::stopped, this, &InsightsView::stopReading);
        connect(strip_, &LoadingStrip::resumed, this, [this] {
            report_.reset(); // the rules share what they read: they begin again
            ask();
        });
        cards_ = new InsightCards(this);
        addAbovePlot(cards_); // what limits the run most comes first; the headline is that of the plot below it
        headline_ = new Headline(this);
        addAbovePlot(headline_);
        connect(cards_, &InsightCards::chosen, this, &InsightsView::goTo);
        connect(cards_, &InsightCards::tried, this, [this](int index) {
            if (const auto change = proposedAt(index)) requestTrial(*this, *change);
        });
        connect(cards_, &InsightCards::run, this, [this](int index) {
            RunsChanges* runner = runnerOf(*this);
            if (const auto change = proposedAt(index); change && runner != nullptr) runner->runWith(*change);
        });
        canvas().QWidget::setMinimumHeight(kPlotHeight);
        legend_ = new LegendStrip(&canvas());
        canvas().plotLayout()->addElement(0, 0, legend_);
        panel_ = canvas().addPanel(false);
        setIntegerAxis(panel_->axis(QCPAxis::atBottom), tr("Layer"));
        bars_ = new BarStackPlottable(panel_->axis(QCPAxis::atBottom), panel_->axis(QCPAxis::atLeft));
        canvas().setMinimumSpan(1);
        canvas().applyTheme(Theme::current());
        themed(Theme::current());
        showReport(false);
    }

    QString exportCsv() const override {
        if (!report_ || report_->exposure.all.steps == 0) return {};
        QString csv = QStringLiteral("section,rank,id,severity,title,layer,quantity,value,unit\n");
        int rank = 0;
        for (const Insight& insight : report_->insights) {
            ++rank;
            for (const Figure& figure : insight.figures)
                csv += QStringLiteral("insight,%1,%2,%3,%4,%5,%6,%7,%8\n")
                           .arg(rank)
                           .arg(QString::fromStdString(insight.id), QLatin1String(nameOf(insight.severity)),
                                quoted(insight.title),
                                insight.evidence.layer >= 0 ? QString::number(insight.evidence.layer) : QString(),
                                QString::fromStdString(figure.name), QString::number(figure.value, 'g', 12),
                                QString::fromStdString(figure.unit));
        }
        for (const LayerExposure& layer : report_->exposure.layers) { // none until they are read
            if (!workspace().filter().hasLayer(layer.layer)) continue;
            const auto add = [&](const QString& quantity, std::int64_t ns) {
                csv += QStringLiteral("layer,,,,,%1,%2,%3,ns\n").arg(layer.layer).arg(quantity).arg(ns);
            };
            add(QStringLiteral("transfer"), layer.time.transferNs);
            add(QStringLiteral("hidden"), layer.time.hiddenNs());
            add(QStringLiteral("exposed"), layer.time.exposedNs);
            for (int i = 0; i < kExposureCount; ++i)
                add(QStringLiteral("exposed_") + QString::fromUtf8(kExposureNames[std::size_t(i)].data()),
                    layer.time.becauseNs[std::size_t(i)]);
        }
        return csv;
    }

    QString sql() const override {
        if (!run() || !report_) return {};
        SqlScope scope = sqlScope();
        scope.firstStep = 0; // all steps: the axis of this view has layers, so none are zoomed out
        scope.lastStep = std::max(0, run()->row.steps - 1);
        return exposureSql(scope);
    }

protected:
    void runChanged() override {
        report_.reset();
        roof_.reset();
        ++question_;
        stopped_ = false;
        showReport(false);
        strip_->show(LoadingStrip::State::Idle, 0, 0);
        if (showEmptyWithoutRun(tr("This view reads a run as an expert would: how much of the decode time is exposed "
                                   "transfer, which layers cause it, what stands out and what to try. Every finding "
                                   "leads to its evidence.")))
            return;
        showEmpty(tr("Reading the run"), tr("Findings appear here as they come."));
        ask();
    }

    void runGrew() override {
        if (run() && !stopped_) timer_.grew(!isGrowing(*run()));
    }

    void cursorMoved() override {
        CursorMark mark;
        if (run()) mark.x = workspace().cursor().layer;
        showMark(mark, {panel_});
    }

    void themed(const Theme& theme) override {
        legend_->applyTheme(theme);
        bars_->setColours(colours(theme), theme.mutedText);
        QVector<Swatch> swatches;
        const Numbered<QColor> all(colours(theme));
        for (int i = 0; i < kExposureCount; ++i)
            if (shown(i)) swatches << Swatch{tr("Exposed: %1").arg(reasonTitle(i)), all[i], Swatch::Mark::Fill, {}};
        if (shown(kHidden)) swatches << Swatch{tr("Hidden"), all[kHidden], Swatch::Mark::Fill, {}};
        legend_->setSwatches(swatches);
        cards_->viewport()->update();
    }

    void clickedAt(int, QPointF at) override {
        if (!run()) return;
        Cursor cursor = workspace().cursor();
        cursor.layer = std::max(0, int(std::lround(at.x())));
        workspace().setCursor(cursor);
    }

    QString tooltipAt(int, QPointF at) override {
        const auto layer = std::lround(at.x());
        if (!report_ || layer < 0 || layer >= long(report_->exposure.layers.size())) return {};
        const LayerExposure& row = report_->exposure.layers[std::size_t(layer)];
        QString html =
            tr("<b>Layer %1</b><br>Exposed <b>%2</b> (%3 of all), hidden %4, %5<br>%6 blocks in %7 loads, %8")
                .arg(row.layer)
                .arg(formatValue(Unit::Nanoseconds, double(row.time.exposedNs)),
                     formatValue(Unit::Percent, 100 * row.share),
                     formatValue(Unit::Nanoseconds, double(row.time.hiddenNs())), timingWord(*runRow()),
                     formatCount(row.h2dBlocks), formatCount(row.h2dTransfers),
                     formatValue(Unit::Bytes, double(row.h2dBytes)));
        for (int i = 0; i < kExposureCount; ++i)
            if (row.time.becauseNs[std::size_t(i)] > 0)
                html += tr("<br>%1: %2")
                            .arg(reasonTitle(i),
                                 formatValue(Unit::Nanoseconds, double(row.time.becauseNs[std::size_t(i)])));
        return html;
    }

    /// The text chooses findings, the layers bars; the sentence on top is of the whole run.
    int filterParts() const override { return FilterLayers | FilterText; }

    QString note() const override {
        if (!report_) return healthNote();
        const ExposureReport& exposure = report_->exposure;
        QString bars;
        if (!report_->refusal.empty())
            bars = tr("The link time of each layer is not shown: rows break rules of the trace format.");
        else if (exposure.counted().time.transferNs > 0 && !exposure.byLayer)
            bars =
                stopped_ ? tr("The link time of each layer was not read.") : tr("The link time of each layer follows.");
        else if (exposure.counted().time.transferNs > 0)
            bars = tr("Link time per layer, %1, summed over %2 decode steps%3.")
                       .arg(exposure.measured ? tr("measured") : tr("modelled"), formatCount(exposure.counted().steps),
                            exposure.cold.steps == 0  ? QString()
                            : exposure.coldCounted    ? tr("; cold steps are counted")
                            : exposure.mixedSteps > 0 ? tr("; cold and mixed steps are left out")
                                                      : tr("; cold steps are left out"));
        const bool growing = run() && isGrowing(*run());
        const QString partly = report_->judged == report_->rules
                                   ? QString()
                                   : (stopped_ ? tr("Stopped: %1 of %2 kinds of findings were looked for.")
                                               : tr("Still looking: %1 of %2 kinds of findings so far."))
                                         .arg(report_->judged)
                                         .arg(report_->rules);
        return sentences(
            {partly, hidden_ > 0 ? tr("Findings without the filter's text, not shown: %1.").arg(hidden_) : QString(),
             bars, growing ? tr("The run is still growing; its caches are replayed when it ends.") : QString(),
             healthNote()});
    }

    int drawAbove(QPainter* painter, QRect area) const override {
        if (!report_) return 0;
        const Theme& theme = Theme::current();
        const QFont font = painter->font();
        Paragraphs measured(nullptr, area);
        headline_->addTo(measured);
        const int room = area.bottom() - kPictureRoom - measured.height();
        Paragraphs paragraphs(painter, area);
        std::size_t drawn = 0;
        for (const Insight& insight : report_->insights) {
            const QRect place(area.left(), paragraphs.bottom(), area.width(), 0);
            const int height = drawInsight(nullptr, place, font, insight, theme);
            if (place.top() + height > room && drawn > 0) break;
            drawInsight(painter, place, font, insight, theme);
            paragraphs.addSpace(height + 6);
            ++drawn;
        }
        if (drawn < report_->insights.size())
            paragraphs.add(tr("and %n more", nullptr, int(report_->insights.size() - drawn)), theme.mutedText);
        headline_->addTo(paragraphs);
        return paragraphs.height();
    }

private:
    static std::vector<QColor> colours(const Theme& theme) {
        // Reasons in the colours of what they resemble elsewhere; hidden time recedes.
        const auto component = [&](Stage stage) { return theme.component[std::size_t(stage)]; };
        QColor hidden = theme.mutedText;
        hidden.setAlpha(90);
        return {component(Stage::Compression),
                component(Stage::Pooling),
                component(Stage::Stage1),
                component(Stage::Offloading),
                theme.danger,
                hidden};
    }
    /// Whether a bar has this part.
    bool shown(int part) const {
        if (!report_ || !report_->exposure.byLayer) return false;
        const TransferTime& time = report_->exposure.counted().time;
        return part == kHidden ? time.hiddenNs() > 0 : time.becauseNs[std::size_t(part)] > 0;
    }
    const RunRow* runRow() const { return run() ? &run()->row : nullptr; }

    void showReport(bool visible) {
        headline_->setVisible(visible);
        cards_->setVisible(visible && report_ && !report_->insights.empty());
    }

    void ask() {
        if (!run()) return;
        stopped_ = false;
        InsightOptions options;
        options.replay = !isGrowing(*run());
        // The first findings come before the others; of a run that grows the last complete ones stay meanwhile.
        const unsigned question = ++question_;
        if (!report_)
            options.found = [view = QPointer(this), question](InsightReport soFar) {
                QMetaObject::invokeMethod(
                    qApp,
                    [view, question, soFar = std::move(soFar)]() mutable {
                        if (view && view->question_ == question) view->take(std::move(soFar));
                    },
                    Qt::QueuedConnection);
            };
        workspace().query<InsightReport>(
            this, "insights", run()->key,
            [runId = run()->key.runId, options](TraceReader& reader) { return insightsOf(reader, runId, options); },
            [this](InsightReport report) {
                timer_.answered();
                take(std::move(report));
                askWhyNotTheRoof();
            });
    }

    /// The first card, once the others are known: it reads every layer and every kernel.
    void askWhyNotTheRoof() {
        if (!run() || !report_ || !report_->refusal.empty() || report_->exposure.all.steps == 0) return;
        workspace().query<std::optional<Insight>>(
            this, "waterfall", run()->key,
            [row = run()->row](TraceReader& reader) -> std::optional<Insight> {
                try {
                    return insightOf(waterfallOf(reader, row, GpuTable::load()));
                } catch (const Error& error) { // of a run without such steps, or with a table that cannot be read
                    if (error.kind == ErrorKind::Cancelled) throw;
                    return std::nullopt;
                }
            },
            [this](std::optional<Insight> roof) {
                if (!report_) return;
                if (roof_ && !passes(*roof_)) --hidden_; // the roof that follows is counted anew
                roof_ = std::move(roof);
                putRoofFirst();
                present();
            });
    }

    void putRoofFirst() {
        std::vector<Insight>& all = report_->insights;
        std::erase_if(all, [](const Insight& insight) { return insight.id == kRoofInsight; });
        if (roof_) all.insert(all.begin(), *roof_);
    }

    std::optional<ProposedChange> proposedAt(int index) const {
        if (!report_ || index < 0 || index >= int(report_->insights.size())) return std::nullopt;
        const std::optional<Proposal>& proposal = report_->insights[index].proposal;
        if (!proposal) return std::nullopt;
        ProposedChange change{proposal->deviceSlots, QString::fromStdString(proposal->cachePolicy),
                              proposal->layersAhead, proposal->resident, std::nullopt};
        if (const auto& forecast = proposal->forecast)
            change.forecast.emplace(QString::fromStdString(forecast->key), QString::fromStdString(forecast->with));
        return change;
    }

    bool passes(const Insight& insight) const {
        return workspace().filter().hasText(
            QString::fromStdString(insight.title + '\n' + insight.detail + '\n' + insight.advice));
    }

    void take(InsightReport report) {
        report_ = std::move(report);
        hidden_ = 0;
        putRoofFirst();
        const bool all = report_->judged == report_->rules;
        strip_->show(all ? LoadingStrip::State::Idle : LoadingStrip::State::Loading, report_->judged, report_->rules);
        present();
    }

    void stopReading() {
        if (!report_) return;
        ++question_; // answers that are under way belong to an older question and are dropped
        stopped_ = true;
        workspace().query<int>(
            // A new read in the same slot interrupts the one that is under way.
            this, "insights", run()->key, [](TraceReader&) { return 0; }, [](int) {});
        timer_.answered();
        strip_->show(LoadingStrip::State::Paused, report_->judged, report_->rules);
        present();
    }

    void present() {
        const ExposureReport& exposure = report_->exposure;
        if (exposure.all.steps == 0) {
            showReport(false);
            const auto [title, why] = waitingText(run(), tr("Waiting for the first decode step"),
                                                  tr("Findings are about decoding; the prefill has none."));
            showEmpty(title, why, {stopRun(), showView("timeline")});
            return;
        }
        const Filter& filter = workspace().filter();
        const std::size_t all = report_->insights.size();
        std::erase_if(report_->insights, [&](const Insight& insight) { return !passes(insight); });
        hidden_ += int(all - report_->insights.size());
        QString detail = shownText(exposure.detail);
        const bool findings = std::any_of(report_->insights.begin(), report_->insights.end(),
                                          [](const Insight& insight) { return insight.id != kRoofInsight; });
        if (!findings && hidden_ == 0 && report_->judged == report_->rules)
            detail += tr(" Nothing stands out: no finding reaches its threshold.");
        headline_->setText(shownText(exposure.headline), detail);
        const RunsChanges* runner = runnerOf(*this);
        cards_->setInsights(report_->insights, runner != nullptr, runner != nullptr ? runner->whyNoRun() : QString(),
                            runner != nullptr);
        showReport(true);
        std::vector<StackBar> bars;
        double highest = 0;
        for (const LayerExposure& layer : exposure.layers) {
            if (!filter.hasLayer(layer.layer)) continue;
            StackBar bar;
            bar.centre = layer.layer;
            for (const std::int64_t ns : layer.time.becauseNs) bar.parts.push_back(double(ns));
            bar.parts.push_back(double(layer.time.hiddenNs()));
            highest = std::max(highest, bar.total());
            bars.push_back(std::move(bar));
        }
        bars_->setBars(std::move(bars));
        const int layers = exposure.byLayer ? int(exposure.layers.size()) : exposure.run.layers;
        canvas().setFullX({-0.6, std::max(0.6, double(layers) - 0.4)});
        canvas().setFullY(0, {0, highest > 0 ? highest * 1.08 : 1});
        setUnitAxis(panel_->axis(QCPAxis::atLeft),
                    exposure.measured ? tr("Link time, measured") : tr("Link time, modelled"), Unit::Nanoseconds);
        // Axes without a bar would say that there is something to see.
        canvas().setVisible(exposure.known && exposure.counted().time.transferNs > 0);
        showEmpty({}, {});
        themed(Theme::current());
        cursorMoved();
        replot();
    }

    /// To the evidence of a finding: the shared cursor, the second run where there is one, and the view that shows it.
    void goTo(int index) {
        if (!run() || !report_ || index < 0 || index >= int(report_->insights.size())) return;
        const Evidence evidence = report_->insights[index].evidence;
        Cursor cursor = workspace().cursor();
        if (evidence.firstStep >= 0) {
            const bool inside = cursor.step >= evidence.firstStep && cursor.step <= evidence.lastStep;
            if (!inside) cursor.step = evidence.firstStep;
            const bool one = evidence.firstStep == evidence.lastStep;
            cursor.firstStep = one ? -1 : evidence.firstStep;
            cursor.lastStep = one ? -1 : evidence.lastStep;
        }
        if (evidence.layer >= 0) cursor.layer = evidence.layer;
        if (evidence.kvHead >= 0) cursor.kvHead = evidence.kvHead;
        if (evidence.sequence >= 0) cursor.sequence = evidence.sequence;
        workspace().setCursor(cursor);
        if (evidence.compareRun >= 0) workspace().setCompared(RunKey{run()->key.path, evidence.compareRun}, true);
        requestView(*this, QString::fromStdString(evidence.view), QString::fromStdString(evidence.metric));
    }

    std::optional<InsightReport> report_; // its insights are those that pass the filter
    std::optional<Insight> roof_;         // why the step is not at its roof
    int hidden_ = 0;                      // those that do not
    unsigned question_ = 0;               // answers to an older one are dropped
    bool stopped_ = false;                // by the person: not all rules were asked
    LoadingStrip* strip_ = nullptr;
    GrowthTimer timer_{GrowthTimer::kJudgeMs, [this] { ask(); }};
    Headline* headline_ = nullptr;
    InsightCards* cards_ = nullptr;
    LegendStrip* legend_ = nullptr;
    QCPAxisRect* panel_ = nullptr;
    BarStackPlottable* bars_ = nullptr;
};

} // namespace

View* makeInsightsView(Workspace& workspace, QWidget* parent) { return new InsightsView(workspace, parent); }

} // namespace kvscope::ui

#include "insights_view.moc"
