// Tables of a report about what ran, on what, how well it was recorded, and how to repeat it.
#include "profiler/read/denoising.h"
#include "profiler/read/own_tier.h"
#include "profiler/report/ratio.h"
#include "profiler/report/report.h"
#include "profiler/report/reproduce.h"
#include "profiler/report/wide_table.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace kvscope::reports {
namespace {

using Json = nlohmann::ordered_json;

std::string statusOf(const RunData& run) {
    if (run.row.stale) return "interrupted";
    return run.row.status.text();
}

} // namespace

Table configuration(const std::vector<RunData>& runs) {
    WideTable table(
        runs, "configuration", "Configuration",
        "Everything that was chosen: the model's shape, the method with every parameter after defaults were "
        "resolved, and the memory it had.");
    table.add("Model", "", [](const RunData& r) { return text(modelName(r.row)); });
    table.add("Layers", "", [](const RunData& r) { return count(r.row.layers); });
    table.add("Query heads", "per layer", [](const RunData& r) { return count(r.row.queryHeads); });
    table.add("KV heads", "per layer", [](const RunData& r) { return count(r.row.kvHeads); });
    table.add("Head dimension", "", [](const RunData& r) { return count(r.row.headDim); });
    table.add("Sequences", "decoded together", [](const RunData& r) { return count(r.row.sequences); });
    table.add("Method", "", [](const RunData& r) { return text(r.row.method); });
    std::vector<std::string> keys; // of all runs, in the order they declare them
    std::vector<Json> objects;
    for (const RunData& run : runs) {
        Json params = Json::parse(run.row.paramsJson, nullptr, false);
        if (!params.is_object()) params = Json::object();
        for (const auto& [key, value] : params.items())
            if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
        objects.push_back(std::move(params));
    }
    for (const std::string& key : keys) {
        std::vector<Cell> values;
        for (const Json& params : objects) {
            const auto value = params.find(key);
            values.push_back(text(value == params.end() ? std::string()
                                  : value->is_string()  ? value->get<std::string>()
                                                        : value->dump()));
        }
        table.add(key, "parameter", std::move(values));
    }
    table.add("Block size", "tokens", [](const RunData& r) { return count(r.row.blockSize); });
    table.add("Block bytes", "one block of one KV head, as transferred",
              [](const RunData& r) { return whole(r.row.blockBytes, Quantity::Bytes); });
    table.add("Budget", "most blocks a KV head attends to", [](const RunData& r) {
        if (choosesWithoutBound(r.row)) return text("no bound: what queries choose together");
        return r.row.budgetBlocks == 0 ? text("all blocks") : count(r.row.budgetBlocks);
    });
    table.add("Device slots", "blocks per sequence, layer and KV head", [](const RunData& r) {
        if (!r.row.knows.has(Known::Hits) && r.row.deviceSlots == 0) return notKnown(Quantity::Count);
        if (r.row.sharesPool()) return text("one pool for all rows");
        if (hasOwnTier(r.row)) return text("by the method's own rule");
        return r.row.deviceSlots == 0 ? text("everything resident") : count(r.row.deviceSlots);
    });
    return table.take();
}

Table environment(const std::vector<RunData>& runs) {
    WideTable table(runs, "environment", "Environment",
                    "What it ran on. Transfer times of a modelled link are computed from real copies and the stated "
                    "bandwidth and latency; those of a measured one come from a clock.");
    table.add("Program", "that recorded", [](const RunData& r) { return text(r.program); });
    table.add("Backend", "", [](const RunData& r) { return text(r.row.backend.text()); });
    table.add("Device", "", [](const RunData& r) { return text(r.row.device); });
    table.add("Link", "", [](const RunData& r) { return text(r.row.link); });
    table.add("Link times are", "", [](const RunData& r) { return text(r.row.timing.text()); });
    table.add("Recorded", "level", [](const RunData& r) { return text(r.row.level.text()); });
    if (std::any_of(runs.begin(), runs.end(), [](const RunData& r) { return r.row.knows != Knowledge::everything(); }))
        table.add("Not known", "the recording engine did not see it",
                  [](const RunData& r) { return text(r.row.knows.list(true)); });
    table.add("Started", "UTC", [](const RunData& r) { return text(r.row.createdUtc); });
    table.add("Trace", "file", [](const RunData& r) { return text(r.file); });
    table.add("Run", "in the file", [](const RunData& r) { return count(r.row.runId); });
    return table.take();
}

Table health(const std::vector<RunData>& runs) {
    WideTable table(runs, "health", "Health of the recording",
                    "Whether the numbers can be trusted: what was lost, and what recording cost.");
    table.add("Status", "", [](const RunData& r) { return text(statusOf(r)); });
    table.add("Message", "", [](const RunData& r) { return text(r.row.statusMessage); });
    if (std::any_of(runs.begin(), runs.end(), [](const RunData& run) { return !run.row.error.empty(); }))
        table.add("Recording ended by", "nothing after it is in the trace",
                  [](const RunData& r) { return text(r.row.error); });
    table.add("Dropped steps", "not in the trace, so in no number here",
              [](const RunData& r) { return count(r.row.droppedSteps); });
    table.add("Writer time", "CPU time of the recorder's thread, beside the engine",
              [](const RunData& r) { return whole(r.row.writerBusyNs, Quantity::Nanoseconds, Basis::Measured); });
    table.add("Writer time against wall time", "prefill and decode", [](const RunData& r) {
        const double wall = (r.summary.prefillMs + r.summary.decodeMs) * 1e6;
        const bool known =
            wall > 0 && !r.row.serves(); // steps of a server leave out what its iterations read of prompts
        return real(known ? double(r.row.writerBusyNs) / wall : kUndefined, Quantity::Share, Basis::Measured);
    });
    if (std::any_of(runs.begin(), runs.end(), [](const RunData& run) { return !run.notes.empty(); }))
        table.add("Notes", "of the recorder",
                  [](const RunData& r) { return text(fmt::format("{}", fmt::join(r.notes, "; "))); });
    return table.take();
}

Table reproduction(const std::vector<RunData>& runs) {
    Table table{"reproduce",
                "How to repeat it",
                "The command records the run again, in the folder of the trace, which holds the prompt token by token. "
                "Greedy decoding gives the same tokens, hits and misses; times are those of the machine it runs on.",
                {{"run", "Run", "", false}, {"command", "Command", "", false}, {"note", "Note", "", false}},
                {}};
    for (const RunData& run : runs) {
        const Reproduction again = reproduce(run);
        table.rows.push_back(
            {text(run.row.name), text(again.command()), text(fmt::format("{}", fmt::join(again.notes, " ")))});
    }
    return table;
}

} // namespace kvscope::reports
