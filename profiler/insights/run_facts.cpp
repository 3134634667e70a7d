#include "profiler/format/trace_keys.h"
#include "profiler/insights/insight_rule.h"
#include "profiler/read/denoising.h"
#include "profiler/read/reader_impl.h"
#include "profiler/replay/replay.h"

#include <algorithm>
#include <unordered_map>

namespace kvscope {
namespace {

constexpr std::int64_t kShortGapNs =
    10'000; // a kernel launch takes 3-4 us of host time; longer gaps wait for something

std::vector<HeadFacts> readHeads(const TraceReader& reader, int runId, const std::vector<StepRow>& decode) {
    std::vector<HeadFacts> heads;
    // Cold selections have no `kept`. Where a run never says what was kept, they cannot be told from others here.
    const bool saysKept = std::any_of(decode.begin(), decode.end(), [](const StepRow& step) { return step.kept >= 0; });
    Statement rows(*ReaderAccess::of(reader).connection,
                   "SELECT (id >> 20) & 1023 AS layer, (id >> 10) & 1023 AS seq, id & 1023 AS head, count(*),"
                   " sum(selected), max(selected), sum(hits), sum(misses),"
                   " total(CASE WHEN opens_block = 0 THEN CAST(kept AS REAL) / nullif(selected, 0) END),"
                   " total(opens_block = 0 AND kept IS NOT NULL AND selected > 0), total(mass), count(mass)"
                   " FROM selection WHERE id BETWEEN ? AND ? AND (kept IS NOT NULL OR ?)"
                   " GROUP BY layer, seq, head ORDER BY layer, seq, head");
    const auto [low, high] = trace::keysOfSteps(runId, 0, trace::kMaxStep, trace::kSelectionShift);
    rows.bindAll(low, high, !saysKept);
    while (rows.step()) {
        HeadFacts head;
        head.layer = rows.int32(0), head.sequence = rows.int32(1), head.kvHead = rows.int32(2);
        head.selections = rows.int64(3);
        head.selected = rows.int64(4);
        head.largest = rows.int32(5);
        head.hits = rows.int64(6);
        head.misses = rows.int64(7);
        head.localitySum = rows.real(8), head.localityCount = rows.real(9);
        head.massSum = rows.real(10), head.massCount = rows.real(11);
        heads.push_back(head);
    }
    return heads;
}

CacheFacts readCaches(const TraceReader& reader, int runId) {
    CacheFacts facts;
    facts.trace = loadSelectionTrace(reader, runId);
    facts.lruPools = missCurves(facts.trace, CurvePolicy::Lru);
    facts.beladyPools = missCurves(facts.trace, CurvePolicy::Belady);
    facts.lru = sum(facts.lruPools);
    facts.belady = sum(facts.beladyPools);
    facts.misses = facts.trace.misses;
    facts.compulsory = facts.lru.compulsory;
    return facts;
}

struct TimeInterval {
    std::int64_t begin = 0, end = 0;
    std::int64_t overlap(const TimeInterval& other) const {
        return std::max<std::int64_t>(0, std::min(end, other.end) - std::max(begin, other.begin));
    }
};

/// Kernels of each decode step, in order of their start, and where its layers move KV blocks.
struct StepTracks {
    std::vector<TimeInterval> kernels, offloading;
};

void addIdle(const TimeInterval& step, const StepTracks& tracks, GpuFacts& facts) {
    const auto idle = [&](const TimeInterval& gap) {
        if (gap.end <= gap.begin) return;
        const std::int64_t length = gap.end - gap.begin;
        facts.idleNs += length;
        std::int64_t loading = 0;
        for (const TimeInterval& window : tracks.offloading) loading += gap.overlap(window);
        facts.idleInOffloadingNs += loading;
        if (length <= kShortGapNs) facts.shortGapsNs += length - loading;
    };
    std::int64_t busyUntil = step.begin; // union, not sum: kernels of several streams overlap
    for (const TimeInterval& kernel : tracks.kernels) {
        idle({busyUntil, std::min(kernel.begin, step.end)});
        busyUntil = std::max(busyUntil, kernel.end);
        facts.kernelNs += kernel.end - kernel.begin;
    }
    idle({busyUntil, step.end});
    facts.wallNs += step.end - step.begin;
    facts.kernels += std::int64_t(tracks.kernels.size());
    ++facts.steps;
}

GpuFacts readGpu(const TraceReader& reader, int runId, const ExposureReport& exposure,
                 const std::vector<StepRow>& decode) {
    GpuFacts facts;
    Connection& connection = *ReaderAccess::of(reader).connection;
    std::unordered_map<int, StepTracks> tracks;
    Statement spans(connection,
                    "SELECT step, start_ns, duration_ns FROM span WHERE run_id = ? AND kind = 1 ORDER BY start_ns");
    spans.bindAll(runId);
    while (spans.step())
        tracks[spans.int32(0)].kernels.push_back(
            {spans.int64(1), spans.int64(1) + std::max<std::int64_t>(spans.int64(2), 0)});
    if (tracks.empty()) return facts;
    Statement layers(connection,
                     "SELECT id, start_ns + qkv_linear_ns + rope_ns + compression_ns + stage1_ns + pooling_ns,"
                     " offloading_ns FROM layer_step WHERE id BETWEEN ? AND ? AND offloading_ns > 0 ORDER BY id");
    const auto [low, high] = trace::keysOfSteps(runId, 0, trace::kMaxStep, trace::kLayerShift);
    layers.bindAll(low, high);
    while (layers.step()) {
        const auto at = tracks.find(trace::stepOf(layers.int64(0), trace::kLayerShift));
        if (at != tracks.end()) at->second.offloading.push_back({layers.int64(1), layers.int64(1) + layers.int64(2)});
    }
    for (std::size_t i = 0; i < decode.size(); ++i) {
        const auto at = tracks.find(decode[i].step);
        if (at == tracks.end() || !exposure.counts(exposure.steps[i].kind)) continue;
        addIdle({decode[i].startNs, decode[i].startNs + decode[i].durationNs}, at->second, facts);
    }
    return facts;
}

} // namespace

RunFacts::RunFacts(const TraceReader& reader, int runId, const InsightOptions& options)
    : reader_(reader), options_(options) {
    RunRow run = ReaderAccess::of(reader).known(runId);
    const std::vector<StepRow> steps = reader.steps(runId);
    exposure_ = exposureOfSteps(reader, std::move(run), steps);
    for (const StepRow& row : steps) {
        if (row.phase == Phase::Prefill)
            prefillNs_ += row.durationNs;
        else
            decode_.push_back(row);
    }
}

const RunCheck& RunFacts::check() {
    if (!check_) {
        CheckOptions counted = counting();
        counted.examples = 1;
        const bool recording = run().status == RunStatus::Running && !run().stale;
        check_ = recording ? RunCheck() : checkRun(reader_, run().runId, counted);
        if (!recording) check_->add(checkFile(reader_, counted));
    }
    return *check_;
}

bool RunFacts::hasDamagedBlobs() {
    return std::any_of(check().rules.begin(), check().rules.end(),
                       [](const RuleResult& rule) { return rule.id == "blob" && rule.violations > 0; });
}

const std::vector<HeadFacts>& RunFacts::heads() {
    if (!heads_) heads_ = readHeads(reader_, run().runId, decode_);
    return *heads_;
}

const CacheFacts* RunFacts::caches() {
    if (!caches_) {
        caches_.emplace();
        const bool selected =
            std::any_of(decode_.begin(), decode_.end(), [](const StepRow& s) { return s.selected > 0; });
        // The advice of these findings is about the device tier of one batch that decodes token by token.
        if (options_.replay && selected && run().deviceSlots > 0 && run().level != RecordLevel::Counters &&
            !run().serves() && denoisingBlock(run()) == 0)
            *caches_ = readCaches(reader_, run().runId);
    }
    return *caches_ ? &**caches_ : nullptr;
}

const GpuFacts& RunFacts::gpu() {
    if (!gpu_) gpu_ = readGpu(reader_, run().runId, exposure_, decode_);
    return *gpu_;
}

const ServedFacts* RunFacts::served() {
    if (!run().serves()) return nullptr;
    if (!served_) {
        served_.emplace();
        served_->rows = readServing(reader_, run().runId, &served_->gaps);
    }
    return &*served_;
}

int RunFacts::contextAt(int step) {
    if (!tokens_) tokens_ = reader_.tokens(run().runId, 0);
    const auto at = std::lower_bound(tokens_->begin(), tokens_->end(), step,
                                     [](const TokenRow& token, int wanted) { return token.step < wanted; });
    // The token of this step was computed from the tokens before its position.
    return at != tokens_->end() && at->step == step ? at->position : 0;
}

int RunFacts::firstWarmStep() const {
    for (const StepExposure& step : exposure_.steps)
        if (!isLeftOut(step.kind)) return step.step;
    return 0;
}

Evidence RunFacts::evidence(std::string view, std::string metric) const {
    Evidence evidence;
    evidence.view = std::move(view);
    evidence.metric = std::move(metric);
    if (!decode_.empty()) {
        evidence.firstStep = firstWarmStep() > 0 ? firstWarmStep() : decode_.front().step;
        evidence.lastStep = decode_.back().step;
    }
    return evidence;
}

double medianOf(std::vector<double> values) {
    if (values.empty()) return 0;
    const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

} // namespace kvscope
