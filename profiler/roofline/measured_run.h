// A recorded run as a point beside the prediction of the same step.
#pragma once

#include "profiler/read/trace_reader.h"
#include "profiler/roofline/cost_model.h"

#include <optional>
#include <string>
#include <vector>

namespace kvscope {

/// Means over the decode steps, without cold ones where there are others (coldSteps()).
struct MeasuredRun {
    RunRow row;
    int steps = 0;              // averaged
    int coldSteps = 0;          // of the run
    int mixedSteps = 0;         // likewise: they read pieces of prompts as well
    std::vector<int> leftOut;   // numbers of decode steps that are cold and not in the means, ascending
    int firstStep = 0;          // of them
    double batch = 0;           // sequences per step
    double context = 0;         // tokens with keys and values, mean over sequences and steps
    double hitRate = 0;         // of selected blocks; NaN without selections
    double stepNs = 0;          // measured wall time
    double tokensPerSecond = 0; // batch / stepNs
    double exposedNs = 0;       // of transfers, per step; part of stepNs only where row.timing is "measured"
    double linkBytes = 0;       // host to device, per step
    StepParts parts;            // of stepNs, by recorded stages
    SelectionSpec method;       // of its recorded parameters
    // false: the method is another engine's, and `method` holds its block size and budget, without a score
    bool methodKnown = true;
    bool offloaded() const { return row.deviceSlots > 0 && !method.dense; }
    bool linkMeasured() const { return row.timing == Timing::Measured; }
};

/// @throws Error(BadInput) if there is no such run, it has no decode step that took time, or knows no times of steps
MeasuredRun measuredRun(const TraceReader& reader, int runId);
/// All but the parts, which need every layer of every step: in a moment, however long the run is. @throws as
/// measuredRun
MeasuredRun measuredSteps(const TraceReader& reader, int runId);
/// Measures the steps that the row knows of. A live run has more by the time that they are read.
MeasuredRun measuredSteps(const TraceReader& reader, const RunRow& row);
/// Adds the parts of at most so many steps (-1: all of them) from `next` on, which begins with 0 and moves on. The
/// parts are means when all steps were added. @return whether they were
bool addParts(MeasuredRun& run, const TraceReader& reader, int& next, int mostSteps = -1);

/// The shape of the run's model as the trace holds it (run_meta). Older traces do not: there it is that of a published
/// shape or an embedded model of the same name and dimensions. Nothing: not known, so there is no roof.
std::optional<ModelShape> shapeOfRun(const RunRow& run);
/// Whether a shape can be the run's: the dimensions that the trace holds are the same.
bool fitsRun(const ModelShape& shape, const RunRow& run);
/// The table's entry for the machine that a run names: the GPU by its name, its own measurement first; the measured
/// processor where it is the run's. Null: none, so there is no roof.
const GpuSpec* gpuOfRun(const GpuTable& table, const RunRow& run);

/// The scenario that the run is: its model, method, context, batch, hit rate and placement (on demand when offloaded).
DecodeScenario scenarioOf(const MeasuredRun& run, const ModelShape& shape, const GpuSpec& gpu);

/// How far above its roof a run may lie without a warning: the rates of the table are known that well.
inline constexpr double kRoofTolerance = 0.02;

/// Measured beside predicted. Where link time is modelled, it is in neither of the two.
struct RunBesideFloor {
    StepCost predicted;
    double predictedNs = 0;  // the time that stepNs is compared with
    double shareOfFloor = 0; // predictedNs / measured stepNs: 1 is as fast as the device allows
    bool aboveRoof = false;  // faster than the device allows, beyond kRoofTolerance: some number here is wrong
    std::string why;         // one sentence: where the difference is
};
RunBesideFloor compare(const MeasuredRun& run, const ModelShape& shape, const GpuSpec& gpu);

} // namespace kvscope
