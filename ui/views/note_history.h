// Changes of a run's notes. Each change gives the change that takes it back; a history keeps those for undo.
#pragma once

#include "profiler/read/notes.h"

#include <string>
#include <vector>

namespace kvscope::ui {

struct NoteStep {
    enum class Kind { Add, Change, Remove };
    Kind kind = Kind::Add;
    Note note;        // Add: the new note; Change and Remove: the note as it is in the trace
    std::string text; // Change: the note's new text
};

/// Makes the change. Not for the GUI thread. @return the change that takes it back. @throws Error as the functions of
/// notes.h
NoteStep makeStep(const NoteStep& step, const std::string& path);

class NoteHistory {
public:
    bool empty() const { return undo_.empty(); }
    void clear() { undo_.clear(); }
    const NoteStep& last() const { return undo_.back(); }
    void push(NoteStep undo) { undo_.push_back(std::move(undo)); }
    /// Drops the last step, which can never be made because the note was changed elsewhere.
    void dropLast() { undo_.pop_back(); }
    /// The last step was made; `inverse` is what makeStep() returned. A note that came back under another id gets that
    /// id in the older steps too.
    void lastWasMade(const NoteStep& inverse);

private:
    std::vector<NoteStep> undo_; // the last change last
};

} // namespace kvscope::ui
