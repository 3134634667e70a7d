// Where the time of a step goes in every compared run, side by side, with differences against A and their intervals
// over steps and repeats. Runs with the same settings are repeats of each other.
#include "profiler/compare/common_steps.h"
#include "profiler/compare/compare.h"
#include "ui/frame/growth_timer.h"
#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"
#include "ui/views/compare/compare_pages.h"
#include "ui/views/compare/compare_ways.h"
#include "ui/views/run_text.h"
#include "ui/views/sample_feed.h"
#include "ui/widgets/comparison_table.h"
#include "ui/widgets/loading_strip.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

namespace kvscope::ui {

namespace {

using Sample = SampleFeed::Sample;

/// The repeats of one setting.
struct RunGroup {
    std::size_t letter = 0; // index of its first run
    std::vector<RunSample> runs;
    QString problem;                      // why it cannot be compared with A
    bool onlyForNow = false;              // it is so only while a run is still being recorded
    std::optional<Comparison> comparison; // with A's group
};

/// A's group first. Repeats: the same settings, on the same prompt.
std::vector<RunGroup> grouped(const std::vector<Sample>& samples) {
    std::vector<RunGroup> groups;
    for (std::size_t i = 0; i < samples.size(); ++i) {
        const RunSample& sample = *samples[i];
        const auto same = std::find_if(groups.begin(), groups.end(), [&](const RunGroup& group) {
            const RunSample& first = group.runs.front();
            const auto differences = settingDifferences(first.run, sample.run);
            return std::all_of(differences.begin(), differences.end(),
                               [](const auto& d) { return d.key == "device"; }) &&
                   first.run.backend == sample.run.backend && first.promptStart == sample.promptStart &&
                   first.run.sequences == sample.run.sequences;
        });
        if (same != groups.end())
            same->runs.push_back(sample);
        else
            groups.push_back({i, {sample}, {}, false, {}});
    }
    return groups;
}

std::vector<RunGroup> judged(std::vector<RunGroup> groups) {
    for (std::size_t i = 1; i < groups.size(); ++i) {
        RunGroup& group = groups[i];
        QStringList hard;
        group.onlyForNow = true;
        for (const Obstacle& obstacle : findObstacles(groups[0].runs, group.runs)) {
            if (obstacle.mayBeIgnored) continue;
            hard << QString::fromStdString(obstacle.what);
            group.onlyForNow = group.onlyForNow && obstacle.untilItEnds;
        }
        group.problem = hard.join(QStringLiteral("; "));
        if (hard.isEmpty()) group.comparison = compareRuns(groups[0].runs, group.runs);
    }
    return groups;
}

class BreakdownPage final : public PlotView {
    Q_OBJECT
public:
    BreakdownPage(Workspace& workspace, QWidget* parent)
        : PlotView(workspace, tr("Breakdown compared"), parent), samples_(workspace, this, "compare breakdown") {
        strip_ = new LoadingStrip(this);
        addAbovePlot(strip_);
        strip_->steer(samples_, [this] { strip_->show(samples_); });
        table_ = new ComparisonTable(this);
        table_->setObjectName(QStringLiteral("breakdownDeltas"));
        table_->setAccessibleName(tr("Time of each component in every run, and the differences against A"));
        table_->hide();
        addAbovePlot(table_);
        legend_ = new LegendStrip(&canvas());
        canvas().plotLayout()->addElement(0, 0, legend_);
        times_ = canvas().addPanel(false);
        deltas_ = canvas().addPanel(false);
        times_->axis(QCPAxis::atBottom)->setTickLabels(false);
        canvas().setMinimumSpan(1);
        canvas().setSelectsSteps(false);
        canvas().applyTheme(Theme::current());
        themed(Theme::current());
    }

    QString exportCsv() const override {
        if (onlyGlanced()) return {};
        QString csv = QStringLiteral("component,run,repeats,a_ns,run_ns,difference_ns,low_ns,high_ns\n");
        bool any = false;
        for (const RunGroup& group : groups_) {
            if (!group.comparison) continue;
            for (const ComponentDelta& d : rowsOf(*group.comparison)) {
                csv += QStringLiteral("%1,\"%2\",%3,%4,%5,%6,%7,%8\n")
                           .arg(QString::fromStdString(d.component),
                                nameOf(group).replace(QLatin1Char('"'), QLatin1String("\"\"")))
                           .arg(group.runs.size())
                           .arg(d.aNs, 0, 'f', 0)
                           .arg(d.bNs, 0, 'f', 0)
                           .arg(d.deltaNs.value, 0, 'f', 0)
                           .arg(d.deltaNs.low, 0, 'f', 0)
                           .arg(d.deltaNs.high, 0, 'f', 0);
                any = true;
            }
        }
        return any ? csv : QString();
    }

    NumberWriter numbers() const override { return onlyGlanced() ? refusedFirstLook() : numbersOf(exportCsv()); }

protected:
    void runChanged() override {
        waits_ = false;
        samples_.forget();
        groups_.clear();
        components_.clear();
        table_->hide();
        canvas().clearPlottables();
        strip_->show(samples_);
        if (showEmptyWithoutRun(tr("This page puts the time of each stage in two or more runs side by side."))) return;
        if (othersOf(workspace()).empty()) {
            showEmpty(
                tr("Choose a second run to compare with"),
                tr("Open another trace or record another run, then choose it under “Compare with…”. Choose several "
                   "recordings of the same settings, and they count as repeats: the intervals then hold what differs "
                   "from one recording to the next."),
                waysToCompare(*this, workspace()));
            return;
        }
        const QString missing = waitsFor(workspace());
        waits_ = !missing.isEmpty();
        if (waits_) return showWaiting(missing);
        showEmpty({}, {});
        ask();
    }

    void runGrew() override {
        if (!run() || othersOf(workspace()).empty()) return;
        if (waits_) return runChanged();
        again_.grew(!someGrow(workspace()));
    }
    void cursorMoved() override {}
    void clickedAt(int, QPointF) override {}
    void moveCursor(int, int) override {}
    void jumpCursor(bool) override {}

    void themed(const Theme& theme) override {
        legend_->applyTheme(theme);
        present();
    }

    QString tooltipAt(int, QPointF at) override {
        const int index = int(std::lround(at.x()));
        if (index < 0 || index >= components_.size()) return {};
        QString html = QStringLiteral("<b>%1</b><table>").arg(components_[index].toHtmlEscaped());
        for (const RunGroup& group : groups_) {
            if (!group.comparison) continue;
            for (const ComponentDelta& d : rowsOf(*group.comparison))
                if (QString::fromStdString(d.component) == components_[index])
                    html += tr("<tr><td>%1 − A&nbsp;&nbsp;</td><td><b>%2</b></td><td>&nbsp;&nbsp;%3</td></tr>")
                                .arg(runLetter(group.letter), delta(d), interval(d));
        }
        return html + QStringLiteral("</table>");
    }

    QString note() const override {
        QStringList notes;
        for (std::size_t i = 1; i < groups_.size(); ++i)
            if (!groups_[i].problem.isEmpty())
                notes << (groups_[i].onlyForNow ? tr("%1 cannot be compared yet: %2.")
                                                : tr("%1 is not comparable: %2."))
                             .arg(runLetter(groups_[i].letter), groups_[i].problem);
        const auto first =
            std::find_if(groups_.begin(), groups_.end(), [](const RunGroup& g) { return g.comparison.has_value(); });
        QString how, glance;
        if (first != groups_.end()) {
            if (onlyGlanced()) glance = glanceNote(first->comparison->steps);
            const bool repeats =
                std::any_of(groups_.begin(), groups_.end(), [](const RunGroup& g) { return g.runs.size() > 1; });
            how = tr("Mean per decode step over the steps that all have (%1), without the first and those that open a "
                     "block; "
                     "95 % intervals by block bootstrap%2.")
                      .arg(formatCount(first->comparison->steps))
                      .arg(repeats ? tr(" and at least as wide as the repeats differ")
                                   : tr("; without repeats they hold only what differs between steps"));
        }
        return sentences({soFarNote(workspace()), glance, how, notes.join(QLatin1Char(' ')), healthNote()});
    }

    QString pictureTitle() const override {
        return run() ? tr("Time per decode step, against %1 (A)").arg(runName(*run(), workspace().runs()))
                     : PlotView::pictureTitle();
    }

private:
    /// Components, then the step; the exposed transfer, where it is known, is no part of the sum and stands last.
    static std::vector<ComponentDelta> rowsOf(const Comparison& comparison) {
        std::vector<ComponentDelta> rows = comparison.components;
        rows.push_back(comparison.step);
        if (!std::isnan(comparison.exposed.aNs)) rows.push_back(comparison.exposed);
        return rows;
    }
    static QString time(double ns) { return formatValue(Unit::Nanoseconds, ns); }
    static QString signedTime(double ns) { return (ns > 0 ? QStringLiteral("+") : QString()) + time(ns); }
    static QString interval(const ComponentDelta& d) {
        return tr("%1 to %2").arg(signedTime(d.deltaNs.low), signedTime(d.deltaNs.high));
    }
    /// The difference, unless its interval holds none and is too wide to say that there is none.
    static QString delta(const ComponentDelta& d) {
        const bool decided = !d.deltaNs.contains(0);
        const bool narrow = std::max(-d.deltaNs.low, d.deltaNs.high) <= kTellable * std::abs(d.aNs);
        return decided || d.aNs == d.bNs || narrow ? signedTime(d.deltaNs.value) : tr("cannot tell");
    }
    QString nameOf(const RunGroup& group) const {
        QString name = letteredName(group.letter, workspace());
        if (group.runs.size() > 1) name += tr(" (%1 repeats)").arg(group.runs.size());
        return name;
    }

    void showWaiting(const QString& why) {
        showEmpty(tr("Waiting for more decode steps"), tr("%1. The comparison appears as they are recorded.").arg(why),
                  {stopRun()});
    }

    std::vector<RunKey> wanted() const {
        std::vector<RunKey> keys;
        for (const OpenRun* open : workspace().sides()) keys.push_back(open->key);
        return keys;
    }

    void ask() {
        if (samples_.paused()) return again_.answered();
        const std::vector<RunKey> keys = wanted();
        if (keys.size() < 2) return again_.answered();
        samples_.ask(
            keys,
            [this, keys](const std::vector<Sample>& samples, SampleFeed::Part part) {
                askJudgement(keys, samples, part);
            },
            [this](std::size_t, const QString& sentence) {
                again_.answered();
                table_->hide();
                showEmpty(tr("A trace cannot be read here"), sentence);
                strip_->show(samples_);
            },
            [this] { strip_->show(samples_); });
        strip_->show(samples_);
    }

    void askJudgement(const std::vector<RunKey>& keys, const std::vector<Sample>& samples, SampleFeed::Part part) {
        strip_->show(samples_);
        workspace().query<std::vector<RunGroup>>(
            this, "compare breakdown judgement", keys.front(),
            [samples](TraceReader&) { return judged(grouped(samples)); },
            [this, keys, part](std::vector<RunGroup> groups) {
                if (part == SampleFeed::Part::All) again_.answered();
                if (keys != wanted()) return; // others are compared by now
                groups_ = std::move(groups);
                judged_ = part;
                present();
            });
    }

    bool onlyGlanced() const { return judged_ == SampleFeed::Part::Glance && !groups_.empty(); }

    void present() {
        canvas().clearPlottables();
        std::vector<const RunGroup*> shown;
        for (const RunGroup& group : groups_)
            if (group.comparison) shown.push_back(&group);
        if (shown.empty()) {
            table_->hide();
            if (groups_.size() == 1)
                showEmpty(tr("All of these runs are repeats of A"),
                          tr("They have the same settings and the same prompt. Choose a run with other settings too."));
            else if (groups_.size() > 1 && groups_[1].onlyForNow)
                showWaiting(soFarNote(workspace()) + QLatin1Char(' ') + groups_[1].problem);
            else if (groups_.size() > 1)
                showEmpty(
                    tr("These runs are not comparable"),
                    tr("Their times cannot be set against each other: %1. The other views show both all the same.")
                        .arg(groups_[1].problem));
            return;
        }
        showEmpty({}, {});
        components_.clear();
        const Filter& filter = workspace().filter();
        for (const RunGroup* group : shown)
            for (const ComponentDelta& d : rowsOf(*group->comparison)) {
                const QString name = QString::fromStdString(d.component);
                if (!components_.contains(name) && (filter.hasComponent(name) || name == QLatin1String("step")))
                    components_ << name;
            }
        // Every component in the order of the pipeline, step and exposed transfer at the end.
        for (const char* last : {"step", "exposed transfer"})
            if (components_.removeAll(QLatin1String(last)) > 0) components_ << QLatin1String(last);
        fillTable(shown);
        fillBars(shown);
        replot();
    }

    void fillTable(const std::vector<const RunGroup*>& shown) {
        const auto repeats = [this](const QString& letter, const RunGroup& group) {
            return group.runs.size() > 1 ? tr("%1 (%2 repeats)").arg(letter).arg(group.runs.size()) : letter;
        };
        QStringList headers{tr("Mean per decode step"), repeats(QStringLiteral("A"), groups_[0])};
        QStringList full{tr("Mean over the compared decode steps"), nameOf(groups_[0])};
        for (const RunGroup* group : shown) {
            const QString letter = runLetter(group->letter);
            headers << repeats(letter, *group) << tr("%1 − A").arg(letter) << tr("95 % interval");
            full << nameOf(*group) << tr("How much longer %1 takes than A").arg(nameOf(*group))
                 << tr("Where the difference of %1 and A lies with 95 % confidence").arg(letter);
        }
        table_->begin(int(components_.size()), headers, full);
        const Theme& theme = Theme::current();
        for (int row = 0; row < int(components_.size()); ++row) {
            table_->put(row, 0, components_[row], theme.text);
            for (std::size_t g = 0; g < shown.size(); ++g)
                for (const ComponentDelta& d : rowsOf(*shown[g]->comparison)) {
                    if (QString::fromStdString(d.component) != components_[row]) continue;
                    const int column = 2 + int(g) * 3;
                    if (g == 0) table_->put(row, 1, time(d.aNs), theme.text);
                    const QColor colour = d.deltaNs.contains(0) ? theme.mutedText
                                          : d.deltaNs.value < 0 ? theme.ok
                                                                : theme.danger;
                    table_->put(row, column, time(d.bNs), theme.text);
                    table_->put(row, column + 1, delta(d), colour);
                    table_->put(row, column + 2, interval(d), theme.mutedText);
                }
        }
        table_->fitColumns();
        table_->show();
    }

    void fillBars(const std::vector<const RunGroup*>& shown) {
        const auto places = double(shown.size() + 1);
        QVector<Swatch> swatches{Swatch{nameOf(groups_[0]), runColour(0), Swatch::Mark::Fill, {}}};
        double high = 0, above = 0, below = 0;
        const auto barsIn = [&](QCPAxisRect* rect, const QColor& colour, double width) {
            auto* bars = new QCPBars(rect->axis(QCPAxis::atBottom), rect->axis(QCPAxis::atLeft));
            bars->setWidth(width);
            bars->setPen(Qt::NoPen);
            bars->setBrush(colour);
            bars->setAntialiased(false);
            return bars;
        };
        const double width = 0.8 / places, deltaWidth = 0.8 / double(shown.size());
        QVector<double> aKeys, aValues;
        for (std::size_t g = 0; g < shown.size(); ++g) {
            const QColor colour = runColour(shown[g]->letter);
            QVector<double> keys, values, deltaKeys, deltas, minus, plus;
            for (const ComponentDelta& d : rowsOf(*shown[g]->comparison)) {
                const auto place = double(components_.indexOf(QString::fromStdString(d.component)));
                if (place < 0 || d.component == "step") continue; // the whole would dwarf its parts
                if (g == 0) aKeys << place + (0.5 - places / 2) * width, aValues << d.aNs;
                keys << place + (double(g) + 1.5 - places / 2) * width;
                values << d.bNs;
                deltaKeys << place + (double(g) + 0.5 - double(shown.size()) / 2) * deltaWidth;
                deltas << d.deltaNs.value;
                minus << d.deltaNs.value - d.deltaNs.low;
                plus << d.deltaNs.high - d.deltaNs.value;
                high = std::max({high, d.aNs, d.bNs});
                above = std::max(above, d.deltaNs.high);
                below = std::min(below, d.deltaNs.low);
            }
            if (g == 0) barsIn(times_, runColour(0), width)->setData(aKeys, aValues);
            barsIn(times_, colour, width)->setData(keys, values);
            auto* bars = barsIn(deltas_, colour, deltaWidth);
            bars->setData(deltaKeys, deltas);
            auto* whiskers = new QCPErrorBars(deltas_->axis(QCPAxis::atBottom), deltas_->axis(QCPAxis::atLeft));
            whiskers->setDataPlottable(bars);
            whiskers->setSymbolGap(0);
            whiskers->setPen(QPen(Theme::current().text, 1));
            whiskers->setData(minus, plus);
            swatches << Swatch{nameOf(*shown[g]), colour, Swatch::Mark::Fill, {}};
        }
        legend_->setSwatches(swatches);
        canvas().setFullX({-0.5, double(components_.size()) - 0.5});
        canvas().setFullY(0, {0, high > 0 ? high * 1.08 : 1});
        const double space = std::max((above - below) * 0.06, 1.);
        canvas().setFullY(1, {below - space, above + space});
        QStringList ticks = components_;
        setNamedAxis(times_->axis(QCPAxis::atBottom), {}, ticks);
        setNamedAxis(deltas_->axis(QCPAxis::atBottom), {}, ticks);
        setUnitAxis(times_->axis(QCPAxis::atLeft), tr("Time per decode step"), Unit::Nanoseconds);
        setUnitAxis(deltas_->axis(QCPAxis::atLeft), tr("Difference against A"), Unit::Nanoseconds);
    }

    int filterParts() const override { return FilterComponent; }

    SampleFeed samples_;
    SampleFeed::Part judged_ = SampleFeed::Part::All;
    LoadingStrip* strip_ = nullptr;
    ComparisonTable* table_ = nullptr;
    LegendStrip* legend_ = nullptr;
    QCPAxisRect *times_ = nullptr, *deltas_ = nullptr;
    std::vector<RunGroup> groups_;
    QStringList components_;
    bool waits_ = false; // for a run's description
    GrowthTimer again_{GrowthTimer::kJudgeMs, [this] { ask(); }};
};

} // namespace

View* makeCompareBreakdown(Workspace& workspace, QWidget* parent) { return new BreakdownPage(workspace, parent); }

} // namespace kvscope::ui

#include "compare_breakdown.moc"
