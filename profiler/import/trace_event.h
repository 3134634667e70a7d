// One event of a Chrome trace as it stands in the file, and the parser that finds them without holding the document.
#pragma once

#include "profiler/export/json_text.h"

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvscope {

/// Fields that are not there are empty. Kept and refilled from event to event: the texts' memory is reused.
struct TraceEvent {
    static constexpr std::size_t kLongestArgs = std::size_t(64) << 10; // bytes
    std::string phase, name, category, process, thread, id, localId, bindId, bindPoint, scope;
    std::optional<std::int64_t> timeNs, durationNs; // absent: missing or no number
    bool badTime = false;                           // there was one, but not a usable number
    bool flowIn = false, flowOut = false;
    std::string givenName;                               // args.name, of metadata
    std::int32_t step = -1, layer = -1;                  // args, as KVScope writes them
    std::vector<std::pair<std::string, double>> numbers; // args that are numbers or numeric texts; at most 64
    JsonText args{kLongestArgs};                         // as they stand, without step and layer

    void clear();
};

/// Microseconds as JSON writes them, to whole nanoseconds; every digit counts up to the third after the point. Absent:
/// no number, or beyond what 64 bits hold.
std::optional<std::int64_t> nanosecondsOf(std::string_view micros);

struct TraceEventFile {
    std::string producer; // otherData.producer
    bool sawEvents = false;
};

/// Calls `take` for every event of a document in object or array form; the closing bracket of the array form may be
/// missing. @throws Error(BadInput) naming `path` and the byte where it ends being JSON, and what `take` throws
TraceEventFile readTraceEventFile(std::istream& in, const std::string& path,
                                  const std::function<void(const TraceEvent&)>& take);

} // namespace kvscope
