// kvscope-cli eval: how good methods are and what they cost, in one table.
#include "app/cli/commands.h"
#include "app/cli/long_action.h"

#include "core/eval/eval.h"
#include "core/session/model_summary.h"
#include "kernels/base/error.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

namespace kvscope::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
    std::string model = kDefaultModel, calibration, backend = "cpu", link = "pcie5", textFile;
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
    Setting setting{text.substr(0, equals), CLI::detail::split(text.substr(equals + 1), ',')};
    if (setting.key == "k") setting.key = "total_blocks";
    if (setting.key == "k_q") setting.key = "select_blocks";
    return setting;
}

bool has(const MethodEntry& method, const std::string& key) {
    return std::any_of(method.parameters.begin(), method.parameters.end(),
                       [&](const Parameter& parameter) { return parameter.key == key; });
}

std::vector<std::string> methodsFor(const Arguments& arguments, const Model& model) {
    if (!arguments.methods.empty()) return arguments.methods;
    std::vector<std::string> names;
    for (const MethodFit& fit : summarize(model).methods)
        if (fit.applies) names.push_back(fit.name);
    return names;
}

/// Every method with every combination of the swept values it has. A setting goes to the methods that have it.
std::vector<EvalCase> casesOf(const Arguments& arguments, const Model& model) {
    std::vector<Setting> settings, sweeps;
    for (const std::string& text : arguments.settings) settings.push_back(parseSetting(text, "--set"));
    for (const std::string& text : arguments.sweeps) sweeps.push_back(parseSetting(text, "--sweep"));
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

std::vector<std::int32_t> textOf(const Arguments& arguments, const Model& model, int tokens) {
    if (arguments.textFile.empty()) return evalText(model.tokenizer(), tokens);
    std::ifstream file(arguments.textFile, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (!file.is_open() || file.bad())
        throw Error(ErrorKind::BadInput, fmt::format("cannot read the text file {}", arguments.textFile),
                    "check its name and permissions");
    auto ids = model.tokenizer().encode(text);
    if (int(ids.size()) < tokens)
        throw Error(ErrorKind::BadInput,
                    fmt::format("{} has {} tokens, {} are needed", arguments.textFile, ids.size(), tokens),
                    "give a longer text, smaller --contexts or --text-tokens");
    return ids;
}

/// What full attention makes of the same text: the reference of all perplexities at this context.
TextScore fullScore(const std::shared_ptr<const Model>& model, const Arguments& arguments, int context,
                    std::span<const std::int32_t> text, const Progress& progress, const std::stop_token& stop) {
    if (arguments.options.textTokens == 0) return {};
    SessionOptions options;
    options.backend = arguments.options.backend;
    options.threads = arguments.options.threads;
    options.method = "full";
    return scoreText(model, options, text, context, arguments.options.textTokens, progress, stop);
}

struct Row {
    EvalResult result;
    TextScore full;
};

double share(const EvalResult& r) { return r.budgetBlocks > 0 ? double(r.queryAwareBlocks) / r.budgetBlocks : NAN; }
/// A method that attends everything holds everything.
double captured(const EvalResult& r, double value) { return r.dense && !r.text.nll.empty() ? 1 : value; }
double hitRate(const EvalResult& r) { return r.hits + r.misses > 0 ? double(r.hits) / double(r.hits + r.misses) : NAN; }
double perStep(const EvalResult& r, double sum) { return r.decodeSteps > 0 ? sum / double(r.decodeSteps) : NAN; }

Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json toJson(const Row& row) {
    const EvalResult& r = row.result;
    Json settings = Json::object();
    for (const auto& [key, value] : r.row.settings) settings[key] = value;
    Json byDepth = Json::array(), byPosition = Json::array();
    for (const NeedleScore& score : r.needles)
        byDepth.push_back({{"depth", score.depth},
                           {"prompts", score.prompts},
                           {"correct", score.correct},
                           {"accuracy", double(score.correct) / score.prompts}});
    constexpr std::size_t kParts = 4; // of the scored text
    for (std::size_t i = 0; i < kParts; ++i) {
        const std::size_t n = r.text.nll.size(), first = n * i / kParts, end = n * (i + 1) / kParts;
        if (end == first) continue;
        byPosition.push_back({{"from", std::size_t(r.context) + first},
                              {"to", std::size_t(r.context) + end - 1},
                              {"perplexity", r.text.perplexity(first, end - first)},
                              {"full_perplexity", row.full.perplexity(first, end - first)}});
    }
    return {{"method", r.row.method},
            {"title", findMethod(r.row.method).title},
            {"settings", settings},
            {"parameters", Json::parse(r.parametersJson)},
            {"context", r.context},
            {"k", r.dense ? Json(nullptr) : Json(r.budgetBlocks)},
            {"k_q", r.dense ? Json(nullptr) : Json(r.queryAwareBlocks)},
            {"k_q_share", number(share(r))},
            {"needle_accuracy", number(r.accuracy())},
            {"needle_by_depth", byDepth},
            {"perplexity", number(r.text.perplexity())},
            {"full_perplexity", number(row.full.perplexity())},
            {"perplexity_ratio", number(r.text.perplexity() / row.full.perplexity())},
            {"perplexity_by_position", byPosition},
            {"mass", number(captured(r, r.selection.mass))},
            {"best_mass", number(captured(r, r.selection.bestMass))},
            {"recall", number(captured(r, r.selection.recall))},
            {"far_mass", number(captured(r, r.selection.farMass))},
            {"far_best_mass", number(captured(r, r.selection.farBestMass))},
            {"far_recall", number(captured(r, r.selection.farRecall))},
            {"tokens_per_s", number(r.tokensPerSecond())},
            {"tokens_per_s_with_link", number(r.tokensPerSecondWithLink())},
            {"hit_rate", number(hitRate(r))},
            {"locality_mean", number(r.localityMean)},
            {"h2d_bytes_per_step", number(perStep(r, double(r.h2dBytes)))},
            {"exposed_ms_per_step", number(perStep(r, double(r.exposedNs) / 1e6))}};
}

std::string nameOfCase(const EvalCase& row) {
    std::vector<std::string> settings;
    for (const auto& [key, value] : row.settings) settings.push_back(key + "=" + value);
    return settings.empty() ? row.method : fmt::format("{} {}", row.method, fmt::join(settings, " "));
}

void printTable(const std::vector<Row>& rows, const Arguments& arguments, const std::string& model) {
    const EvalOptions& o = arguments.options;
    fmt::print(
        "{} on {}; needles at {} depths, {} each, {} facts in the text; perplexity of {} tokens behind the context; "
        "link {}\n",
        model, arguments.backend, o.depths.size(), o.promptsPerDepth, o.needles, o.textTokens,
        rows.front().result.timing == Timing::Measured ? "measured" : "modelled");
    std::size_t width = 6;
    for (const Row& row : rows) width = std::max(width, nameOfCase(row.result.row).size());
    std::vector<std::string> depths;
    for (const double depth : o.depths) depths.push_back(fmt::format("{:>5.0f}%", 100 * depth));
    fmt::print("{:<{}} {:>8} {:>5} {:>5} {:>7} {} {:>10} {:>8} {:>6} {:>6} {:>7} {:>8} {:>9} {:>9} {:>9}\n", "method",
               width, "context", "k", "k_q", "needle", fmt::join(depths, ""), "perplexity", "/ full", "mass", "recall",
               "far_mass", "far_recall", "hit_rate", "tokens/s", "with link");
    const auto cell = [](double value, int digits) {
        return std::isfinite(value) ? fmt::format("{:.{}f}", value, digits) : std::string("-");
    };
    for (const Row& row : rows) {
        const EvalResult& r = row.result;
        std::vector<std::string> accuracies;
        for (const NeedleScore& score : r.needles)
            accuracies.push_back(fmt::format("{:>6}", fmt::format("{}/{}", score.correct, score.prompts)));
        fmt::print("{:<{}} {:>8} {:>5} {:>5} {:>7} {} {:>10} {:>8} {:>6} {:>6} {:>8} {:>10} {:>9} {:>9} {:>9}\n",
                   nameOfCase(r.row), width, r.context, r.dense ? "all" : std::to_string(r.budgetBlocks),
                   r.dense ? "-" : std::to_string(r.queryAwareBlocks), cell(r.accuracy(), 3), fmt::join(accuracies, ""),
                   cell(r.text.perplexity(), 3), cell(r.text.perplexity() / row.full.perplexity(), 4),
                   cell(captured(r, r.selection.mass), 3), cell(captured(r, r.selection.recall), 3),
                   cell(captured(r, r.selection.farMass), 3), cell(captured(r, r.selection.farRecall), 3),
                   cell(hitRate(r), 3), cell(r.tokensPerSecond(), 1), cell(r.tokensPerSecondWithLink(), 1));
    }
}

int run(Arguments& arguments) {
    EvalOptions& options = arguments.options;
    options.backend = arguments.backend == nameOf(Backend::Cuda) ? Backend::Cuda : Backend::Cpu;
    options.link = Link::parse(arguments.link);
    options.oracle = !arguments.noOracle;
    if (options.promptsPerDepth == 0) options.depths.clear();
    LongAction action;
    const auto model = Model::load(arguments.model, action.part(0, 0.01), action.stop(), arguments.calibration);
    const std::vector<EvalCase> cases = casesOf(arguments, *model);
    for (const EvalCase& row : cases) { // before the long part
        ParameterValues values = resolveDefaults(findMethod(row.method), model->config());
        for (const auto& [key, value] : row.settings) values.set(findMethod(row.method).parameters, key, value);
    }
    const int longest = *std::max_element(arguments.contexts.begin(), arguments.contexts.end());
    std::vector<std::int32_t> text;
    if (options.textTokens > 0) text = textOf(arguments, *model, longest + options.textTokens);
    std::vector<Row> rows;
    const auto all = double(arguments.contexts.size() * (cases.size() + 1)); // full attention once more, for reference
    int done = 0;
    const auto part = [&] {
        ++done;
        return action.part((done - 1) / all, done / all);
    };
    for (const int context : arguments.contexts) {
        const TextScore full = fullScore(model, arguments, context, text, part(), action.stop());
        for (const EvalCase& row : cases)
            rows.push_back({evaluate(model, row, context, text, options, part(), action.stop()), full});
    }
    action.clear();
    if (!arguments.json) {
        printTable(rows, arguments, model->name());
        return 0;
    }
    Json out{{"model", model->name()},
             {"backend", arguments.backend},
             {"link", nameOf(rows.front().result.timing)},
             {"link_description", options.backend == Backend::Cpu ? options.link.describe() : "PCIe (measured)"},
             {"prompts_per_depth", options.promptsPerDepth},
             {"needles", options.needles},
             {"decode_tokens", options.decodeTokens},
             {"text_tokens", options.textTokens},
             {"text", arguments.textFile.empty() ? "built-in document" : arguments.textFile},
             {"seed", options.seed},
             {"rows", Json::array()}};
    for (const Row& row : rows) out["rows"].push_back(toJson(row));
    fmt::print("{}\n", out.dump(2, ' ', false, Json::error_handler_t::replace));
    return 0;
}

} // namespace

Command addEval(CLI::App& app) {
    auto arguments = std::make_shared<Arguments>();
    EvalOptions& options = arguments->options;
    CLI::App* sub =
        app.add_subcommand("eval", "Quality and cost of methods: needles found by depth, perplexity against "
                                   "full attention, what the selection holds of the attention, tokens/s");
    sub->add_option("--calibration", arguments->calibration,
                    "Folder with what kvscope-cli calibrate wrote; default: the model's own folder");
    sub->add_option("--model", arguments->model,
                    "Hugging Face folder, .safetensors file, or an embedded model (nosa-tiny)")
        ->capture_default_str();
    sub->add_option("--methods", arguments->methods, "e.g. full,nosa,infllmv2; default: all that the model has")
        ->delimiter(',');
    sub->add_option("--set", arguments->settings, "Parameter of all methods that have it, key=value; repeatable");
    sub->add_option("--sweep", arguments->sweeps,
                    "A row for each value, e.g. k_q=1,2,4,8 (k_q: select_blocks, k: total_blocks, or any parameter); "
                    "repeatable: every combination");
    sub->add_option("--contexts", arguments->contexts, "Prompt tokens, e.g. 2048,8192")
        ->delimiter(',')
        ->check(CLI::Range(1, 1 << 22))
        ->capture_default_str();
    sub->add_option("--depths", options.depths, "Places of the needle asked for: 0 start, 1 end")
        ->delimiter(',')
        ->check(CLI::Range(0.0, 1.0))
        ->capture_default_str();
    sub->add_option("--prompts", options.promptsPerDepth, "Needle prompts per depth; 0: no needles")
        ->check(CLI::Range(0, 1000))
        ->capture_default_str();
    sub->add_option("--needles", options.needles, "Facts hidden in each prompt; one is asked for")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
    sub->add_option("--decode-tokens", options.decodeTokens, "Generated per needle prompt, for answer and throughput")
        ->check(CLI::Range(8, 100'000))
        ->capture_default_str();
    sub->add_option("--text-tokens", options.textTokens, "Tokens whose perplexity is taken behind the context; 0: none")
        ->check(CLI::Range(0, 1'000'000))
        ->capture_default_str();
    sub->add_option("--text", arguments->textFile, "Text file for the perplexity; default: the built-in document");
    sub->add_flag("--no-oracle", arguments->noOracle, "Leave out attention mass and recall, which are slow");
    sub->add_option("--backend", arguments->backend, "cpu or cuda")
        ->check(CLI::IsMember({"cpu", "cuda"}))
        ->capture_default_str();
    sub->add_option("--link", arguments->link, "Modelled link: pcie4, pcie5 or GB/s")->capture_default_str();
    sub->add_option("--threads", options.threads, "CPU threads; 0: all cores")->capture_default_str();
    sub->add_option("--seed", options.seed, "Of the first needle prompt; the others follow")->capture_default_str();
    sub->add_flag("--json", arguments->json, "Print one JSON document");
    return [arguments] { return run(*arguments); };
}

} // namespace kvscope::cli
