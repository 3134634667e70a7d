#include "profiler/read/span_index.h"

#include <algorithm>
#include <tuple>

namespace kvscope {
namespace {

constexpr int kMostRows = 4; // of one track and depth; what overlaps even then is drawn over each other

/// Where two begin together, the shorter first: one without length fits before the other.
bool earlier(const IndexedSpan& a, const IndexedSpan& b) {
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

IndexedSpan SpanIndex::Lane::span(std::uint32_t i) const {
    const Chunk& chunk = *chunks[i / kChunk];
    const std::uint32_t at = i % kChunk;
    return {chunk.start[at], chunk.duration[at] == kLong ? longer.at(i) : chunk.duration[at], chunk.name[at],
            chunk.step[at], chunk.layer[at]};
}

void SpanIndex::Lane::push(const IndexedSpan& span) {
    if (size % kChunk == 0) chunks.push_back(std::make_unique<Chunk>());
    Chunk& chunk = *chunks.back();
    const std::uint32_t at = size % kChunk;
    chunk.start[at] = span.startNs;
    chunk.duration[at] = span.durationNs < kLong ? std::uint32_t(span.durationNs) : kLong;
    if (chunk.duration[at] == kLong) longer[size] = span.durationNs;
    chunk.step[at] = span.step;
    chunk.name[at] = std::uint16_t(span.name);
    chunk.layer[at] = std::int16_t(std::min(span.layer, 0x7FFF));
    ++size;
    busyNs += span.durationNs;
    lastEnd = std::max(lastEnd, span.endNs());
}

void SpanIndex::Lane::truncate(std::uint32_t newSize) {
    for (std::uint32_t i = newSize; i < size; ++i) busyNs -= duration(i);
    longer.erase(longer.lower_bound(newSize), longer.end());
    size = newSize;
    chunks.resize((size + kChunk - 1) / kChunk);
    clean = std::min(clean, size);
    lastEnd = std::numeric_limits<std::int64_t>::min();
    // The lane's spans do not overlap, unless it is the last of too many rows: a few decide.
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
                    const IndexedSpan one = span(child);
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
    std::vector<int> nameOf(batch.texts.size(), -1), trackOf(batch.texts.size(), -1);
    std::map<std::pair<int, int>, std::vector<IndexedSpan>> arrived;
    std::vector<IndexedSpan>* group = nullptr;
    std::pair<int, int> key{-1, -1};
    for (const SpanRow& row : batch.spans) {
        int &name = nameOf[std::size_t(row.name)], &track = trackOf[std::size_t(row.track)];
        if (name < 0) name = internName(batch.texts[std::size_t(row.name)]);
        if (track < 0) track = internTrack(batch.texts[std::size_t(row.track)]);
        ++nameCounts_[std::size_t(name)];
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
    for (auto& [where, spans] : arrived) appendGroup(where.first, where.second, spans);
}

void SpanIndex::appendGroup(int track, int depth, std::vector<IndexedSpan>& spans) {
    if (!std::is_sorted(spans.begin(), spans.end(), earlier)) std::stable_sort(spans.begin(), spans.end(), earlier);
    std::vector<int>& rows = groups_[{track, depth}];
    // What lies behind the first newcomer is taken out and put in again in order.
    std::vector<IndexedSpan> moved;
    for (const int which : rows) {
        Lane& lane = lanes_[std::size_t(which)];
        const std::uint32_t from = lowerBound(which, spans.front().startNs);
        if (from == lane.size) continue;
        for (std::uint32_t i = from; i < lane.size; ++i) moved.push_back(lane.span(i));
        lane.truncate(from);
    }
    if (!moved.empty()) {
        spans.insert(spans.begin(), moved.begin(), moved.end());
        std::stable_sort(spans.begin(), spans.end(), earlier);
    }
    for (const IndexedSpan& span : spans) {
        int chosen = -1;
        for (const int which : rows)
            if (lanes_[std::size_t(which)].size == 0 || lanes_[std::size_t(which)].lastEnd <= span.startNs) {
                chosen = which;
                break;
            }
        if (chosen < 0 && int(rows.size()) < kMostRows) {
            chosen = int(lanes_.size());
            lanes_.emplace_back();
            lanes_.back().track = track;
            lanes_.back().depth = depth;
            lanes_.back().row = int(rows.size());
            rows.push_back(chosen);
        }
        lanes_[std::size_t(chosen < 0 ? rows.back() : chosen)].push(span);
    }
    for (const int which : rows) lanes_[std::size_t(which)].rebuild();
}

SpanLane SpanIndex::lane(int which) const {
    const Lane& lane = lanes_[std::size_t(which)];
    return {lane.track, lane.depth, lane.row, lane.size, lane.busyNs};
}

IndexedSpan SpanIndex::at(SpanRef ref) const { return lanes_[std::size_t(ref.lane)].span(ref.index); }

std::uint32_t SpanIndex::lowerBound(int which, std::int64_t ns) const {
    const Lane& lane = lanes_[std::size_t(which)];
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

std::optional<SpanRef> SpanIndex::find(int which, std::int64_t ns) const {
    const std::uint32_t after = lowerBound(which, ns + 1);
    if (after == 0) return std::nullopt;
    const IndexedSpan span = lanes_[std::size_t(which)].span(after - 1);
    if (span.endNs() <= ns && span.startNs != ns) return std::nullopt;
    return SpanRef{which, after - 1};
}

int SpanIndex::trackOf(std::string_view name) const {
    const auto at = trackIds_.find(std::string(name));
    return at == trackIds_.end() ? -1 : at->second;
}

std::size_t SpanIndex::memoryBytes() const {
    std::size_t bytes = lanes_.capacity() * sizeof(Lane);
    for (const Lane& lane : lanes_) {
        bytes += lane.chunks.size() * sizeof(Chunk) + lane.chunks.capacity() * sizeof(void*);
        bytes += lane.longer.size() * 64;
        for (const auto& level : lane.levels) bytes += level.size() * (sizeof(Node) + 1); // and its pieces' addresses
    }
    return bytes;
}

int SpanIndex::internName(const std::string& value) {
    // Sixteen bits a span: a run with more names than that shows the rest under one.
    const std::string& kept = names_.size() < kMoreNames ? value : std::string("(other names)");
    const auto known = nameIds_.find(value);
    if (known != nameIds_.end()) return known->second;
    const auto [at, isNew] = nameIds_.try_emplace(kept, int(names_.size()));
    if (isNew) {
        names_.push_back(kept);
        nameCounts_.push_back(0);
    }
    return at->second;
}

int SpanIndex::internTrack(const std::string& value) {
    const auto [at, isNew] = trackIds_.try_emplace(value, int(tracks_.size()));
    if (isNew) tracks_.push_back(value);
    return at->second;
}

} // namespace kvscope
