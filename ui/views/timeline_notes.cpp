// Notes and bookmarks: left, changed, taken back and gone to from the timeline; kept in the trace.
#include "kernels/base/error.h"
#include "ui/models/format.h"
#include "ui/timeline/time_ticks.h"
#include "ui/views/note_watch.h"
#include "ui/views/timeline_view.h"

#include <QInputDialog>
#include <QLineEdit>

#include <algorithm>

namespace kvscope::ui {

void TimelineView::connectNotes() {
    connect(canvas_, &TimelineCanvas::noteRequested, this, [this] { askNote(); });
    connect(panel_, &TimelinePanel::noteAddRequested, this, [this] { askNote(); });
    connect(panel_, &TimelinePanel::noteChosen, this, &TimelineView::showNote);
    connect(panel_, &TimelinePanel::noteFitRequested, this, &TimelineView::fitNote);
    connect(panel_, &TimelinePanel::noteEditRequested, this, &TimelineView::editNote);
    connect(panel_, &TimelinePanel::noteRemoveRequested, this, &TimelineView::removeTheNote);
    connect(panel_, &TimelinePanel::noteUndoRequested, this, &TimelineView::undoNote);
    connect(&NoteWatch::instance(), &NoteWatch::changed, this, [this](const QString& trace, const QObject* by) {
        const OpenRun* run = workspace_.current();
        if (by != this && run && run->key.path == trace) readTheNotes();
    });
}

const Note* TimelineView::noteOf(qint64 id) const {
    for (const Note& note : canvas_->data().notes)
        if (note.id == id) return &note;
    return nullptr;
}

bool TimelineView::isSeen(SpanRef ref) const {
    const IndexedSpan span = canvas_->data().index.at(ref);
    return TimeRange{double(span.startNs), double(std::max(span.endNs(), span.startNs + 1))}.meets(
        canvas_->scene().window);
}

void TimelineView::askNote(std::optional<double> ns) {
    const TimelineScene& scene = canvas_->scene();
    const OpenRun* run = workspace_.current();
    if (!run || !isShowing()) return;
    Note note;
    note.runId = run->key.runId;
    if (ns) {
        note.startNs = std::int64_t(*ns);
    } else if (scene.range && scene.range->meets(scene.window)) { // nobody means what is not seen
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
    write([note](const std::string& path) -> NoteChange {
        const std::int64_t id = addNote(path, note);
        return [id](const std::string& trace) { removeNote(trace, id); };
    });
}

void TimelineView::editNote(qint64 id) {
    const Note* note = noteOf(id);
    if (!note) return;
    bool accepted = false;
    const std::string before = note->text;
    const QString text = QInputDialog::getText(this, tr("Note"), tr("Text"), QLineEdit::Normal,
                                               QString::fromStdString(before), &accepted);
    if (!accepted || text.toStdString() == before) return;
    write([id, before, after = text.toStdString()](const std::string& path) -> NoteChange {
        changeNote(path, id, after);
        return [id, before](const std::string& trace) { changeNote(trace, id, before); };
    });
}

void TimelineView::removeTheNote(qint64 id) {
    const Note* note = noteOf(id);
    if (!note) return;
    write([note = *note](const std::string& path) -> NoteChange {
        removeNote(path, note.id);
        return [note](const std::string& trace) { addNote(trace, note); };
    });
}

void TimelineView::undoNote() {
    if (noteUndo_.empty()) return;
    const NoteChange undo = std::move(noteUndo_.back());
    noteUndo_.pop_back();
    panel_->showNoteUndo(!noteUndo_.empty());
    write([undo](const std::string& path) -> NoteChange {
        undo(path);
        return {};
    });
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

void TimelineView::write(std::function<NoteChange(const std::string& path)> change) {
    struct Answer {
        std::vector<Note> notes;
        QString problem;
        NoteChange undo;
    };
    const OpenRun* run = workspace_.current();
    if (!run) return;
    const std::string slot = "notes " + std::to_string(++noteRequests_);
    workspace_.query<Answer>(
        this, slot.c_str(), run->key,
        [runId = run->key.runId, change](TraceReader& reader) {
            Answer answer;
            try {
                if (change) answer.undo = change(reader.path());
            } catch (const Error& error) {
                answer.problem = QString::fromStdString(oneLine(error));
            }
            answer.notes = readNotes(reader, runId);
            return answer;
        },
        [this, key = run->key, changed = bool(change)](Answer answer) {
            if (changed && answer.problem.isEmpty()) emit NoteWatch::instance().changed(key.path, this);
            if (!workspace_.current() || workspace_.current()->key != key) return;
            if (!answer.problem.isEmpty()) {
                panel_->show();
                panel_->setCurrentIndex(2);
            }
            if (answer.undo) noteUndo_.push_back(std::move(answer.undo));
            panel_->showNoteUndo(!noteUndo_.empty());
            panel_->showNoteProblem(answer.problem);
            panel_->showNotes(answer.notes);
            canvas_->data().notes = std::move(answer.notes);
            canvas_->dataChanged();
        });
}

} // namespace kvscope::ui
