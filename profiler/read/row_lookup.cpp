#include "profiler/read/row_lookup.h"

#include <algorithm>
#include <limits>

namespace kvscope {
namespace {

constexpr std::size_t kSegment = 1 << 18, kZone = 512;
constexpr int kMostZones = 4; // the most zones of a segment that may hold one value: find() looks at all rows of these
constexpr std::int64_t kFarthest = std::numeric_limits<std::uint32_t>::max();

std::uint64_t keyOf(std::int64_t value) { // the upper half; values in order differ in their last bits only
    std::uint64_t mixed = std::uint64_t(value) * 0x9E3779B97F4A7C15;
    mixed ^= mixed >> 29;
    return (mixed * 0xBF58476D1CE4E5B9) & ~std::uint64_t(kFarthest);
}

/// The largest number of zones that may hold the same value.
template <class Zones> int depthOf(const Zones& zones) {
    std::vector<std::pair<std::int64_t, int>> ends; // at one place beginnings come before ends
    for (const auto& zone : zones) {
        ends.emplace_back(zone.low, -1);
        ends.emplace_back(zone.high, 1);
    }
    std::sort(ends.begin(), ends.end());
    int depth = 0, most = 0;
    for (const auto& [value, end] : ends) most = std::max(most, depth -= end);
    return most;
}

} // namespace

void RowLookup::add(std::int64_t id, std::int64_t value) {
    if (open_.size() == kSegment || (!open_.empty() && id - open_.front().id > kFarthest)) close();
    open_.push_back({id, value});
}

void RowLookup::close() {
    Segment& segment = segments_.emplace_back();
    segment.firstId = open_.front().id;
    for (std::size_t first = 0; first < open_.size(); first += kZone) {
        const std::size_t last = std::min(first + kZone, open_.size()) - 1;
        Zone zone{open_[first].id, open_[last].id, open_[first].value, open_[first].value};
        for (std::size_t i = first; i <= last; ++i) {
            zone.low = std::min(zone.low, open_[i].value);
            zone.high = std::max(zone.high, open_[i].value);
        }
        segment.zones.push_back(zone);
    }
    if (depthOf(segment.zones) > kMostZones) {
        segment.zones = {};
        segment.keys.reserve(open_.size());
        for (const Row& row : open_) segment.keys.push_back(keyOf(row.value) | std::uint64_t(row.id - segment.firstId));
        std::sort(segment.keys.begin(), segment.keys.end());
    }
    open_.clear();
}

std::vector<std::pair<std::int64_t, std::int64_t>> RowLookup::find(std::int64_t value) const {
    std::vector<std::pair<std::int64_t, std::int64_t>> found;
    const std::uint64_t key = keyOf(value);
    for (const Segment& segment : segments_) {
        for (const Zone& zone : segment.zones)
            if (zone.low <= value && value <= zone.high) found.emplace_back(zone.firstId, zone.lastId);
        for (auto at = std::lower_bound(segment.keys.begin(), segment.keys.end(), key);
             at != segment.keys.end() && (*at & ~std::uint64_t(kFarthest)) == key; ++at) {
            const std::int64_t id = segment.firstId + std::int64_t(*at & std::uint64_t(kFarthest));
            found.emplace_back(id, id);
        }
    }
    for (const Row& row : open_)
        if (row.value == value) found.emplace_back(row.id, row.id);
    return found;
}

std::size_t RowLookup::memoryBytes() const {
    std::size_t bytes = open_.capacity() * sizeof(Row);
    for (const Segment& segment : segments_)
        bytes += segment.zones.capacity() * sizeof(Zone) + segment.keys.capacity() * sizeof(std::uint64_t);
    return bytes;
}

} // namespace kvscope
