// Transfers: hit rate, misses, bytes over the link and exposed time of every decode step, of one run or of all that are
// compared.
#include "profiler/read/denoising.h"
#include "profiler/read/filtered.h"
#include "ui/frame/broken_rules.h"
#include "ui/frame/run_names.h"
#include "ui/frame/units.h"
#include "ui/frame/waiting.h"
#include "ui/look/theme.h"
#include "ui/plots/curve_plottable.h"
#include "ui/plots/equal_panels.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/outliers.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"
#include "ui/views/make_views.h"
#include "ui/views/run_text.h"
#include "ui/views/step_numbers_csv.h"
#include "ui/views/step_series.h"
#include "ui/views/tile_text.h"

#include <QComboBox>

#include <algorithm>
#include <array>
#include <cmath>
#include <fmt/format.h>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

namespace kvscope::ui {

namespace {

constexpr int kPanels = 4;
enum Panel { HitRate, Misses, Bytes, Exposed };
constexpr std::array<Unit, kPanels> kUnits{Unit::Percent, Unit::Count, Unit::Bytes, Unit::Nanoseconds};
constexpr std::array<TransferNumber, kPanels> kNumbers{TransferNumber::HitRatePercent, TransferNumber::Misses,
                                                       TransferNumber::H2dBytes, TransferNumber::ExposedNs};

/// A number that is not known for single KV heads is -1.
std::string csvCell(std::int64_t value) { return value >= 0 ? std::to_string(value) : std::string(); }

/// The steps in view, or the extremes of as many stretches of them as a screen tells apart. Lowest: how far below 100
/// %.
void addExtremes(const CurvePlottable& curve, QCPRange visible, bool lowest, HighestPoints& points) {
    constexpr int most = 2048;
    const int first = std::max(0, int(std::ceil(visible.lower))), end = int(std::floor(visible.upper)) + 1;
    const int stretch = std::max(1, (end - first + most - 1) / most);
    for (int begin = first; begin < end; begin += stretch) {
        const int last = std::min(begin + stretch, end) - 1;
        const CellStats values = curve.within(QCPRange(begin, last));
        if (values.count == 0) continue;
        const double extreme = double(lowest ? values.min : values.max);
        int at = begin;
        while (at < last && curve.value(at) != extreme) ++at;
        points.add(at, lowest ? 100 - extreme : extreme);
    }
}

class TransfersView final : public PlotView {
    Q_OBJECT
public:
    TransfersView(Workspace& workspace, QWidget* parent) : PlotView(workspace, tr("Transfers"), parent) {
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
        for (std::size_t i = 0; i < kPanels; ++i) {
            // Captions above the panels: four rotated labels would run into each other in a low window.
            auto* caption = new QCPTextElement(&canvas());
            caption->setTextFlags(Qt::AlignLeft | Qt::AlignBottom);
            caption->setMargins(QMargins(2, 4, 0, 0));
            canvas().plotLayout()->addElement(canvas().plotLayout()->rowCount(), 0, caption);
            captions_[i] = caption;
            QCPAxisRect* panel = canvas().addPanel(false);
            panels_[i] = panel;
            const bool last = i + 1 == kPanels;
            panel->setMinimumMargins(QMargins(15, 2, 15, last ? 15 : 4)); // room for the curves in a low window
            panel->setMinimumSize(50, 16);
            setIntegerAxis(panel->axis(QCPAxis::atBottom), last ? tr("Decode step") : QString());
            panel->axis(QCPAxis::atBottom)->setTickLabels(last);
            auto* beyond = new QCPGraph(panel->axis(QCPAxis::atBottom), panel->axis(QCPAxis::atLeft));
            beyond->setLineStyle(QCPGraph::lsNone);
            beyond_[i] = beyond;
            auto* label = new QCPItemText(&canvas());
            label->setClipToAxisRect(false);
            label->position->setAxisRect(panel); // beside the caption, where no curve is
            label->position->setType(QCPItemPosition::ptAxisRectRatio);
            label->position->setCoords(1, 0);
            label->setPositionAlignment(Qt::AlignRight | Qt::AlignBottom);
            label->setPadding({0, 0, 0, 6});
            label->setVisible(false);
            labels_[i] = label;
        }
        keepEquallyHigh(canvas(), {panels_.begin(), panels_.end()});
        rebuildSides();
        canvas().applyTheme(Theme::current());
        themed(Theme::current());
    }

    QString exportCsv() const override { return textOf(numbers()); }

    NumberWriter numbers() const override {
        if (sides_[0]->empty()) return {};
        const QCPRange visible = const_cast<TransfersView*>(this)->canvas().visibleX();
        std::vector<std::pair<RunKey, std::string>> runs; // with their names, quoted
        for (const OpenRun* open : workspace().sides())
            runs.emplace_back(open->key, csvText(runName(*open, workspace().runs()).toStdString()));
        return [runs, filter = appliedFilter(), first = std::max(0, int(std::ceil(visible.lower))),
                last = int(std::floor(visible.upper))](NumberSink& sink) {
            sink.add("run,step,hits,misses,h2d_bytes,d2h_bytes,transfer_ns,exposed_ns\n");
            forEachPart(runs, first, last, sink, [&](const TraceReader& reader, std::size_t run, int from, int to) {
                std::string lines;
                for (const StepRow& row : filteredSteps(reader, runs[run].first.runId, filter, from, to))
                    if (row.phase == Phase::Decode)
                        fmt::format_to(std::back_inserter(lines), "{},{},{},{},{},{},{},{}\n", runs[run].second,
                                       row.step, csvCell(row.hits), csvCell(row.misses), csvCell(row.h2dBytes),
                                       csvCell(row.d2hBytes), csvCell(row.transferNs), csvCell(row.exposedNs));
                sink.add(lines);
            });
        };
    }

    QString sql() const override { return run() ? transfersSql(sqlScope()) : QString(); }

protected:
    void runChanged() override {
        rebuildSides();
        if (showEmptyWithoutRun(
                tr("This view shows, step by step, how many selected blocks were resident, how many bytes "
                   "crossed the link, and how much of that time the step had to wait.")))
            return;
        showReading();
        const auto runs = workspace().sides();
        for (std::size_t place = 0; place < runs.size(); ++place) start(*sides_[place], *runs[place]);
        labelAxes();
        themed(Theme::current());
        cursorMoved();
    }

    void runGrew() override {
        if (!run()) return;
        labelAxes();
        fillLegend();
        for (const auto& side : sides_) side->series.advance();
    }

    void cursorMoved() override { showMark(stepMark(), canvas().panels()); }

    void themed(const Theme& theme) override {
        legend_->applyTheme(theme);
        for (QCPTextElement* caption : captions_) {
            caption->setFont(panels_[0]->axis(QCPAxis::atLeft)->labelFont());
            caption->setTextColor(theme.text);
        }
        for (std::size_t place = 0; place < sides_.size(); ++place)
            for (CurvePlottable* curve : sides_[place]->curves) curve->setPen(QPen(runColour(place), 1));
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
        const auto runs = workspace().sides();
        for (std::size_t s = 0; s < std::min(runs.size(), sides_.size()); ++s) {
            const StepPyramid& columns = sides_[s]->series.columns();
            const auto value = [&](TransferNumber number) { return double(columns.at(step, int(number))); };
            if (columns.empty() || std::isnan(value(TransferNumber::OpensBlock))) continue;
            if (!html.isEmpty()) html += QStringLiteral("<br>");
            if (runs.size() > 1)
                html += QStringLiteral("<b>%1</b><br>").arg(letteredName(s, workspace()).toHtmlEscaped());
            html +=
                tr("<b>%1</b>%2<br>Hits %3, misses %4: hit rate <b>%5</b><br>Host to device %6, device to host %7<br>"
                   "Link busy %8, exposed <b>%9</b>")
                    .arg(stepName(runs[s]->row, step),
                         value(TransferNumber::OpensBlock) > 0 ? tr(" (opens a new block)") : QString(),
                         counted(value(TransferNumber::Hits)), counted(value(TransferNumber::Misses)),
                         std::isnan(value(TransferNumber::Hits))
                             ? tr("not known")
                             : formatValue(Unit::Percent, value(TransferNumber::HitRatePercent)),
                         known(Unit::Bytes, value(TransferNumber::H2dBytes)),
                         known(Unit::Bytes, value(TransferNumber::D2hBytes)),
                         known(Unit::Nanoseconds, value(TransferNumber::LinkNs)))
                    .arg(known(Unit::Nanoseconds, value(TransferNumber::ExposedNs)) + QLatin1Char(' ') +
                         timingWord(runs[s]->row));
        }
        if (html.isEmpty()) return {};
        return html + tr("<p>Exposed: the part of the link's time that the step had to wait for.</p>");
    }

    static QString counted(double blocks) {
        return std::isnan(blocks) ? tr("not known") : formatCount(std::llround(blocks));
    }
    QString known(Unit unit, double value) const {
        if (!std::isnan(value)) return formatValue(unit, value);
        return appliedFilter().kvHeads.empty() ? tr("not known") : tr("not known per KV head");
    }

    void visibleStepsChanged() override {
        const QCPRange visible = canvas().visibleX();
        for (const auto& side : sides_) side->series.prefer(visible.lower, visible.upper);
        fitValues();
    }
    int filterParts() const override { return FilterLayers | FilterKvHeads | FilterSteps | FilterText; }

    QString note() const override {
        for (const auto& side : sides_)
            if (const QString& error = side->series.feed().error(); !error.isEmpty())
                return tr("Reading stopped: %1.").arg(error);
        const double perPixel = panels_[0]->width() > 0
                                    ? const_cast<TransfersView*>(this)->canvas().visibleX().size() / panels_[0]->width()
                                    : 0;
        QString timing;
        if (run() && run()->row.timing != Timing::Measured)
            timing = tr("Exposed time is modelled from the link %1; it is not part of the measured step time.")
                         .arg(QString::fromStdString(run()->row.link)
                                  .remove(QStringLiteral(" (modelled)"))
                                  .replace(QStringLiteral(" us "), QStringLiteral(" µs ")));
        const QString beyond = *std::max_element(beyondAny_.begin(), beyondAny_.end()) > 0
                                   ? tr("Triangles mark steps beyond the plot; Values: All shows them in full.")
                                   : QString();
        QString unknown;
        if (run() && run()->row.knows.has(Known::Bytes) && !run()->row.knows.has(Known::Hits))
            unknown = tr("Hits and misses are not known in this run.");
        else if (run() && run()->row.knows.has(Known::Hits) && !run()->row.knows.has(Known::Bytes))
            unknown = tr("What crossed the link is not known in this run.");
        const auto& feed = sides_[0]->series.feed();
        const auto& tiles = sides_[0]->series.columns().tiles();
        return sentences({unknown, aggregationNote(perPixel, tr("the line keeps the extremes")), beyond,
                          tiles.hasPreview() ? previewNote(tiles.stride()) : QString(), tr("The prefill is left out."),
                          timing, loadingNote(feed.loading(), feed.loaded(), feed.total()), healthNote()});
    }

private:
    struct Side {
        explicit Side(Workspace& workspace) : series(workspace, &context, "transfers") {}
        bool empty() const { // of decode steps
            const StepPyramid& columns = series.columns();
            return columns.stats(int(TransferNumber::OpensBlock), 0, columns.steps()).count == 0; // known of every step
        }
        QObject context; // answers for a side that is gone are dropped with it
        StepSeries series;
        std::array<CurvePlottable*, kPanels> curves{};
    };

    /// As many as there are runs, one at least, with nothing read.
    void rebuildSides() {
        for (const auto& side : sides_)
            for (CurvePlottable* curve : side->curves)
                if (curve) canvas().removePlottable(curve);
        sides_.clear();
        const std::size_t count = std::max<std::size_t>(workspace().sides().size(), 1);
        for (std::size_t place = 0; place < count; ++place) sides_.push_back(std::make_unique<Side>(workspace()));
        for (std::size_t i = 0; i < kPanels; ++i) {
            for (std::size_t place = count; place-- > 0;) // the current run is drawn over the others
                sides_[place]->curves[i] =
                    new CurvePlottable(panels_[i]->axis(QCPAxis::atBottom), panels_[i]->axis(QCPAxis::atLeft),
                                       sides_[place]->series.columns(), int(kNumbers[i]));
            beyond_[i]->setLayer(beyond_[i]->layer()); // puts the triangles over all curves
        }
    }

    /// Some block was a hit or a miss.
    static bool moves(const Side& side) {
        const StepPyramid& columns = side.series.columns();
        return columns.stats(int(TransferNumber::HitRatePercent), 0, columns.steps()).count > 0;
    }

    void start(Side& side, const OpenRun& open) {
        StepRequest request;
        request.numbers = StepNumbers::Transfers;
        request.filter = appliedFilter();
        side.series.start(open.key, request, [this] { present(); });
    }

    void present() {
        const auto& feed = sides_[0]->series.feed();
        if (sides_[0]->empty()) {
            if (!feed.error().isEmpty())
                showEmpty(tr("The trace cannot be read here"), feed.error());
            else if (!appliedFilter().empty() && feed.loaded() > 1)
                showEmptyByFilter(tr("No decode step passes the filter"));
            else {
                const auto [title, why] =
                    waitingText(run(), tr("Waiting for the first decode step"),
                                tr("The prompt is being read; this view leaves out the prefill."));
                showEmpty(title, why, {stopRun(), showView("timeline")});
            }
            return;
        }
        const Knowledge knows = run()->row.knows;
        const bool draws = moves(*sides_[0]) || (!knows.has(Known::Hits) && knows.has(Known::Bytes));
        if (!draws && feed.loaded() >= feed.total() && !workspace().compare()) {
            if (!knows.has(Known::Hits) && !knows.has(Known::Bytes))
                showEmpty(tr("Hits and transfers are not known in this run"),
                          whyUnknown(workspace(), run()->key,
                                     tr("The engine that recorded it did not see which blocks were resident or what "
                                        "crossed the link. What it knows: %1. Which cache would have served it is "
                                        "answered by the what-if view, where it recorded the selected blocks.")
                                         .arg(QString::fromStdString(knows.list()))),
                          {showView("cache"), showView("breakdown")});
            else if (appliedFilter().empty() && denoisesCanvas(run()->row))
                showEmpty(tr("No block moves in this run"),
                          tr("Prompt and canvas are computed where their keys and values are, so there are no hits, "
                             "misses or transfers. Look at what the forwards wrote, or at where their time goes."),
                          {showView("denoising"), showView("breakdown")});
            else if (appliedFilter().empty())
                showEmpty(
                    tr("No block moves in this run"),
                    tr("Full attention keeps every block on the device, so there are no hits, misses or transfers. "
                       "Look at where its time goes, or record a sparse method to compare it with."),
                    {showView("breakdown")});
            else
                showEmptyByFilter(tr("No block moves where the filter looks"));
            return;
        }
        showEmpty({}, {});
        int last = 1;
        for (const auto& side : sides_) last = std::max(last, side->series.columns().steps() - 1);
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
        for (std::size_t i = 0; i < kPanels; ++i) {
            HighestPoints points; // of the hit rate what is missing, because its outliers are low
            for (const auto& side : sides_) addExtremes(*side->curves[i], visible, i == HitRate, points);
            HighestPoints::Result found = points.result();
            if (range_->currentIndex() == 1 && !found.beyond.empty()) {
                found.highest = found.beyond.front().y();
                found.beyond.clear();
            }
            const double high = found.highest;
            QCPRange range(0, high > 0 ? high * 1.08 : 1);
            if (i == HitRate) { // a little over 100 %, so that the curve is seen there, and no number stands above
                const double low = high <= 50 ? std::max(0.0, std::floor((100 - high) / 10) * 10 - 2) : -2;
                range = {low, 100 + 0.03 * (100 - low)};
            }
            markBeyond(i, found.beyond, range);
            canvas().setFullY(int(i), range);
            QCPAxis* axis = panels_[i]->axis(QCPAxis::atLeft);
            setUnitAxis(axis, titles_[i], kUnits[i]);
            captions_[i]->setText(axis->label());
            axis->setLabel({});
            const bool dots = visible.size() <= 120; // few steps are points, not a curve
            QColor fill = runColour(0);
            fill.setAlpha(36);
            for (const auto& side : sides_) {
                CurvePlottable* curve = side->curves[i];
                curve->setDots(dots);
                curve->setFill(i != HitRate && sides_.size() == 1 ? QBrush(fill) : QBrush(Qt::NoBrush));
            }
        }
    }

    /// Triangles at the edge where steps reach beyond it; the furthest one's value stands above the panel.
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
        label->setFont(panels_[0]->axis(QCPAxis::atLeft)->tickLabelFont());
        label->setColor(theme.danger);
        label->setText(tr("step %1: %2")
                           .arg(formatCount(std::llround(furthest.x())),
                                formatValue(kUnits[panel], low ? 100 - furthest.y() : furthest.y())));
    }

    void fillLegend() {
        QVector<Swatch> swatches;
        const auto runs = workspace().sides();
        for (std::size_t place = 0; place < runs.size(); ++place)
            swatches << Swatch{runs.size() > 1 ? letteredName(place, workspace())
                                               : runName(*runs[place], workspace().runs()),
                               runColour(place),
                               Swatch::Mark::Line,
                               {}};
        legend_->setSwatches(swatches);
    }

    std::vector<std::unique_ptr<Side>> sides_; // A, B, C, ...; A always
    std::array<QCPAxisRect*, kPanels> panels_{};
    std::array<QCPTextElement*, kPanels> captions_{};
    std::array<QString, kPanels> titles_;
    std::array<QCPGraph*, kPanels> beyond_{};
    std::array<QCPItemText*, kPanels> labels_{};
    std::array<int, kPanels> beyondAny_{}; // steps marked at the edge
    QComboBox* range_ = nullptr;
    LegendStrip* legend_ = nullptr;
};

} // namespace

View* makeTransfersView(Workspace& workspace, QWidget* parent) { return new TransfersView(workspace, parent); }

} // namespace kvscope::ui

#include "transfers_view.moc"
