// Serving: the requests of a serving run as lanes over time, and below them what its iterations took and what memory
// they had.
#include "ui/frame/growth_timer.h"
#include "ui/frame/small_widgets.h"
#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/plots/lane_plottable.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"
#include "ui/views/make_views.h"
#include "ui/views/step_numbers_csv.h"

#include "profiler/read/serving.h"

#include <QComboBox>
#include <QLabel>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

namespace kvscope::ui {

namespace {

constexpr int kRefreshMs = 500;
enum ServingPanel { Lanes, Iterations, Memory };
enum class Order { Arrival, TimeToFirstToken, WorstGap };

struct Answer {
    bool serving = false;
    ServingRows rows;
};

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
            csv +=
                QStringLiteral("%1,%2,%3,%4,%5,%6,%7,")
                    .arg(request.number)
                    .arg(QString::fromStdString(csvText(request.kind)), QString::fromStdString(csvText(request.status)))
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
        chosen_->hide();
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
    void cursorMoved() override {}
    void themed(const Theme& theme) override {
        legend_->applyTheme(theme);
        lanes_->setColours(stateColours(theme), theme.text);
        took_->setPen(QPen(theme.runA, 1));
        predicted_->setPen(QPen(theme.mutedText, 1, Qt::DashLine));
        workingSets_->setPen(QPen(theme.runA, 1.5));
        available_->setPen(QPen(theme.danger, 1, Qt::DashLine));
        reserved_->setPen(QPen(theme.mutedText, 1));
        fillLegend(theme);
    }
    void clickedAt(int, QPointF at) override {
        const IterationRow* iteration = iterationAt(at.x());
        if (!iteration) {
            chosen_->hide();
            return;
        }
        workspace().query<std::vector<MemberRow>>(
            this, "serving members", run()->key,
            [id = run()->key.runId, number = iteration->iteration](TraceReader& reader) {
                return readMembers(reader, id, number);
            },
            [this, number = iteration->iteration](const std::vector<MemberRow>& members) { tell(number, members); });
        CursorMark mark;
        mark.x = at.x();
        for (QCPAxisRect* panel : canvas().panels()) canvas().overlay().setMark(panel, mark);
        canvas().replotOverlay();
    }
    QString tooltipAt(int panel, QPointF at) override {
        QStringList lines;
        const auto add = [&](const QString& name, const QString& value) {
            lines << QStringLiteral("<tr><td>%1&nbsp;&nbsp;</td><td>%2</td></tr>").arg(name, value.toHtmlEscaped());
        };
        if (panel == Lanes)
            if (const RequestRow* request = requestAt(at.y())) addRequest(*request, at.x(), add);
        if (const IterationRow* iteration = iterationAt(at.x())) {
            add(tr("Iteration"), formatCount(iteration->iteration));
            add(tr("Took"), milliseconds(iteration->durationNs));
            add(tr("Predicted"), milliseconds(iteration->predictedNs));
            add(tr("Decode rows"), formatCount(iteration->decodeRows));
            add(tr("Prompt tokens read"), formatCount(iteration->prefillTokens));
            add(tr("Waiting, paused"),
                QStringLiteral("%1, %2").arg(formatCount(iteration->waiting), formatCount(iteration->paused)));
            add(tr("Working sets"), bytes(iteration->workingSetBytes));
            add(tr("Room for them"), bytes(iteration->availableBytes));
            add(tr("Plan bound by"), QString::fromStdString(iteration->limitedBy));
        }
        return lines.isEmpty() ? QString() : QStringLiteral("<table>%1</table>").arg(lines.join(QString()));
    }
    QString note() const override {
        if (data_.requests.empty()) return healthNote();
        const auto late = std::int64_t(data_.late.size());
        return tr("%1 requests, %2 iterations. Times begin at the intended arrival. %3 "
                  "Click an iteration to see whom it served.")
                   .arg(formatCount(std::int64_t(data_.requests.size())),
                        formatCount(std::int64_t(data_.iterations.size())),
                        late == 0   ? tr("No token came later than its request's bound.")
                        : late == 1 ? tr("One token came later than its request's bound.")
                                    : tr("%1 tokens came later than their requests' bounds.").arg(formatCount(late))) +
               (healthNote().isEmpty() ? QString() : QStringLiteral(" ") + healthNote());
    }
    void moveCursor(int steps, int) override { // to another iteration
        if (data_.iterations.empty()) return;
        const int last = int(data_.iterations.size()) - 1;
        at_ = std::clamp(at_ + steps, 0, last);
        const IterationRow& row = data_.iterations[std::size_t(at_)];
        clickedAt(Iterations, {double(row.startNs) + double(row.durationNs) / 2, 0});
        canvas().reveal(double(row.startNs) + double(row.durationNs) / 2);
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
        QCPAxisRect* iterations = plot.addPanel(false);
        QCPAxisRect* memory = plot.addPanel(false);
        plot.plotLayout()->setRowStretchFactor(1, 3);
        lanes->axis(QCPAxis::atLeft)->setRangeReversed(true);
        setIntegerAxis(lanes->axis(QCPAxis::atLeft), tr("Request"));
        lanes_ = new LanePlottable(lanes->axis(QCPAxis::atBottom), lanes->axis(QCPAxis::atLeft));
        for (QCPAxisRect* panel : {lanes, iterations}) panel->axis(QCPAxis::atBottom)->setTickLabels(false);
        const auto curve = [&](QCPAxisRect* panel) {
            auto* graph = new QCPGraph(panel->axis(QCPAxis::atBottom), panel->axis(QCPAxis::atLeft));
            graph->setLineStyle(QCPGraph::lsStepLeft);
            return graph;
        };
        predicted_ = curve(iterations), took_ = curve(iterations);
        available_ = curve(memory), reserved_ = curve(memory), workingSets_ = curve(memory);
        plot.setSelectsSteps(false);
        plot.setMinimumSpan(1e4); // 10 us
    }

    void ask() {
        workspace().query<Answer>(
            this, "serving", run()->key,
            [id = run()->key.runId](TraceReader& reader) {
                Answer answer;
                answer.serving = isServing(reader, id);
                if (answer.serving) answer.rows = readServing(reader, id);
                return answer;
            },
            [this](Answer answer) {
                timer_.answered();
                if (!answer.serving) {
                    if (run() && run()->row.status == RunStatus::Running) return; // its first request comes
                    showEmpty(tr("This run served no requests"),
                              tr("It decoded one batch from its beginning to its end. kvscope-cli load --trace records "
                                 "runs whose requests come and go."));
                    return;
                }
                data_ = std::move(answer.rows);
                showEmpty({}, {});
                fill();
                replot();
                updateNote();
            });
    }

    /// A request's place among the lanes.
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
            for (const LateToken& late : data_.late)
                if (const auto index = indexOf(late.request); index >= 0)
                    worth[std::size_t(index)] = std::max(worth[std::size_t(index)], double(late.gapNs));
        std::stable_sort(byLane_.begin(), byLane_.end(),
                         [&](std::size_t a, std::size_t b) { return worth[a] > worth[b]; });
        lane_.resize(count);
        for (std::size_t place = 0; place < count; ++place) lane_[byLane_[place]] = double(place);
    }

    void fill() {
        sortLanes();
        double end = 1;
        for (const IterationRow& row : data_.iterations) end = std::max(end, double(row.endNs()));
        std::vector<LanePlottable::Bar> bars;
        std::vector<LanePlottable::Mark> marks;
        bars.reserve(data_.spans.size() + data_.requests.size());
        std::vector<double> known(data_.requests.size(), -1); // where the ended spans end
        for (const RequestSpanRow& span : data_.spans) {
            const auto index = indexOf(span.request);
            if (index < 0) continue;
            bars.push_back({double(span.startNs), double(span.endNs), lane_[std::size_t(index)], int(span.state)});
            known[std::size_t(index)] = double(span.endNs);
            end = std::max(end, double(span.endNs));
        }
        for (std::size_t i = 0; i < data_.requests.size(); ++i) {
            const RequestRow& row = data_.requests[i];
            if (row.status == "refused" || row.status == "failed")
                marks.push_back({double(row.endNs >= 0 ? row.endNs : row.arrivalNs), lane_[i], true});
            if (row.ended()) continue;
            for (int state = 0; state < kServedStates; ++state) // the span that is still open
                if (row.status == nameOf(ServedState(state)))
                    bars.push_back({known[i] < 0 ? double(row.arrivalNs) : known[i], end, lane_[i], state});
        }
        for (const LateToken& late : data_.late)
            if (const double lane = laneOf(late.request); lane >= 0) marks.push_back({double(late.ns), lane, false});
        lanes_->setData(std::move(bars), std::move(marks));
        fillCurves();
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
        QVector<double> at, took, predicted, sets, room, reserved;
        for (QVector<double>* values : {&at, &took, &predicted, &sets, &room, &reserved}) values->reserve(count);
        double longest = 1, most = 1;
        for (const IterationRow& row : data_.iterations) {
            at << double(row.startNs);
            took << double(row.durationNs);
            predicted << double(row.predictedNs);
            sets << double(row.workingSetBytes);
            room << double(row.availableBytes);
            reserved << double(row.deviceBytes) + double(row.scratchBytes);
            longest = std::max({longest, took.back(), predicted.back()});
            most = std::max({most, sets.back(), room.back(), reserved.back()});
        }
        took_->setData(at, took, true), predicted_->setData(at, predicted, true);
        workingSets_->setData(at, sets, true), available_->setData(at, room, true);
        reserved_->setData(at, reserved, true);
        canvas().setFullY(Iterations, {0, longest * 1.05});
        canvas().setFullY(Memory, {0, most * 1.05});
        setUnitAxis(canvas().panels()[Iterations]->axis(QCPAxis::atLeft), tr("Iteration"), Unit::Nanoseconds);
        setUnitAxis(canvas().panels()[Memory]->axis(QCPAxis::atLeft), tr("Memory"), Unit::Bytes);
    }

    void fillLegend(const Theme& theme) {
        using Mark = Swatch::Mark;
        QVector<Swatch> swatches;
        for (int state = 0; state < kServedStates; ++state)
            swatches << Swatch{stateName(ServedState(state)), stateColours(theme)[std::size_t(state)], Mark::Fill, {}};
        swatches << Swatch{tr("token behind its bound"), theme.text, Mark::Tick, {}}
                 << Swatch{tr("iteration took, working sets"), theme.runA, Mark::Line, {}}
                 << Swatch{tr("predicted"), theme.mutedText, Mark::Dashes, {}}
                 << Swatch{tr("reserved"), theme.mutedText, Mark::Line, {}}
                 << Swatch{tr("room for working sets"), theme.danger, Mark::Dashes, {}};
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
        if (request.ended()) add(tr("Ended"), QString::fromStdString(request.status));
        if (request.pauses > 0)
            add(tr("Paused"), (request.pauses == 1 ? tr("%1 time, %2") : tr("%1 times, %2"))
                                  .arg(formatCount(request.pauses), milliseconds(request.pausedNs)));
        if (request.hits + request.misses > 0)
            add(tr("Hits"),
                formatValue(Unit::Percent, 100.0 * double(request.hits) / double(request.hits + request.misses)));
        if (!request.reason.empty()) add(tr("Reason"), QString::fromStdString(request.reason));
    }

    /// Says whom an iteration served.
    void tell(int number, const std::vector<MemberRow>& members) {
        const auto found = std::find_if(data_.iterations.begin(), data_.iterations.end(),
                                        [&](const IterationRow& row) { return row.iteration == number; });
        if (found == data_.iterations.end()) return;
        at_ = int(found - data_.iterations.begin());
        QStringList parts;
        for (const MemberRow& member : members)
            parts << (member.prefill
                          ? tr("request %1 read %2 tokens in layers %3 to %4")
                                .arg(formatCount(member.request), formatCount(member.tokens))
                                .arg(member.layerFrom)
                                .arg(member.layerTo)
                          : (member.misses == 1 ? tr("request %1 decoded (%2 miss, %3)")
                                                : tr("request %1 decoded (%2 misses, %3)"))
                                .arg(formatCount(member.request), formatCount(member.misses), bytes(member.h2dBytes)));
        const QString bound = found->limitedBy == "none"
                                  ? tr("nothing bound its plan")
                                  : tr("its plan was bound by %1").arg(QString::fromStdString(found->limitedBy));
        chosen_->setText(tr("Iteration %1 took %2, predicted %3; %4: %5.")
                             .arg(formatCount(number), milliseconds(found->durationNs),
                                  milliseconds(found->predictedNs), bound,
                                  parts.isEmpty() ? tr("nobody was served") : parts.join(QStringLiteral(", "))));
        chosen_->show();
    }

    QComboBox* order_ = nullptr;
    QLabel* chosen_ = nullptr;
    LegendStrip* legend_ = nullptr;
    LanePlottable* lanes_ = nullptr;
    QCPGraph *took_ = nullptr, *predicted_ = nullptr, *workingSets_ = nullptr, *available_ = nullptr,
             *reserved_ = nullptr;
    ServingRows data_;
    std::vector<std::size_t> byLane_; // [lane] index of the request
    std::vector<double> lane_;        // [index of the request]
    int at_ = 0;                      // index of the chosen iteration
    GrowthTimer timer_{kRefreshMs, [this] {
                           if (run()) ask();
                       }};
};

} // namespace

View* makeServingView(Workspace& workspace, QWidget* parent) { return new ServingView(workspace, parent); }

} // namespace kvscope::ui

#include "serving_view.moc"
