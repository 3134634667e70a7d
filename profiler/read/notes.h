// Notes and bookmarks that a person leaves on the time of a run, kept in the trace itself (table `note`).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvscope {

class TraceReader;

struct Note {
    std::int64_t id = 0; // given by the trace
    int runId = 0;
    std::int64_t startNs = 0, durationNs = 0; // on the run's clock; duration 0: a moment
    std::string text;                         // empty: a bookmark
    std::string createdUtc;                   // given when it is written
};

/// The notes of one run in the order of time; none where the trace has no such table. @throws Error(BadInput |
/// Cancelled)
std::vector<Note> readNotes(const TraceReader& reader, int runId);

/// Each opens the trace for writing, changes one row and closes it; the trace may be read, and recorded, meanwhile.
/// Traces written before there were notes get the table. Not for the GUI thread: a recorder may hold the lock a moment.
/// @throws Error(Storage) with a sentence when the file or its folder cannot be written
/// A note that was removed comes back under its own id, if that is still free, and with its own time.
Note addNote(const std::string& path, const Note& note); // @return it as it is kept, with its id and time
/// Changes a note. `note` is the row as it was read: ids are given again, so that a different row under the id is
/// another note.
/// @throws Error(BadInput) where the row is not there any more; then nothing is changed
void changeNote(const std::string& path, const Note& note, const std::string& text);
void removeNote(const std::string& path, const Note& note);

} // namespace kvscope
