// Serving: the requests of a serving run as lanes over time. Below them stand latencies over a sliding window, the
// times of the iterations, and the memory of the device. One slow token is explained by a click on it.
#include "ui/frame/growth_timer.h"
#include "ui/frame/small_widgets.h"
#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/plots/lane_plottable.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/log_axis.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"
#include "ui/views/make_views.h"
#include "ui/views/step_numbers_csv.h"

#include "profiler/read/serving_latency.h"

#include <QComboBox>
#include <QHeaderView>
#include <QLabel>
#include <QTableWidget>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

namespace kvscope::ui {

namespace {

constexpr int kRefreshMs = 500;
constexpr int kWindows = 400;          // of the latencies over time
constexpr double kSharePerWindow = 20; // a window is this part of the run, but at least a second, and never the whole
constexpr double kMissedPixels = 4;
constexpr int kMembersNamed = 4;                      // in words; the table has all
constexpr int kWideForTable = 500, kTableBelow = 140; // as PlotView: beside the plot from this width, else below it
constexpr int kRoomForTable = 430;                    // pixels of height from which a view has room for the table
enum ServingPanel { Lanes, Latency, Iterations, Memory };
enum class Order { Arrival, TimeToFirstToken, WorstGap };

struct Answer {
    bool serving = false;
    ServingRows rows;
    std::vector<TokenGap> gaps;
    std::vector<LatencyPoint> latency;
    double windowNs = 0;
};

/// The moment at which the last thing happened that the trace knows of.
double endOf(const ServingRows& rows) {
    double end = 1;
    for (const IterationRow& row : rows.iterations) end = std::max(end, double(row.endNs()));
    for (const RequestSpanRow& span : rows.spans) end = std::max(end, double(span.endNs));
    return end;
}

Answer readAnswer(TraceReader& reader, int runId) {
    Answer answer;
    answer.serving = isServing(reader, runId);
    if (!answer.serving) return answer;
    answer.rows = readServing(reader, runId, &answer.gaps);
    const double end = endOf(answer.rows);
    answer.windowNs = std::min(end, std::max(1e9, end / kSharePerWindow));
    answer.latency = latencyOverTime(answer.rows.requests, answer.gaps, end, answer.windowNs, kWindows);
    return answer;
}

QString stateName(ServedState state) {
    switch (state) {
    case ServedState::Queued:
        return View::tr("queued");
    case ServedState::Prefill:
        return View::tr("prompt is read");
    case ServedState::Decode:
        return View::tr("decodes");
    case ServedState::Paused:
        return View::tr("paused");
    }
    return {};
}

QColor faint(QColor colour, double opacity) {
    colour.setAlphaF(float(opacity));
    return colour;
}
QColor reservedColour(const Theme& theme) { return faint(theme.mutedText, 0.35); }

std::vector<QColor> stateColours(const Theme& theme) { return {theme.undefinedCell, theme.runB, theme.ok, theme.miss}; }

QString milliseconds(std::int64_t ns) { return formatValue(Unit::Nanoseconds, double(ns)); }
QString bytes(std::int64_t count) { return formatValue(Unit::Bytes, double(count)); }

class ServingView final : public PlotView {
    Q_OBJECT
public:
    ServingView(Workspace& workspace, QWidget* parent) : PlotView(workspace, tr("Serving"), parent) {
        order_ = addPicker(QStringLiteral("order"), tr("Order"), tr("The order of the lanes"));
        order_->addItems({tr("Arrival"), tr("Time to first token"), tr("Longest gap")});
        connect(order_, &QComboBox::currentIndexChanged, this, [this] {
            fill();
            replot();
        });
        chosen_ = new MutedLabel({}, this);
        chosen_->setObjectName(QStringLiteral("chosenIteration"));
        chosen_->setTextFormat(Qt::PlainText);
        chosen_->setWordWrap(true);
        chosen_->setTextInteractionFlags(Qt::TextSelectableByMouse);
        chosen_->hide();
        addAbovePlot(chosen_);
        makeMembers();
        buildPlot();
        canvas().applyTheme(Theme::current());
        themed(Theme::current());
    }

    QString exportCsv() const override {
        if (data_.requests.empty()) return {};
        QString csv = QStringLiteral("request,class,status,arrival_ns,queue_ns,ttft_ns,end_ns,prompt_tokens,"
                                     "output_tokens,pauses,paused_ns,hits,misses,h2d_bytes\n");
        const auto from = [](std::int64_t ns, std::int64_t arrival) {
            return ns < 0 ? QString() : QString::number(ns - arrival);
        };
        for (const RequestRow& request : data_.requests)
            csv += QStringLiteral("%1,%2,%3,%4,%5,%6,%7,")
                       .arg(request.number)
                       .arg(QString::fromStdString(csvText(request.kind)),
                            QString::fromStdString(csvText(request.status.text())))
                       .arg(request.arrivalNs)
                       .arg(from(request.firstScheduledNs, request.arrivalNs),
                            from(request.firstTokenNs, request.arrivalNs), from(request.endNs, 0)) +
                   QStringLiteral("%1,%2,%3,%4,%5,%6,%7\n")
                       .arg(request.promptTokens)
                       .arg(request.outputTokens)
                       .arg(request.pauses)
                       .arg(request.pausedNs)
                       .arg(request.hits)
                       .arg(request.misses)
                       .arg(request.h2dBytes);
        return csv;
    }
    QString sql() const override {
        return run() ? QStringLiteral("SELECT * FROM v_request WHERE run_id = %1;").arg(run()->key.runId) : QString();
    }

protected:
    void runChanged() override {
        data_ = {};
        gaps_.clear();
        latency_.clear();
        forgetChoice();
        if (showEmptyWithoutRun(tr("This view shows the requests of a serving run: how long each one waited, when its "
                                   "prompt was read and its tokens came, and what the iterations did meanwhile.")))
            return;
        showReading();
        canvas().forgetZoom();
        ask();
    }
    void runGrew() override {
        if (run()) timer_.grew(run()->row.status != RunStatus::Running);
    }
    void cursorMoved() override {
        if (moving_ || (workspace().lastMove() == CursorMove::Follow && chosenIteration_ >= 0)) return;
        const IterationRow* row = rowOf(workspace().cursor().step);
        if (row && row->iteration != chosenIteration_)
            choose(*row, -1, double(row->startNs) + double(row->durationNs) / 2);
    }
    void themed(const Theme& theme) override {
        legend_->applyTheme(theme);
        lanes_->setColours(stateColours(theme), theme.text);
        took_->setPen(QPen(theme.runA, 1));
        predicted_->setPen(QPen(theme.mutedText, 1, Qt::DashLine));
        ttftHigh_->setPen(QPen(theme.runB, 1.5)), ttftMedian_->setPen(QPen(faint(theme.runB, 0.6), 1));
        tbtHigh_->setPen(QPen(theme.runA, 1.5)), tbtMedian_->setPen(QPen(faint(theme.runA, 0.6), 1));
        for (QCPGraph* bound : {ttftBound_, tbtBound_, available_}) bound->setPen(QPen(theme.danger, 1, Qt::DashLine));
        paused_->setPen(Qt::NoPen), paused_->setBrush(faint(theme.miss, 0.25));
        reserved_->setPen(QPen(theme.mutedText, 1)), reserved_->setBrush(reservedColour(theme));
        workingSets_->setPen(QPen(theme.runA, 1.5)), workingSets_->setBrush(faint(theme.runA, 0.45));
        fillLegend(theme);
    }
    void clickedAt(int panel, QPointF at) override {
        const IterationRow* iteration = iterationAt(at.x());
        if (!iteration) { // the mark of a token stands at the end of its iteration: a click may miss it by some pixels
            const QCPAxis* time = canvas().panels()[std::size_t(panel)]->axis(QCPAxis::atBottom);
            iteration = iterationAt(time->pixelToCoord(time->coordToPixel(at.x()) - kMissedPixels));
        }
        if (!iteration) return forgetChoice();
        const RequestRow* request = panel == Lanes ? requestAt(at.y()) : nullptr;
        choose(*iteration, request ? request->number : -1,
               std::clamp(at.x(), double(iteration->startNs), double(iteration->endNs())));
        Cursor cursor = workspace().cursor();
        cursor.step = iteration->iteration;
        if (request && request->row >= 0) cursor.sequence = request->row; // a row is a sequence of the recorded steps
        moving_ = true; // the cursor may be clamped to the recorded steps
        workspace().setCursor(cursor);
        moving_ = false;
    }
    void resizeEvent(QResizeEvent* event) override {
        PlotView::resizeEvent(event);
        showMembers();
    }
    QString tooltipAt(int panel, QPointF at) override {
        QStringList lines;
        const auto add = [&](const QString& name, const QString& value) {
            lines << QStringLiteral("<tr><td>%1&nbsp;&nbsp;</td><td>%2</td></tr>").arg(name, value.toHtmlEscaped());
        };
        if (panel == Lanes)
            if (const RequestRow* request = requestAt(at.y())) addRequest(*request, at.x(), add);
        if (panel == Latency) addLatency(at.x(), add);
        if (const IterationRow* iteration = iterationAt(at.x())) {
            add(tr("Iteration"), formatCount(iteration->iteration));
            add(tr("Took"), milliseconds(iteration->durationNs));
            add(tr("Predicted"), milliseconds(iteration->predictedNs));
            add(tr("Decode rows"), formatCount(iteration->decodeRows));
            add(tr("Prompt tokens read"), formatCount(iteration->prefillTokens));
            add(tr("Waiting, paused"),
                QStringLiteral("%1, %2").arg(formatCount(iteration->waiting), formatCount(iteration->paused)));
            if (panel == Memory) {
                add(tr("Reserved"), bytes(iteration->deviceBytes));
                add(tr("Scratch, for prompts"), bytes(iteration->scratchBytes));
                add(tr("Host"), bytes(iteration->hostBytes));
            }
            add(tr("Working sets"), bytes(iteration->workingSetBytes));
            add(tr("Room for them"), bytes(iteration->availableBytes));
            if (iteration->surprises > 0) add(tr("Blocks outside of them"), formatCount(iteration->surprises));
            add(tr("Plan bound by"), QString::fromStdString(iteration->limitedBy));
        }
        return lines.isEmpty() ? QString() : QStringLiteral("<table>%1</table>").arg(lines.join(QString()));
    }
    QString note() const override {
        if (data_.requests.empty()) return healthNote();
        const auto late = std::int64_t(data_.late.size());
        const auto count = std::int64_t(data_.requests.size());
        return tr("%1, %2 iterations. Times begin at the intended arrival. Latencies are those of the last %3. %4 "
                  "Click a token to see why it came when it came.")
                   .arg(count == 1 ? tr("1 request") : tr("%1 requests").arg(formatCount(count)),
                        formatCount(std::int64_t(data_.iterations.size())), formatValue(Unit::Nanoseconds, windowNs_),
                        late == 0   ? tr("No token came later than its request's bound.")
                        : late == 1 ? tr("One token came later than its request's bound.")
                                    : tr("%1 tokens came later than their requests' bounds.").arg(formatCount(late))) +
               (healthNote().isEmpty() ? QString() : QStringLiteral(" ") + healthNote());
    }
    void moveCursor(int steps, int) override { // to another iteration
        if (data_.iterations.empty()) return;
        const auto last = std::ptrdiff_t(data_.iterations.size()) - 1;
        const IterationRow* now = rowOf(chosenIteration_);
        const std::ptrdiff_t at = now ? now - data_.iterations.data() + steps : steps > 0 ? steps - 1 : 0;
        const IterationRow& row = data_.iterations[std::size_t(std::clamp<std::ptrdiff_t>(at, 0, last))];
        const double middle = double(row.startNs) + double(row.durationNs) / 2;
        const double lane = chosenRequest_ >= 0 ? laneOf(chosenRequest_) : -1;
        clickedAt(lane >= 0 ? Lanes : Iterations, {middle, lane});
        canvas().reveal(middle);
    }
    void jumpCursor(bool toEnd) override {
        const int size = int(data_.iterations.size());
        moveCursor(toEnd ? size : -size, 0);
    }

private:
    void buildPlot() {
        PlotCanvas& plot = canvas();
        legend_ = new LegendStrip(&plot);
        plot.plotLayout()->addElement(0, 0, legend_);
        QCPAxisRect* lanes = plot.addPanel(true);
        QCPAxisRect* latency = plot.addPanel(false);
        QCPAxisRect* iterations = plot.addPanel(false);
        QCPAxisRect* memory = plot.addPanel(false);
        plot.plotLayout()->setRowStretchFactor(1, 2);
        lanes->axis(QCPAxis::atLeft)->setRangeReversed(true);
        setIntegerAxis(lanes->axis(QCPAxis::atLeft), tr("Request"));
        lanes_ = new LanePlottable(lanes->axis(QCPAxis::atBottom), lanes->axis(QCPAxis::atLeft));
        for (QCPAxisRect* panel : {lanes, latency, iterations}) panel->axis(QCPAxis::atBottom)->setTickLabels(false);
        const auto curve = [&](QCPAxisRect* panel) {
            auto* graph = new QCPGraph(panel->axis(QCPAxis::atBottom), panel->axis(QCPAxis::atLeft));
            graph->setLineStyle(QCPGraph::lsStepLeft);
            return graph;
        };
        ttftMedian_ = curve(latency), tbtMedian_ = curve(latency), ttftHigh_ = curve(latency),
        tbtHigh_ = curve(latency);
        for (QCPGraph* graph : {ttftMedian_, tbtMedian_, ttftHigh_, tbtHigh_}) graph->setLineStyle(QCPGraph::lsLine);
        ttftBound_ = curve(latency), tbtBound_ = curve(latency);
        setLogAxis(latency->axis(QCPAxis::atLeft), tr("Latency (ms)"), 10);
        predicted_ = curve(iterations), took_ = curve(iterations);
        paused_ = curve(memory), reserved_ = curve(memory), workingSets_ = curve(memory), available_ = curve(memory);
        workingSets_->setChannelFillGraph(reserved_); // working sets stand on what is reserved
        plot.setSelectsSteps(false);
        plot.setMinimumSpan(1e4); // 10 us
    }

    void ask() {
        workspace().query<Answer>(
            this, "serving", run()->key,
            [id = run()->key.runId](TraceReader& reader) { return readAnswer(reader, id); },
            [this](Answer answer) {
                timer_.answered();
                if (!answer.serving) {
                    if (run() && run()->row.status == RunStatus::Running) {
                        if (run()->row.serves())
                            showEmpty(tr("No request has come yet"),
                                      tr("The server runs. Its requests appear here as they arrive."));
                        return;
                    }
                    showEmpty(tr("This run served no requests"),
                              tr("It decoded one batch from its beginning to its end. kvscope-cli load --trace records "
                                 "runs whose requests come and go."));
                    return;
                }
                data_ = std::move(answer.rows);
                gaps_ = std::move(answer.gaps);
                latency_ = std::move(answer.latency);
                windowNs_ = answer.windowNs;
                showEmpty({}, {});
                fill();
                replot();
                updateNote();
                if (chosenIteration_ < 0 && workspace().cursor().step > 0) cursorMoved();
            });
    }

    /// The lane of a request.
    double laneOf(std::int64_t request) const {
        const auto index = indexOf(request);
        return index < 0 ? -1 : lane_[std::size_t(index)];
    }
    std::ptrdiff_t indexOf(std::int64_t request) const {
        const auto found = std::lower_bound(data_.requests.begin(), data_.requests.end(), request,
                                            [](const RequestRow& row, std::int64_t n) { return row.number < n; });
        return found == data_.requests.end() || found->number != request ? -1 : found - data_.requests.begin();
    }
    const RequestRow* requestAt(double lane) const {
        const auto place = std::lround(lane);
        if (place < 0 || place >= std::lround(double(byLane_.size()))) return nullptr;
        return &data_.requests[byLane_[std::size_t(place)]];
    }
    const IterationRow* iterationAt(double ns) const {
        auto found = std::upper_bound(data_.iterations.begin(), data_.iterations.end(), ns,
                                      [](double at, const IterationRow& row) { return at < double(row.startNs); });
        if (found == data_.iterations.begin()) return nullptr;
        --found;
        return ns <= double(found->endNs()) ? &*found : nullptr;
    }

    const IterationRow* rowOf(int iteration) const {
        const auto found = std::lower_bound(data_.iterations.begin(), data_.iterations.end(), iteration,
                                            [](const IterationRow& row, int number) { return row.iteration < number; });
        return found == data_.iterations.end() || found->iteration != iteration ? nullptr : &*found;
    }

    void sortLanes() {
        const std::size_t count = data_.requests.size();
        byLane_.resize(count);
        std::iota(byLane_.begin(), byLane_.end(), std::size_t(0));
        std::vector<double> worth(count, 0); // longest first
        const auto order = Order(std::max(order_->currentIndex(), 0));
        if (order == Order::TimeToFirstToken)
            for (std::size_t i = 0; i < count; ++i) {
                const RequestRow& row = data_.requests[i];
                worth[i] = row.firstTokenNs < 0 ? 0 : double(row.firstTokenNs - row.arrivalNs);
            }
        if (order == Order::WorstGap)
            for (const TokenGap& late : data_.late)
                if (const auto index = indexOf(late.request); index >= 0)
                    worth[std::size_t(index)] = std::max(worth[std::size_t(index)], double(late.gapNs));
        std::stable_sort(byLane_.begin(), byLane_.end(),
                         [&](std::size_t a, std::size_t b) { return worth[a] > worth[b]; });
        lane_.resize(count);
        for (std::size_t place = 0; place < count; ++place) lane_[byLane_[place]] = double(place);
    }

    void fill() {
        sortLanes();
        const double end = endOf(data_);
        std::vector<LanePlottable::Bar> bars;
        std::vector<LanePlottable::Mark> marks;
        bars.reserve(data_.spans.size() + data_.requests.size());
        std::vector<double> known(data_.requests.size(), -1); // [request] where its last ended span ends
        for (const RequestSpanRow& span : data_.spans) {
            const auto index = indexOf(span.request);
            if (index < 0) continue;
            bars.push_back({double(span.startNs), double(span.endNs), lane_[std::size_t(index)], int(span.state)});
            known[std::size_t(index)] = double(span.endNs);
        }
        for (std::size_t i = 0; i < data_.requests.size(); ++i) {
            const RequestRow& row = data_.requests[i];
            if (row.status == ServedStatus::Refused || row.status == ServedStatus::Failed)
                marks.push_back({double(row.endNs >= 0 ? row.endNs : row.arrivalNs), lane_[i], true});
            if (row.ended()) continue;
            for (int state = 0; state < kServedStates; ++state) // the span of a request that has not ended
                if (row.status == statusOf(ServedState(state)))
                    bars.push_back({known[i] < 0 ? double(row.arrivalNs) : known[i], end, lane_[i], state});
        }
        for (const TokenGap& late : data_.late)
            if (const double lane = laneOf(late.request); lane >= 0) marks.push_back({double(late.ns), lane, false});
        lanes_->setData(std::move(bars), std::move(marks));
        fillCurves();
        fillLatency(end);
        canvas().setFullX({0, end});
        canvas().setFullY(Lanes, {-0.5, std::max(0.5, double(data_.requests.size()) - 0.5)});
        for (QCPAxisRect* panel : canvas().panels()) {
            QCPAxis* time = panel->axis(QCPAxis::atBottom);
            setUnitAxis(time, tr("Time"), Unit::Nanoseconds);
            if (panel != canvas().panels().back()) time->setLabel({});
        }
    }

    void fillCurves() {
        const auto count = qsizetype(data_.iterations.size());
        QVector<double> at, took, predicted, sets, room, reserved, paused;
        for (QVector<double>* values : {&at, &took, &predicted, &sets, &room, &reserved, &paused})
            values->reserve(count);
        double longest = 1, most = 1;
        for (const IterationRow& row : data_.iterations) {
            at << double(row.startNs);
            took << double(row.durationNs);
            predicted << double(row.predictedNs);
            reserved << double(row.deviceBytes);
            sets << reserved.back() + double(row.workingSetBytes);
            room << reserved.back() + double(row.availableBytes);
            longest = std::max({longest, took.back(), predicted.back()});
            most = std::max({most, sets.back(), room.back()});
        }
        most *= 1.05;
        for (const IterationRow& row : data_.iterations) paused << (row.paused > 0 ? most : 0);
        if (count > 0) { // a step reaches to the next point: the last one to the end of its iteration
            at << double(data_.iterations.back().endNs());
            for (QVector<double>* values : {&took, &predicted, &sets, &room, &reserved, &paused})
                values->append(double(values->back()));
        }
        took_->setData(at, took, true), predicted_->setData(at, predicted, true);
        workingSets_->setData(at, sets, true), available_->setData(at, room, true);
        reserved_->setData(at, reserved, true), paused_->setData(at, paused, true);
        canvas().setFullY(Iterations, {0, longest * 1.05});
        canvas().setFullY(Memory, {0, most});
        setUnitAxis(canvas().panels()[Iterations]->axis(QCPAxis::atLeft), tr("Iteration"), Unit::Nanoseconds);
        setUnitAxis(canvas().panels()[Memory]->axis(QCPAxis::atLeft), tr("Device"), Unit::Bytes);
    }

    /// Latencies of the sliding window, in milliseconds on a logarithmic axis, and the bounds where all requests have
    /// one.
    void fillLatency(double end) {
        double low = std::numeric_limits<double>::infinity(), high = 0;
        const auto place = [&](double ns) {
            if (std::isnan(ns)) return ns;
            const double ms = std::max(ns, 1e3) / 1e6; // a microsecond is the least that is drawn
            low = std::min(low, ms), high = std::max(high, ms);
            return std::log10(ms);
        };
        QVector<double> at, ttftMedian, ttftHigh, tbtMedian, tbtHigh;
        for (const LatencyPoint& point : latency_) {
            at << point.ns;
            ttftMedian << place(point.firstToken.median), ttftHigh << place(point.firstToken.high);
            tbtMedian << place(point.gap.median), tbtHigh << place(point.gap.high);
        }
        ttftMedian_->setData(at, ttftMedian, true), ttftHigh_->setData(at, ttftHigh, true);
        tbtMedian_->setData(at, tbtMedian, true), tbtHigh_->setData(at, tbtHigh, true);
        const auto draw = [&](QCPGraph* graph, double RequestRow::*bound) {
            const double ms = commonBound(bound);
            graph->setVisible(ms > 0);
            if (ms > 0) graph->setData({0, end}, {place(ms * 1e6), place(ms * 1e6)}, true);
        };
        draw(ttftBound_, &RequestRow::ttftBoundMs), draw(tbtBound_, &RequestRow::tbtBoundMs);
        if (high <= 0) low = 1, high = 1000;
        const double margin = std::max(0.15, 0.06 * std::log10(high / low));
        canvas().setFullY(Latency, {std::log10(low) - margin, std::log10(high) + margin});
    }
    /// The bound that all requests have; 0: they have none, or not the same one.
    double commonBound(double RequestRow::*bound) const {
        if (data_.requests.empty()) return 0;
        const double first = data_.requests.front().*bound;
        const bool same = std::all_of(data_.requests.begin(), data_.requests.end(),
                                      [&](const RequestRow& row) { return row.*bound == first; });
        return same ? first : 0;
    }
    template <class Add> void addLatency(double ns, const Add& add) const {
        const auto found = std::lower_bound(latency_.begin(), latency_.end(), ns,
                                            [](const LatencyPoint& point, double at) { return point.ns < at; });
        if (found == latency_.end()) return;
        const auto tell = [&](const QString& name, const LatencyWindow& window) {
            if (window.samples == 0) return add(name, tr("none in this window"));
            add(name,
                (window.isLargest ? tr("largest of %1: %2") : tr("P99 of %1: %2"))
                        .arg(formatCount(window.samples), formatValue(Unit::Nanoseconds, window.high)) +
                    (std::isnan(window.median) ? QString()
                                               : tr(", median %1").arg(formatValue(Unit::Nanoseconds, window.median))));
        };
        tell(tr("TTFT"), found->firstToken);
        tell(tr("TBT"), found->gap);
        const double ttft = commonBound(&RequestRow::ttftBoundMs), tbt = commonBound(&RequestRow::tbtBoundMs);
        if (ttft > 0 && tbt > 0)
            add(tr("Bounds"),
                tr("TTFT %1, TBT %2")
                    .arg(formatValue(Unit::Nanoseconds, ttft * 1e6), formatValue(Unit::Nanoseconds, tbt * 1e6)));
    }

    void fillLegend(const Theme& theme) {
        using Mark = Swatch::Mark;
        QVector<Swatch> swatches;
        for (int state = 0; state < kServedStates; ++state)
            swatches << Swatch{stateName(ServedState(state)), stateColours(theme)[std::size_t(state)], Mark::Fill, {}};
        swatches << Swatch{tr("late token"), theme.text, Mark::Tick, {}}
                 << Swatch{tr("TTFT"), theme.runB, Mark::Line, {}}
                 << Swatch{tr("TBT, iteration"), theme.runA, Mark::Line, {}}
                 << Swatch{tr("bounds, room"), theme.danger, Mark::Dashes, {}}
                 << Swatch{tr("predicted"), theme.mutedText, Mark::Dashes, {}}
                 << Swatch{tr("reserved"), reservedColour(theme), Mark::Fill, {}}
                 << Swatch{tr("working sets"), faint(theme.runA, 0.45), Mark::Fill, {}}
                 << Swatch{tr("pauses"), faint(theme.miss, 0.25), Mark::Fill, {}};
        legend_->setSwatches(swatches);
    }

    template <class Add> void addRequest(const RequestRow& request, double ns, const Add& add) const {
        add(tr("Request"),
            formatCount(request.number) +
                (request.kind.empty() ? QString() : QStringLiteral(", ") + QString::fromStdString(request.kind)));
        add(tr("Tokens"), tr("%1 read, %2 of %3 made")
                              .arg(formatCount(request.promptTokens), formatCount(request.outputTokens),
                                   formatCount(request.maxTokens)));
        for (const RequestSpanRow& span : data_.spans)
            if (span.request == request.number && double(span.startNs) <= ns && ns < double(span.endNs))
                add(tr("Here"), stateName(span.state) + QStringLiteral(", ") + milliseconds(span.endNs - span.startNs));
        if (request.firstScheduledNs >= 0)
            add(tr("Queue delay"), milliseconds(request.firstScheduledNs - request.arrivalNs));
        if (request.firstTokenNs >= 0)
            add(tr("First token after"), milliseconds(request.firstTokenNs - request.arrivalNs));
        if (request.ended()) add(tr("Ended"), QString::fromStdString(request.status.text()));
        if (request.pauses > 0)
            add(tr("Paused"), (request.pauses == 1 ? tr("%1 time, %2") : tr("%1 times, %2"))
                                  .arg(formatCount(request.pauses), milliseconds(request.pausedNs)));
        if (request.hits + request.misses > 0)
            add(tr("Hits"),
                formatValue(Unit::Percent, 100.0 * double(request.hits) / double(request.hits + request.misses)));
        if (!request.reason.empty()) add(tr("Reason"), QString::fromStdString(request.reason));
    }

    void makeMembers() {
        members_ = new QTableWidget(0, 5);
        members_->setObjectName(QStringLiteral("members"));
        members_->setAccessibleName(tr("Whom the iteration served"));
        members_->setToolTip(
            tr("Whom the chosen iteration served. Click a row to have that request's token explained."));
        members_->setHorizontalHeaderLabels({tr("Request"), tr("Did"), tr("Misses"), tr("Fetched"), tr("Working set")});
        members_->setEditTriggers(QAbstractItemView::NoEditTriggers);
        members_->setSelectionBehavior(QAbstractItemView::SelectRows);
        members_->setSelectionMode(QAbstractItemView::SingleSelection);
        members_->setShowGrid(false);
        members_->verticalHeader()->hide();
        members_->horizontalHeader()->setStretchLastSection(true);
        members_->hide();
        addBesidePlot(members_);
        connect(members_, &QTableWidget::cellClicked, this, [this](int row, int) {
            if (row < 0 || row >= int(shown_.size())) return;
            chosenRequest_ = shown_[std::size_t(row)].request;
            tell();
        });
    }
    /// The table stands beside the plot where the view is wide, and is left out where the view is low.
    void showMembers() {
        if (!members_) return;
        members_->setVisible(chosenIteration_ >= 0 && !shown_.empty() && height() >= kRoomForTable);
        const bool beside = width() >= kWideForTable;
        members_->setMinimumWidth(0);
        members_->setMaximumWidth(beside ? std::clamp(2 * width() / 5, 220, 400) : QWIDGETSIZE_MAX);
        if (beside) members_->setMinimumWidth(members_->maximumWidth());
        members_->setMaximumHeight(beside ? QWIDGETSIZE_MAX : kTableBelow);
    }

    void forgetChoice() {
        chosenIteration_ = -1, chosenRequest_ = -1;
        shown_.clear();
        chosen_->hide();
        if (members_) members_->hide();
        canvas().overlay().clear();
        canvas().replotOverlay();
    }
    /// Marks an iteration at a moment of it and reads whom it served. request: whose token is explained; below 0:
    /// nobody's.
    void choose(const IterationRow& iteration, std::int64_t request, double atNs) {
        chosenIteration_ = iteration.iteration, chosenRequest_ = request;
        CursorMark mark;
        mark.x = atNs;
        for (QCPAxisRect* panel : canvas().panels()) canvas().overlay().setMark(panel, mark);
        canvas().replotOverlay();
        workspace().query<std::vector<MemberRow>>(
            this, "serving members", run()->key,
            [id = run()->key.runId, number = iteration.iteration](TraceReader& reader) {
                return readMembers(reader, id, number);
            },
            [this, number = iteration.iteration](std::vector<MemberRow> members) {
                if (number != chosenIteration_) return;
                shown_ = std::move(members);
                fillMembers();
                tell();
            });
    }

    void fillMembers() {
        members_->clearContents();
        members_->setRowCount(int(shown_.size()));
        for (int row = 0; row < int(shown_.size()); ++row) {
            const MemberRow& member = shown_[std::size_t(row)];
            const QString did = member.prefill ? tr("read %1, layers %2–%3")
                                                     .arg(formatCount(member.tokens))
                                                     .arg(member.layerFrom)
                                                     .arg(member.layerTo)
                                               : tr("decoded");
            const QStringList texts{formatCount(member.request), did,
                                    member.prefill ? QString() : formatCount(member.misses),
                                    member.prefill ? QString() : bytes(member.h2dBytes), bytes(member.workingSetBytes)};
            for (int column = 0; column < texts.size(); ++column) {
                auto* item = new QTableWidgetItem(texts[column]);
                if (column != 1) item->setTextAlignment(Qt::AlignRight | Qt::AlignVCenter);
                members_->setItem(row, column, item);
            }
        }
        members_->resizeColumnsToContents();
        members_->resizeRowsToContents();
        showMembers();
    }

    /// Says which requests an iteration served, what bound its plan, and where the time before the chosen request's
    /// token went.
    void tell() {
        const IterationRow* row = rowOf(chosenIteration_);
        if (!row) return;
        QStringList parts;
        for (const MemberRow& member : shown_) {
            if (parts.size() == kMembersNamed && int(shown_.size()) > kMembersNamed + 1) {
                parts << tr("and %1 more").arg(formatCount(std::int64_t(shown_.size()) - kMembersNamed));
                break;
            }
            parts << (member.prefill
                          ? tr("request %1 read %2 tokens in layers %3 to %4")
                                .arg(formatCount(member.request), formatCount(member.tokens))
                                .arg(member.layerFrom)
                                .arg(member.layerTo)
                          : (member.misses == 1 ? tr("request %1 decoded (%2 miss, %3)")
                                                : tr("request %1 decoded (%2 misses, %3)"))
                                .arg(formatCount(member.request), formatCount(member.misses), bytes(member.h2dBytes)));
        }
        const QString bound = row->limitedBy == "none"
                                  ? tr("nothing bound its plan")
                                  : tr("its plan was bound by %1").arg(QString::fromStdString(row->limitedBy));
        QString text =
            tr("Iteration %1 took %2, predicted %3; %4: %5.")
                .arg(formatCount(row->iteration), milliseconds(row->durationNs), milliseconds(row->predictedNs), bound,
                     parts.isEmpty() ? tr("nobody was served") : parts.join(QStringLiteral(", ")));
        if (chosenRequest_ >= 0) text += QLatin1Char('\n') + explain(*row);
        chosen_->setText(text);
        chosen_->show();
        for (int i = 0; i < int(shown_.size()); ++i)
            if (shown_[std::size_t(i)].request == chosenRequest_) members_->setCurrentCell(i, 0);
    }

    /// Where the time before a token of the chosen request went: to pauses of its own, and to what the iterations since
    /// the token before it did for everybody.
    QString explain(const IterationRow& row) const {
        const QString name = formatCount(chosenRequest_);
        const auto member =
            std::find_if(shown_.begin(), shown_.end(), [&](const MemberRow& m) { return m.request == chosenRequest_; });
        if (member == shown_.end() || member->tokenNs < 0)
            return tr("Request %1 made no token in it: %2.").arg(name, stateAt(double(row.endNs())));
        const auto request = indexOf(chosenRequest_);
        if (request < 0) return {};
        const RequestRow& served = data_.requests[std::size_t(request)];
        const auto gap = std::find_if(gaps_.begin(), gaps_.end(), [&](const TokenGap& g) {
            return g.request == chosenRequest_ && g.ns == member->tokenNs;
        });
        const bool isFirst = gap == gaps_.end();
        const double to = double(member->tokenNs), from = isFirst ? double(served.arrivalNs) : to - double(gap->gapNs);
        std::int64_t iterations = 0;
        double decode = 0, prompts = 0;
        for (const IterationRow& each : data_.iterations)
            if (double(each.endNs()) > from && double(each.endNs()) <= to) {
                ++iterations;
                decode += double(each.decodeNs), prompts += double(each.prefillNs);
            }
        double paused = 0, queued = 0;
        for (const RequestSpanRow& span : data_.spans) {
            if (span.request != chosenRequest_) continue;
            const double inside = std::min(to, double(span.endNs)) - std::max(from, double(span.startNs));
            if (inside > 0 && span.state == ServedState::Paused) paused += inside;
            if (inside > 0 && span.state == ServedState::Queued) queued += inside;
        }
        const auto time = [](double ns) { return formatValue(Unit::Nanoseconds, ns); };
        const double limit = isFirst ? served.ttftBoundMs : served.tbtBoundMs;
        QString text = (isFirst ? tr("The first token of request %1 came %2 after its arrival")
                                : tr("The token of request %1 came %2 after the one before it"))
                           .arg(name, time(to - from));
        if (limit > 0)
            text += (to - from > limit * 1e6 ? tr(", beyond its bound of %1") : tr(", within its bound of %1"))
                        .arg(time(limit * 1e6));
        QStringList own;
        if (queued > 0) own << tr("queued for %1").arg(time(queued));
        if (paused > 0) own << tr("paused for %1").arg(time(paused));
        if (!own.isEmpty()) text += tr("; it was %1").arg(own.join(tr(" and ")));
        const double rest = std::max(0.0, to - from - decode - prompts);
        return text + (iterations == 1 ? tr(". %1 iteration meanwhile: decode %2, prompts %3, the rest %4.")
                                       : tr(". %1 iterations meanwhile: decode %2, prompts %3, the rest %4."))
                          .arg(formatCount(iterations), time(decode), time(prompts), time(rest));
    }
    /// What the chosen request was doing, in words.
    QString stateAt(double ns) const {
        for (const RequestSpanRow& span : data_.spans)
            if (span.request == chosenRequest_ && double(span.startNs) <= ns && ns <= double(span.endNs))
                return stateName(span.state);
        const auto index = indexOf(chosenRequest_);
        if (index < 0) return tr("it is not known");
        const RequestRow& request = data_.requests[std::size_t(index)];
        if (ns < double(request.arrivalNs)) return tr("it had not arrived");
        return request.ended() && ns > double(request.endNs) ? tr("it had ended")
                                                             : QString::fromStdString(request.status.text());
    }

    QComboBox* order_ = nullptr;
    QLabel* chosen_ = nullptr;
    LegendStrip* legend_ = nullptr;
    LanePlottable* lanes_ = nullptr;
    QTableWidget* members_ = nullptr;
    QCPGraph *took_ = nullptr, *predicted_ = nullptr, *workingSets_ = nullptr, *available_ = nullptr,
             *reserved_ = nullptr, *paused_ = nullptr, *ttftMedian_ = nullptr, *ttftHigh_ = nullptr,
             *tbtMedian_ = nullptr, *tbtHigh_ = nullptr, *ttftBound_ = nullptr, *tbtBound_ = nullptr;
    ServingRows data_;
    std::vector<TokenGap> gaps_;
    std::vector<LatencyPoint> latency_;
    double windowNs_ = 0;
    std::vector<MemberRow> shown_;    // of the chosen iteration
    std::vector<std::size_t> byLane_; // [lane] index of the request
    std::vector<double> lane_;        // [index of the request]
    bool moving_ = false;             // this view moves the cursor
    int chosenIteration_ = -1;        // its number; below 0: none
    std::int64_t chosenRequest_ = -1; // whose token is explained; below 0: nobody's
    GrowthTimer timer_{kRefreshMs, [this] {
                           if (run()) ask();
                       }};
};

} // namespace

View* makeServingView(Workspace& workspace, QWidget* parent) { return new ServingView(workspace, parent); }

} // namespace kvscope::ui

#include "serving_view.moc"
