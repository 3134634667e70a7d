// Where the time of a stretch of a run went: per name, the time that no span nested inside claims.
#pragma once

#include "profiler/read/span_index.h"

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvscope {

struct SelfTime {
    std::string track, name;
    std::uint32_t spans = 0;                             // that meet the range
    std::int64_t selfNs = 0, totalNs = 0, longestNs = 0; // cut to the range
};

enum class SelfTimeBy {
    Name,     // every name of every track: kernels apart
    Component // SpanIndex::components: kernels by the stage they were launched for
};

/// Adds up [fromNs, toNs) of an index piece by piece, so that millions of spans block no thread for long. On one track,
/// spans at depth d + 1 are inside those at depth d; spans that overlap others of their track and depth have no
/// children. Spans that `keep` refuses are not counted, and their time is still no self time of the span around them.
/// The index must outlive the sum and may grow meanwhile; spans that are added behind the others are left out. When its
/// moves() have changed, places in it mean other spans, and the sum has to begin again.
class SelfTimeSum {
public:
    SelfTimeSum(const SpanIndex& index, std::int64_t fromNs, std::int64_t toNs, SelfTimeBy by,
                std::function<bool(const TimelineSpan&)> keep = {});
    /// Looks at about so many more spans. @return true: all are added up
    bool advance(std::size_t spans);
    std::size_t looked() const { return looked_; } // spans that have been looked at
    std::size_t spans() const { return spans_; }   // spans that there are to look at
    /// The rows that are added up so far, longest self time first.
    std::vector<SelfTime> rows() const;

private:
    struct Lane {
        int track = 0, lane = 0, children = -1; // children: the lane nested in it; -1: none
        std::uint32_t next = 0, end = 0, child = 0, childEnd = 0;
    };
    struct Sum {
        std::uint32_t spans = 0;
        std::int64_t selfNs = 0, totalNs = 0, longestNs = 0;
    };
    void add(Lane& lane, const TimelineSpan& span);
    void closeTrack(int track);

    const SpanIndex& index_;
    std::int64_t from_, to_;
    SelfTimeBy by_;
    std::function<bool(const TimelineSpan&)> keep_;
    std::vector<Lane> lanes_; // by track
    std::size_t at_ = 0, looked_ = 0, spans_ = 0;
    Numbered<Sum> sums_;     // of the lanes' present track, by name
    std::vector<int> named_; // the names with a sum in sums_
    std::map<std::pair<std::string, std::string>, SelfTime> found_;
};

/// Adds up a range at once.
std::vector<SelfTime> selfTimes(const SpanIndex& index, std::int64_t fromNs, std::int64_t toNs, SelfTimeBy by,
                                const std::function<bool(const TimelineSpan&)>& keep = {});

} // namespace kvscope
