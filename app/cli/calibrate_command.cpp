// kvscope-cli calibrate: what SparDA, Double Sparsity and AsyncTLS must learn about a model, in files beside it.
#include "app/cli/commands.h"
#include "app/cli/long_action.h"
#include "app/cli/prompt_options.h"

#include "core/calibrate/calibrate.h"
#include "kernels/base/error.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>

namespace kvscope::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
    std::string model = kDefaultModel, what = "all", textFile, folder;
    CalibrateOptions options;
    bool json = false;
};

double meanOf(const std::vector<ForecastQuality>& layers, double ForecastQuality::*value) {
    double sum = 0;
    for (const ForecastQuality& layer : layers) sum += layer.*value;
    return layers.empty() ? 0 : sum / double(layers.size());
}

void print(const CalibrateResult& result, const std::vector<std::string>& paths) {
    if (result.forecast) {
        const ForecastReport& report = result.report;
        fmt::print("Forecast heads: {} steps on {} queries, measured on {} queries of texts left out\n",
                   result.losses.size(), report.trainQueries, report.testQueries);
        fmt::print("{:>5}  {:>17}  {:>24}\n", "layer", "KL before > after", "blocks found before > after");
        for (std::size_t layer = 0; layer < report.after.size(); ++layer)
            fmt::print("{:>5}  {:>8.3f} > {:>6.3f}  {:>18.1f} % > {:>4.1f} %\n", layer, report.before[layer].loss,
                       report.after[layer].loss, 100 * report.before[layer].recall, 100 * report.after[layer].recall);
        fmt::print(" mean  {:>8.3f} > {:>6.3f}  {:>18.1f} % > {:>4.1f} %\n",
                   meanOf(report.before, &ForecastQuality::loss), meanOf(report.after, &ForecastQuality::loss),
                   100 * meanOf(report.before, &ForecastQuality::recall),
                   100 * meanOf(report.after, &ForecastQuality::recall));
        fmt::print("before: the mean of the target layer's query heads; blocks: InfLLM-V2's own choice for the same "
                   "query\n");
    }
    for (const std::string& path : paths) fmt::print("wrote {}\n", path);
}

Json toJson(const CalibrateResult& result, const std::vector<std::string>& paths) {
    Json out;
    out["files"] = paths;
    if (!result.forecast) return out;
    out["train_queries"] = result.report.trainQueries;
    out["test_queries"] = result.report.testQueries;
    out["losses"] = result.losses;
    out["layers"] = Json::array();
    for (std::size_t layer = 0; layer < result.report.after.size(); ++layer) {
        const ForecastQuality &before = result.report.before[layer], &after = result.report.after[layer];
        out["layers"].push_back({{"layer", layer},
                                 {"kl_before", before.loss},
                                 {"kl", after.loss},
                                 {"recall_before", before.recall},
                                 {"recall", after.recall}});
    }
    return out;
}

int calibrateModel(const Arguments& arguments) {
    CalibrateOptions options = arguments.options;
    options.forecast = arguments.what != "channels";
    options.channels = arguments.what != "forecast";
    if (!arguments.textFile.empty()) options.text = readPromptFile(arguments.textFile);
    LongAction action;
    const auto model = Model::load(arguments.model, action.part(0, 0.01), action.stop());
    const std::string folder = arguments.folder.empty() ? model->folder() : arguments.folder;
    if (folder.empty())
        throw Error(ErrorKind::BadInput, fmt::format("{} has no folder of its own", model->name()),
                    "say with -o where the files go, and use them with --calibration");
    const Progress show = action.whole();
    const CalibrateResult result = calibrate(
        model, options,
        [&](const CalibrateProgress& p) {
            report(show, p.fraction, p.loss > 0 ? fmt::format("{}, KL {:.3f}", p.what, p.loss) : p.what);
        },
        action.stop());
    action.clear();
    const auto paths = writeCalibration(folder, *model, result);
    if (arguments.json)
        fmt::print("{}\n", toJson(result, paths).dump(2));
    else
        print(result, paths);
    return 0;
}

} // namespace

Command addCalibrate(CLI::App& app) {
    auto arguments = std::make_shared<Arguments>();
    arguments->options.training.farBlocks = 0;
    CLI::App* command = app.add_subcommand("calibrate", "Learn what SparDA, Double Sparsity and AsyncTLS need to know "
                                                        "about a model; base weights do not change");
    command->add_option("--model", arguments->model, "Folder, .safetensors or .gguf file, or embedded model")
        ->capture_default_str();
    command->add_option("--what", arguments->what, "forecast (SparDA), channels (Double Sparsity, AsyncTLS) or all")
        ->check(CLI::IsMember({"all", "forecast", "channels"}))
        ->capture_default_str();
    command->add_option("--text-file", arguments->textFile, "Text to learn from; default: built-in text and needles");
    command->add_option("--texts", arguments->options.texts, "Pieces of text read")->capture_default_str();
    command->add_option("--tokens", arguments->options.tokens, "Tokens of one piece")->capture_default_str();
    command->add_option("--queries", arguments->options.queriesPerText, "Sampled positions in one piece")
        ->capture_default_str();
    command->add_option("--steps", arguments->options.training.steps, "Training steps")->capture_default_str();
    command->add_option("--batch", arguments->options.training.batch, "Queries of one step")->capture_default_str();
    command->add_option("--learning-rate", arguments->options.training.learningRate, "AdamW, constant")
        ->capture_default_str();
    command->add_option("--seed", arguments->options.training.seed, "Of the order of training")->capture_default_str();
    command->add_option("--threads", arguments->options.training.threads, "0: all cores")->capture_default_str();
    command->add_option("-o,--output", arguments->folder, "Folder for the files; default: the model's own");
    command->add_flag("--json", arguments->json, "One JSON document");
    return [arguments] { return calibrateModel(*arguments); };
}

} // namespace kvscope::cli
