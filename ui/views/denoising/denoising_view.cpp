#include "ui/views/denoising/denoising_view.h"

#include "profiler/read/next_step.h"
#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/plots/colour_bar.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/margin_plottables.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/step_columns.h"
#include "ui/views/make_views.h"
#include "ui/views/run_text.h"
#include "ui/widgets/loading_strip.h"

#include <QComboBox>
#include <QShortcut>
#include <QSignalBlocker>

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <iterator>
#include <string>
#include <utility>

namespace kvscope::ui {

namespace {

constexpr int kExportedAtOnce = 256;     // steps
constexpr int kDensityShare = 7;         // the density panel takes one part in so many of the plot's height,
constexpr int kLeastDensity = 44;        // but at least this,
constexpr int kMostDensity = 92;         // and at most this height: logical pixels, without labels
constexpr int kLeastHeight = 320;        // a plot of less height has no density panel
constexpr double kChangesInRange = 0.98; // the colours cover this share of the changes

std::string cellLine(const ForwardRow& row, const ForwardCell& cell, int sequence) {
    const auto real = [](float value) { return std::isnan(value) ? std::string() : fmt::format("{:.7g}", value); };
    return fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", row.step, sequence, row.block,
                       row.denoiseStep, row.final ? "final" : "denoise", cell.position, cell.input,
                       cell.masked() ? std::to_string(cell.candidate) : std::string(), real(cell.confidence),
                       cell.written ? 1 : 0, real(cell.change), real(cell.active),
                       row.sparseLayers > 0 && cell.activeLayers >= 0 ? std::to_string(cell.activeLayers)
                                                                      : std::string(),
                       row.sparseLayers, real(row.density), real(row.meanRow));
}

} // namespace

DenoisingView::DenoisingView(Workspace& workspace, QWidget* parent)
    : PlotView(workspace, tr("Denoising"), parent), feed_(workspace, this, "denoising") {
    addPickers();
    loading_ = new LoadingStrip(this);
    addAbovePlot(loading_);
    buildPlot();
    addPositionKeys();
    loading_->steer(feed_, [this] {
        loading_->show(feed_);
        updateNote();
    });
    canvas().installEventFilter(this);
    canvas().applyTheme(Theme::current());
    themed(Theme::current());
}

void DenoisingView::addPickers() {
    number_ = addPicker(QStringLiteral("colouring"), tr("Colour"), tr("What the colour of a cell shows"));
    number_->addItem(tr("Confidence"));
    number_->setItemData(0, tr("Of masked positions: the probability of the token that would be written there"),
                         Qt::ToolTipRole);
    number_->addItem(tr("Change score"));
    number_->setItemData(1, tr("Mean square change of a token's queries since the forward before"), Qt::ToolTipRole);
    number_->addItem(tr("Active tokens"));
    number_->setItemData(2, tr("Which tokens attended to the prefix anew; the others used what they had"),
                         Qt::ToolTipRole);
    rows_ = addPicker(QStringLiteral("rows"), tr("Rows"), tr("What a row of the picture is"));
    rows_->addItem(tr("Sequence"));
    rows_->setItemData(0, tr("A position of the sequence: the blocks go down as stairs"), Qt::ToolTipRole);
    rows_->addItem(tr("Block"));
    rows_->setItemData(1, tr("A place in the block: the blocks stand side by side"), Qt::ToolTipRole);
    layer_ = addPicker(QStringLiteral("layer"), tr("Layer"),
                       tr("Layer whose active tokens, changes and density are shown, or the mean of all of them"));
    head_ = addPicker(QStringLiteral("kvHead"), tr("KV head"),
                      tr("KV head whose active tokens, changes and density are shown, or the mean of all of them"));
    sequence_ = addPicker(QStringLiteral("sequence"), tr("Sequence"), tr("Sequence of the batch"));
    for (QComboBox* picker : {layer_, head_, sequence_})
        connect(picker, &QComboBox::currentIndexChanged, this, &DenoisingView::takePickers);
    connect(number_, &QComboBox::currentIndexChanged, this, [this] {
        chooseColours();
        replot();
    });
    connect(rows_, &QComboBox::currentIndexChanged, this, &DenoisingView::chooseRows);
}

void DenoisingView::buildPlot() {
    legend_ = new LegendStrip(&canvas());
    canvas().plotLayout()->addElement(0, 0, legend_);
    panel_ = canvas().addPanel(true);
    densityPanel_ = canvas().addPanel(false);
    QCPAxis *steps = panel_->axis(QCPAxis::atBottom), *positions = panel_->axis(QCPAxis::atLeft);
    positions->setRangeReversed(true); // a text is read downwards
    setIntegerAxis(positions, tr("Position"));
    cells_ = new DenoisePlottable(steps, positions, data_);
    bar_ = addColourBar(canvas(), 1, 1, panel_);
    QCPAxis *below = densityPanel_->axis(QCPAxis::atBottom), *shares = densityPanel_->axis(QCPAxis::atLeft);
    canvas().setFullY(1, {0, 1.04});
    setUnitAxis(shares, tr("Density"), Unit::Fraction);
    const auto halves = QSharedPointer<QCPAxisTickerFixed>::create();
    halves->setTickStep(0.5);
    shares->setTicker(halves);
    for (int curve = 0; curve < int(curves_.size()); ++curve)
        curves_[std::size_t(curve)] =
            new StepMargin(below, shares, [this, curve](int pixels) { return densities(Curve(curve), pixels); });
    for (const Curve line : {MeanDensity, RowDensity}) curves_[std::size_t(line)]->setFilled(false);
    placeDensity();
    connect(&canvas(), &QCustomPlot::afterReplot, this, [this] { // after a zoom
        if (cells_->marksVisible() == legendHasDots_) return;
        fillLegend();
        replot();
    });
}

void DenoisingView::addPositionKeys() {
    const auto add = [this](const QKeySequence& keys, const QString& words, int by) {
        auto* shortcut = new QShortcut(keys, this, nullptr, nullptr, Qt::WidgetWithChildrenShortcut);
        shortcut->setWhatsThis(words);
        connect(shortcut, &QShortcut::activated, this, [this, by] { movePosition(by); });
    };
    add(QKeySequence(Qt::ALT | Qt::Key_Up), tr("Mark the position before"), -1);
    add(QKeySequence(Qt::ALT | Qt::Key_Down), tr("Mark the position after"), 1);
}

DenoisingView::Number DenoisingView::number() const { return Number(std::max(number_->currentIndex(), 0)); }

DenoisingView::Rows DenoisingView::rows() const { return rows_->currentIndex() == 1 ? Rows::Block : Rows::Sequence; }

void DenoisingView::chooseRows() {
    const bool zoomed = canvas().isZoomed();
    const QCPRange steps = canvas().visibleX();
    cells_->setRows(rows());
    panel_->axis(QCPAxis::atLeft)->setLabel(rows() == Rows::Block ? tr("Place in the block") : tr("Position"));
    if (data_.empty()) return;
    canvas().setFullY(0, fullRows());
    canvas().forgetZoom(); // the rows have changed their meaning
    if (zoomed) canvas().zoomTo(steps);
    placeMark();
    replot();
}

QCPRange DenoisingView::fullRows() const {
    return rows() == Rows::Block ? QCPRange(-0.5, data_.longestBlock() - 0.5)
                                 : QCPRange(data_.lowest() - 0.5, data_.highest() + 0.5);
}

int DenoisingView::positionAt(int step, int row) const {
    if (rows() == Rows::Sequence) return row >= data_.lowest() && row <= data_.highest() ? row : -1;
    const Forward forward = data_.at(step);
    return forward && row >= 0 && row <= forward.lastPosition() - forward.firstPosition()
               ? forward.firstPosition() + row
               : -1;
}

DenoiseRequest DenoisingView::wanted() const {
    const Cursor& cursor = workspace().cursor();
    DenoiseRequest request;
    request.runId = run() ? run()->key.runId : 0;
    request.sequence = cursor.sequence;
    request.layer = allLayers_ ? -1 : cursor.layer;
    request.kvHead = allHeads_ ? -1 : cursor.kvHead;
    request.filter = appliedFilter();
    return request;
}

void DenoisingView::runChanged() {
    data_.reset();
    feed_.stop();
    loading_->show(feed_);
    texts_.clear();
    position_ = -1;
    if (showEmptyWithoutRun(
            tr("This view shows, step by step, which positions of a block or canvas a diffusion model has "
               "written, how sure it was, and which tokens attended to the prefix anew.")))
        return;
    fillPickers(run()->row);
    placeDensity();
    shown_ = wanted();
    showPickers();
    if (explainRun()) return;
    cells_->setAllSteps(shown_.filter.steps.empty() && shown_.filter.text.empty());
    canvas().setMinimumSpan(2);
    canvas().setMinimumHeight(0, 2);
    showReading();
    feed_.start(
        run()->key,
        [request = shown_](TraceReader& reader, int first, int last) { return readTile(reader, request, first, last); },
        [request = shown_](TraceReader& reader, int steps, int stride) {
            return readPreview(reader, request, steps, stride);
        },
        [this](TileFeed<DenoiseTile>::Arrival arrival) { take(std::move(arrival)); });
    placeMark();
}

void DenoisingView::runGrew() {
    if (!run()) return;
    if (!feed_.isFor(run()->key) && feed_.error().isEmpty() && data_.steps() == 0)
        runChanged(); // the run's row has come only now
    else
        feed_.advance();
}

void DenoisingView::cursorMoved() {
    const DenoiseRequest now = wanted();
    if (run() && (now.layer != shown_.layer || now.kvHead != shown_.kvHead || now.sequence != shown_.sequence)) {
        if (feed_.active()) {
            runChanged();
            return;
        }
        shown_ = now; // the run has nothing for this view, but the pickers follow the cursor
        showPickers();
    }
    placeMark();
}

void DenoisingView::visibleStepsChanged() { feed_.prefer(canvas().visibleX().lower, canvas().visibleX().upper); }

void DenoisingView::fillPickers(const RunRow& row) {
    const auto fill = [](QComboBox* picker, int count, const QString& all) {
        const int items = std::max(count, 1) + (all.isEmpty() ? 0 : 1);
        if (picker->count() == items) return;
        const QSignalBlocker quiet(picker);
        picker->clear();
        if (!all.isEmpty()) picker->addItem(all, -1);
        for (int i = 0; i < std::max(count, 1); ++i) picker->addItem(QString::number(i), i);
        picker->setEnabled(count > 1);
    };
    fill(layer_, row.layers, tr("All"));
    fill(head_, row.kvHeads, tr("All"));
    fill(sequence_, row.sequences, {});
}

void DenoisingView::showPickers() {
    const std::pair<QComboBox*, int> pickers[] = {
        {layer_, shown_.layer + 1}, {head_, shown_.kvHead + 1}, {sequence_, shown_.sequence}};
    for (const auto& [picker, index] : pickers) {
        const QSignalBlocker quiet(picker);
        picker->setCurrentIndex(index);
    }
}

void DenoisingView::takePickers() {
    if (!run()) return;
    allLayers_ = layer_->currentData().toInt() < 0;
    allHeads_ = head_->currentData().toInt() < 0;
    Cursor cursor = workspace().cursor();
    if (!allLayers_) cursor.layer = layer_->currentData().toInt();
    if (!allHeads_) cursor.kvHead = head_->currentData().toInt();
    cursor.sequence = std::max(sequence_->currentIndex(), 0);
    workspace().setCursor(cursor);
    cursorMoved(); // the cursor may point elsewhere than before
}

void DenoisingView::take(TileFeed<DenoiseTile>::Arrival arrival) {
    if (arrival.tile) {
        data_.announce(arrival.total);
        if (arrival.previewStride > 0)
            data_.setPreview(std::move(arrival.tile), arrival.previewStride);
        else
            data_.place(arrival.first, std::move(arrival.tile), arrival.times);
    }
    loading_->show(feed_);
    if (data_.empty()) {
        if (!feed_.loading()) explainNothing();
        return;
    }
    showEmpty({}, {});
    if (densityShown_ != wantsDensity()) placeDensity();
    canvas().setFullX({-0.5, data_.steps() - 0.5});
    canvas().setFullY(0, fullRows());
    feed_.prefer(canvas().visibleX().lower, canvas().visibleX().upper);
    chooseColours();
    placeMark();
    replot();
}

void DenoisingView::chooseColours() {
    if (number() == Number::Change) {
        const double most = double(data_.changeQuantile(kChangesInRange));
        highestChange_ = most > 0 ? most : 1;
    }
    const double highest = number() == Number::Change ? highestChange_ : 1;
    cells_->setNumber(number(), highest);
    cells_->setMarksActive(marksActive());
    bar_->setDataRange({0, highest});
    const auto [title, unit] = number() == Number::Confidence ? std::pair(tr("Confidence"), Unit::Fraction)
                               : number() == Number::Change   ? std::pair(tr("Change score"), Unit::Count)
                                                              : std::pair(tr("Active"), Unit::Fraction);
    if (number() == Number::Change) {
        bar_->axis()->setTicker(QSharedPointer<QCPAxisTicker>::create());
        bar_->axis()->setLabel(title);
    } else {
        setUnitAxis(bar_->axis(), title, unit);
    }
    fillLegend();
}

void DenoisingView::themed(const Theme& theme) {
    cells_->applyTheme(theme);
    fillColourBar(*bar_, Theme::sequential);
    themeColourBar(*bar_, *panel_, theme);
    legend_->applyTheme(theme);
    curves_[DenseSteps]->setPen(QPen(DenoisePlottable::dense(theme), 1));
    curves_[ChosenDensity]->setPen(QPen(theme.runA, 1));
    curves_[MeanDensity]->setPen(QPen(theme.text, 1));
    curves_[RowDensity]->setPen(QPen(theme.runB, 1));
    for (StepMargin* curve : curves_) curve->setAntialiased(false);
    chooseColours();
}

std::vector<float> DenoisingView::densities(Curve curve, int pixels) {
    const QCPRange visible = canvas().visibleX();
    std::vector<float> values(std::size_t(pixels), std::numeric_limits<float>::quiet_NaN());
    if (data_.empty() || (curve == MeanDensity && isMeanOfAll())) return values;
    const auto columns = stepColumns(visible.lower, visible.upper, pixels, data_.steps());
    for (std::size_t x = 0; x < columns.size(); ++x) {
        if (x > 0 && columns[x] == columns[x - 1]) {
            values[x] = values[x - 1];
            continue;
        }
        double sum = 0;
        int count = 0, dense = 0;
        for (int step = data_.next(columns[x].first, columns[x].last); step < columns[x].last;
             step = data_.next(step + 1, columns[x].last)) {
            const Forward forward = data_.at(step);
            if (!forward) continue;
            dense += forward.row->dense ? 1 : 0;
            const float value = curve == MeanDensity  ? forward.row->meanDensity
                                : curve == RowDensity ? forward.row->meanRow
                                                      : forward.row->density;
            if (std::isnan(value)) continue;
            sum += double(value);
            ++count;
        }
        if (curve == DenseSteps)
            values[x] = dense > 0 && count == 0 ? 1.f : values[x]; // such a forward reads the whole prefix
        else if (count > 0)
            values[x] = float(sum / count);
    }
    return values;
}

void DenoisingView::clickedAt(int panel, QPointF at) {
    const int step = int(std::lround(at.x())), row = int(std::lround(at.y()));
    if (!run() || step < 0 || step >= data_.steps()) return;
    Cursor cursor = workspace().cursor();
    cursor.step = step;
    const int position = panel == 0 && !data_.empty() ? positionAt(step, row) : -1;
    if (position >= 0) {
        position_ = position;
        if (run()->row.blockSize > 0) cursor.block = position_ / run()->row.blockSize;
    }
    workspace().setCursor(cursor);
    placeMark(); // the cursor may point elsewhere than before
}

void DenoisingView::movePosition(int by) {
    if (!run() || data_.empty()) return;
    const Forward forward = data_.at(workspace().cursor().step);
    const bool inside = forward && position_ >= forward.firstPosition() && position_ <= forward.lastPosition();
    if (rows() == Rows::Block && !forward) return;
    const bool goesOn = rows() == Rows::Block ? inside : position_ >= 0;
    const int next = goesOn ? position_ + by : forward ? forward.firstPosition() : data_.lowest();
    position_ = rows() == Rows::Block ? std::clamp(next, forward.firstPosition(), forward.lastPosition())
                                      : std::clamp(next, data_.lowest(), data_.highest());
    Cursor cursor = workspace().cursor();
    if (run()->row.blockSize > 0) cursor.block = position_ / run()->row.blockSize;
    workspace().setCursor(cursor);
    placeMark();
    canvas().revealMark();
}

std::optional<double> DenoisingView::rowOfMark() const {
    if (rows() == Rows::Sequence) return position_;
    const Forward forward = data_.at(workspace().cursor().step);
    if (!forward || position_ < forward.firstPosition() || position_ > forward.lastPosition()) return {};
    return position_ - forward.firstPosition();
}

void DenoisingView::placeMark() {
    CursorMark mark = stepMark();
    // The marked position stays as long as the cursor is in its KV block.
    if (run() && position_ >= 0 && run()->row.blockSize > 0 &&
        workspace().cursor().block == position_ / run()->row.blockSize)
        mark.y = rowOfMark();
    showMark(mark, {panel_}, {densityPanel_});
}

bool DenoisingView::eventFilter(QObject* watched, QEvent* event) {
    if (watched == &canvas() && event->type() == QEvent::Resize) placeDensity();
    return PlotView::eventFilter(watched, event);
}

bool DenoisingView::wantsDensity() const {
    if (const_cast<DenoisingView*>(this)->canvas().height() < kLeastHeight) return false;
    return !onCanvas() || data_.hasSparse(); // what is read there is everything, unless tokens are evicted
}

void DenoisingView::placeDensity() {
    const bool shown = wantsDensity();
    const int height = shown ? std::clamp(canvas().height() / kDensityShare, kLeastDensity, kMostDensity) : 0;
    const bool changes = std::exchange(densityShown_, shown) != shown;
    densityPanel_->setVisible(shown);
    densityPanel_->setAutoMargins(shown ? QCP::msAll : QCP::msLeft | QCP::msRight); // a hidden panel takes no room
    if (!shown) densityPanel_->setMargins({});
    densityPanel_->setSizeConstraintRect(shown ? QCPLayoutElement::scrInnerRect : QCPLayoutElement::scrOuterRect);
    densityPanel_->setMinimumSize(0, height);
    densityPanel_->setMaximumSize(QWIDGETSIZE_MAX, height);
    QCPAxis *above = panel_->axis(QCPAxis::atBottom), *below = densityPanel_->axis(QCPAxis::atBottom);
    const QString steps = run() ? stepTitle(run()->row) : tr("Step");
    setIntegerAxis(above, shown ? QString() : steps);
    setIntegerAxis(below, shown ? steps : QString());
    above->setTickLabels(!shown); // the lowest panel has the numbers of the steps
    below->setTickLabels(shown);
    if (changes) fillLegend(); // names what is seen
}

NumberWriter DenoisingView::numbers() const {
    if (data_.empty() || !run()) return {};
    const QCPRange visible = const_cast<DenoisingView*>(this)->canvas().visibleX();
    const int first = std::max(0, int(std::ceil(visible.lower)));
    const int last = std::min(data_.steps() - 1, int(std::floor(visible.upper)));
    return [path = run()->key.path.toStdString(), request = shown_, first, last](NumberSink& sink) {
        TraceReader reader(path);
        reader.setInterrupt(sink.interrupt());
        sink.add("step,seq,block,denoise_step,kind,position,input_id,candidate,confidence,written,change,active,"
                 "active_layers,sparse_layers,density,row_density\n");
        for (int next = first; next <= last;) {
            // Visits recorded steps only, because a trace may have large gaps between the numbers of its steps.
            const int from = nextRecordedStep(reader, request.runId, next);
            if (from > last) break;
            const int to = std::min(from + kExportedAtOnce - 1, last);
            next = to + 1;
            const ForwardRows forwards = readForwards(reader, request, from, to);
            for (const ForwardRow& row : forwards.rows) {
                std::string lines;
                for (const ForwardCell& cell : forwards.cellsOf(row)) lines += cellLine(row, cell, request.sequence);
                sink.add(lines);
            }
            sink.progress(double(to + 1 - first) / double(last - first + 1));
        }
    };
}

QString DenoisingView::sql() const {
    if (!run() || data_.empty()) return {};
    SqlScope scope = sqlScope();
    scope.layer = shown_.layer;
    scope.sequence = shown_.sequence;
    scope.kvHead = shown_.kvHead;
    return denoisingSql(scope, denoisingBlock(run()->row));
}

View* makeDenoisingView(Workspace& workspace, QWidget* parent) { return new DenoisingView(workspace, parent); }

} // namespace kvscope::ui
