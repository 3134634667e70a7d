#include "ui/views/timeline/timeline_view.h"

#include "base/host_memory.h"
#include "profiler/import/import.h"
#include "profiler/read/denoising.h"
#include "profiler/read/run_numbers.h"
#include "profiler/read/self_time.h"
#include "ui/frame/growth_turn.h"
#include "ui/frame/note_label.h"
#include "ui/frame/run_names.h"
#include "ui/frame/units.h"
#include "ui/models/format.h"
#include "ui/timeline/chosen_places.h"
#include "ui/timeline/time_ticks.h"
#include "ui/timeline/timeline_curves.h"
#include "ui/views/make_views.h"

#include <QHBoxLayout>
#include <QLabel>
#include <QMenu>
#include <QSplitter>
#include <QStackedWidget>
#include <QToolTip>
#include <QVBoxLayout>

#include <algorithm>
#include <cmath>
#include <memory>

namespace kvscope::ui {

namespace {

constexpr int kPanelHeight = 150;  // at most a third of the view, until somebody drags the handle
constexpr int kLow = 480;          // px of rows and panel; in less, a panel that explains nothing is as low as it gets
constexpr int kTimesHeight = 260;  // when a range is measured; at most two fifths of the view
constexpr int kRedrawMs = 60;      // while spans are read
constexpr int kTimesPauseMs = 250; // self times follow the window once it rests

} // namespace

TimelineView::TimelineView(Workspace& workspace, QWidget* parent)
    : View(parent), workspace_(workspace), feed_(workspace, this), notes_(workspace, this),
      memoryLimit_(availableHostMemory() / 2) {
    setAccessibleName(tr("Timeline"));
    auto* column = new QVBoxLayout(this);
    column->setContentsMargins(12, 10, 12, 8);
    column->setSpacing(8);
    tools_ = new TimelineTools;
    column->addWidget(tools_);
    column->addWidget(makeReadingStrip());
    canvas_ = new TimelineCanvas;
    panel_ = new TimelinePanel;
    split_ = new QSplitter(Qt::Vertical);
    split_->addWidget(canvas_);
    split_->addWidget(panel_);
    split_->setStretchFactor(0, 1);
    split_->setStretchFactor(1, 0);
    panel_->setMinimumHeight(70); // the panel's tables would ask for more than a small window has
    connect(split_, &QSplitter::splitterMoved, this, [this] { splitMoved_ = true; });
    empty_ = new QLabel;
    empty_->setObjectName(QStringLiteral("emptyText"));
    empty_->setTextFormat(Qt::PlainText);
    empty_->setAlignment(Qt::AlignCenter);
    empty_->setFocusPolicy(Qt::StrongFocus); // of the keys, until there is a timeline
    empty_->setWordWrap(true);
    empty_->setProperty("role", QStringLiteral("muted"));
    pages_ = new QStackedWidget;
    pages_->addWidget(split_);
    pages_->addWidget(empty_);
    column->addWidget(pages_, 1);
    note_ = new NoteLabel;
    note_->setObjectName(QStringLiteral("timelineNote"));
    column->addWidget(note_);
    setFocusProxy(canvas_);
    timers_.times.setSingleShot(true);
    timers_.times.setInterval(kTimesPauseMs);
    connect(&timers_.times, &QTimer::timeout, this, &TimelineView::showTimes);
    timers_.slice.setSingleShot(true);
    timers_.slice.setInterval(0); // when nothing else is to be done
    connect(&timers_.slice, &QTimer::timeout, this, &TimelineView::addTimes);
    timers_.settle.setSingleShot(true);
    timers_.settle.setInterval(0);
    connect(&timers_.settle, &QTimer::timeout, this, [this] { settle(); });
    connectTools();
    connectCanvas();
    connectPanel();
    connect(&workspace_, &Workspace::currentChanged, this, &TimelineView::reload);
    // the run that the view waited for may not come any more
    connect(&workspace_, &Workspace::runsChanged, this, [this] {
        if (!workspace_.current() || stale_ || !waits_) return;
        showEmpty(textWithoutSpans());
        waits_ = true;
    });
    const auto turn = std::make_shared<GrowthTurn>(*this, [this] {
        if (!stale_) feed_.advance();
    });
    connect(&workspace_, &Workspace::advanced, this, [this, turn] {
        const OpenRun* run = workspace_.current();
        turn->grew(!run || !(run->live || run->row.status == RunStatus::Running));
    });
    connect(&workspace_, &Workspace::cursorChanged, this, [this] {
        cursorMoved();
        if (isVisible() && workspace_.lastMove() == CursorMove::Person) revealCursor();
    });
    connect(&workspace_, &Workspace::filterChanged, this, &TimelineView::filterChanged);
}

TimelineView::~TimelineView() {
    canvas_->disconnect(this); // the canvas signals that it is hidden when this object is gone
}

QVariantMap TimelineView::remembered() const {
    return {{QStringLiteral("gutter"), canvas_->gutter()}, {QStringLiteral("panel"), tools_->wantsPanel()}};
}

void TimelineView::recall(const QVariantMap& state) {
    canvas_->setGutter(std::clamp(state.value(QStringLiteral("gutter")).toInt(), 0, 2'000));
    tools_->setWantsPanel(state.value(QStringLiteral("panel"), true).toBool());
}

bool TimelineView::isShowing() const {
    return workspace_.current() && pages_->currentIndex() == 0 && !canvas_->data().empty();
}

void TimelineView::showEvent(QShowEvent* event) {
    View::showEvent(event);
    if (stale_) {
        reload();
    } else {
        feed_.advance(); // spans that came while the view was hidden
        cursorMoved();
        timers_.times.start(); // the filter may have changed
    }
}

void TimelineView::resizeEvent(QResizeEvent* event) {
    View::resizeEvent(event);
    layout()->activate(); // the tools have their new width
    tools_->fit();
    note_->fit(*this, 1);
    if (split_->isVisible())
        fitPanel();
    else // the split has no height yet
        QMetaObject::invokeMethod(this, &TimelineView::fitPanel, Qt::QueuedConnection);
}

/// Shares the height between rows and panel. A height that the user gave the panel is kept.
void TimelineView::fitPanel() {
    const int height = split_->height();
    const bool rowsFirst = height < kLow && facts_.empty();
    const int below = rowsFirst ? panel_->minimumHeight() : std::min(kPanelHeight, height / 3);
    if (!splitMoved_) split_->setSizes({height - below, below});
}

/// Makes the panel of a low view high enough for what it says of a span. A height that the user gave it is kept.
void TimelineView::makeRoomForFacts() {
    const int all = split_->height(), below = std::min(kPanelHeight, all / 3);
    if (!splitMoved_ && panel_->height() < below) split_->setSizes({all - below, below});
}

/// Makes the table of times high enough for several lines. A height that the user gave the panel is kept.
void TimelineView::makeRoomForTimes() {
    const int all = split_->height(), below = std::min(kTimesHeight, all * 2 / 5);
    if (!splitMoved_ && panel_->height() < below) split_->setSizes({all - below, below});
}

void TimelineView::connectTools() {
    connect(tools_, &TimelineTools::panelToggled, panel_, &QWidget::setVisible);
    connect(tools_, &TimelineTools::searchChanged, this, &TimelineView::search);
    connect(tools_, &TimelineTools::searchLeft, canvas_, [this] { canvas_->setFocus(); });
    connect(tools_, &TimelineTools::matchRequested, this, &TimelineView::goToMatch);
    connect(tools_, &TimelineTools::cursorMoveRequested, this, &TimelineView::moveCursor);
    connect(tools_, &TimelineTools::decodeRequested, this, &TimelineView::showDecode);
    connect(tools_, &TimelineTools::fitRequested, canvas_, [this] { canvas_->fit(); });
    connect(tools_, &TimelineTools::allRequested, canvas_, [this] { canvas_->showAll(); });
    connect(tools_, &TimelineTools::noteRequested, this, [this] { askNote(); });
}

void TimelineView::connectCanvas() {
    connect(canvas_, &TimelineCanvas::spanClicked, this, [this](SpanRef ref) { choose(ref, false); });
    connect(canvas_, &TimelineCanvas::emptyClicked, this, &TimelineView::forget);
    connect(canvas_, &TimelineCanvas::rangeSelected, this, [this] {
        if (canvas_->scene().range) {
            panel_->setCurrentIndex(1);
            makeRoomForTimes();
        }
        showTimes();
    });
    connect(canvas_, &TimelineCanvas::windowChanged, this, [this] {
        if (!canvas_->scene().range) timers_.times.start();
    });
    connect(canvas_, &TimelineCanvas::hovered, this, [this](std::optional<SpanRef> ref, double, QPoint global) {
        ++hovers_;
        if (ref)
            showTooltip(*ref, global);
        else
            QToolTip::hideText();
    });
    connect(canvas_, &TimelineCanvas::curveHovered, this, [this](int curve, double ns, QPoint global) {
        ++hovers_; // the answer about a span that is under way is dropped
        QToolTip::showText(global, curveTooltip(canvas_->data(), curve, ns), canvas_, {}, 60'000);
    });
    connect(canvas_, &TimelineCanvas::hoverEnded, this, [this] {
        ++hovers_;
        QToolTip::hideText();
    });
    connect(canvas_, &TimelineCanvas::cursorMoveRequested, this, &TimelineView::moveCursor);
    connect(canvas_, &TimelineCanvas::cursorJumpRequested, this, &TimelineView::jumpCursor);
    connect(canvas_, &TimelineCanvas::decodeRequested, this, &TimelineView::showDecode);
    connect(canvas_, &TimelineCanvas::searchRequested, tools_, &TimelineTools::editSearch);
    connect(canvas_, &TimelineCanvas::matchRequested, this, &TimelineView::goToMatch);
    connect(canvas_, &TimelineCanvas::flowRequested, this, &TimelineView::followFlow);
    connect(canvas_, &TimelineCanvas::menuRequested, this, [this](QPoint global, const TimelinePlace& place) {
        if (isShowing()) menuOf(place)->exec(global);
    });
}

void TimelineView::connectPanel() {
    connect(panel_, &TimelinePanel::groupingChanged, this, &TimelineView::showTimes);
    connectNotes();
}

void TimelineView::reload() {
    if (!isVisible()) {
        stale_ = true;
        return;
    }
    stale_ = false;
    sum_.reset(); // self times are read from data that is thrown away now
    panel_->showTimesHint({});
    sinceDrawn_.invalidate();
    wanted_.reset();
    canvas_->reset();
    canvas_->data().filter.set(workspace_.filter());
    forget();
    panel_->showNotes({});
    panel_->showNoteProblem({});
    notes_.forgetChanges();
    panel_->showNoteUndo(false);
    QToolTip::hideText();
    const OpenRun* run = workspace_.current();
    if (!run) {
        feed_.stop();
        showReading();
        showEmpty(tr("No run is open.\n\nThe timeline shows every stage, kernel, copy and transfer of a run over "
                     "time, and how the step's numbers follow from them.\n\nPress Run in the session form to record "
                     "one, or open a .kvtrace file (Ctrl+O)."));
        return;
    }
    canvas_->data().counters = StepCounters(slotBlocksOf(run->row));
    rows_ = std::make_shared<SpanRows>(run->key.runId);
    readingRows_ = false;
    feed_.start(
        run->key, [this](const SpanBatch& batch, const GaugeBatch& gauges) { take(batch, gauges); },
        [this](const QString& problem) { showEmpty(tr("The trace cannot be read here: %1").arg(problem)); });
    showReading();
    notes_.read();
}

void TimelineView::take(const SpanBatch& batch, const GaugeBatch& gauges) {
    TimelineData& held = canvas_->data();
    // A live run is opened before anything is known of it.
    if (const OpenRun* run = workspace_.current()) held.counters.setSlotBlocks(slotBlocksOf(run->row));
    const ChosenPlaces chosen(*canvas_);
    const std::uint64_t moves = held.index.moves();
    held.index.append(batch);
    held.counters.append(batch.steps);
    held.append(gauges);
    if (const std::size_t taken = held.index.memoryBytes(); taken > memoryLimit_ && feed_.loading())
        feed_.end(tr("the spans so far take %1 of memory, half of what was free; the rest of the run is in the "
                     "other views and in SQL")
                      .arg(formatValue(Unit::Bytes, double(taken))));
    held.incomplete = workspace_.current() && workspace_.current()->row.droppedSteps > 0;
    chosen.restore(*canvas_);
    if (!tools_->searched().isEmpty() && !batch.texts.empty()) findMatches(true);
    if (held.index.waiting() > 0) timers_.settle.start();
    showEmpty(held.empty() ? textWithoutSpans() : QString());
    waits_ = held.empty();
    // The drawing knows its spans by their places.
    if (moves != held.index.moves() || !feed_.loading() || !sinceDrawn_.isValid() ||
        sinceDrawn_.elapsed() >= kRedrawMs) {
        canvas_->dataChanged();
        cursorMoved();
        if (!batch.spans.empty() || batch.atEnd) {
            updateNote();
            updateHits();
        }
        showWantedTime();
        // Restarted behind the drawing, so that the time until the next picture is spent on reading.
        sinceDrawn_.start();
    }
    held.filter.learn(held.index);
    if (!canvas_->scene().range && !timers_.times.isActive()) timers_.times.start();
    showReading();
    if (batch.atEnd || !feed_.loading()) readRows();
}

/// The text for a run that has neither spans nor counters: whether some will come, or why there are none.
QString TimelineView::textWithoutSpans() const {
    const OpenRun* run = workspace_.current();
    if (!run || isGrowing(*run))
        return tr("Waiting for the first step.\n\nThe prefill is the first thing to appear; it is written when the "
                  "prompt has been read.");
    if (run->row.serves())
        return tr("This run served requests.\n\nIts requests and iterations are recorded, not its steps: the view "
                  "Serving shows them.");
    if (run->row.steps > 0 && !run->row.knows.has(Known::StepTimes))
        return tr(
            "The times of the steps are not known.\n\nThe engine that recorded this run did not see when its steps "
            "began and how long they took.");
    const QString again = tr("\n\nRun it again, or choose another run.");
    if (run->row.stale)
        return tr("Nothing was recorded.\n\nThe program that recorded this run ended before its first step.") + again;
    if (run->row.status == RunStatus::Failed)
        return tr("Nothing was recorded.\n\nThis run failed before its first step%1.")
                   .arg(run->row.statusMessage.empty()
                            ? QString()
                            : QStringLiteral(": ") + QString::fromStdString(run->row.statusMessage)) +
               again;
    if (run->row.status == RunStatus::Stopped)
        return tr("Nothing was recorded.\n\nThis run was stopped before its first step, while its prompt was read.") +
               again;
    return tr("Nothing was recorded.\n\nThis run ended without a step or a span.") + again;
}

void TimelineView::showEmpty(const QString& text) {
    waits_ = false;
    empty_->setText(text);
    const bool waited = empty_->hasFocus();
    const int page = text.isEmpty() ? 0 : 1;
    if (page == 0 && pages_->currentIndex() != page) // what was hidden gets its height now
        QMetaObject::invokeMethod(this, &TimelineView::fitPanel, Qt::QueuedConnection);
    pages_->setCurrentIndex(page);
    setFocusProxy(text.isEmpty() ? static_cast<QWidget*>(canvas_) : empty_); // a hidden widget would not take the focus
    if (waited && text.isEmpty()) canvas_->setFocus();
    updateNote();
}

void TimelineView::updateNote() {
    QStringList said;
    const OpenRun* run = workspace_.current();
    const SpanIndex& index = canvas_->data().index;
    if (run && pages_->currentIndex() == 0) {
        if (const QString filtered = filterNote(workspace_.filter(), SpanFilter::kParts); !filtered.isEmpty())
            said << (canvas_->data().filter.active()
                         ? filtered + tr(" Other spans fade and are left out of the self times.")
                         : filtered);
        if (feed_.loading() && feed_.fraction() < 1)
            said << tr("Reading spans: %1 so far, %2 %.")
                        .arg(formatCount(std::int64_t(index.size())))
                        .arg(int(feed_.fraction() * 100));
        else
            said << (index.size() == 1 ? tr("1 span.")
                                       : tr("%1 spans. Where several share a pixel, its colour is the name that takes "
                                            "most of it, and its strength how much of it is busy.")
                                             .arg(formatCount(std::int64_t(index.size()))));
        if (run->row.backend == RunBackend::Imported)
            said << tr("Imported from %1.")
                        .arg(QString::fromStdString(run->row.statusMessage)
                                 .section(QLatin1Char(';'), 0, 0)
                                 .remove(QStringLiteral("imported from ")));
        const bool moves = std::any_of(index.tracks().begin(), index.tracks().end(),
                                       [](const std::string& track) { return isLinkTrack(track, kToDeviceTrack); });
        if (run->row.steps > 0 && !run->row.knows.has(Known::StageTimes))
            said << tr("The stages' times are not known: a step is drawn whole.");
        if (run->row.timing != Timing::Measured && moves) said << tr("Link times are modelled.");
        if (const auto& clock = feed_.clock(); moves && clock && clock->source == LinkClock::Source::Cupti)
            said << tr("Kernels and transfers stand on CUPTI's clock, which runs %1 ahead of the GPU timer of the "
                       "stages; "
                       "a transfer lies within %2 of its kernel.")
                        .arg(formatTime(double(clock->offsetNs), 1), formatTime(double(clock->spreadNs), 1));
        else if (moves && clock && clock->source == LinkClock::Source::GpuTimer)
            said << tr("Transfers stand on the GPU timer of the stages; kernels, if there are any, on CUPTI's clock.");
        if (run->row.droppedSteps > 0)
            said << tr("%1 steps were dropped while recording.").arg(formatCount(run->row.droppedSteps));
        for (int lane = 0; lane < index.laneCount(); ++lane) {
            const SpanLane info = index.lane(lane);
            if (!info.crowded) continue;
            said << tr("On %1, more spans overlap than there are rows: the last row has them over each other.")
                        .arg(QString::fromStdString(index.tracks()[info.track]));
            break; // one is enough to say what to look out for
        }
        if (index.waiting() > 0)
            said << tr("%1 spans are out of order in the file and not drawn yet.")
                        .arg(formatCount(std::int64_t(index.waiting())));
        if (feed_.counting())
            said << tr("Counting the KV blocks on the device: %1 %.").arg(int(feed_.countedFraction() * 100));
        if (feed_.oracle() == false && denoisingBlock(run->row) == 0) // forwards over blocks have no oracle
            said << tr("Recall and lost attention mass were not measured: this run was recorded without the oracle "
                       "(--oracle).");
        if (!feed_.problem().isEmpty()) said << tr("Reading stopped: %1.").arg(feed_.problem());
    }
    const QString text = said.join(QLatin1Char(' '));
    if (note_->text() != text) note_->setText(text);
}

void TimelineView::filterChanged() {
    sum_.reset(); // self times go by the filter of before
    canvas_->data().filter.set(workspace_.filter());
    canvas_->dataChanged();
    updateNote();
    if (isVisible()) showTimes();
}

View* makeTimelineView(Workspace& workspace, QWidget* parent) { return new TimelineView(workspace, parent); }

} // namespace kvscope::ui
