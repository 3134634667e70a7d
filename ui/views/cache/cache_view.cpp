// What if: the recorded selections with other caches and links. The view loads them once. Then every slider answers at
// once with what is known, and the answer is corrected when the exact replay is there.
#include "ui/frame/proposals.h"
#include "ui/frame/small_widgets.h"
#include "ui/frame/step_words.h"
#include "ui/frame/units.h"
#include "ui/frame/waiting.h"
#include "ui/look/theme.h"
#include "ui/plots/legend_strip.h"
#include "ui/plots/panel_row.h"
#include "ui/plots/plot_canvas.h"
#include "ui/plots/plot_view.h"
#include "ui/views/cache/cache_controls.h"
#include "ui/views/cache/cache_jobs.h"
#include "ui/views/cache/cache_plots.h"
#include "ui/views/make_views.h"
#include "ui/views/run_text.h"

#include <QComboBox>
#include <QHBoxLayout>
#include <QPainter>
#include <QProgressBar>
#include <QPushButton>
#include <QSignalBlocker>
#include <QTimer>

#include <algorithm>
#include <cmath>

namespace kvscope::ui {

namespace {

constexpr int kProgressMs = 100, kWideForLegend = 700;
enum Panel { Misses, Speed, WorkingSet, Kept };
enum Group { Sizes, SpeedGroup, Windows }; // panels that share an x axis
enum class Lower { ByBandwidth, BySize, Locality };

class CacheView final : public PlotView, public TriesCaches {
    Q_OBJECT
public:
    CacheView(Workspace& workspace, QWidget* parent)
        : PlotView(workspace, tr("What if"), parent), jobs_(new CacheJobs(workspace, this)) {
        scope_ =
            addPicker(QStringLiteral("scope"), tr("Misses of"),
                      tr("All KV heads together, or those of the cursor's layer, or one KV head. Numbers and speed "
                         "are always of all."));
        scope_->addItems({tr("All KV heads"), tr("Cursor's layer"), tr("Cursor's KV head")});
        lower_ = addPicker(QStringLiteral("lower"), tr("Below"), tr("What the lower plots show"));
        lower_->addItems({tr("Speed by link bandwidth"), tr("Speed by cache size"), tr("Working set and locality")});
        makeStatus();
        makePlots();
        controls_ = new CacheControls;
        addBesidePlot(controls_);
        controls_->hide();

        connect(scope_, &QComboBox::currentIndexChanged, this, &CacheView::present);
        connect(lower_, &QComboBox::currentIndexChanged, this, &CacheView::arrangeLower);
        connect(controls_, &CacheControls::changed, this, &CacheView::asked);
        connect(controls_, &CacheControls::sharedPoolChanged, this, [this] { load(separate_); });
        connect(&canvas(), &PlotCanvas::handleDragged, this, &CacheView::askAt);
        applyTheme(Theme::current());
        arrangeLower();
    }
    ~CacheView() override { jobs_->cancelAll(); }

    void tryChange(const ProposedChange& change) override {
        tried_ = change;
        askTried();
    }

    QString exportCsv() const override {
        if (!whatIf_) return {};
        QString csv = QStringLiteral("plot,series,x,x_unit,value,unit\n");
        for (const CacheNumber& number : numbers_) {
            const auto add = [&](const char* what, double value) {
                if (!std::isnan(value))
                    csv += QStringLiteral("%1,%2,,,%3,%4\n")
                               .arg(QLatin1String(what), number.title.trimmed(), QString::number(value, 'g', 17),
                                    number.unitName);
            };
            add("recorded", number.a);
            add(number.estimated ? "what_if_estimated" : "what_if", number.b);
        }
        return csv + misses_->csv() + speed_->csv() + locality_->csv();
    }

protected:
    void runChanged() override {
        if (run() && state_ != State::Waiting && run()->key == key_) { // another run to compare with, or other rates
            if (std::exchange(counted_, coldSteps()) == coldSteps()) return;
            aheadFor_.reset();
            present();
            updateNote();
            return;
        }
        counted_ = coldSteps();
        jobs_->cancelAll();
        forget();
        if (showEmptyWithoutRun(
                tr("This view answers what another cache size, replacement policy or link would have done to a "
                   "recorded run, from the blocks it selected.")))
            return;
        key_ = run()->key;
        jobs_->setRun(key_, run()->live ? 1 : 0); // one core at most beside a running engine
        startIfThereIsSomething();
    }

    void runGrew() override {
        if (!run()) return;
        if (!whatIf_ && state_ == State::Waiting) startIfThereIsSomething();
        if (whatIf_ && state_ == State::Ready && !run()->live && run()->row.status != RunStatus::Running &&
            newSteps() > 0)
            load(nullptr); // the run is over: the last word
        showStatus();
        fillLines();
    }

    void cursorMoved() override {
        if (whatIf_ && !(scopeNow() == scene_.scope)) present();
    }

    void themed(const Theme& theme) override {
        legend_->applyTheme(theme);
        if (!misses_) return;
        misses_->applyTheme(theme);
        speed_->applyTheme(theme);
        locality_->applyTheme(theme);
        if (whatIf_) present();
    }

    void clickedAt(int panel, QPointF at) override {
        if (panel == Misses || panel == Speed) askAt(panel, at.x());
    }

    void moveCursor(int steps, int layers) override {
        if (!whatIf_) return;
        if (layers != 0) {
            Cursor cursor = workspace().cursor();
            cursor.layer += layers;
            workspace().setCursor(cursor);
        }
        if (steps == 0) return;
        WhatIfQuestion question = controls_->question();
        question.size += steps;
        controls_->setQuestion(question);
    }

    void jumpCursor(bool toEnd) override {
        if (!whatIf_) return;
        WhatIfQuestion question = controls_->question();
        question.size = toEnd ? whatIf_->largestSlots() : whatIf_->smallestSlots();
        controls_->setQuestion(question);
    }

    QString tooltipAt(int panel, QPointF at) override {
        if (!whatIf_) return {};
        switch (panel) {
        case Misses:
            return misses_->tooltip(int(std::lround(at.x())));
        case Speed:
            return speed_->tooltip(at.x());
        default:
            return locality_->tooltip(panel == Kept, int(std::lround(at.x())));
        }
    }

    QString note() const override {
        if (!whatIf_) return healthNote();
        QString curves = tr("lru and belady: exact at every size.");
        if (!whatIf_->exactCurves())
            curves = state_ == State::Making ? tr("lru and belady: sampled (≈ 1 % of the steps) until the exact curves "
                                                  "are there.")
                                             : tr("lru and belady: sampled (≈ 1 % of the steps).");
        return sentences(
            {curves,
             tr("Dots are replays, joined by lines. ▵ w12: blocks of a head's last 12 selections together. ◇: "
                "recorded."),
             whatIf_->trace().run.timing == Timing::Measured
                 ? tr("Recorded times are measured; the exposed time of a what-if is modelled, its tokens/s predicted.")
                 : tr("Recorded compute is measured, the link's time modelled, in “recorded” too; tokens/s of a "
                      "what-if "
                      "are predicted."),
             countedSteps(),
             newSteps() > 0 ? tr("The last %1 steps are not in it yet.").arg(formatCount(newSteps())) : QString(),
             healthNote()});
    }

    /// Totals and rates count different steps.
    QString countedSteps() const {
        const int cold = whatIf_->coldStepCount();
        if (cold == 0) return tr("Every decode step counts.");
        if (coldSteps() == ColdSteps::Counted)
            return tr("Every decode step counts, cold ones too: a replayed cache starts empty.");
        const RunRow& row = whatIf_->trace().run;
        return (row.prompts.inPieces()
                    ? tr("Ratios and tokens/s leave %1 out; misses, bytes and times are of every step.")
                    : tr("Ratios and tokens/s leave %1 out, in which a replayed cache is as empty as the recorded one "
                         "was; misses, bytes and times are of every step."))
            .arg(leftOutSteps(row, cold));
    }

    int drawAbove(QPainter* painter, QRect area) const override;

    void resizeEvent(QResizeEvent* event) override {
        PlotView::resizeEvent(event);
        if (controls_) controls_->setMaximumWidth(std::max(controls_->minimumSizeHint().width(), int(0.45 * width())));
        if (whatIf_) showLegend();
    }

private:
    enum class State { Waiting, Loading, Making, Ready, Cancelled, Failed };

    void makeStatus() {
        status_ = new QWidget(this);
        statusText_ = new MutedLabel;
        bar_ = new QProgressBar;
        bar_->setRange(0, 1000);
        bar_->setTextVisible(false);
        bar_->setFixedSize(160, 6);
        action_ = new QPushButton;
        action_->setObjectName(QStringLiteral("cacheAction"));
        action_->setAutoDefault(false);
        auto* row = new QHBoxLayout(status_);
        row->setContentsMargins(0, 0, 0, 0);
        row->addWidget(statusText_);
        row->addWidget(bar_);
        row->addWidget(action_);
        row->addStretch();
        addAbovePlot(status_);
        connect(action_, &QPushButton::clicked, this, [this] {
            if (working()) {
                jobs_->cancelAll();
                ++epoch_; // also drops answers that are done and not yet delivered
                ended({{}, true});
            } else {
                load(whatIf_ && newSteps() == 0 ? separate_ : nullptr);
            }
        });
        poll_.setInterval(kProgressMs);
        connect(&poll_, &QTimer::timeout, this, &CacheView::showStatus);
    }

    void makePlots() {
        canvas().setSelectsSteps(false);
        canvas().setAccessibleDescription(tr(
            "Drag pans, the wheel zooms, Shift and drag zooms a box, a double click resets. The vertical lines can be "
            "dragged. Left and right arrow keys change the cache size, with Shift by ten; up and down the cursor's "
            "layer; plus and minus zoom."));
        legend_ = new LegendStrip(&canvas());
        canvas().plotLayout()->addElement(0, 0, legend_);
        QCPAxisRect* top = canvas().addPanel(true, Sizes);
        row_ = new PanelRow;
        std::array<QCPAxisRect*, 3> below{};
        for (std::size_t i = 0; i < below.size(); ++i) {
            below[i] = canvas().addPanel(true, i == 0 ? SpeedGroup : Windows);
            canvas().plotLayout()->take(below[i]);
            below[i]->setMarginGroup(QCP::msAll, nullptr); // the panels below stand side by side
        }
        canvas().plotLayout()->simplify();
        top->setMarginGroup(QCP::msAll, nullptr);
        canvas().plotLayout()->addElement(2, 0, row_);
        row_->add(below[0], 1.7, 220);
        row_->add(below[1], 1, 190);
        row_->add(below[2], 1, 190);
        row_->setLeastPictureHeight(300);
        canvas().plotLayout()->setRowStretchFactor(1, 1.35);
        misses_ = std::make_unique<MissPlot>(canvas(), Misses);
        speed_ = std::make_unique<SpeedPlot>(canvas(), Speed, SpeedGroup);
        locality_ = std::make_unique<LocalityPlots>(canvas(), WorkingSet, Kept, Windows);
        canvas().setMinimumHeight(Misses, 0.05);
        canvas().setMinimumHeight(WorkingSet, 0.5);
    }

    Lower lower() const { return Lower(lower_->currentIndex()); }

    void arrangeLower() {
        row_->setShown(canvas().panels()[Speed], lower() != Lower::Locality);
        if (lower() != Lower::Locality)
            speed_->setAxis(lower() == Lower::BySize ? SpeedPlot::Axis::Size : SpeedPlot::Axis::Bandwidth);
        if (whatIf_) present();
    }

    bool working() const { return state_ == State::Loading || state_ == State::Making; }
    int newSteps() const { return whatIf_ && run() ? std::max(run()->row.steps - loadedSteps_, 0) : 0; }

    /// False once another run, or this one again, is asked for: its answer must not meet what came after.
    auto stillAsked() {
        return [this, epoch = epoch_] { return epoch == epoch_; };
    }

    void forget() {
        ++epoch_;
        whatIf_.reset();
        separate_.reset();
        scene_ = {};
        numbers_.clear();
        asking_.reset();
        aheadFor_.reset();
        filling_ = false;
        loadedSteps_ = 0;
        state_ = State::Waiting;
        tried_.reset();
        controls_->hide();
        controls_->setSharedPool(false);
        controls_->setReproduction({}, true);
        showStatus();
    }

    void startIfThereIsSomething() {
        const RunRow& row = run()->row;
        if (row.level == RecordLevel::Counters) {
            showEmpty(
                tr("No selections were recorded"),
                tr("What another cache would have done follows from the blocks that every step selected, and this "
                   "run was recorded at level counters.\n\nChoose “Selections” or “Full” under Record in the "
                   "session form (kvscope-cli: --record selections) and run again."),
                {showView("transfers")});
            return;
        }
        if (row.steps < 2) {
            const auto [title, why] = waitingText(run(), tr("Waiting for the first decode step"),
                                                  tr("The prefill selects nothing that could be replayed."));
            showEmpty(title, why, {stopRun()});
            return;
        }
        load(nullptr);
    }

    /// separate: already read; null: reads the trace (again).
    void load(WhatIf::Trace separate) {
        if (!run()) return;
        jobs_->cancelAll();
        ++epoch_;
        asking_.reset();
        aheadFor_.reset();
        filling_ = false;
        state_ = State::Loading;
        const bool shared = controls_->sharedPool();
        const int steps = separate ? loadedSteps_ : run()->row.steps;
        if (!whatIf_)
            showEmpty(tr("Reading the selections"), tr("They are read once; then every slider answers at once."));
        jobs_->load(std::move(separate), shared, [this, steps, wanted = stillAsked()](CacheJobs::Loaded loaded) {
            if (!wanted()) return;
            if (!loaded.good()) return ended(loaded);
            take(std::move(loaded), steps);
        });
        showStatus();
    }

    void ended(const CacheJobs::Outcome& outcome) {
        state_ = outcome.cancelled ? State::Cancelled : State::Failed;
        if (whatIf_) {
            if (controls_->sharedPool() != whatIf_->trace().shared)
                controls_->setSharedPool(whatIf_->trace().shared); // the recording that is shown is still the other one
            if (!outcome.problem.isEmpty()) emit workspace().failed(outcome.problem);
        } else if (outcome.cancelled) {
            showEmpty(tr("Reading was cancelled"), tr("They are read once; then every slider answers at once."),
                      {{tr("Load"), [this] { load(nullptr); }}});
        } else {
            showEmpty(tr("This run cannot be replayed"), outcome.problem, {showView("transfers")});
        }
        showStatus();
    }

    void take(CacheJobs::Loaded loaded, int steps) {
        const bool first = !whatIf_, wasShared = whatIf_ && whatIf_->trace().shared;
        WhatIfQuestion question = loaded.whatIf->recorded();
        if (!first) {
            const int sequences = std::max(loaded.separate->run.sequences, 1);
            question = controls_->question();
            const bool shared = loaded.whatIf->trace().shared;
            if (shared && !wasShared) question.size *= sequences;
            if (!shared && wasShared) question.size /= sequences;
        }
        separate_ = std::move(loaded.separate);
        whatIf_ = std::move(loaded.whatIf);
        loadedSteps_ = steps;
        state_ = State::Making;
        showEmpty({}, {});
        controls_->setRun(*whatIf_, question);
        controls_->show();
        asked();
        askTried();
        jobs_->makeCurves(whatIf_->shared(), separate_, [this, wanted = stillAsked()](CacheJobs::Curves curves) {
            if (!wanted()) return;
            if (!curves.good()) return ended(curves);
            whatIf_->setCurves(CurvePolicy::Lru, std::move(curves.lru));
            whatIf_->setCurves(CurvePolicy::Belady, std::move(curves.belady));
            whatIf_->setLocality(std::move(curves.locality));
            state_ = State::Ready;
            showReproduction(curves.reproduction);
            showStatus();
            present();
            fillLines();
        });
        showStatus();
    }

    /// The change that a finding proposed, on top of what was recorded, as soon as it can be asked.
    void askTried() {
        if (!tried_ || !whatIf_) return;
        WhatIfQuestion question = whatIf_->recorded();
        if (tried_->deviceSlots > 0) question.size = tried_->deviceSlots;
        if (!tried_->cachePolicy.isEmpty()) question.policy = tried_->cachePolicy.toStdString();
        if (tried_->layersAhead > 0) question.layersAhead = tried_->layersAhead;
        tried_.reset();
        controls_->setQuestion(question);
    }

    void showReproduction(const std::optional<Reproduction>& reproduction) {
        if (!reproduction && run() && !run()->row.knows.has(Known::Hits)) {
            controls_->setReproduction(tr("Recorded hits and misses are not known: only predictions are shown"), true);
            return;
        }
        if (!reproduction) {
            controls_->setReproduction(tr("Reproduces the recording: nothing to compare with"), true);
            return;
        }
        const QString all = formatCount(reproduction->requests);
        if (reproduction->differing == 0)
            controls_->setReproduction(
                tr("Reproduces the recording: yes, hits and misses of all %1 selections").arg(all), true);
        else
            controls_->setReproduction(tr("Reproduces the recording: no, %1 of %2 selections have other hits or misses")
                                           .arg(formatCount(reproduction->differing), all),
                                       false);
    }

    PoolScope scopeNow() const {
        const Cursor& cursor = workspace().cursor();
        switch (scope_->currentIndex()) {
        case 1:
            return {-1, cursor.layer, -1};
        case 2:
            return {cursor.sequence, cursor.layer, cursor.kvHead};
        default:
            return {};
        }
    }

    void askAt(int panel, double x) {
        if (!whatIf_) return;
        WhatIfQuestion question = controls_->question();
        if (panel == Misses || speed_->axis() == SpeedPlot::Axis::Size)
            question.size = std::clamp(int(std::lround(x)), whatIf_->smallestSlots(), whatIf_->largestSlots());
        else
            question.gbps = SpeedPlot::gbpsOf(x);
        controls_->setQuestion(question);
    }

    /// A slider moved: answers at once, and asks for the exact replay if it is not there.
    void asked() {
        if (!whatIf_) return;
        present();
        const WhatIfQuestion question = controls_->question();
        const std::pair cache(question.policy, question.size);
        if (whatIf_->replayed(question.policy, question.size) || asking_ == cache) return;
        asking_ = cache;
        jobs_->replayAsked(whatIf_->shared(), question.policy, question.size,
                           [this, wanted = stillAsked()](const CacheJobs::Replay& result) {
                               if (!wanted()) return;
                               asking_.reset();
                               took(result);
                               fillLines();
                           });
    }

    void took(const CacheJobs::Replay& result) {
        if (!result.problem.isEmpty()) emit workspace().failed(result.problem);
        if (!result.good() || !whatIf_) return;
        whatIf_->add(result.policy, result.size, result.replay);
        present();
    }

    /// Replays what the lines of the plots still lack, one size after the other, the asked policy first.
    void fillLines() {
        if (filling_ || !whatIf_ || state_ != State::Ready || !isVisible()) return;
        std::vector<std::string> policies{controls_->question().policy};
        if (run() && !run()->live) // beside a running engine only what somebody looks at
            for (const ReplayPolicyEntry& policy : replayPolicies())
                if (policy.name != policies.front()) policies.push_back(policy.name);
        for (const std::string& policy : policies)
            for (const int size : whatIf_->grid()) {
                if (whatIf_->replayed(policy, size)) continue;
                filling_ = true;
                jobs_->replayForLine(whatIf_->shared(), policy, size,
                                     [this, wanted = stillAsked()](const CacheJobs::Replay& result) {
                                         if (!wanted()) return;
                                         filling_ = false;
                                         took(result);
                                         if (result.good()) fillLines();
                                     });
                return;
            }
    }

    void present() {
        if (!whatIf_) return;
        scene_ = {whatIf_, controls_->question(), whatIf_->answer(controls_->question()), scopeNow()};
        misses_->show(scene_);
        speed_->show(scene_);
        locality_->show(scene_);
        showAhead();
        if (scene_.answer) {
            numbers_ = cacheNumbers(*whatIf_, *scene_.answer);
        } else { // the last answer, grey, until the first replay of this policy is there
            for (CacheNumber& number : numbers_) number.estimated = true;
        }
        controls_->setNumbers(numbers_);
        showLegend();
        replot();
    }

    void showLegend() {
        const Theme& theme = Theme::current();
        QVector<Swatch> swatches = misses_->swatches(theme);
        if (lower() != Lower::Locality) swatches += speed_->swatches(theme);
        if (width() < kWideForLegend) // the tooltips explain the dashed lines too
            swatches.removeIf([](const Swatch& swatch) { return swatch.mark == Swatch::Mark::Dashes; });
        legend_->setSwatches(swatches);
    }

    /// The line of loading ahead takes a pass over the run for each of its points: a worker makes it.
    void showAhead() {
        const WhatIfQuestion& question = scene_.question;
        if (question.layersAhead == 0 || lower() == Lower::Locality) {
            aheadFor_.reset();
            return;
        }
        std::vector<CacheJobs::AheadPoint> points;
        if (speed_->axis() == SpeedPlot::Axis::Size) {
            for (const MissPoint& point : whatIf_->replayedPoints(question.policy, {}))
                points.push_back({double(point.size), question.link(), whatIf_->replayed(question.policy, point.size)});
        } else if (const WhatIf::Replayed replay = whatIf_->replayed(question.policy, question.size)) {
            const QCPRange range = SpeedPlot::bandwidths(question, whatIf_->recorded());
            constexpr int kPoints = 33;
            for (int i = 0; i < kPoints; ++i) {
                const double x = range.lower + range.size() * i / (kPoints - 1);
                points.push_back({x, Link{"what-if", SpeedPlot::gbpsOf(x), question.latencyUs}, replay});
            }
        }
        if (points.empty()) return;
        WhatIfQuestion line = question; // the question without what the line does not depend on
        if (speed_->axis() == SpeedPlot::Axis::Size)
            line.size = 0;
        else
            line.gbps = 0;
        const std::pair content(line, points.size());
        if (aheadFor_ == content) return;
        aheadFor_ = content;
        jobs_->aheadLine(whatIf_->shared(), std::move(points), *question.prefetch(),
                         [this, wanted = stillAsked()](const QVector<QPointF>& made) {
                             if (!wanted() || scene_.question.layersAhead == 0) return;
                             speed_->setAhead(made);
                             replot();
                         });
    }

    void showStatus() {
        const bool busy = working();
        busy ? poll_.start() : poll_.stop();
        bar_->setVisible(busy);
        bar_->setValue(int(std::lround(jobs_->progress() * 1000)));
        QString text, button;
        if (state_ == State::Loading) text = tr("Reading selections");
        if (state_ == State::Making) text = tr("Counting misses at every size");
        if (busy) button = tr("Cancel");
        if (state_ == State::Cancelled) {
            text = whatIf_ ? tr("Cancelled: not everything is computed.") : QString();
            button = tr("Load");
        }
        if (state_ == State::Ready && newSteps() > 0) {
            text = tr("%1 new steps since this was computed.").arg(formatCount(newSteps()));
            button = tr("Refresh");
        }
        statusText_->setText(text);
        action_->setText(button);
        status_->setVisible(!button.isEmpty());
        if (!button.isEmpty()) updateNote();
    }

    CacheJobs* jobs_;
    QComboBox *scope_ = nullptr, *lower_ = nullptr;
    QWidget* status_ = nullptr;
    QLabel* statusText_ = nullptr;
    QProgressBar* bar_ = nullptr;
    QPushButton* action_ = nullptr;
    QTimer poll_;
    CacheControls* controls_ = nullptr;
    LegendStrip* legend_ = nullptr;
    PanelRow* row_ = nullptr;
    std::unique_ptr<MissPlot> misses_;
    std::unique_ptr<SpeedPlot> speed_;
    std::unique_ptr<LocalityPlots> locality_;

    State state_ = State::Waiting;
    ColdSteps counted_ = coldSteps(); // as the shown rates count
    RunKey key_;
    unsigned epoch_ = 0; // of what is asked for
    int loadedSteps_ = 0;
    std::optional<ProposedChange> tried_; // to be asked once the selections are read
    WhatIf::Trace separate_;
    std::shared_ptr<WhatIf> whatIf_;
    CacheScene scene_;
    std::vector<CacheNumber> numbers_;
    bool filling_ = false;
    std::optional<std::pair<std::string, int>> asking_; // replay that is under way
    // the question and place that the line of loading ahead shows
    std::optional<std::pair<WhatIfQuestion, std::size_t>> aheadFor_;
};

/// The answer as a small table, so that a picture says what it shows.
int CacheView::drawAbove(QPainter* painter, QRect area) const {
    if (!whatIf_ || numbers_.empty()) return 0;
    const Theme& theme = Theme::current();
    const QFontMetrics metrics(painter->font());
    const int line = metrics.height() + 5;
    const int perRow = area.width() >= 1000 ? int(numbers_.size()) : int(numbers_.size() + 1) / 2;
    const int names = metrics.horizontalAdvance(tr("Recorded")) + 14, column = (area.width() - names) / perRow;
    int y = area.top();
    const auto cell = [&](int left, int width, const QString& text, const QColor& colour, Qt::Alignment side) {
        painter->setPen(colour);
        painter->drawText(QRect(left, y, width, line), int(side | Qt::AlignVCenter),
                          metrics.elidedText(text, Qt::ElideRight, width));
    };
    cell(area.left(), area.width(),
         tr("Recorded: %1. What if: %2.").arg(questionText(whatIf_->recorded()), questionText(scene_.question)),
         theme.text, Qt::AlignLeft);
    y += line + 2;
    for (std::size_t first = 0; first < numbers_.size(); first += std::size_t(perRow)) {
        for (int row = 0; row < 4; ++row) {
            const QString rowNames[] = {QString(), tr("Recorded"), tr("What if"), tr("Change")};
            cell(area.left(), names, rowNames[row], theme.mutedText, Qt::AlignLeft);
            for (std::size_t i = first; i < std::min(numbers_.size(), first + std::size_t(perRow)); ++i) {
                const CacheNumber& number = numbers_[i];
                const QString texts[] = {number.title.trimmed(), number.text(number.a), number.asked(),
                                         shortDifference(number)};
                const int verdict = number.verdict();
                const QColor colour = row == 0                  ? theme.mutedText
                                      : row < 3 || verdict == 0 ? theme.text
                                      : verdict > 0             ? theme.ok
                                                                : theme.danger;
                cell(area.left() + names + int(i - first) * column, column - 10, texts[row], colour, Qt::AlignRight);
            }
            y += line;
        }
        y += 4;
    }
    return y - area.top() + 6;
}

} // namespace

View* makeCacheView(Workspace& workspace, QWidget* parent) { return new CacheView(workspace, parent); }

} // namespace kvscope::ui

#include "cache_view.moc"
