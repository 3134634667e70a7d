#include "profiler/compare/compare.h"

#include "base/error.h"
#include "profiler/compare/common_steps.h"
#include "profiler/compare/verdict_text.h"
#include "profiler/read/denoising.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <limits>
#include <numeric>

namespace kvscope {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Series over the common steps of one side. A value is the mean over the side's repeats.
class SideSeries {
public:
    SideSeries(std::span<const RunSample> runs, const std::vector<int>& steps) {
        for (const RunSample& run : runs) {
            auto& picked = picked_.emplace_back();
            std::size_t next = 0;
            for (const StepSample& step : run.steps)
                if (next < steps.size() && step.step == steps[next]) picked.push_back(&step), ++next;
        }
    }
    std::size_t runs() const { return picked_.size(); }
    template <class Value> std::vector<double> ofRun(std::size_t run, Value value) const {
        std::vector<double> series;
        for (const StepSample* step : picked_[run]) series.push_back(value(*step));
        return series;
    }
    template <class Value> std::vector<double> mean(Value value) const {
        std::vector<double> sum = ofRun(0, value);
        for (std::size_t run = 1; run < runs(); ++run) {
            const std::vector<double> more = ofRun(run, value);
            for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
        }
        for (double& v : sum) v /= double(runs());
        return sum;
    }

private:
    std::vector<std::vector<const StepSample*>> picked_; // [run][common step]
};

double meanOf(const std::vector<double>& series) {
    return std::accumulate(series.begin(), series.end(), 0.) / double(series.size());
}

std::vector<double> difference(const std::vector<double>& b, const std::vector<double>& a) {
    std::vector<double> result(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) result[i] = b[i] - a[i];
    return result;
}

double logDuration(const StepSample& step) { return std::log(double(std::max<std::int64_t>(step.durationNs, 1))); }
double duration(const StepSample& step) { return double(step.durationNs); }
double exposed(const StepSample& step) { return double(step.exposedNs); }

/// How far repeats lie from the mean of their side: the standard deviation of the median log ratio. NaN without
/// repeats.
double spreadOfRepeats(const SideSeries& a, const SideSeries& b) {
    double squares = 0;
    int degrees = 0;
    for (const SideSeries* side : {&a, &b}) {
        if (side->runs() < 2) continue;
        const std::vector<double> centre = side->mean(logDuration);
        std::vector<double> medians;
        for (std::size_t run = 0; run < side->runs(); ++run) {
            std::vector<double> apart = difference(side->ofRun(run, logDuration), centre);
            medians.push_back(medianOf(apart));
        }
        const double middle = meanOf(medians);
        for (const double m : medians) squares += (m - middle) * (m - middle);
        degrees += int(medians.size()) - 1;
    }
    return degrees > 0 ? std::sqrt(squares / degrees) : kNan;
}

/// Standard deviation, over the repeats of a side, of a value's mean per step. NaN without repeats.
template <class Value> double spreadOfMeans(const SideSeries& a, const SideSeries& b, Value value) {
    double squares = 0;
    int degrees = 0;
    for (const SideSeries* side : {&a, &b}) {
        if (side->runs() < 2) continue;
        std::vector<double> means;
        for (std::size_t run = 0; run < side->runs(); ++run) means.push_back(meanOf(side->ofRun(run, value)));
        const double middle = meanOf(means);
        for (const double m : means) squares += (m - middle) * (m - middle);
        degrees += int(means.size()) - 1;
    }
    return degrees > 0 ? std::sqrt(squares / degrees) : kNan;
}

void widen(Interval& interval, double halfWidth) {
    interval.low = std::min(interval.low, interval.value - halfWidth);
    interval.high = std::max(interval.high, interval.value + halfWidth);
}

Interval exponential(const Interval& i) { return {std::exp(i.value), std::exp(i.low), std::exp(i.high)}; }

void addQuantities(std::span<const RunSample> a, std::span<const RunSample> b, Comparison& out) {
    const auto add = [&](const char* name, const char* unit, const std::function<double(const RunSample&)>& value) {
        const auto mean = [&](std::span<const RunSample> side) {
            double sum = 0;
            for (const RunSample& run : side) sum += value(run);
            return sum / double(side.size());
        };
        out.quantities.push_back({name, unit, mean(a), mean(b)});
    };
    using S = RunSample;
    add("tokens_per_s", "tokens/s", [](const S& s) { return s.summary.tokensPerSecond; });
    const auto gapsMatter = [](std::span<const RunSample> side) {
        return std::any_of(side.begin(), side.end(), [](const RunSample& run) { return run.summary.gapsMatter(); });
    };
    if (gapsMatter(a) || gapsMatter(b))
        add("tokens_per_s_with_gaps", "tokens/s", [](const S& s) { return s.summary.tokensPerSecondWithGaps; });
    add("prefill", "ms", [](const S& s) { // a serving run reads its prompts in iterations, a canvas in every forward
        const bool none = s.run.serves() || denoisesCanvas(s.run) || !s.run.knows.has(Known::StepTimes);
        return none ? kNan : s.summary.prefillMs;
    });
    add("hit_rate", "fraction", [](const S& s) { return s.summary.hitRate; });
    add("locality_mean", "fraction",
        [](const S& s) { return s.summary.localityCount > 0 ? s.summary.localityMean : kNan; });
    add("misses_per_step", "blocks", [](const S& s) { return s.summary.missesPerStep; });
    add("h2d_bytes_per_step", "bytes", [](const S& s) { return s.summary.h2dBytesPerStep; });
    add("exposed_per_step", "ms", [](const S& s) { return s.summary.exposedMsPerStep; });
}

Verdict verdictOf(const Interval& ratio, double threshold) {
    if (ratio.high < 1) return Verdict::Faster;
    if (ratio.low <= 1) {
        const double asked = threshold > 0 ? threshold : kTellable;
        return ratio.low >= 1 - asked && ratio.high <= 1 + asked ? Verdict::NoDifference : Verdict::CannotTell;
    }
    return ratio.low > 1 + threshold ? Verdict::Slower : Verdict::WithinThreshold;
}

} // namespace

Comparison compareRuns(std::span<const RunSample> a, std::span<const RunSample> b, const CompareOptions& options) {
    const CommonSteps common = commonSteps(a, b);
    if (int(common.steps.size()) < kFewestSteps)
        throw Error(ErrorKind::BadInput,
                    fmt::format("{} decode steps are common to the runs, a verdict needs {}", common.steps.size(),
                                kFewestSteps),
                    "record more tokens with --max-new-tokens");
    Comparison out;
    out.threshold = options.threshold;
    out.confidence = options.confidence;
    out.other = options.other;
    out.steps = int(common.steps.size());
    out.first = common.first;
    out.opening = common.opening;
    out.unpaired = common.unpaired;
    out.openingKept = common.openingKept;
    out.aRuns = int(a.size());
    out.bRuns = int(b.size());

    // Times are compared step by step, because steps take longer with a longer context, and as logarithms, because the
    // result is a ratio.
    const SideSeries left(a, common.steps), right(b, common.steps);
    const std::vector<double> logRatio = difference(right.mean(logDuration), left.mean(logDuration));
    out.blockLength = bootstrapBlockLength(logRatio);
    const BlockBootstrap bootstrap(logRatio.size(), out.blockLength, options.confidence, options.seed);
    Interval log = bootstrap.median(logRatio);
    std::vector<double> aDurations = left.mean(duration), bDurations = right.mean(duration);
    Interval logMean = bootstrap.ratioOfSums(bDurations, aDurations);
    logMean = {std::log(logMean.value), std::log(std::max(logMean.low, 1e-300)),
               std::log(std::max(logMean.high, 1e-300))};
    const double spread = spreadOfRepeats(left, right);
    out.betweenRuns = spread;
    double betweenHalf = 0;
    if (!std::isnan(spread)) {
        betweenHalf = studentQuantile(options.confidence, out.aRuns + out.bRuns - 2) * spread *
                      std::sqrt(1. / out.aRuns + 1. / out.bRuns);
        widen(log, betweenHalf);
        widen(logMean, betweenHalf);
    }
    out.ratio = exponential(log);
    out.meanRatio = exponential(logMean);
    out.verdict = verdictOf(out.ratio, options.threshold);

    const auto delta = [&](std::string_view name, auto value) {
        const std::vector<double> before = left.mean(value), after = right.mean(value);
        ComponentDelta result{std::string(name), meanOf(before), meanOf(after),
                              bootstrap.mean(difference(after, before))};
        if (const double apart = spreadOfMeans(left, right, value); !std::isnan(apart))
            widen(result.deltaNs, studentQuantile(options.confidence, out.aRuns + out.bRuns - 2) * apart *
                                      std::sqrt(1. / out.aRuns + 1. / out.bRuns));
        return result;
    };
    const auto allKnow = [&](Known what) {
        const auto knows = [what](const RunSample& run) { return run.run.knows.has(what); };
        return std::all_of(a.begin(), a.end(), knows) && std::all_of(b.begin(), b.end(), knows);
    };
    for (int c = 0; c < kComponentCount && allKnow(Known::StageTimes); ++c) {
        ComponentDelta component =
            delta(componentName(c), [c](const StepSample& step) { return double(step.componentNs[std::size_t(c)]); });
        if (component.aNs != 0 || component.bNs != 0) out.components.push_back(std::move(component));
    }
    out.step = delta("step", duration);
    out.exposed = delta("exposed transfer", exposed);
    if (!allKnow(Known::ExposedTimes)) out.exposed = {out.exposed.component, kNan, kNan, {kNan, kNan, kNan}};
    out.aMedianNs = medianOf(aDurations);
    out.bMedianNs = medianOf(bDurations);
    addQuantities(a, b, out);
    out.differences = settingDifferences(a.front().run, b.front().run);
    out.notes = notesOf(a, b, out);
    out.sentence = sentenceOf(out);
    return out;
}

} // namespace kvscope
