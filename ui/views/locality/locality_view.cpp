#include "ui/views/locality/locality_view.h"

#include "profiler/read/next_step.h"
#include "profiler/read/step_kind.h"
#include "profiler/tiles/filtered_tiles.h"
#include "ui/frame/run_names.h"
#include "ui/frame/waiting.h"
#include "ui/plots/colour_bar.h"
#include "ui/plots/margins.h"
#include "ui/plots/plot_canvas.h"
#include "ui/views/heat_choices.h"
#include "ui/views/make_views.h"
#include "ui/views/run_text.h"
#include "ui/widgets/loading_strip.h"

#include <QCheckBox>
#include <QSignalBlocker>
#include <QToolTip>

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <iterator>
#include <string>

namespace kvscope::ui {

namespace {

constexpr std::int64_t kMostCells = std::int64_t(1) << 27; // 1.3 GB of tiles
constexpr int kFirstExported = 64;                         // steps
constexpr int kColdAtOnce = 4096;                          // a growing run of fewer steps is looked through as it grows

/// Recorded for whole layers, not for their KV heads.
bool ofWholeLayers(Metric metric) { return metric == Metric::ExposedTime || metric == Metric::LayerTime; }

} // namespace

LocalityView::LocalityView(Workspace& workspace, QWidget* parent)
    : PlotView(workspace, tr("Locality"), parent), feed_(workspace, this, "locality"), cache_(TileCache::userPlace()) {
    addPickers();
    auto* margins = new QCheckBox(tr("Margins"));
    margins->setObjectName(QStringLiteral("margins"));
    margins->setToolTip(tr("Mean of every step above the heatmap, mean of every row beside it"));
    margins->setChecked(true);
    addTool(margins);
    loading_ = new LoadingStrip(this);
    addAbovePlot(loading_);
    buildPlot();
    connect(margins, &QCheckBox::toggled, this, [this](bool wanted) { margins_->setWanted(wanted); });
    loading_->steer(feed_, [this] {
        loading_->show(feed_);
        updateNote();
    });
    connect(sort_, &QComboBox::activated, this, [this] { sortRows(); });
    connect(sort_, &QComboBox::currentIndexChanged, this, [this] { sortRows(); });
    connect(range_, &QComboBox::currentIndexChanged, this, [this] {
        chooseColours();
        replot();
    });
    connect(metric_, &QComboBox::currentIndexChanged, this, &LocalityView::reload);
    connect(rows_, &QComboBox::currentIndexChanged, this, &LocalityView::reload);
    connect(sequence_, &QComboBox::currentIndexChanged, this, &LocalityView::reload);
    connect(aggregate_, &QComboBox::currentIndexChanged, this, [this] {
        heat_->setAggregate(aggregate());
        replot();
    });
}

void LocalityView::addPickers() {
    metric_ = addPicker(QStringLiteral("metric"), tr("Metric"), tr("What the colour of a cell shows"));
    for (const MetricInfo& info : metrics()) {
        metric_->addItem(QString::fromUtf8(info.title), QString::fromUtf8(info.id));
        metric_->setItemData(metric_->count() - 1, QString::fromUtf8(info.help), Qt::ToolTipRole);
    }
    rows_ =
        addPicker(QStringLiteral("rows"), tr("Rows"), tr("One row per layer, or per KV head of the cursor's layer"));
    rows_->addItem(tr("Layers, all KV heads"));
    rows_->addItem(tr("Layers, cursor's KV head"));
    rows_->addItem(tr("KV heads of cursor's layer"));
    sequence_ = addPicker(QStringLiteral("sequence"), tr("Sequence"), tr("One sequence of the batch, or all of them"));
    aggregate_ =
        addPicker(QStringLiteral("aggregate"), tr("Zoomed out"), tr("What a pixel shows that covers several steps"));
    addAggregates(*aggregate_);
    range_ = addPicker(QStringLiteral("colourRange"), tr("Colours"),
                       tr("From which to which value the colours go; the scale beside the plot shows it"));
    addColourRanges(*range_);
    sort_ = addPicker(QStringLiteral("sort"), tr("Sort"),
                      tr("Order of the rows: by their mean over the steps in view. Choose again after zooming to "
                         "sort by what is in view then"));
    sort_->addItem(tr("As recorded"));
    sort_->addItem(tr("Highest first"));
    sort_->addItem(tr("Lowest first"));
}

NumberWriter LocalityView::numbers() const {
    if (data_.empty() || !run()) return {};
    const QCPRange visible = const_cast<LocalityView*>(this)->canvas().visibleX();
    const int first = std::max(0, int(std::ceil(visible.lower)));
    const int last = std::min(data_.steps() - 1, int(std::floor(visible.upper)));
    return [key = run()->key, read = readTile_, names = lines_.names(), first, last](NumberSink& sink) {
        TraceReader reader(key.path.toStdString());
        reader.setInterrupt(sink.interrupt());
        std::string lines = "step";
        for (const QString& name : names)
            lines += ',' + QString(name).replace(QLatin1Char(','), QLatin1Char(' ')).toStdString();
        sink.add(lines += '\n');
        for (int next = first; next <= last;) {
            // Visits recorded steps only, because a trace may have large gaps between the numbers of its steps.
            const int from = nextRecordedStep(reader, key.runId, next);
            if (from > last) break;
            const int part = from == first ? kFirstExported : kTileSteps; // a preview wants only the first lines
            const int to = std::min({(from / kTileSteps + 1) * kTileSteps - 1, from + part - 1, last});
            const auto tile = read(reader, from, to);
            for (const StepRow& step : reader.steps(key.runId, from, to)) {
                lines = std::to_string(step.step);
                for (int row = 0; row < tile->rows(); ++row) {
                    lines += ',';
                    const float value = tile->at(step.step - from, row);
                    if (!std::isnan(value)) fmt::format_to(std::back_inserter(lines), "{:.9g}", value);
                }
                sink.add(lines += '\n');
            }
            next = to + 1;
            sink.progress(double(next - first) / double(last - first + 1));
        }
    };
}

QString LocalityView::sql() const {
    if (!run() || data_.empty()) return {};
    SqlScope scope = sqlScope();
    const Rows rows = shownRows();
    scope.sequence = sequence_->currentData().toInt();
    if (rows == Rows::HeadsOfLayer) scope.layer = lines_.shown().layer;
    if (rows == Rows::LayersOfHead) scope.kvHead = lines_.shown().kvHead;
    return localitySql(scope, info().metric, rows == Rows::HeadsOfLayer);
}

void LocalityView::runChanged() {
    data_.reset(0);
    feed_.stop();
    lines_.clear();
    cold_.clear();
    coldAmong_ = 0;
    heat_->setOrder({});
    loading_->show(feed_);
    if (showEmptyWithoutRun(tr("This view shows, layer by layer and step by step, how much of the last selection a "
                               "step keeps: bright is local, dark means many new blocks.")))
        return;
    const RunRow& row = run()->row;
    fillSequences(row.sequences);
    panel_->axis(QCPAxis::atBottom)->setLabel(stepTitle(row));
    if (row.layers <= 0) { // a live run whose row is still to come
        const auto [title, why] = waitingText(
            run(), tr("Waiting for the first step"),
            tr("The run has started. Its prompt is being read; the first column appears when that is done."));
        showEmpty(title, why, {stopRun()});
        return;
    }
    if (perHead() && row.level == RecordLevel::Counters) {
        showEmpty(tr("Per-head values were not recorded"),
                  tr("This run was recorded at level counters. Record with level selections or full, or show all KV "
                     "heads and all sequences."),
                  {{tr("Show all KV heads and sequences"), [this] {
                        rows_->setCurrentIndex(int(Rows::Layers));
                        sequence_->setCurrentIndex(0);
                    }}});
        return;
    }
    const Cursor& cursor = workspace().cursor();
    const Rows rows = shownRows();
    const LocalityRows::Shown lines{rows, sequence_->currentData().toInt(), cursor.layer, cursor.kvHead,
                                    std::max(row.kvHeads, 1)};
    HeatRequest request;
    request.runId = run()->key.runId;
    request.metric = info().metric;
    request.rows = rows == Rows::HeadsOfLayer ? HeatRequest::Rows::Heads : HeatRequest::Rows::Layers;
    request.layer = rows == Rows::HeadsOfLayer ? lines.layer : 0;
    request.filter = {lines.sequence, rows == Rows::LayersOfHead ? lines.kvHead : -1};
    request.factor = unit().factor;
    const int rowCount = rowsOf(request, row);
    if (std::int64_t(rowCount) * row.steps > kMostCells) {
        showEmpty(tr("This is more than one picture holds"),
                  tr("%1 rows of %2 steps. Choose one sequence, or layers instead of KV heads.")
                      .arg(formatCount(rowCount), formatCount(row.steps)));
        return;
    }
    data_.reset(rowCount);
    lines_.reset(lines, rowCount, appliedFilter());
    heat_->setOrder(lines_.order());
    labelRows();
    canvas().setFullY(0, {-0.5, heat_->places() - 0.5});
    canvas().setMinimumSpan(2);
    showReading();
    readTile_ = [request, cache = cache_, filter = appliedFilter()](TraceReader& reader, int first, int last) {
        return readFilteredTile(reader, request, filter, first, last, cache);
    };
    feed_.start(
        run()->key, readTile_,
        [request, filter = appliedFilter()](TraceReader& reader, int steps, int stride) {
            return readFilteredPreview(reader, request, filter, steps, stride);
        },
        [this](TileFeed<HeatTile>::Arrival arrival) { take(std::move(arrival)); });
    askCold();
    cursorMoved();
}

void LocalityView::runGrew() {
    if (!run()) return;
    if (!feed_.isFor(run()->key) && feed_.error().isEmpty() && data_.rows() == 0)
        runChanged(); // the run's row was not there before
    else
        feed_.advance();
    // Later steps are cold where a server's requests select for the first time. All steps are looked through again for
    // them: of a long run that grows, each time that it has grown by an eighth.
    const int steps = run()->row.steps, least = steps > kColdAtOnce && isGrowing(*run()) ? coldAmong_ / 8 : 0;
    if (steps - coldAmong_ > least) askCold();
}

void LocalityView::askCold() {
    coldAmong_ = run()->row.steps;
    if (coldSteps() == ColdSteps::Counted || coldAmong_ < 2) return;
    workspace().query<std::vector<int>>(
        this, "cold steps", run()->key,
        [runId = run()->key.runId](TraceReader& reader) { return coldStepsOf(reader, runId); },
        [this](std::vector<int> cold) {
            if (cold == cold_) return;
            cold_ = std::move(cold);
            if (data_.empty()) return;
            order();
            updateNote();
        });
}

int LocalityView::coldBetween(int first, int last) const {
    return int(std::lower_bound(cold_.begin(), cold_.end(), last) -
               std::lower_bound(cold_.begin(), cold_.end(), first));
}

Numbered<CellStats> LocalityView::meansOver(int first, int last) const {
    Numbered<CellStats> all(data_.rows()), part(data_.rows());
    const auto add = [&](int from, int to) {
        if (from >= to) return;
        data_.aggregate(from, to, part);
        for (std::size_t row = 0; row < all.size(); ++row) all[row].add(part[row]);
    };
    int from = first;
    for (const int cold : cold_)
        if (cold >= first && cold < last) add(from, cold), from = cold + 1;
    add(from, last);
    const bool nothing = std::all_of(all.begin(), all.end(), [](const CellStats& row) { return row.count == 0; });
    if (nothing) data_.aggregate(first, last, all);
    return all;
}

void LocalityView::cursorMoved() {
    const Cursor& cursor = workspace().cursor();
    const Rows rows = shownRows();
    if (run() && feed_.active() &&
        ((rows == Rows::HeadsOfLayer && cursor.layer != lines_.shown().layer) ||
         (rows == Rows::LayersOfHead && cursor.kvHead != lines_.shown().kvHead))) {
        runChanged();
        return;
    }
    CursorMark mark = stepMark();
    if (const auto row = lines_.rowOf(cursor); row && run())
        if (const auto place = lines_.placeOf(*row)) mark.y = *place;
    showMark(mark, {panel_}, {canvas().panels()[margins_->stepPanel()]});
}

void LocalityView::visibleStepsChanged() {
    feed_.prefer(canvas().visibleX().lower, canvas().visibleX().upper);
    summariseRows();
}

void LocalityView::themed(const Theme& theme) {
    fillColourBar(*bar_, Theme::sequential);
    colourCells();
    margins_->applyTheme(theme);
    themeColourBar(*bar_, *panel_, theme);
}

void LocalityView::clickedAt(int panel, QPointF at) {
    const int step = int(std::lround(at.x())), place = int(std::lround(at.y()));
    if (!run() || step < 0 || step >= data_.steps()) return;
    Cursor cursor = workspace().cursor();
    cursor.step = step;
    if (panel == 0) {
        if (place < 0 || place >= heat_->places()) return;
        lines_.point(cursor, heat_->dataRow(place));
    }
    workspace().setCursor(cursor);
}

int LocalityView::filterParts() const {
    const Metric metric = info().metric;
    return FilterLayers | FilterSteps | FilterText | (ofWholeLayers(metric) ? 0 : FilterKvHeads) |
           (metric == Metric::LayerTime ? FilterComponent : 0);
}

QString LocalityView::pictureTitle() const {
    QString rowsText = rows_->currentText();
    if (rowsText.startsWith(QLatin1Char('L'))) rowsText[0] = QLatin1Char('l'); // not the K of KV
    return run() ? tr("%1, %2: %3").arg(metric_->currentText(), rowsText, QString::fromStdString(run()->row.name))
                 : PlotView::pictureTitle();
}

void LocalityView::buildPlot() {
    PlotCanvas& plot = canvas();
    panel_ = plot.addPanel(true);
    panel_->axis(QCPAxis::atLeft)->setRangeReversed(true); // layer 0 on top
    panel_->axis(QCPAxis::atLeft)->grid()->setVisible(false);
    setIntegerAxis(panel_->axis(QCPAxis::atBottom), stepTitle({}));
    heat_ = new HeatPlottable(panel_->axis(QCPAxis::atBottom), panel_->axis(QCPAxis::atLeft), data_);
    margins_ = new Margins(
        plot, panel_, [this](int) { return heat_->columnMeans(); }, this);
    connect(margins_, &Margins::rowHovered, this, [this](int place, QPoint global) {
        const QString html = rowTooltip(place);
        if (!html.isEmpty()) QToolTip::showText(global, html, &canvas(), {}, 60'000);
    });
    connect(margins_, &Margins::rowHoverEnded, this, [] { QToolTip::hideText(); });
    connect(margins_, &Margins::rowClicked, this, [this](int place) {
        if (!run() || place < 0 || place >= heat_->places()) return;
        Cursor cursor = workspace().cursor();
        lines_.point(cursor, heat_->dataRow(place));
        workspace().setCursor(cursor);
    });
    bar_ = addColourBar(plot, margins_->layoutRow(), 2, panel_);
    plot.applyTheme(Theme::current());
    panel_->axis(QCPAxis::atLeft)->grid()->setVisible(false);
    themed(Theme::current());
}

void LocalityView::fillSequences(int count) {
    if (sequence_->count() == count + 1) return;
    const QSignalBlocker quiet(sequence_);
    sequence_->clear();
    sequence_->addItem(tr("All"), -1);
    for (int i = 0; i < count; ++i) sequence_->addItem(QString::number(i), i);
    sequence_->setEnabled(count > 1);
}

void LocalityView::labelRows() {
    QStringList ticks;
    for (int place = 0; place < heat_->places(); ++place) ticks << lines_.tick(heat_->dataRow(place));
    setNamedAxis(panel_->axis(QCPAxis::atLeft), lines_.axisTitle(), ticks);
}

std::pair<int, int> LocalityView::visibleSteps() {
    const QCPRange visible = canvas().visibleX();
    const int first = std::clamp(int(std::ceil(visible.lower)), 0, data_.steps());
    return {first, std::clamp(int(std::floor(visible.upper)) + 1, first, data_.steps())};
}

void LocalityView::sortRows() {
    sortedOver_ = visibleSteps();
    order();
}

void LocalityView::order() {
    Numbered<CellStats> stats;
    if (sorting() != Sort::AsRecorded && !data_.empty()) stats = meansOver(sortedOver_.first, sortedOver_.second);
    lines_.sort(sorting(), stats);
    if (heat_->order() != lines_.order()) {
        heat_->setOrder(lines_.order());
        labelRows();
        cursorMoved();
    }
    summariseRows();
    replot();
}

void LocalityView::summariseRows() {
    const auto [first, last] = visibleSteps();
    rowStats_ = meansOver(first, last);
    std::vector<float> means;
    for (int place = 0; place < heat_->places(); ++place)
        means.push_back(rowStats_[heat_->dataRow(place)].value(Aggregate::Mean));
    margins_->rows().setValues(std::move(means));
}

void LocalityView::take(TileFeed<HeatTile>::Arrival arrival) {
    if (arrival.tile && arrival.tile->rows() == data_.rows()) {
        data_.tiles().announce(arrival.total);
        if (arrival.previewStride > 0)
            data_.tiles().setPreview(std::move(arrival.tile), arrival.previewStride);
        else
            data_.tiles().place(arrival.first, std::move(arrival.tile), arrival.times);
    }
    loading_->show(feed_);
    if (!feed_.error().isEmpty() && data_.empty()) {
        showEmpty(tr("The trace cannot be read here"), feed_.error());
        return;
    }
    if (data_.empty()) {
        const auto [title, why] =
            waitingText(run(), tr("Waiting for the first step"), tr("The run has no recorded step yet."));
        showEmpty(title, why, {stopRun()});
        return;
    }
    // The first decode steps of a live run have no locality yet.
    const bool enough = data_.steps() > 3 || !appliedFilter().empty();
    if (enough && !feed_.loading() && data_.range(1, data_.steps()).count == 0 && explainNothing()) return;
    showEmpty({}, {});
    chooseColours();
    canvas().setFullX({-0.5, data_.steps() - 0.5});
    feed_.prefer(canvas().visibleX().lower, canvas().visibleX().upper);
    if (lines_.order().empty() || !canvas().isZoomed())
        sortRows();
    else
        order(); // orders the rows by the same steps, of which more are known now
}

void LocalityView::showMetric(Metric wanted) {
    for (std::size_t i = 0; i < metrics().size(); ++i)
        if (metrics()[i].metric == wanted) metric_->setCurrentIndex(int(i));
}

void LocalityView::chooseColours() {
    if (data_.empty()) return;
    const MetricInfo& metric = info();
    scale_ = colourScale(data_, metric, ColourRange(std::max(range_->currentIndex(), 0)));
    const QCPRange colours(scale_.low, scale_.high);
    showColourRange(colours, unit().unit, *bar_, *margins_);
    const QString title = QString::fromUtf8(metric.title);
    setUnitAxis(bar_->axis(),
                unit().unit == Unit::Count ? QStringLiteral("%1 (%2)").arg(title, QString::fromUtf8(metric.unit))
                                           : title,
                unit().unit);
    colourCells();
}

View* makeLocalityView(Workspace& workspace, QWidget* parent) { return new LocalityView(workspace, parent); }

} // namespace kvscope::ui
