// Timelines that other tools recorded, as traces: Nsight Systems' SQLite export and Chrome/Perfetto trace-event JSON.
// openTrace (read/open_trace.h) calls this, so that every view, command and report opens them like a .kvtrace.
#pragma once

#include "core/model/progress.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

class TimelineBuilder;

/// What an importer says about the file as a whole.
struct ImportedFacts {
    std::string source;                   // "Nsight Systems 2026.2.1": what the run is said to be imported from
    std::string device;                   // GPU names; empty: unknown
    std::string recordedUtc;              // ISO 8601; empty: unknown
    std::optional<std::int64_t> originNs; // where the run's clock begins; absent: at the earliest event
    std::vector<std::string> remarks;     // sentences a person should read: warnings of the recording tool
};

/// A foreign format: one file of this folder, one line in registry.cpp.
struct ImportFormat {
    const char* id;    // "nsight", "trace-events"
    const char* title; // as in "imported from ..."
    /// Looks at the content, never at the name. `head`: the first bytes of the file. Never throws.
    bool (*recognises)(const std::string& path, std::string_view head);
    ImportedFacts (*read)(const std::string& path, TimelineBuilder& timeline, const Progress& progress,
                          const std::stop_token& stop);
};
const std::vector<ImportFormat>& importFormats();

/// The format of a file that is no trace of ours but can be imported; null: none. Reads the head of the file only.
const ImportFormat* findImportFormat(const std::string& path);

struct ImportResult {
    std::string source, status; // the run's status message: where it comes from and what was lost
    std::int64_t spans = 0, counters = 0, flows = 0;
    std::vector<std::string> remarks; // losses and warnings, a sentence each
};

/// Converts `path` into the new trace `out`, which appears only when it is complete.
/// @throws Error(BadInput | Storage | Cancelled | Unsupported): nothing to import, damaged, no space; `out` is then as
/// before
ImportResult importTrace(const std::string& path, const std::string& out, const Progress& progress = {},
                         const std::stop_token& stop = {});

/// The imported file as a trace in the user's cache (XDG_CACHE_HOME, else ~/.cache; kvscope/imports), converted on the
/// first call for this content. Old ones are removed. @return its path. @throws Error as importTrace
std::string importIntoCache(const std::string& path, const Progress& progress = {}, const std::stop_token& stop = {});
/// Whether importIntoCache would convert, i.e. take a while.
bool needsImport(const std::string& path);

/// backend and method of imported runs.
inline constexpr const char* kImported = "imported";

} // namespace kvscope
