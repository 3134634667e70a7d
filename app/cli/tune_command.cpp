// kvscope-cli tune: which method, budget and block size to decode with, checked by really running the best predicted.
#include "app/cli/commands.h"
#include "app/cli/long_action.h"
#include "app/cli/result_file.h"
#include "app/cli/setting_options.h"
#include "app/cli/vain.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "base/error.h"
#include "profiler/tune/tune_text.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fmt/format.h>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

namespace kvscope::cli {
namespace {

struct TuneArguments {
    std::string model = kDefaultModel, calibration, backend = nameOf(Backend::Cpu), link = "pcie5", memory,
                prompts = "needles", measure, gpu, table, output;
    PromptSetSize size;
    TuneRequest request;
    bool json = false;
};

std::string milliseconds(double ns) { return std::isfinite(ns) ? fmt::format("{:.3f}", ns / 1e6) : "-"; }
std::string kibibytes(double bytes) { return std::isfinite(bytes) ? fmt::format("{:.1f}", bytes / 1024) : "-"; }

void printRow(const TuneResult& result, std::size_t index) {
    const TuneRow& row = result.rows[index];
    const TuneCandidate& candidate = row.candidate;
    const StepSums sums = row.measured ? row.measured->sums : StepSums{};
    const char* mark = result.recommended == index ? "*" : row.front ? "+" : " ";
    const std::string place = !candidate.travels      ? "device"
                              : candidate.deviceSlots ? fmt::format("{} slots", *candidate.deviceSlots)
                                                      : "offloaded";
    printOut("{} {:>3}  {:<52} {:<10} {:>8.2f} {:>9} {:>9} {:>9} {:>9}  {}\n", mark, index + 1, candidate.name(), place,
             double(candidate.deviceBytes) / 1048576, milliseconds(row.predicted.stepNs),
             row.measured ? milliseconds(sums.stepNs()) : "", kibibytes(row.predicted.bytesPerToken),
             row.measured ? kibibytes(sums.bytesPerToken()) : "",
             row.measured ? qualityText(row.measured->quality) + (row.reaches            ? ""
                                                                  : row.measured->gaveUp ? " below the floor, given up"
                                                                                         : " below the floor")
                          : "");
}

void printTable(const TuneResult& result) {
    const TuneRequest& request = result.request;
    printOut("{} on {}: {} prompts of the set '{}', up to {} tokens, a batch of {}, {}, {}\n", result.model,
             nameOf(request.backend), result.promptCount, result.prompts, result.context, request.batch,
             request.deviceBytes > 0
                 ? fmt::format("{:.2f} MiB of device memory for the KV cache", double(request.deviceBytes) / 1048576)
                 : "no limit of device memory",
             request.backend == Backend::Cpu ? request.link.describe() : "the GPU's own link");
    printOut("{:>5}  {:<52} {:<10} {:>8} {:>9} {:>9} {:>9} {:>9}  {}\n", "", "", "", "device", "ms/step", "ms/step",
             "KiB/token", "KiB/token", request.measure == QualityMeasure::Answered ? "answered" : "agreeing");
    printOut("{:>5}  {:<52} {:<10} {:>8} {:>9} {:>9} {:>9} {:>9}  {}\n", "", "candidate", "blocks", "MiB", "predicted",
             "measured", "predicted", "measured", "(95 % interval)");
    for (std::size_t i = 0; i < result.rows.size(); ++i) printRow(result, i);
    printOut("* recommended, + on the front: no other measured one is both better and faster\n");
    printOut("predicted by {}", result.machine.scaled ? "roofline, scaled by full attention here" : "roofline");
    for (const TuneRow& row : result.rows)
        if (row.predicted.replayed) printOut("; {}: {}", row.candidate.name(), row.predicted.from);
    if (!result.machine.changeFrom.empty())
        printOut("; {:.3g} of the blocks chosen by query are new in a step ({})", result.machine.change,
                 result.machine.changeFrom);
    printOut("\n");
    if (!result.leftOut.empty()) printOut("{} not tried:\n", result.leftOut.size());
    for (const LeftOut& left : result.leftOut) printOut("  {}: {}\n", left.name, left.reason);
    printOut("\n{}\n", tuneVerdict(result));
    if (result.recommended) printOut("\n{}\n", tuneCommand(result, result.rows[*result.recommended]));
}

void refuseVainTune(const TuneArguments& arguments, const Options& command) {
    const bool file = arguments.prompts != "needles" && arguments.prompts != "document";
    refuseVain(file, command, {"--context", "--prompt-count", "--seed"},
               "with prompts of a file, which have their own length and number");
    refuseVain(arguments.backend == nameOf(Backend::Cuda), command, {"--threads"}, "with --backend cuda");
    refuseVain(arguments.request.grid.methods == std::vector<std::string>{"full"}, command, {"--budgets"},
               "with method full alone, which attends to everything");
}

TuneRequest requestOf(const TuneArguments& arguments, bool setHasAnswers) {
    TuneRequest request = arguments.request;
    request.modelName = arguments.model;
    request.backend = arguments.backend == nameOf(Backend::Cuda) ? Backend::Cuda : Backend::Cpu;
    request.link = Link::parse(arguments.link);
    if (!arguments.memory.empty()) request.deviceBytes = amountOf("--memory", arguments.memory);
    const bool answered =
        arguments.measure.empty() ? setHasAnswers : arguments.measure == nameOf(QualityMeasure::Answered);
    request.measure = answered ? QualityMeasure::Answered : QualityMeasure::Agreement;
    if (!arguments.gpu.empty()) request.machine = GpuTable::load(arguments.table).get(arguments.gpu);
    return request;
}

int run(const TuneArguments& arguments, const Options& command) {
    refuseVainTune(arguments, command);
    const TuneGrid& grid = arguments.request.grid;
    refuseRepeated("--methods", grid.methods);
    refuseRepeated("--budgets", grid.budgets);
    refuseRepeated("--block-sizes", grid.blockSizes);
    refuseRepeated("--from", arguments.request.traces, [](const std::string& a, const std::string& b) {
        std::error_code unknown; // of a file that is not there
        return a == b || std::filesystem::equivalent(a, b, unknown);
    });
    checkResultFile(arguments.output);
    LongAction action;
    const auto model = Model::load(arguments.model, action.part(0, 0.02), action.stop(), arguments.calibration);
    const PromptSet prompts = promptSet(*model, arguments.prompts, arguments.size, action.stop());
    const TuneResult result =
        tune(model, prompts, requestOf(arguments, prompts.hasAnswers()), {}, action.part(0.02, 1), action.stop());
    action.clear();
    if (arguments.json)
        printOut("{}", tuneJson(result));
    else
        printTable(result);
    if (!arguments.output.empty()) // after the table: a full disk must not cost the user the table
        writeResultFile(arguments.output, [&](std::ostream& out) { out << tuneJson(result); });
    if (result.cancelled) return Interruption::exitStatus();
    const bool replayed =
        std::any_of(result.rows.begin(), result.rows.end(), [](const TuneRow& row) { return row.predicted.replayed; });
    if (command.has("--from") && !replayed)
        printErr("kvscope-cli: no run of --from stands for a candidate: none has its method, parameters, batch, "
                 "KV type and about its prompt's length\n");
    return result.recommended ? 0 : 1;
}

} // namespace

Command addTune(Options& program) {
    auto arguments = std::make_shared<TuneArguments>();
    TuneRequest& request = arguments->request;
    Options sub = program.command("tune", "Choose method, budget and block size for a memory, a link and a load, and "
                                          "check the choice by running it");
    sub.add("--model", arguments->model,
            "Hugging Face folder, .safetensors or .gguf file, or an embedded model (nosa-tiny)")
        .showsDefault();
    sub.add("--calibration", arguments->calibration,
            "Folder with what kvscope-cli calibrate wrote; default: the model's own folder");
    sub.add("--memory", arguments->memory,
            "Device memory for the KV cache of all sequences, e.g. 256M; default: no limit, and nothing is offloaded");
    sub.add("--link", arguments->link, "Modelled link: pcie4, pcie5 or GB/s").showsDefault();
    sub.add("--batch", request.batch, "Sequences decoded together").range(1, 256).showsDefault();
    sub.add("--prompts", arguments->prompts,
            "Prompt set: needles, document, or a file of JSON lines with prompt and answer")
        .showsDefault();
    sub.add("--context", arguments->size.tokens, "Tokens of each built-in prompt").range(16, 1 << 22).showsDefault();
    sub.add("--prompt-count", arguments->size.prompts, "Prompts of a built-in set").range(1, 10'000).showsDefault();
    sub.add("--seed", arguments->size.seed,
            "Seed of the first built-in prompt; each further prompt has the next number")
        .showsDefault();
    sub.add("--decode-tokens", request.newTokens, "Generated for every prompt").range(2, 100'000).showsDefault();
    sub.add("--measure", arguments->measure,
            "The share that must reach the floor: answered, of the prompts, or agreement, of the tokens that full "
            "attention chooses too; default: answered where the set has answers")
        .oneOf({"answered", "agreement"});
    sub.add("--floor", request.floor, "The share from which on answers are good enough").range(0.0, 1.0).showsDefault();
    sub.flag("--sure", request.sure, "The lower end of the share's 95 % interval must reach the floor");
    sub.add("--methods", request.grid.methods, "e.g. full,nosa,quest; all, the default: every one that the model has")
        .commaSeparated();
    sub.add("--budgets", request.grid.budgets,
            "Tokens attended, e.g. 512,1024; default: half, once and twice each method's own")
        .commaSeparated()
        .range(16, 1 << 24);
    sub.add("--block-sizes", request.grid.blockSizes, "Tokens of a block, e.g. 32,64; default: each method's own")
        .commaSeparated()
        .range(1, 1 << 12);
    sub.add("--runs", request.runs, "How many of the best predicted are run").range(1, 10'000).showsDefault();
    sub.add("--more", request.more, "How many others are run while none of them reaches the floor")
        .range(0, 10'000)
        .showsDefault();
    sub.add("--from", request.traces,
            "A trace whose runs stand for candidates with the same settings: these are predicted by replay; repeatable")
        .repeatable();
    const Option gpu =
        sub.add("--gpu", arguments->gpu, "Entry of the GPU table for the predictions; default: this machine's");
    sub.add("--gpus", arguments->table, "A GPU table of your own, over the built-in one").needs(gpu);
    sub.add("--backend", arguments->backend, "cpu or cuda").oneOf({"cpu", "cuda"}).showsDefault();
    sub.add("--threads", request.threads, "CPU threads; 0: all cores").range(0, 1024).showsDefault();
    sub.add("-o,--output", arguments->output, "Write the JSON document into this file, too");
    sub.flag("--json", arguments->json, "Print one JSON document");
    return [arguments, sub] { return run(*arguments, sub); };
}

} // namespace kvscope::cli
