// SLO: percentile curves of the times to the first token and between tokens of a serving run, with their bounds, and
// who kept these, class by class. A click on a curve explains the token that is there.
#include "ui/frame/note_label.h"
#include "ui/frame/small_widgets.h"
#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/plot_canvas.h"
#include "ui/views/make_views.h"
#include "ui/views/run_text.h"
#include "ui/views/serving/percentile_plot.h"
#include "ui/views/serving/serving_plot_view.h"
#include "ui/views/serving/serving_strip.h"
#include "ui/views/serving/side_table.h"
#include "ui/views/serving/token_explanation.h"
#include "ui/views/step_numbers_csv.h"

#include <QComboBox>
#include <QLabel>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>

namespace kvscope::ui {

namespace {

constexpr std::size_t kMostCurves = 7; // all requests, and six classes
constexpr int kLinesInLowSlo = 2;      // of each text above the plots
constexpr int kRoomForClasses = 360;   // pixels of height from which a view has room for the table
enum SloPanel { First, Between, kSloPanels };

class SloView final : public ServingPlotView {
    Q_OBJECT
public:
    SloView(Workspace& workspace, QWidget* parent)
        : ServingPlotView(workspace, tr("SLO"),
                          tr("This view shows how long first tokens and gaps between tokens of a serving run took, as "
                             "percentiles, and which requests kept their bounds."),
                          parent) {
        gaps_ = addPicker(QStringLiteral("gaps"), tr("Between tokens"),
                          tr("All gaps together, where long answers have most of them, or one for each request"));
        gaps_->addItems({tr("All gaps"), tr("P99 of each request")});
        connect(gaps_, &QComboBox::currentIndexChanged, this, [this] {
            fill();
            replot();
        });
        attainment_ = addLabel(QStringLiteral("attainment"));
        chosenText_ = addLabel(QStringLiteral("chosenToken"));
        legend_ = new LegendStrip(&canvas());
        canvas().plotLayout()->addElement(0, 0, legend_);
        plots_[First] = std::make_unique<PercentilePlot>(canvas(), First, tr("Time to the first token"));
        plots_[Between] = std::make_unique<PercentilePlot>(canvas(), Between, tr("Time between tokens"));
        canvas().setSelectsSteps(false);
        table_ =
            new SideTable({tr("Class"), tr("Requests"), tr("Good"), tr("TTFT kept"), tr("TBT kept"), tr("Queued")});
        table_->setObjectName(QStringLiteral("classes"));
        table_->setAccessibleName(tr("Classes of requests"));
        table_->setToolTip(tr("Good: finished, with the first token in time and the 99th percentile of the gaps too. "
                              "Queued: share of the time to the first token. Click a row to choose its curve."));
        addBesidePlot(table_);
        table_->hide();
        connect(table_, &SideTable::rowClicked, this, [this](int row) { chooseClass(std::size_t(std::max(row, 0))); });
        canvas().applyTheme(Theme::current());
        themed(Theme::current());
    }

    QString exportCsv() const override {
        if (data().classes.empty()) return {};
        QString csv = QStringLiteral("latency,class,request,at_ns,ns\n");
        for (std::size_t c = 1; c < data().classes.size(); ++c) {
            const ServedClass& each = data().classes[c];
            const QString kind = QString::fromStdString(csvText(each.kind));
            const auto add = [&](const char* name, const std::vector<LatencySample>& samples) {
                for (const LatencySample& sample : samples)
                    csv += QStringLiteral("%1,").arg(QLatin1String(name)) + kind +
                           QStringLiteral(",%1,%2,%3\n")
                               .arg(sample.request)
                               .arg(sample.atNs)
                               .arg(QString::number(sample.ns, 'f', 0));
            };
            add("ttft", each.ttft);
            add("tbt", each.gaps);
        }
        return csv;
    }

    /// Every latency, the longest ones first.
    QString sql() const override {
        if (!run()) return {};
        return QStringLiteral("SELECT 'ttft' AS latency, class, request, first_token_ns AS at_ns, ttft_ns AS ns\n"
                              "FROM v_request WHERE run_id = %1 AND ttft_ns IS NOT NULL\n"
                              "UNION ALL SELECT 'tbt', class, request, token_ns, gap_ns FROM\n"
                              "  (SELECT run_id, request, token_ns, token_ns - lag(token_ns) OVER\n"
                              "     (PARTITION BY request ORDER BY iteration) AS gap_ns\n"
                              "   FROM v_member WHERE run_id = %1 AND token_ns IS NOT NULL)\n"
                              "  JOIN v_request USING (run_id, request) WHERE gap_ns IS NOT NULL\n"
                              "ORDER BY latency, ns DESC;")
            .arg(run()->key.runId);
    }

protected:
    ServingWish wish() const override {
        ServingWish wanted;
        wanted.classes = true;
        return wanted;
    }
    void forget() override {
        chooseNothing();
        attainment_->hide();
        table_->hide();
    }
    void fill() override;
    void cursorMoved() override;
    void themed(const Theme& theme) override {
        legend_->applyTheme(theme);
        for (const auto& plot : plots_) plot->applyTheme(theme);
        QVector<Swatch> swatches;
        for (std::size_t c = 0; c < shownClasses(); ++c)
            swatches << Swatch{nameOfClass(c), PercentilePlot::colourOf(theme, c), Swatch::Mark::Line, {}};
        legend_->setSwatches(swatches << Swatch{tr("bounds"), theme.danger, Swatch::Mark::Dashes, {}});
    }
    void clickedAt(int panel, QPointF at) override {
        if (const auto sample = plots_[std::size_t(panel)]->nearest(at)) chooseSample(panel, *sample, true);
    }
    QString tooltipAt(int panel, QPointF at) override {
        return plots_[std::size_t(panel)]->describe(at).toHtmlEscaped();
    }
    void moveCursor(int steps, int) override { // to a longer or shorter sample
        const std::size_t count = plots_[std::size_t(panel_)]->samples().size();
        if (count == 0) return;
        const auto now = std::ptrdiff_t(sample_.value_or(steps > 0 ? 0 : count - 1));
        const auto to = std::clamp<std::ptrdiff_t>(now + (sample_ ? steps : 0), 0, std::ptrdiff_t(count) - 1);
        chooseSample(panel_, std::size_t(to), true);
    }
    void jumpCursor(bool toEnd) override {
        const std::size_t count = plots_[std::size_t(panel_)]->samples().size();
        if (count > 0) chooseSample(panel_, toEnd ? count - 1 : 0, true);
    }
    void resizeEvent(QResizeEvent* event) override {
        ServingPlotView::resizeEvent(event);
        for (NoteLabel* label : {attainment_, chosenText_})
            if (label != nullptr) label->fit(*this, kLinesInLowSlo);
        showTable();
    }
    QString note() const override;

private:
    NoteLabel* addLabel(const QString& name) {
        auto* label = new NoteLabel(this);
        label->setObjectName(name);
        label->hide();
        addAbovePlot(label);
        return label;
    }
    std::size_t shownClasses() const {
        const std::size_t count = data().classes.size();
        // The first class has all requests, so that a single class behind it has the same.
        return count == 2 ? 1 : std::min(count, kMostCurves);
    }
    QString nameOfClass(std::size_t place) const {
        if (place == 0) return tr("all requests");
        const std::string& kind = data().classes[place].kind;
        return kind.empty() ? tr("no class") : QString::fromStdString(kind);
    }
    void showTable() {
        if (!table_) return;
        table_->setVisible(!data().classes.empty() && emptyText().isEmpty() && height() >= kRoomForClasses);
        table_->fit(size());
    }
    void fillTable();
    void chooseClass(std::size_t place);
    void chooseSample(int panel, std::size_t sample, bool share);
    void chooseAgain(const std::optional<LatencySample>& sample);
    void chooseNothing();
    void explain(const IterationRow& iteration, std::int64_t request);

    QComboBox* gaps_ = nullptr;
    NoteLabel *attainment_ = nullptr, *chosenText_ = nullptr;
    LegendStrip* legend_ = nullptr;
    std::array<std::unique_ptr<PercentilePlot>, kSloPanels> plots_;
    SideTable* table_ = nullptr;
    int panel_ = Between;               // in which a sample was chosen last
    std::optional<std::size_t> sample_; // of the chosen curve there; nothing: none is chosen
    int iteration_ = -1;                // that made the chosen token
};

void SloView::fill() {
    const bool pooled = gaps_->currentIndex() <= 0;
    std::vector<PercentilePlot::Curve> first, between;
    for (std::size_t c = 0; c < shownClasses(); ++c) {
        const ServedClass& each = data().classes[c];
        first.push_back({nameOfClass(c), each.ttft});
        between.push_back({nameOfClass(c), pooled ? each.gaps : each.worst});
    }
    std::optional<LatencySample> kept; // the run grows while somebody reads why a token was slow
    if (sample_) kept = plots_[std::size_t(panel_)]->samples()[*sample_];
    plots_[First]->setCurves(std::move(first), data().commonBound(&RequestRow::ttftBoundMs));
    plots_[Between]->setCurves(std::move(between), data().commonBound(&RequestRow::tbtBoundMs));
    chooseAgain(kept);
    themed(Theme::current());
    fillTable();
    showTable();
    if (data().classes.empty()) return;
    const ServedClass& all = data().classes.front();
    const double ttft = data().commonBound(&RequestRow::ttftBoundMs), tbt = data().commonBound(&RequestRow::tbtBoundMs);
    const QString bounds = ttft > 0 && tbt > 0
                               ? tr("the first token within %1 and the 99th percentile of its gaps within %2")
                                     .arg(servingTime(ttft * 1e6), servingTime(tbt * 1e6))
                               : tr("its first token and the 99th percentile of its gaps within its own bounds");
    QString sentences = tr("Attainment %1: %2 of %3 requests are good: finished, with %4.")
                            .arg(all.requests > 0 ? formatValue(Unit::Percent, 100 * all.attainment()) : tr("unknown"),
                                 formatCount(all.good), formatCount(all.requests), bounds);
    if (all.open > 0) sentences += tr(" Not good for want of an end in the trace: %1.").arg(formatCount(all.open));
    attainment_->setText(sentences);
    attainment_->show();
    if (!sample_ && workspace().cursor().step > 0) cursorMoved();
}

void SloView::fillTable() {
    std::vector<QStringList> rows;
    for (std::size_t c = 0; c < data().classes.size(); ++c) {
        const ServedClass& each = data().classes[c];
        const auto share = [&](std::int64_t part) {
            return each.requests > 0 ? formatValue(Unit::Percent, 100 * double(part) / double(each.requests))
                                     : QStringLiteral("–");
        };
        double ttft = 0;
        for (const LatencySample& sample : each.ttft) ttft += sample.ns;
        rows.push_back({nameOfClass(c), formatCount(each.requests), share(each.good), share(each.keptFirst),
                        share(each.keptGaps),
                        ttft > 0 ? formatValue(Unit::Percent, 100 * each.queueNs / ttft) : QStringLiteral("–")});
        if (data().classes.size() == 2) break;
    }
    table_->setTexts(rows, 0);
    if (table_->rowCount() > 0) table_->selectRow(int(plots_[First]->chosen()));
}

void SloView::chooseClass(std::size_t place) {
    if (place >= shownClasses()) return;
    chooseNothing();
    for (const auto& plot : plots_) plot->choose(place);
    replot();
    updateNote();
}

void SloView::chooseSample(int panel, std::size_t sample, bool share) {
    const LatencySample& chosen = plots_[std::size_t(panel)]->samples()[sample];
    const IterationRow* iteration = data().iterationAt(double(chosen.atNs));
    panel_ = panel, sample_ = sample;
    iteration_ = iteration ? iteration->iteration : -1;
    for (int p = 0; p < kSloPanels; ++p)
        plots_[std::size_t(p)]->mark(p == panel ? std::optional(sample) : std::nullopt);
    if (!iteration) return chosenText_->hide();
    explain(*iteration, chosen.request);
    if (!share) return;
    shareIteration(*iteration, data().servedRow(chosen.request));
}

void SloView::chooseNothing() {
    sample_.reset();
    iteration_ = -1;
    chosenText_->hide();
    for (const auto& plot : plots_) plot->mark(std::nullopt);
}

/// Chooses the same token among the samples that are there now.
void SloView::chooseAgain(const std::optional<LatencySample>& sample) {
    const std::vector<LatencySample>& samples = plots_[std::size_t(panel_)]->samples();
    const auto same = std::find_if(samples.begin(), samples.end(), [&](const LatencySample& each) {
        return sample && each.request == sample->request && each.atNs == sample->atNs;
    });
    if (same == samples.end()) return chooseNothing();
    sample_ = std::size_t(same - samples.begin());
    plots_[std::size_t(panel_)]->mark(sample_);
}

/// Another view chose an iteration: the longest of its tokens' gaps is marked, or the latest of its first tokens.
void SloView::cursorMoved() {
    const IterationRow* row = data().iterationOf(workspace().cursor().step);
    if (isSharing() || !row || row->iteration == iteration_) return;
    if (workspace().lastMove() == CursorMove::Follow && sample_) return;
    for (const int panel : {int(Between), int(First)}) {
        const std::vector<LatencySample>& samples = plots_[std::size_t(panel)]->samples();
        const auto made = std::find_if(samples.rbegin(), samples.rend(), [&](const LatencySample& sample) {
            return double(sample.atNs) > double(row->startNs) && sample.atNs <= row->endNs();
        });
        if (made == samples.rend()) continue;
        return chooseSample(panel, std::size_t(samples.rend() - made - 1), false);
    }
    chooseNothing();
}

void SloView::explain(const IterationRow& iteration, std::int64_t request) {
    if (!run()) return;
    workspace().query<std::vector<MemberRow>>(
        this, "slo members", run()->key,
        [id = run()->key.runId, number = iteration.iteration](TraceReader& reader) {
            return readMembers(reader, id, number);
        },
        [this, number = iteration.iteration, request](const std::vector<MemberRow>& members) {
            const IterationRow* row = data().iterationOf(number);
            if (!row || number != iteration_) return;
            chosenText_->setText(describeIteration(*row, members) + QLatin1Char('\n') +
                                 explainToken(data(), *row, members, request));
            chosenText_->show();
        });
}

QString SloView::note() const {
    if (data().classes.empty()) return healthNote();
    const ServedClass& all = data().classes.front();
    const bool pooled = gaps_->currentIndex() <= 0;
    return sentences(
        {tr("Every request of the run counts, those of a warm-up too; times to the first token begin at the intended "
            "arrival."),
         tr("%1 first tokens, %2 gaps between tokens.")
             .arg(formatCount(std::int64_t(all.ttft.size())), formatCount(std::int64_t(all.gaps.size()))),
         pooled ? QString() : tr("Below, each request has one sample: the 99th percentile of its gaps."),
         tr("○: percentiles beyond which at least 10 samples lie, with their 95 % intervals. The highest point of a "
            "curve is its longest sample."),
         data().classes.size() > kMostCurves ? tr("Only the first %1 classes have curves.").arg(kMostCurves - 1)
                                             : QString(),
         data().commonBound(&RequestRow::tbtBoundMs) > 0 ? QString()
                                                         : tr("No bound is drawn, because requests have different ones "
                                                              "or none."),
         tr("Click a curve to see why the token there came when it came."), healthNote()});
}

} // namespace

View* makeSloView(Workspace& workspace, QWidget* parent) { return new SloView(workspace, parent); }

} // namespace kvscope::ui

#include "slo_view.moc"
