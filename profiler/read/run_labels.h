// What a person calls a run and says of it: a name of its own, a note, tags, whether it is pinned. Kept in the trace
// itself (key `labels` of run_meta), beside what was recorded.
#pragma once

#include <string>
#include <vector>

namespace kvscope {

struct RunRow;

struct RunLabels {
    std::string name; // empty: the recorded name
    std::string note;
    std::vector<std::string> tags; // in alphabetical order, without duplicates
    bool pinned = false;
    bool operator==(const RunLabels&) const = default;
};

/// The labels that a run has; none where the key is missing or damaged.
RunLabels labelsOf(const RunRow& run);
/// The JSON object as the trace keeps it; empty: no label is set.
std::string toJson(const RunLabels& labels);
/// As labelsOf, of the text of the key.
RunLabels parseRunLabels(const std::string& json);

/// Opens the trace for writing, changes one row and closes it; the trace may be read, and recorded, meanwhile. Not for
/// the GUI thread: a recorder may hold the lock a moment.
/// @throws Error(BadInput) for a run that is not there, or labels that are too long; Error(Storage) with a sentence
/// when the file or its folder cannot be written
void setLabels(const std::string& path, int runId, const RunLabels& labels);

} // namespace kvscope
