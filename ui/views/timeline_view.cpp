// Every span of a run over time: what ran when, on which track, what waited for what, with the step counters above.
#include "kernels/base/error.h"
#include "profiler/read/span_search.h"
#include "ui/models/format.h"
#include "ui/picture.h"
#include "ui/theme.h"
#include "ui/timeline/span_facts.h"
#include "ui/timeline/time_ticks.h"
#include "ui/timeline/timeline_canvas.h"
#include "ui/timeline/timeline_panel.h"
#include "ui/views/growth_turn.h"
#include "ui/views/make_views.h"
#include "ui/views/timeline_feed.h"
#include "ui/views/view.h"
#include "ui/widgets/small_widgets.h"

#include <QApplication>
#include <QClipboard>
#include <QFileDialog>
#include <QFileInfo>
#include <QInputDialog>
#include <QKeyEvent>
#include <QLabel>
#include <QLineEdit>
#include <QMenu>
#include <QPageSize>
#include <QPainter>
#include <QPdfWriter>
#include <QPushButton>
#include <QSaveFile>
#include <QSplitter>
#include <QStackedWidget>
#include <QSvgGenerator>
#include <QTimer>
#include <QToolButton>
#include <QToolTip>
#include <QVBoxLayout>

#include <algorithm>
#include <cmath>
#include <memory>

namespace kvscope::ui {

namespace {

constexpr int kTimesPauseMs = 250;            // self times follow the window once it rests
constexpr std::size_t kTimesAtOnce = 400'000; // spans in view beyond which the table waits for a measured range

class TimelineView final : public View {
    Q_OBJECT
public:
    TimelineView(Workspace& workspace, QWidget* parent) : View(parent), workspace_(workspace), feed_(workspace, this) {
        setAccessibleName(tr("Timeline"));
        auto* column = new QVBoxLayout(this);
        column->setContentsMargins(12, 10, 12, 8);
        column->setSpacing(8);
        column->addLayout(makeTools());
        canvas_ = new TimelineCanvas;
        panel_ = new TimelinePanel;
        split_ = new QSplitter(Qt::Vertical);
        split_->addWidget(canvas_);
        split_->addWidget(panel_);
        split_->setStretchFactor(0, 1);
        split_->setStretchFactor(1, 0);
        split_->setSizes({700, 210});
        empty_ = new QLabel;
        empty_->setObjectName(QStringLiteral("emptyText"));
        empty_->setAlignment(Qt::AlignCenter);
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
        timesTimer_.setSingleShot(true);
        timesTimer_.setInterval(kTimesPauseMs);
        connect(&timesTimer_, &QTimer::timeout, this, &TimelineView::showTimes);
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
        connect(&workspace_, &Workspace::cursorChanged, this, [this] { cursorMoved(true); });
    }

    bool exportImage(const QString& path, QSize size) override;
    QString exportCsv() const override {
        return workspace_.current() && canvas_->data().index.size() > 0 ? panel_->timesText(QLatin1Char(','), false)
                                                                        : QString();
    }
    void resetZoom() override { canvas_->resetZoom(); }
    void undoZoom() override { canvas_->undoZoom(); }
    void redoZoom() override { canvas_->redoZoom(); }
    void applyTheme(const Theme&) override { canvas_->update(); }

protected:
    void showEvent(QShowEvent* event) override {
        View::showEvent(event);
        if (stale_) {
            reload();
        } else {
            feed_.advance(); // what happened while it was hidden
            cursorMoved(true);
        }
    }

private:
    QLayout* makeTools() {
        auto* row = new QHBoxLayout;
        search_ = new QLineEdit;
        search_->setObjectName(QStringLiteral("search"));
        search_->setAccessibleName(tr("Search spans"));
        search_->setPlaceholderText(tr("Search spans by name ( / )"));
        search_->setClearButtonEnabled(true);
        search_->setMaximumWidth(280);
        search_->installEventFilter(this);
        hits_ = new MutedLabel;
        hits_->setObjectName(QStringLiteral("hits"));
        row->addWidget(search_);
        const auto button = [&](const char* name, const QString& text, const QString& help) {
            auto* made = new QToolButton;
            made->setObjectName(QLatin1String(name));
            made->setText(text);
            made->setToolTip(help);
            made->setAccessibleName(help);
            row->addWidget(made);
            return made;
        };
        auto* back = button("previousHit", QStringLiteral("‹"), tr("Previous hit (Shift+N)"));
        auto* next = button("nextHit", QStringLiteral("›"), tr("Next hit (N)"));
        row->addWidget(hits_);
        row->addStretch();
        auto* fit = button("fit", tr("Fit"), tr("Fit the chosen span, the range, or everything (F)"));
        auto* note = button("leaveNote", tr("Note..."), tr("Leave a note at the range, the span or the pointer (M)"));
        auto* fold = button("panelToggle", tr("Details"), tr("Show or hide the panel below"));
        fold->setCheckable(true);
        fold->setChecked(true);
        connect(search_, &QLineEdit::textChanged, this, &TimelineView::search);
        connect(back, &QToolButton::clicked, this, [this] { goToMatch(false); });
        connect(next, &QToolButton::clicked, this, [this] { goToMatch(true); });
        connect(fit, &QToolButton::clicked, this, [this] { canvas_->fit(); });
        connect(note, &QToolButton::clicked, this, &TimelineView::askNote);
        connect(fold, &QToolButton::toggled, this, [this](bool on) { panel_->setVisible(on); });
        return row;
    }

    void connectCanvas() {
        connect(canvas_, &TimelineCanvas::spanClicked, this, [this](SpanRef ref) { choose(ref, false); });
        connect(canvas_, &TimelineCanvas::emptyClicked, this, [this] {
            canvas_->select(std::nullopt);
            panel_->showSpan({});
        });
        connect(canvas_, &TimelineCanvas::rangeSelected, this, [this] {
            if (canvas_->scene().range) panel_->setCurrentIndex(1);
            showTimes();
        });
        connect(canvas_, &TimelineCanvas::windowChanged, this, [this] {
            if (!canvas_->scene().range) timesTimer_.start();
        });
        connect(canvas_, &TimelineCanvas::hovered, this, [this](std::optional<SpanRef> ref, double, QPoint global) {
            if (ref)
                QToolTip::showText(global, tooltipOf(canvas_->data(), *ref), canvas_, {}, 60'000);
            else
                QToolTip::hideText();
        });
        connect(canvas_, &TimelineCanvas::hoverEnded, this, [] { QToolTip::hideText(); });
        connect(canvas_, &TimelineCanvas::cursorMoveRequested, this, [this](int steps, int layers) {
            Cursor cursor = workspace_.cursor();
            cursor.step += steps;
            cursor.layer += layers;
            workspace_.setCursor(cursor);
            revealCursor();
        });
        connect(canvas_, &TimelineCanvas::cursorJumpRequested, this, [this](bool toEnd) {
            if (!workspace_.current()) return;
            Cursor cursor = workspace_.cursor();
            cursor.step = toEnd ? workspace_.current()->row.steps - 1 : 0;
            workspace_.setCursor(cursor);
            revealCursor();
        });
        connect(canvas_, &TimelineCanvas::searchRequested, this, [this] {
            search_->setFocus();
            search_->selectAll();
        });
        connect(canvas_, &TimelineCanvas::matchRequested, this, &TimelineView::goToMatch);
        connect(canvas_, &TimelineCanvas::noteRequested, this, &TimelineView::askNote);
        connect(canvas_, &TimelineCanvas::flowRequested, this, &TimelineView::followFlow);
        connect(canvas_, &TimelineCanvas::menuRequested, this, &TimelineView::showMenu);
    }

    void connectPanel() {
        connect(panel_, &TimelinePanel::groupingChanged, this, &TimelineView::showTimes);
        connect(panel_, &TimelinePanel::noteAddRequested, this, &TimelineView::askNote);
        connect(panel_, &TimelinePanel::noteChosen, this, [this](qint64 id) {
            const Note* note = noteOf(id);
            if (!note) return;
            const double length = std::max(double(note->durationNs), canvas_->scene().window.size() / 4);
            const double centre = double(note->startNs) + double(note->durationNs) / 2;
            canvas_->zoomTo({centre - length, centre + length});
        });
        connect(panel_, &TimelinePanel::noteEditRequested, this, [this](qint64 id) {
            const Note* note = noteOf(id);
            bool accepted = false;
            const QString text = note ? QInputDialog::getText(this, tr("Note"), tr("Text"), QLineEdit::Normal,
                                                              QString::fromStdString(note->text), &accepted)
                                      : QString();
            if (accepted) write([id, text](const std::string& path) { changeNote(path, id, text.toStdString()); });
        });
        connect(panel_, &TimelinePanel::noteRemoveRequested, this,
                [this](qint64 id) { write([id](const std::string& path) { removeNote(path, id); }); });
    }

    void reload() {
        if (!isVisible()) {
            stale_ = true;
            return;
        }
        stale_ = false;
        canvas_->reset();
        panel_->showSpan({});
        panel_->showNotes({});
        panel_->showNoteProblem({});
        QToolTip::hideText();
        const OpenRun* run = workspace_.current();
        if (!run) {
            feed_.stop();
            showEmpty(
                tr("No run is open.\n\nThe timeline shows every stage, kernel, copy and transfer of a run over "
                   "time, and how the step's numbers follow from them.\n\nPress Run in the session form to record "
                   "one, or open a .kvtrace file (Ctrl+O)."));
            return;
        }
        const RunRow& row = run->row;
        canvas_->data().counters =
            StepCounters(std::int64_t(row.deviceSlots) * row.layers * row.sequences * row.kvHeads);
        feed_.start(
            run->key, [this](const SpanBatch& batch) { take(batch); },
            [this](const QString& problem) { showEmpty(tr("The trace cannot be read here: %1").arg(problem)); });
        readTheNotes();
    }

    void take(const SpanBatch& batch) {
        TimelineData& held = canvas_->data();
        // A reference may move when spans arrive late; the span itself is found again.
        std::optional<IndexedSpan> chosen;
        if (canvas_->scene().selected) chosen = held.index.at(*canvas_->scene().selected);
        const int lane = chosen ? canvas_->scene().selected->lane : -1;
        held.index.append(batch);
        held.counters.append(batch.steps);
        if (chosen) {
            std::optional<SpanRef> again = held.index.find(lane, chosen->startNs);
            canvas_->select(again);
        }
        if (!search_->text().isEmpty() && !batch.texts.empty())
            held.matches = namesMatching(held.index, search_->text().toStdString());
        showEmpty(held.index.size() > 0 ? QString()
                                        : tr("Waiting for the first step.\n\nThe prefill is the first thing to appear; "
                                             "it is written when the prompt has been read."));
        canvas_->dataChanged();
        cursorMoved(false);
        if (!batch.spans.empty() || batch.atEnd) {
            updateNote();
            updateHits();
        }
        if (!canvas_->scene().range && !timesTimer_.isActive()) timesTimer_.start();
    }

    void showEmpty(const QString& text) {
        empty_->setText(text);
        pages_->setCurrentIndex(text.isEmpty() ? 0 : 1);
        updateNote();
    }

    void updateNote() {
        QStringList said;
        const OpenRun* run = workspace_.current();
        const SpanIndex& index = canvas_->data().index;
        if (run && pages_->currentIndex() == 0) {
            if (feed_.loading() && feed_.fraction() < 1)
                said << tr("Reading spans: %1 so far, %2 %.")
                            .arg(formatCount(std::int64_t(index.size())))
                            .arg(int(feed_.fraction() * 100));
            else
                said << tr("%1 spans. Where several share a pixel, its colour is the name that takes most of it, and "
                           "its strength how much of it is busy.")
                            .arg(formatCount(std::int64_t(index.size())));
            if (run->row.timing != "measured" && index.trackOf(kToDeviceTrack) >= 0)
                said << tr("Link times are modelled.");
            if (run->row.droppedSteps > 0)
                said << tr("%1 steps were dropped while recording.").arg(formatCount(run->row.droppedSteps));
            if (!feed_.problem().isEmpty()) said << tr("Reading stopped: %1.").arg(feed_.problem());
        }
        const QString text = said.join(QLatin1Char(' '));
        if (note_->text() != text) note_->setText(text);
    }

    // What is chosen.

    void choose(SpanRef ref, bool reveal) {
        const IndexedSpan span = canvas_->data().index.at(ref);
        canvas_->select(ref, reveal);
        panel_->setCurrentIndex(0);
        explain();
        if (span.step < 0) return;
        Cursor cursor = workspace_.cursor();
        cursor.step = span.step;
        if (span.layer >= 0) cursor.layer = span.layer;
        workspace_.setCursor(cursor);
    }

    void explain() {
        const OpenRun* run = workspace_.current();
        if (!run || !canvas_->scene().selected) return;
        const SpanRef ref = *canvas_->scene().selected;
        const IndexedSpan span = canvas_->data().index.at(ref);
        const QString timing = run->row.timing == "measured" ? tr("measured") : tr("modelled");
        panel_->showSpan(factsOf(canvas_->data(), ref, {}, timing));
        if (span.step < 0) return;
        workspace_.query<SpanContext>(
            this, "span", run->key,
            [runId = run->key.runId, span](TraceReader& reader) {
                return readSpanContext(reader, runId, span.step, span.layer);
            },
            [this, start = span.startNs, timing](SpanContext context) {
                const auto& selected = canvas_->scene().selected;
                if (selected && canvas_->data().index.at(*selected).startNs == start)
                    panel_->showSpan(factsOf(canvas_->data(), *selected, context, timing));
            });
    }

    void cursorMoved(bool alsoWhenHidden) {
        if (!alsoWhenHidden && !isVisible()) return;
        std::int64_t from = 0, to = 0;
        if (workspace_.current() && canvas_->data().counters.timesOf(workspace_.cursor().step, from, to))
            canvas_->setCursorStep(TimeRange{double(from), double(to)});
        else
            canvas_->setCursorStep(std::nullopt);
    }

    void revealCursor() {
        const auto& step = canvas_->scene().cursorStep;
        const TimeRange window = canvas_->scene().window;
        if (!step || (step->from >= window.from && step->from < window.to)) return;
        const double size = std::max(window.size(), step->size());
        canvas_->zoomTo({step->from - size * 0.1, step->from + size * 0.9});
    }

    void followFlow(bool forward) {
        const auto& scene = canvas_->scene();
        if (!scene.selected) return;
        for (const SpanFlow& flow : scene.flows) {
            const SpanRef& other = forward ? flow.to : flow.from;
            if (other == *scene.selected) continue;
            return choose(SpanRef(other), true);
        }
    }

    void showTimes() {
        const TimelineScene& scene = canvas_->scene();
        const TimeRange range = scene.range.value_or(scene.window);
        const SpanIndex& index = canvas_->data().index;
        const auto from = std::int64_t(std::floor(range.from)), to = std::int64_t(std::ceil(range.to));
        if (!scene.range) { // unasked for, so only where it costs nothing to speak of
            std::size_t spans = 0;
            for (int lane = 0; lane < index.laneCount(); ++lane)
                spans += index.lowerBound(lane, to) - index.lowerBound(lane, from);
            if (spans > kTimesAtOnce)
                return panel_->showTimesHint(tr("%1 spans are shown. Shift and drag over a range to see where its time "
                                                "went, or zoom in.")
                                                 .arg(formatCount(std::int64_t(spans))));
        }
        panel_->showTimes(selfTimes(index, from, to, panel_->grouping()), range, scene.range.has_value());
    }

    // Search.

    void search() {
        TimelineData& held = canvas_->data();
        held.matches = namesMatching(held.index, search_->text().toStdString());
        updateHits();
        canvas_->dataChanged();
    }

    void updateHits() {
        const TimelineData& held = canvas_->data();
        const std::size_t count = matchCount(held.index, held.matches);
        hits_->setText(search_->text().trimmed().isEmpty() ? QString()
                       : count == 0                        ? tr("no span is called so")
                                                           : tr("%1 hits").arg(formatCount(std::int64_t(count))));
    }

    void goToMatch(bool forward) {
        const TimelineData& held = canvas_->data();
        const TimelineScene& scene = canvas_->scene();
        if (held.matches.empty()) return;
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

    // Notes.

    const Note* noteOf(qint64 id) const {
        for (const Note& note : canvas_->data().notes)
            if (note.id == id) return &note;
        return nullptr;
    }

    void askNote() {
        const TimelineScene& scene = canvas_->scene();
        const OpenRun* run = workspace_.current();
        if (!run || pages_->currentIndex() != 0) return;
        Note note;
        note.runId = run->key.runId;
        if (scene.range) {
            note.startNs = std::int64_t(scene.range->from);
            note.durationNs = std::int64_t(scene.range->size());
        } else if (scene.selected) {
            note.startNs = canvas_->data().index.at(*scene.selected).startNs;
        } else {
            note.startNs = std::int64_t(scene.hoverNs.value_or((scene.window.from + scene.window.to) / 2));
        }
        bool accepted = false;
        const QString text = QInputDialog::getText(
            this, tr("Leave a note"),
            tr("At %1 (empty: a bookmark). It is kept in the trace.").arg(formatTime(double(note.startNs), 1000)),
            QLineEdit::Normal, {}, &accepted);
        if (!accepted) return;
        note.text = text.trimmed().toStdString();
        write([note](const std::string& path) { addNote(path, note); });
    }

    struct NotesAnswer {
        std::vector<Note> notes;
        QString problem;
    };

    /// Changes the trace on a worker and reads its notes again. Each change is a request of its own: one that is
    /// asked for while another waits must not replace it.
    void write(std::function<void(const std::string& path)> change) {
        const OpenRun* run = workspace_.current();
        if (!run) return;
        const std::string slot = "notes " + std::to_string(++noteRequests_);
        workspace_.query<NotesAnswer>(
            this, slot.c_str(), run->key,
            [runId = run->key.runId, change = std::move(change)](TraceReader& reader) {
                NotesAnswer answer;
                try {
                    if (change) change(reader.path());
                } catch (const Error& error) {
                    answer.problem = QString::fromStdString(oneLine(error));
                }
                answer.notes = readNotes(reader, runId);
                return answer;
            },
            [this, key = run->key](NotesAnswer answer) {
                if (!workspace_.current() || workspace_.current()->key != key) return;
                if (!answer.problem.isEmpty()) {
                    panel_->show();
                    panel_->setCurrentIndex(2);
                }
                panel_->showNoteProblem(answer.problem);
                panel_->showNotes(answer.notes);
                canvas_->data().notes = std::move(answer.notes);
                canvas_->dataChanged();
            });
    }
    void readTheNotes() { write({}); }

    void showMenu(QPoint global) {
        QMenu menu(this);
        const bool chosen = canvas_->scene().selected.has_value();
        menu.addAction(tr("Copy image"), this, &TimelineView::copyImage);
        menu.addAction(tr("Copy self times"), this,
                       [this] { QApplication::clipboard()->setText(panel_->timesText()); });
        for (const char* suffix : {"png", "svg", "pdf"})
            menu.addAction(tr("Export %1...").arg(QString::fromLatin1(suffix).toUpper()), this, [this, suffix] {
                const QString path = QFileDialog::getSaveFileName(this, tr("Export the timeline"),
                                                                  QStringLiteral("timeline.") + QLatin1String(suffix));
                if (!path.isEmpty() && !exportImage(path, canvas_->size() + QSize(0, 40)))
                    emit workspace_.failed(tr("%1 could not be written; is the folder there and writable?").arg(path));
            });
        menu.addSeparator();
        menu.addAction(tr("Fit span"), canvas_, &TimelineCanvas::fit)->setEnabled(chosen);
        menu.addAction(tr("Search for this name"), this,
                       [this] {
                           const SpanIndex& index = canvas_->data().index;
                           search_->setText(QString::fromStdString(
                               index.names()[std::size_t(index.at(*canvas_->scene().selected).name)]));
                       })
            ->setEnabled(chosen);
        menu.addAction(tr("Leave a note..."), this, &TimelineView::askNote);
        menu.addSeparator();
        menu.addAction(tr("Undo zoom"), this, &TimelineView::undoZoom)->setEnabled(canvas_->canUndoZoom());
        menu.addAction(tr("Redo zoom"), this, &TimelineView::redoZoom)->setEnabled(canvas_->canRedoZoom());
        menu.addAction(tr("Reset zoom"), this, &TimelineView::resetZoom)->setEnabled(canvas_->isZoomed());
        menu.exec(global);
    }

    void copyImage() {
        const double ratio = std::max(2.0, devicePixelRatioF());
        QImage image(canvas_->size() * ratio, QImage::Format_RGB32);
        image.setDevicePixelRatio(ratio);
        QPainter painter(&image);
        canvas_->paintPicture(painter, canvas_->size(), ratio, false);
        painter.end();
        QApplication::clipboard()->setImage(image);
    }

    void paintExport(QPainter& painter, QSize size, double ratio, bool vector);
    bool eventFilter(QObject* watched, QEvent* event) override {
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

    Workspace& workspace_;
    TimelineFeed feed_;
    TimelineCanvas* canvas_ = nullptr;
    TimelinePanel* panel_ = nullptr;
    QSplitter* split_ = nullptr;
    QStackedWidget* pages_ = nullptr;
    QLineEdit* search_ = nullptr;
    QLabel *hits_ = nullptr, *empty_ = nullptr, *note_ = nullptr;
    QTimer timesTimer_;
    int noteRequests_ = 0;
    bool stale_ = true; // reload is due when the view is next shown
};

void TimelineView::paintExport(QPainter& painter, QSize size, double ratio, bool vector) {
    const Theme& theme = Theme::current();
    painter.fillRect(QRect({0, 0}, size), theme.plotBackground);
    QFont bold = QApplication::font();
    bold.setBold(true);
    painter.setFont(bold);
    painter.setPen(theme.text);
    const int title = QFontMetrics(bold).height() + 14, below = QFontMetrics(QApplication::font()).height() + 10;
    const OpenRun* run = workspace_.current();
    painter.drawText(QRect(12, 0, size.width() - 24, title), Qt::AlignVCenter,
                     run ? tr("Timeline: %1").arg(QString::fromStdString(run->row.name)) : tr("Timeline"));
    painter.setFont(QApplication::font());
    painter.setPen(theme.mutedText);
    const bool shown = pages_->currentIndex() == 0;
    painter.drawText(QRect(12, size.height() - below, size.width() - 24, below), Qt::AlignVCenter,
                     QFontMetrics(QApplication::font()).elidedText(note_->text(), Qt::ElideRight, size.width() - 24));
    const QRect area(0, title, size.width(), std::max(40, size.height() - title - below));
    if (!shown) {
        painter.drawText(area.adjusted(40, 0, -40, 0), Qt::AlignCenter | Qt::TextWordWrap, empty_->text());
        return;
    }
    painter.save();
    painter.translate(area.topLeft());
    painter.setClipRect(QRect({0, 0}, area.size()));
    canvas_->paintPicture(painter, area.size(), ratio, vector);
    painter.restore();
}

bool TimelineView::exportImage(const QString& path, QSize size) {
    if (size.width() < 80 || size.height() < 80 || size.width() > 16'384 || size.height() > 16'384) return false;
    const QString suffix = QFileInfo(path).suffix().toLower();
    if (suffix == QLatin1String("png")) {
        const double ratio = pictureScale(*this);
        QImage image((QSizeF(size) * ratio).toSize(), QImage::Format_RGB32);
        image.setDevicePixelRatio(ratio);
        QPainter painter(&image);
        paintExport(painter, size, ratio, false);
        painter.end();
        return image.save(path, "PNG");
    }
    QSaveFile file(path);
    if ((suffix != QLatin1String("svg") && suffix != QLatin1String("pdf")) || !file.open(QIODevice::WriteOnly))
        return false;
    if (suffix == QLatin1String("svg")) {
        QSvgGenerator svg;
        svg.setOutputDevice(&file);
        svg.setSize(size);
        svg.setViewBox(QRect({0, 0}, size));
        svg.setTitle(tr("Timeline"));
        svg.setDescription(note_->text());
        svg.setResolution(96);
        QPainter painter(&svg);
        paintExport(painter, size, 2, true);
    } else {
        QPdfWriter pdf(&file);
        pdf.setTitle(tr("Timeline"));
        pdf.setCreator(QStringLiteral("KVScope"));
        pdf.setResolution(96);
        pdf.setPageMargins(QMarginsF(0, 0, 0, 0));
        pdf.setPageSize(QPageSize(QSizeF(size) * 72.0 / 96.0, QPageSize::Point, {}, QPageSize::ExactMatch));
        QPainter painter(&pdf);
        paintExport(painter, size, 2, true);
    }
    return file.commit();
}

} // namespace

View* makeTimelineView(Workspace& workspace, QWidget* parent) { return new TimelineView(workspace, parent); }

} // namespace kvscope::ui

#include "timeline_view.moc"
