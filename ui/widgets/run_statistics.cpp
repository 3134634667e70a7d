#include "ui/widgets/run_statistics.h"

#include "base/error.h"
#include "profiler/import/import.h"
#include "profiler/read/next_step.h"
#include "ui/frame/run_checks.h"
#include "ui/frame/run_names.h"
#include "ui/frame/small_widgets.h"
#include "ui/models/format.h"

#include <QCoreApplication>
#include <QEvent>
#include <QFontMetrics>
#include <QHBoxLayout>
#include <QLabel>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace kvscope::ui {

namespace {

constexpr int kLeastRestMs = 500;  // between two reads of a run that grows
constexpr int kRowsAtOnce = 8192;  // steps read at once without selections: takes a worker a few milliseconds
constexpr int kStepsAtOnce = 1024; // steps read at once with their selections
// In narrower windows, in pixels, there is no room for what the numbers count, and none for a fourth, third or second
// number. Tooltips have what the numbers count.
constexpr int kRoomForWords = 1300, kRoomForFour = 1150, kRoomForThree = 1020, kRoomForTwo = 880;

QString capitalised(QString text) { return text.isEmpty() ? text : text.at(0).toUpper() + text.mid(1); }

} // namespace

struct RunStatistics::Answer {
    SummarySums rows, all;
    int rowsRead = 0, allRead = 0;
    std::optional<RunRow> run;
    bool more = false; // there are steps that are not read yet
};

RunStatistics::RunStatistics(Workspace& workspace, QWidget* parent)
    : QWidget(parent), workspace_(workspace), again_(kLeastRestMs, [this] { ask(); }) {
    setObjectName(QStringLiteral("statistics"));
    auto* numbers = new QHBoxLayout(this);
    numbers->setContentsMargins(4, 0, 4, 0);
    numbers->setSpacing(2);
    const auto add = [&](const char* name, const QString& caption) {
        auto* box = new QWidget;
        auto* value = new QLabel(QStringLiteral("–"));
        value->setObjectName(QLatin1String(name));
        value->setTextFormat(Qt::PlainText);
        QFont font = value->font();
        font.setWeight(QFont::DemiBold);
        value->setFont(font);
        value->setMinimumWidth(QFontMetrics(font).horizontalAdvance(QStringLiteral("100.0 %")));
        value->setAlignment(Qt::AlignRight | Qt::AlignVCenter);
        auto* row = new QHBoxLayout(box);
        row->setContentsMargins(8, 0, 8, 0);
        row->setSpacing(5);
        row->addWidget(value);
        auto* words = new MutedLabel(caption);
        words->setObjectName(QLatin1String(name) + QStringLiteral("Caption"));
        row->addWidget(words);
        numbers->addWidget(box);
        return value;
    };
    rate_ = add("tokenRate", tr("tokens/s"));
    clockRate_ = add("clockRate", tr("by the clock"));
    hitRate_ = add("hitRate", tr("hit rate"));
    locality_ = add("locality", tr("locality"));
    rateCaption_ = findChild<QLabel*>(QStringLiteral("tokenRateCaption"));
    counted_ = new MutedLabel;
    counted_->setObjectName(QStringLiteral("ratesCount"));
    counted_->setContentsMargins(8, 0, 8, 0);
    numbers->addWidget(counted_);
    connect(&workspace_, &Workspace::currentChanged, this, &RunStatistics::follow);
    connect(&workspace_, &Workspace::runsChanged, this, &RunStatistics::follow); // the file may have been replaced
    connect(&workspace_, &Workspace::advanced, this, [this] {
        if (const OpenRun* run = workspace_.current(); run && !isHidden()) again_.grew(!isGrowing(*run));
    });
    hide();
    follow();
}

void RunStatistics::follow() {
    const OpenRun* run = workspace_.current();
    const bool counts = run && run->row.backend != RunBackend::Imported;
    setVisible(counts);
    if (!counts) {
        key_ = {};
        return forget();
    }
    const bool same = created_.empty() || run->row.createdUtc == created_; // of a live run it is known only later
    if (run->key == key_ && same && (run->live || run->row.steps >= rowsRead_))
        return show(); // the steps that rates count may have changed, or the numbers that can be trusted
    key_ = run->key;
    created_ = run->row.createdUtc;
    forget();
    ask();
}

void RunStatistics::forget() {
    ++epoch_; // drops the answer that is being read, which belongs to another run
    rows_ = all_ = {};
    run_.reset();
    rowsRead_ = allRead_ = 0;
    for (QLabel* label : {rate_, clockRate_, hitRate_, locality_}) {
        label->setText(QStringLiteral("–"));
        label->parentWidget()->setToolTip({});
    }
    counted_->setText({});
    showsClock_ = false;
    fitWindow();
}

void RunStatistics::ask() {
    if (key_.path.isEmpty()) return again_.answered();
    Answer known{rows_, all_, rowsRead_, allRead_, std::nullopt, false};
    workspace_.query<Answer>(
        this, "statistics", key_,
        [runId = key_.runId, known](TraceReader& reader) {
            Answer answer = known;
            answer.run = reader.run(runId);
            if (!answer.run) return answer; // the row of a live run is not written yet
            try {
                const int end = reader.stepCount(runId);
                if (answer.rowsRead < end) {
                    const int first = nextRecordedStep(reader, runId, answer.rowsRead);
                    const int last = std::min(first + kRowsAtOnce, end) - 1;
                    const std::vector<StepRow> steps = reader.steps(runId, first, last);
                    const StepMarks marks(reader, *answer.run);
                    for (const StepRow& step : steps) answer.rows.addStep(step, marks.of(step));
                    answer.rowsRead = last + 1;
                } else if (answer.allRead < end) {
                    const int first = nextRecordedStep(reader, runId, answer.allRead);
                    const int last = std::min(first + kStepsAtOnce, end) - 1;
                    answer.all.read(reader, runId, first, last);
                    answer.allRead = last + 1;
                }
                answer.more = answer.rowsRead < end || answer.allRead < end;
            } catch (const Error& error) {
                // The views report damaged steps. The numbers shown here are those of the steps that can be read.
                if (error.kind == ErrorKind::Cancelled) throw;
            }
            return answer;
        },
        [this, epoch = epoch_](Answer answer) {
            if (epoch == epoch_) take(std::move(answer));
        });
}

void RunStatistics::take(Answer answer) {
    rows_ = answer.rows;
    all_ = answer.all;
    rowsRead_ = answer.rowsRead;
    allRead_ = answer.allRead;
    if (answer.run) created_ = answer.run->createdUtc;
    if (answer.run && (rowsRead_ >= answer.run->steps || !answer.more)) {
        run_ = std::move(answer.run);
        show();
    }
    if (answer.more)
        ask();
    else
        again_.answered();
}

/// Says beside the numbers, and in their tooltips, which steps they count.
void RunStatistics::tellWhatCounts(const RunSummary& summary) {
    const QString counted = QString::fromStdString(summary.ratesCount());
    counted_->setText(summary.coldSteps + summary.mixedSteps == 0  ? QString()
                      : summary.countedSteps < summary.decodeSteps ? counted
                      : summary.mixedSteps > 0                     ? tr("cold and mixed steps counted")
                                                                   : tr("cold steps counted"));
    const QString words = capitalised(counted) + QLatin1Char('.');
    const auto explain = [](QLabel* number, const QString& text) { number->parentWidget()->setToolTip(text); };
    QString between = tr("The time between steps is not counted.");
    if (showsClock_)
        between = tr("The time between steps is not counted: with it, it is %1 tokens/s.").arg(clockRate_->text());
    explain(rate_, tr("Of the run shown here: tokens of all sequences per second of the decode steps' wall time "
                      "(measured). %1 %2")
                       .arg(between, words));
    explain(clockRate_, tr("Of the run shown here: the same tokens per second by the clock on the wall. Pauses and "
                           "other work between decode steps count too. %1")
                            .arg(words));
    explain(hitRate_,
            tr("Of the run shown here: hits / (hits + misses) of the selected blocks, so far while it runs. %1")
                .arg(words));
    explain(locality_, tr("Of the run shown here: mean γ of all selections, but for the first of a sequence, where it "
                          "is not defined, and where a new block opens"));
    fitWindow();
}

/// Shows what the window has room for.
void RunStatistics::fitWindow() {
    int room = window()->width();
    for (const QWidget* beside :
         parentWidget() ? parentWidget()->findChildren<QWidget*>(Qt::FindDirectChildrenOnly) : QList<QWidget*>())
        if (beside != this && !beside->isHidden()) room -= beside->sizeHint().width();
    clockRate_->parentWidget()->setVisible(showsClock_ && room >= kRoomForTwo);
    rateCaption_->setText(showsClock_ && room >= kRoomForFour ? tr("tokens/s by steps") : tr("tokens/s"));
    hitRate_->parentWidget()->setVisible(room >= (showsClock_ ? kRoomForThree : kRoomForTwo));
    locality_->parentWidget()->setVisible(room >= (showsClock_ ? kRoomForFour : kRoomForThree));
    counted_->setVisible(!counted_->text().isEmpty() && room >= (showsClock_ ? kRoomForWords + 150 : kRoomForWords));
    // A tool bar that becomes narrower hides what does not fit before it hears that less is shown, and it does not
    // listen to what it has hidden.
    QWidget* bar = parentWidget() ? parentWidget()->parentWidget() : nullptr;
    if (!bar || bar == window()) return;
    for (QWidget* changed : {static_cast<QWidget*>(this), parentWidget(), bar}) {
        if (QLayout* layout = changed->layout()) layout->invalidate();
        changed->updateGeometry(); // forgets the size that was asked for before
    }
    QCoreApplication::postEvent(bar, new QEvent(QEvent::LayoutRequest));
}

void RunStatistics::showEvent(QShowEvent* event) {
    QWidget::showEvent(event);
    if (watched_ != window()) {
        if (watched_) watched_->removeEventFilter(this);
        watched_ = window();
        watched_->installEventFilter(this);
    }
    fitWindow();
}

bool RunStatistics::eventFilter(QObject* watched, QEvent* event) {
    if (watched == watched_ && event->type() == QEvent::Resize) fitWindow();
    return QWidget::eventFilter(watched, event);
}

/// A number that a broken rule of the format makes worthless is shown as a dash, like one that is not known.
void RunStatistics::show() {
    if (!run_) return;
    const RunCheck* check = RunChecks::of(workspace_).find(key_);
    const auto isBroken = [&](auto... concerns) { return check && (check->concerns(concerns) || ...); };
    const RunSummary quick = rows_.summary(*run_);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const bool hasRate = quick.decodeMs > 0 && !isBroken(Concern::Times, Concern::Tokens);
    rate_->setText(formatRate(hasRate ? quick.tokensPerSecond : nan));
    showsClock_ = hasRate && quick.gapsMatter();
    clockRate_->setText(formatRate(showsClock_ ? quick.tokensPerSecondWithGaps : nan));
    const bool hasHits = std::isfinite(quick.hitRate) && !isBroken(Concern::Hits, Concern::Selection);
    hitRate_->setText(hasHits ? QString::number(quick.hitRate * 100, 'f', 1) + QStringLiteral(" %")
                              : QStringLiteral("–"));
    tellWhatCounts(quick);
    const RunSummary whole = all_.summary(*run_);
    const bool hasLocality = whole.localityCount > 0 && !isBroken(Concern::Selection);
    if (allRead_ >= rowsRead_ || isGrowing({key_, *run_, false})) // of a finished run not the mean of its first part
        locality_->setText(formatRatio(hasLocality ? whole.localityMean : nan));
}

} // namespace kvscope::ui
