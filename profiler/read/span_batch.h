// Reads what the timeline shows, a piece at a time: the first picture comes early, and a growing run is read on from
// where the last read ended. The rows are those of v_span and v_transfer, computed here because the views' unions would
// scan the layers fifteen times.
#pragma once

#include "base/indexed.h"
#include "profiler/read/link_clock.h"
#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kvscope {

/// A span as read; `track` and `name`, the name as it is shown, are indices into SpanBatch::texts.
struct SpanRow {
    std::int64_t startNs = 0, durationNs = 0;
    std::int32_t track = 0, name = 0, step = -1, layer = -1, depth = 0;
};

/// How far a run is read.
struct SpanPosition {
    std::int64_t step = -1;  // number of the last step read
    std::int64_t layer = -1; // key of the last layer_step row read; -1: none
    int stages = -1;         // last step whose stages outside the layers were given; they go with its layers
    std::int64_t span = std::numeric_limits<std::int64_t>::min(); // id of the last row of `span` looked at
    /// The clock of the transfers; found with the first rows and kept, so that a track has one clock.
    std::optional<LinkClock> clock;
};

/// The parts of a shown name, beside the name proper.
struct SpanNameFields {
    std::string stage;       // empty: none
    std::int64_t bytes = -1; // -1: not known
};

struct SpanBatch {
    Numbered<std::string> texts;
    std::unordered_map<std::int32_t, SpanNameFields> fields; // of names that have any, by index in `texts`
    std::vector<SpanRow> spans;
    std::vector<StepRow> steps; // with their spans at depth 0
    SpanPosition next;          // where the next read begins
    bool atEnd = false;         // there was nothing more at this moment
    double fraction = 0;        // of the run's rows read so far, estimated from keys, 0..1
};

/// Names of the tracks that KVScope computes from steps and layers.
inline constexpr const char* kHostTrack = "host";
/// Names of the link's tracks begin with these words, and say behind them, in brackets, whose clock the times are on:
/// "... (CUPTI's clock)".
inline constexpr std::string_view kToDeviceTrack = "link, host to device";
inline constexpr std::string_view kToHostTrack = "link, device to host";
std::string linkTrack(std::string_view kind, const LinkClock& clock);
bool isLinkTrack(std::string_view track, std::string_view kind);
inline constexpr const char* kToDeviceName = "to device";
inline constexpr const char* kToHostName = "to host";

/// About `rows` rows after `from`: all new steps first, then layers, then the spans of other sources. Durations below
/// zero are read as 0 and times are cut to +-2^53 ns, so that a damaged file cannot upset arithmetic.
/// @throws Error(BadInput): no such run, damaged; Error(Cancelled)
SpanBatch readSpans(const TraceReader& reader, int runId, const SpanPosition& from, int rows);

} // namespace kvscope
