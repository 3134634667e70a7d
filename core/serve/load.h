// Offers a workload to an engine in the same process, by the wall clock, and counts what becomes of it.
#pragma once

#include "core/serve/cost_fit.h"
#include "core/serve/tally.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace kvscope::serve {

/// Makes the prompt of a request, with the length that its line of the workload gives.
using MakePrompt = std::function<std::vector<std::int32_t>(const WorkloadLine& line, std::int64_t request)>;

struct LoadOptions : WindowOptions {
    MakePrompt prompt;
    std::function<void(double done)> between; // called in every iteration; what it throws ends the run
    TraceSink* sink = nullptr;                // where the run is recorded; null: nowhere
    bool recordSteps = false;                 // with a sink: steps and selections too, at the level of the sink
    CostFit* fit = nullptr;                   // takes the run's iterations too: one table for several runs
    /// The clock counts processor time of the thread that calls load(), and waiting for an arrival takes none: a
    /// machine that does other work beside serves as it would alone. The engine must have one thread, on the CPU.
    bool processorTime = false;
    /// Seconds of that clock for each second of processor time. Below 1 where the processor is slower for the while
    /// than when the costs were fitted, because other programs take cache and memory bandwidth.
    double processorSpeed = 1;
};

struct LoadResult {
    ServingResult numbers;
    ServiceCosts costs;         // fitted to the run
    std::string backend;        // in words
    std::string refusal;        // the sentence that the first refused request got; empty: none was refused
    int failed = 0;             // requests of the window that failed
    std::string failure;        // the sentence of the first of them
    std::int64_t rowsApart = 0; // see RowEngine::rowsApart
};

/// Open loop: arrivals are drawn before the run, and no arrival waits for an answer. Every latency begins at the
/// intended arrival, so that the wait of a request that comes in the middle of an iteration counts. Answers have the
/// lengths that the workload gives; the end-of-text token does not end them. @throws Error(BadInput) for the processor
/// time of an engine with several threads
LoadResult load(const std::shared_ptr<const Model>& model, const Workload& workload, const EngineOptions& engine,
                const LoadOptions& options);

/// Measures what the iterations of this engine cost, in a short run of its own: on the CPU with prompts of 256 to 4,096
/// tokens and steps of one to eight rows, on a GPU with prompts of up to 32,768 tokens and steps of up to 16 rows,
/// after a first run that is not measured, in which the libraries load kernels. Steps have contexts in which the method
/// selects as much as it ever does, as far as the engine's budgets have room (on the CPU up to 1,024 tokens). On a GPU
/// an engine that offloads is measured with everything on the device as well, so that the table says apart what
/// offloading costs.
ServiceCosts measureCosts(const std::shared_ptr<const Model>& model, const EngineOptions& engine,
                          const LoadOptions& options);

/// The same of an engine that offloads, beside `resident`, the table of that engine with everything on the device. See
/// CostFit::fitOffload.
ServiceCosts measureOffload(const std::shared_ptr<const Model>& model, const EngineOptions& engine,
                            const LoadOptions& options, const ServiceCosts& resident);

} // namespace kvscope::serve
