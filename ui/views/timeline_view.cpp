#include "ui/views/timeline_view.h"

#include "kernels/base/host_memory.h"
#include "profiler/import/import.h"
#include "profiler/read/self_time.h"
#include "profiler/read/span_search.h"
#include "ui/models/format.h"
#include "ui/output/trace_numbers.h"
#include "ui/plots/units.h"
#include "ui/timeline/chosen_places.h"
#include "ui/timeline/time_ticks.h"
#include "ui/timeline/timeline_curves.h"
#include "ui/timeline/timeline_sql.h"
#include "ui/views/growth_turn.h"
#include "ui/views/make_views.h"
#include "ui/widgets/inspector.h"
#include "ui/widgets/small_widgets.h"

#include <QHBoxLayout>
#include <QKeyEvent>
#include <QLabel>
#include <QLineEdit>
#include <QMenu>
#include <QSplitter>
#include <QStackedWidget>
#include <QToolButton>
#include <QToolTip>
#include <QVBoxLayout>

#include <algorithm>
#include <cmath>
#include <memory>

namespace kvscope::ui {

namespace {

constexpr int kPanelHeight = 150;            // at most a third of the view, until somebody drags the handle
constexpr int kTimesHeight = 260;            // once a range is measured; at most two fifths of the view
constexpr int kRedrawMs = 60;                // while spans are read
constexpr double kPromptHides = 0.5;         // of the steps' time; a prompt that takes more leaves too little to see
constexpr int kTimesPauseMs = 250;           // self times follow the window once it rests
constexpr std::size_t kNumbered = 4'000'000; // spans up to which a hit is told its number: some 20 ms

/// A stage is found by what it does as well: "attention" finds stage2.
std::string wordsOf(std::string_view name) { return meaningOf(componentOf(name)).toStdString(); }

std::int64_t slotBlocksOf(const RunRow& run) {
    return std::int64_t(run.deviceSlots) * run.layers * run.sequences * run.kvHeads;
}

} // namespace

TimelineView::TimelineView(Workspace& workspace, QWidget* parent)
    : View(parent), workspace_(workspace), feed_(workspace, this), memoryLimit_(availableHostMemory() / 2) {
    setAccessibleName(tr("Timeline"));
    auto* column = new QVBoxLayout(this);
    column->setContentsMargins(12, 10, 12, 8);
    column->setSpacing(8);
    column->addWidget(makeTools());
    column->addWidget(makeReadingStrip());
    canvas_ = new TimelineCanvas;
    panel_ = new TimelinePanel;
    split_ = new QSplitter(Qt::Vertical);
    split_->addWidget(canvas_);
    split_->addWidget(panel_);
    split_->setStretchFactor(0, 1);
    split_->setStretchFactor(1, 0);
    panel_->setMinimumHeight(70); // its tables would ask for more than a small window has
    connect(split_, &QSplitter::splitterMoved, this, [this] { splitMoved_ = true; });
    empty_ = new QLabel;
    empty_->setObjectName(QStringLiteral("emptyText"));
    empty_->setAlignment(Qt::AlignCenter);
    empty_->setFocusPolicy(Qt::StrongFocus); // of the keys, until there is a timeline
    empty_->setWordWrap(true);
    empty_->setProperty("role", QStringLiteral("muted"));
    pages_ = new QStackedWidget;
    pages_->addWidget(split_);
    pages_->addWidget(empty_);
    column->addWidget(pages_, 1);
    note_ = new MutedLabel;
    note_->setObjectName(QStringLiteral("timelineNote"));
    note_->setWordWrap(true);
    column->addWidget(note_);
    setFocusProxy(canvas_);
    connect(panelToggle_, &QToolButton::toggled, panel_, &QWidget::setVisible);
    timesTimer_.setSingleShot(true);
    timesTimer_.setInterval(kTimesPauseMs);
    connect(&timesTimer_, &QTimer::timeout, this, &TimelineView::showTimes);
    sliceTimer_.setSingleShot(true);
    sliceTimer_.setInterval(0); // when nothing else is to be done
    connect(&sliceTimer_, &QTimer::timeout, this, &TimelineView::addTimes);
    settleTimer_.setSingleShot(true);
    settleTimer_.setInterval(0);
    connect(&settleTimer_, &QTimer::timeout, this, [this] { settle(); });
    connectCanvas();
    connectPanel();
    connect(&workspace_, &Workspace::currentChanged, this, &TimelineView::reload);
    const auto turn = std::make_shared<GrowthTurn>(*this, [this] {
        if (!stale_) feed_.advance();
    });
    connect(&workspace_, &Workspace::advanced, this, [this, turn] {
        const OpenRun* run = workspace_.current();
        turn->grew(!run || !(run->live || run->row.status == "running"));
    });
    connect(&workspace_, &Workspace::cursorChanged, this, [this] {
        cursorMoved();
        if (isVisible() && workspace_.lastMove() == CursorMove::Person) revealCursor();
    });
    connect(&workspace_, &Workspace::filterChanged, this, &TimelineView::filterChanged);
}

QString TimelineView::exportCsv() const {
    if (!isShowing()) return {};
    if (!isComplete()) return textOf(completeTimes());
    beginTimes(); // of what is shown now, and not some of them
    times_->advance(times_->spans());
    presentTimes();
    times_.reset();
    return panel_->timesText(QLatin1Char(','), false);
}

std::optional<ExportRange> TimelineView::markedRange() const {
    const auto& range = canvas_->scene().range;
    if (!range || stale_ || !isShowing()) return std::nullopt; // stale: it is of another run
    return shownRange();
}

QStringList TimelineView::numberTables() const {
    return canvas_->scene().range ? QStringList{tr("Self times in the marked range"), tr("Spans of the marked range")}
                                  : QStringList{tr("Self times of what is shown"), tr("Spans that are shown")};
}

ExportRange TimelineView::shownRange() const {
    const TimeRange shown = canvas_->scene().range.value_or(canvas_->scene().window);
    return {std::int64_t(std::floor(shown.from)), std::int64_t(std::ceil(shown.to))};
}

NumberWriter TimelineView::numbers() const {
    const OpenRun* run = workspace_.current();
    if (numberTable_ == 0 || !run || stale_ || !isShowing())
        return isShowing() && (!isComplete() || takesLong()) ? completeTimes() : numbersOf(exportCsv());
    return tableOf({run->key.path, run->key.runId, shownRange()}, ExportTable::Spans);
}

QString TimelineView::sql() const {
    return isShowing()
               ? rangeSql(workspace_.current()->key.runId, canvas_->scene().range.value_or(canvas_->scene().window))
               : QString();
}

QVariantMap TimelineView::remembered() const {
    return {{QStringLiteral("gutter"), canvas_->gutter()}, {QStringLiteral("panel"), panelToggle_->isChecked()}};
}

void TimelineView::recall(const QVariantMap& state) {
    canvas_->setGutter(std::clamp(state.value(QStringLiteral("gutter")).toInt(), 0, 2'000));
    panelToggle_->setChecked(state.value(QStringLiteral("panel"), true).toBool());
}

bool TimelineView::isShowing() const {
    return workspace_.current() && pages_->currentIndex() == 0 && !canvas_->data().empty();
}

void TimelineView::showEvent(QShowEvent* event) {
    View::showEvent(event);
    if (stale_) {
        reload();
    } else {
        feed_.advance(); // what happened while it was hidden
        cursorMoved();
        timesTimer_.start(); // the filter may have changed
    }
}

QWidget* TimelineView::makeTools() {
    tools_ = new QWidget;
    tools_->setSizePolicy(QSizePolicy::Ignored, QSizePolicy::Fixed); // never what keeps a window wide
    auto* row = new QHBoxLayout(tools_);
    row->setContentsMargins(0, 0, 0, 0);
    search_ = new QLineEdit;
    search_->setObjectName(QStringLiteral("search"));
    search_->setAccessibleName(tr("Search spans"));
    search_->setPlaceholderText(tr("Search spans ( / )"));
    search_->setToolTip(tr("Words of a span's name or of what it does: attention finds stage2"));
    search_->setClearButtonEnabled(true);
    search_->setMaximumWidth(320);
    search_->installEventFilter(this);
    hits_ = new MutedLabel;
    hits_->setObjectName(QStringLiteral("hits"));
    row->addWidget(search_);
    const auto button = [&](const char* name, const QString& text, const QString& help, const auto& pressed) {
        auto* made = new QToolButton;
        made->setObjectName(QLatin1String(name));
        made->setText(text);
        made->setToolTip(help);
        made->setAccessibleName(help);
        row->addWidget(made);
        connect(made, &QToolButton::clicked, this, pressed);
        return made;
    };
    auto* back = button("previousHit", QStringLiteral("‹"), tr("Previous hit (Shift+N)"), [this] { goToMatch(false); });
    auto* next = button("nextHit", QStringLiteral("›"), tr("Next hit (N)"), [this] { goToMatch(true); });
    row->addWidget(hits_);
    row->addStretch();
    button("previousStep", tr("‹ Step"), tr("Previous step (Left)"), [this] { moveCursor(-1, 0); });
    button("nextStep", tr("Step ›"), tr("Next step (Right)"), [this] { moveCursor(1, 0); });
    button("firstDecode", tr("Decode"), tr("Show the first decode step (1); all of them: 2"),
           [this] { showDecode(false); });
    row->addSpacing(8);
    auto* fit =
        button("fit", tr("Fit"), tr("Fit the chosen span, the range, or all steps (F)"), [this] { canvas_->fit(); });
    auto* all = button("showAll", tr("All"), tr("Show everything, also what lies before and after the steps (0)"),
                       [this] { canvas_->showAll(); });
    auto* note = button("leaveNote", tr("Note..."), tr("Leave a note at the range, the span or the pointer (M)"),
                        [this] { askNote(); });
    panelToggle_ = button("panelToggle", tr("Details"), tr("Show or hide the panel below"), [] {});
    panelToggle_->setCheckable(true);
    panelToggle_->setChecked(true);
    connect(search_, &QLineEdit::textChanged, this, &TimelineView::search);
    search_->setMinimumWidth(90);
    optionalTools_ = {note, all, fit, back, next, hits_}; // keys and menus do the same
    return tools_;
}

void TimelineView::fitTools() {
    for (QWidget* each : optionalTools_) each->show();
    for (QWidget* each : optionalTools_) {
        tools_->layout()->invalidate();
        if (tools_->layout()->minimumSize().width() <= tools_->width()) return;
        each->hide();
    }
    tools_->layout()->invalidate();
}

void TimelineView::resizeEvent(QResizeEvent* event) {
    View::resizeEvent(event);
    layout()->activate(); // the tools have their new width
    fitTools();
    const int height = split_->height(), below = std::min(kPanelHeight, height / 3);
    if (!splitMoved_) split_->setSizes({height - below, below});
}

/// A table of one line is no table; whoever has set the panel's height keeps it.
void TimelineView::makeRoomForTimes() {
    const int all = split_->height(), below = std::min(kTimesHeight, all * 2 / 5);
    if (!splitMoved_ && panel_->height() < below) split_->setSizes({all - below, below});
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
        if (!canvas_->scene().range) timesTimer_.start();
    });
    connect(canvas_, &TimelineCanvas::hovered, this, [this](std::optional<SpanRef> ref, double, QPoint global) {
        ++hovers_;
        if (ref)
            showTooltip(*ref, global);
        else
            QToolTip::hideText();
    });
    connect(canvas_, &TimelineCanvas::curveHovered, this, [this](int curve, double ns, QPoint global) {
        ++hovers_; // a span's answer under way comes too late
        QToolTip::showText(global, curveTooltip(canvas_->data(), curve, ns), canvas_, {}, 60'000);
    });
    connect(canvas_, &TimelineCanvas::hoverEnded, this, [this] {
        ++hovers_;
        QToolTip::hideText();
    });
    connect(canvas_, &TimelineCanvas::cursorMoveRequested, this, &TimelineView::moveCursor);
    connect(canvas_, &TimelineCanvas::cursorJumpRequested, this, &TimelineView::jumpCursor);
    connect(canvas_, &TimelineCanvas::decodeRequested, this, &TimelineView::showDecode);
    connect(canvas_, &TimelineCanvas::searchRequested, this, [this] {
        search_->setFocus();
        search_->selectAll();
    });
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
    times_.reset(); // it reads what is thrown away
    panel_->showTimesHint({});
    sinceDrawn_.invalidate();
    canvas_->reset();
    canvas_->data().filter.set(workspace_.filter());
    forget();
    panel_->showNotes({});
    panel_->showNoteProblem({});
    noteUndo_.clear();
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
    readTheNotes();
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
    if (!search_->text().isEmpty() && !batch.texts.empty()) findMatches(true);
    if (held.index.waiting() > 0) settleTimer_.start();
    showEmpty(!held.empty() ? QString()
                            : tr("Waiting for the first step.\n\nThe prefill is the first thing to appear; "
                                 "it is written when the prompt has been read."));
    // What is drawn knows its spans by their places.
    if (moves != held.index.moves() || !feed_.loading() || !sinceDrawn_.isValid() ||
        sinceDrawn_.elapsed() >= kRedrawMs) {
        canvas_->dataChanged();
        cursorMoved();
        if (!batch.spans.empty() || batch.atEnd) {
            updateNote();
            updateHits();
        }
        sinceDrawn_.start(); // reading is what the time is for, until the next picture is due
    }
    held.filter.learn(held.index.names());
    if (!canvas_->scene().range && !timesTimer_.isActive()) timesTimer_.start();
    showReading();
    if (batch.atEnd || !feed_.loading()) readRows();
}

void TimelineView::showEmpty(const QString& text) {
    empty_->setText(text);
    const bool waited = empty_->hasFocus();
    pages_->setCurrentIndex(text.isEmpty() ? 0 : 1);
    setFocusProxy(text.isEmpty() ? static_cast<QWidget*>(canvas_) : empty_); // what is hidden would not take the focus
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
        if (run->row.backend == kImported)
            said << tr("Imported from %1.")
                        .arg(QString::fromStdString(run->row.statusMessage)
                                 .section(QLatin1Char(';'), 0, 0)
                                 .remove(QStringLiteral("imported from ")));
        if (run->row.timing != "measured" && index.trackOf(kToDeviceTrack) >= 0) said << tr("Link times are modelled.");
        if (run->row.droppedSteps > 0)
            said << tr("%1 steps were dropped while recording.").arg(formatCount(run->row.droppedSteps));
        for (int lane = 0; lane < index.laneCount(); ++lane) {
            const SpanLane info = index.lane(lane);
            if (!info.crowded) continue;
            said << tr("On %1, more spans overlap than there are rows: the last row has them over each other.")
                        .arg(QString::fromStdString(index.tracks()[std::size_t(info.track)]));
            break; // one is enough to say what to look out for
        }
        if (index.waiting() > 0)
            said << tr("%1 spans are out of order in the file and not drawn yet.")
                        .arg(formatCount(std::int64_t(index.waiting())));
        if (feed_.counting())
            said << tr("Counting the KV blocks on the device: %1 %.").arg(int(feed_.countedFraction() * 100));
        if (!feed_.problem().isEmpty()) said << tr("Reading stopped: %1.").arg(feed_.problem());
    }
    const QString text = said.join(QLatin1Char(' '));
    if (note_->text() != text) note_->setText(text);
}

void TimelineView::filterChanged() {
    times_.reset(); // it goes by the filter of before
    canvas_->data().filter.set(workspace_.filter());
    canvas_->dataChanged();
    updateNote();
    if (isVisible()) showTimes();
}

// What is chosen, and where the cursor is.

void TimelineView::choose(SpanRef ref, bool reveal) {
    const IndexedSpan span = canvas_->data().index.at(ref);
    canvas_->select(ref, reveal);
    explain();
    updateHits();
    if (span.step < 0) return;
    Cursor cursor = workspace_.cursor();
    cursor.step = span.step;
    if (span.layer >= 0) cursor.layer = span.layer;
    choosing_ = true; // what was clicked stays under the pointer
    workspace_.setCursor(cursor);
    choosing_ = false;
}

void TimelineView::forget() {
    canvas_->select(std::nullopt);
    facts_.clear();
    panel_->showSpan({});
    explainSpan(*this, {});
    updateHits();
}

void TimelineView::showFacts(const SpanContext& context) {
    const OpenRun* run = workspace_.current();
    const TimelineScene& scene = canvas_->scene();
    if (!run || !scene.selected) return;
    const LinkKnowledge link{run->row.timing == "measured" ? tr("measured") : tr("modelled"), run->row.linkGbps};
    facts_ = factsOf(canvas_->data(), *scene.selected, scene.flows, context, link);
    panel_->showSpan(facts_);
    explainSpan(*this, facts_);
}

/// At once with what the span itself knows; what another tool said of it follows from the trace.
void TimelineView::showTooltip(SpanRef ref, QPoint global) {
    QToolTip::showText(global, tooltipOf(canvas_->data(), ref), canvas_, {}, 60'000);
    const OpenRun* run = workspace_.current();
    if (!run || run->row.backend != kImported) return;
    const SpanPlace place = placeOfSpan(canvas_->data().index, ref);
    workspace_.query<SpanDetail>(
        this, "tooltip", run->key,
        [runId = run->key.runId, place, rows = rows_](TraceReader& reader) {
            return spanDetail(reader, runId, place, rows.get());
        },
        [this, place, global, hover = hovers_](const SpanDetail& detail) {
            if (hover != hovers_ || (detail.category.empty() && detail.args.empty())) return;
            if (const auto again = spanAtPlace(canvas_->data().index, place))
                QToolTip::showText(global, tooltipOf(canvas_->data(), *again, detail), canvas_, {}, 60'000);
        });
}

void TimelineView::explain() {
    const OpenRun* run = workspace_.current();
    if (!run || !canvas_->scene().selected) return;
    SpanContext known;
    known.kind = kindOfSpan(canvas_->data().index, *canvas_->scene().selected);
    showFacts(known);
    if (!isSpanExplained(*this)) panel_->setCurrentIndex(0); // nobody else shows it
    const IndexedSpan span = canvas_->data().index.at(*canvas_->scene().selected);
    const SpanPlace place = placeOfSpan(canvas_->data().index, *canvas_->scene().selected);
    workspace_.query<SpanContext>(
        this, "span", run->key,
        [runId = run->key.runId, place, span, rows = rows_](TraceReader& reader) {
            return readSpanContext(reader, runId, place, span.step, span.layer, rows.get());
        },
        [this, place, kind = known.kind](SpanContext context) {
            const auto& selected = canvas_->scene().selected;
            const SpanIndex& index = canvas_->data().index;
            if (!selected || !(placeOfSpan(index, *selected) == place)) return;
            canvas_->addRecordedFlows(arrowsOf(index, *selected, context.flows));
            context.kind = kind;
            showFacts(context);
        });
}

void TimelineView::cursorMoved() {
    std::int64_t from = 0, to = 0;
    if (workspace_.current() && canvas_->data().counters.timesOf(workspace_.cursor().step, from, to))
        canvas_->setCursorStep(TimeRange{double(from), double(to)});
    else
        canvas_->setCursorStep(std::nullopt);
    findHome(!choosing_);
}

/// A long prompt leaves its decode steps a few pixels: the window opens on them when the cursor stands on one.
void TimelineView::findHome(bool follow) {
    const StepCounters& counters = canvas_->data().counters;
    std::int64_t from = 0, decode = 0, to = 0;
    const bool has =
        workspace_.current() && counters.timesOfAll(false, from, to) && counters.timesOfAll(true, decode, to);
    const bool hides = has && double(decode - from) > double(to - from) * kPromptHides;
    const bool stays = canvas_->scene().homeIsDecode && !feed_.loading(); // a live run's prompt is not brought back
    canvas_->setHomeIsDecode(has && (hides || stays) && workspace_.cursor().step >= counters.firstDecodeStep(), follow);
}

void TimelineView::revealCursor() {
    const auto& step = canvas_->scene().cursorStep;
    const TimeRange window = canvas_->scene().window;
    if (!step || step->meets(window)) return;
    const double size = std::max(window.size(), step->size() * 1.2);
    canvas_->zoomTo({step->from - size * 0.1, step->from + size * 0.9});
}

void TimelineView::moveCursor(int steps, int layers) {
    Cursor cursor = workspace_.cursor();
    cursor.step += steps;
    cursor.layer += layers;
    workspace_.setCursor(cursor);
    revealCursor(); // also where the cursor could go no further
}

void TimelineView::jumpCursor(bool toEnd) {
    if (!workspace_.current()) return;
    Cursor cursor = workspace_.cursor();
    cursor.step = toEnd ? workspace_.current()->row.steps - 1 : 0;
    workspace_.setCursor(cursor);
    revealCursor();
}

void TimelineView::showDecode(bool whole) {
    const StepCounters& counters = canvas_->data().counters;
    const int first = counters.firstDecodeStep();
    std::int64_t from = 0, to = 0;
    if (first < 0 || !(whole ? counters.timesOfAll(true, from, to) : counters.timesOf(first, from, to))) return;
    const double margin = double(to - from) * (whole ? 0.01 : 0.05) + 1;
    canvas_->zoomTo({double(from) - margin, double(to) + margin});
    if (whole) return;
    Cursor cursor = workspace_.cursor();
    cursor.step = first;
    workspace_.setCursor(cursor);
}

void TimelineView::followFlow(bool forward) {
    const TimelineScene& scene = canvas_->scene();
    if (!scene.selected) return;
    for (const SpanFlow& flow : scene.flows) {
        const SpanRef& other = forward ? flow.to : flow.from;
        if (other == *scene.selected) continue;
        return choose(SpanRef(other), true);
    }
}

// Search.

void TimelineView::search() {
    findMatches(false);
    updateHits();
    canvas_->dataChanged();
}

void TimelineView::findMatches(bool newOnly) {
    TimelineData& held = canvas_->data();
    if (!newOnly) held.matches.clear();
    matchNewNames(held.index, search_->text().toStdString(), wordsOf, held.matches);
}

void TimelineView::updateHits() {
    const TimelineData& held = canvas_->data();
    const std::size_t count = matchCount(held.index, held.matches);
    const auto& selected = canvas_->scene().selected;
    const std::size_t number =
        selected && held.index.size() <= kNumbered ? matchNumber(held.index, held.matches, *selected) : 0;
    hits_->setText(search_->text().trimmed().isEmpty() ? QString()
                   : count == 0                        ? tr("no span is called so")
                   : number > 0
                       ? tr("%1 of %2").arg(formatCount(std::int64_t(number)), formatCount(std::int64_t(count)))
                   : count == 1 ? tr("1 hit")
                                : tr("%1 hits").arg(formatCount(std::int64_t(count))));
}

void TimelineView::goToMatch(bool forward) {
    const TimelineData& held = canvas_->data();
    const TimelineScene& scene = canvas_->scene();
    if (matchCount(held.index, held.matches) == 0) return;
    std::optional<SpanRef> from;
    if (scene.selected && held.isMatch(held.index.at(*scene.selected).name)) from = scene.selected;
    const auto ns = std::int64_t(forward ? scene.window.from : scene.window.to);
    auto found =
        forward ? nextMatch(held.index, held.matches, from, ns) : previousMatch(held.index, held.matches, from, ns);
    if (!found) // round to the other end
        found = forward ? nextMatch(held.index, held.matches, std::nullopt, held.index.firstNs())
                        : previousMatch(held.index, held.matches, std::nullopt, held.index.endNs() + 1);
    if (found) choose(*found, true);
}

bool TimelineView::eventFilter(QObject* watched, QEvent* event) {
    if (watched == search_ && event->type() == QEvent::KeyPress) {
        auto* key = static_cast<QKeyEvent*>(event);
        if (key->key() == Qt::Key_Return || key->key() == Qt::Key_Enter) {
            goToMatch(!key->modifiers().testFlag(Qt::ShiftModifier));
            return true;
        }
        if (key->key() == Qt::Key_Escape) {
            search_->clear();
            canvas_->setFocus();
            return true;
        }
    }
    return View::eventFilter(watched, event);
}

View* makeTimelineView(Workspace& workspace, QWidget* parent) { return new TimelineView(workspace, parent); }

} // namespace kvscope::ui
