// Waterfall: why the shown run's step is not at its roof. From the predicted step downwards a bar for every loss, to
// the measured step; each bar leads to the step and the layer that took most of it.
#include "profiler/waterfall/waterfall.h"
#include "ui/frame/broken_rules.h"
#include "ui/frame/growth_timer.h"
#include "ui/frame/run_names.h"
#include "ui/frame/small_widgets.h"
#include "ui/frame/units.h"
#include "ui/frame/view_request.h"
#include "ui/frame/waiting.h"
#include "ui/look/theme.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"
#include "ui/views/headline.h"
#include "ui/views/make_views.h"
#include "ui/views/run_text.h"
#include "ui/views/waterfall/waterfall_plottable.h"

#include "base/error.h"

#include <QHBoxLayout>
#include <QPainter>
#include <QPushButton>
#include <QRegularExpression>

#include <algorithm>
#include <cmath>
#include <optional>

namespace kvscope::ui {

namespace {

constexpr int kPlotHeight = 330;       // at least, for a name in every row: a low window scrolls
constexpr double kRoomForValues = 1.3; // of the longest bar, for the values beside it

struct Answer {
    std::optional<Waterfall> waterfall;
    QString problem; // why there is none
};

/// Text of the profiler as people read it on the screen.
QString onScreen(const std::string& text) {
    static const QRegularExpression micro(QStringLiteral("(\\d) us\\b"));
    return QString::fromStdString(text).replace(micro, QStringLiteral("\\1 µs"));
}

/// With the sign of numbers, which is as wide as a plus; a hyphen is easily overlooked.
QString withMinus(QString number) {
    return number.startsWith(QLatin1Char('-')) ? number.replace(0, 1, QChar(0x2212)) : number;
}

/// As in the sentence above the bars: a time from a millisecond on is in ms there, and stands in ms here.
QString time(double ns) {
    const double size = std::abs(ns);
    const auto inUnit = [&](double one, const char16_t* name) {
        return withMinus(QStringLiteral("%1 %2").arg(QString::number(ns / one, 'g', 3), QString::fromUtf16(name)));
    };
    if (size < 999.5) return withMinus(formatValue(Unit::Nanoseconds, ns));
    if (size < 999.5e3) return inUnit(1e3, u"µs");
    return size < 999.5e6 ? inUnit(1e6, u"ms") : inUnit(1e9, u"s");
}

/// With one digit behind the point, so that those of all bars compare at a glance.
QString percent(double part, double all) {
    const double share = all > 0 ? 100 * part / all : 0;
    return withMinus(QStringLiteral("%1 %").arg(std::abs(share) < 0.05 ? 0 : share, 0, 'f', 1)); // no minus before 0.0
}

class WaterfallView final : public PlotView {
    Q_OBJECT
public:
    WaterfallView(Workspace& workspace, QWidget* parent) : PlotView(workspace, tr("Waterfall"), parent) {
        headline_ = new Headline(this);
        addAbovePlot(headline_);
        chosenRow_ = new QWidget(this);
        chosenRow_->setSizePolicy(QSizePolicy::Expanding, QSizePolicy::Maximum);
        auto* row = new QHBoxLayout(chosenRow_);
        row->setContentsMargins(0, 0, 0, 0);
        chosen_ = new QLabel;
        chosen_->setObjectName(QStringLiteral("chosenLoss"));
        chosen_->setTextFormat(Qt::PlainText);
        chosen_->setWordWrap(true);
        chosen_->setTextInteractionFlags(Qt::TextSelectableByMouse);
        row->addWidget(chosen_, 1);
        timeline_ = new QPushButton(tr("Show in Timeline"));
        timeline_->setObjectName(QStringLiteral("showLoss"));
        timeline_->setToolTip(tr("Zoom the timeline to where most of this loss lies"));
        connect(timeline_, &QPushButton::clicked, this, &WaterfallView::showInTimeline);
        row->addWidget(timeline_, 0, Qt::AlignTop);
        only_ = new QPushButton;
        only_->setObjectName(QStringLiteral("filterLoss"));
        connect(only_, &QPushButton::clicked, this, &WaterfallView::filterToChosen);
        row->addWidget(only_, 0, Qt::AlignTop);
        addAbovePlot(chosenRow_);
        panel_ = canvas().addPanel(false);
        panel_->axis(QCPAxis::atLeft)->setRangeReversed(true); // read downwards
        panel_->axis(QCPAxis::atLeft)->grid()->setVisible(false);
        bars_ = new WaterfallPlottable(panel_->axis(QCPAxis::atBottom), panel_->axis(QCPAxis::atLeft));
        canvas().QWidget::setMinimumHeight(kPlotHeight);
        canvas().setSelectsSteps(false);
        canvas().setMinimumSpan(1000);
        canvas().applyTheme(Theme::current());
        themed(Theme::current());
        showParts(false);
    }

    QString exportCsv() const override {
        if (!shown_) return {};
        QString csv = QStringLiteral("id,kind,measured_ns,floor_ns,loss_ns,step,layer,start_ns,duration_ns\n");
        const auto number = [](double value) { return QString::number(value, 'g', 12); };
        const auto add = [&](const QString& id, const QString& kind, double measured, std::optional<double> floor,
                             const LossPlace& place) {
            csv += QStringLiteral("%1,%2,%3,%4,%5,")
                       .arg(id, kind, number(measured), floor ? number(*floor) : QString(),
                            floor ? number(measured - *floor) : QString());
            csv += place.step < 0 ? QStringLiteral(",,,\n")
                                  : QStringLiteral("%1,%2,%3,%4\n")
                                        .arg(place.step)
                                        .arg(place.layer < 0 ? QString() : QString::number(place.layer))
                                        .arg(place.startNs)
                                        .arg(place.durationNs);
        };
        for (const WaterfallBar& bar : shown_->bars)
            add(QString::fromStdString(bar.id), QLatin1String(nameOf(bar.kind)), bar.measuredNs,
                shown_->predictedNs ? std::optional(bar.floorNs) : std::nullopt, bar.most);
        add(QStringLiteral("all"), QStringLiteral("sum"), shown_->measuredNs(), shown_->predictedNs, {});
        return csv;
    }

protected:
    void runChanged() override {
        shown_.reset();
        bar_ = -1;
        showParts(false);
        if (showEmptyWithoutRun(tr("This view says why a decode step is not as fast as the device allows: from the "
                                   "predicted step to the measured one, a bar for every loss. Each bar leads to "
                                   "the spans that it is made of.")))
            return;
        const RunRow& row = run()->row;
        if (row.serves()) {
            showEmpty(tr("A server's steps have no waterfall"),
                      tr("The waterfall sets a step against the best that the device allows for one batch. Every "
                         "iteration of a server has other requests. The view Serving shows what its iterations took "
                         "and what bound them."),
                      {showView("serving"), showView("insights")});
            return;
        }
        if (!row.knows.has(Known::StepTimes) ||
            (!row.knows.has(Known::StageTimes) && !brokenText(workspace(), run()->key).isEmpty())) {
            showEmpty(tr("The times of the steps are not known"),
                      whyUnknown(workspace(), run()->key,
                                 tr("The engine that recorded this run did not see how long its steps took.")));
            return;
        }
        showReading();
        ask();
    }

    void runGrew() override {
        if (run()) timer_.grew(!isGrowing(*run()));
    }

    void resizeEvent(QResizeEvent* event) override {
        PlotView::resizeEvent(event);
        if (headline_ != nullptr) headline_->fit(*this);
    }

    void cursorMoved() override {} // the cursor is in another plane: steps and layers

    void moveCursor(int steps, int layers) override {
        if (shown_) choose(std::clamp(bar_ + (layers != 0 ? layers : steps), 0, int(shown_->bars.size()) - 1), true);
    }
    void jumpCursor(bool toEnd) override {
        if (shown_) choose(toEnd ? int(shown_->bars.size()) - 1 : 0, true);
    }

    void themed(const Theme& theme) override {
        bars_->setColours(theme.text, theme.mutedText);
        headline_->applyFont();
        if (shown_) fill();
    }

    void clickedAt(int, QPointF at) override {
        if (const int bar = barAt(at.y()); bar >= 0) choose(bar, true);
    }

    QString tooltipAt(int, QPointF at) override {
        if (!shown_) return {};
        const int bar = barAt(at.y());
        if (bar >= 0) return describe(shown_->bars[bar]).toHtmlEscaped();
        const auto row = std::lround(at.y());
        if (row == 0 && shown_->predictedNs)
            return tr("At best %1: what the bytes and operations of the step take on %2")
                .arg(time(*shown_->predictedNs), QString::fromStdString(shown_->machine))
                .toHtmlEscaped();
        if (row + 1 == long(bars_->rows().size()))
            return tr("Measured: %1 per step, and %2 between steps")
                .arg(time(shown_->stepNs), time(shown_->idleNs))
                .toHtmlEscaped();
        return {};
    }

    QString note() const override {
        if (!shown_) return healthNote();
        const MeasuredRun& run = shown_->run;
        return sentences({tr("Means over %1 decode steps%2.")
                              .arg(formatCount(run.steps),
                                   run.leftOut.empty()
                                       ? QString()
                                       : tr(", %1 cold left out").arg(formatCount(std::int64_t(run.leftOut.size())))),
                          shown_->predictedNs
                              ? tr("The roof is predicted from bytes and operations; striped is what the run saves "
                                   "against it, or what nothing explains.")
                              : QString(),
                          workspace().runs().empty() || !isGrowingRun() ? QString() : tr("The run is still growing."),
                          healthNote()});
    }

    int drawAbove(QPainter* painter, QRect area) const override {
        if (!shown_) return 0;
        Paragraphs paragraphs(painter, area);
        headline_->addTo(paragraphs);
        return paragraphs.height();
    }

private:
    bool isGrowingRun() const { return run() && isGrowing(*run()); }

    void showParts(bool visible) {
        headline_->setVisible(visible);
        chosenRow_->setVisible(visible && bar_ >= 0);
    }

    static QColor colourOf(const WaterfallBar& bar, const Theme& theme) {
        switch (bar.kind) {
        case LossKind::Component:
            return theme.component[std::size_t(bar.stage.number() - 1)];
        case LossKind::Transfer:
            return theme.miss;
        case LossKind::Initialisation:
        case LossKind::Recorder:
            return theme.warning;
        case LossKind::Unexplained:
            return theme.danger;
        default:
            return theme.mutedText;
        }
    }

    /// The bar in a row of the plot; -1: none.
    int barAt(double y) const {
        const auto row = std::lround(y) - (shown_ && shown_->predictedNs ? 1 : 0);
        return shown_ && row >= 0 && row < long(shown_->bars.size()) ? int(row) : -1;
    }

    void ask() {
        if (!run()) return;
        workspace().query<Answer>(
            this, "waterfall", run()->key,
            [row = run()->row](TraceReader& reader) -> Answer {
                GpuTable table;
                try {
                    table = GpuTable::load();
                } catch (const Error&) { // a table of the person's own that cannot be read: the view Roofline says so
                }
                try {
                    return {waterfallOf(reader, row, table), {}};
                } catch (const Error& error) {
                    if (error.kind == ErrorKind::Cancelled) throw;
                    return {std::nullopt, QString::fromStdString(oneLine(error))};
                }
            },
            [this](Answer answer) {
                timer_.answered();
                take(std::move(answer));
            });
    }

    void take(Answer answer) {
        const bool before = shown_.has_value();
        if (!answer.waterfall) {
            shown_.reset();
            showParts(false);
            if (run() && isGrowing(*run())) {
                const auto [title, why] =
                    waitingText(run(), tr("Waiting for the first decode step"),
                                tr("The waterfall is of decode steps; it appears with the second one."));
                showEmpty(title, why, {stopRun()});
            } else {
                QString why = answer.problem;
                if (!why.isEmpty()) why[0] = why[0].toUpper();
                showEmpty(tr("This run has no waterfall"), why, {showView("timeline"), showView("insights")});
            }
            return;
        }
        std::string chosen;
        if (before && bar_ >= 0 && bar_ < shown_->bars.count()) chosen = shown_->bars[bar_].id;
        shown_ = std::move(answer.waterfall);
        bar_ = 0;
        for (std::size_t i = 0; i < shown_->bars.size(); ++i)
            if (shown_->bars[i].id == chosen) bar_ = int(i);
        headline_->setText(onScreen(shown_->headline), onScreen(shown_->detail));
        showParts(true);
        fill();
        choose(bar_, false);
        showEmpty({}, {});
        replot();
    }

    void fill() {
        const Theme& theme = Theme::current();
        const double all = shown_->measuredNs(), predicted = shown_->predictedNs.value_or(0);
        std::vector<WaterfallPlottable::Row> rows;
        QStringList names;
        if (shown_->predictedNs) {
            WaterfallPlottable::Row row;
            for (const WaterfallBar& bar : shown_->bars)
                if (bar.floorNs > 0) row.parts.emplace_back(bar.floorNs, colourOf(bar, theme));
            row.value = tr("%1, at best").arg(time(predicted));
            row.strong = true;
            rows.push_back(std::move(row));
            names << tr("predicted step");
        }
        double at = predicted, furthest = std::max(all, predicted);
        for (const WaterfallBar& bar : shown_->bars) {
            WaterfallPlottable::Row row;
            row.from = at;
            row.parts.emplace_back(bar.lossNs(), colourOf(bar, theme));
            row.hatched = bar.kind == LossKind::Unexplained;
            row.value = QStringLiteral("%1  ·  %2").arg(time(bar.lossNs()), percent(bar.lossNs(), all));
            at += bar.lossNs();
            furthest = std::max(furthest, at);
            rows.push_back(std::move(row));
            names << QString::fromStdString(bar.title);
        }
        WaterfallPlottable::Row last;
        for (const WaterfallBar& bar : shown_->bars)
            if (bar.measuredNs > 0) last.parts.emplace_back(bar.measuredNs, colourOf(bar, theme));
        last.value = tr("%1, measured").arg(time(all));
        last.strong = true;
        rows.push_back(std::move(last));
        names << (shown_->idleNs >= 0.01 * all ? tr("step and the time before it") : tr("measured step"));
        bars_->setRows(std::move(rows));
        const auto ticker = QSharedPointer<QCPAxisTickerText>::create(); // every row has its name
        for (int i = 0; i < int(names.size()); ++i) ticker->addTick(i, names[i]);
        panel_->axis(QCPAxis::atLeft)->setTicker(ticker);
        canvas().setFullX({0, std::max(1.0, furthest * kRoomForValues)});
        canvas().setFullY(0, {-0.6, double(names.size()) - 0.4});
        setUnitAxis(panel_->axis(QCPAxis::atBottom), tr("Time per decode step"), Unit::Nanoseconds);
    }

    /// What a bar says, in sentences.
    QString describe(const WaterfallBar& bar) const {
        const QString title = QString::fromStdString(bar.title);
        QString text = shown_->predictedNs && bar.floorNs > 0
                           ? tr("%1: %2 per step, at best %3: %4 lost.")
                                 .arg(title, time(bar.measuredNs), time(bar.floorNs), time(bar.lossNs()))
                           : tr("%1: %2 per step.").arg(title, time(bar.measuredNs));
        if (bar.lossNs() > 0 && shown_->predictedNs && bar.kind != LossKind::Unexplained) {
            const double now = shown_->measuredNs() > 0 ? shown_->run.batch / shown_->measuredNs() * 1e9 : 0;
            const double then = shown_->tokensPerSecondWithout(bar);
            if (now > 0)
                text += tr(" Without the loss: %1 tokens/s, +%2.")
                            .arg(formatCount(std::llround(then)), formatValue(Unit::Percent, 100 * (then / now - 1)));
        }
        if (bar.most.step >= 0)
            text += bar.most.layer >= 0 ? tr(" It took longest in step %1, layer %2: %3.")
                                              .arg(formatCount(bar.most.step), formatCount(bar.most.layer),
                                                   time(double(bar.most.durationNs)))
                                        : tr(" It took longest in step %1: %2.")
                                              .arg(formatCount(bar.most.step), time(double(bar.most.durationNs)));
        return text;
    }

    /// moves: the shared cursor goes to where most of the loss lies.
    void choose(int index, bool moves) {
        if (!shown_ || index < 0 || index >= int(shown_->bars.size())) return;
        bar_ = index;
        const WaterfallBar& bar = shown_->bars[index];
        // A number and its % stay on one line.
        chosen_->setText(describe(bar).replace(QStringLiteral(" %"), QStringLiteral("\u00a0%")));
        timeline_->setVisible(bar.most.step >= 0);
        const QString stage = QString::fromUtf8(bar.stage.name().data(), qsizetype(bar.stage.name().size()));
        only_->setVisible(!stage.isEmpty());
        only_->setText(workspace().filter().component == stage ? tr("Show All Components")
                                                               : tr("Filter to %1").arg(stage));
        only_->setToolTip(tr("Timeline, Breakdown and Locality then count this component only"));
        chosenRow_->setVisible(true);
        CursorMark mark;
        mark.x = 0;
        mark.y = index + (shown_->predictedNs ? 1 : 0);
        showMark(mark, {panel_});
        if (!moves || bar.most.step < 0) return;
        Cursor cursor = workspace().cursor();
        cursor.step = bar.most.step;
        if (bar.most.layer >= 0) cursor.layer = bar.most.layer;
        workspace().setCursor(cursor);
    }

    void showInTimeline() {
        if (!shown_ || bar_ < 0) return;
        choose(bar_, true);
        const LossPlace& place = shown_->bars[bar_].most;
        requestTime(*this, QStringLiteral("timeline"), double(place.startNs),
                    double(place.startNs) + double(place.durationNs));
    }

    void filterToChosen() {
        if (!shown_ || bar_ < 0) return;
        const std::string_view name = shown_->bars[bar_].stage.name();
        const QString stage = QString::fromUtf8(name.data(), qsizetype(name.size()));
        Filter filter = workspace().filter();
        filter.component = filter.component == stage ? QString() : stage;
        workspace().setFilter(filter);
        choose(bar_, false);
    }

    std::optional<Waterfall> shown_;
    int bar_ = -1; // the chosen one
    GrowthTimer timer_{GrowthTimer::kJudgeMs, [this] { ask(); }};
    Headline* headline_ = nullptr;
    QWidget* chosenRow_ = nullptr;
    QLabel* chosen_ = nullptr;
    QPushButton *timeline_ = nullptr, *only_ = nullptr;
    QCPAxisRect* panel_ = nullptr;
    WaterfallPlottable* bars_ = nullptr;
};

} // namespace

View* makeWaterfallView(Workspace& workspace, QWidget* parent) { return new WaterfallView(workspace, parent); }

} // namespace kvscope::ui

#include "waterfall_view.moc"
