// kvscope-cli merge: the traces of several ranks, or any others, as one.
#include "app/cli/commands.h"
#include "app/cli/long_action.h"
#include "app/terminal/options.h"
#include "app/terminal/output.h"

#include "profiler/merge/merge.h"

#include <fmt/format.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvscope::cli {
namespace {

struct MergeArguments {
    std::string out;
    std::vector<std::string> inputs;
    bool overwrite = false, json = false;
};

std::string clockText(const MergedRun& run) {
    if (run.clock.empty()) return {};
    if (run.clock == "reference")
        return fmt::format(", its clock is the reference, {:+.6f} ms", double(run.addedNs) / 1e6);
    return fmt::format(
        ", clock {:+.6f} ms by {}, error {:.6f} ms{}", double(run.addedNs) / 1e6, run.clock, double(run.errorNs) / 1e6,
        run.clock == "utc"      ? " of the readings; how far UTC of two machines is apart is not known"
        : run.errorNs > 100'000 ? ": the order of what happened on this rank and on others is not certain"
                                : "");
}

int run(const MergeArguments& arguments) {
    MergeResult result;
    {
        LongAction action;
        result = mergeTraces(arguments.inputs, arguments.out, arguments.overwrite, action.whole(), action.stop());
    }
    if (arguments.json) {
        nlohmann::ordered_json out{
            {"trace", arguments.out}, {"runs", nlohmann::ordered_json::array()}, {"remarks", result.remarks}};
        for (const MergedRun& run : result.runs) {
            const nlohmann::ordered_json none;
            const bool aligned = !run.clock.empty();
            out["runs"].push_back({{"run_id", run.runId},
                                   {"name", run.name},
                                   {"file", run.file},
                                   {"file_run_id", run.oldRunId},
                                   {"rank", run.rank < 0 ? none : nlohmann::ordered_json(run.rank)},
                                   {"clock_offset_ns", aligned ? nlohmann::ordered_json(run.addedNs) : none},
                                   {"clock_error_ns", aligned ? nlohmann::ordered_json(run.errorNs) : none},
                                   {"clock_by", aligned ? nlohmann::ordered_json(run.clock) : none}});
        }
        printOut("{}\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
        return 0;
    }
    for (const MergedRun& run : result.runs)
        printOut("run {}: {} from {}{}\n", run.runId, run.name, run.file, clockText(run));
    printOut("{}: {} run{}\n", arguments.out, result.runs.size(), result.runs.size() == 1 ? "" : "s");
    for (const std::string& remark : result.remarks) printErr("kvscope-cli: {}\n", remark);
    return 0;
}

} // namespace

Command addMerge(Options& program) {
    auto arguments = std::make_shared<MergeArguments>();
    Options sub = program.command("merge", "Make one trace of the traces of several ranks, with their clocks aligned");
    sub.add("out", arguments->out, "The .kvtrace file to write").required();
    sub.add("in", arguments->inputs, "Traces, and folders of traces").required();
    sub.flag("--overwrite", arguments->overwrite, "Replace the file if it exists");
    sub.flag("--json", arguments->json, "Print one JSON document");
    return [arguments] { return run(*arguments); };
}

} // namespace kvscope::cli
