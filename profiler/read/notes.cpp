#include "profiler/read/notes.h"

#include "base/error.h"
#include "profiler/format/trace_keys.h"
#include "profiler/read/own_views.h"
#include "profiler/read/reader_impl.h"

#include <cerrno>
#include <fmt/format.h>
#include <unistd.h>

namespace kvscope {
namespace {

// This statement is also in resources/sql/schema.sql; a test compares the two.
constexpr const char* kTable = "CREATE TABLE IF NOT EXISTS note ("
                               "id INTEGER PRIMARY KEY, run_id INTEGER NOT NULL, start_ns INTEGER NOT NULL,"
                               "duration_ns INTEGER NOT NULL, text TEXT NOT NULL, created_utc TEXT NOT NULL) STRICT";

/// Asks the system first: SQLite would find out only after it has made a journal, and opening must not create a file.
Connection openForNotes(const std::string& path) {
    if (access(path.c_str(), F_OK) != 0)
        throw Error(ErrorKind::Storage, fmt::format("the trace {} is no longer there", path), "open it again");
    if (access(path.c_str(), W_OK) != 0)
        throw Error(ErrorKind::Storage,
                    fmt::format("the note was not kept: {} cannot be written: {}", path,
                                errno == EROFS ? "its file system is read-only" : "permission denied"),
                    "copy the trace to a folder of yours and open the copy");
    Connection connection(path, Connection::Mode::ReadWrite);
    if (connection.integer("PRAGMA application_id") != trace::kApplicationId)
        throw Error(ErrorKind::Storage, fmt::format("{} is not a KVScope trace", path), "open a .kvtrace file");
    return connection;
}

template <class Change> void change(const std::string& path, const Change& change) {
    try {
        Connection connection = openForNotes(path);
        connection.execute("BEGIN IMMEDIATE");
        connection.execute(kTable);
        change(connection);
        connection.execute("COMMIT"); // without it, closing rolls back
    } catch (const Error& error) {
        if (error.kind != ErrorKind::Storage || std::string_view(error.what()).starts_with("the note")) throw;
        throw Error(ErrorKind::Storage, fmt::format("the note was not kept: {}", error.what()), error.hint);
    }
}

/// The text of a note as readers get it, in SQL: cut where it is too long (own_views.h).
std::string shownText() {
    return fmt::format("CASE WHEN length(text) > {0} THEN substr(text, 1, {0}) || '…' ELSE text END", kLongestName);
}

/// Checks that the note is still in the file as the caller has read it. Call it inside the transaction of the change,
/// so that nobody can change the note in between. @throws Error(BadInput)
void requireRow(Connection& connection, const Note& note) {
    Statement row(connection, "SELECT 1 FROM note WHERE id=? AND run_id=? AND start_ns=? AND duration_ns=? AND " +
                                  shownText() + "=? AND created_utc=?");
    row.bindAll(note.id, note.runId, note.startNs, note.durationNs, std::string_view(note.text),
                std::string_view(note.createdUtc));
    if (!row.step())
        throw Error(ErrorKind::BadInput, "the note was changed elsewhere", "look at what it says now, then change it");
}

} // namespace

std::vector<Note> readNotes(const TraceReader& reader, int runId) {
    Connection& connection = *ReaderAccess::of(reader).connection;
    // An older trace gets its table of notes with the first note, possibly while it is open here. The table of the file
    // itself is asked for, because the reader's own empty table of that name (useOwnViews) would hide it.
    if (connection.integer("SELECT count(*) FROM main.sqlite_schema WHERE type='table' AND rootpage > 0 AND"
                           " name='note'") == 0)
        return {};
    Statement rows(connection, "SELECT id, run_id, start_ns, duration_ns, " + shownText() +
                                   ", created_utc FROM main.note WHERE run_id=? ORDER BY start_ns, id");
    rows.bind(1, runId);
    std::vector<Note> notes;
    while (rows.step())
        notes.push_back({rows.int64(0), rows.int32(1), rows.int64(2), rows.int64(3), std::string(rows.text(4)),
                         std::string(rows.text(5))});
    return notes;
}

Note addNote(const std::string& path, const Note& note) {
    Note kept = note;
    change(path, [&](Connection& connection) {
        Statement insert(connection,
                         "INSERT INTO note(id, run_id, start_ns, duration_ns, text, created_utc) VALUES"
                         " ((SELECT ?1 WHERE ?1 > 0 AND NOT EXISTS (SELECT 1 FROM note WHERE id = ?1)), ?2, ?3, ?4, ?5,"
                         " coalesce(nullif(?6, ''), strftime('%Y-%m-%dT%H:%M:%SZ','now')))");
        insert
            .bindAll(note.id, note.runId, note.startNs, note.durationNs, std::string_view(note.text),
                     std::string_view(note.createdUtc))
            .run();
        Statement row(connection, "SELECT id, created_utc FROM note WHERE id = last_insert_rowid()");
        row.step();
        kept.id = row.int64(0);
        kept.createdUtc = row.text(1);
    });
    return kept;
}

void changeNote(const std::string& path, const Note& note, const std::string& text) {
    change(path, [&](Connection& connection) {
        requireRow(connection, note);
        Statement(connection, "UPDATE note SET text=? WHERE id=?").bindAll(std::string_view(text), note.id).run();
    });
}

void removeNote(const std::string& path, const Note& note) {
    change(path, [&](Connection& connection) {
        requireRow(connection, note);
        Statement(connection, "DELETE FROM note WHERE id=?").bindAll(note.id).run();
    });
}

} // namespace kvscope
