// One event of a Chrome trace as it stands in the file, and the parser that hands over event after event without
// holding the whole document.
#pragma once

#include "base/json_text.h"

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvscope {

/// A field that the event does not have is empty. The parser refills one object for every event, so that the memory of
/// the texts is reused.
struct TraceEvent {
    static constexpr std::size_t kLongestArgs = std::size_t(64) << 10; // bytes
    std::string phase, name, category, process, thread, id, localId, bindId, bindPoint, scope;
    std::optional<std::int64_t> timeNs, durationNs; // absent: missing, or not a usable number
    bool badTime = false;                           // one of the two was there but was not a usable number
    bool flowIn = false, flowOut = false;
    std::string givenName;                               // args.name: the name that a metadata event gives
    std::int32_t step = -1, layer = -1;                  // args.step and args.layer, which KVScope writes
    std::vector<std::pair<std::string, double>> numbers; // the first 64 args that are numbers or numeric texts
    JsonText args{kLongestArgs};                         // the args as JSON, without step and layer

    void clear();
};

/// Turns a JSON number of microseconds into nanoseconds, exactly to the third digit after the point and rounded by the
/// fourth. Absent if the text is no number or the result does not fit into 64 bits.
std::optional<std::int64_t> nanosecondsOf(std::string_view micros);

struct TraceEventFile {
    std::string producer; // otherData.producer
    bool sawEvents = false;
};

/// Calls `take` for every event of a document, which is an object with a list "traceEvents" or a bare list; the closing
/// bracket of a bare list may be missing. @throws Error(BadInput) with `path` and the byte where the JSON breaks off,
/// and what `take` throws
TraceEventFile readTraceEventFile(std::istream& in, const std::string& path,
                                  const std::function<void(const TraceEvent&)>& take);

} // namespace kvscope
