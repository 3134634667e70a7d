#include "app/cli/engine_arguments.h"

#include "app/cli/product_option.h"
#include "app/cli/setting_options.h"
#include "app/terminal/output.h"

#include "base/error.h"

#include <fmt/format.h>

namespace kvscope::cli {

void remarkOnShape(const ServingArguments& arguments, const serve::ServiceCosts& table, const Model& model) {
    const ModelConfig& config = model.config();
    const serve::MemoryShape& shape = table.shape;
    if (arguments.costs.empty() || (shape.layers == config.layers && shape.hidden == config.hidden)) return;
    printErr("plans are made from costs of another model: the shape in {} has {} layers of {} channels, and {} has {} "
             "of {}\n",
             arguments.costs, shape.layers, shape.hidden, model.name(), config.layers, config.hidden);
}

void addModelOptions(Options& sub, EngineArguments& arguments) {
    sub.add("--model", arguments.model,
            "Hugging Face folder, .safetensors or .gguf file, or an embedded model (nosa-tiny)")
        .showsDefault();
    sub.add("--calibration", arguments.calibration,
            "Folder with what kvscope-cli calibrate wrote; default: the model's own folder");
    sub.add("--method", arguments.method, "Attention method; methods --json says which serve").showsDefault();
    sub.add("--set", arguments.settings, "A parameter of the method, key=value");
    sub.add("--backend", arguments.backend, "cpu or cuda").showsDefault();
    addProductOption(sub, arguments.products);
    sub.add("--planted", arguments.planted,
            "Draw selections of these localities, as for random weights: nosa-tiny, or a list for the layers, 0.9,0.95")
        .valueName("LIST");
    sub.add("--threads", arguments.threads, "CPU threads; default: all cores").range(1, 1024);
}

serve::EngineOptions engineOf(const EngineArguments& arguments, const ServingChoices& choices) {
    serve::EngineOptions options;
    options.session.method = arguments.method;
    options.session.threads = arguments.threads;
    if (arguments.backend == nameOf(Backend::Cuda))
        options.session.backend = Backend::Cuda;
    else if (arguments.backend != nameOf(Backend::Cpu))
        throw Error(ErrorKind::BadInput, fmt::format("unknown backend '{}'", arguments.backend), "use cpu or cuda");
    options.session.settings = parseSettings("--set", arguments.settings);
    chooseProducts(arguments.products, options.session.backend);
    if (!arguments.planted.empty()) options.planted = plantedLocalities(arguments.planted);
    options.scheduler = choices.scheduler;
    options.budget = choices.budget;
    options.costs = choices.costs;
    return options;
}

void addRecordOption(Options& sub, std::string& record, const Option& trace) {
    sub.add("--record", record,
            "serving: requests and iterations; besides, of every decode step, counters: hits and bytes of each row, "
            "selections: the blocks too, full: and their scores")
        .needs(trace)
        .oneOf({"serving", "counters", "selections", "full"})
        .showsDefault();
}

std::optional<RecordLevel> levelOfSteps(const std::string& record) {
    for (const RecordLevel level : {RecordLevel::Counters, RecordLevel::Selections, RecordLevel::Full})
        if (record == nameOf(level)) return level;
    return std::nullopt;
}

} // namespace kvscope::cli
