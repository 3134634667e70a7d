// Transfers: hit rate, misses, bytes over the link and exposed time of every decode step, one run or two.
#include "profiler/read/filtered.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/outliers.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"
#include "ui/plots/units.h"
#include "ui/theme.h"
#include "ui/views/make_views.h"
#include "ui/views/run_text.h"
#include "ui/views/step_feed.h"

#include <QComboBox>

#include <algorithm>
#include <array>
#include <cmath>

namespace kvscope::ui {

namespace {

constexpr int kPanels = 4;
constexpr double kSmoothSteps = 4000; // beyond, lines are drawn plainly
enum Panel { HitRate, Misses, Bytes, Exposed };
constexpr std::array<Unit, kPanels> kUnits{Unit::Percent, Unit::Count, Unit::Bytes, Unit::Nanoseconds};

double valueOf(const StepRow& row, int panel) {
    switch (panel) {
    case HitRate: {
        const auto all = row.hits + row.misses;
        return all > 0 ? 100.0 * double(row.hits) / double(all) : std::numeric_limits<double>::quiet_NaN();
    }
    case Misses:
        return double(row.misses);
    case Bytes:
        return double(row.h2dBytes);
    default: // -1: not known of single KV heads
        return row.exposedNs >= 0 ? double(row.exposedNs) : std::numeric_limits<double>::quiet_NaN();
    }
}

/// What is not known of single KV heads is -1.
QString csvCell(std::int64_t value) { return value >= 0 ? QString::number(value) : QString(); }

class TransfersView final : public PlotView {
    Q_OBJECT
public:
    TransfersView(Workspace& workspace, QWidget* parent)
        : PlotView(workspace, tr("Transfers"), parent), sides_{Side(workspace, this, "transfers A"),
                                                               Side(workspace, this, "transfers B")} {
        range_ =
            addPicker(QStringLiteral("valueRange"), tr("Values"),
                      tr("How high the plots reach. Steps beyond, such as the first with its cold cache, are marked "
                         "at the edge with their value"));
        range_->addItems({tr("Without outliers"), tr("All")});
        connect(range_, &QComboBox::currentIndexChanged, this, [this] {
            fitValues();
            replot();
        });
        legend_ = new LegendStrip(&canvas());
        canvas().plotLayout()->addElement(0, 0, legend_);
        for (int i = 0; i < kPanels; ++i) {
            // Captions above the panels: four rotated labels would run into each other in a low window.
            auto* caption = new QCPTextElement(&canvas());
            caption->setTextFlags(Qt::AlignLeft | Qt::AlignBottom);
            caption->setMargins(QMargins(2, 4, 0, 0));
            canvas().plotLayout()->addElement(canvas().plotLayout()->rowCount(), 0, caption);
            captions_[std::size_t(i)] = caption;
            QCPAxisRect* panel = canvas().addPanel(false);
            panels_[std::size_t(i)] = panel;
            const bool last = i + 1 == kPanels;
            panel->setMinimumMargins(QMargins(15, 2, 15, last ? 15 : 4)); // room for the curves in a low window
            panel->setMinimumSize(50, 16);
            setIntegerAxis(panel->axis(QCPAxis::atBottom), last ? tr("Decode step") : QString());
            panel->axis(QCPAxis::atBottom)->setTickLabels(last);
            for (int s = 1; s >= 0; --s) { // the current run is drawn over the other
                auto* graph = new QCPGraph(panel->axis(QCPAxis::atBottom), panel->axis(QCPAxis::atLeft));
                graph->setAntialiased(true);
                graph->setAntialiasedFill(false);
                graph->setAdaptiveSampling(true);
                sides_[std::size_t(s)].graphs[std::size_t(i)] = graph;
            }
            auto* beyond = new QCPGraph(panel->axis(QCPAxis::atBottom), panel->axis(QCPAxis::atLeft));
            beyond->setLineStyle(QCPGraph::lsNone);
            beyond_[std::size_t(i)] = beyond;
            auto* label = new QCPItemText(&canvas());
            label->setClipToAxisRect(false);
            for (QCPItemPosition* position : label->positions()) {
                position->setAxisRect(panel);
                position->setAxes(panel->axis(QCPAxis::atBottom), panel->axis(QCPAxis::atLeft));
            }
            label->setVisible(false);
            labels_[std::size_t(i)] = label;
        }
        canvas().applyTheme(Theme::current());
        themed(Theme::current());
    }

    QString exportCsv() const override {
        if (sides_[0].steps.empty()) return {};
        const QCPRange visible = const_cast<TransfersView*>(this)->canvas().visibleX();
        QString csv = QStringLiteral("run,step,hits,misses,h2d_bytes,d2h_bytes,transfer_ns,exposed_ns\n");
        const OpenRun* runs[] = {workspace().current(), workspace().compare()};
        for (std::size_t s = 0; s < 2; ++s) {
            if (!runs[s]) continue;
            const QString name = QStringLiteral("\"%1\"").arg(
                QString::fromStdString(runs[s]->row.name).replace(QLatin1Char('"'), QLatin1String("\"\"")));
            for (const StepRow& row : sides_[s].steps) {
                if (row.step < visible.lower || row.step > visible.upper) continue;
                csv += QStringLiteral("%1,%2,%3,%4,%5,%6,%7,%8\n")
                           .arg(name)
                           .arg(row.step)
                           .arg(row.hits)
                           .arg(row.misses)
                           .arg(row.h2dBytes)
                           .arg(csvCell(row.d2hBytes), csvCell(row.transferNs), csvCell(row.exposedNs));
            }
        }
        return csv;
    }

    QString sql() const override { return run() ? transfersSql(sqlScope()) : QString(); }

protected:
    void runChanged() override {
        for (Side& side : sides_) side.clear();
        moved_ = false;
        if (showEmptyWithoutRun(
                tr("This view shows, step by step, how many selected blocks were resident, how many bytes "
                   "crossed the link, and how much of that time the step had to wait.")))
            return;
        showEmpty({}, {});
        start(sides_[0], *run());
        if (const OpenRun* other = workspace().compare()) start(sides_[1], *other);
        labelAxes();
        themed(Theme::current());
        cursorMoved();
    }

    void runGrew() override {
        if (!run()) return;
        labelAxes();
        fillLegend();
        for (Side& side : sides_) side.feed.advance();
    }

    void cursorMoved() override {
        CursorMark mark;
        if (run()) {
            const Cursor& cursor = workspace().cursor();
            mark.x = cursor.step;
            if (cursor.firstStep >= 0) mark.selectedSteps = QCPRange(cursor.firstStep, cursor.lastStep);
        }
        for (QCPAxisRect* panel : panels_) canvas().overlay().setMark(panel, mark);
        canvas().replotOverlay();
    }

    void themed(const Theme& theme) override {
        legend_->applyTheme(theme);
        for (QCPTextElement* caption : captions_) {
            caption->setFont(panels_[0]->axis(QCPAxis::atLeft)->labelFont());
            caption->setTextColor(theme.text);
        }
        for (std::size_t s = 0; s < 2; ++s) {
            const QColor colour = s == 0 ? theme.runA : theme.runB;
            QColor fill = colour;
            fill.setAlpha(36);
            for (int i = 0; i < kPanels; ++i) {
                QCPGraph* graph = sides_[s].graphs[std::size_t(i)];
                graph->setPen(QPen(colour, 1)); // wider pens cost thirty times as much at a million points
                fills_[s] = fill;
            }
        }
        fillLegend();
        fitValues();
    }

    void clickedAt(int, QPointF at) override {
        if (!run()) return;
        Cursor cursor = workspace().cursor();
        cursor.step = std::clamp(int(std::lround(at.x())), 0, std::max(run()->row.steps - 1, 0));
        workspace().setCursor(cursor);
    }

    QString tooltipAt(int, QPointF at) override {
        const int step = int(std::lround(at.x()));
        QString html;
        const OpenRun* runs[] = {workspace().current(), workspace().compare()};
        for (std::size_t s = 0; s < 2; ++s) {
            const StepRow* row = sides_[s].find(step);
            if (!row || !runs[s]) continue;
            if (!html.isEmpty()) html += QStringLiteral("<br>");
            if (workspace().compare())
                html += QStringLiteral("<b>%1</b><br>").arg(QString::fromStdString(runs[s]->row.name).toHtmlEscaped());
            html +=
                tr("<b>%1</b>%2<br>Hits %3, misses %4: hit rate <b>%5</b><br>Host to device %6, device to host %7<br>"
                   "Link busy %8, exposed <b>%9</b>")
                    .arg(stepName(step), row->opensBlock ? tr(" (opens a new block)") : QString(),
                         formatCount(row->hits), formatCount(row->misses),
                         formatValue(Unit::Percent, valueOf(*row, HitRate)),
                         formatValue(Unit::Bytes, double(row->h2dBytes)), known(Unit::Bytes, row->d2hBytes),
                         known(Unit::Nanoseconds, row->transferNs))
                    .arg(known(Unit::Nanoseconds, row->exposedNs) + QLatin1Char(' ') + timingWord(runs[s]->row));
        }
        if (html.isEmpty()) return {};
        return html + tr("<p>Exposed: the part of the link's time that the step had to wait for.</p>");
    }

    static QString known(Unit unit, std::int64_t value) {
        return value >= 0 ? formatValue(unit, double(value)) : tr("not recorded per KV head");
    }

    void visibleStepsChanged() override { fitValues(); }
    int filterParts() const override { return FilterLayers | FilterKvHeads | FilterSteps | FilterText; }

    QString note() const override {
        for (const Side& side : sides_)
            if (!side.feed.error().isEmpty()) return tr("Reading stopped: %1.").arg(side.feed.error());
        const double perPixel = panels_[0]->width() > 0
                                    ? const_cast<TransfersView*>(this)->canvas().visibleX().size() / panels_[0]->width()
                                    : 0;
        QString timing;
        if (run() && run()->row.timing != "measured")
            timing = tr("Exposed time is modelled from the link %1; it is not part of the measured step time.")
                         .arg(QString::fromStdString(run()->row.link));
        const QString beyond = *std::max_element(beyondAny_.begin(), beyondAny_.end()) > 0
                                   ? tr("Triangles mark steps beyond the plot; Values: All shows them in full.")
                                   : QString();
        return sentences({aggregationNote(perPixel, tr("the line keeps the extremes")), beyond,
                          tr("The prefill is left out."), timing,
                          loadingNote(sides_[0].feed.loading(), sides_[0].feed.loaded(), sides_[0].feed.total()),
                          healthNote()});
    }

private:
    struct Side {
        Side(Workspace& workspace, QObject* context, const char* slot) : feed(workspace, context, slot, 4096) {}
        void clear() {
            feed.stop();
            steps.clear();
            for (QCPGraph* graph : graphs)
                if (graph) graph->data()->clear();
        }
        const StepRow* find(int step) const {
            const auto at = std::lower_bound(steps.begin(), steps.end(), step,
                                             [](const StepRow& row, int wanted) { return row.step < wanted; });
            return at != steps.end() && at->step == step ? &*at : nullptr;
        }
        StepFeed<std::vector<StepRow>> feed;
        std::vector<StepRow> steps; // decode steps only
        std::array<QCPGraph*, kPanels> graphs{};
    };

    void start(Side& side, const OpenRun& open) {
        side.feed.start(
            open.key,
            [filter = appliedFilter()](TraceReader& reader, int runId, int first, int last) {
                return filteredSteps(reader, runId, filter, first, last);
            },
            [this, &side](std::vector<StepRow> rows, int, int) { take(side, std::move(rows)); });
    }

    void take(Side& side, std::vector<StepRow> rows) {
        for (const StepRow& row : rows) {
            if (row.phase == Phase::Prefill) continue;
            side.steps.push_back(row);
            moved_ = moved_ || row.hits + row.misses > 0;
            for (int i = 0; i < kPanels; ++i) side.graphs[std::size_t(i)]->addData(row.step, valueOf(row, i));
        }
        if (&side == &sides_[0] && side.steps.empty()) {
            if (!side.feed.error().isEmpty())
                showEmpty(tr("The trace cannot be read here"), side.feed.error());
            else if (!appliedFilter().empty() && side.feed.loaded() > 1)
                showEmptyByFilter(tr("No decode step passes the filter"));
            else
                showEmpty(tr("Waiting for the first decode step"),
                          tr("The prompt is being read; this view leaves out the prefill."),
                          {stopRun(), showView("timeline")});
            return;
        }
        if (&side == &sides_[0] && !moved_ && side.feed.loaded() >= side.feed.total() && !workspace().compare()) {
            if (appliedFilter().empty())
                showEmpty(
                    tr("No block moves in this run"),
                    tr("Full attention keeps every block on the device, so there are no hits, misses or transfers. "
                       "Look at where its time goes, or record a sparse method to compare it with."),
                    {showView("breakdown")});
            else
                showEmptyByFilter(tr("No block moves where the filter looks"));
            return;
        }
        if (!sides_[0].steps.empty()) showEmpty({}, {});
        int last = 1;
        for (const Side& each : sides_)
            if (!each.steps.empty()) last = std::max(last, each.steps.back().step);
        canvas().setFullX({0.5, last + 0.5});
        fitValues();
        replot();
    }

    void labelAxes() {
        const QString timing = run() ? timingWord(run()->row) : QString();
        titles_ = {tr("Hit rate"), tr("Misses (blocks)"), tr("Host to device"), tr("Exposed time, %1").arg(timing)};
        fitValues();
    }

    /// Value axes follow what is visible, so that zooming in shows small differences.
    void fitValues() {
        const QCPRange visible = canvas().visibleX();
        for (int i = 0; i < kPanels; ++i) {
            HighestPoints points; // of the hit rate what is missing, because its outliers are low
            for (const Side& side : sides_) {
                const auto drawn = side.graphs[std::size_t(i)]->data();
                const auto end = drawn->findEnd(visible.upper, false);
                for (auto at = drawn->findBegin(visible.lower, false); at != end; ++at)
                    points.add(at->key, i == HitRate ? 100 - at->value : at->value);
            }
            HighestPoints::Result found = points.result();
            if (range_->currentIndex() == 1 && !found.beyond.empty()) {
                found.highest = found.beyond.front().y();
                found.beyond.clear();
            }
            const double high = found.highest;
            QCPRange range(0, high > 0 ? high * 1.08 : 1);
            if (i == HitRate) range = {high <= 50 ? std::max(0.0, std::floor((100 - high) / 10) * 10 - 2) : -2, 102};
            markBeyond(std::size_t(i), found.beyond, range);
            canvas().setFullY(i, range);
            QCPAxis* axis = panels_[std::size_t(i)]->axis(QCPAxis::atLeft);
            setUnitAxis(axis, titles_[std::size_t(i)], kUnits[std::size_t(i)]);
            captions_[std::size_t(i)]->setText(axis->label());
            axis->setLabel({});
            // Few steps: show that they are points, not a curve. Many: without fill and smoothing, which would take
            // longer than a frame.
            const bool dots = visible.size() <= 120, many = visible.size() > kSmoothSteps;
            const bool filled = i != HitRate && !many && !workspace().compare();
            for (std::size_t s = 0; s < 2; ++s) {
                QCPGraph* graph = sides_[s].graphs[std::size_t(i)];
                graph->setScatterStyle(dots ? QCPScatterStyle(QCPScatterStyle::ssDisc, 4)
                                            : QCPScatterStyle(QCPScatterStyle::ssNone));
                graph->setAntialiased(!many);
                graph->setBrush(filled ? QBrush(fills_[s]) : QBrush(Qt::NoBrush));
            }
        }
    }

    /// Triangles at the edge where steps reach beyond it, the furthest with its value.
    void markBeyond(std::size_t panel, const std::vector<QPointF>& beyond, QCPRange range) {
        const bool low = panel == HitRate;
        const Theme& theme = Theme::current();
        QCPGraph* marks = beyond_[panel];
        QCPItemText* label = labels_[panel];
        marks->data()->clear();
        const double edge = low ? range.lower + 0.07 * range.size() : range.upper - 0.07 * range.size();
        for (const QPointF& point : beyond) marks->addData(point.x(), edge);
        marks->setScatterStyle(QCPScatterStyle(low ? QCPScatterStyle::ssTriangleInverted : QCPScatterStyle::ssTriangle,
                                               theme.danger, theme.danger, 7));
        label->setVisible(!beyond.empty());
        beyondAny_[panel] = int(beyond.size());
        if (beyond.empty()) return;
        const QPointF& furthest = beyond.front();
        const bool rightHalf = furthest.x() > canvas().visibleX().center();
        label->position->setCoords(furthest.x(), edge);
        label->setPositionAlignment((rightHalf ? Qt::AlignRight : Qt::AlignLeft) | Qt::AlignVCenter);
        label->setPadding({9, 0, 9, 0});
        label->setFont(panels_[0]->axis(QCPAxis::atLeft)->tickLabelFont());
        label->setColor(theme.text);
        label->setText(tr("step %1: %2")
                           .arg(formatCount(std::llround(furthest.x())),
                                formatValue(kUnits[panel], low ? 100 - furthest.y() : furthest.y())));
    }

    void fillLegend() {
        const Theme& theme = Theme::current();
        QVector<Swatch> swatches;
        if (const OpenRun* a = workspace().current())
            swatches << Swatch{QString::fromStdString(a->row.name), theme.runA, Swatch::Mark::Line, {}};
        if (const OpenRun* b = workspace().compare())
            swatches << Swatch{QString::fromStdString(b->row.name), theme.runB, Swatch::Mark::Line, {}};
        legend_->setSwatches(swatches);
    }

    std::array<Side, 2> sides_;
    std::array<QCPAxisRect*, kPanels> panels_{};
    std::array<QCPTextElement*, kPanels> captions_{};
    std::array<QString, kPanels> titles_;
    std::array<QColor, 2> fills_;
    std::array<QCPGraph*, kPanels> beyond_{};
    std::array<QCPItemText*, kPanels> labels_{};
    std::array<int, kPanels> beyondAny_{}; // steps marked at the edge
    QComboBox* range_ = nullptr;
    bool moved_ = false; // some block was a hit or a miss
    LegendStrip* legend_ = nullptr;
};

} // namespace

View* makeTransfersView(Workspace& workspace, QWidget* parent) { return new TransfersView(workspace, parent); }

} // namespace kvscope::ui

#include "transfers_view.moc"
