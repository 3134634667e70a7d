// Options that `load` and `serve` share: the model, the method, and the engine that is made of them.
#pragma once

#include "app/cli/serving_options.h"

#include "core/model/model.h"
#include "core/select/method.h"
#include "core/serve/engine.h"

#include <optional>
#include <string>
#include <vector>

namespace kvscope::cli {

struct EngineArguments : ServingArguments {
    std::string model = kDefaultModel, calibration, method = kDefaultMethod, backend = nameOf(Backend::Cpu);
    std::vector<std::string> settings;
    std::string planted, products;
    int threads = 0;
    EngineArguments() { deviceKv = "256M", hostKv = "4G", scratch = "512M"; }
};

/// Says in a line on standard error where plans are made from a table of costs of another model. table: as --costs
/// gives it, before an engine writes its own shape into it
void remarkOnShape(const ServingArguments& arguments, const serve::ServiceCosts& table, const Model& model);

void addModelOptions(Options& command, EngineArguments& arguments);

/// The options of the engine. @throws Error(BadInput) naming the option
serve::EngineOptions engineOf(const EngineArguments& arguments, const ServingChoices& choices);

/// Declares --record, which says what a serving run records beside its requests and iterations.
void addRecordOption(Options& command, std::string& record, const Option& trace);

/// The level at which steps are recorded; nothing where `record` is "serving", so that they are not.
std::optional<RecordLevel> levelOfSteps(const std::string& record);

} // namespace kvscope::cli
