// kvscope-cli load: what a workload finds at the engine itself, in this process.
#include "app/cli/commands.h"
#include "app/cli/engine_arguments.h"
#include "app/cli/long_action.h"
#include "app/cli/serving_report.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "base/error.h"
#include "base/host_memory.h"
#include "base/whole_file.h"
#include "core/prompt/prompts.h"
#include "core/serve/capacity.h"
#include "core/serve/load.h"

#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvscope::cli {
namespace {

using Json = nlohmann::ordered_json;
using namespace serve; // what this command is about

struct LoadArguments : EngineArguments {
    std::string costsOut;
    LoadArguments() { warmUp = 10, warmUpSeconds = 5; }
};

void printRefusals(const LoadResult& result) {
    if (!result.refusal.empty()) printOut("  refused: {}\n", result.refusal);
    if (result.failed > 0) printOut("  {} requests failed\n", result.failed);
}

int runLoad(const LoadArguments& arguments) {
    const Workload workload = workloadOf(arguments, arguments.seed);
    ServingChoices choices = servingChoices(arguments, costsOf(arguments));
    EngineOptions engine = engineOf(arguments, choices);
    const std::shared_ptr<const Model> model = loadModel(arguments.model, arguments.calibration);
    const SplicedPrompts prompts(*model);
    LongAction action;
    const Progress progress = action.stopping();
    LoadOptions options;
    static_cast<WindowOptions&>(options) = choices.window;
    options.prompt = [&](const WorkloadLine& line, std::int64_t request) {
        return prompts.prompt(line.promptTokens, request, line.seed);
    };
    if (arguments.costs.empty()) {
        options.between = [&](double) { progress(0, "measuring what iterations cost"); };
        engine.costs = measureCosts(model, engine, options);
    }
    if (!arguments.slo.empty()) { // tbt=25x is a multiple of this engine's own step
        const ServingChoices again = servingChoices(arguments, engine.costs);
        engine.scheduler = again.scheduler;
        static_cast<WindowOptions&>(options) = again.window;
    }
    Json document{{"workload", arguments.workload},
                  {"simulated", false},
                  {"model", model->name()},
                  {"method", arguments.method},
                  {"slo",
                   {{"ttft_ms", options.slo.ttftMs},
                    {"tbt_ms", options.slo.tbtMs},
                    {"tbt_of", options.slo.tpot ? "mean" : "p99"}}},
                  {"device_kv_bytes", engine.budget.device},
                  {"host_kv_bytes", engine.budget.host},
                  {"scratch_bytes", engine.budget.scratch},
                  {"costs", Json::parse(engine.costs.toJson())},
                  {"seed", arguments.seed},
                  {"points", Json::array()}};
    SimulationOptions bounds; // for the words of what is broken
    static_cast<WindowOptions&>(bounds) = options;
    bounds.scheduler = engine.scheduler, bounds.costs = engine.costs, bounds.budget = engine.budget;
    const std::vector<double> rates = arguments.rates.empty() ? std::vector<double>{workload.rate()} : arguments.rates;
    for (std::size_t i = 0; i < rates.size(); ++i) {
        Workload scaled = workload;
        changeRate(scaled, rates[i] / workload.rate());
        options.between = [&](double done) {
            progress((double(i) + done) / double(rates.size()), fmt::format("{:.4g} requests/s", rates[i]));
        };
        const LoadResult result = load(model, scaled, engine, options);
        const std::string broken = brokenBound(result.numbers, bounds, {});
        Json point = jsonOf(result.numbers, broken);
        point["rate"] = rates[i];
        point["first_refusal"] = result.refusal.empty() ? Json(nullptr) : Json(result.refusal);
        point["failed"] = result.failed;
        document["backend"] = result.backend;
        document["points"].push_back(std::move(point));
        if (!arguments.costsOut.empty()) {
            const std::string fault =
                writeWholeFile(arguments.costsOut, [&](std::ostream& out) { out << result.costs.toJson() << "\n"; });
            if (!fault.empty())
                throw Error(ErrorKind::Storage, fmt::format("cannot write '{}': {}", arguments.costsOut, fault));
        }
        if (arguments.json) continue;
        action.clear();
        printResult(result.numbers, broken);
        printRefusals(result);
    }
    action.clear();
    if (arguments.json)
        printOut("{}\n", document.dump(2, ' ', false, Json::error_handler_t::replace));
    else
        printOut("measured with {} on {}: {}\n", arguments.method, model->name(),
                 document["backend"].get<std::string>());
    return 0;
}

} // namespace

Command addLoad(Options& program) {
    auto arguments = std::make_shared<LoadArguments>();
    Options sub = program.command("load", "Serve a workload with the engine: waiting, times between tokens, goodput");
    addModelOptions(sub, *arguments);
    addServingOptions(sub, *arguments, KnobOption::Knob);
    sub.add("--costs-out", arguments->costsOut, "Write the costs fitted to the run, for simulate --costs")
        .valueName("FILE");
    return [arguments] { return runLoad(*arguments); };
}

} // namespace kvscope::cli
