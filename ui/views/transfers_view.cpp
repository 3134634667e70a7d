// Transfers: hit rate, misses, bytes over the link and exposed time of every decode step, one run or two.
#include "profiler/read/filtered.h"
#include "ui/plots/curve_plottable.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"
#include "ui/plots/units.h"
#include "ui/theme.h"
#include "ui/views/make_views.h"
#include "ui/views/run_text.h"
#include "ui/views/step_numbers_csv.h"
#include "ui/views/step_series.h"
#include "ui/views/tile_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <iterator>
#include <string>

namespace kvscope::ui {

namespace {

constexpr int kPanels = 4;
enum Panel { HitRate, Misses, Bytes, Exposed };
constexpr std::array<Unit, kPanels> kUnits{Unit::Percent, Unit::Count, Unit::Bytes, Unit::Nanoseconds};
constexpr std::array<TransferNumber, kPanels> kNumbers{TransferNumber::HitRatePercent, TransferNumber::Misses,
                                                       TransferNumber::H2dBytes, TransferNumber::ExposedNs};

class TransfersView final : public PlotView {
    Q_OBJECT
public:
    TransfersView(Workspace& workspace, QWidget* parent)
        : PlotView(workspace, tr("Transfers"), parent), sides_{Side(workspace, this, "transfers A"),
                                                               Side(workspace, this, "transfers B")} {
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
            setIntegerAxis(panel->axis(QCPAxis::atBottom), last ? tr("Decode step") : QString());
            panel->axis(QCPAxis::atBottom)->setTickLabels(last);
            for (int s = 1; s >= 0; --s) { // the current run is drawn over the other
                Side& side = sides_[std::size_t(s)];
                side.curves[std::size_t(i)] =
                    new CurvePlottable(panel->axis(QCPAxis::atBottom), panel->axis(QCPAxis::atLeft),
                                       side.series.columns(), int(kNumbers[std::size_t(i)]));
            }
        }
        canvas().applyTheme(Theme::current());
        themed(Theme::current());
    }

    QString exportCsv() const override { return textOf(numbers()); }

    NumberWriter numbers() const override {
        if (sides_[0].empty()) return {};
        const QCPRange visible = const_cast<TransfersView*>(this)->canvas().visibleX();
        std::vector<std::pair<RunKey, std::string>> runs; // with their names, quoted
        for (const OpenRun* open : {workspace().current(), workspace().compare()})
            if (open) runs.emplace_back(open->key, csvText(open->row.name));
        return [runs, filter = readFilter(), first = std::max(0, int(std::ceil(visible.lower))),
                last = int(std::floor(visible.upper))](NumberSink& sink) {
            sink.add("run,step,hits,misses,h2d_bytes,d2h_bytes,transfer_ns,exposed_ns\n");
            forEachPart(runs, first, last, sink, [&](const TraceReader& reader, std::size_t run, int from, int to) {
                std::string lines;
                for (const StepRow& row : filteredSteps(reader, runs[run].first.runId, filter, from, to))
                    if (row.phase == Phase::Decode)
                        fmt::format_to(std::back_inserter(lines), "{},{},{},{},{},{},{},{}\n", runs[run].second,
                                       row.step, row.hits, row.misses, row.h2dBytes, row.d2hBytes, row.transferNs,
                                       row.exposedNs);
                sink.add(lines);
            });
        };
    }

    QString sql() const override { return run() ? transfersSql(sqlScope()) : QString(); }

protected:
    void runChanged() override {
        for (Side& side : sides_) side.series.clear();
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
        for (Side& side : sides_) side.series.advance();
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
                sides_[s].curves[std::size_t(i)]->setPen(QPen(colour, 1));
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
            const StepPyramid& columns = sides_[s].series.columns();
            const auto value = [&](TransferNumber number) { return double(columns.at(step, int(number))); };
            if (!runs[s] || columns.empty() || std::isnan(value(TransferNumber::Misses))) continue;
            if (!html.isEmpty()) html += QStringLiteral("<br>");
            if (workspace().compare())
                html += QStringLiteral("<b>%1</b><br>").arg(QString::fromStdString(runs[s]->row.name).toHtmlEscaped());
            html +=
                tr("<b>%1</b>%2<br>Hits %3, misses %4: hit rate <b>%5</b><br>Host to device %6, device to host %7<br>"
                   "Link busy %8, exposed <b>%9</b>")
                    .arg(stepName(step), value(TransferNumber::OpensBlock) > 0 ? tr(" (opens a new block)") : QString(),
                         formatCount(std::llround(value(TransferNumber::Hits))),
                         formatCount(std::llround(value(TransferNumber::Misses))),
                         formatValue(Unit::Percent, value(TransferNumber::HitRatePercent)),
                         formatValue(Unit::Bytes, value(TransferNumber::H2dBytes)),
                         formatValue(Unit::Bytes, value(TransferNumber::D2hBytes)),
                         formatValue(Unit::Nanoseconds, value(TransferNumber::LinkNs)))
                    .arg(formatValue(Unit::Nanoseconds, value(TransferNumber::ExposedNs)) + QLatin1Char(' ') +
                         timingWord(runs[s]->row));
        }
        if (html.isEmpty()) return {};
        return html + tr("<p>Exposed: the part of the link's time that the step had to wait for.</p>");
    }

    void visibleStepsChanged() override {
        const QCPRange visible = canvas().visibleX();
        for (Side& side : sides_) side.series.prefer(visible.lower, visible.upper);
        fitValues();
    }
    int filterParts() const override { return FilterLayers | FilterSteps; }

    QString note() const override {
        for (const Side& side : sides_)
            if (const QString& error = side.series.feed().error(); !error.isEmpty())
                return tr("Reading stopped: %1.").arg(error);
        const double perPixel = panels_[0]->width() > 0
                                    ? const_cast<TransfersView*>(this)->canvas().visibleX().size() / panels_[0]->width()
                                    : 0;
        QString timing;
        if (run() && run()->row.timing != "measured")
            timing = tr("Exposed time is modelled from the link %1; it is not part of the measured step time.")
                         .arg(QString::fromStdString(run()->row.link));
        const auto& feed = sides_[0].series.feed();
        const auto& tiles = sides_[0].series.columns().tiles();
        return sentences({aggregationNote(perPixel, tr("the line keeps the extremes")),
                          tiles.hasPreview() ? previewNote(tiles.stride()) : QString(), tr("The prefill is left out."),
                          timing, loadingNote(feed.loading(), feed.loaded(), feed.total()), healthNote()});
    }

private:
    struct Side {
        Side(Workspace& workspace, QObject* context, const char* slot) : series(workspace, context, slot) {}
        bool empty() const { // of decode steps
            const StepPyramid& columns = series.columns();
            return columns.stats(int(TransferNumber::Misses), 0, columns.steps()).count == 0;
        }
        StepSeries series;
        std::array<CurvePlottable*, kPanels> curves{};
    };

    ReadFilter readFilter() const {
        return {workspace().filter().layers.ranges(), workspace().filter().steps.ranges()};
    }

    void start(Side& side, const OpenRun& open) {
        StepRequest request;
        request.numbers = StepNumbers::Transfers;
        request.filter = readFilter();
        side.series.start(open.key, request, [this] { present(); });
    }

    void present() {
        const auto& feed = sides_[0].series.feed();
        if (sides_[0].empty()) {
            if (!feed.error().isEmpty())
                showEmpty(tr("The trace cannot be read here"), feed.error());
            else if (!workspace().filter().steps.all() && feed.loaded() > 1)
                showEmpty(tr("No decode step passes the filter"),
                          tr("The filter keeps steps %1. Widen or clear it in the filter bar.")
                              .arg(workspace().filter().steps.text()));
            else
                showEmpty(tr("Waiting for the first decode step"), tr("This view leaves out the prefill."));
            return;
        }
        showEmpty({}, {});
        int last = 1;
        for (const Side& side : sides_) last = std::max(last, side.series.columns().steps() - 1);
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
            double high = 0, low = 100;
            for (const Side& side : sides_) {
                const CellStats values = side.curves[std::size_t(i)]->within(visible);
                if (values.count == 0) continue;
                high = std::max(high, double(values.max));
                low = std::min(low, double(values.min));
            }
            QCPRange range(0, high > 0 ? high * 1.08 : 1);
            if (i == HitRate) range = {low >= 50 ? std::max(0.0, std::floor(low / 10) * 10 - 2) : -2, 102};
            canvas().setFullY(i, range);
            QCPAxis* axis = panels_[std::size_t(i)]->axis(QCPAxis::atLeft);
            setUnitAxis(axis, titles_[std::size_t(i)], kUnits[std::size_t(i)]);
            captions_[std::size_t(i)]->setText(axis->label());
            axis->setLabel({});
            const bool dots = visible.size() <= 120; // few steps are points, not a curve
            const bool filled = i != HitRate && !workspace().compare();
            for (std::size_t s = 0; s < 2; ++s) {
                CurvePlottable* curve = sides_[s].curves[std::size_t(i)];
                curve->setDots(dots);
                curve->setFill(filled ? QBrush(fills_[s]) : QBrush(Qt::NoBrush));
            }
        }
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
    LegendStrip* legend_ = nullptr;
};

} // namespace

View* makeTransfersView(Workspace& workspace, QWidget* parent) { return new TransfersView(workspace, parent); }

} // namespace kvscope::ui

#include "transfers_view.moc"
