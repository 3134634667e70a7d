// kvscope-cli eval: how good methods are and what they cost, in one table.
#include "app/cli/commands.h"
#include "app/cli/eval_results.h"
#include "app/cli/long_action.h"
#include "app/cli/scored_text.h"
#include "app/cli/setting_options.h"
#include "app/cli/vain.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "base/error.h"
#include "core/eval/eval.h"
#include "core/session/model_summary.h"

#include <algorithm>
#include <filesystem>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>
#include <memory>
#include <optional>

namespace kvscope::cli {
namespace {

struct EvalArguments {
    std::string model = kDefaultModel, calibration, backend = "cpu", link = "pcie5", textFile, folder, kvType;
    std::vector<std::string> methods, settings, sweeps;
    std::vector<int> contexts{2048};
    EvalOptions options;
    bool noOracle = false, json = false;
};

struct Setting {
    std::string key;
    std::vector<std::string> values;
};

/// key=value, or key=value,value,... ; k and k_q stand for the parameters that hold them.
Setting parseSetting(const std::string& text, const char* option) {
    const auto equals = text.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
        throw Error(ErrorKind::BadInput, fmt::format("cannot read {} '{}'", option, text),
                    fmt::format("write {} key=value", option));
    Setting setting{text.substr(0, equals), listedValues(option, text.substr(equals + 1))};
    if (setting.key == "k") setting.key = "total_blocks";
    if (setting.key == "k_q") setting.key = "select_blocks";
    return setting;
}

bool has(const MethodEntry& method, const std::string& key) {
    return std::any_of(method.parameters.begin(), method.parameters.end(),
                       [&](const Parameter& parameter) { return parameter.key == key; });
}

std::vector<std::string> methodsFor(const EvalArguments& arguments, const Model& model) {
    if (!arguments.methods.empty() && arguments.methods != std::vector<std::string>{"all"}) return arguments.methods;
    std::vector<std::string> names;
    for (const MethodFit& fit : summarize(model).methods)
        if (fit.applies) names.push_back(fit.name);
    return names;
}

/// @throws Error(BadInput) for a parameter that is given twice
std::vector<Setting> parseEach(const std::vector<std::string>& texts, const char* option) {
    std::vector<Setting> settings;
    for (const std::string& text : texts) {
        Setting setting = parseSetting(text, option);
        if (std::any_of(settings.begin(), settings.end(), [&](const Setting& s) { return s.key == setting.key; }))
            throw Error(ErrorKind::BadInput, fmt::format("{} gives '{}' twice", option, setting.key),
                        "leave one of them out");
        settings.push_back(std::move(setting));
    }
    return settings;
}

/// The rows of the table: every method with every combination of values of those swept parameters that it has. A
/// setting goes to the methods that have its parameter.
std::vector<EvalCase> casesOf(const EvalArguments& arguments, const Model& model) {
    const std::vector<Setting> settings = parseEach(arguments.settings, "--set"),
                               sweeps = parseEach(arguments.sweeps, "--sweep");
    for (const Setting& setting : settings)
        if (std::any_of(sweeps.begin(), sweeps.end(), [&](const Setting& s) { return s.key == setting.key; }))
            throw Error(ErrorKind::BadInput, fmt::format("--set and --sweep both give '{}'", setting.key),
                        "leave one of them out");
    for (const Setting& sweep : sweeps)
        refuseRepeated("--sweep " + sweep.key, sweep.values, [&](const std::string& a, const std::string& b) {
            return sameSetting(model.config(), sweep.key, a, b);
        });
    const std::vector<std::string> names = methodsFor(arguments, model);
    for (const auto* list : {&settings, &sweeps})
        for (const Setting& setting : *list)
            if (std::none_of(names.begin(), names.end(),
                             [&](const std::string& name) { return has(findMethod(name), setting.key); }))
                throw Error(ErrorKind::BadInput, fmt::format("none of the methods has a parameter '{}'", setting.key),
                            "kvscope-cli methods lists them");
    std::vector<EvalCase> cases;
    for (const std::string& name : names) {
        std::vector<EvalCase> rows{{name, {}}};
        for (const Setting& setting : settings)
            if (has(findMethod(name), setting.key))
                rows.front().settings.emplace_back(setting.key, fmt::format("{}", fmt::join(setting.values, ",")));
        for (const Setting& sweep : sweeps) {
            if (!has(findMethod(name), sweep.key)) continue;
            std::vector<EvalCase> more;
            for (const EvalCase& row : rows)
                for (const std::string& value : sweep.values) {
                    more.push_back(row);
                    more.back().settings.emplace_back(sweep.key, value);
                }
            rows = std::move(more);
        }
        cases.insert(cases.end(), rows.begin(), rows.end());
    }
    return cases;
}

/// The score of full attention on the same text, to which all perplexities at this context are compared.
TextScore fullScore(const std::shared_ptr<const Model>& model, const EvalArguments& arguments, int context,
                    std::span<const std::int32_t> text, const Progress& progress, const std::stop_token& stop) {
    if (arguments.options.textTokens == 0) return {};
    SessionOptions options;
    options.backend = arguments.options.backend;
    options.threads = arguments.options.threads;
    options.method = "full";
    return scoreText(model, options, text, context, arguments.options.textTokens, progress, stop);
}

/// What an evaluation notes of the calibration it was made with: the folder, and names, sizes and times of its files.
/// An evaluation with another calibration is another one.
std::string stampOf(const std::string& folder) {
    namespace fs = std::filesystem;
    std::vector<std::string> files;
    std::error_code ignored;
    if (!folder.empty())
        for (const auto& file : fs::directory_iterator(folder, ignored))
            files.push_back(fmt::format("{} {} {}", file.path().filename().string(), file.file_size(ignored),
                                        file.last_write_time(ignored).time_since_epoch().count()));
    std::sort(files.begin(), files.end());
    return files.empty() ? folder : fmt::format("{}: {}", folder, fmt::join(files, ", "));
}

/// Refuses options about needle prompts, the text or a modelled link in an evaluation without these.
/// @throws Error(BadInput)
void refuseVainEval(const Options& command, const EvalOptions& options) {
    refuseVain(options.promptsPerDepth == 0, command, {"--depths", "--needles", "--decode-tokens", "--seed", "--link"},
               "with --prompts 0, which leaves the needle prompts out");
    refuseVain(options.textTokens == 0, command, {"--text", "--no-oracle"},
               "with --text-tokens 0, which leaves the text out");
    refuseVain(options.backend == Backend::Cuda, command, {"--link"},
               "with --backend cuda, which measures the GPU's own link");
}

int run(EvalArguments& arguments, const Options& command) {
    EvalOptions& options = arguments.options;
    options.backend = arguments.backend == nameOf(Backend::Cuda) ? Backend::Cuda : Backend::Cpu;
    options.link = Link::parse(arguments.link);
    options.oracle = !arguments.noOracle;
    options.kvType = kvTypeNamed(arguments.kvType);
    if (options.promptsPerDepth == 0 && options.textTokens == 0)
        throw Error(ErrorKind::BadInput, "nothing is left to measure without needle prompts and without text",
                    "give --prompts or --text-tokens a number above 0");
    refuseVainEval(command, options);
    refuseRepeated("--methods", arguments.methods);
    refuseRepeated("--contexts", arguments.contexts);
    refuseRepeated("--depths", options.depths);
    if (options.promptsPerDepth == 0) options.depths.clear();
    LongAction action;
    const auto model = Model::load(arguments.model, action.part(0, 0.01), action.stop(), arguments.calibration);
    if (model->config().diffusion)
        throw Error(ErrorKind::Unsupported,
                    fmt::format("eval scores tokens that are decoded one by one, and {} denoises", model->name()),
                    "use kvscope-cli quality for models that denoise blocks, such as losa-tiny");
    const std::vector<EvalCase> cases = casesOf(arguments, *model);
    refuseVain(std::none_of(cases.begin(), cases.end(),
                            [](const EvalCase& row) { return findMethod(row.method).blocksTravel; }),
               command, {"--link"}, "with methods that keep every block on the device");
    for (const EvalCase& row : cases) { // before the long part
        const MethodEntry& method = findMethod(row.method);
        ParameterValues values = resolveDefaults(method, model->config());
        for (const auto& [key, value] : row.settings) values.set(parametersFor(method, model->config()), key, value);
    }
    Json head{{"model", model->name()},
              {"model_path", arguments.model},
              {"calibration", stampOf(arguments.calibration)},
              {"backend", arguments.backend},
              {"threads", options.threads},
              {"link", nameOf(options.backend == Backend::Cpu ? Timing::Modelled : Timing::Measured)},
              {"link_description", options.backend == Backend::Cpu ? options.link.describe() : "PCIe (measured)"},
              {"prompts_per_depth", options.promptsPerDepth},
              {"needles", options.needles},
              {"depths", options.depths},
              {"decode_tokens", options.decodeTokens},
              {"text_tokens", options.textTokens},
              {"text", arguments.textFile.empty() ? "built-in document" : arguments.textFile},
              {"oracle", options.oracle},
              {"seed", options.seed}};
    // Absent, as in the folders of older versions: the backend's own type.
    const KvType type = options.kvType.value_or(ownKvType(options.backend));
    if (type != ownKvType(options.backend)) head["kv_type"] = nameOf(type);
    EvalFolder results(arguments.folder, std::move(head));
    const auto missing = [&](int context, const EvalCase& row) { return !results.holds(row, context); };
    std::size_t all = 0; // pieces of work
    for (const int context : arguments.contexts) {
        const auto rows = std::size_t(std::count_if(cases.begin(), cases.end(), std::bind_front(missing, context)));
        all += rows + (rows > 0 ? 1 : 0); // full attention once more, for reference
    }
    const std::size_t found = results.rows();
    if (found > 0) printErr("{} rows of {} are there already\n", found, arguments.folder);
    const int longest = *std::max_element(arguments.contexts.begin(), arguments.contexts.end());
    std::vector<std::int32_t> text;
    if (options.textTokens > 0)
        text = scoredText(*model, arguments.textFile, longest + options.textTokens,
                          "give a longer text, smaller --contexts or --text-tokens");
    std::size_t done = 0;
    const auto part = [&] {
        ++done;
        return action.part(double(done - 1) / double(all), double(done) / double(all));
    };
    try {
        for (const int context : arguments.contexts) {
            if (std::none_of(cases.begin(), cases.end(), std::bind_front(missing, context))) continue;
            const TextScore full = fullScore(model, arguments, context, text, part(), action.stop());
            for (const EvalCase& row : cases) {
                if (!missing(context, row)) continue;
                const Progress inner = part();
                const Progress named = [&](double f, std::string_view what) {
                    report(inner, f, fmt::format("{}: {}", row.method, what));
                };
                results.add(evalRow(evaluate(model, row, context, text, options, named, action.stop()), full));
            }
        }
    } catch (const Error& error) {
        action.clear();
        if (error.kind == ErrorKind::Cancelled && !arguments.folder.empty())
            printErr("{} rows are in {}; the same command goes on from there\n", results.rows(), arguments.folder);
        throw;
    }
    action.clear();
    results.finish(cases, arguments.contexts);
    if (arguments.json)
        printOut("{}\n", results.document().dump(2, ' ', false, Json::error_handler_t::replace));
    else
        printEvalTable(results.document());
    return 0;
}

} // namespace

Command addEval(Options& program) {
    auto arguments = std::make_shared<EvalArguments>();
    EvalOptions& options = arguments->options;
    Options sub =
        program.command("eval", "Measure quality and cost of methods: needles found by depth, perplexity against "
                                "full attention, what the selection holds of the attention, tokens/s");
    sub.add("--calibration", arguments->calibration,
            "Folder with what kvscope-cli calibrate wrote; default: the model's own folder");
    sub.add("--model", arguments->model,
            "Hugging Face folder, .safetensors or .gguf file, or an embedded model (nosa-tiny)")
        .showsDefault();
    sub.add("--methods", arguments->methods, "e.g. full,nosa,infllmv2; all, the default: every one that the model has")
        .commaSeparated();
    sub.add("--set", arguments->settings, "Parameter of all methods that have it, key=value; repeatable");
    sub.add("--sweep", arguments->sweeps,
            "A row for each value, e.g. k_q=1,2,4,8 (k_q: select_blocks, k: total_blocks, or any parameter); "
            "repeatable: every combination");
    sub.add("--contexts", arguments->contexts, "Prompt tokens, e.g. 2048,8192")
        .commaSeparated()
        .range(1, 1 << 22)
        .showsDefault();
    sub.add("--depths", options.depths, "Places of the needle asked for: 0 start, 1 end")
        .commaSeparated()
        .range(0.0, 1.0)
        .showsDefault();
    sub.add("--prompts", options.promptsPerDepth, "Needle prompts per depth; 0: no needles")
        .range(0, 1000)
        .showsDefault();
    sub.add("--needles", options.needles, "Facts hidden in each prompt; one is asked for").range(1, 64).showsDefault();
    sub.add("--decode-tokens", options.decodeTokens, "Generated per needle prompt, for answer and throughput")
        .range(8, 100'000)
        .showsDefault();
    sub.add("--text-tokens", options.textTokens, "Tokens whose perplexity is taken behind the context; 0: none")
        .range(0, 1'000'000)
        .showsDefault();
    sub.add("--text", arguments->textFile, "Text file for the perplexity; default: the built-in document");
    sub.flag("--no-oracle", arguments->noOracle, "Leave out attention mass and recall, which are slow");
    sub.add("--backend", arguments->backend, "cpu or cuda").oneOf({"cpu", "cuda"}).showsDefault();
    sub.add(
           "--kv-type", arguments->kvType,
           "Type of full KV blocks: f32, bf16, fp8, int8 or int4; default: the backend's own. Full attention, to which "
           "perplexities are compared, keeps the backend's own type")
        .oneOf({"f32", "bf16", "fp8", "int8", "int4"});
    sub.add("--link", arguments->link, "Modelled link: pcie4, pcie5 or GB/s").showsDefault();
    sub.add("--threads", options.threads, "CPU threads; 0: all cores").range(0, 4096).showsDefault();
    sub.add("--seed", options.seed, "Seed of the first needle prompt; each further prompt has the next number")
        .showsDefault();
    sub.add("-o,--output", arguments->folder,
            "Folder for eval.json, eval.csv and the chart eval.svg; rows that it holds already are not "
            "measured again");
    sub.flag("--json", arguments->json, "Print one JSON document");
    return [arguments, sub] { return run(*arguments, sub); };
}

} // namespace kvscope::cli
