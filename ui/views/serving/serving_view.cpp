// Serving: the requests of a serving run as lanes over time. Below them stand latencies over a sliding window, the
// times of the iterations, the memory of the device, and thrash. One slow token is explained by a click on it.
#include "ui/frame/growth_timer.h"
#include "ui/frame/small_widgets.h"
#include "ui/frame/units.h"
#include "ui/look/theme.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"
#include "ui/views/make_views.h"
#include "ui/views/serving/lanes_strip.h"
#include "ui/views/serving/members_table.h"
#include "ui/views/serving/token_explanation.h"
#include "ui/views/step_numbers_csv.h"

#include <QComboBox>
#include <QLabel>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

namespace kvscope::ui {

namespace {

constexpr int kRefreshMs = 500;
constexpr double kMissedPixels = 4;
constexpr int kRoomForTable = 430; // pixels of height from which a view has room for the table
constexpr std::array<int, 6> kWindowSeconds{0,  1,  5,
                                            20, 60, 300}; // seconds that latencies are taken over; 0: by the run
enum ServingPanel { Lanes, Latency, Iterations, Memory, Shares };

class ServingView final : public PlotView {
    Q_OBJECT
public:
    ServingView(Workspace& workspace, QWidget* parent) : PlotView(workspace, tr("Serving"), parent) {
        makePickers();
        chosen_ = new MutedLabel({}, this);
        chosen_->setObjectName(QStringLiteral("chosenIteration"));
        chosen_->setTextFormat(Qt::PlainText);
        chosen_->setWordWrap(true);
        chosen_->setTextInteractionFlags(Qt::TextSelectableByMouse);
        chosen_->hide();
        addAbovePlot(chosen_);
        members_ = new MembersTable;
        members_->hide();
        addBesidePlot(members_);
        connect(members_, &MembersTable::requestClicked, this, [this](std::int64_t request) {
            chosenRequest_ = request;
            tell();
        });
        buildPlot();
        canvas().applyTheme(Theme::current());
        themed(Theme::current());
    }

    QString exportCsv() const override;
    QString sql() const override {
        return run() ? QStringLiteral("SELECT * FROM v_request WHERE run_id = %1;").arg(run()->key.runId) : QString();
    }

protected:
    void runChanged() override {
        data_ = {};
        shares_->setThrash({});
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
        const IterationRow* row = data_.iterationOf(workspace().cursor().step);
        if (row && row->iteration != chosenIteration_)
            choose(*row, -1, double(row->startNs) + double(row->durationNs) / 2);
    }
    void themed(const Theme& theme) override {
        legend_->applyTheme(theme);
        QVector<Swatch> swatches;
        for (const auto& strip : strips_) {
            strip->themed(theme);
            swatches += strip->swatches(theme);
        }
        legend_->setSwatches(swatches);
    }
    void clickedAt(int panel, QPointF at) override;
    void resizeEvent(QResizeEvent* event) override {
        PlotView::resizeEvent(event);
        showMembers();
    }
    QString tooltipAt(int panel, QPointF at) override;
    QString note() const override;
    void moveCursor(int steps, int) override { // to another iteration
        const std::vector<IterationRow>& rows = data_.rows.iterations;
        if (rows.empty()) return;
        const auto last = std::ptrdiff_t(rows.size()) - 1;
        const IterationRow* now = data_.iterationOf(chosenIteration_);
        const std::ptrdiff_t at = now ? now - rows.data() + steps : steps > 0 ? steps - 1 : 0;
        const IterationRow& row = rows[std::size_t(std::clamp<std::ptrdiff_t>(at, 0, last))];
        const double middle = double(row.startNs) + double(row.durationNs) / 2;
        const double lane = chosenRequest_ >= 0 ? lanes_->laneOf(data_, chosenRequest_) : -1;
        clickedAt(lane >= 0 ? Lanes : Iterations, {middle, lane});
        canvas().reveal(middle);
    }
    void jumpCursor(bool toEnd) override {
        const int size = int(data_.rows.iterations.size());
        moveCursor(toEnd ? size : -size, 0);
    }

private:
    void makePickers();
    void buildPlot();
    void ask();
    void take(ServingData came);
    void askThrash();
    void fill();
    void choose(const IterationRow& iteration, std::int64_t request, double atNs);
    void tell();

    double latencyWindowNs() const {
        const int chosen = window_->currentData().toInt();
        return double(chosen) * 1e9;
    }
    /// The table is left out where the view is low.
    void showMembers() {
        if (!members_) return;
        members_->setVisible(chosenIteration_ >= 0 && !members_->members().empty() && height() >= kRoomForTable);
        members_->fit(size());
    }
    void forgetChoice() {
        chosenIteration_ = -1, chosenRequest_ = -1;
        members_->setMembers({});
        members_->hide();
        chosen_->hide();
        canvas().overlay().clear();
        canvas().replotOverlay();
    }

    QComboBox *order_ = nullptr, *window_ = nullptr;
    QLabel* chosen_ = nullptr;
    LegendStrip* legend_ = nullptr;
    MembersTable* members_ = nullptr;                   // of the chosen iteration
    std::vector<std::unique_ptr<ServingStrip>> strips_; // by ServingPanel
    LanesStrip* lanes_ = nullptr;
    ThrashStrip* shares_ = nullptr;
    ServingData data_;
    bool moving_ = false;             // this view moves the cursor
    int chosenIteration_ = -1;        // its number; below 0: none
    std::int64_t chosenRequest_ = -1; // whose token is explained; below 0: nobody's
    GrowthTimer timer_{kRefreshMs, [this] {
                           if (run()) ask();
                       }};
};

void ServingView::makePickers() {
    order_ = addPicker(QStringLiteral("order"), tr("Order"), tr("The order of the lanes"));
    order_->addItems({tr("Arrival"), tr("Time to first token"), tr("Longest gap")});
    connect(order_, &QComboBox::currentIndexChanged, this, [this] {
        fill();
        replot();
    });
    window_ = addPicker(QStringLiteral("latencyWindow"), tr("Latencies of the last"),
                        tr("The time over which latencies are taken: a longer one makes their curves smoother"));
    for (const int seconds : kWindowSeconds)
        window_->addItem(seconds == 0   ? tr("1/20 of the run")
                         : seconds < 60 ? tr("%1 s").arg(seconds)
                                        : tr("%1 min").arg(seconds / 60),
                         seconds);
    connect(window_, &QComboBox::currentIndexChanged, this, [this] {
        if (run()) ask();
    });
}

void ServingView::buildPlot() {
    PlotCanvas& plot = canvas();
    legend_ = new LegendStrip(&plot);
    plot.plotLayout()->addElement(0, 0, legend_);
    auto lanes = std::make_unique<LanesStrip>();
    auto shares = makeThrashStrip();
    lanes_ = lanes.get(), shares_ = shares.get();
    strips_.push_back(std::move(lanes));
    strips_.push_back(makeLatencyStrip());
    strips_.push_back(makeIterationsStrip());
    strips_.push_back(makeMemoryStrip());
    strips_.push_back(std::move(shares));
    for (std::size_t i = 0; i < strips_.size(); ++i) strips_[i]->build(*plot.addPanel(i == Lanes));
    plot.plotLayout()->setRowStretchFactor(1 + Lanes, 2);
    for (QCPAxisRect* panel : plot.panels())
        if (panel != plot.panels().back()) panel->axis(QCPAxis::atBottom)->setTickLabels(false);
    plot.setSelectsSteps(false);
    plot.setMinimumSpan(1e4); // 10 us
}

void ServingView::ask() {
    workspace().query<ServingData>(
        this, "serving", run()->key,
        [id = run()->key.runId, window = latencyWindowNs()](TraceReader& reader) {
            return readServingData(reader, id, window);
        },
        [this](ServingData came) {
            timer_.answered();
            take(std::move(came));
        });
}

void ServingView::take(ServingData came) {
    const bool grows = run() && run()->row.status == RunStatus::Running;
    if (!came.serving) {
        if (grows && run()->row.serves())
            return showEmpty(tr("No request has come yet"),
                             tr("The server runs. Its requests appear here as they arrive."));
        if (grows) return;
        return showEmpty(tr("This run served no requests"),
                         tr("It decoded one batch from its beginning to its end. kvscope-cli load --trace records "
                            "runs whose requests come and go."));
    }
    data_ = std::move(came);
    showEmpty({}, {});
    fill();
    replot();
    updateNote();
    askThrash();
    if (chosenIteration_ < 0 && workspace().cursor().step > 0) cursorMoved();
}

/// Reading all selected blocks takes long in a long run. While the run grows, its counters are taken.
void ServingView::askThrash() {
    if (!run()) return;
    workspace().query<Thrash>(
        this, "serving thrash", run()->key,
        [id = run()->key.runId, all = run()->row.status != RunStatus::Running](TraceReader& reader) {
            return readThrash(reader, id, all);
        },
        [this](Thrash thrash) {
            shares_->setThrash(std::move(thrash));
            canvas().setFullY(Shares, shares_->fill(data_));
            replot();
            updateNote();
        });
}

void ServingView::fill() {
    lanes_->setOrder(LanesStrip::Order(std::max(order_->currentIndex(), 0)));
    canvas().setFullX({0, data_.end()});
    for (std::size_t i = 0; i < strips_.size(); ++i) {
        canvas().setFullY(int(i), strips_[i]->fill(data_));
        strips_[i]->nameAxis();
    }
    for (QCPAxisRect* panel : canvas().panels()) {
        QCPAxis* time = panel->axis(QCPAxis::atBottom);
        setUnitAxis(time, tr("Time"), Unit::Nanoseconds);
        if (panel != canvas().panels().back()) time->setLabel({});
    }
}

void ServingView::clickedAt(int panel, QPointF at) {
    const IterationRow* iteration = data_.iterationAt(at.x());
    if (!iteration) { // the mark of a token stands at the end of its iteration: a click may miss it by some pixels
        const QCPAxis* time = canvas().panels()[std::size_t(panel)]->axis(QCPAxis::atBottom);
        iteration = data_.iterationAt(time->pixelToCoord(time->coordToPixel(at.x()) - kMissedPixels));
    }
    if (!iteration) return forgetChoice();
    const RequestRow* request = panel == Lanes ? lanes_->requestAt(data_, at.y()) : nullptr;
    choose(*iteration, request ? request->number : -1,
           std::clamp(at.x(), double(iteration->startNs), double(iteration->endNs())));
    Cursor cursor = workspace().cursor();
    cursor.step = iteration->iteration;
    if (request && request->row >= 0) cursor.sequence = request->row; // a row is a sequence of the recorded steps
    moving_ = true;                                                   // the cursor may be clamped to the recorded steps
    workspace().setCursor(cursor);
    moving_ = false;
}

QString ServingView::tooltipAt(int panel, QPointF at) {
    QStringList lines;
    const auto add = [&](const QString& name, const QString& value) {
        lines << QStringLiteral("<tr><td>%1&nbsp;&nbsp;</td><td>%2</td></tr>").arg(name, value.toHtmlEscaped());
    };
    strips_[std::size_t(panel)]->addFacts(data_, at.x(), at.y(), add);
    if (const IterationRow* iteration = data_.iterationAt(at.x())) {
        add(tr("Iteration"), formatCount(iteration->iteration));
        add(tr("Took"), servingTime(double(iteration->durationNs)));
        add(tr("Predicted"), servingTime(double(iteration->predictedNs)));
        add(tr("Decode rows"), formatCount(iteration->decodeRows));
        add(tr("Prompt tokens read"), formatCount(iteration->prefillTokens));
        add(tr("Waiting, paused"),
            QStringLiteral("%1, %2").arg(formatCount(iteration->waiting), formatCount(iteration->paused)));
        add(tr("Working sets"), servingBytes(double(iteration->workingSetBytes)));
        add(tr("Room for them"), servingBytes(double(iteration->availableBytes)));
        if (iteration->surprises > 0) add(tr("Blocks outside of them"), formatCount(iteration->surprises));
        add(tr("Plan bound by"), QString::fromStdString(iteration->limitedBy));
    }
    return lines.isEmpty() ? QString() : QStringLiteral("<table>%1</table>").arg(lines.join(QString()));
}

QString ServingView::note() const {
    if (data_.rows.requests.empty()) return healthNote();
    const auto late = std::int64_t(data_.rows.late.size());
    const auto count = std::int64_t(data_.rows.requests.size());
    QString text =
        tr("%1, %2 iterations. Times begin at the intended arrival. Latencies are those of the last %3. %4 Click a "
           "token to see why it came when it came.")
            .arg(count == 1 ? tr("1 request") : tr("%1 requests").arg(formatCount(count)),
                 formatCount(std::int64_t(data_.rows.iterations.size())), servingTime(data_.windowNs),
                 late == 0   ? tr("No token came later than its request's bound.")
                 : late == 1 ? tr("One token came later than its request's bound.")
                             : tr("%1 tokens came later than their requests' bounds.").arg(formatCount(late)));
    for (const QString& more : {shares_->finding(), healthNote()})
        if (!more.isEmpty()) text += QStringLiteral(" ") + more;
    return text;
}

QString ServingView::exportCsv() const {
    if (data_.rows.requests.empty()) return {};
    QString csv = QStringLiteral("request,class,status,arrival_ns,queue_ns,ttft_ns,end_ns,prompt_tokens,"
                                 "output_tokens,pauses,paused_ns,hits,misses,h2d_bytes\n");
    const auto from = [](std::int64_t ns, std::int64_t arrival) {
        return ns < 0 ? QString() : QString::number(ns - arrival);
    };
    for (const RequestRow& request : data_.rows.requests)
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

/// Marks an iteration at a moment of it and reads whom it served. request: whose token is explained; below 0: nobody's.
void ServingView::choose(const IterationRow& iteration, std::int64_t request, double atNs) {
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
            members_->setMembers(std::move(members));
            showMembers();
            tell();
        });
}

/// Says whom the chosen iteration served, and explains the token of the chosen request.
void ServingView::tell() {
    const IterationRow* row = data_.iterationOf(chosenIteration_);
    if (!row) return;
    QString text = describeIteration(*row, members_->members());
    if (chosenRequest_ >= 0) text += QLatin1Char('\n') + explainToken(data_, *row, members_->members(), chosenRequest_);
    chosen_->setText(text);
    chosen_->show();
    members_->choose(chosenRequest_);
}

} // namespace

View* makeServingView(Workspace& workspace, QWidget* parent) { return new ServingView(workspace, parent); }

} // namespace kvscope::ui

#include "serving_view.moc"
