// Notes and bookmarks: left, changed, taken back and gone to from the timeline; kept in the trace.
#include "base/error.h"
#include "ui/models/format.h"
#include "ui/timeline/time_ticks.h"
#include "ui/views/note_watch.h"
#include "ui/views/timeline/timeline_view.h"

#include <QInputDialog>
#include <QLineEdit>
#include <QPointer>

#include <algorithm>
#include <memory>
#include <utility>

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
    ask({NoteTask::Kind::Write, key, {NoteStep::Kind::Add, std::move(note), {}}});
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
    if (accepted && text != note.text) ask({NoteTask::Kind::Write, key, {NoteStep::Kind::Change, note, text}});
}

void TimelineView::removeTheNote(qint64 id) {
    const OpenRun* run = workspace_.current();
    const Note* note = noteOf(id);
    if (run && note) ask({NoteTask::Kind::Write, run->key, {NoteStep::Kind::Remove, *note, {}}});
}

void TimelineView::undoNote() {
    if (const OpenRun* run = workspace_.current()) ask({NoteTask::Kind::Undo, run->key, {}});
}

void TimelineView::readTheNotes() {
    if (const OpenRun* run = workspace_.current()) ask({NoteTask::Kind::Read, run->key, {}});
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

struct TimelineView::NoteAnswer {
    std::vector<Note> notes;
    std::optional<NoteStep> inverse; // something was written
    QString problem;
    bool isOver = false; // the note is another by now: trying again is no use
};

void TimelineView::ask(NoteTask task) {
    noteTasks_.push_back(std::move(task));
    if (noteRequest_ == 0) startNoteTask();
}

void TimelineView::startNoteTask() {
    noteRequest_ = 0;
    while (!noteTasks_.empty() && noteRequest_ == 0) {
        NoteTask task = std::move(noteTasks_.front());
        noteTasks_.pop_front();
        const bool shown = workspace_.current() && workspace_.current()->key == task.run;
        if (task.kind == NoteTask::Kind::Undo && shown && !noteHistory_.empty())
            task.step = noteHistory_.last();
        else if (task.kind != NoteTask::Kind::Write && (task.kind == NoteTask::Kind::Undo || !shown))
            continue;
        noteRequest_ = ++noteRequests_;
        // Destroyed with the request, so that a request which failed, or whose file cannot be opened, counts as
        // answered.
        std::shared_ptr<void> turn(nullptr, [view = QPointer(this), request = noteRequest_](void*) {
            if (!view) return;
            const auto goOn = [view, request] {
                if (view && view->noteRequest_ == request) view->startNoteTask();
            };
            QMetaObject::invokeMethod(view.data(), goOn, Qt::QueuedConnection);
        });
        workspace_.query<NoteAnswer>(
            this, "notes", task.run,
            [task](TraceReader& reader) {
                NoteAnswer answer;
                try {
                    if (task.kind != NoteTask::Kind::Read) answer.inverse = makeStep(task.step, reader.path());
                } catch (const Error& error) {
                    answer.problem = QString::fromStdString(oneLine(error));
                    answer.isOver = error.kind == ErrorKind::BadInput;
                }
                answer.notes = readNotes(reader, task.run.runId);
                return answer;
            },
            [this, task, turn](NoteAnswer answer) {
                takeNotes(task, std::move(answer));
                startNoteTask();
            });
    }
}

void TimelineView::takeNotes(const NoteTask& task, NoteAnswer answer) {
    if (answer.inverse) emit NoteWatch::instance().changed(task.run.path, this);
    if (!workspace_.current() || workspace_.current()->key != task.run) {
        if (!answer.problem.isEmpty()) emit workspace_.failed(answer.problem); // the list of notes is out of sight
        return;
    }
    if (!answer.problem.isEmpty()) {
        panel_->show();
        panel_->setCurrentIndex(2);
    }
    if (task.kind == NoteTask::Kind::Write && answer.inverse) noteHistory_.push(std::move(*answer.inverse));
    // otherwise the run was opened anew meanwhile
    else if (task.kind == NoteTask::Kind::Undo && !noteHistory_.empty()) {
        if (answer.inverse)
            noteHistory_.lastWasMade(*answer.inverse);
        else if (answer.isOver)
            noteHistory_.dropLast();
    }
    panel_->showNoteUndo(!noteHistory_.empty());
    panel_->showNoteProblem(answer.problem);
    panel_->showNotes(answer.notes);
    canvas_->data().notes = std::move(answer.notes);
    canvas_->dataChanged();
}

} // namespace kvscope::ui
