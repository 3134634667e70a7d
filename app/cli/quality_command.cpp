// kvscope-cli quality: how well a block-diffusion model answers under sparse methods, with as many prompts as it takes
// to tell them apart; in batches that a file keeps, because the time for it may come in parts.
#include "app/cli/commands.h"
#include "app/cli/finished_points.h"
#include "app/cli/long_action.h"
#include "app/cli/quality_report.h"
#include "app/cli/scored_text.h"
#include "app/cli/setting_options.h"
#include "app/cli/vain.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "base/error.h"
#include "core/eval/block_quality.h"
#include "core/eval/eval.h"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>
#include <memory>
#include <span>

namespace kvscope::cli {
namespace {

struct QualityArguments {
    std::string model = "losa-tiny", backend = "cpu", textFile, resume;
    std::vector<std::string> tasks{"passkey", "keys4", "keys16"}, paces{"slow", "fast"},
        methods{"full", "quest", "losa", "sparsed"}, settings;
    std::vector<int> contexts{4096, 16384}, budgets{16, 64, 128, 256, 512, 1024};
    int prompts = 200, batch = 8, boundBlocks = 32, boundContext = 2048, threads = 0;
    double seconds = 0;
    std::uint64_t seed = 1;
    bool json = false;
};

template <class Kind> Kind namedOf(const char* option, const std::string& name, int count) {
    std::string known;
    for (int i = 0; i < count; ++i) {
        if (name == nameOf(Kind(i))) return Kind(i);
        known += (known.empty() ? "" : ", ") + std::string(nameOf(Kind(i)));
    }
    throw Error(ErrorKind::BadInput, fmt::format("{} does not know '{}'", option, name), "use " + known);
}

using CellSettings = std::vector<std::pair<std::string, std::string>>;

bool hasParameter(const MethodEntry& method, const std::string& key) {
    return std::any_of(method.denoisingParameters.begin(), method.denoisingParameters.end(),
                       [&](const Parameter& parameter) { return parameter.key == key; });
}

/// The settings of a method in a cell. budget: 0: the cell has none. more: the settings of --set, of which the method
/// gets those whose parameters it has. @throws Error(Unsupported) where a budget is given to a method that has none
CellSettings settingsOf(const MethodEntry& method, int budget, const CellSettings& more) {
    CellSettings settings;
    if (budget > 0) settings.emplace_back("budget", std::to_string(budget));
    if (budget > 0 && !hasParameter(method, "budget"))
        throw Error(ErrorKind::Unsupported,
                    fmt::format("method {} has no budget on a model that denoises", method.name),
                    "choose among full, quest, losa and sparsed");
    for (const auto& setting : more)
        if (hasParameter(method, setting.first)) settings.push_back(setting);
    return settings;
}

/// The settings of --set. @throws Error(BadInput) where a cell decides about one itself, or no method has it
CellSettings moreSettings(const QualityArguments& arguments) {
    CellSettings more = parseSettings("--set", arguments.settings);
    for (const auto& setting : more) {
        const std::string& key = setting.first;
        if (key == "budget" || key == "strategy")
            throw Error(ErrorKind::BadInput, fmt::format("--set {} has no effect: the cells differ in it", key),
                        key == "budget" ? "use --budgets" : "use --pace");
        if (std::none_of(arguments.methods.begin(), arguments.methods.end(),
                         [&](const std::string& name) { return hasParameter(findMethod(name), key); }))
            throw Error(ErrorKind::BadInput, fmt::format("none of the methods has a parameter '{}'", key),
                        "see kvscope-cli methods");
    }
    return more;
}

std::vector<QualityCell> cellsOf(const QualityArguments& arguments) {
    std::vector<QualityCell> cells;
    const CellSettings more = moreSettings(arguments);
    for (const int context : arguments.contexts)
        for (const std::string& pace : arguments.paces)
            for (const std::string& task : arguments.tasks)
                for (const std::string& name : arguments.methods) {
                    const MethodEntry& method = findMethod(name);
                    const std::vector<int> budgets = name == "full" ? std::vector<int>{0} : arguments.budgets;
                    for (const int budget : budgets)
                        cells.push_back({namedOf<NeedleTask>("--tasks", task, kNeedleTasks), context,
                                         namedOf<Pace>("--pace", pace, 2), name, settingsOf(method, budget, more)});
                }
    return cells;
}

/// The cells in which the bound is measured: one with full attention, and one for each budget of quest, whose first
/// forward reads pages.
std::vector<QualityCell> boundCells(const QualityArguments& arguments) {
    std::vector<QualityCell> cells;
    for (const std::string& name : arguments.methods) {
        if (name == "full") cells.push_back({{}, arguments.boundContext, Pace::Slow, name, {}});
        if (name != "quest") continue; // losa's first forward is the same, and SparseD's masks need a dense one
        for (const int budget : arguments.budgets)
            cells.push_back({{},
                             arguments.boundContext,
                             Pace::Slow,
                             name,
                             {{"budget", std::to_string(budget)}, {"first", "sparse"}}});
    }
    return cells;
}

/// Measures batches, one after the other, until the file has all of them or the time is up.
class Work {
public:
    Work(QualityArguments& arguments, std::shared_ptr<const Model> model, FinishedPoints& finished, LongAction& action)
        : arguments_(arguments), model_(std::move(model)), finished_(finished), action_(action) {
        options_.backend = arguments.backend == nameOf(Backend::Cuda) ? Backend::Cuda : Backend::Cpu;
        options_.threads = arguments.threads;
    }

    void run(const std::vector<QualityCell>& cells, const std::vector<QualityCell>& bounds) {
        const int perCell = (arguments_.prompts + arguments_.batch - 1) / arguments_.batch,
                  perBound = (arguments_.boundBlocks + arguments_.batch - 1) / arguments_.batch;
        all_ = int(cells.size()) * perCell + int(bounds.size()) * perBound;
        std::vector<std::int32_t> text;
        if (!bounds.empty())
            text = scoredText(*model_, arguments_.textFile,
                              tokensOfBound(*model_, arguments_.boundContext, arguments_.boundBlocks),
                              "give a longer text, a smaller --bound-context or fewer --bound-blocks");
        for (const QualityCell& cell : bounds)
            inBatches(arguments_.boundBlocks, [&](int first, int count) {
                once(keyOf(cell, true, first, count), [&] { return boundOf(cell, first, count, text); });
            });
        for (auto cell = cells.begin(); cell != cells.end();) {
            const auto next = std::find_if(cell, cells.end(), [&](const QualityCell& other) {
                return other.task != cell->task || other.context != cell->context || other.pace != cell->pace;
            });
            samePrompts({cell, next});
            cell = next;
        }
    }
    int left() const { return all_ - done_; }
    int all() const { return all_; }

private:
    template <class Batch> void inBatches(int count, const Batch& batch) const {
        for (int first = 0; first < count; first += arguments_.batch)
            batch(first, std::min(arguments_.batch, count - first));
    }
    /// Measures the batch with this key and adds it to the file, unless the file has it or the time is up.
    template <class Make> void once(const std::string& key, const Make& make) {
        if (finished_.find(key) == nullptr) {
            const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin_;
            if (arguments_.seconds > 0 && spent.count() >= arguments_.seconds) return;
            finished_.add(key, make());
        }
        ++done_;
        report(action_.whole(), double(done_) / all_, key);
    }
    /// Measures cells that have the same prompts: batch after batch, and in each batch cell after cell, so that all
    /// cells have about as many prompts when the time is up.
    void samePrompts(std::span<const QualityCell> cells) {
        const QualityCell& any = cells.front();
        inBatches(arguments_.prompts, [&](int first, int count) {
            NeedlePrompts prompts; // made when the first method asks for them
            for (const QualityCell& cell : cells)
                once(keyOf(cell, false, first, count), [&] {
                    if (prompts.ids.empty())
                        prompts =
                            needlePrompts(model_->tokenizer(), any.task, any.context, first, count, arguments_.seed);
                    return jsonOf(decodeNeedles(model_, options_, cell, prompts, {}, action_.stop()));
                });
        });
    }
    Json boundOf(const QualityCell& cell, int first, int count, std::span<const std::int32_t> text) {
        SessionOptions options = options_;
        options.method = cell.method, options.settings = cell.settings;
        const BoundSum sum =
            boundOnBlocks(model_, options, text, cell.context, first, count, arguments_.seed, action_.stop());
        return {{"nll", sum.nll}, {"terms", sum.terms}};
    }

    const QualityArguments& arguments_;
    const std::shared_ptr<const Model> model_;
    FinishedPoints& finished_;
    LongAction& action_;
    SessionOptions options_;
    const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
    int all_ = 0, done_ = 0;
};

/// @throws Error(BadInput) where a point of the file is none of this command's
Json documentOf(const QualityArguments& arguments, const Json& settings, const std::vector<QualityCell>& cells,
                const std::vector<QualityCell>& bounds, const FinishedPoints& finished) {
    try {
        return qualityDocument(settings, cells, bounds, {arguments.prompts, arguments.boundBlocks, arguments.batch},
                               finished);
    } catch (const Json::exception&) {
        throw Error(ErrorKind::BadInput, fmt::format("a batch in {} is not complete", arguments.resume),
                    "give --resume another file");
    }
}

int run(QualityArguments& arguments, const Options& command) {
    refuseVain(arguments.boundBlocks == 0, command, {"--text", "--bound-context"}, "with --bound-blocks 0");
    refuseVain(std::all_of(arguments.methods.begin(), arguments.methods.end(),
                           [](const std::string& name) { return name == "full"; }),
               command, {"--budgets"}, "with method full alone, which reads everything");
    refuseVain(arguments.prompts == 0, command, {"--tasks", "--contexts", "--pace", "--set"}, "with --prompts 0");
    if (arguments.prompts == 0 && arguments.boundBlocks == 0)
        throw Error(ErrorKind::BadInput, "nothing is left to measure without needle prompts and without a bound",
                    "give --prompts or --bound-blocks a number above 0");
    refuseRepeated("--tasks", arguments.tasks);
    refuseRepeated("--contexts", arguments.contexts);
    refuseRepeated("--pace", arguments.paces);
    refuseRepeated("--methods", arguments.methods);
    refuseRepeated("--budgets", arguments.budgets);
    const std::vector<QualityCell> cells = arguments.prompts > 0 ? cellsOf(arguments) : std::vector<QualityCell>(),
                                   bounds =
                                       arguments.boundBlocks > 0 ? boundCells(arguments) : std::vector<QualityCell>();
    LongAction action;
    const auto model = Model::load(arguments.model, action.part(0, 0.01), action.stop());
    tokensOfBound(*model, 1, 1); // refuses a model without blocks before anything else
    const Json settings{{"model", model->name()},
                        {"backend", arguments.backend},
                        {"seed", arguments.seed},
                        {"text", arguments.textFile.empty() ? "built-in document" : arguments.textFile}};
    FinishedPoints finished(arguments.resume, settings);
    Work work(arguments, model, finished, action);
    const auto print = [&](Json document) {
        if (arguments.json)
            printOut("{}\n", document.dump(2, ' ', false, Json::error_handler_t::replace));
        else
            printQuality(document);
    };
    try {
        work.run(cells, bounds);
    } catch (const Error& error) {
        action.clear();
        if (!arguments.resume.empty()) {
            if (error.kind == ErrorKind::Cancelled)
                printErr("what was measured is in {}; the same command goes on from there\n", arguments.resume);
        } else if (work.left() < work.all()) { // no file keeps what was measured, so it is printed
            Json document = documentOf(arguments, settings, cells, bounds, finished);
            document["cancelled"] = error.kind == ErrorKind::Cancelled;
            print(std::move(document));
        }
        throw;
    }
    action.clear();
    if (work.left() > 0)
        printErr("the time is up: {} of {} batches are in {}; the same command goes on from there\n",
                 work.all() - work.left(), work.all(), arguments.resume);
    print(documentOf(arguments, settings, cells, bounds, finished));
    return 0;
}

} // namespace

Command addQuality(Options& program) {
    auto arguments = std::make_shared<QualityArguments>();
    Options sub = program.command(
        "quality",
        "Measure how well a block-diffusion model answers under sparse methods: needles with intervals, agreement "
        "with dense text, density, and a bound on perplexity");
    sub.add("--model", arguments->model, "Hugging Face folder, .safetensors file, or an embedded model (losa-tiny)")
        .showsDefault();
    sub.add("--tasks", arguments->tasks, "passkey, keys4, keys16").commaSeparated().showsDefault();
    sub.add("--contexts", arguments->contexts, "Tokens of prompt and answer")
        .commaSeparated()
        .range(256, 1 << 22)
        .showsDefault();
    sub.add("--pace", arguments->paces, "slow: one token a forward; fast: all above the threshold of 0.9")
        .commaSeparated()
        .showsDefault();
    sub.add("--methods", arguments->methods, "full first: the others' texts are compared with it")
        .commaSeparated()
        .showsDefault();
    sub.add("--budgets", arguments->budgets, "Tokens of the prefix that a query chooses")
        .commaSeparated()
        .range(1, 1 << 24)
        .showsDefault();
    sub.add("--set", arguments->settings,
            "Parameter of the methods that have it, key=value; repeatable. The bound is measured without");
    sub.add("--prompts", arguments->prompts, "Prompts of each cell; 0: no needles").range(0, 100'000).showsDefault();
    sub.add("--batch", arguments->batch, "Prompts, or blocks, that are decoded together").range(1, 256).showsDefault();
    sub.add("--bound-blocks", arguments->boundBlocks, "Blocks of the text for the bound on perplexity; 0: no bound")
        .range(0, 100'000)
        .showsDefault();
    sub.add("--bound-context", arguments->boundContext, "Tokens before each of these blocks")
        .range(16, 1 << 22)
        .showsDefault();
    sub.add("--text", arguments->textFile, "Text file for the bound; default: the built-in document");
    sub.add("--backend", arguments->backend, "cpu or cuda").oneOf({"cpu", "cuda"}).showsDefault();
    sub.add("--threads", arguments->threads, "CPU threads; 0: all cores").range(0, 4096).showsDefault();
    sub.add("--seed", arguments->seed, "Seed of the first prompt; each further prompt has the next number")
        .showsDefault();
    const Option resume =
        sub.add("--resume", arguments->resume, "Keep every batch in this file, and do not measure again what is there")
            .valueName("FILE");
    sub.add("--seconds", arguments->seconds, "Begin no batch after so many seconds").positive().needs(resume);
    sub.flag("--json", arguments->json, "Print one JSON document");
    return [arguments, sub] { return run(*arguments, sub); };
}

} // namespace kvscope::cli
