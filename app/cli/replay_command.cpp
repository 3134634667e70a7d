// kvscope-cli replay: a recorded run against other caches and links, without decoding again.
#include "app/cli/commands.h"

#include "kernels/base/error.h"
#include "profiler/replay/replay.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvscope::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
    std::string trace;
    std::vector<std::string> policies, links;
    std::vector<int> cacheBlocks;
    int run = 0;
    bool json = false;
};

int chooseRun(const TraceReader& reader, int wanted) {
    const std::vector<RunRow> runs = reader.runs();
    if (runs.empty())
        throw Error(ErrorKind::BadInput, fmt::format("{} has no runs", reader.path()),
                    "record one with kvscope-cli run --trace");
    if (wanted == 0) return runs.back().runId;
    if (!reader.run(wanted))
        throw Error(ErrorKind::BadInput, fmt::format("{} has no run {}", reader.path(), wanted),
                    "kvscope-cli info lists its runs");
    return wanted;
}

void printTable(const SelectionTrace& trace, const std::vector<ReplayConfig>& configs) {
    fmt::print("run {}: {}, {} decode steps, at most {} blocks at a time\n", trace.run.runId, trace.run.name,
               trace.steps.size(), trace.largestSet);
    fmt::print("recorded: {}, {} hits, {} misses\n",
               trace.run.deviceSlots > 0
                   ? fmt::format("{}, {} block slots", trace.cachePolicy.empty() ? "?" : trace.cachePolicy,
                                 trace.run.deviceSlots)
                   : "every block resident",
               trace.hits, trace.misses);
    fmt::print("{:<14} {:>12} {:>9} {:>12} {:>10} {:>10} {:>10} {:>12} {:>10}\n", "policy", "cache_blocks", "GB/s",
               "hits", "misses", "compulsory", "h2d_MB", "exposed_ms", "tokens/s");
    for (const ReplayConfig& c : configs)
        fmt::print("{:<14} {:>12} {:>9g} {:>12} {:>10} {:>10} {:>10.2f} {:>12.3f} {:>10.1f}\n", c.policy, c.cacheBlocks,
                   c.linkGbps, c.hits, c.misses, c.compulsory, double(c.h2dBytes) / 1e6, double(c.exposedNs) / 1e6,
                   c.tokensPerSecond);
}

int run(const Arguments& arguments) {
    const TraceReader reader(arguments.trace);
    ReplayOptions options;
    options.policies = arguments.policies;
    options.cacheBlocks = arguments.cacheBlocks;
    for (const std::string& link : arguments.links) options.links.push_back(Link::parse(link));
    for (const std::string& policy : arguments.policies) findReplayPolicy(policy); // before the long read
    const SelectionTrace trace = loadSelectionTrace(reader, chooseRun(reader, arguments.run));
    if (trace.run.droppedSteps > 0)
        fmt::print(stderr, "kvscope-cli: {} steps of this run were dropped while recording, the replay lacks them\n",
                   trace.run.droppedSteps);
    const std::vector<ReplayConfig> configs = replay(trace, options);
    if (!arguments.json) {
        printTable(trace, configs);
        return 0;
    }
    Json out{{"configs", Json::array()}};
    for (const ReplayConfig& c : configs)
        out["configs"].push_back({{"policy", c.policy},
                                  {"cache_blocks", c.cacheBlocks},
                                  {"link_gbps", c.linkGbps},
                                  {"hits", c.hits},
                                  {"misses", c.misses},
                                  {"compulsory", c.compulsory},
                                  {"h2d_bytes", c.h2dBytes},
                                  {"exposed_ms", double(c.exposedNs) / 1e6},
                                  {"tokens_per_s", c.tokensPerSecond}});
    fmt::print("{}\n", out.dump(2));
    return 0;
}

} // namespace

Command addReplay(CLI::App& app) {
    auto arguments = std::make_shared<Arguments>();
    CLI::App* sub = app.add_subcommand("replay", "Try other caches and links on the selections of a recorded run");
    std::vector<std::string> names;
    for (const ReplayPolicyEntry& policy : replayPolicies()) names.push_back(policy.name);
    sub->add_option("trace", arguments->trace, "The .kvtrace file")->required();
    sub->add_option("--cache-blocks", arguments->cacheBlocks,
                    "Block slots per sequence, layer and KV head, e.g. 16,24,32; default: as recorded")
        ->delimiter(',');
    sub->add_option("--policy", arguments->policies, fmt::format("Some of {}; default: all", fmt::join(names, ", ")))
        ->delimiter(',');
    sub->add_option("--link", arguments->links,
                    "pcie4, pcie5 or GB/s, e.g. 12,26,55.5; default: as recorded, or pcie5 where times were measured")
        ->delimiter(',');
    sub->add_option("--run", arguments->run, "Run of the trace; default: the last");
    sub->add_flag("--json", arguments->json, "Print one JSON document");
    return [arguments] { return run(*arguments); };
}

} // namespace kvscope::cli
