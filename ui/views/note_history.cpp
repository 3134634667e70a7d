#include "ui/views/note_history.h"

#include <utility>

namespace kvscope::ui {

NoteStep makeStep(const NoteStep& step, const std::string& path) {
    switch (step.kind) {
    case NoteStep::Kind::Add:
        return {NoteStep::Kind::Remove, addNote(path, step.note), {}};
    case NoteStep::Kind::Remove:
        removeNote(path, step.note);
        return {NoteStep::Kind::Add, step.note, {}};
    case NoteStep::Kind::Change:
        break;
    }
    changeNote(path, step.note, step.text);
    Note changed = step.note;
    changed.text = step.text;
    return {NoteStep::Kind::Change, std::move(changed), step.note.text};
}

void NoteHistory::lastWasMade(const NoteStep& inverse) {
    const NoteStep made = std::move(undo_.back());
    undo_.pop_back();
    if (made.kind != NoteStep::Kind::Add) return;
    const Note& before = made.note;
    for (NoteStep& older : undo_) { // the note's text may have been another one then
        Note& note = older.note;
        if (note.id == before.id && note.runId == before.runId && note.startNs == before.startNs &&
            note.durationNs == before.durationNs && note.createdUtc == before.createdUtc)
            note.id = inverse.note.id;
    }
}

} // namespace kvscope::ui
