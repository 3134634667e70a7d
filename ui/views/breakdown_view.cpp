// Breakdown: where the time of a step goes, stacked by stage, per step, per layer or in total; compared runs side by
// side.
#include "base/indexed.h"
#include "base/numbered_array.h"
#include "profiler/read/denoising.h"
#include "profiler/read/step_kind.h"
#include "ui/frame/broken_rules.h"
#include "ui/frame/growth_timer.h"
#include "ui/frame/run_names.h"
#include "ui/frame/step_words.h"
#include "ui/frame/units.h"
#include "ui/frame/waiting.h"
#include "ui/look/theme.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"
#include "ui/plots/stack_plottable.h"
#include "ui/views/make_views.h"
#include "ui/views/run_text.h"
#include "ui/views/step_numbers_csv.h"
#include "ui/views/step_series.h"
#include "ui/views/tile_text.h"

#include <QComboBox>

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

namespace kvscope::ui {

namespace {

constexpr int kComponents = kStageRows; // the stages, embed, lm_head, sample, other
constexpr int kRest = kComponents - 1;  // other

QString componentName(int index) {
    if (index < kStageCount) return QString::fromUtf8(nameOf(Stage(index)).data());
    if (index < kStageCount + kStepStageCount) return QString::fromUtf8(nameOf(StepStage(index - kStageCount)).data());
    return QString::fromUtf8(kOtherName.data());
}

/// A name the trace has but this program does not know counts as `other`, never as nothing.
int componentIndex(const std::string& name) {
    for (int i = 0; i < kComponents - 1; ++i)
        if (componentName(i) == QString::fromStdString(name)) return i;
    return kComponents - 1;
}

struct Sums {
    std::vector<BreakdownRow> rows;                 // totals of every step
    std::vector<BreakdownRow> counted;              // without the cold steps that means and shares leave out
    std::int64_t cold = 0;                          // how many these are
    int steps = 0, decodes = 0;                     // decodes: of the numbers below `steps`, those of steps that decode
    std::int64_t prefillCalls = 0, decodeCalls = 0; // of the counted steps, of the component that most of them have
};

/// Of one phase: how many steps have the component that most of them have.
std::int64_t mostCalls(const std::vector<BreakdownRow>& rows, Phase phase) {
    std::int64_t most = 0;
    for (const BreakdownRow& row : rows)
        if (row.phase == phase) most = std::max(most, row.calls);
    return most;
}

/// Where the stages' times are not known, all of a step is its rest; of chosen layers alone nothing is known.
void leaveStagesOut(std::vector<BreakdownRow>& rows) {
    std::vector<BreakdownRow> whole;
    for (const BreakdownRow& rest : rows)
        if (rest.layer < 0 && rest.component == kOtherName) whole.push_back(rest);
    for (const BreakdownRow& row : rows)
        for (BreakdownRow& step : whole)
            if (step.phase == row.phase && (row.layer >= 0 || row.component != kOtherName))
                step.totalNs = std::int64_t(std::uint64_t(step.totalNs) + std::uint64_t(row.totalNs));
    rows = std::move(whole);
}

/// Takes the cold steps out of what is counted, unless the run has no other decode steps.
void leaveOutCold(const TraceReader& reader, int runId, const ReadFilter& filter, Sums& sums) {
    const std::vector<BreakdownRow> cold = breakdownOf(reader, runId, filter, coldStepsOf(reader, runId));
    const std::int64_t steps = mostCalls(cold, Phase::Decode);
    if (steps >= mostCalls(sums.rows, Phase::Decode)) return;
    sums.cold = steps;
    for (const BreakdownRow& out : cold)
        for (BreakdownRow& row : sums.counted)
            if (row.phase == out.phase && row.layer == out.layer && row.component == out.component) {
                row.calls -= out.calls;
                row.totalNs = std::int64_t(std::uint64_t(row.totalNs) - std::uint64_t(out.totalNs));
            }
}

std::int64_t componentNs(const BreakdownStep& step, int component) {
    if (component < kStageCount) return step.stageNs[std::size_t(component)];
    if (component < kStageCount + kStepStageCount) return step.stepStageNs[std::size_t(component - kStageCount)];
    return std::max<std::int64_t>(step.otherNs, 0);
}

enum class Mode { PerStep, PerLayer, Total };

class BreakdownView final : public PlotView {
    Q_OBJECT
public:
    BreakdownView(Workspace& workspace, QWidget* parent) : PlotView(workspace, tr("Breakdown"), parent) {
        sides_.push_back(std::make_unique<Side>(workspace));
        mode_ =
            addPicker(QStringLiteral("mode"), tr("Bars"), tr("One bar per step, per layer, or one for the whole run"));
        mode_->addItems({tr("Per step"), tr("Per layer"), tr("Total")});
        unit_ = addPicker(QStringLiteral("unit"), tr("Values"), tr("Time, or share of the step"));
        unit_->addItems({tr("Time"), tr("Share (%)")});
        phase_ = addPicker(QStringLiteral("phase"), tr("Phase"), tr("Decode steps, or the prefill; never mixed"));
        phase_->addItems({tr("Decode"), tr("Prefill")});
        for (QComboBox* picker : {mode_, phase_})
            connect(picker, &QComboBox::currentIndexChanged, this, &BreakdownView::reload);
        connect(unit_, &QComboBox::currentIndexChanged, this, [this] {
            present();
            replot();
        });
    }

    QString exportCsv() const override {
        if (mode() == Mode::PerStep) return textOf(numbers());
        const auto runs = workspace().sides();
        QString csv = QStringLiteral("run,phase,layer,component,calls,total_ns\n");
        bool any = false;
        for (std::size_t s = 0; s < std::min(runs.size(), sides_.size()); ++s) {
            for (const BreakdownRow& row : sides_[s]->sums.rows) {
                csv += QStringLiteral("%1,%2,%3,%4,%5,%6\n")
                           .arg(QString::fromStdString(csvText(nameOf(*runs[s]).toStdString())),
                                QString::fromLatin1(kvscope::nameOf(row.phase)))
                           .arg(row.layer)
                           .arg(QString::fromStdString(row.component))
                           .arg(row.calls)
                           .arg(row.totalNs);
                any = true;
            }
        }
        return any ? csv : QString();
    }

    NumberWriter numbers() const override {
        if (mode() != Mode::PerStep) return numbersOf(exportCsv());
        const StepPyramid& columns = sides_[0]->series.columns();
        if (!run() || columns.stats(kComponents, 0, columns.steps()).count == 0) return {};
        const QCPRange visible = const_cast<BreakdownView*>(this)->canvas().visibleX();
        std::vector<std::pair<RunKey, std::string>> runs; // with their names, quoted
        std::vector<char> stagesKnown;                    // of each
        for (const OpenRun* open : workspace().sides()) {
            runs.emplace_back(open->key, csvText(nameOf(*open).toStdString()));
            stagesKnown.push_back(open->row.knows.has(Known::StageTimes) ? 1 : 0);
        }
        StepRequest request;
        request.phase = phase();
        request.filter = appliedFilter();
        request.only = onlyComponent();
        return [runs, stagesKnown, request, first = std::max(0, int(std::ceil(visible.lower))),
                last = int(std::floor(visible.upper))](NumberSink& sink) {
            std::string lines = "run,step";
            for (int i = 0; i < kComponents; ++i) lines += ',' + componentName(i).toStdString() + "_ns";
            sink.add(lines += '\n');
            forEachPart(runs, first, last, sink, [&](const TraceReader& reader, std::size_t run, int from, int to) {
                lines.clear();
                const std::optional<RunRow> row = reader.run(runs[run].first.runId);
                const PromptSteps prompts = row ? row->prompts : PromptSteps();
                for (const BreakdownStep& step :
                     filteredBreakdownSteps(reader, runs[run].first.runId, request.filter, from, to)) {
                    if (prompts.readsPrompt(step.step) != (request.phase == Phase::Prefill)) continue;
                    fmt::format_to(std::back_inserter(lines), "{},{}", runs[run].second, step.step);
                    for (int i = 0; i < kComponents; ++i) {
                        const bool wanted = (request.only < 0 || request.only == i) && (stagesKnown[run] || i == kRest);
                        fmt::format_to(std::back_inserter(lines), ",{}",
                                       !wanted            ? 0
                                       : stagesKnown[run] ? componentNs(step, i)
                                                          : std::max<std::int64_t>(step.durationNs, 0));
                    }
                    lines += '\n';
                }
                sink.add(lines);
            });
        };
    }

    QString sql() const override {
        if (!run()) return {};
        return mode() == Mode::PerStep ? stageStepsSql(sqlScope()) : stageSumsSql(sqlScope());
    }

protected:
    void runChanged() override {
        canvas().clearPlottables(); // the plottables read the data of the sides
        bars_ = nullptr;
        sides_.clear();
        const std::size_t count = std::max<std::size_t>(workspace().sides().size(), 1);
        for (std::size_t place = 0; place < count; ++place) sides_.push_back(std::make_unique<Side>(workspace()));
        if (showEmptyWithoutRun(tr("This view shows where the time of a step goes: projections, selection, transfers, "
                                   "attention, feed-forward.")))
            return;
        if (!timesKnown()) {
            showEmpty(tr("The times of the steps are not known"),
                      whyUnknown(workspace(), run()->key,
                                 tr("The engine that recorded this run did not see how long its steps took.")),
                      {showView("transfers"), showView("selection")});
            return;
        }
        showReading();
        buildPanels();
        const auto runs = workspace().sides();
        if (mode() == Mode::PerStep) {
            for (std::size_t s = 0; s < runs.size(); ++s) startSteps(s, *runs[s]);
        } else {
            askSums();
        }
        cursorMoved();
    }

    void runGrew() override {
        if (!timesKnown()) return;
        if (mode() == Mode::PerStep)
            for (const auto& side : sides_) side->series.advance();
        else
            sumsTimer_.grew();
    }

    void cursorMoved() override {
        CursorMark mark;
        if (mode() == Mode::PerStep) mark = stepMark();
        if (mode() == Mode::PerLayer && run()) mark.x = workspace().cursor().layer;
        showMark(mark, canvas().panels());
    }

    void themed(const Theme& theme) override {
        if (legend_) legend_->applyTheme(theme);
        present();
    }

    void clickedAt(int, QPointF at) override {
        if (!run()) return;
        Cursor cursor = workspace().cursor();
        if (mode() == Mode::PerStep)
            cursor.step = std::max(0, int(std::lround(at.x())));
        else if (mode() == Mode::PerLayer)
            cursor.layer = std::max(0, int(std::lround(at.x())));
        else
            return;
        workspace().setCursor(cursor);
    }

    QString tooltipAt(int panel, QPointF at) override {
        return mode() == Mode::PerStep ? stepTooltip(std::size_t(panel), at) : barTooltip(at);
    }

    void visibleStepsChanged() override {
        const QCPRange visible = canvas().visibleX();
        for (const auto& side : sides_)
            if (mode() == Mode::PerStep) side->series.prefer(visible.lower, visible.upper);
        fitValues();
    }
    int filterParts() const override { return FilterLayers | FilterSteps | FilterComponent | FilterText; }

    QString note() const override {
        for (const auto& side : sides_) {
            const QString& error = side->series.feed().error();
            if (!error.isEmpty()) return tr("Reading stopped: %1.").arg(error);
        }
        QString how;
        if (mode() == Mode::PerStep && sides_[0]->steps)
            how = aggregationNote(sides_[0]->steps->stepsPerPixel(),
                                  relative() ? tr("mean shares")
                                             : tr("mean; the line is the longest step of each pixel"));
        const QString counted = countedSteps();
        QString averaged;
        if (mode() == Mode::PerLayer) averaged = tr("%1; stages outside the layers are not shown.").arg(counted);
        if (mode() == Mode::Total) averaged = counted + QLatin1Char('.');
        const auto& feed = sides_[0]->series.feed();
        const auto& tiles = sides_[0]->series.columns().tiles();
        const QString preview = tiles.hasPreview() ? previewNote(tiles.stride()) : QString();
        QString nothing; // otherwise a run's plot is empty without a reason
        const auto runs = workspace().sides();
        for (std::size_t s = 0; s < std::min(runs.size(), sides_.size()); ++s)
            if (!appliedFilter().empty() && hasNothing(*sides_[s]))
                nothing += tr("Nothing of %1 passes the filter. ").arg(nameOf(*runs[s]));
        const bool unknown = std::any_of(runs.begin(), runs.end(),
                                         [](const OpenRun* open) { return !open->row.knows.has(Known::StageTimes); });
        return sentences({nothing.trimmed(), how, averaged,
                          !unknown            ? QString()
                          : sides_.size() > 1 ? tr("The stages' times are not known in every run here: where they are "
                                                   "not, a step is drawn whole.")
                                              : tr("The stages' times are not known: a step is drawn whole."),
                          run() && run()->row.timing == Timing::Measured
                              ? tr("Wall time measured on the critical path.")
                              : tr("Wall time measured on the critical path; modelled link "
                                   "time is not in it."),
                          preview, loadingNote(feed.loading(), feed.loaded(), feed.total()), healthNote()});
    }

private:
    struct Side {
        explicit Side(Workspace& workspace) : series(workspace, &context, "breakdown steps") {}
        /// Steps that the sums of a phase cover.
        std::int64_t stepsOf(Phase phase) const {
            if (phase == Phase::Prefill)
                return std::min<std::int64_t>(sums.prefillCalls, std::max(sums.steps - sums.decodes, 1));
            return sums.steps > 0 ? std::min<std::int64_t>(sums.decodeCalls, sums.decodes - sums.cold)
                                  : sums.decodeCalls;
        }
        QObject context; // answers for a side that is gone are dropped with it
        StepSeries series;
        Sums sums;
        StepStackPlottable* steps = nullptr;
    };

    bool timesKnown() const { return run() && run()->row.knows.has(Known::StepTimes); }
    bool stagesKnown(std::size_t side) const {
        const auto runs = workspace().sides();
        return side >= runs.size() || runs[side]->row.knows.has(Known::StageTimes);
    }
    bool anyStagesKnown() const {
        for (std::size_t side = 0; side < sides_.size(); ++side)
            if (stagesKnown(side)) return true;
        return false;
    }
    /// What a part of this run's bars is called.
    QString partName(std::size_t side, int component) const {
        return component == kRest && !stagesKnown(side) ? tr("step, stages not known") : componentName(component);
    }
    QString nameOf(const OpenRun& open) const { return runName(open, workspace().runs()); }
    /// Which steps the bars are means of, those of the first run.
    QString countedSteps() const {
        const std::int64_t steps = sides_[0]->stepsOf(phase()), cold = sides_[0]->sums.cold;
        if (prefill()) return steps == 1 ? tr("Of 1 step") : tr("Mean of %1 steps").arg(formatCount(steps));
        const QString text =
            steps == 1 ? tr("Of 1 decode step") : tr("Mean of %1 decode steps").arg(formatCount(steps));
        if (coldSteps() == ColdSteps::Counted) return text + tr(", cold ones too");
        if (cold == 0) return text;
        return run() ? text + tr(", %1 left out").arg(leftOutSteps(run()->row, cold)) : text;
    }
    /// Called when everything is read.
    bool hasNothing(const Side& side) const {
        if (mode() != Mode::PerStep)
            return std::none_of(side.sums.rows.begin(), side.sums.rows.end(),
                                [this](const BreakdownRow& row) { return row.phase == phase(); });
        const StepPyramid& columns = side.series.columns();
        return !side.series.feed().loading() && columns.stats(kComponents, 0, columns.steps()).count == 0;
    }

    Mode mode() const { return Mode(std::max(mode_->currentIndex(), 0)); }
    bool relative() const { return unit_->currentIndex() == 1; }
    bool prefill() const { return phase_->currentIndex() == 1; }
    Phase phase() const { return prefill() ? Phase::Prefill : Phase::Decode; }
    int onlyComponent() const {
        const QString& name = workspace().filter().component;
        return name.isEmpty() ? -1 : componentIndex(name.toStdString());
    }

    void buildPanels() {
        PlotCanvas& plot = canvas();
        plot.clearPanels();
        bars_ = nullptr;
        legend_ = new LegendStrip(&plot);
        plot.plotLayout()->addElement(0, 0, legend_);
        if (mode() == Mode::PerStep) {
            for (std::size_t s = 0; s < sides_.size(); ++s) {
                QCPAxisRect* panel = plot.addPanel(false);
                const bool last = s + 1 == sides_.size();
                setIntegerAxis(panel->axis(QCPAxis::atBottom), last ? tr("Step") : QString());
                panel->axis(QCPAxis::atBottom)->setTickLabels(last);
                sides_[s]->steps = new StepStackPlottable(panel->axis(QCPAxis::atBottom), panel->axis(QCPAxis::atLeft),
                                                          sides_[s]->series.columns());
            }
            plot.setMinimumSpan(2);
        } else {
            QCPAxisRect* panel = plot.addPanel(false);
            bars_ = new BarStackPlottable(panel->axis(QCPAxis::atBottom), panel->axis(QCPAxis::atLeft));
            plot.setMinimumSpan(1);
        }
        plot.applyTheme(Theme::current());
        present();
    }

    void startSteps(std::size_t s, const OpenRun& open) {
        StepSeries& series = sides_[s]->series;
        StepRequest request;
        request.phase = phase();
        request.filter = appliedFilter();
        request.only = onlyComponent();
        request.stagesKnown = stagesKnown(s);
        series.start(open.key, request, [this, s, &series] {
            if (s == 0 && !series.feed().error().isEmpty() && series.columns().empty()) {
                showEmpty(tr("The trace cannot be read here"), series.feed().error());
                return;
            }
            present();
            replot();
        });
    }

    void askSums() {
        const auto runs = workspace().sides();
        for (std::size_t s = 0; s < std::min(runs.size(), sides_.size()); ++s) {
            if (mode() == Mode::PerStep) continue;
            Side& side = *sides_[s];
            workspace().query<Sums>(
                &side.context, "breakdown sums", runs[s]->key,
                [runId = runs[s]->key.runId, filter = appliedFilter(), only = onlyComponent(), known = stagesKnown(s),
                 leaveOut = coldSteps() == ColdSteps::LeftOut](TraceReader& reader) {
                    Sums sums;
                    sums.rows = sums.counted = filteredBreakdown(reader, runId, filter);
                    if (const std::optional<RunRow> row = reader.run(runId)) {
                        sums.steps = row->steps;
                        sums.decodes = row->prompts.decodesBelow(row->steps);
                    }
                    if (leaveOut) leaveOutCold(reader, runId, filter, sums);
                    if (!known)
                        for (auto* rows : {&sums.rows, &sums.counted}) leaveStagesOut(*rows);
                    // Counted before components are left out, so that a component which some steps lack is still shown
                    // per step of the phase.
                    sums.prefillCalls = mostCalls(sums.counted, Phase::Prefill);
                    sums.decodeCalls = mostCalls(sums.counted, Phase::Decode);
                    if (only >= 0)
                        for (auto* rows : {&sums.rows, &sums.counted})
                            std::erase_if(*rows, [only](const BreakdownRow& row) {
                                return componentIndex(row.component) != only;
                            });
                    return sums;
                },
                [this, s, &side](Sums sums) {
                    if (s == 0) sumsTimer_.answered();
                    if (mode() == Mode::PerStep) return;
                    side.sums = std::move(sums);
                    present();
                    replot();
                });
        }
    }

    std::vector<QColor> colours() const {
        const auto& all = Theme::current().component;
        return {all.begin(), all.end()};
    }

    /// Puts what is loaded into the plot: ranges, bars, legend, labels.
    void present() {
        if (canvas().panels().empty() || !timesKnown()) return;
        NumberedArray<bool, kComponents> used{};
        if (mode() == Mode::PerStep) {
            const PromptSteps& prompts = run()->row.prompts;
            int first = prefill() ? 0 : prompts.firstDecode(), last = first;
            bool any = false;
            for (const auto& side : sides_) {
                if (!side->steps) continue;
                side->steps->setColours(colours(), Theme::current().mutedText);
                side->steps->setRelative(relative());
                const StepPyramid& columns = side->series.columns();
                last = std::max(last, prefill() && !prompts.inPieces() ? 0 : columns.steps() - 1);
                for (int i = 0; i < kComponents; ++i) {
                    const CellStats stats = columns.stats(i, 0, columns.steps());
                    if (stats.count) any = true;
                    if (stats.count && stats.max > 0) used[i] = true;
                }
            }
            canvas().setFullX({first - 0.5, last + 0.5});
            if (!any && sides_[0]->series.feed().active() && !sides_[0]->series.feed().loading())
                explainNothing(sides_[0]->series.feed().loaded() > 0);
            else if (any)
                showEmpty({}, {});
        } else {
            presentBars(used);
        }
        fillLegend(used);
        fitValues();
    }

    void presentBars(NumberedArray<bool, kComponents>& used) {
        const auto runs = workspace().sides();
        const auto count = int(sides_.size());
        const bool several = count > 1, perLayer = mode() == Mode::PerLayer;
        int layers = 1;
        for (const OpenRun* open : runs)
            if (perLayer) layers = std::max(layers, open->row.layers);
        const double share = several ? 0.84 / count : 0.8; // of a layer's place
        std::vector<StackBar> bars;
        for (int place = 0; place < (perLayer ? layers : count); ++place) {
            for (int s = 0; s < count; ++s) {
                if (!perLayer && place != s) continue;
                StackBar bar;
                bar.centre = perLayer ? place + (s - (count - 1) / 2.) * share : place;
                bar.width = perLayer ? (several ? share * 0.9 : share) : 0.3;
                bar.parts.assign(kComponents, 0);
                const double steps = double(std::max<std::int64_t>(sides_[s]->stepsOf(phase()), 1));
                for (const BreakdownRow& row : sides_[s]->sums.counted)
                    if (row.phase == phase() && (!perLayer || row.layer == place))
                        bar.parts[componentIndex(row.component)] +=
                            double(std::max<std::int64_t>(row.totalNs, 0)) / steps;
                for (int i = 0; i < kComponents; ++i)
                    if (bar.parts[i] > 0) used[i] = true;
                if (several) bar.foot = runColour(std::size_t(s));
                if (!perLayer) {
                    const double total = bar.total();
                    for (int i = 0; i < kComponents; ++i)
                        bar.labels.push_back(
                            tr("%1  %2  %3")
                                .arg(partName(std::size_t(s), i), formatValue(Unit::Nanoseconds, bar.parts[i]),
                                     formatValue(Unit::Percent, total > 0 ? 100 * bar.parts[i] / total : 0)));
                }
                bars.push_back(std::move(bar));
            }
        }
        bars_->setBars(std::move(bars));
        QStringList places;
        for (int layer = 0; perLayer && layer < layers; ++layer) places << QString::number(layer);
        for (std::size_t s = 0; s < runs.size() && !perLayer; ++s)
            places << (several ? letteredName(s, workspace()) : nameOf(*runs[s]));
        setNamedAxis(canvas().panels()[0]->axis(QCPAxis::atBottom), perLayer ? tr("Layer") : QString(), places);
        bars_->setColours(colours(), Theme::current().text);
        bars_->setRelative(relative());
        const double right = perLayer ? layers - 0.5 : count - 0.25; // room for the labels beside the last bar
        canvas().setFullX({perLayer ? -0.5 : several ? -0.4 : -0.75, right});
        if (std::none_of(used.begin(), used.end(), [](bool u) { return u; }) && !sides_[0]->sums.rows.empty())
            explainNothing(true);
        else
            showEmpty({}, {});
    }

    /// Says that no component of the chosen phase has any time.
    void explainNothing(bool somethingRead) {
        if (mode() == Mode::PerLayer && somethingRead && !anyStagesKnown()) {
            showEmpty(tr("The times of the layers are not known"),
                      whyUnknown(workspace(), run()->key,
                                 tr("The engine that recorded this run saw how long its steps took, and not their "
                                    "layers and stages.")),
                      {{tr("Show the steps"), [this] { mode_->setCurrentIndex(int(Mode::PerStep)); }}});
            return;
        }
        if (somethingRead && !appliedFilter().empty()) {
            showEmptyByFilter(tr("No time passes the filter"));
            return;
        }
        const EmptyAction other{prefill() ? tr("Show the decode steps") : tr("Show the prefill"),
                                [this] { phase_->setCurrentIndex(prefill() ? 0 : 1); }};
        if (prefill() && run() && denoisesCanvas(run()->row)) {
            showEmpty(tr("This run has no prefill"),
                      tr("Every forward over the canvas reads the prompt, so its time is in the decode steps."),
                      {other});
            return;
        }
        if (prefill()) {
            showEmpty(tr("No prefill is recorded"),
                      run() && isGrowing(*run())
                          ? tr("The run's prompt is still being read.")
                          : tr("Its step is not in the trace: the run ended before, or dropped it."),
                      {other, stopRun()});
            return;
        }
        const auto [title, why] =
            waitingText(run(), tr("Waiting for the first decode step"),
                        tr("The prompt is being read; decode steps appear here as they are recorded."));
        showEmpty(title, why, {other, stopRun()});
    }

    void fitValues() {
        const auto& panels = canvas().panels();
        double high = 0;
        if (mode() == Mode::PerStep) {
            for (const auto& side : sides_)
                if (side->steps) high = std::max(high, side->steps->largest(canvas().visibleX()));
        } else if (bars_) {
            for (const StackBar& bar : bars_->bars()) high = std::max(high, bar.total());
        }
        for (int i = 0; i < panels.size(); ++i) {
            canvas().setFullY(i, relative() ? QCPRange(0, 100) : QCPRange(0, high > 0 ? high * 1.05 : 1));
            QString title = mode() == Mode::PerStep ? (relative() ? tr("Share of the step") : tr("Time of the step"))
                            : mode() == Mode::PerLayer
                                ? (relative() ? tr("Share of the layer") : tr("Time in the layer per step"))
                                : (relative() ? tr("Share of the step") : tr("Time per step"));
            if (mode() == Mode::PerStep && panels.size() > 1)
                title = QStringLiteral("%1: %2").arg(runLetter(std::size_t(i)), title.toLower());
            setUnitAxis(panels[i]->axis(QCPAxis::atLeft), title, relative() ? Unit::Percent : Unit::Nanoseconds);
        }
    }

    void fillLegend(const NumberedArray<bool, kComponents>& used) {
        if (!legend_) return;
        const Theme& theme = Theme::current();
        QVector<Swatch> swatches;
        if (sides_.size() > 1)
            for (std::size_t place = 0; place < sides_.size(); ++place)
                swatches << Swatch{letteredName(place, workspace()), runColour(place), Swatch::Mark::Line, {}};
        for (int i = 0; i < kComponents; ++i)
            if (used[i])
                swatches << Swatch{i == kRest ? restName() : componentName(i),
                                   theme.component[std::size_t(i)],
                                   Swatch::Mark::Fill,
                                   {}};
        legend_->setSwatches(swatches);
    }

    /// What the part that is no stage is in all bars.
    QString restName() const {
        if (!anyStagesKnown()) return partName(0, kRest);
        QStringList unknown;
        for (std::size_t side = 0; side < sides_.size(); ++side)
            if (!stagesKnown(side)) unknown << QString(runLetter(side));
        return unknown.isEmpty()
                   ? componentName(kRest)
                   : tr("other (%1: whole step, stages not known)").arg(unknown.join(QStringLiteral(", ")));
    }

    QString stepTooltip(std::size_t s, QPointF at) const {
        const int step = int(std::lround(at.x()));
        if (s >= sides_.size() || step < 0 || step >= sides_[s]->series.columns().steps()) return {};
        const StepPyramid& columns = sides_[s]->series.columns();
        const double total = double(columns.at(step, kComponents));
        if (std::isnan(total)) return {};
        QString html = QStringLiteral("<b>%1: %2</b><table>")
                           .arg(stepName(workspace().sides()[s]->row, step), formatValue(Unit::Nanoseconds, total));
        for (int i = kComponents - 1; i >= 0; --i) html += tooltipLine(s, i, double(columns.at(step, i)), total);
        return html + QStringLiteral("</table>");
    }

    QString barTooltip(QPointF at) const {
        if (!bars_) return {};
        const auto [index, component] = bars_->at(at.x(), at.y());
        if (index < 0) return {};
        const StackBar& bar = bars_->bars()[std::size_t(index)];
        const std::size_t side = std::size_t(index) % sides_.size(); // the bars of a layer stand in the runs' order
        QString html = QStringLiteral("<b>%1%2</b><table>")
                           .arg(mode() == Mode::PerLayer ? tr("Layer %1: ").arg(std::lround(bar.centre)) : QString(),
                                tr("%1 per step").arg(formatValue(Unit::Nanoseconds, bar.total())));
        for (int i = kComponents - 1; i >= 0; --i) {
            QString line = tooltipLine(side, i, bar.parts[i], bar.total());
            if (i == component) line.replace(QLatin1String("<td>"), QLatin1String("<td style='font-weight:bold'>"));
            html += line;
        }
        return html + QStringLiteral("</table>");
    }

    QString tooltipLine(std::size_t side, int component, double value, double total) const {
        if (!(value > 0)) return {};
        return QStringLiteral("<tr><td><font color='%1'>■</font> %2&nbsp;&nbsp;</td><td align='right'>%3</td>"
                              "<td align='right'>&nbsp;&nbsp;%4</td></tr>")
            .arg(Theme::current().component[std::size_t(component)].name(), partName(side, component),
                 formatValue(Unit::Nanoseconds, value),
                 formatValue(Unit::Percent, total > 0 ? 100 * value / total : 0));
    }

    Numbered<std::unique_ptr<Side>> sides_; // A, B, C, ...; A always
    QComboBox *mode_ = nullptr, *unit_ = nullptr, *phase_ = nullptr;
    LegendStrip* legend_ = nullptr; // owned by the plot; rebuilt with the panels
    BarStackPlottable* bars_ = nullptr;
    GrowthTimer sumsTimer_{GrowthTimer::kReadMs, [this] { askSums(); }};
};

} // namespace

View* makeBreakdownView(Workspace& workspace, QWidget* parent) { return new BreakdownView(workspace, parent); }

} // namespace kvscope::ui

#include "breakdown_view.moc"
