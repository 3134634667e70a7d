#include "profiler/read/gauge_batch.h"

#include "base/error.h"
#include "profiler/format/trace_keys.h"
#include "profiler/read/reader_impl.h"
#include "profiler/read/recorded_oracle.h"
#include "profiler/read/sane_times.h"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>

namespace kvscope {
namespace {

constexpr int kRowsPerStep = 8; // so many rows take as long to read as finding a step's selections
constexpr std::int64_t kPoolMask = (std::int64_t(1) << trace::kSelectionShift) - 1;

class GaugeReader {
public:
    GaugeReader(const TraceReader& reader, int runId, const GaugePosition& from, int rows)
        : reader_(reader), connection_(*ReaderAccess::of(reader).connection), run_(runId), left_(rows) {
        const std::optional<RunRow> run = reader.run(runId);
        if (!run)
            throw Error(ErrorKind::BadInput, fmt::format("{} has no run {}", reader.path(), runId), "open it again");
        info_ = *run;
        batch_.next = from;
    }

    GaugeBatch read() {
        if (isThere("counter")) counters();
        if (left_ > 0 && isThere("gauge")) gauges();
        if (left_ > 0 && info_.knows.has(Known::Selections) && isThere("selection")) oracle();
        // Not of serving runs: a request takes its blocks with it when it leaves its row, and the row's misses do not
        // say when.
        if (left_ > 0 && info_.knows.has(Known::Hits) && info_.deviceSlots > 0 && info_.blockBytes > 0 &&
            !info_.serves() && isThere("selection"))
            residency();
        batch_.atEnd = left_ > 0;
        return std::move(batch_);
    }

private:
    /// Whether there is a table of this name. A view of the name does not count, because a view in a foreign file could
    /// run for ever.
    bool isThere(std::string_view table) {
        Statement found(connection_, "SELECT 1 FROM sqlite_schema WHERE type='table' AND name=?");
        found.bind(1, table);
        return found.step();
    }

    std::int32_t track(GaugeInfo info) {
        batch_.tracks.push_back(std::move(info));
        return std::int32_t(batch_.tracks.size()) - 1;
    }

    /// A track of the trace, looked up once per batch.
    std::int32_t stored(GaugeInfo::Source source, std::int64_t text) {
        const auto [at, isNew] = stored_.try_emplace({source, text}, 0);
        if (isNew) {
            if (!find_) find_.emplace(connection_, "SELECT value FROM text WHERE id = ?");
            find_->bind(1, text);
            at->second = track(describeGauge(source, find_->step() ? find_->text(0) : std::string_view("(no name)")));
            find_->reset();
        }
        return at->second;
    }

    void counters() {
        Statement rows(connection_, "SELECT id, run_id, track, start_ns, duration_ns, value FROM counter WHERE id > ?"
                                    " ORDER BY id LIMIT ?");
        rows.bindAll(batch_.next.counter, left_);
        while (rows.step()) {
            batch_.next.counter = rows.int64(0);
            --left_;
            if (rows.int64(1) != run_) continue;
            const std::int32_t of = stored(GaugeInfo::Source::Interval, rows.int64(2));
            const std::int64_t start = saneTime(rows.int64(3)), length = saneDuration(rows.int64(4));
            double value = double(rows.int64(5));
            if (batch_.tracks[std::size_t(of)].unit == GaugeUnit::BytesPerSecond) {
                if (length == 0) continue; // no rate
                value /= double(length) * 1e-9;
            }
            batch_.samples.push_back({of, start, start + length, value});
        }
    }

    void gauges() {
        Statement rows(connection_,
                       "SELECT id, run_id, track, time_ns, value FROM gauge WHERE id > ? ORDER BY id LIMIT ?");
        rows.bindAll(batch_.next.gauge, left_);
        while (rows.step()) {
            batch_.next.gauge = rows.int64(0);
            --left_;
            if (rows.int64(1) != run_) continue;
            batch_.samples.push_back({stored(GaugeInfo::Source::Held, rows.int64(2)), saneTime(rows.int64(3)),
                                      GaugeSeries::kOpen, rows.real(4)});
        }
    }

    /// Decides whether the attention mass was measured. Leaves it open for a run that has selected nothing yet, and for
    /// a run that grows and has no mass in its few steps so far.
    void decideOracle() {
        constexpr int kEnoughSteps = 65; // as many as recordedOracle() looks at
        Statement any(connection_, "SELECT 1 FROM selection WHERE id BETWEEN ? AND ? LIMIT 1");
        const auto [low, high] = trace::keysOfSteps(run_, 0, trace::kMaxStep, trace::kSelectionShift);
        any.bindAll(low, high);
        if (!any.step()) return;
        const bool measured = recordedOracle(reader_, run_);
        const bool grows = info_.status == RunStatus::Running && !info_.stale && info_.steps < kEnoughSteps;
        if (measured || !grows) batch_.next.oracle = measured;
    }

    /// What the oracle measured, step by step: a value for as long as its step took.
    void oracle() {
        if (!batch_.next.oracle) decideOracle();
        if (batch_.next.oracle != true) return;
        Statement steps(connection_, "SELECT id, start_ns, duration_ns FROM step WHERE id BETWEEN ? AND ?"
                                     " AND selected > 0 ORDER BY id");
        steps.bindAll(trace::stepKey(run_, 0) + batch_.next.measuredStep + 1, trace::stepKey(run_, trace::kMaxStep));
        Statement mass(connection_,
                       "SELECT count(mass), 100 * (1 - avg(mass)) FROM selection WHERE id BETWEEN ? AND ?");
        std::optional<Statement> recall; // older traces have the mass alone
        if (isThere("oracle"))
            recall.emplace(connection_, "SELECT count(recall), 100 * avg(recall) FROM oracle WHERE id BETWEEN ? AND ?");
        std::int32_t recallTrack = -1, lostTrack = -1;
        while (left_ > 0 && steps.step()) {
            const int step = trace::stepOf(steps.int64(0), 0);
            const std::int64_t start = saneTime(steps.int64(1)), length = saneDuration(steps.int64(2));
            const auto take = [&](Statement& rows, std::int32_t& of, const char* title, double ceiling) {
                const auto [low, high] = trace::keysOfSteps(run_, step, step, trace::kSelectionShift);
                rows.bindAll(low, high);
                if (rows.step() && rows.int64(0) > 0) {
                    if (of < 0) of = track(measuredShare(title, ceiling));
                    batch_.samples.push_back({of, start, start + length, rows.real(1)});
                    left_ -= rows.int64(0);
                }
                rows.reset();
            };
            if (recall) take(*recall, recallTrack, kOracleRecall, 100);
            take(mass, lostTrack, kLostMass, 0);
            left_ -= kRowsPerStep;
            batch_.next.measuredStep = step;
        }
    }

    static GaugeInfo measuredShare(const char* title, double ceiling) {
        GaugeInfo info;
        info.source = GaugeInfo::Source::Oracle;
        info.track = info.title = title;
        info.unit = GaugeUnit::Percent;
        info.ceiling = ceiling;
        return info;
    }

    /// Step by step; selections that cannot change anything are stepped over where that is quicker.
    void residency() {
        ResidentPools pools = batch_.next.pools
                                  ? *batch_.next.pools
                                  : ResidentPools(info_.deviceSlots, std::int64_t(info_.sequences) * info_.kvHeads);
        Statement steps(connection_, "SELECT id, start_ns, selected FROM step WHERE id BETWEEN ? AND ? ORDER BY id");
        steps.bindAll(trace::stepKey(run_, 0) + batch_.next.countedStep + 1, trace::stepKey(run_, trace::kMaxStep));
        Statement rows(connection_, "SELECT id, misses, opens_block FROM selection WHERE id BETWEEN ? AND ?"
                                    " AND (? OR misses > 0 OR opens_block <> 0) ORDER BY id");
        std::int32_t of = -1;
        while (left_ > 0 && steps.step()) {
            left_ -= kRowsPerStep;
            const int step = trace::stepOf(steps.int64(0), 0);
            bool selects = steps.int64(2) > 0;
            const std::vector<ResidentPools::Layers> changing = pools.changing();
            for (const ResidentPools::Layers& layers : changing) {
                rows.bindAll(
                    trace::selectionKey(run_, step, layers.first, 0, 0),
                    trace::selectionKey(run_, step, layers.last, trace::kMaxSequences - 1, trace::kMaxKvHeads - 1),
                    layers.all);
                for (; rows.step(); --left_, selects = true)
                    pools.select(rows.int64(0) & kPoolMask,
                                 std::clamp<std::int64_t>(rows.int64(1), 0, std::numeric_limits<int>::max()),
                                 rows.int64(2) != 0);
                rows.reset();
            }
            batch_.next.countedStep = step;
            if (!selects || pools.empty()) continue;
            if (of < 0) of = track(residentKv());
            batch_.samples.push_back(
                {of, saneTime(steps.int64(1)), GaugeSeries::kOpen, double(pools.blocks()) * double(info_.blockBytes)});
        }
        if (of >= 0) batch_.tracks[std::size_t(of)].ceiling = double(pools.capacity()) * double(info_.blockBytes);
        batch_.counted = left_ > 0 ? 1 : double(batch_.next.countedStep) / std::max(1, info_.steps);
        batch_.next.pools = std::make_shared<const ResidentPools>(std::move(pools));
    }

    static GaugeInfo residentKv() {
        GaugeInfo info;
        info.source = GaugeInfo::Source::Residency;
        info.track = kResidentKv;
        info.title = kResidentKv;
        info.unit = GaugeUnit::Bytes;
        return info;
    }

    const TraceReader& reader_;
    Connection& connection_;
    int run_;
    RunRow info_;
    std::int64_t left_;
    GaugeBatch batch_;
    std::map<std::pair<GaugeInfo::Source, std::int64_t>, std::int32_t> stored_;
    std::optional<Statement> find_;
};

} // namespace

GaugeBatch readGauges(const TraceReader& reader, int runId, const GaugePosition& from, int rows) {
    return GaugeReader(reader, runId, from, std::max(rows, 16)).read();
}

} // namespace kvscope
