// Why a recorded decode step is not at its roof: a bar for every loss between the predicted step and the measured one.
// The bars add up to the difference; what none of them explains is a bar of its own. docs/roofline.md has the
// definitions.
#pragma once

#include "base/indexed.h"
#include "profiler/insights/insight.h"
#include "profiler/roofline/measured_run.h"
#include "profiler/waterfall/step_times.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

enum class LossKind : std::uint8_t {
    Component,      // a stage, against its own floor
    Transfer,       // transfers that the step waited for, by reason
    Gaps,           // in a step, the GPU did nothing
    Idle,           // between steps
    Initialisation, // before a kernel that ran for the first time
    Recorder,       // CUPTI was at work while the GPU did nothing
    Unexplained
};
const char* nameOf(LossKind kind); // "component", "transfer", ...

/// Means per decode step, in nanoseconds.
struct WaterfallBar {
    LossKind kind = LossKind::Component;
    std::string id;    // "ffn", "transfer.latency", "gaps", "idle", "initialisation", "recorder", "unexplained"
    std::string title; // in words: "ffn", "transfers: bandwidth", "between steps"
    StageId stage;     // of a component
    double measuredNs = 0;
    double floorNs = 0;                         // 0 without a roof, and where the model of costs has nothing to do
    Resource bound = Resource::MemoryBandwidth; // of a floor above 0
    LossPlace most;                             // the step and layer that took most of it; step -1: nowhere
    /// What the step would gain at most; below 0 where the run is faster than the prediction.
    double lossNs() const { return measuredNs - floorNs; }
};

struct Waterfall {
    MeasuredRun run;
    std::string machine; // title of the machine that is predicted; empty: no roof
    /// The sum of all floors. Nothing: the run's shape or machine is not known, so there is no roof.
    std::optional<double> predictedNs;
    std::string noRoof; // why there is none, a sentence without its full stop
    double stepNs = 0;  // wall time of a step
    double idleNs = 0;  // from the end of the step before
    double measuredNs() const { return stepNs + idleNs; }
    /// What the bars add up to: the measured time less the predicted one.
    double differenceNs() const { return measuredNs() - predictedNs.value_or(0); }
    Numbered<WaterfallBar> bars; // the largest loss first, the unexplained one last
    bool kernels = false;        // were recorded: gaps are known
    bool transfers = false;      // measured and known; where they are modelled they are in neither time
    bool aboveRoof = false;      // faster than the prediction by more than kRoofTolerance: some number is wrong
    std::optional<StepTimes::Prefill> prefill;

    std::string headline; // "54 % of the step is ffn, at 0.76 of the read bandwidth"
    std::string detail;   // the losses in words
    /// Tokens per second if the bar's loss were gone.
    double tokensPerSecondWithout(const WaterfallBar& bar) const;
    const WaterfallBar* find(std::string_view id) const; // null: no such bar
};

/// What a person names in place of the run's own model and machine.
struct NamedRoof {
    std::optional<ModelShape> shape;
    std::optional<GpuSpec> gpu;
};

/// Reads every layer and kernel of the run. @throws Error(BadInput | Unsupported) as measuredRun, Error(Cancelled)
Waterfall waterfallOf(const TraceReader& reader, int runId, const GpuTable& table, const NamedRoof& named = {});
/// The same for the steps that the row has, and by what the row knows.
Waterfall waterfallOf(const TraceReader& reader, const RunRow& row, const GpuTable& table, const NamedRoof& named = {});

/// The arithmetic of waterfallOf. predicted: nothing: no roof.
Waterfall makeWaterfall(MeasuredRun run, const StepTimes& times, const std::optional<StepCost>& predicted);

/// The waterfall as the first card of the insights, with id kRoofInsight.
inline constexpr const char* kRoofInsight = "why-not-the-roof";
Insight insightOf(const Waterfall& waterfall);

} // namespace kvscope
