// What `load` and its ladder share: the arguments, and what both make of them.
#pragma once

#include "app/cli/engine_arguments.h"
#include "app/cli/ladder.h"

#include "core/prompt/prompts.h"
#include "core/serve/load.h"

#include <string>

namespace kvscope::cli {

struct LoadArguments : EngineArguments {
    std::string costsOut, trace, name, record = "serving";
    bool overwrite = false, noModelPath = false, processorTime = false;
    CapacityArguments capacity;
    LadderArguments ladder;
    LoadArguments() { warmUp = 10, warmUpSeconds = 5; }
};

/// The engine that is loaded. @throws Error(BadInput) naming the option
serve::EngineOptions engineOfLoad(const LoadArguments& arguments, const ServingChoices& choices);

/// The choices' window, and prompts of the workload's lengths. The prompts must outlive the options.
serve::LoadOptions loadOptions(const ServingChoices& choices, const SplicedPrompts& prompts);

/// The simulation of such a load.
serve::SimulationOptions simulationOf(const serve::EngineOptions& engine, const serve::WindowOptions& window);

/// Measures the costs of both methods, searches the capacity of every rung in the simulator, and then runs the engine
/// around that capacity. @return the exit status
int climbRungs(const LoadArguments& arguments);

} // namespace kvscope::cli
