// Serving: the requests of a serving run as lanes over time. Below them stand latencies over a sliding window, the
// times of the iterations, the memory of the device, and thrash. One slow token is explained by a click on it.
#include "ui/frame/height_in_sight.h"
#include "ui/frame/note_label.h"
#include "ui/frame/small_widgets.h"
#include "ui/frame/units.h"
#include "ui/plots/plot_canvas.h"
#include "ui/views/make_views.h"
#include "ui/views/serving/iteration_view.h"
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

constexpr double kLanesShare = 2;  // of the height, beside that of another strip
constexpr int kLinesInLowView = 2; // of the text above the strips
constexpr int kRoomForLines = 440; // pixels of height from which a low view has two lines of text above the strips
constexpr int kRoomForAll =
    540; // pixels of height from which the table, two lines of legend and higher strips have room
constexpr std::array<int, 6> kWindowSeconds{0,  1,  5,
                                            20, 60, 300}; // seconds that latencies are taken over; 0: by the run
enum ServingPanel { Lanes, Latency, Iterations, Memory, Shares };

class ServingView final : public IterationView {
    Q_OBJECT
public:
    ServingView(Workspace& workspace, QWidget* parent)
        : IterationView(workspace, tr("Serving"),
                        tr("This view shows the requests of a serving run: how long each one waited, when its "
                           "prompt was read and its tokens came, and what the iterations did meanwhile."),
                        parent) {
        makePickers();
        chosen_ = new NoteLabel(this);
        chosen_->setObjectName(QStringLiteral("chosenIteration"));
        chosen_->hide();
        addAbovePlot(chosen_);
        members_ = new MembersTable;
        members_->hide();
        addBesidePlot(members_);
        connect(members_, &MembersTable::requestClicked, this, [this](std::int64_t request) {
            setChosenRequest(request);
            tell();
        });
        auto lanes = std::make_unique<LanesStrip>();
        auto shares = makeThrashStrip();
        lanes_ = lanes.get(), shares_ = shares.get();
        addStrip(std::move(lanes), true, kLanesShare);
        addStrip(makeLatencyStrip());
        addStrip(makeIterationsStrip());
        addStrip(makeMemoryStrip());
        addStrip(std::move(shares));
        finishStrips();
    }

    QString exportCsv() const override;
    QString sql() const override {
        return run() ? QStringLiteral("SELECT * FROM v_request WHERE run_id = %1;").arg(run()->key.runId) : QString();
    }

protected:
    ServingWish wish() const override {
        ServingWish wanted;
        wanted.latency = true, wanted.windowNs = double(window_->currentData().toInt()) * 1e9;
        return wanted;
    }
    void forget() override {
        shares_->setThrash({});
        IterationView::forget();
    }
    void fill() override {
        lanes_->setOrder(LanesStrip::Order(std::max(order_->currentIndex(), 0)));
        IterationView::fill();
        askThrash();
    }
    std::int64_t requestAt(int panel, QPointF at) const override {
        const RequestRow* request = panel == Lanes ? lanes_->requestAt(data(), at.y()) : nullptr;
        return request ? request->number : -1;
    }
    void chose() override;
    void resizeEvent(QResizeEvent* event) override {
        IterationView::resizeEvent(event);
        const int room = heightInSight(*this);
        setLow(room < kRoomForAll);
        if (chosen_ != nullptr) chosen_->fit(*this, room < kRoomForLines ? 1 : kLinesInLowView);
        showMembers();
    }
    QString note() const override;

private:
    void makePickers();
    void askThrash();
    void tell();

    /// The table is left out where the view is low.
    void showMembers() {
        if (!members_) return;
        members_->setVisible(chosenIteration() && !members_->members().empty() && heightInSight(*this) >= kRoomForAll);
        members_->fit(size());
    }

    QComboBox *order_ = nullptr, *window_ = nullptr;
    NoteLabel* chosen_ = nullptr;
    MembersTable* members_ = nullptr; // of the chosen iteration
    LanesStrip* lanes_ = nullptr;
    ThrashStrip* shares_ = nullptr;
};

void ServingView::makePickers() {
    order_ = addPicker(QStringLiteral("order"), tr("Order"), tr("The order of the lanes"));
    order_->addItems({tr("Arrival"), tr("Time to first token"), tr("Longest gap")});
    connect(order_, &QComboBox::currentIndexChanged, this, [this] {
        lanes_->setOrder(LanesStrip::Order(std::max(order_->currentIndex(), 0)));
        refill(Lanes);
        replot();
    });
    window_ = addPicker(QStringLiteral("latencyWindow"), tr("Latencies of the last"),
                        tr("The time over which latencies are taken: a longer one makes their curves smoother"));
    for (const int seconds : kWindowSeconds)
        window_->addItem(seconds == 0   ? tr("1/20 of the run, 1 s or more")
                         : seconds < 60 ? tr("%1 s").arg(seconds)
                                        : tr("%1 min").arg(seconds / 60),
                         seconds);
    connect(window_, &QComboBox::currentIndexChanged, this, [this] { ask(); });
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
            refill(Shares);
            replot();
            updateNote();
        });
}

QString ServingView::note() const {
    if (data().rows.requests.empty()) return healthNote();
    const auto late = std::int64_t(data().rows.late.size());
    const auto count = std::int64_t(data().rows.requests.size());
    const bool whole = data().windowNs >= data().end();
    const bool ofOurs =
        !data().rows.iterations.empty() || (run() && run()->row.serves()); // another engine's may be alone
    QString text =
        tr("%1%2. Times begin at the intended arrival. Latencies are those of %3. %4%5")
            .arg(count == 1 ? tr("1 request") : tr("%1 requests").arg(formatCount(count)),
                 ofOurs ? tr(", %1 iterations").arg(formatCount(std::int64_t(data().rows.iterations.size())))
                        : tr("; what the server's iterations did is not known"),
                 whole ? tr("the whole run until then") : tr("the last %1").arg(servingTime(data().windowNs)),
                 late == 0   ? tr("No token came later than its request's bound.")
                 : late == 1 ? tr("One token came later than its request's bound.")
                             : tr("%1 tokens came later than their requests' bounds.").arg(formatCount(late)),
                 ofOurs ? tr(" Click a token to see why it came when it came.") : QString());
    for (const QString& more : {shares_->finding(), healthNote()})
        if (!more.isEmpty()) text += QStringLiteral(" ") + more;
    return text;
}

QString ServingView::exportCsv() const {
    if (data().rows.requests.empty()) return {};
    QString csv = QStringLiteral("request,class,status,arrival_ns,queue_ns,ttft_ns,end_ns,prompt_tokens,"
                                 "output_tokens,pauses,paused_ns,hits,misses,h2d_bytes\n");
    const auto from = [](std::int64_t ns, std::int64_t arrival) {
        return ns < 0 ? QString() : QString::number(ns - arrival);
    };
    for (const RequestRow& request : data().rows.requests)
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

/// Reads whom the chosen iteration served.
void ServingView::chose() {
    const IterationRow* iteration = chosenIteration();
    if (!iteration || !run()) {
        members_->setMembers({});
        members_->hide();
        chosen_->hide();
        return;
    }
    workspace().query<std::vector<MemberRow>>(
        this, "serving members", run()->key,
        [id = run()->key.runId, number = iteration->iteration](TraceReader& reader) {
            return readMembers(reader, id, number);
        },
        [this, number = iteration->iteration](std::vector<MemberRow> members) {
            const IterationRow* now = chosenIteration();
            if (!now || now->iteration != number) return;
            members_->setMembers(std::move(members));
            showMembers();
            tell();
        });
}

/// Says whom the chosen iteration served, and explains the token of the chosen request.
void ServingView::tell() {
    const IterationRow* row = chosenIteration();
    if (!row) return;
    QString text = describeIteration(*row, members_->members());
    if (chosenRequest() >= 0)
        text += QLatin1Char('\n') + explainToken(data(), *row, members_->members(), chosenRequest());
    chosen_->setText(text);
    chosen_->show();
    members_->choose(chosenRequest());
}

} // namespace

View* makeServingView(Workspace& workspace, QWidget* parent) { return new ServingView(workspace, parent); }

} // namespace kvscope::ui

#include "serving_view.moc"
