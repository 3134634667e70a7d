// What `load` and `serve` have in common on the command line: the model, the method and the engine they make.
#pragma once

#include "app/cli/serving_options.h"

#include "core/model/model.h"
#include "core/serve/engine.h"

#include <string>
#include <vector>

namespace kvscope::cli {

struct EngineArguments : ServingArguments {
    std::string model = kDefaultModel, calibration, method = "nosa", backend = nameOf(Backend::Cpu);
    std::vector<std::string> settings;
    int threads = 0;
    EngineArguments() { deviceKv = "256M", hostKv = "4G", scratch = "512M"; }
};

void addModelOptions(Options& command, EngineArguments& arguments);

/// @throws Error(BadInput) naming the option
serve::EngineOptions engineOf(const EngineArguments& arguments, const ServingChoices& choices);

} // namespace kvscope::cli
