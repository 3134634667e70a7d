#include "profiler/read/span_index.h"

#include <algorithm>
#include <tuple>

namespace kvscope {
namespace {

constexpr int kMostRowsOfOverlap = 8;        // of one track and depth; what overlaps even then is drawn over each other
constexpr std::size_t kMovedAtOnce = 65'536; // a few milliseconds

/// Where two begin together, the shorter first: one without length fits before the other.
bool earlier(const TimelineSpan& a, const TimelineSpan& b) {
    return a.startNs != b.startNs ? a.startNs < b.startNs : a.durationNs < b.durationNs;
}

/// The name with the largest share among a few.
struct Shares {
    std::array<std::pair<std::uint16_t, float>, 16> names;
    std::size_t count = 0;
    void add(std::uint16_t name, float ns) {
        for (std::size_t i = 0; i < count; ++i)
            if (names[i].first == name) {
                names[i].second += ns;
                return;
            }
        names[count++] = {name, ns};
    }
    std::pair<std::uint16_t, float> largest() const {
        return *std::max_element(names.begin(), names.begin() + std::ptrdiff_t(count),
                                 [](const auto& a, const auto& b) { return a.second < b.second; });
    }
};

} // namespace

TimelineSpan SpanIndex::Lane::span(std::uint32_t i) const {
    const Chunk& chunk = *chunks[i / kChunk];
    const std::uint32_t at = i % kChunk;
    return {chunk.start[at], chunk.duration[at] == kLong ? longer.at(i) : chunk.duration[at], chunk.name[at],
            chunk.step[at], chunk.layer[at]};
}

void SpanIndex::Lane::push(const TimelineSpan& span) {
    if (size % kChunk == 0) chunks.push_back(std::make_unique<Chunk>());
    Chunk& chunk = *chunks.back();
    const std::uint32_t at = size % kChunk;
    chunk.start[at] = span.startNs;
    chunk.duration[at] = span.durationNs < kLong ? std::uint32_t(span.durationNs) : kLong;
    if (chunk.duration[at] == kLong) longer[size] = span.durationNs;
    chunk.step[at] = span.step;
    chunk.name[at] = std::uint16_t(span.name);
    chunk.layer[at] = std::int16_t(std::min(span.layer, 0x7FFF));
    const unsigned name = chunk.name[at];
    chunk.names[name >> 6 & 3] |= std::uint64_t(1) << (name & 63);
    if (size > 0 && span.startNs < lastEnd) crowded = true;
    ++size;
    busyNs += span.durationNs;
    lastEnd = std::max(lastEnd, span.endNs());
}

void SpanIndex::Lane::truncate(std::uint32_t newSize) {
    for (std::uint32_t i = newSize; i < size; ++i) busyNs -= duration(i);
    longer.erase(longer.lower_bound(newSize), longer.end());
    size = newSize;
    if (size == 0) crowded = false;
    chunks.resize((size + kChunk - 1) / kChunk);
    clean = std::min(clean, size);
    lastEnd = std::numeric_limits<std::int64_t>::min();
    // The last spans decide where the lane ends: its spans do not overlap, unless it is the last of too many rows.
    for (std::uint32_t i = size > 64 ? size - 64 : 0; i < size; ++i) lastEnd = std::max(lastEnd, span(i).endNs());
}

void SpanIndex::Lane::rebuild() {
    std::uint32_t below = size, dirty = clean;
    for (std::size_t level = 0; below > kFan; ++level) {
        const std::uint32_t count = (below + kFan - 1) / kFan;
        if (levels.size() <= level) levels.emplace_back();
        std::deque<Node>& nodes = levels[level];
        dirty = std::min(dirty / kFan, std::uint32_t(nodes.size())); // a new level is built from its beginning
        nodes.resize(count);
        for (std::uint32_t i = dirty; i < count; ++i) {
            Node node;
            Shares shares;
            const std::uint32_t first = i * kFan, last = std::min(first + kFan, below);
            for (std::uint32_t child = first; child < last; ++child) {
                Node part;
                if (level == 0) {
                    const TimelineSpan one = span(child);
                    part = {one.startNs, one.endNs(), float(one.durationNs), float(one.durationNs),
                            std::uint16_t(one.name)};
                } else {
                    part = levels[level - 1][child];
                }
                if (child == first) node.start = part.start, node.end = part.end;
                node.end = std::max(node.end, part.end);
                node.busyNs += part.busyNs;
                shares.add(part.name, part.nameNs);
            }
            std::tie(node.name, node.nameNs) = shares.largest();
            nodes[i] = node;
        }
        below = count;
        if (below <= kFan) levels.resize(level + 1);
    }
    if (size <= kFan) levels.clear();
    clean = size;
}

void SpanIndex::append(const SpanBatch& batch) {
    Numbered<int> nameOf(batch.texts.count(), -1), trackOf(batch.texts.count(), -1); // [text]
    std::map<std::pair<int, int>, std::vector<TimelineSpan>> arrived;
    std::vector<TimelineSpan>* group = nullptr;
    std::pair<int, int> key{-1, -1};
    for (const SpanRow& row : batch.spans) {
        int &name = nameOf[row.name], &track = trackOf[row.track];
        if (name < 0) name = internName(batch, row.name);
        if (track < 0) track = internTrack(batch.texts[row.track]);
        ++nameCounts_[name];
        if (key != std::pair(track, row.depth) || !group) {
            key = {track, row.depth};
            group = &arrived[key];
        }
        group->push_back({row.startNs, row.durationNs, name, row.step, row.layer});
        const std::int64_t end = row.startNs + row.durationNs;
        firstNs_ = size_ == 0 ? row.startNs : std::min(firstNs_, row.startNs);
        endNs_ = size_ == 0 ? end : std::max(endNs_, end);
        ++size_;
    }
    std::size_t movable = kMovedAtOnce; // the spans that all groups together may move now
    for (auto& [place, spans] : arrived) appendGroup(place, spans, movable);
}

/// The first of the rows that is free when the span begins. If none is, the number of rows, which stands for a new row,
/// or, where there are kMostRowsOfOverlap already, the last one.
template <class LaneAt> int SpanIndex::rowFor(const TimelineSpan& span, int rows, const LaneAt& laneAt) {
    for (int row = 0; row < rows; ++row) {
        const Lane& lane = laneAt(row);
        if (lane.size == 0 || lane.lastEnd <= span.startNs) return row;
    }
    return std::min(rows, kMostRowsOfOverlap - 1);
}

void SpanIndex::pushInOrder(const std::pair<int, int>& place, Group& group, const TimelineSpan* first,
                            const TimelineSpan* last) {
    const auto laneAt = [&](int row) -> Lane& { return lanes_[group.rows[row]]; };
    for (; first != last; ++first) {
        const int row = rowFor(*first, group.rows.count(), laneAt);
        if (row == group.rows.count()) {
            group.rows.push_back(lanes_.count());
            Lane& made = lanes_.emplace_back();
            made.track = place.first;
            made.depth = place.second;
            made.row = row;
        }
        laneAt(row).push(*first);
    }
    for (const int which : group.rows) lanes_[which].rebuild();
}

void SpanIndex::appendGroup(const std::pair<int, int>& place, std::vector<TimelineSpan>& spans, std::size_t& movable) {
    if (!std::is_sorted(spans.begin(), spans.end(), earlier)) std::stable_sort(spans.begin(), spans.end(), earlier);
    Group& group = groups_[place];
    // Spans behind the first newcomer have to move.
    std::size_t behind = 0;
    std::int64_t lastStart = std::numeric_limits<std::int64_t>::min();
    for (const int which : group.rows) {
        const Lane& lane = lanes_[which];
        behind += lane.size - lowerBound(which, spans.front().startNs);
        lastStart = std::max(lastStart, lane.lastStart());
    }
    if (group.merge || behind > std::max(movable, 4 * spans.size())) {
        const auto inOrder = std::partition_point(spans.begin(), spans.end(),
                                                  [&](const TimelineSpan& span) { return span.startNs <= lastStart; });
        group.late.insert(group.late.end(), spans.begin(), inOrder);
        return pushInOrder(place, group, spans.data() + (inOrder - spans.begin()), spans.data() + spans.size());
    }
    if (behind > 0) { // they are taken out and put in again in order
        movable -= std::min(movable, behind);
        std::vector<TimelineSpan> moved;
        for (const int which : group.rows) {
            Lane& lane = lanes_[which];
            const std::uint32_t from = lowerBound(which, spans.front().startNs);
            if (from == lane.size) continue;
            for (std::uint32_t i = from; i < lane.size; ++i) moved.push_back(lane.span(i));
            lane.truncate(from);
        }
        spans.insert(spans.begin(), moved.begin(), moved.end());
        std::stable_sort(spans.begin(), spans.end(), earlier);
        ++moves_;
    }
    pushInOrder(place, group, spans.data(), spans.data() + spans.size());
}

bool SpanIndex::settle(std::size_t spans, bool all) {
    bool more = false;
    for (auto& [place, group] : groups_) {
        if (!group.merge && !group.late.empty()) {
            std::size_t there = 0;
            for (const int which : group.rows) there += lanes_[which].size;
            // Strides grow, so that the number of moved spans stays in proportion to the number of spans.
            if (!all && group.late.size() * 4 < there) continue;
            group.merge = std::make_unique<Merge>();
            group.merge->late.swap(group.late);
            std::stable_sort(group.merge->late.begin(), group.merge->late.end(), earlier);
        }
        if (group.merge && !advance(place, group, spans)) more = true;
        more = more || (all && !group.late.empty());
    }
    return more;
}

/// Copies up to `spans` spans from the group's lanes and from its late spans into the merge's new lanes, in the order
/// of time. spans: less those that were copied. @return true: the merge is done, and its lanes have taken the place of
/// the group's
bool SpanIndex::advance(const std::pair<int, int>& place, Group& group, std::size_t& spans) {
    Merge& merge = *group.merge;
    const auto laneAt = [&](int row) -> Lane& { return merge.lanes[row]; };
    merge.read.resize(group.rows.count(), 0); // rows may have come
    for (; spans > 0; --spans) {
        TimelineSpan first;
        int from = -1; // the row that has the next span; the number of rows: a late span is next; -1: none is left
        if (merge.next < merge.late.size()) {
            first = merge.late[merge.next];
            from = group.rows.count();
        }
        for (int row = 0; row < group.rows.count(); ++row) {
            const Lane& lane = lanes_[group.rows[row]];
            if (merge.read[row] == lane.size) continue;
            const TimelineSpan next = lane.span(merge.read[row]);
            if (from >= 0 && !earlier(next, first)) continue;
            first = next;
            from = row;
        }
        if (from < 0) break;
        from == group.rows.count() ? void(++merge.next) : void(++merge.read[from]);
        const int row = rowFor(first, merge.lanes.count(), laneAt);
        if (row == merge.lanes.count()) {
            Lane& made = merge.lanes.emplace_back();
            made.track = place.first;
            made.depth = place.second;
            made.row = row;
        }
        laneAt(row).push(first);
    }
    for (Lane& lane : merge.lanes) lane.rebuild();
    bool done = merge.next == merge.late.size();
    for (int row = 0; row < group.rows.count(); ++row) done = done && merge.read[row] == lanes_[group.rows[row]].size;
    if (!done) return false;
    while (group.rows.size() < merge.lanes.size()) {
        group.rows.push_back(lanes_.count());
        lanes_.emplace_back();
    }
    for (int row = 0; row < group.rows.count(); ++row) {
        Lane& lane = lanes_[group.rows[row]];
        if (row < merge.lanes.count()) {
            lane = std::move(merge.lanes[row]);
        } else { // put in order, the spans need fewer rows than before
            Lane empty;
            std::tie(empty.track, empty.depth, empty.row) = std::tie(lane.track, lane.depth, lane.row);
            lane = std::move(empty);
        }
    }
    group.merge.reset();
    ++moves_;
    return true;
}

std::size_t SpanIndex::waiting() const {
    std::size_t spans = 0;
    for (const auto& [place, group] : groups_)
        spans += group.late.size() + (group.merge ? group.merge->late.size() : 0);
    return spans;
}

SpanLane SpanIndex::lane(int which) const {
    const Lane& lane = lanes_[which];
    return {lane.track, lane.depth, lane.row, lane.size, lane.busyNs, lane.crowded};
}

TimelineSpan SpanIndex::at(SpanRef ref) const { return lanes_[ref.lane].span(ref.index); }

std::uint32_t SpanIndex::lowerBound(int which, std::int64_t ns) const {
    const Lane& lane = lanes_[which];
    std::uint32_t low = 0, high = lane.size;
    while (low < high) {
        const std::uint32_t middle = low + (high - low) / 2;
        if (lane.start(middle) < ns)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

SpanIndex::NameSet SpanIndex::namesIn(const std::vector<bool>& names) {
    NameSet set{};
    for (std::size_t name = 0; name < names.size(); ++name)
        if (names[name]) set[name >> 6 & 3] |= std::uint64_t(1) << (name & 63);
    return set;
}

namespace {
bool meet(const SpanIndex::NameSet& a, const SpanIndex::NameSet& b) {
    return ((a[0] & b[0]) | (a[1] & b[1]) | (a[2] & b[2]) | (a[3] & b[3])) != 0;
}
} // namespace

std::uint32_t SpanIndex::nextLike(int which, std::uint32_t index, const NameSet& names) const {
    const Lane& lane = lanes_[which];
    while (index < lane.size && !meet(lane.chunks[index / kChunk]->names, names)) index = (index / kChunk + 1) * kChunk;
    return std::min(index, lane.size);
}

std::uint32_t SpanIndex::previousLike(int which, std::uint32_t index, const NameSet& names) const {
    const Lane& lane = lanes_[which];
    while (index > 0 && !meet(lane.chunks[(index - 1) / kChunk]->names, names)) index = (index - 1) / kChunk * kChunk;
    return index;
}

std::optional<SpanRef> SpanIndex::find(int which, std::int64_t ns) const {
    constexpr std::uint32_t kLookedAt = 256; // where spans lie over each other, the uppermost that is still there
    const Lane& lane = lanes_[which];
    const std::uint32_t after = lowerBound(which, ns + 1), last = after - std::min(after, lane.crowded ? kLookedAt : 1);
    for (std::uint32_t i = after; i > last; --i) {
        const TimelineSpan span = lane.span(i - 1);
        if (span.endNs() > ns || span.startNs == ns) return SpanRef{which, i - 1};
    }
    return std::nullopt;
}

int SpanIndex::trackOf(std::string_view name) const {
    const auto at = trackIds_.find(std::string(name));
    return at == trackIds_.end() ? -1 : at->second;
}

std::size_t SpanIndex::memoryBytes() const {
    std::size_t bytes = lanes_.capacity() * sizeof(Lane);
    const auto add = [&](const Lane& lane) {
        bytes += lane.chunks.size() * sizeof(Chunk) + lane.chunks.capacity() * sizeof(void*);
        bytes += lane.longer.size() * 64;
        for (const auto& level : lane.levels) bytes += level.size() * (sizeof(Node) + 1); // and its pieces' addresses
    };
    for (const Lane& lane : lanes_) add(lane);
    for (const auto& [place, group] : groups_) {
        bytes += group.late.capacity() * sizeof(TimelineSpan);
        if (!group.merge) continue;
        bytes += group.merge->late.capacity() * sizeof(TimelineSpan);
        for (const Lane& lane : group.merge->lanes) add(lane);
    }
    return bytes;
}

std::optional<std::int64_t> SpanIndex::bytesOf(int name) const {
    const std::int64_t bytes = nameBytes_[name];
    return bytes < 0 ? std::nullopt : std::optional(bytes);
}

int SpanIndex::internName(const SpanBatch& batch, std::int32_t text) {
    const std::string& value = batch.texts[text];
    // Sixteen bits a span: a run with more names than that shows the rest under one.
    const std::string& kept = names_.size() < kMoreNames ? value : std::string("(other names)");
    if (const auto known = nameIds_.find(value); known != nameIds_.end()) return known->second;
    const auto [at, isNew] = nameIds_.try_emplace(kept, names_.count());
    if (isNew) {
        const auto known = batch.fields.find(text);
        const bool has = known != batch.fields.end() && names_.size() < kMoreNames;
        names_.push_back(kept);
        components_.push_back(has && !known->second.stage.empty() ? known->second.stage : kept);
        nameBytes_.push_back(has ? known->second.bytes : -1);
        nameCounts_.push_back(0);
    }
    return at->second;
}

int SpanIndex::internTrack(const std::string& value) {
    const auto [at, isNew] = trackIds_.try_emplace(value, tracks_.count());
    if (isNew) tracks_.push_back(value);
    return at->second;
}

} // namespace kvscope
