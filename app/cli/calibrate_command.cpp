// kvscope-cli calibrate: what SparDA, Locret, Double Sparsity and AsyncTLS must learn about a model, in files beside
// it; and which kernels multiply its matrices fastest, in the cache folder.
#include "app/cli/commands.h"
#include "app/cli/long_action.h"
#include "app/cli/prompt_options.h"
#include "app/cli/vain.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "base/error.h"
#include "core/calibrate/calibrate.h"
#include "core/session/products.h"

#include <algorithm>
#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>

namespace kvscope::cli {
namespace {

using Json = nlohmann::ordered_json;

struct CalibrateArguments {
    std::string model = kDefaultModel, what = "all", teacher = "backbone", textFile, folder;
    CalibrateOptions options;
    bool json = false;
};

template <class Quality> double meanOf(const std::vector<Quality>& layers, double Quality::*value) {
    double sum = 0;
    for (const Quality& layer : layers) sum += layer.*value;
    return layers.empty() ? 0 : sum / double(layers.size());
}

void printForecast(const CalibrateResult& result) {
    const ForecastReport& report = result.report;
    printOut("Forecast heads: {} steps on {} queries, measured on {} queries of texts left out\n", result.losses.size(),
             report.trainQueries, report.testQueries);
    printOut("{:>5}  {:>17}  {:>24}  {:>24}\n", "layer", "KL before > after", "blocks found before > after",
             "far attention held");
    const auto line = [](const std::string& name, const ForecastQuality& before, const ForecastQuality& after) {
        printOut("{:>5}  {:>8.3f} > {:>6.3f}  {:>18.1f} % > {:>4.1f} %  {:>14.1f} % > {:>4.1f} %\n", name, before.loss,
                 after.loss, 100 * before.recall, 100 * after.recall, 100 * before.mass, 100 * after.mass);
    };
    const auto mean = [](const std::vector<ForecastQuality>& layers) {
        return ForecastQuality{meanOf(layers, &ForecastQuality::loss), meanOf(layers, &ForecastQuality::recall),
                               meanOf(layers, &ForecastQuality::mass)};
    };
    for (std::size_t layer = 0; layer < report.after.size(); ++layer)
        line(std::to_string(layer), report.before[layer], report.after[layer]);
    line("mean", mean(report.before), mean(report.after));
    printOut("before: the mean of the target layer's query heads; blocks: InfLLM-V2's own choice for the same query; "
             "held: of the exact attention beyond sink and window\n");
}

void printRetaining(const CalibrateResult& result) {
    const RetainingReport& report = result.retainingReport;
    printOut("Retaining heads: {} steps on {} tokens, measured on {} tokens of texts left out\n",
             result.retainingLosses.size(), report.trainTokens, report.testTokens);
    printOut("{:>5}  {:>19}  {:>24}\n", "layer", "loss before > after", "best quarter before > after");
    const auto line = [](const std::string& name, const RetainingQuality& before, const RetainingQuality& after) {
        printOut("{:>5}  {:>10.3f} > {:>6.3f}  {:>18.1f} % > {:>4.1f} %\n", name, before.loss, after.loss,
                 100 * before.kept, 100 * after.kept);
    };
    const auto mean = [](const std::vector<RetainingQuality>& layers) {
        return RetainingQuality{meanOf(layers, &RetainingQuality::loss), meanOf(layers, &RetainingQuality::kept)};
    };
    for (std::size_t layer = 0; layer < report.after.size(); ++layer)
        line(std::to_string(layer), report.before[layer], report.after[layer]);
    line("mean", mean(report.before), mean(report.after));
    printOut("before: random weights; best quarter: of the tokens that a later query wants most, those that the scores "
             "find (25 % by chance)\n");
}

void print(const CalibrateResult& result, const std::vector<std::string>& paths) {
    if (result.forecast) printForecast(result);
    if (result.retaining) printRetaining(result);
    for (const std::string& path : paths) printOut("wrote {}\n", path);
}

Json toJson(const CalibrateResult& result, const std::vector<std::string>& paths) {
    Json out;
    out["files"] = paths;
    if (result.forecast) {
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
                                     {"recall", after.recall},
                                     {"mass_before", before.mass},
                                     {"mass", after.mass}});
        }
    }
    if (result.retaining) {
        const RetainingReport& report = result.retainingReport;
        Json layers = Json::array();
        for (std::size_t layer = 0; layer < report.after.size(); ++layer)
            layers.push_back({{"layer", layer},
                              {"loss_before", report.before[layer].loss},
                              {"loss", report.after[layer].loss},
                              {"best_quarter_before", report.before[layer].kept},
                              {"best_quarter", report.after[layer].kept}});
        out["retaining"] = {{"train_tokens", report.trainTokens},
                            {"test_tokens", report.testTokens},
                            {"losses", result.retainingLosses},
                            {"layers", layers}};
    }
    return out;
}

/// Measures the model's products on the GPU; nothing is written beside the model.
int calibrateProducts(const CalibrateArguments& arguments, const Options& command) {
    refuseVain(true, command,
               {"--teacher", "--width", "--text-file", "--texts", "--tokens", "--queries", "--steps", "--batch",
                "--learning-rate", "--seed", "--threads", "--output"},
               "with --what products, which reads no text and writes into the cache folder");
    MeasuredProducts result;
    {
        LongAction action;
        const auto model = Model::load(arguments.model, action.part(0, 0.2), action.stop());
        result = measureProducts(*model, action.part(0.2, 1), action.stop());
    }
    if (arguments.json)
        printOut("{}\n", Json{{"file", result.file},
                              {"products", result.name},
                              {"measured_shapes", result.measured},
                              {"kept_shapes", result.kept}}
                             .dump(2));
    else
        printOut("measured {} shapes, kept {} that were measured before; {} now chooses: {}\n", result.measured,
                 result.kept, result.file, result.name);
    return 0;
}

int calibrateModel(const CalibrateArguments& arguments, const Options& command) {
    if (arguments.what == "products") return calibrateProducts(arguments, command);
    CalibrateOptions options = arguments.options;
    const auto wants = [&](const char* part) { return arguments.what == "all" || arguments.what == part; };
    options.forecast = wants("forecast");
    options.retaining = wants("retaining");
    options.channels = wants("channels");
    const std::string why = "with --what " + arguments.what;
    refuseVain(!options.forecast, command, {"--teacher", "--batch", "--learning-rate"}, why);
    refuseVain(!options.retaining, command, {"--width"}, why);
    refuseVain(!options.forecast && !options.retaining, command, {"--queries", "--steps"}, why);
    if (!options.forecast && !options.retaining) // none are asked for, and --queries is refused
        options.queriesPerText = std::min(options.queriesPerText, options.tokens);
    options.training.teacher =
        arguments.teacher == "attention" ? ForecastTeacher::Attention : ForecastTeacher::Backbone;
    if (!arguments.textFile.empty()) options.text = readPromptFile(arguments.textFile);
    LongAction action;
    const auto model = Model::load(arguments.model, action.part(0, 0.01), action.stop());
    const std::string folder = arguments.folder.empty() ? model->folder() : arguments.folder;
    if (folder.empty())
        throw Error(ErrorKind::BadInput, fmt::format("{} has no folder of its own", model->name()),
                    "say with -o where the files go, and use them with --calibration");
    checkCalibrationFolder(folder);
    const Progress show = action.whole();
    const CalibrateResult result = calibrate(
        model, options,
        [&](const CalibrateProgress& p) {
            report(show, p.fraction, p.step > 0 ? fmt::format("{}, loss {:.3f}", p.what, p.loss) : p.what);
        },
        action.stop());
    action.clear();
    const auto paths = writeCalibration(folder, *model, result);
    if (arguments.json)
        printOut("{}\n", toJson(result, paths).dump(2));
    else
        print(result, paths);
    return 0;
}

} // namespace

Command addCalibrate(Options& program) {
    auto arguments = std::make_shared<CalibrateArguments>();
    arguments->options.training.farBlocks = 0;
    Options command = program.command("calibrate", "Learn what SparDA, Locret, Double Sparsity and AsyncTLS need "
                                                   "to know about a model; base weights do not change");
    command
        .add("--model", arguments->model,
             "Hugging Face folder, .safetensors or .gguf file, or an embedded model (nosa-tiny)")
        .showsDefault();
    command
        .add("--what", arguments->what,
             "forecast (SparDA), retaining (Locret), channels (Double "
             "Sparsity, AsyncTLS), all of them, or products: which kernels multiply fastest on this GPU")
        .oneOf({"all", "forecast", "retaining", "channels", "products"})
        .showsDefault();
    command
        .add("--teacher", arguments->teacher,
             "What the Forecast learns: backbone (the score by which InfLLM-V2 itself chooses) or attention "
             "(exact, SparDA's recipe)")
        .oneOf({"attention", "backbone"})
        .showsDefault();
    command
        .add("--width", arguments->options.heads.width,
             "Hidden width of the retaining heads; 0: a sixth of their inputs, 1024 at most")
        .range(0, 65536)
        .showsDefault();
    command.add("--text-file", arguments->textFile, "Text to learn from; default: built-in text and needles");
    command.add("--texts", arguments->options.texts, "Pieces of text read").range(1, 1 << 20).showsDefault();
    command.add("--tokens", arguments->options.tokens, "Tokens of one piece").range(1, 1 << 24).showsDefault();
    command.add("--queries", arguments->options.queriesPerText, "Sampled positions in one piece")
        .range(1, 1 << 20)
        .showsDefault();
    command.add("--steps", arguments->options.training.steps, "Training steps").range(1, 1 << 24).showsDefault();
    command.add("--batch", arguments->options.training.batch, "Queries of one step").range(1, 1 << 20).showsDefault();
    command
        .add("--learning-rate", arguments->options.training.learningRate,
             "Learning rate of AdamW, the same in every step")
        .positive()
        .showsDefault();
    command.add("--seed", arguments->options.training.seed, "Seed of the order in which texts are learned")
        .showsDefault();
    command.add("--threads", arguments->options.training.threads, "CPU threads; 0: all cores")
        .range(0, 4096)
        .showsDefault();
    command.add("-o,--output", arguments->folder, "Folder for the files; default: the model's own");
    command.flag("--json", arguments->json, "Print one JSON document");
    return [arguments, command] { return calibrateModel(*arguments, command); };
}

} // namespace kvscope::cli
