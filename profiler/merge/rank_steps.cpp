#include "profiler/merge/rank_steps.h"

#include "base/error.h"
#include "base/indexed.h"
#include "profiler/merge/clock_offset.h"
#include "profiler/read/reader_impl.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <map>
#include <unordered_map>

namespace kvscope {
namespace {

constexpr std::size_t kMostCells = std::size_t(1) << 24; // 400 MB where every number is known
constexpr int kStepsAtOnce = 1 << 14;
constexpr std::int64_t kMostCollectives = 1 << 21; // of one rank
constexpr double kAlike = 0.03;                    // medians closer than this are not told apart
constexpr double kWorthWaiting = 0.01;             // of the step time

constexpr float kUnknown = std::numeric_limits<float>::quiet_NaN();

/// A collective on one rank.
struct Collective {
    int step = -1;
    std::int64_t startNs = 0;
};

class RankReading {
public:
    RankReading(const TraceReader& reader, NumberedSpan<const RunRow> runs, const RankGroup& group)
        : reader_(reader), runs_(runs), group_(group) {
        for (const RankedRun& ranked : group.ranks) rows_.push_back({ranked.rank, int(ranked.run)});
        for (const int rank : group.missing) rows_.push_back({rank, -1});
        std::sort(rows_.begin(), rows_.end());
        for (const auto& [rank, run] : rows_) {
            out_.ranks.push_back(rank);
            out_.runs.push_back(run < 0 ? 0 : runs[run].runId);
            if (run >= 0) out_.steps = std::max(out_.steps, runs[run].steps);
        }
        out_.otherRequests = group.otherRequests;
        if (Elements(out_.steps, out_.ranks.size()) > kMostCells)
            throw Error(
                ErrorKind::Unsupported,
                fmt::format("{} steps of {} ranks are more than one picture holds", out_.steps, out_.ranks.size()),
                "merge fewer ranks, or look at each rank by itself");
    }

    RankSteps read() {
        for (int row = 0; row < int(rows_.size()); ++row)
            if (rows_[row].second >= 0) readSteps(row, runs_[rows_[row].second]);
        readWaits();
        return std::move(out_);
    }

private:
    using Start = std::pair<std::int64_t, int>; // moment, step

    void set(RankNumber number, int step, int row, double value) {
        std::vector<float>& cells = out_.values[number];
        if (cells.empty()) cells.assign(out_.extents().size(), kUnknown);
        cells[out_.extents().offset(step, row)] = float(value);
    }

    void readSteps(int row, const RunRow& run) {
        std::vector<Start>& starts = starts_[row];
        for (int first = 0; first < run.steps; first += kStepsAtOnce)
            for (const StepRow& step : reader_.steps(run.runId, first, std::min(first + kStepsAtOnce, run.steps) - 1)) {
                if (step.step < 0 || step.step >= out_.steps) continue;
                starts.emplace_back(step.startNs, step.step);
                if (run.knows.has(Known::StepTimes)) set(RankNumber::StepTime, step.step, row, double(step.durationNs));
                if (step.phase != Phase::Decode) continue;
                if (run.knows.has(Known::Hits) && step.hits + step.misses > 0)
                    set(RankNumber::HitRate, step.step, row, double(step.hits) / double(step.hits + step.misses));
                if (run.knows.has(Known::Hits)) set(RankNumber::Misses, step.step, row, double(step.misses));
                if (run.knows.has(Known::Bytes)) set(RankNumber::Bytes, step.step, row, double(step.h2dBytes));
                if (run.knows.has(Known::ExposedTimes))
                    set(RankNumber::Exposed, step.step, row, double(step.exposedNs));
            }
        std::sort(starts.begin(), starts.end());
    }

    /// The step in which a moment lies by the starts of the rank's steps; -1: before the first one.
    int stepAt(int row, std::int64_t ns) const {
        const std::vector<Start>& starts = starts_.at(row);
        const auto after = std::upper_bound(starts.begin(), starts.end(), Start(ns, std::numeric_limits<int>::max()));
        return after == starts.begin() ? -1 : std::prev(after)->second;
    }

    std::unordered_map<std::string, Collective> collectivesOf(int row) const {
        std::unordered_map<std::string, Collective> found;
        Connection& connection = *ReaderAccess::of(reader_).connection;
        Statement spans(connection, "SELECT n.value, s.step, s.start_ns FROM span s JOIN text n ON n.id = s.name"
                                    " WHERE s.run_id = ? AND s.track = (SELECT id FROM text WHERE value = ?)"
                                    " AND typeof(s.start_ns) = 'integer' ORDER BY s.id LIMIT ?");
        spans.bindAll(out_.runs[row], std::string_view(kCollectiveTrack), kMostCollectives);
        while (spans.step()) {
            Collective collective{int(spans.int64(1)), spans.int64(2)};
            if (collective.step < 0) collective.step = stepAt(row, collective.startNs);
            if (collective.step < 0 || collective.step >= out_.steps) continue;
            found.emplace(std::string(spans.text(0)), collective); // a name that comes again is another moment
        }
        return found;
    }

    void readWaits() {
        std::vector<int> present;
        for (int row = 0; row < int(rows_.size()); ++row)
            if (rows_[row].second >= 0) present.push_back(row);
        if (present.size() < 2) return;
        std::vector<std::unordered_map<std::string, Collective>> all;
        for (const int row : present) {
            all.push_back(collectivesOf(row));
            if (all.back().empty()) return; // a rank without collectives says nothing about waits
        }
        std::map<std::pair<int, int>, std::int64_t> waits; // [row, step]
        for (const auto& [name, first] : all.front()) {
            std::int64_t latest = first.startNs;
            bool everywhere = true;
            for (const auto& rank : all) {
                const auto found = rank.find(name);
                everywhere = everywhere && found != rank.end();
                if (everywhere) latest = std::max(latest, found->second.startNs);
            }
            if (!everywhere) continue;
            for (std::size_t i = 0; i < all.size(); ++i) {
                const Collective& own = all[i].at(name);
                waits[{present[i], own.step}] += latest - own.startNs;
            }
        }
        for (const auto& [place, ns] : waits) set(RankNumber::Wait, place.second, place.first, double(ns));
    }

    const TraceReader& reader_;
    NumberedSpan<const RunRow> runs_;
    const RankGroup& group_;
    Numbered<std::pair<int, int>> rows_;       // rank, and place of its run; -1: missing
    std::map<int, std::vector<Start>> starts_; // [row], ascending
    RankSteps out_;
};

double medianOf(std::vector<double>& values) {
    const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

std::string duration(double ns) {
    return ns >= 1e9   ? fmt::format("{:.3g} s", ns / 1e9)
           : ns >= 1e6 ? fmt::format("{:.3g} ms", ns / 1e6)
                       : fmt::format("{:.3g} us", ns / 1e3);
}

/// What the sentence about a late rank is made of: numbers of each rank of the trace, over the decode steps that all
/// ranks have.
struct Late {
    std::vector<int> rows;        // with known times
    std::vector<double> medianNs; // [place in rows]
    std::vector<double> waitNs;   // [place in rows] mean per step; empty: not known
    std::vector<int> latest;      // [place in rows] in how many common steps this was the late one
    std::vector<double> misses;   // [place in rows] mean per step; NaN: not known
    int common = 0;
};

Late lateOf(const RankSteps& steps) {
    Late late;
    const int rows = int(steps.ranks.size());
    for (int row = 0; row < rows; ++row)
        for (int step = 1; step < steps.steps; ++step)
            if (!std::isnan(steps.at(RankNumber::StepTime, step, row))) {
                late.rows.push_back(row);
                break;
            }
    const std::size_t ranks = late.rows.size();
    if (ranks < 2) return late; // nothing to compare
    std::vector<std::vector<double>> times(ranks);
    std::vector<double> waits(ranks), misses(ranks);
    late.latest.assign(ranks, 0);
    int waited = 0;
    for (int step = 1; step < steps.steps; ++step) {
        const auto of = [&](RankNumber number, std::size_t i) { return double(steps.at(number, step, late.rows[i])); };
        bool all = true, allWait = true;
        for (std::size_t i = 0; i < ranks; ++i) {
            all = all && !std::isnan(of(RankNumber::StepTime, i));
            allWait = allWait && !std::isnan(of(RankNumber::Wait, i));
        }
        if (!all) continue;
        ++late.common;
        waited += allWait ? 1 : 0;
        std::size_t latest = 0;
        for (std::size_t i = 0; i < ranks; ++i) {
            times[i].push_back(of(RankNumber::StepTime, i));
            misses[i] += of(RankNumber::Misses, i);
            if (allWait) waits[i] += of(RankNumber::Wait, i);
            const bool later = allWait ? of(RankNumber::Wait, i) < of(RankNumber::Wait, latest)
                                       : of(RankNumber::StepTime, i) > of(RankNumber::StepTime, latest);
            if (later) latest = i;
        }
        ++late.latest[latest];
    }
    for (std::size_t i = 0; i < ranks && late.common > 0; ++i) {
        late.medianNs.push_back(medianOf(times[i]));
        late.misses.push_back(misses[i] / late.common);
        if (waited == late.common) late.waitNs.push_back(waits[i] / late.common);
    }
    return late;
}

std::string missesOf(const Late& late, std::size_t slow, std::size_t fast) {
    const double more = late.misses[slow] - late.misses[fast];
    if (std::isnan(more)) return {};
    if (std::abs(more) < 0.5) return "; both miss as many blocks";
    return fmt::format("; it misses {:.3g} blocks a step {}", std::abs(more), more > 0 ? "more" : "less");
}

} // namespace

std::span<const RankNumberInfo> rankNumbers() {
    static constexpr std::array<RankNumberInfo, kRankNumbers> all{{
        {RankNumber::StepTime, "step_time", "Step time", "ns", "How long the step took on the rank"},
        {RankNumber::HitRate, "hit_rate", "Hit rate", "", "Hits / (hits + misses) of the rank's selected blocks"},
        {RankNumber::Misses, "misses", "Misses", "blocks", "Selected blocks that the rank had to load"},
        {RankNumber::Bytes, "h2d_bytes", "Bytes to the device", "B", "What the rank loaded over its link"},
        {RankNumber::Exposed, "exposed", "Exposed time", "ns",
         "Time of transfers in which the rank computed nothing: it waited for its own KV blocks"},
        {RankNumber::Wait, "wait", "Wait for other ranks", "ns",
         "In collectives: from the rank's own start to that of the last rank. As wrong as the clocks are"},
    }};
    return all;
}

float RankSteps::at(RankNumber number, int step, int row) const {
    const std::vector<float>& cells = values[number];
    if (cells.empty() || step < 0 || step >= steps || row < 0 || row >= ranks.count()) return kUnknown;
    return cells[extents().offset(step, row)];
}

std::optional<int> RankSteps::rowOf(int runId) const {
    const auto found = std::find(runs.begin(), runs.end(), runId);
    return runId > 0 && found != runs.end() ? std::optional(int(found - runs.begin())) : std::nullopt;
}

RankSteps readRankSteps(const TraceReader& reader, NumberedSpan<const RunRow> runs, const RankGroup& group) {
    return RankReading(reader, runs, group).read();
}

std::string lateSentence(const RankSteps& steps) {
    const Late late = lateOf(steps);
    if (late.rows.size() < 2 || late.common == 0) return {};
    const auto byTime = std::minmax_element(late.medianNs.begin(), late.medianNs.end());
    const std::size_t fast = std::size_t(byTime.first - late.medianNs.begin());
    std::size_t slow = std::size_t(byTime.second - late.medianNs.begin());
    const auto rank = [&](std::size_t i) { return steps.ranks[late.rows[i]]; };
    const auto share = [&](std::size_t i) { return 100.0 * late.latest[i] / late.common; };
    if (!late.waitNs.empty() && !steps.otherRequests) {
        const auto waits = std::minmax_element(late.waitNs.begin(), late.waitNs.end());
        const std::size_t waited = std::size_t(waits.first - late.waitNs.begin());
        const std::size_t waiting = std::size_t(waits.second - late.waitNs.begin());
        if (*waits.second < kWorthWaiting * late.medianNs[waiting])
            return fmt::format("No rank waits long for another: at most {} of {} a step", duration(*waits.second),
                               duration(late.medianNs[waiting]));
        return fmt::format(
            "The others wait for rank {} in {:.0f} % of {} steps, rank {} the longest: {} of {} a step{}", rank(waited),
            share(waited), late.common, rank(waiting), duration(*waits.second), duration(late.medianNs[waiting]),
            missesOf(late, waited, waiting));
    }
    if (late.medianNs[slow] - late.medianNs[fast] < kAlike * late.medianNs[fast]) {
        const std::string least = duration(late.medianNs[fast]), most = duration(late.medianNs[slow]);
        return fmt::format("Steps take about as long on all ranks: {} in the median",
                           least == most ? least : least + " to " + most);
    }
    return fmt::format("Rank {} is slowest: its steps take {} in the median, rank {}'s take {}{}{}", rank(slow),
                       duration(late.medianNs[slow]), rank(fast), duration(late.medianNs[fast]),
                       steps.otherRequests
                           ? std::string()
                           : fmt::format("; of {} steps it took longest in {:.0f} %", late.common, share(slow)),
                       missesOf(late, slow, fast));
}

} // namespace kvscope
