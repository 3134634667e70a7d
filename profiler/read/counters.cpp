#include "profiler/read/counters.h"

#include "profiler/read/reader_impl.h"

#include <algorithm>
#include <cmath>

namespace kvscope {

std::vector<CounterSample> counterSamples(const TraceReader& reader, int runId) {
    const auto& trace = ReaderAccess::of(reader);
    std::vector<CounterSample> samples;
    if (!trace.hasTable("counter")) return samples;
    Statement rows(*trace.connection, "SELECT t.value, c.start_ns, c.duration_ns, c.value FROM counter c"
                                      " JOIN text t ON t.id = c.track WHERE c.run_id=? ORDER BY c.start_ns, c.id");
    rows.bind(1, runId);
    while (rows.step()) samples.push_back({std::string(rows.text(0)), rows.int64(1), rows.int64(2), rows.int64(3)});
    return samples;
}

namespace {

// Measured on an H200 with kernels that move 256 MiB: what is read comes in packets with headers of 12 bytes, what is
// written or asked for goes in packets with headers of 16. NVML counts 8 more of each, which the link itself adds.
constexpr double kPacketPayload = 128, kAnswerHeader = 12, kRequestHeader = 16, kLinkFrame = 8;
constexpr double kFewestSamples = 4; // of a step: the first and the last are shared with its neighbours by time

/// take: is handed the columns start_ns, duration_ns and value, in the order of time
template <class Take> void forEachSample(Connection& connection, int runId, const char* track, Take&& take) {
    Statement rows(connection, "SELECT start_ns, duration_ns, value FROM counter WHERE run_id=? AND"
                               " track=(SELECT id FROM text WHERE value=?) ORDER BY start_ns, id");
    rows.bindAll(runId, std::string_view(track));
    while (rows.step()) take(rows);
}

/// One direction of the link: what was counted between any two times.
class LinkCount {
public:
    LinkCount() = default;
    LinkCount(Connection& connection, int runId, const char* track) {
        std::vector<double> lengths;
        forEachSample(connection, runId, track, [&](const Statement& row) {
            const double length = double(row.int64(1)), value = double(row.int64(2));
            if (length <= 0) return;
            starts_.push_back(double(row.int64(0)));
            ends_.push_back(starts_.back() + length);
            before_.push_back(before_.back() + value);
            if (value > 0) lengths.push_back(length); // an idle link's samples may have been joined
        });
        if (lengths.empty()) return;
        const auto middle = lengths.begin() + std::ptrdiff_t(lengths.size() / 2);
        std::nth_element(lengths.begin(), middle, lengths.end());
        usualLength_ = *middle;
    }
    bool empty() const { return starts_.empty(); }
    /// The usual length of the samples that counted something; 0: none did.
    double usualLength() const { return usualLength_; }
    /// The sum over a range; nothing where no part of the range was sampled.
    std::optional<double> between(double from, double to) const {
        const auto first = std::size_t(std::upper_bound(ends_.begin(), ends_.end(), from) - ends_.begin());
        const auto last = std::size_t(std::lower_bound(starts_.begin(), starts_.end(), to) - starts_.begin());
        if (first >= last) return std::nullopt;
        double sum = before_[last] - before_[first];
        sum -= outside(first, from, to) + (last - 1 > first ? outside(last - 1, from, to) : 0);
        return sum;
    }

private:
    /// The part of a sample's value that belongs to the share of its time outside of the range.
    double outside(std::size_t sample, double from, double to) const {
        const double length = ends_[sample] - starts_[sample];
        const double within = std::min(to, ends_[sample]) - std::max(from, starts_[sample]);
        return (before_[sample + 1] - before_[sample]) * (1 - within / length);
    }
    std::vector<double> starts_, ends_, before_{0};
    double usualLength_ = 0;
};

/// What crossed the link in both directions: by PM sampling where the trace has it, else by NVML.
class LinkCounts {
public:
    LinkCounts(const TraceReader& reader, int runId) {
        const auto& trace = ReaderAccess::of(reader);
        if (!trace.hasTable("counter")) return;
        toDevice_ = LinkCount(*trace.connection, runId, kPmToDevice);
        toHost_ = LinkCount(*trace.connection, runId, kPmToHost);
        sampled_ = !toDevice_.empty() || !toHost_.empty();
        if (sampled_) return;
        toDevice_ = LinkCount(*trace.connection, runId, kPcieToDevice);
        toHost_ = LinkCount(*trace.connection, runId, kPcieToHost);
    }
    std::optional<PcieTraffic> between(double from, double to) const {
        const auto down = toDevice_.between(from, to), up = toHost_.between(from, to);
        if (!down && !up) return std::nullopt;
        PcieTraffic traffic;
        traffic.sampled = sampled_;
        traffic.countedToDevice = std::llround(down.value_or(0));
        traffic.countedToHost = std::llround(up.value_or(0));
        return traffic;
    }
    bool empty() const { return toDevice_.empty() && toHost_.empty(); }
    double usualLength() const { return std::max(toDevice_.usualLength(), toHost_.usualLength()); }

private:
    bool sampled_ = false;
    LinkCount toDevice_, toHost_;
};

/// Wraps around: a damaged trace may hold any number.
std::int64_t sumOf(std::int64_t a, std::int64_t b) { return std::int64_t(std::uint64_t(a) + std::uint64_t(b)); }

void addEngine(PcieTraffic& traffic, const StepRow& step) {
    traffic.engineToDevice = sumOf(traffic.engineToDevice, step.h2dBytes);
    traffic.engineToHost = sumOf(traffic.engineToHost, step.d2hBytes);
}

std::optional<std::int64_t> sumOfTrack(const TraceReader& reader, int runId, const char* track) {
    const auto& trace = ReaderAccess::of(reader);
    if (!trace.hasTable("counter")) return std::nullopt;
    std::optional<std::int64_t> sum;
    forEachSample(*trace.connection, runId, track,
                  [&](const Statement& row) { sum = sumOf(sum.value_or(0), row.int64(2)); });
    return sum;
}

} // namespace

std::int64_t PcieTraffic::expectedToDevice() const {
    const double around = kAnswerHeader + (sampled ? 0 : kLinkFrame);
    return std::llround(double(engineToDevice) * (1 + around / kPacketPayload));
}

std::int64_t PcieTraffic::expectedToHost() const {
    const double around = kRequestHeader + (sampled ? 0 : kLinkFrame);
    return std::llround(double(engineToHost) +
                        (double(engineToHost) + double(engineToDevice)) * around / kPacketPayload);
}

std::optional<PcieTraffic> pcieTraffic(const TraceReader& reader, int runId) {
    double begin = INFINITY, end = -INFINITY;
    PcieTraffic engine;
    for (const StepRow& step : reader.steps(runId)) {
        if (step.phase != Phase::Decode) continue;
        begin = std::min(begin, double(step.startNs));
        end = std::max(end, double(step.startNs) + double(step.durationNs));
        addEngine(engine, step);
    }
    std::optional<PcieTraffic> traffic = LinkCounts(reader, runId).between(begin, end);
    if (traffic) traffic->engineToDevice = engine.engineToDevice, traffic->engineToHost = engine.engineToHost;
    return traffic;
}

std::vector<PcieStep> pcieOfSteps(const TraceReader& reader, int runId) {
    std::vector<PcieStep> steps;
    const LinkCounts counts(reader, runId);
    const double shortest = kFewestSamples * counts.usualLength();
    if (shortest <= 0) return steps;
    for (const StepRow& step : reader.steps(runId)) {
        if (step.phase != Phase::Decode || double(step.durationNs) < shortest) continue;
        const auto from = double(step.startNs);
        std::optional<PcieTraffic> traffic = counts.between(from, from + double(step.durationNs));
        if (!traffic) continue;
        addEngine(*traffic, step);
        steps.push_back({step.step, *traffic});
    }
    return steps;
}

std::optional<std::int64_t> lostGpuRecords(const TraceReader& reader, int runId) {
    return sumOfTrack(reader, runId, kLostGpuRecords);
}

std::vector<std::optional<PcieTraffic>> pcieOfIntervals(const TraceReader& reader, int runId, double endNs, int count) {
    const LinkCounts counted(reader, runId);
    if (counted.empty()) return {};
    std::vector<std::optional<PcieTraffic>> intervals;
    for (int i = 0; i < count; ++i) intervals.push_back(counted.between(endNs * i / count, endNs * (i + 1) / count));
    return intervals;
}

std::optional<std::int64_t> lostPmSamples(const TraceReader& reader, int runId) {
    return sumOfTrack(reader, runId, kLostPmSamples);
}

} // namespace kvscope
