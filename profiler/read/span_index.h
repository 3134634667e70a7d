// All spans of a run in memory, ready to be drawn at any zoom: columns per lane, and above them a pyramid whose nodes
// say what sixteen neighbours together look like. 20 bytes a span, 2.2 with the pyramid's share, whatever the run.
#pragma once

#include "base/indexed.h"
#include "profiler/read/span_batch.h"

#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace kvscope {

/// A place in a lane; append may move it, so look it up again after one.
struct SpanRef {
    int lane = -1;
    std::uint32_t index = 0;
    bool operator==(const SpanRef&) const = default;
};

struct TimelineSpan {
    std::int64_t startNs = 0, durationNs = 0;
    int name = 0, step = -1, layer = -1;
    std::int64_t endNs() const { return startNs + durationNs; }
};

/// A bar that is drawn: one span exactly, or neighbours that are too close together to tell apart.
struct SpanBar {
    std::int64_t startNs = 0, endNs = 0;
    std::int64_t busyNs = 0; // time in [startNs, endNs) in which a span runs; of a bar that is one span its duration
    std::uint32_t count = 1; // spans
    int name = 0;            // of the one span; else the name that takes most of the busy time
    std::uint32_t first = 0; // index of the first span in its lane
};

/// One row of rectangles that do not overlap: spans of one track at one depth. Where spans of a track and depth do
/// overlap (copies of several streams), they are spread over several lanes.
struct SpanLane {
    int track = 0, depth = 0, row = 0;
    std::uint32_t spans = 0;
    std::int64_t busyNs = 0;
    bool crowded = false; // the last of too many rows: its spans lie over each other
};

class SpanIndex {
public:
    /// Adds what was read. Spans may come in any order; those of one lane that come late move the ones after them.
    /// Where that would be very many, they wait for settle().
    void append(const SpanBatch& batch);
    /// Puts late spans in their place, about so many spans at a time; all: also where few wait among many.
    /// @return true while there is more to do
    bool settle(std::size_t spans, bool all);
    /// Spans that are counted and wait for their place.
    std::size_t waiting() const;
    /// Changes when places in lanes come to mean other spans.
    std::uint64_t moves() const { return moves_; }

    std::size_t size() const { return size_; }
    std::size_t memoryBytes() const;
    std::int64_t firstNs() const { return firstNs_; } // earliest start; 0 when empty
    std::int64_t endNs() const { return endNs_; }     // latest end

    const Numbered<std::string>& names() const { return names_; } // as shown
    /// [name] the stage that such a kernel was launched for; of every other name the name itself.
    const Numbered<std::string>& components() const { return components_; }
    /// The bytes that a copy with such a name moved; nothing where they are not known.
    std::optional<std::int64_t> bytesOf(int name) const;
    const Numbered<std::uint32_t>& nameCounts() const { return nameCounts_; }
    const Numbered<std::string>& tracks() const { return tracks_; }
    int laneCount() const { return lanes_.count(); }
    SpanLane lane(int lane) const;
    int trackOf(std::string_view name) const; // -1: none

    TimelineSpan at(SpanRef ref) const;
    int nameAt(SpanRef ref) const { return lanes_[ref.lane].chunks[ref.index / kChunk]->name[ref.index % kChunk]; }
    /// A set of names by their last eight bits, by which stretches without any of the names are stepped over.
    using NameSet = std::array<std::uint64_t, 4>;
    static NameSet namesIn(const std::vector<bool>& names);
    /// The first place from `index` on where a span may have one of the names; the lane's size if there is none.
    std::uint32_t nextLike(int lane, std::uint32_t index, const NameSet& names) const;
    /// The same backwards: no span from the returned place up to `index` has one of the names.
    std::uint32_t previousLike(int lane, std::uint32_t index, const NameSet& names) const;
    /// Visits the bars that meet [fromNs, toNs). Spans shorter than `mergeNs` share a bar with their neighbours, and
    /// every span is in exactly one bar. The time that it takes depends on the number of bars, not of spans.
    template <class Visit>
    void cover(int lane, std::int64_t fromNs, std::int64_t toNs, double mergeNs, Visit&& visit) const;
    /// Index of the first span of a lane that starts at ns or later; the lane's size if there is none.
    std::uint32_t lowerBound(int lane, std::int64_t ns) const;
    /// The span at this time, if there is one.
    std::optional<SpanRef> find(int lane, std::int64_t ns) const;

private:
    static constexpr std::uint32_t kChunk = 256, kFan = 16; // small: a run may have thousands of lanes of few spans
    static constexpr std::uint32_t kLong = 0xFFFFFFFF;      // duration is in Lane::longer
    static constexpr std::uint16_t kMoreNames = 0xFFFF;
    struct Chunk {
        std::array<std::int64_t, kChunk> start;
        std::array<std::uint32_t, kChunk> duration;
        std::array<std::int32_t, kChunk> step;
        std::array<std::uint16_t, kChunk> name;
        std::array<std::int16_t, kChunk> layer;
        NameSet names{}; // every name that the chunk's spans have, and perhaps others
    };
    struct Node {
        std::int64_t start = 0, end = 0; // of all spans below the node
        float busyNs = 0, nameNs = 0;    // busy time of these spans, and of those that are called `name`
        std::uint16_t name = 0;
    };
    struct Lane {
        int track = 0, depth = 0, row = 0;
        std::uint32_t size = 0;
        bool crowded = false;
        std::int64_t busyNs = 0, lastEnd = std::numeric_limits<std::int64_t>::min();
        std::vector<std::unique_ptr<Chunk>> chunks;
        std::vector<std::deque<Node>> levels; // level k: one node for 16^(k+1) spans; a deque grows without copying
        std::map<std::uint32_t, std::int64_t> longer;
        std::uint32_t clean = 0; // the pyramid is right for the spans before this one

        std::int64_t lastStart() const {
            return size == 0 ? std::numeric_limits<std::int64_t>::min() : start(size - 1);
        }
        std::int64_t start(std::uint32_t i) const { return chunks[i / kChunk]->start[i % kChunk]; }
        std::int64_t duration(std::uint32_t i) const {
            const std::uint32_t value = chunks[i / kChunk]->duration[i % kChunk];
            return value == kLong ? longer.at(i) : value;
        }
        TimelineSpan span(std::uint32_t i) const;
        void push(const TimelineSpan& span);
        void truncate(std::uint32_t size);
        void rebuild();
    };
    /// Late spans that are being put in their places. The spans of the group's lanes and the late ones are copied in
    /// their order into new lanes, which replace the old ones when all are copied.
    struct Merge {
        std::vector<TimelineSpan> late; // in order
        std::size_t next = 0;
        Numbered<std::uint32_t> read; // [row] spans of the old lane that were copied
        Numbered<Lane> lanes;
    };
    /// The spans of one track and depth.
    struct Group {
        Numbered<int> rows; // its lanes
        std::vector<TimelineSpan> late;
        std::unique_ptr<Merge> merge; // null: none is under way
    };
    int internName(const SpanBatch& batch, std::int32_t text);
    int internTrack(const std::string& value);
    void appendGroup(const std::pair<int, int>& place, std::vector<TimelineSpan>& spans, std::size_t& movable);
    void pushInOrder(const std::pair<int, int>& place, Group& group, const TimelineSpan* first,
                     const TimelineSpan* last);
    bool advance(const std::pair<int, int>& place, Group& group, std::size_t& spans);
    template <class LaneAt> static int rowFor(const TimelineSpan& span, int rows, const LaneAt& laneAt);
    template <class Visit>
    static void descend(const Lane& lane, std::size_t level, std::uint32_t first, std::uint32_t last, std::int64_t from,
                        std::int64_t to, double mergeNs, Visit& visit);

    Numbered<Lane> lanes_;
    std::map<std::pair<int, int>, Group> groups_; // (track, depth)
    Numbered<std::string> names_, components_, tracks_;
    Numbered<std::int64_t> nameBytes_; // -1: not known
    Numbered<std::uint32_t> nameCounts_;
    std::unordered_map<std::string, int> nameIds_, trackIds_;
    std::size_t size_ = 0;
    std::uint64_t moves_ = 0;
    std::int64_t firstNs_ = 0, endNs_ = 0;
};

template <class Visit>
void SpanIndex::cover(int which, std::int64_t fromNs, std::int64_t toNs, double mergeNs, Visit&& visit) const {
    const Lane& lane = lanes_[which];
    if (lane.size == 0 || toNs <= fromNs) return;
    const std::size_t top = lane.levels.size();
    descend(lane, top, 0, top == 0 ? lane.size : std::uint32_t(lane.levels[top - 1].size()), fromNs, toNs, mergeNs,
            visit);
}

/// Level 0 are the spans themselves, level k the nodes of levels[k - 1].
template <class Visit>
void SpanIndex::descend(const Lane& lane, std::size_t level, std::uint32_t first, std::uint32_t last, std::int64_t from,
                        std::int64_t to, double mergeNs, Visit& visit) {
    if (level == 0) {
        for (std::uint32_t i = first; i < last; ++i) {
            const TimelineSpan span = lane.span(i);
            if (span.startNs >= to) return;
            if (span.endNs() < from || (span.endNs() == from && span.durationNs > 0)) continue;
            visit(SpanBar{span.startNs, span.endNs(), span.durationNs, 1, span.name, i});
        }
        return;
    }
    const std::deque<Node>& nodes = lane.levels[level - 1];
    std::uint32_t spans = kFan;
    for (std::size_t k = 1; k < level; ++k) spans *= kFan;
    for (std::uint32_t i = first; i < last; ++i) {
        const Node& node = nodes[i];
        if (node.start >= to) return;
        if (node.end < from) continue;
        if (double(node.end - node.start) <= mergeNs) {
            const std::uint32_t begin = i * spans;
            visit(SpanBar{node.start, node.end, std::int64_t(node.busyNs), std::min(spans, lane.size - begin),
                          node.name, begin});
            continue;
        }
        const std::uint32_t below = level == 1 ? lane.size : std::uint32_t(lane.levels[level - 2].size());
        descend(lane, level - 1, i * kFan, std::min((i + 1) * kFan, below), from, to, mergeNs, visit);
    }
}

} // namespace kvscope
