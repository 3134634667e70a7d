#include "profiler/merge/clock_offset.h"

#include "base/json_reading.h"
#include "core/trace/run_meta.h"
#include "profiler/format/trace_keys.h"
#include "profiler/read/reader_impl.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <fmt/format.h>
#include <map>

namespace kvscope {
namespace {

constexpr int kMostMoments = 20000;
constexpr std::size_t kFewestMoments = 3;
constexpr std::int64_t kOrderNs = 100'000; // below this, a contradiction is not worth a word
constexpr std::int64_t kSecondNs = 1'000'000'000;
constexpr std::int64_t kLateNs = kSecondNs / 2; // ranks that wait for each other begin their steps within milliseconds
constexpr std::int64_t kLargestNs = std::int64_t(1) << 62; // readings beyond it are no times

std::optional<std::int64_t> secondsOf(const std::string& utc) {
    std::optional<std::int64_t> seconds;
    std::tm parts{};
    if (strptime(utc.c_str(), "%Y-%m-%dT%H:%M:%S", &parts) == nullptr) return seconds;
    const std::time_t read = timegm(&parts);
    if (read > 0 && read < (std::time_t(1) << 33)) seconds = read;
    return seconds;
}

bool isTime(const nlohmann::json& value) {
    return value.is_number_integer() && std::abs(value.get<double>()) < double(kLargestNs);
}

std::vector<RankClock::Reading> readingsIn(const std::string& text) {
    std::vector<RankClock::Reading> readings;
    const nlohmann::json list = parseJson(text);
    if (!list.is_array()) return readings;
    for (const nlohmann::json& entry : list) {
        if (!entry.is_array() || entry.size() < 4 || !entry[0].is_string()) continue;
        if (!isTime(entry[1]) || !isTime(entry[2]) || !isTime(entry[3])) continue;
        readings.push_back({entry[0].get<std::string>(), entry[1].get<std::int64_t>(), entry[2].get<std::int64_t>(),
                            std::max<std::int64_t>(entry[3].get<std::int64_t>(), 0)});
    }
    return readings;
}

struct Median {
    std::int64_t value = 0;
    std::int64_t spread = 0; // nine of ten values lie no farther from `value`
};

std::int64_t middleOf(std::vector<std::int64_t>& values) {
    const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

/// The median of the reference's time minus the other's, over the moments that both have; nothing where these are too
/// few.
std::optional<Median> distanceOf(const std::vector<RankClock::Moment>& reference,
                                 const std::vector<RankClock::Moment>& other) {
    std::map<std::string_view, std::int64_t> at;
    for (const RankClock::Moment& moment : reference) at.emplace(moment.name, moment.ns);
    std::vector<std::int64_t> distances;
    for (const RankClock::Moment& moment : other)
        if (const auto found = at.find(moment.name); found != at.end()) {
            distances.push_back(found->second - moment.ns);
            at.erase(found); // a name that comes again is another moment
        }
    if (distances.size() < kFewestMoments) return std::nullopt;
    Median median;
    median.value = middleOf(distances);
    for (std::int64_t& distance : distances) distance = std::abs(distance - median.value);
    std::sort(distances.begin(), distances.end());
    median.spread = distances[distances.size() * 9 / 10];
    return median;
}

using Reading = RankClock::Reading;

/// The offset by a clock that both sides have read. Each reading of b is paired with the reading of a at which that
/// clock showed the nearest time, and the offset is the median over these pairs. The sides' own clocks may have drifted
/// apart between the readings, so the error reaches to the pair that is farthest from the median.
ClockOffset offsetOf(std::vector<Reading> a, const std::vector<Reading>& b, std::string_view kind) {
    std::sort(a.begin(), a.end(), [](const Reading& x, const Reading& y) { return x.otherNs < y.otherNs; });
    std::vector<std::int64_t> offsets;
    std::int64_t error = kLargestNs;
    for (const Reading& reading : b) {
        auto nearest = std::lower_bound(a.begin(), a.end(), reading.otherNs,
                                        [](const Reading& x, std::int64_t ns) { return x.otherNs < ns; });
        if (nearest == a.end() || (nearest != a.begin() &&
                                   reading.otherNs - std::prev(nearest)->otherNs < nearest->otherNs - reading.otherNs))
            --nearest;
        offsets.push_back((reading.otherNs - reading.ownNs) - (nearest->otherNs - nearest->ownNs));
        error = std::min(error, reading.errorNs + nearest->errorNs);
    }
    const std::int64_t middle = middleOf(offsets);
    std::int64_t farthest = 0;
    for (const std::int64_t offset : offsets) farthest = std::max(farthest, std::abs(offset - middle));
    return {middle, error + farthest, std::string(kind), {}};
}

/// The offset by the clocks of a kind that both sides have read: of several, the one with the smallest error. Nothing
/// where there is no such clock. kind: how the names of these clocks begin
std::optional<ClockOffset> byReadings(const RankClock& reference, const RankClock& other, std::string_view kind) {
    std::map<std::string_view, std::pair<std::vector<Reading>, std::vector<Reading>>> clocks;
    for (const Reading& reading : reference.readings)
        if (reading.clock.starts_with(kind)) clocks[reading.clock].first.push_back(reading);
    for (const Reading& reading : other.readings)
        if (reading.clock.starts_with(kind)) clocks[reading.clock].second.push_back(reading);
    std::optional<ClockOffset> best;
    for (const auto& [clock, sides] : clocks) {
        if (sides.first.empty() || sides.second.empty()) continue;
        ClockOffset offset = offsetOf(sides.first, sides.second, kind);
        if (!best || offset.errorNs < best->errorNs) best = std::move(offset);
    }
    return best;
}

std::string millis(std::int64_t ns) {
    return std::abs(ns) >= kSecondNs ? fmt::format("{:.3f} s", double(ns) / 1e9)
                                     : fmt::format("{:.3f} ms", double(ns) / 1e6);
}

} // namespace

RankClock readClock(const TraceReader& reader, const RunRow& run) {
    RankClock clock;
    clock.readings = readingsIn(run.metaOr(run_meta::kClocks));
    if (const auto seconds = secondsOf(run.createdUtc)) clock.createdNs = *seconds * kSecondNs;
    Connection& connection = *ReaderAccess::of(reader).connection;
    const auto inRange = [](std::int64_t ns) { return ns > -kLargestNs && ns < kLargestNs; };
    if (ReaderAccess::of(reader).hasTable("clock_sync")) {
        Statement rows(connection, "SELECT t.value, c.own_ns, c.reference_ns, c.error_ns FROM clock_sync c JOIN text t"
                                   " ON t.id = c.clock WHERE c.run_id = ? ORDER BY c.id LIMIT ?");
        rows.bindAll(run.runId, kMostMoments);
        while (rows.step())
            if (inRange(rows.int64(1)) && inRange(rows.int64(2)) && inRange(rows.int64(3)))
                clock.readings.push_back({std::string(rows.text(0)), rows.int64(1), rows.int64(2),
                                          std::max<std::int64_t>(rows.int64(3), 0)});
    }
    Statement spans(connection, "SELECT n.value, s.start_ns + s.duration_ns FROM span s JOIN text n ON n.id = s.name"
                                " WHERE s.run_id = ? AND s.track = (SELECT id FROM text WHERE value = ?)"
                                " AND typeof(s.start_ns + s.duration_ns) = 'integer' ORDER BY s.id LIMIT ?");
    spans.bindAll(run.runId, std::string_view(kCollectiveTrack), kMostMoments);
    while (spans.step())
        if (inRange(spans.int64(1))) clock.collectives.push_back({std::string(spans.text(0)), spans.int64(1)});
    Statement steps(connection, "SELECT id, start_ns, duration_ns FROM step WHERE id BETWEEN ? AND ? AND phase = 1"
                                " ORDER BY id LIMIT ?");
    steps.bindAll(trace::stepKey(run.runId, 0), trace::stepKey(run.runId, trace::kMaxStep), kMostMoments);
    std::vector<std::int64_t> durations;
    while (run.knows.has(Known::StepTimes) && steps.step()) {
        if (!inRange(steps.int64(1))) continue;
        clock.steps.push_back({std::to_string(trace::stepOf(steps.int64(0), 0)), steps.int64(1)});
        durations.push_back(steps.int64(2));
    }
    if (!durations.empty()) clock.medianStepNs = std::max<std::int64_t>(middleOf(durations), 0);
    return clock;
}

ClockOffset offsetBetween(const RankClock& reference, const RankClock& other, bool sameSteps) {
    std::vector<ClockOffset> ways; // the surest first
    if (auto way = byReadings(reference, other, "monotonic")) ways.push_back(std::move(*way));
    if (const auto left = distanceOf(reference.collectives, other.collectives))
        ways.push_back({left->value, left->spread, "collectives", {}});
    if (auto way = byReadings(reference, other, "utc")) ways.push_back(std::move(*way));
    if (ways.empty() && reference.createdNs && other.createdNs)
        ways.push_back({*other.createdNs - *reference.createdNs, kSecondNs, "created_utc", {}});
    if (ways.empty()) return {};
    ClockOffset best = ways.front();
    for (std::size_t i = 1; i < ways.size() && best.doubt.empty(); ++i) {
        const std::int64_t apart = ways[i].addNs - best.addNs;
        if (std::abs(apart) <= ways[i].errorNs + best.errorNs + kOrderNs) continue;
        best.doubt = fmt::format("its clock {} is {} {} by {}", ways[i].by, millis(std::abs(apart)),
                                 apart > 0 ? "ahead" : "behind", best.by);
    }
    if (!sameSteps || !best.doubt.empty() || best.by == "collectives") return best;
    const auto steps = distanceOf(reference.steps, other.steps);
    if (!steps) return best;
    const std::int64_t late = best.addNs - steps->value; // by how much its steps begin later
    const std::int64_t usual = 2 * std::max(reference.medianStepNs, other.medianStepNs);
    if (std::abs(late) > std::max({kLateNs, usual, 10 * steps->spread, best.errorNs + kOrderNs}))
        best.doubt = fmt::format("its steps begin {} {} than the same steps there, all alike: its clock is off, or it "
                                 "does not make them together with the others",
                                 millis(std::abs(late)), late > 0 ? "later" : "earlier");
    return best;
}

std::string shiftedClocks(const std::string& text, std::int64_t addNs) {
    nlohmann::json list = parseJson(text);
    if (!list.is_array()) return text;
    for (nlohmann::json& entry : list)
        if (entry.is_array() && entry.size() >= 4 && isTime(entry[1])) entry[1] = entry[1].get<std::int64_t>() + addNs;
    return list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

} // namespace kvscope
