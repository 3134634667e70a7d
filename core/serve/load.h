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

/// The prompt of a request, of the length that its line says.
using MakePrompt = std::function<std::vector<std::int32_t>(const WorkloadLine& line, std::int64_t request)>;

struct LoadOptions : WindowOptions {
    MakePrompt prompt;
    std::function<void(double done)> between; // called in every iteration; what it throws ends the run
    TraceSink* sink = nullptr;                // where the run is recorded; null: nowhere
};

struct LoadResult {
    ServingResult numbers;
    ServiceCosts costs;  // fitted to the run
    std::string backend; // in words
    std::string refusal; // the sentence that the first request that was refused got; empty: none
    int failed = 0;      // requests of the window that failed
};

/// Open loop: arrivals are drawn before the run and wait for nothing. Every latency begins at the intended arrival, so
/// a request that comes in the middle of an iteration has waited since then. Answers have the workload's length,
/// whatever tokens they are made of.
LoadResult load(const std::shared_ptr<const Model>& model, const Workload& workload, const EngineOptions& engine,
                const LoadOptions& options);

/// What iterations of this engine cost, from a short run of its own: prompts of some lengths, and steps of one to eight
/// rows.
ServiceCosts measureCosts(const std::shared_ptr<const Model>& model, const EngineOptions& engine,
                          const LoadOptions& options);

} // namespace kvscope::serve
