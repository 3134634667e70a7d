// The knobs of the scheduler. They are declared like a method's parameters, and the command line, the form and
// docs/serving.md list them from these declarations.
#pragma once

#include "core/plan/transfer_plan.h"
#include "core/select/parameters.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope::serve {

using kvscope::StorePlan;
using kvscope::TransferPlan;

enum class CachePlan : std::uint8_t { Partition, GlobalLru };   // which slots a row may take: its own, or any
enum class PrefillPlan : std::uint8_t { Layers, Chunks };       // how a prompt is cut
enum class Parking : std::uint8_t { Device, DeviceBf16, Host }; // where a prompt's activations wait between segments

struct SchedulerOptions {
    int rows = 64;                         // R_max
    std::int64_t iterationTokens = 262144; // T_max
    double iterationMs = 0;                // 0: 0.8 of the bound on the time between tokens
    double tbtBoundMs = 150;               // Y
    double ttftBoundMs = 10000;            // X
    bool offload = true, workingSetControl = true;
    CachePlan cache = CachePlan::Partition;
    int partitionBlocks = 0; // slots per layer and KV head; 0: twice what a step selects
    TransferPlan transfers = TransferPlan::Kernel;
    StorePlan d2h = StorePlan::Runs;
    int window = 12; // w, steps
    PrefillPlan prefill = PrefillPlan::Layers;
    int chunkTokens = 2048;
    std::int64_t tokenLayers = 0; // the paper's maxInjectToken; 0: milliseconds decide
    Parking parking = Parking::Device;
    int longPrefills = 1, shortTokens = 2048, shortTurns = 4;
    double agingMs = 5000, maxSuspendMs = 50;
    int maxSkips = 100, pauseAfter = 3, resumeTokens = 16, maxWaiting = 1024;
    bool batchInvariant = false; // of the engine on a GPU, see RowEngineSetup::invariant

    /// How many milliseconds an iteration may take by the scheduler's prediction.
    double budgetMs() const { return iterationMs > 0 ? std::min(iterationMs, 0.8 * tbtBoundMs) : 0.8 * tbtBoundMs; }
};

/// The declarations of all knobs, in the order in which they are listed.
const std::vector<Parameter>& schedulerParameters();
/// The default values of all knobs.
ParameterValues schedulerDefaults();
/// The name of a choice of the knob `key`, for files and messages. index: that of the choice, as in its enum
const std::string& choiceName(std::string_view key, int index);
/// The knobs as options. @throws Error(BadInput) where a value is missing or not allowed
SchedulerOptions schedulerOptions(const ParameterValues& values);

} // namespace kvscope::serve
