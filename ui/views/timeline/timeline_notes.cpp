// Notes and bookmarks: left, changed, taken back and gone to from the timeline; kept in the trace.
#include "ui/models/format.h"
#include "ui/timeline/time_ticks.h"
#include "ui/views/timeline/timeline_view.h"

#include <QInputDialog>
#include <QLineEdit>

#include <algorithm>
#include <utility>

namespace kvscope::ui {

void TimelineView::connectNotes() {
    connect(canvas_, &TimelineCanvas::noteRequested, this, [this] { askNote(); });
    connect(panel_, &TimelinePanel::noteAddRequested, this, [this] { askNote(); });
    connect(panel_, &TimelinePanel::noteChosen, this, &TimelineView::showNote);
    connect(panel_, &TimelinePanel::noteFitRequested, this, &TimelineView::fitNote);
    connect(panel_, &TimelinePanel::noteEditRequested, this, &TimelineView::editNote);
    connect(panel_, &TimelinePanel::noteRemoveRequested, this, &TimelineView::removeTheNote);
    connect(panel_, &TimelinePanel::noteUndoRequested, &notes_, &NoteTasks::undo);
    connect(&notes_, &NoteTasks::answered, this, &TimelineView::takeNotes);
}

const Note* TimelineView::noteOf(qint64 id) const {
    for (const Note& note : canvas_->data().notes)
        if (note.id == id) return &note;
    return nullptr;
}

bool TimelineView::isSeen(SpanRef ref) const {
    const TimelineSpan span = canvas_->data().index.at(ref);
    return TimeRange{double(span.startNs), double(std::max(span.endNs(), span.startNs + 1))}.meets(
        canvas_->scene().window);
}

void TimelineView::askNote(std::optional<double> ns) {
    const TimelineScene& scene = canvas_->scene();
    const OpenRun* run = workspace_.current();
    if (!run || !isShowing()) return;
    const RunKey key = run->key; // another run may be shown before the dialog is answered
    Note note;
    note.runId = key.runId;
    if (ns) {
        note.startNs = std::int64_t(*ns);
    } else if (scene.range && scene.range->meets(scene.window)) { // a range that is not in view is not meant
        note.startNs = std::int64_t(scene.range->from);
        note.durationNs = std::int64_t(scene.range->size());
    } else if (scene.selected && isSeen(*scene.selected)) {
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
    notes_.write(key, {NoteStep::Kind::Add, std::move(note), {}});
}

void TimelineView::editNote(qint64 id) {
    const OpenRun* run = workspace_.current();
    const Note* chosen = noteOf(id);
    if (!run || !chosen) return;
    const RunKey key = run->key; // another run may be shown before the dialog is answered
    const Note note = *chosen;
    bool accepted = false;
    const std::string text = QInputDialog::getText(this, tr("Note"), tr("Text"), QLineEdit::Normal,
                                                   QString::fromStdString(note.text), &accepted)
                                 .toStdString();
    if (accepted && text != note.text) notes_.write(key, {NoteStep::Kind::Change, note, text});
}

void TimelineView::removeTheNote(qint64 id) {
    const OpenRun* run = workspace_.current();
    const Note* note = noteOf(id);
    if (run && note) notes_.write(run->key, {NoteStep::Kind::Remove, *note, {}});
}

/// To the middle, as near as the window is zoomed.
void TimelineView::showNote(qint64 id) {
    const Note* note = noteOf(id);
    if (!note) return;
    const double size = canvas_->scene().window.size();
    if (double(note->durationNs) > size) return fitNote(id);
    const double centre = double(note->startNs) + double(note->durationNs) / 2;
    canvas_->zoomTo({centre - size / 2, centre + size / 2});
}

void TimelineView::fitNote(qint64 id) {
    const Note* note = noteOf(id);
    if (!note) return;
    const double length = std::max(double(note->durationNs), canvas_->scene().window.size() / 4);
    const double centre = double(note->startNs) + double(note->durationNs) / 2;
    canvas_->zoomTo({centre - length, centre + length});
}

void TimelineView::takeNotes(const std::vector<Note>& notes, bool canUndo, const QString& problem) {
    if (!problem.isEmpty()) {
        panel_->show();
        panel_->setCurrentIndex(2);
    }
    panel_->showNoteUndo(canUndo);
    panel_->showNoteProblem(problem);
    panel_->showNotes(notes);
    canvas_->data().notes = notes;
    canvas_->dataChanged();
}

} // namespace kvscope::ui
