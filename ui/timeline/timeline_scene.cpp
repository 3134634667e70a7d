#include "ui/timeline/timeline_scene.h"

#include <algorithm>
#include <map>

namespace kvscope::ui {

namespace {

int rank(const std::string& track) {
    if (track == kHostTrack) return 0;
    if (track == kToDeviceTrack) return 1;
    if (track == kToHostTrack) return 2;
    if (track.starts_with("stream")) return 3;
    if (track.starts_with("copies")) return 4;
    return track == "recorder" || track == "CUPTI overhead" ? 6 : 5;
}

} // namespace

TimeRange TimelineData::whole() const {
    if (index.size() == 0) return {0, 1e6};
    const double from = double(index.firstNs()), to = double(index.endNs());
    const double margin = std::max(1.0, (to - from) * 0.01);
    return {from - margin, to + margin};
}

TimelineLayout TimelineLayout::of(const TimelineData& data, const std::set<int>& folded, bool counters) {
    TimelineLayout layout;
    int y = 4;
    if (counters)
        for (int c = 0; c < StepCounters::kCount; ++c) {
            if (!data.counters.has(StepCounters::Counter(c))) continue;
            layout.rows.push_back({c, -1, -1, y, kCounterHeight, true, false});
            y += kCounterHeight + kGap;
        }
    const SpanIndex& index = data.index;
    std::vector<int> tracks(index.tracks().size());
    for (std::size_t i = 0; i < tracks.size(); ++i) tracks[i] = int(i);
    std::stable_sort(tracks.begin(), tracks.end(), [&](int a, int b) {
        const std::string &x = index.tracks()[std::size_t(a)], &z = index.tracks()[std::size_t(b)];
        return std::pair(rank(x), std::string_view(x)) < std::pair(rank(z), std::string_view(z));
    });
    std::map<std::tuple<int, int, int>, int> lanes; // track, depth, row: lane
    for (int lane = 0; lane < index.laneCount(); ++lane) {
        const SpanLane info = index.lane(lane);
        if (info.spans > 0) lanes[{info.track, info.depth, info.row}] = lane;
    }
    for (const int track : tracks) {
        bool first = true;
        for (auto at = lanes.lower_bound({track, 0, 0}); at != lanes.end() && std::get<0>(at->first) == track; ++at) {
            if (!first && folded.contains(track)) {
                layout.rows.back().folded = true;
                break;
            }
            layout.rows.push_back({-1, at->second, track, y, kLaneHeight, first, false});
            y += kLaneHeight;
            first = false;
        }
        if (!first) y += kGap;
    }
    layout.height = y;
    return layout;
}

const TimelineRow* TimelineLayout::rowAt(int y) const {
    for (const TimelineRow& row : rows)
        if (y >= row.y && y < row.y + row.height) return &row;
    return nullptr;
}

const TimelineRow* TimelineLayout::rowOf(int lane) const {
    for (const TimelineRow& row : rows)
        if (row.lane == lane) return &row;
    return nullptr;
}

TimelineAreas TimelineAreas::of(QSize size) {
    TimelineAreas areas;
    const int gutter = std::min(kGutter, size.width() / 3), width = std::max(1, size.width() - gutter - 1);
    areas.minimap = {gutter, 2, width, kMinimap};
    areas.ruler = {gutter, kMinimap + 4, width, kRuler};
    const int top = kMinimap + kRuler + 5;
    areas.gutter = {0, top, gutter, std::max(1, size.height() - top)};
    areas.body = {gutter, top, width, std::max(1, size.height() - top)};
    return areas;
}

QString shownName(const TimelineData& data, const IndexedSpan& span) {
    const std::string& name = data.index.names()[std::size_t(span.name)];
    if (name == "layer" && span.layer >= 0) return QStringLiteral("layer %1").arg(span.layer);
    if ((name == "decode" || name == "prefill") && span.step >= 0)
        return QStringLiteral("%1 %2").arg(QString::fromStdString(name)).arg(span.step);
    return QString::fromStdString(name);
}

} // namespace kvscope::ui
