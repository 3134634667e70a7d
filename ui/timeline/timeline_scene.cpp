#include "ui/timeline/timeline_scene.h"

#include "ui/timeline/busy_part.h"
#include "ui/timeline/time_ticks.h"
#include "ui/timeline/timeline_curves.h"

#include <QCoreApplication>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

namespace kvscope::ui {

namespace {

/// Tracks of a GPU, whatever process and GPU their names begin with: "process 42 / GPU 0 stream 7".
bool isNamed(const std::string& track, std::string_view kind) {
    const auto at = track.find(kind);
    return at == 0 || (at != std::string::npos && track[at - 1] == ' ');
}

/// Tracks that launch come before tracks of what is launched. foreign: the run is of another tool, whose threads are
/// the host.
int rank(const std::string& track, bool foreign) {
    if (track == kHostTrack) return 0;
    if (!foreign && track.starts_with("CUDA calls")) return 1;
    if (isLinkTrack(track, kToDeviceTrack)) return 2;
    if (isLinkTrack(track, kToHostTrack)) return 3;
    if (track == "recorder" || track == "CUPTI overhead") return 7;
    if (isNamed(track, "stream ")) return 4;
    if (isNamed(track, "copies ")) return 5;
    return foreign ? 0 : 6;
}

/// "stream 7" before "stream 10".
bool comesBefore(std::string_view a, std::string_view b) {
    const auto isDigit = [](char c) { return c >= '0' && c <= '9'; };
    const auto number = [&](std::string_view text) { // without the zeros before it
        std::size_t length = 0, zeros = 0;
        while (length < text.size() && isDigit(text[length])) ++length;
        while (zeros + 1 < length && text[zeros] == '0') ++zeros;
        return text.substr(zeros, length - zeros);
    };
    const std::string_view wholeA = a, wholeB = b;
    while (!a.empty() && !b.empty()) {
        if (isDigit(a.front()) && isDigit(b.front())) {
            const std::string_view x = number(a), y = number(b);
            if (x != y) return x.size() != y.size() ? x.size() < y.size() : x < y;
            a.remove_prefix(std::size_t(x.data() + x.size() - a.data()));
            b.remove_prefix(std::size_t(y.data() + y.size() - b.data()));
        } else {
            if (a.front() != b.front()) return a.front() < b.front();
            a.remove_prefix(1);
            b.remove_prefix(1);
        }
    }
    if (a.empty() != b.empty()) return a.empty();
    return wholeA < wholeB; // the names differ in leading zeros at most
}

TimeRange widened(double from, double to) {
    const double margin = std::max({1.0, (to - from) * 0.01, TimeRange{from, to}.finest()});
    return {from - margin, to + margin};
}

/// Rows without their places.
std::vector<TimelineRow> rowsOf(const TimelineData& data, const TrackArrangement& arrangement) {
    std::vector<TimelineRow> rows;
    const auto isHidden = [&](const TimelineRow& row) {
        return !arrangement.hidden.empty() && arrangement.hidden.contains(trackKey(data, row));
    };
    const CurveOrder curves = curvesOf(data);
    const auto addCurves = [&](const std::vector<int>& order) {
        for (const int curve : order)
            if (const TimelineRow row{curve, -1, -1, 0, 0, true, false}; !isHidden(row)) rows.push_back(row);
    };
    addCurves(curves.above);
    const SpanIndex& index = data.index;
    std::vector<int> tracks(index.tracks().size());
    std::iota(tracks.begin(), tracks.end(), 0);
    const bool foreign = index.trackOf(kHostTrack) < 0;
    Numbered<int> ranks; // computed once for each track, of which a run may have thousands
    for (const std::string& track : index.tracks()) ranks.push_back(rank(track, foreign));
    std::stable_sort(tracks.begin(), tracks.end(), [&](int a, int b) {
        return ranks[a] != ranks[b] ? ranks[a] < ranks[b] : comesBefore(index.tracks()[a], index.tracks()[b]);
    });
    std::map<std::tuple<int, int, int>, int> lanes; // track, depth, row: lane
    for (int lane = 0; lane < index.laneCount(); ++lane) {
        const SpanLane info = index.lane(lane);
        if (info.spans > 0) lanes[{info.track, info.depth, info.row}] = lane;
    }
    for (const int track : tracks) {
        bool first = true;
        for (auto at = lanes.lower_bound({track, 0, 0}); at != lanes.end() && std::get<0>(at->first) == track; ++at) {
            const TimelineRow row{-1, at->second, track, 0, 0, first, false};
            if (first && isHidden(row)) break;
            if (!first && arrangement.folded.contains(track)) {
                rows.back().folded = true;
                break;
            }
            rows.push_back(row);
            first = false;
        }
    }
    addCurves(curves.below);
    return rows;
}

} // namespace

double TimeRange::finest() const {
    constexpr double kPlaces = 256, kExact = 0x1p53;
    const double late = std::max(std::abs(from), std::abs(to));
    return late < kExact ? 0 : kPlaces * (std::nextafter(late, std::numeric_limits<double>::infinity()) - late);
}

TimelineData::TimelineData() {
    static std::atomic<std::uint64_t> tables{0};
    table = ++tables;
}

TimeRange TimelineData::whole() const {
    bool any = index.size() > 0;
    double from = any ? double(index.firstNs()) : 0, to = any ? double(index.endNs()) : 0;
    for (const Gauge& gauge : gauges) {
        if (gauge.series.size() == 0) continue;
        from = any ? std::min(from, double(gauge.series.firstNs())) : double(gauge.series.firstNs());
        to = any ? std::max(to, double(gauge.series.lastNs())) : double(gauge.series.lastNs());
        any = true;
    }
    return any ? widened(from, to) : TimeRange{0, 1e6};
}

TimeRange TimelineData::busy() const {
    if (!busy_ || busy_->spans != index.size() || busy_->moves != index.moves())
        busy_ = Busy{index.size(), index.moves(), busyPart(index)};
    const BusyPart& part = busy_->part;
    return part.leavesOut ? widened(double(part.fromNs), double(part.toNs)) : whole();
}

TimeRange TimelineData::steps(bool decodeOnly) const {
    std::int64_t from = 0, to = 0;
    return counters.timesOfAll(decodeOnly, from, to) ? widened(double(from), double(to)) : busy();
}

TimeRange mapOf(const TimelineScene& scene) {
    if (scene.heldMap) return *scene.heldMap;
    const bool inBusyPart = scene.window.meets(scene.busy) && scene.window.size() <= scene.busy.size();
    return inBusyPart ? scene.busy : scene.data->whole();
}

void TimelineData::append(const GaugeBatch& batch) {
    Numbered<std::vector<GaugeSeries::Sample>> samples(int(batch.tracks.size())); // [track]
    for (const GaugeSample& sample : batch.samples)
        samples[sample.track].push_back({sample.startNs, sample.endNs, sample.value});
    for (std::size_t track = 0; track < samples.size(); ++track) {
        const GaugeInfo& info = batch.tracks[track];
        auto at = std::find_if(gauges.begin(), gauges.end(), [&](const Gauge& gauge) {
            return gauge.info.source == info.source && gauge.info.track == info.track;
        });
        if (at == gauges.end()) at = gauges.emplace(at);
        at->info = info;
        at->series.append(std::move(samples[track]));
    }
}

TimelineLayout TimelineLayout::of(const TimelineData& data, const TrackArrangement& arrangement, int room) {
    TimelineLayout layout;
    layout.rows = rowsOf(data, arrangement);
    int curves = 0, lanes = 0, gaps = 0;
    for (const TimelineRow& row : layout.rows) {
        row.curve >= 0 ? ++curves : ++lanes;
        gaps += row.firstOfTrack;
    }
    constexpr int kTop = 4;
    // Lanes grow in proportion to what is free, curves take the rest, each up to its most.
    const int least = lanes * kLaneHeight + curves * kCurveHeight, free = room - kTop - gaps * kGap;
    int lane = kLaneHeight, curve = kCurveHeight;
    if (least > 0 && free > least) { // an empty timeline has nothing that could grow
        lane = std::min(kMostLaneHeight, kLaneHeight * free / least);
        if (curves > 0) curve = std::clamp((free - lanes * lane) / curves, kCurveHeight, kMostCurveHeight);
        if (lanes > 0) lane = std::clamp((free - curves * curve) / lanes, lane, kMostLaneHeight);
    } else if (curves > 0) { // curves give way first: spans are what a timeline is opened for
        curve = std::clamp((free - lanes * lane) / curves, kLeastCurveHeight, kCurveHeight);
    }
    int y = kTop;
    for (std::size_t i = 0; i < layout.rows.size(); ++i) {
        TimelineRow& row = layout.rows[i];
        if (i > 0 && row.firstOfTrack) y += kGap;
        row.y = y;
        row.height = row.curve >= 0 ? curve : lane;
        y += row.height;
    }
    layout.height = layout.rows.empty() ? y : y + kGap;
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

std::string trackKey(const TimelineData& data, const TimelineRow& row) {
    if (row.curve >= 0) return "curve " + curveId(data, row.curve);
    return row.track >= 0 ? "track " + data.index.tracks()[row.track] : std::string();
}

QString trackTitle(const TimelineData& data, const TimelineRow& row) {
    if (row.curve >= 0) return curveTitle(data, row.curve);
    return row.track >= 0 ? readableName(data.index.tracks()[row.track]) : QString();
}

QString shortTrackTitle(const TimelineData& data, const TimelineRow& row) {
    const QString title = trackTitle(data, row);
    if (row.curve >= 0 || row.track < 0) return title;
    const std::string& track = data.index.tracks()[row.track];
    for (const auto& [kind, brief] : {std::pair(kToDeviceTrack, kToDeviceName), {kToHostTrack, kToHostName}})
        if (isLinkTrack(track, kind)) return QString::fromUtf8(brief) + title.mid(qsizetype(kind.size()));
    return title;
}

TimelineAreas TimelineAreas::of(QSize size, int wanted) {
    TimelineAreas areas;
    const int gutter = std::min(wanted, size.width() / 2), width = std::max(1, size.width() - gutter - 1);
    areas.minimap = {gutter, 2, width, kMinimap};
    areas.ruler = {gutter, kMinimap + 4, width, kRuler};
    const int top = kMinimap + kRuler + 5;
    areas.gutter = {0, top, gutter, std::max(1, size.height() - top)};
    areas.body = {gutter, top, width, std::max(1, size.height() - top)};
    return areas;
}

QString readableName(std::string_view name) {
    constexpr qsizetype kLongest = 500; // of a C++ template it may have ten thousand; measuring them takes a frame
    if (std::ssize(name) <= kLongest) return QString::fromUtf8(name.data(), qsizetype(name.size()));
    const QString text = QString::fromUtf8(name.data(), std::min<qsizetype>(qsizetype(name.size()), 4 * kLongest + 4));
    return text.size() <= kLongest ? text : text.left(kLongest - 1) + QStringLiteral("…");
}

QString shownName(const TimelineData& data, const TimelineSpan& span) {
    const std::string& name = data.index.names()[span.name];
    if (name == "layer" && span.layer >= 0) return QStringLiteral("layer %1").arg(span.layer);
    if (isStepName(name) && span.step >= 0)
        return QStringLiteral("%1 %2").arg(QString::fromStdString(name)).arg(span.step);
    return readableName(name);
}

QString shortName(const TimelineData& data, const TimelineSpan& span) {
    const std::string_view name = data.index.names()[span.name];
    if (name == "layer") return span.layer < 0 ? QString() : QString::number(span.layer);
    if (isStepName(name)) return span.step < 0 ? QString() : QString::number(span.step);
    std::string_view own = name.substr(0, name.find_first_of("<("));
    if (const auto space = own.find_last_of(" :"); space != std::string_view::npos) own.remove_prefix(space + 1);
    return own.empty() ? shownName(data, span) : readableName(own);
}

QString beyondText(const TimelineScene& scene, bool left) {
    if (!(scene.window == scene.home)) return {};
    const TimeRange whole = scene.data->whole();
    const double margin = whole.size() / 102; // widened() put 1 % at each side, where nothing is
    const double beyond = (left ? scene.window.from - whole.from : whole.to - scene.window.to) - margin;
    if (beyond < scene.window.size() * 0.02) return {}; // a sliver is no surprise
    const QString time = formatTime(beyond, beyond / 100);
    if (scene.data->counters.size() == 0) // there are spans far from the others
        return left ? QCoreApplication::translate("TimelineScene", "◂ %1 before").arg(time)
                    : QCoreApplication::translate("TimelineScene", "%1 after ▸").arg(time);
    if (left && scene.homeIsDecode)
        return QCoreApplication::translate("TimelineScene", "◂ %1 before the decode steps").arg(time);
    return left ? QCoreApplication::translate("TimelineScene", "◂ %1 before the steps").arg(time)
                : QCoreApplication::translate("TimelineScene", "%1 after the steps ▸").arg(time);
}

} // namespace kvscope::ui
