// Chrome trace events as Perfetto's viewer wants them: named processes and threads, slices of one thread either nested
// or apart, flows bound to slices.
#pragma once

#include "profiler/export/line_writer.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvscope {

/// A process and a thread of the document; threads that need more than one lane have consecutive numbers from theirs
/// on.
struct EventTrack {
    int process = 0, thread = 0;
};

class ChromeEvents {
public:
    /// `originNs` becomes the document's time zero: Perfetto drops what lies before it.
    explicit ChromeEvents(LineWriter& writer, std::int64_t originNs = 0) : writer_(writer), originNs_(originNs) {}

    void nameProcess(int process, std::string_view name, int order);
    /// The number of the process's thread of this name, which is made when it is first asked for. Slices go to threads.
    int thread(int process, std::string_view name);

    struct Slice {
        int process = 0, thread = 0;
        std::string_view category, name;
        std::int64_t startNs = 0, durationNs = 0;
        std::int64_t step = -1, layer = -1; // -1: not written
        std::int64_t bytes = -1;
        std::string_view args{}; // further arguments, as a JSON object; empty: none
    };
    /// Adds a slice. The slices of a thread come by start, outer ones first. A slice that would overlap another one
    /// without lying inside it goes to the thread's next lane. @return the track that it went to
    EventTrack slice(const Slice& slice);
    /// A value that holds until the next one. Perfetto calls the track by its name and its unit.
    void counter(int process, std::string_view name, std::string_view unit, std::int64_t timeNs, double value);
    /// A rate or an amount of an interval. Viewers hold a value until the next one and know no absent one: where the
    /// next interval of this counter begins later than this one ends, 0 stands in between.
    void counterOf(int process, std::string_view name, std::string_view unit, std::int64_t startNs, std::int64_t endNs,
                   double value);
    /// An arrow between two slices that were written: from a moment of one to the start of the other, not before it.
    void flow(std::string_view kind, EventTrack from, std::int64_t fromNs, EventTrack to, std::int64_t toNs);
    /// One end of an arrow whose other end comes under the same number.
    void flowEnd(std::string_view kind, std::uint64_t number, bool isStart, EventTrack at, std::int64_t timeNs);
    /// Ends every counter: that of an interval with 0 where its last one ends, any other with its value at this moment,
    /// because viewers draw a value only up to the next one.
    void closeCounters(std::int64_t timeNs);

    std::int64_t events() const { return events_; }

private:
    struct Lane {
        int thread = 0;
        std::vector<std::int64_t> ends; // of the slices that are open, outermost first
    };
    struct Thread {
        std::string name;
        std::vector<Lane> lanes;
    };
    struct Last {
        std::string unit;
        std::int64_t timeNs = 0;
        double value = 0;
        std::optional<std::int64_t> endNs; // of an interval
    };
    void begin(char phase, int process, int thread);
    void startTime(std::int64_t ns);
    void time(std::string_view key, std::int64_t ns);
    int addLane(int process, Thread& thread);

    LineWriter& writer_;
    std::int64_t originNs_ = 0;
    std::map<std::pair<int, std::string>, int> numbers_; // of threads, by process and name
    std::map<std::pair<int, int>, Thread> threads_;      // by process and number
    std::map<std::pair<int, std::string>, Last> counters_;
    std::uint64_t lastFlow_ = 0;
    int lastThread_ = 0;
    std::int64_t events_ = 0;
};

} // namespace kvscope
