// Locality: a layer x step (or KV head x step) heatmap of one metric.
#include "ui/plots/heat_plottable.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"
#include "ui/plots/units.h"
#include "ui/theme.h"
#include "ui/views/make_views.h"
#include "ui/views/run_text.h"
#include "ui/views/step_feed.h"

#include <QComboBox>
#include <QSignalBlocker>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {

/// Whole columns for the steps asked for, NaN where the trace has none.
struct Columns {
    int rows = 0;
    std::vector<float> values;
};

Columns padded(const StepMatrix& matrix, int first, int last, int rowFirst, int rows, double factor) {
    Columns columns{rows, std::vector<float>(std::size_t(last - first + 1) * std::size_t(rows),
                                             std::numeric_limits<float>::quiet_NaN())};
    for (int i = 0; i < matrix.steps; ++i) {
        const int step = matrix.firstStep + i;
        if (step < first || step > last) continue;
        for (int row = 0; row < rows && rowFirst + row < matrix.rows; ++row)
            columns.values[std::size_t(step - first) * std::size_t(rows) + std::size_t(row)] =
                float(double(matrix.at(i, rowFirst + row)) * factor);
    }
    return columns;
}

/// What the filter leaves out is undefined, so that no colour, mean or extreme counts it.
void blank(Columns& columns, int first, const Filter& filter, bool rowsAreLayers, int heads) {
    for (std::size_t i = 0; i < columns.values.size(); ++i) {
        const int step = first + int(i / std::size_t(columns.rows)), row = int(i % std::size_t(columns.rows));
        if (!filter.hasStep(step) || !(rowsAreLayers ? filter.hasLayer(row) : filter.hasKvHead(row % heads)))
            columns.values[i] = std::numeric_limits<float>::quiet_NaN();
    }
}

enum class Rows { Layers, LayersOfHead, HeadsOfLayer };

class LocalityView final : public PlotView {
    Q_OBJECT
public:
    LocalityView(Workspace& workspace, QWidget* parent)
        : PlotView(workspace, tr("Locality"), parent), feed_(workspace, this, "locality", 4096) {
        metric_ = addPicker(QStringLiteral("metric"), tr("Metric"), tr("What the colour of a cell shows"));
        for (const MetricInfo& info : metrics()) {
            metric_->addItem(QString::fromUtf8(info.title), QString::fromUtf8(info.id));
            metric_->setItemData(metric_->count() - 1, QString::fromUtf8(info.help), Qt::ToolTipRole);
        }
        rows_ = addPicker(QStringLiteral("rows"), tr("Rows"),
                          tr("One row per layer, or per KV head of the cursor's layer"));
        rows_->addItem(tr("Layers, all KV heads"));
        rows_->addItem(tr("Layers, cursor's KV head"));
        rows_->addItem(tr("KV heads of cursor's layer"));
        sequence_ =
            addPicker(QStringLiteral("sequence"), tr("Sequence"), tr("One sequence of the batch, or all of them"));
        aggregate_ = addPicker(QStringLiteral("aggregate"), tr("Zoomed out"),
                               tr("What a pixel shows that covers several steps"));
        aggregate_->addItem(tr("Mean"));
        aggregate_->addItem(tr("Minimum"));
        aggregate_->addItem(tr("Maximum"));
        buildPlot();
        connect(metric_, &QComboBox::currentIndexChanged, this, &LocalityView::reload);
        connect(rows_, &QComboBox::currentIndexChanged, this, &LocalityView::reload);
        connect(sequence_, &QComboBox::currentIndexChanged, this, &LocalityView::reload);
        connect(aggregate_, &QComboBox::currentIndexChanged, this, [this] {
            heat_->setAggregate(aggregate());
            replot();
        });
    }

    QString exportCsv() const override {
        if (data_.empty()) return {};
        const QCPRange visible = const_cast<LocalityView*>(this)->canvas().visibleX();
        const int first = std::max(0, int(std::ceil(visible.lower)));
        const int last = std::min(data_.steps() - 1, int(std::floor(visible.upper)));
        QString csv = QStringLiteral("step");
        for (const QString& name : names_)
            csv += QLatin1Char(',') + QString(name).replace(QLatin1Char(','), QLatin1Char(' '));
        csv += QLatin1Char('\n');
        for (int step = first; step <= last; ++step) {
            csv += QString::number(step);
            for (int row = 0; row < data_.rows(); ++row) {
                const float value = data_.at(step, row);
                csv += QLatin1Char(',');
                if (!std::isnan(value)) csv += QString::number(double(value), 'g', 9);
            }
            csv += QLatin1Char('\n');
        }
        return csv;
    }

protected:
    void runChanged() override {
        data_.reset(0);
        feed_.stop();
        if (showEmptyWithoutRun(tr("This view shows, layer by layer and step by step, how much of the last selection a "
                                   "step keeps: bright is local, dark means many new blocks.")))
            return;
        const RunRow& row = run()->row;
        fillSequences(row.sequences);
        if (row.layers <= 0) { // a live run whose row is still to come
            showEmpty(tr("Waiting for the first step"), tr("The run has started; its first step is not recorded yet."));
            return;
        }
        if (perHead() && row.level == "counters") {
            showEmpty(
                tr("Per-head values were not recorded"),
                tr("This run was recorded at level counters. Record with level selections or full, or show all KV "
                   "heads and all sequences."));
            return;
        }
        layer_ = workspace().cursor().layer;
        head_ = workspace().cursor().kvHead;
        const int sequence = sequence_->currentData().toInt(), heads = std::max(row.kvHeads, 1);
        const Rows rows = shownRows();
        const int rowFirst = rows == Rows::HeadsOfLayer && sequence >= 0 ? sequence * heads : 0;
        const int rowCount = rows != Rows::HeadsOfLayer ? row.layers
                             : sequence >= 0            ? heads
                                                        : heads * std::max(row.sequences, 1);
        data_.reset(rowCount);
        nameRows(rows, sequence, rowCount, heads);
        canvas().setFullY(0, {-0.5, rowCount - 0.5});
        canvas().setMinimumSpan(2);
        const Metric metric = info().metric;
        const double factor = unit().factor;
        showEmpty({}, {});
        feed_.start(
            run()->key,
            [=, layer = layer_, head = head_, shared = workspace().filter()](TraceReader& reader, int runId, int first,
                                                                             int last) {
                const HeadFilter filter{sequence, rows == Rows::LayersOfHead ? head : -1};
                const bool layers = rows != Rows::HeadsOfLayer;
                Columns columns = layers ? padded(reader.layerMatrix(runId, metric, filter, first, last), first, last,
                                                  0, rowCount, factor)
                                         : padded(reader.headMatrix(runId, metric, layer, first, last), first, last,
                                                  rowFirst, rowCount, factor);
                if (!shared.empty()) blank(columns, first, shared, layers, heads);
                return columns;
            },
            [this](Columns columns, int, int) { take(std::move(columns)); });
        cursorMoved();
    }

    void runGrew() override {
        if (!run()) return;
        if (!feed_.isFor(run()->key) && feed_.error().isEmpty() && data_.rows() == 0)
            runChanged(); // its row has come now
        else
            feed_.advance();
    }

    void cursorMoved() override {
        const Cursor& cursor = workspace().cursor();
        const Rows rows = shownRows();
        if (run() && feed_.active() &&
            ((rows == Rows::HeadsOfLayer && cursor.layer != layer_) ||
             (rows == Rows::LayersOfHead && cursor.kvHead != head_))) {
            runChanged();
            return;
        }
        CursorMark mark;
        if (run()) {
            mark.x = cursor.step;
            mark.y = rowOfCursor();
            if (cursor.firstStep >= 0) mark.selectedSteps = QCPRange(cursor.firstStep, cursor.lastStep);
        }
        canvas().overlay().setMark(panel_, mark);
        canvas().replotOverlay();
    }

    void themed(const Theme& theme) override {
        colourCells();
        scale_->axis()->setBasePen(QPen(theme.plotAxis, 1));
        scale_->axis()->setTickPen(QPen(theme.plotAxis, 1));
        scale_->axis()->setSubTickPen(Qt::NoPen);
        scale_->axis()->setTickLabelColor(theme.mutedText);
        scale_->axis()->setLabelColor(theme.text);
        scale_->axis()->setLabelFont(panel_->axis(QCPAxis::atLeft)->labelFont());
        scale_->axis()->setTickLabelFont(panel_->axis(QCPAxis::atLeft)->tickLabelFont());
        for (QCPAxis* axis : scale_->axis()->axisRect()->axes()) {
            axis->setBasePen(QPen(theme.border, 1));
            if (axis != scale_->axis()) axis->setTickPen(Qt::NoPen);
        }
    }

    void clickedAt(int, QPointF at) override {
        const int step = int(std::lround(at.x())), row = int(std::lround(at.y()));
        if (!run() || step < 0 || step >= data_.steps() || row < 0 || row >= data_.rows()) return;
        Cursor cursor = workspace().cursor();
        cursor.step = step;
        if (shownRows() == Rows::HeadsOfLayer) {
            const int heads = std::max(run()->row.kvHeads, 1), picked = sequence_->currentData().toInt();
            cursor.kvHead = row % heads;
            cursor.sequence = picked >= 0 ? picked : row / heads;
        } else {
            cursor.layer = row;
            if (const int picked = sequence_->currentData().toInt(); picked >= 0) cursor.sequence = picked;
        }
        workspace().setCursor(cursor);
    }

    QString tooltipAt(int, QPointF at) override {
        const int step = int(std::lround(at.x())), row = int(std::lround(at.y()));
        if (step < 0 || step >= data_.steps() || row < 0 || row >= data_.rows()) return {};
        const MetricInfo& metric = info();
        const Unit shown = unit().unit;
        const float value = data_.at(step, row);
        QString html = QStringLiteral("<b>%1, %2</b><br>%3: <b>%4</b>")
                           .arg(stepName(step), rowTitle(row).toHtmlEscaped(),
                                QString::fromUtf8(metric.title).toHtmlEscaped(), formatValue(shown, double(value)));
        if (std::isnan(value)) html += QStringLiteral("<br>") + undefinedReason(step);
        const double perPixel = heat_->stepsPerPixel();
        if (perPixel > 1) {
            const int first = int(at.x() + 0.5 - perPixel / 2), last = first + int(std::ceil(perPixel));
            const CellStats stats = data_.stats(row, first, last);
            if (stats.count > 0)
                html += tr("<br>Around it, steps %1 to %2: mean %3, minimum %4, maximum %5")
                            .arg(formatCount(std::max(first, 0)), formatCount(std::min(last, data_.steps()) - 1),
                                 formatValue(shown, stats.sum / double(stats.count)),
                                 formatValue(shown, double(stats.min)), formatValue(shown, double(stats.max)));
        }
        return html + QStringLiteral("<p>%1</p>").arg(QString::fromUtf8(metric.help).toHtmlEscaped());
    }

    QString note() const override {
        if (!feed_.error().isEmpty())
            return tr("Reading stopped after %1 steps: %2.").arg(data_.steps()).arg(feed_.error());
        const QString how = aggregate() == Aggregate::Mean  ? tr("mean")
                            : aggregate() == Aggregate::Min ? tr("minimum")
                                                            : tr("maximum");
        QString capped;
        if (colourCapped_)
            capped = tr("The brightest colour stands for everything above %1 (largest: %2).")
                         .arg(formatValue(unit().unit, colours_.upper), formatValue(unit().unit, largest_));
        return sentences(
            {aggregationNote(heat_->stepsPerPixel(), how), tr("Grey: undefined, such as the prefill."), capped,
             info().metric == Metric::ExposedTime && run() ? tr("Times of the link are %1.").arg(timingWord(run()->row))
                                                           : QString(),
             loadingNote(feed_.loading(), feed_.loaded(), feed_.total()), healthNote()});
    }

    int filterParts() const override {
        return FilterSteps | (shownRows() == Rows::HeadsOfLayer ? FilterKvHeads : FilterLayers);
    }

    QString pictureTitle() const override {
        return run() ? tr("%1, %2: %3")
                           .arg(metric_->currentText(), rows_->currentText().toLower(),
                                QString::fromStdString(run()->row.name))
                     : PlotView::pictureTitle();
    }

private:
    void buildPlot() {
        PlotCanvas& plot = canvas();
        panel_ = plot.addPanel(true);
        panel_->axis(QCPAxis::atLeft)->setRangeReversed(true); // layer 0 on top
        panel_->axis(QCPAxis::atLeft)->grid()->setVisible(false);
        setIntegerAxis(panel_->axis(QCPAxis::atBottom), tr("Step (0 is the prefill)"));
        heat_ = new HeatPlottable(panel_->axis(QCPAxis::atBottom), panel_->axis(QCPAxis::atLeft), data_);
        scale_ = new QCPColorScale(&plot);
        scale_->setType(QCPAxis::atRight);
        scale_->setBarWidth(14);
        scale_->setRangeDrag(false);
        scale_->setRangeZoom(false);
        plot.plotLayout()->addElement(0, 1, scale_);
        auto* group = new QCPMarginGroup(&plot);
        panel_->setMarginGroup(QCP::msTop | QCP::msBottom, group);
        scale_->setMarginGroup(QCP::msTop | QCP::msBottom, group);
        QCPColorGradient gradient;
        gradient.clearColorStops();
        for (int i = 0; i <= 32; ++i) gradient.setColorStopAt(i / 32.0, QColor(Theme::sequential(i / 32.0)));
        scale_->setGradient(gradient);
        plot.applyTheme(Theme::current());
        panel_->axis(QCPAxis::atLeft)->grid()->setVisible(false);
        themed(Theme::current());
    }

    const MetricInfo& info() const { return metrics()[std::size_t(std::max(metric_->currentIndex(), 0))]; }
    NamedUnit unit() const { return unitFromName(QString::fromUtf8(info().unit)); }
    Rows shownRows() const { return Rows(std::max(rows_->currentIndex(), 0)); }
    Aggregate aggregate() const { return Aggregate(std::max(aggregate_->currentIndex(), 0)); }
    bool perHead() const { return shownRows() != Rows::Layers || sequence_->currentData().toInt() >= 0; }

    void fillSequences(int count) {
        if (sequence_->count() == count + 1) return;
        const QSignalBlocker quiet(sequence_);
        sequence_->clear();
        sequence_->addItem(tr("All"), -1);
        for (int i = 0; i < count; ++i) sequence_->addItem(QString::number(i), i);
        sequence_->setEnabled(count > 1);
    }

    void nameRows(Rows rows, int sequence, int count, int heads) {
        names_.clear();
        QStringList ticks;
        for (int row = 0; row < count; ++row) {
            if (rows != Rows::HeadsOfLayer) {
                names_ << tr("layer %1").arg(row);
                ticks << QString::number(row);
            } else if (sequence >= 0 || count == heads) {
                names_ << tr("KV head %1").arg(row);
                ticks << QString::number(row);
            } else {
                names_ << tr("sequence %1 KV head %2").arg(row / heads).arg(row % heads);
                ticks << tr("%1.%2").arg(row / heads).arg(row % heads);
            }
        }
        QString title = rows == Rows::Layers                        ? tr("Layer")
                        : rows == Rows::LayersOfHead                ? tr("Layer, KV head %1").arg(head_)
                        : ticks.value(0).contains(QLatin1Char('.')) ? tr("Sequence.KV head of layer %1").arg(layer_)
                                                                    : tr("KV head of layer %1").arg(layer_);
        setNamedAxis(panel_->axis(QCPAxis::atLeft), title, ticks);
    }

    QString rowTitle(int row) const {
        const Rows rows = shownRows();
        if (rows == Rows::HeadsOfLayer) return tr("layer %1, %2").arg(layer_).arg(names_.value(row));
        if (rows == Rows::LayersOfHead) return tr("%1, KV head %2").arg(names_.value(row)).arg(head_);
        return names_.value(row);
    }

    QString undefinedReason(int step) const {
        if (!workspace().filter().hasStep(step)) return tr("The filter leaves this step out.");
        if (step == 0) return tr("The prefill selects nothing.");
        if (step == 1) return tr("The first decode step has no step before it to compare with.");
        return tr("This value was not recorded for this step.");
    }

    std::optional<double> rowOfCursor() const {
        const Cursor& cursor = workspace().cursor();
        if (shownRows() != Rows::HeadsOfLayer) return cursor.layer;
        const int heads = run() ? std::max(run()->row.kvHeads, 1) : 1, picked = sequence_->currentData().toInt();
        if (picked < 0) return cursor.sequence * heads + cursor.kvHead;
        if (picked != cursor.sequence) return std::nullopt;
        return cursor.kvHead;
    }

    void take(Columns columns) {
        if (!columns.values.empty()) data_.append(columns.values);
        if (!feed_.error().isEmpty() && data_.empty()) {
            showEmpty(tr("The trace cannot be read here"), feed_.error());
            return;
        }
        if (data_.empty()) {
            showEmpty(tr("Waiting for the first step"), tr("The run has no recorded step yet."));
            return;
        }
        showEmpty({}, {});
        chooseColours();
        canvas().setFullX({-0.5, data_.steps() - 0.5});
        replot();
    }

    /// Fixed where the metric has a natural range; else from the decode steps, because a prefill takes thousands of
    /// times longer than a step and would leave one colour for all of them.
    void chooseColours() {
        const MetricInfo& metric = info();
        const CellStats decode = data_.range(data_.steps() > 1 ? 1 : 0, data_.steps());
        const double low = std::isnan(metric.fixedMin) ? 0 : metric.fixedMin;
        double high = metric.fixedMax;
        largest_ = decode.count ? double(decode.max) : 0;
        colourCapped_ = false;
        if (std::isnan(high)) {
            high = largest_;
            // One interrupted step must not darken all others: beyond three times the 99th percentile the scale ends.
            const double usual = percentile99();
            if (usual > 0 && high > 3 * usual) {
                high = 1.5 * usual;
                colourCapped_ = true;
            }
        }
        if (!(high > low)) high = low + 1;
        colours_ = {std::min(low, decode.count ? double(decode.min) : low), high};
        if (!std::isnan(metric.fixedMin)) colours_.lower = metric.fixedMin;
        scale_->setDataRange(colours_);
        const QString title = QString::fromUtf8(metric.title);
        setUnitAxis(scale_->axis(),
                    unit().unit == Unit::Count ? QStringLiteral("%1 (%2)").arg(title, QString::fromUtf8(metric.unit))
                                               : title,
                    unit().unit);
        colourCells();
    }

    double percentile99() const {
        std::vector<float> sample;
        const std::size_t cells = std::size_t(data_.steps()) * std::size_t(data_.rows());
        const std::size_t stride = std::max<std::size_t>(1, cells / 8192) | 1; // odd: not in step with the rows
        for (std::size_t i = std::size_t(data_.rows()); i < cells; i += stride) {
            const float v = data_.at(int(i / std::size_t(data_.rows())), int(i % std::size_t(data_.rows())));
            if (!std::isnan(v)) sample.push_back(v);
        }
        if (sample.empty()) return 0;
        const auto at = sample.begin() + std::ptrdiff_t(double(sample.size() - 1) * 0.99);
        std::nth_element(sample.begin(), at, sample.end());
        return double(*at);
    }

    void colourCells() { heat_->setColours(colours_, Theme::current().undefinedCell); }

    StepPyramid data_;
    StepFeed<Columns> feed_;
    QComboBox *metric_ = nullptr, *rows_ = nullptr, *sequence_ = nullptr, *aggregate_ = nullptr;
    QCPAxisRect* panel_ = nullptr;
    QCPColorScale* scale_ = nullptr;
    HeatPlottable* heat_ = nullptr;
    QStringList names_;
    QCPRange colours_{0, 1};
    double largest_ = 0;
    bool colourCapped_ = false;
    int layer_ = 0, head_ = 0;
};

} // namespace

View* makeLocalityView(Workspace& workspace, QWidget* parent) { return new LocalityView(workspace, parent); }

} // namespace kvscope::ui

#include "locality_view.moc"
