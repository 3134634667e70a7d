// What the traces of a folder say of themselves, without opening them: a line per run.
#pragma once

#include "base/progress.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace kvscope {

struct ListedRun {
    int runId = 0;
    std::string name, createdUtc, model, method; // name: the one that a label gives, where there is one
    std::string engine;                          // program that decoded; empty: the trace does not say
    std::string status;  // word of the trace, or "interrupted": it says "running", and its writer is gone
    std::string group;   // the same text in the traces of all ranks of one run; empty: none
    int steps = 0;       // the last recorded step's number + 1
    int iterations = 0;  // likewise, of a run that served requests, whose steps are some of its iterations
    int promptSteps = 1; // how many of them read prompts only: more than step 0 where prompts are read in pieces
    std::optional<int> rank;
    bool pinned = false; // by a label
    /// The number of steps that people are told: step 0, the prompt, does not count. Dropped steps before the last one
    /// do.
    int decodeSteps() const { return steps > promptSteps ? steps - promptSteps : 0; }
};

struct ListedTrace {
    std::string file; // name in its folder
    std::string path;
    std::int64_t bytes = 0;
    std::vector<ListedRun> runs;
    std::string problem; // one sentence: why the file cannot be read. Empty: it was read
};

/// The most levels of subfolders that are looked into.
inline constexpr int kDeepestFolder = 64;

/// Paths of the files of a folder that are traces by their name (*.kvtrace) or their content, in the order of paths.
/// depth: levels of subfolders that are looked into as well; links to folders are not followed, and a subfolder that
/// cannot be read is among the paths itself, so that listTrace says why.
/// @throws Error(Storage): the folder cannot be read; Error(Cancelled)
std::vector<std::string> tracesOfFolder(const std::string& folder, const std::stop_token& stop = {}, int depth = 0);
/// The path as seen from the folder: "rank0.kvtrace", "monday/rank0.kvtrace".
std::string pathWithin(const std::string& folder, const std::string& path);

/// Reads the tables of runs of one file, and nothing of its steps but the last one's number. Never throws.
ListedTrace listTrace(const std::string& path);

/// Reads the files on one thread per core. `found` is called as they are read, in any order and by one thread at a
/// time, with the file's place in `paths`. @throws Error(Cancelled)
void listTraces(const std::vector<std::string>& paths,
                const std::function<void(std::size_t place, ListedTrace trace)>& found, const Progress& progress = {},
                const std::stop_token& stop = {});

} // namespace kvscope
