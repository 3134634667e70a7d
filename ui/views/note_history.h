// A change of a run's notes, what takes it back, and those that can be taken back.
#pragma once

#include "profiler/read/notes.h"

#include <string>
#include <vector>

namespace kvscope::ui {

struct NoteStep {
    enum class Kind { Add, Change, Remove };
    Kind kind = Kind::Add;
    Note note;        // what is added; else as it is in the trace
    std::string text; // Change: what it shall say
};

/// Writes it. Not for the GUI thread. @return what takes it back @throws Error as the functions of notes.h
NoteStep makeStep(const NoteStep& step, const std::string& path);

class NoteHistory {
public:
    bool empty() const { return undo_.empty(); }
    void clear() { undo_.clear(); }
    const NoteStep& last() const { return undo_.back(); }
    void push(NoteStep undo) { undo_.push_back(std::move(undo)); }
    /// Drops the last step, which can never be made because the note was changed elsewhere.
    void dropLast() { undo_.pop_back(); }
    /// The last step was made, `inverse` is what makeStep() said of it. A note that came back under another id has that
    /// id in the older steps too.
    void lastWasMade(const NoteStep& inverse);

private:
    std::vector<NoteStep> undo_; // the last change last
};

} // namespace kvscope::ui
