#include "profiler/waterfall/step_times.h"

#include "profiler/format/trace_keys.h"
#include "profiler/read/link_clock.h"
#include "profiler/read/reader_impl.h"
#include "profiler/read/sane_times.h"
#include "profiler/sqlite/sqlite.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <span>
#include <unordered_set>
#include <utility>
#include <vector>

namespace kvscope {
namespace {

/// The stages in which a step waits for blocks, the likeliest first; the others only where a trace says more.
constexpr std::array kWaitingStages{Stage::Offloading, Stage::Stage2,      Stage::Attention, Stage::Pooling,
                                    Stage::Stage1,     Stage::Compression, Stage::OLinear,   Stage::Ffn,
                                    Stage::QkvLinear,  Stage::Rope};

struct Stretch { // of time, [from, to)
    std::int64_t from = 0, to = 0;
    std::int64_t length() const { return std::max<std::int64_t>(0, to - from); }
    Stretch with(const Stretch& other) const { return {std::max(from, other.from), std::min(to, other.to)}; }
};

/// When CUPTI itself was at work, as stretches that do not touch each other.
class RecorderWork {
public:
    RecorderWork(Connection& connection, int runId) {
        Statement spans(connection, "SELECT start_ns, duration_ns FROM span WHERE run_id = ? AND kind = 0 AND track IN"
                                    " (SELECT id FROM text WHERE value = 'CUPTI overhead') ORDER BY start_ns");
        spans.bindAll(runId);
        while (spans.step()) {
            const std::int64_t from = saneTime(spans.int64(0)), to = from + saneDuration(spans.int64(1));
            if (!work_.empty() && from <= work_.back().to)
                work_.back().to = std::max(work_.back().to, to);
            else
                work_.push_back({from, to});
        }
    }
    RecorderWork() = default;
    std::int64_t within(const Stretch& stretch) const {
        std::int64_t sum = 0;
        auto at = std::lower_bound(work_.begin(), work_.end(), stretch.from,
                                   [](const Stretch& work, std::int64_t ns) { return work.to <= ns; });
        for (; at != work_.end() && at->from < stretch.to; ++at) sum += at->with(stretch).length();
        return sum;
    }

private:
    std::vector<Stretch> work_;
};

/// Walks, forwards only, through the time in which neither a kernel nor a copy ran.
class GapWalk {
public:
    /// offsetNs: subtracted from the times of kernels, which brings them to the clock of the stages.
    GapWalk(Connection& connection, int runId, std::int64_t offsetNs)
        : offset_(offsetNs), spans_(connection, "SELECT start_ns, duration_ns, name, kind FROM span"
                                                " WHERE run_id = ? AND kind IN (1, 2) ORDER BY start_ns") {
        spans_.bindAll(runId);
        gap_.from = std::numeric_limits<std::int64_t>::min() / 2;
        next();
    }
    /// Calls `visit` with each piece of a gap in the stretch, and whether it precedes a kernel that ran for the first
    /// time. Stretches are asked for in ascending order.
    void within(const Stretch& stretch, const std::function<void(const Stretch& gap, bool before)>& visit) {
        while (!done_ && gap_.to <= stretch.from) next();
        while (!done_ && gap_.from < stretch.to) {
            const Stretch piece = gap_.with(stretch);
            if (piece.length() > 0) visit(piece, precedesNew_ && gap_.length() >= kInitialisationNs);
            if (gap_.to > stretch.to) return;
            next();
        }
    }

private:
    void next() {
        if (ended_) {
            done_ = true;
            return;
        }
        while (spans_.step()) {
            const std::int64_t from = saneTime(spans_.int64(0)) - offset_, to = from + saneDuration(spans_.int64(1));
            const bool isNew = spans_.int64(3) == 1 && names_.insert(spans_.int64(2)).second;
            const bool gap = from > busyUntil_;
            if (gap) gap_ = {busyUntil_, from}, precedesNew_ = isNew;
            busyUntil_ = std::max(busyUntil_, to);
            if (gap) return;
        }
        gap_ = {busyUntil_, std::numeric_limits<std::int64_t>::max() / 2}, precedesNew_ = false;
        ended_ = true;
    }

    std::int64_t offset_, busyUntil_ = std::numeric_limits<std::int64_t>::min() / 2;
    Statement spans_;
    std::unordered_set<std::int64_t> names_; // of kernels that ran
    Stretch gap_;
    bool precedesNew_ = false, ended_ = false, done_ = false;
};

/// One stage of one layer in one step, or a stage outside the layers.
struct StagePart {
    int stage = 0, layer = -1; // StageId::number()
    Stretch time;
    double restNs = 0; // without what is exposed and what the GPU did nothing in
};

/// A layer of a step: its stages are parts [first, end).
struct LayerParts {
    int layer = 0;
    std::int64_t exposedNs = 0;
    std::size_t first = 0, end = 0;
};

struct StepTime {
    int step = 0;
    bool prefill = false;
    Stretch time;
    std::array<std::int64_t, kStepStageCount> stages{}; // embed, lm_head, sample
};

class StepReading {
public:
    StepReading(const TraceReader& reader, const MeasuredRun& run, const ExposureReport& exposure)
        : run_(run), exposure_(exposure), connection_(*ReaderAccess::of(reader).connection),
          waits_(run.linkMeasured() && run.row.knows.has(Known::ExposedTimes)) {
        const auto& impl = ReaderAccess::of(reader);
        if (!impl.hasTable("span") || !impl.hasTable("text")) return;
        Statement found(connection_, "SELECT 1 FROM span WHERE run_id = ? AND kind = 1 LIMIT 1");
        found.bindAll(run.row.runId);
        hasKernels_ = found.step();
        recorder_ = RecorderWork(connection_, run.row.runId);
    }

    StepTimes read() {
        const int runId = run_.row.runId;
        std::optional<GapWalk> gaps;
        if (hasKernels_) gaps.emplace(connection_, runId, linkClockOf(connection_, runId).offsetNs);
        gaps_ = gaps ? &*gaps : nullptr;
        Statement steps(connection_, "SELECT id, phase, start_ns, duration_ns, embed_ns, lm_head_ns, sample_ns"
                                     " FROM step WHERE id BETWEEN ? AND ? ORDER BY id");
        steps.bindAll(trace::stepKey(runId, 0), trace::stepKey(runId, std::max(0, run_.row.steps - 1)));
        std::optional<StepTime> before;
        while (steps.step()) {
            StepTime step;
            step.step = trace::stepOf(steps.int64(0), 0);
            step.prefill = steps.int64(1) == std::int64_t(Phase::Prefill);
            const std::int64_t start = saneTime(steps.int64(2));
            step.time = {start, start + saneDuration(steps.int64(3))};
            for (std::size_t i = 0; i < step.stages.size(); ++i) step.stages[i] = saneDuration(steps.int64(4 + int(i)));
            if (step.prefill && !times_.prefill) addPrefill(step);
            if (counts(step)) {
                if (before && before->step == step.step - 1) addIdle(*before, step);
                addStep(step);
            }
            before = step;
        }
        addExposed();
        return times_;
    }

private:
    bool counts(const StepTime& step) const {
        return !step.prefill && step.time.length() > 0 &&
               !std::binary_search(run_.leftOut.begin(), run_.leftOut.end(), step.step);
    }

    /// Divides a piece in which the GPU did nothing. ns: how much of it counts.
    void divide(const Stretch& piece, double ns, bool beforeNew, const LossPlace& place, TimeSum& rest,
                TimeSum& initialisation, TimeSum& recorder) const {
        if (piece.length() <= 0 || ns <= 0) return;
        const double recording = ns * double(recorder_.within(piece)) / double(piece.length());
        recorder.add(recording, place);
        (beforeNew ? initialisation : rest).add(ns - recording, place);
    }

    void addPrefill(const StepTime& step) {
        StepTimes::Prefill& prefill = times_.prefill.emplace();
        prefill.step = step.step;
        prefill.wallNs = double(step.time.length());
        if (gaps_ == nullptr) return;
        StepTimes::Prefill found = prefill;
        found.kernels = true;
        gaps_->within(step.time, [&](const Stretch& gap, bool beforeNew) {
            if (gap.length() == step.time.length()) found.kernels = false; // of this step none were recorded
            divide(gap, double(gap.length()), beforeNew, {step.step, -1, gap.from, gap.length()}, found.gaps,
                   found.initialisation, found.recorder);
        });
        if (found.kernels) prefill = found;
    }

    void addIdle(const StepTime& before, const StepTime& step) {
        const Stretch idle{before.time.to, step.time.from};
        if (idle.length() <= 0) return;
        const LossPlace place{step.step, -1, idle.from, idle.length()};
        double initialising = 0, recordingThere = 0;
        if (gaps_ != nullptr)
            gaps_->within(idle, [&](const Stretch& gap, bool beforeNew) {
                if (!beforeNew) return;
                const auto recording = double(recorder_.within(gap));
                initialising += double(gap.length()) - recording, recordingThere += recording;
            });
        const auto recording = double(recorder_.within(idle));
        times_.betweenNs += double(idle.length());
        times_.initialisation.add(initialising, place);
        times_.recorder.add(recording, place);
        times_.idle.add(double(idle.length()) - initialising - recording, place);
    }

    void addStep(const StepTime& step) {
        readParts(step);
        double other = double(step.time.length());
        for (const StagePart& part : parts_) other -= double(part.time.length());
        deductExposed(step);
        double otherRest = other;
        if (gaps_ != nullptr) deductGaps(step, otherRest);
        ++times_.steps;
        times_.wallNs += double(step.time.length());
        for (const StagePart& part : parts_)
            times_.stages[std::size_t(part.stage)].add(part.restNs,
                                                       {step.step, part.layer, part.time.from, part.time.length()});
        times_.stages[0].add(otherRest, {step.step, -1, step.time.from, step.time.length()});
    }

    /// The stages of the step as they follow each other.
    void readParts(const StepTime& step) {
        parts_.clear();
        stepLayers_.clear();
        if (!run_.row.knows.has(Known::StageTimes)) return;
        const auto add = [&](StageId stage, int layer, std::int64_t from, std::int64_t ns) {
            if (ns > 0) parts_.push_back({stage.number(), layer, {from, from + ns}, double(ns)});
            return from + ns;
        };
        add(StepStage::Embed, -1, step.time.from, step.stages[0]);
        if (!layers_)
            layers_.emplace(connection_,
                            "SELECT id, start_ns, exposed_ns, qkv_linear_ns, rope_ns, compression_ns, stage1_ns,"
                            " pooling_ns, offloading_ns, stage2_ns, attention_ns, o_linear_ns, ffn_ns"
                            " FROM layer_step WHERE id BETWEEN ? AND ? ORDER BY id",
                            true);
        const auto [low, high] = trace::keysOfSteps(run_.row.runId, step.step, step.step, trace::kLayerShift);
        layers_->reset();
        layers_->bindAll(low, high);
        while (layers_->step()) {
            const int layer = int(layers_->int64(0) & (trace::kMaxLayers - 1));
            const std::size_t first = parts_.size();
            std::int64_t at = saneTime(layers_->int64(1));
            for (int stage = 0; stage < kStageCount; ++stage)
                at = add(Stage(stage), layer, at, saneDuration(layers_->int64(3 + stage)));
            stepLayers_.push_back({layer, saneDuration(layers_->int64(2)), first, parts_.size()});
        }
        const std::int64_t sample = step.time.to - step.stages[2];
        add(StepStage::LmHead, -1, sample - step.stages[1], step.stages[1]);
        add(StepStage::Sample, -1, sample, step.stages[2]);
    }

    /// Takes the transfers that a layer waited for out of its stages.
    void deductExposed(const StepTime& step) {
        if (!waits_) return;
        LossPlace longest{step.step, -1, 0, 0};
        std::int64_t most = 0;
        for (const LayerParts& layer : stepLayers_) {
            const auto parts = std::span(parts_).subspan(layer.first, layer.end - layer.first);
            auto rest = double(layer.exposedNs);
            for (const Stage stage : kWaitingStages)
                for (StagePart& part : parts) {
                    if (part.stage != StageId(stage).number()) continue;
                    const double taken = std::min(rest, part.restNs);
                    part.restNs -= taken, rest -= taken;
                    if (taken <= 0 || layer.exposedNs <= most) continue;
                    most = layer.exposedNs;
                    longest = {step.step, layer.layer, part.time.from, part.time.length()};
                }
        }
        waited_.push_back(longest);
    }

    /// Takes the time in which the GPU did nothing out of the stages and of what no stage claims.
    void deductGaps(const StepTime& step, double& otherRest) {
        std::sort(parts_.begin(), parts_.end(),
                  [](const StagePart& a, const StagePart& b) { return a.time.from < b.time.from; });
        bool seen = true;
        std::vector<std::pair<Stretch, bool>> found;
        gaps_->within(step.time, [&](const Stretch& gap, bool beforeNew) {
            if (gap.length() == step.time.length()) seen = false; // of this step no kernels were recorded
            found.emplace_back(gap, beforeNew);
        });
        if (!seen) return;
        times_.kernels = true;
        const auto take = [&](const Stretch& piece, double atMost, bool beforeNew, int layer) {
            const double ns = std::clamp(double(piece.length()), 0.0, std::max(atMost, 0.0));
            divide(piece, ns, beforeNew, {step.step, layer, piece.from, piece.length()}, times_.gaps,
                   times_.initialisation, times_.recorder);
            return ns;
        };
        for (const auto& [gap, beforeNew] : found) {
            auto part = std::upper_bound(parts_.begin(), parts_.end(), gap.from,
                                         [](std::int64_t ns, const StagePart& each) { return ns < each.time.from; });
            if (part != parts_.begin()) --part;
            std::int64_t from = gap.from; // what lies between two stages belongs to neither
            for (; part != parts_.end() && part->time.from < gap.to; ++part) {
                const Stretch piece = part->time.with(gap);
                if (piece.length() == 0) continue;
                otherRest -= take({from, piece.from}, otherRest, beforeNew, -1);
                part->restNs -= take(piece, part->restNs, beforeNew, part->layer);
                from = std::max(from, piece.to);
            }
            otherRest -= take({from, gap.to}, otherRest, beforeNew, -1);
        }
    }

    /// The reasons of the counted steps, and where most of each lies.
    void addExposed() {
        if (!waits_ || !exposure_.byLayer) return;
        for (const StepExposure& step : exposure_.steps) {
            if (step.durationNs <= 0 || std::binary_search(run_.leftOut.begin(), run_.leftOut.end(), step.step))
                continue;
            const auto at = std::lower_bound(waited_.begin(), waited_.end(), step.step,
                                             [](const LossPlace& place, int number) { return place.step < number; });
            const LossPlace place = at != waited_.end() && at->step == step.step ? *at : LossPlace{step.step, -1, 0, 0};
            for (std::size_t i = 0; i < times_.exposed.size(); ++i)
                times_.exposed[i].add(double(step.time.becauseNs[i]), place);
        }
    }

    const MeasuredRun& run_;
    const ExposureReport& exposure_;
    Connection& connection_;
    bool waits_ = false, hasKernels_ = false;
    RecorderWork recorder_;
    GapWalk* gaps_ = nullptr; // null: no kernels were recorded
    std::optional<Statement> layers_;
    std::vector<StagePart> parts_;       // of the step that is read
    std::vector<LayerParts> stepLayers_; // likewise
    std::vector<LossPlace> waited_;      // the layer of each step that waited longest, ascending
    StepTimes times_;
};

} // namespace

void TimeSum::add(double part, const LossPlace& place) {
    ns += part;
    if (part > mostNs) mostNs = part, most = place;
}

StepTimes stepTimesOf(const TraceReader& reader, const MeasuredRun& run, const ExposureReport& exposure) {
    return StepReading(reader, run, exposure).read();
}

} // namespace kvscope
