// Converts timelines that other tools recorded into traces: Nsight Systems' SQLite export and Chrome/Perfetto
// trace-event JSON. openTrace (read/open_trace.h) calls importIntoCache, so that every view, command and report opens
// such a file like a .kvtrace.
#pragma once

#include "base/progress.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

class TimelineBuilder;

/// What an importer says about the file as a whole.
struct ImportedFacts {
    std::string source;                   // the tool that recorded the file: "Nsight Systems 2026.2.1"
    std::string device;                   // GPU names; empty: unknown
    std::string recordedUtc;              // ISO 8601; empty: unknown
    std::optional<std::int64_t> originNs; // the file's time that becomes 0 in the run; absent: the earliest event's
    std::vector<std::string> remarks;     // warnings of the recording tool, as sentences to show
};

/// A format of another tool. Adding one takes a file in this folder, its two functions in importers.h and a line in
/// registry.cpp.
struct ImportFormat {
    const char* id;    // "nsight", "trace-events"
    const char* title; // the name shown in messages
    /// Whether the file is of this format, judged by its content and never by its name. `head`: the first bytes of the
    /// file. Never throws.
    bool (*recognises)(const std::string& path, std::string_view head);
    ImportedFacts (*read)(const std::string& path, TimelineBuilder& timeline, const Progress& progress,
                          const std::stop_token& stop);
};
const std::vector<ImportFormat>& importFormats();

/// The format in which `path` can be imported; null if there is none, as for a .kvtrace. Reads only the head of the
/// file, except where a format has to open it to decide.
const ImportFormat* findImportFormat(const std::string& path);

struct ImportResult {
    std::string source, status; // status: the run's status message, which names the source and the losses
    std::int64_t spans = 0, counters = 0, flows = 0;
    std::vector<std::string> remarks; // one sentence for each kind of loss and for each warning
};

/// Converts `path` into the new trace `out`, which appears only when it is complete.
/// @throws Error(BadInput): the file is damaged or holds nothing to import. Error(Storage): the file cannot be read or
/// the disk is full. Error(Cancelled), Error(Unsupported). After any of them `out` is as it was before the call.
ImportResult importTrace(const std::string& path, const std::string& out, const Progress& progress = {},
                         const std::stop_token& stop = {});

/// Converts the file into a trace in the user's cache, the folder kvscope/imports below XDG_CACHE_HOME or else below
/// ~/.cache. Later calls find that trace again as long as the file's path, size and time of change stay the same. Each
/// conversion removes the oldest traces of the cache beyond its limits. @return the path of the trace. @throws Error as
/// importTrace
std::string importIntoCache(const std::string& path, const Progress& progress = {}, const std::stop_token& stop = {});
/// Whether importIntoCache would have to convert the file, which takes a while.
bool needsImport(const std::string& path);

/// The name that imported runs carry as their backend and as their method.
inline constexpr const char* kImported = "imported";

} // namespace kvscope
