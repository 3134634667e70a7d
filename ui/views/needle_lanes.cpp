#include "ui/views/needle_lanes.h"

#include "profiler/tiles/tile_reader.h"
#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/plots/needle_plottable.h"
#include "ui/plots/plot_canvas.h"
#include "ui/views/run_text.h"

#include <QEvent>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {
namespace {

constexpr std::size_t kMostLanes = 6;
constexpr int kRoomForAll = 480;           // logical pixels; a lower plot has the lane of the fact that is asked for
constexpr int kLaneHeight = 24;            // logical pixels
constexpr int kSelectionsOfARead = 40'000; // so that other reads come in between

struct Read {
    std::vector<std::vector<NeedleSight>> sights;
    std::vector<NeedleAnswer> answers;
    int steps = 0; // of the run at the time
    int end = 0;   // the first step that is not read
};

QString nameOf(const NeedlePlace& needle) { return QString::fromStdString(needle.value); }

} // namespace

NeedleLanes::NeedleLanes(Workspace& workspace, PlotCanvas& plot, QCPAxisRect* main, int mainRow, QObject* parent)
    : QObject(parent), workspace_(workspace), plot_(plot), main_(main), mainRow_(mainRow) {
    rect_ = plot.addPanel(false);
    panel_ = int(plot.panels().size()) - 1;
    plot.plotLayout()->take(rect_); // the panel stands in the layout only while there are lanes
    plot.plotLayout()->simplify();
    QCPAxis* lanes = rect_->axis(QCPAxis::atLeft);
    lanes->setRangeReversed(true);
    plottable_ = new NeedlePlottable(rect_->axis(QCPAxis::atBottom), lanes);
    place();
    plot.installEventFilter(this);
}

int NeedleLanes::laneCount() const {
    return plot_.height() < kRoomForAll ? std::min(int(needles_.size()), 1) : int(needles_.size());
}

bool NeedleLanes::eventFilter(QObject*, QEvent* event) {
    if (event->type() == QEvent::Resize && placed_ != laneCount()) place();
    return false;
}

void NeedleLanes::place() {
    placed_ = laneCount();
    const int height = kLaneHeight * placed_;
    QCPLayoutGrid& grid = *plot_.plotLayout();
    rect_->setVisible(shown());
    if (shown() && rect_->layout() == nullptr) {
        grid.insertRow(mainRow_);
        grid.addElement(mainRow_, 0, rect_);
    } else if (!shown() && rect_->layout() != nullptr) {
        grid.take(rect_);
        grid.simplify();
        rect_->setOuterRect({}); // no place of the plot is in it
    }
    rect_->setMinimumSize(0, height);
    rect_->setMaximumSize(QWIDGETSIZE_MAX, height);
    auto names = QSharedPointer<QCPAxisTickerText>::create();
    for (std::size_t lane = 0; lane < needles_.size(); ++lane)
        names->addTick(double(lane),
                       needles_[lane].asked ? tr("▸ %1").arg(nameOf(needles_[lane])) : nameOf(needles_[lane]));
    QCPAxis* lanes = rect_->axis(QCPAxis::atLeft);
    lanes->setTicker(names);
    lanes->setRange(-0.5, std::max(0.5, placed_ - 0.5));
    plot_.setFullY(panel_, lanes->range());
}

void NeedleLanes::show(const OpenRun* run, int sequence) {
    const bool same = run != nullptr && run->key == key_ && sequence == sequence_ && run->row.meta == row_.meta;
    if (same) return advance();
    needles_.clear();
    sights_.clear();
    answers_.clear();
    known_ = hidden_ = 0;
    key_ = run != nullptr ? run->key : RunKey();
    row_ = run != nullptr ? run->row : RunRow();
    sequence_ = sequence;
    reading_ = false;
    if (run != nullptr && row_.blockSize > 0) {
        for (const NeedlePlace& needle : needlesOf(row_))
            if (needle.sequence == sequence) needles_.push_back(needle);
        std::stable_sort(needles_.begin(), needles_.end(),
                         [](const NeedlePlace& a, const NeedlePlace& b) { return a.asked > b.asked; });
        hidden_ = int(needles_.size() - std::min(needles_.size(), kMostLanes));
        needles_.resize(std::min(needles_.size(), kMostLanes));
    }
    sights_.resize(needles_.size());
    plottable_->setSights(&sights_);
    place();
    frame();
    ask();
}

void NeedleLanes::advance() {
    const OpenRun* run = workspace_.find(key_);
    if (run == nullptr || !shown()) return;
    row_ = run->row;
    ask();
}

void NeedleLanes::ask() {
    if (!shown() || reading_ || known_ >= std::max(row_.steps, 1)) return;
    reading_ = true;
    const int first = known_, atOnce = std::max(1, kSelectionsOfARead / std::max(1, row_.layers * row_.kvHeads));
    workspace_.query<Read>(
        this, "needle lanes", key_,
        [row = row_, needles = needles_, first, atOnce](TraceReader& reader) {
            Read read;
            read.steps = reader.stepCount(row.runId);
            // Passes over tiles without a step: a trace may have the steps 0 and 33554431 alone.
            const TileStretch empty = emptyTiles(reader, row.runId, first / kTileSteps);
            const int begin = empty.count() > 0 ? std::max(first, empty.end * kTileSteps) : first;
            read.end = std::max(std::min(begin + atOnce, read.steps), first);
            read.sights = needleSights(reader, row, needles, begin, read.end - 1);
            read.answers = needleAnswers(reader, row);
            return read;
        },
        [this, first](Read read) {
            reading_ = false;
            if (first != known_ || read.sights.size() != sights_.size()) return;
            for (std::size_t lane = 0; lane < sights_.size(); ++lane)
                sights_[lane].insert(sights_[lane].end(), read.sights[lane].begin(), read.sights[lane].end());
            known_ = read.end;
            answers_ = std::move(read.answers);
            plot_.replot(QCustomPlot::rpQueuedReplot);
            emit changed();
            if (known_ < read.steps) ask();
        });
}

/// The frames around the blocks of the facts in the mask.
void NeedleLanes::frame() {
    for (QCPItemRect* frame : frames_) plot_.removeItem(frame);
    frames_.clear();
    for (const NeedlePlace& needle : needles_) {
        const BlockSpan span = blocksOf(needle, row_.blockSize);
        auto* frame = new QCPItemRect(&plot_);
        frame->setClipAxisRect(main_);
        for (QCPItemPosition* position : frame->positions()) {
            position->setAxisRect(main_);
            position->setAxes(main_->axis(QCPAxis::atBottom), main_->axis(QCPAxis::atLeft));
            position->setTypeX(QCPItemPosition::ptAxisRectRatio);
            position->setTypeY(QCPItemPosition::ptPlotCoords);
        }
        frame->topLeft->setCoords(0, span.last + 0.5);
        frame->bottomRight->setCoords(1, span.first - 0.5);
        frame->setSelectable(false);
        frames_.push_back(frame);
    }
    applyTheme(Theme::current());
}

void NeedleLanes::applyTheme(const Theme& theme) {
    plottable_->setColours(theme.origin, theme.miss, theme.plotGrid);
    QCPAxis* steps = rect_->axis(QCPAxis::atBottom); // the mask's own axis shows the numbers
    steps->setTickLabels(false);
    steps->setTicks(false);
    steps->grid()->setVisible(false);
    rect_->axis(QCPAxis::atLeft)->grid()->setVisible(false);
    for (std::size_t i = 0; i < frames_.size(); ++i) {
        frames_[i]->setPen(needles_[i].asked ? QPen(theme.accent, 1.5) : QPen(theme.mutedText, 1, Qt::DotLine));
        frames_[i]->setBrush(Qt::NoBrush);
    }
}

QString NeedleLanes::tooltip(double step, double lane) const {
    const int n = int(std::lround(lane)), at = int(std::lround(step));
    if (n < 0 || n >= needles_.count() || at < 0 || at >= known_) return {};
    const NeedlePlace& needle = needles_[n];
    const std::vector<NeedleSight>& steps = sights_[n];
    const auto found = std::lower_bound(steps.begin(), steps.end(), at,
                                        [](const NeedleSight& each, int wanted) { return each.step < wanted; });
    const NeedleSight sight = found != steps.end() && found->step == at ? *found : NeedleSight();
    QString html = QStringLiteral("<b>%1</b>: %2<br>%3")
                       .arg(QString::fromStdString(needle.name).toHtmlEscaped(),
                            QString::fromStdString(needle.value).toHtmlEscaped(), stepName(row_, at));
    if (sight.choosing == 0) return html + tr("<br>No head chose blocks in this step");
    html +=
        tr("<br>Selected by %1 of %2 heads of all layers").arg(formatCount(sight.heads), formatCount(sight.choosing));
    const std::array<QString, kNeedleOrigins> origins{tr("sink"), tr("window"), tr("query-aware"), tr("query-agnostic"),
                                                      tr("token-level")};
    for (std::size_t origin = 0; origin < origins.size(); ++origin)
        if (sight.byOrigin[origin] > 0)
            html += tr("<br>%1: %2").arg(origins[origin], formatCount(sight.byOrigin[origin]));
    if (row_.knows.has(Known::Hits) && sight.heads > 0)
        html += tr("<br>It had to be fetched for %1 of them").arg(formatCount(sight.missed));
    return html;
}

QString NeedleLanes::blockText(int block) const {
    QString html;
    for (const NeedlePlace& needle : needles_)
        if (blocksOf(needle, row_.blockSize).has(block))
            html += (needle.asked ? tr("<br>Has the fact that is asked for: %1 is %2") : tr("<br>Has a fact: %1 is %2"))
                        .arg(QString::fromStdString(needle.name).toHtmlEscaped(),
                             QString::fromStdString(needle.value).toHtmlEscaped());
    return html;
}

QVector<Swatch> NeedleLanes::swatches(const Theme& theme) const {
    QVector<Swatch> result;
    if (shown()) result << Swatch{tr("fact that is asked for"), theme.accent, Swatch::Mark::Frame, {}};
    return result;
}

QString NeedleLanes::note() const {
    if (!shown()) return {};
    QString text;
    for (const NeedleAnswer& answer : answers_)
        if (answer.needle.sequence == sequence_) text = tr("Answer: %1.").arg(QString::fromStdString(answer.text()));
    if (hidden_ > 0)
        text += hidden_ == 1 ? tr(" One more fact has no lane.") : tr(" %1 more facts have no lane.").arg(hidden_);
    return text.trimmed();
}

} // namespace kvscope::ui
