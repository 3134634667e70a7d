#include "core/serve/scheduler_options.h"

#include "base/error.h"

#include <algorithm>
#include <fmt/format.h>
#include <stdexcept>

namespace kvscope::serve {
namespace {

Parameter countKnob(const char* key, const char* value, double min, double max, const char* unit, const char* help) {
    return {key, ParameterType::Integer, value, min, max, unit, help, {}, nullptr};
}
Parameter timeKnob(const char* key, const char* value, double min, const char* help) {
    return {key, ParameterType::Number, value, min, 1e7, "ms", help, {}, nullptr};
}
Parameter switchKnob(const char* key, const char* value, const char* help) {
    return {key, ParameterType::Boolean, value, 0, 1, "", help, {}, nullptr};
}
Parameter choiceKnob(const char* key, std::vector<std::string> choices, const char* help) {
    return {key, ParameterType::Choice, choices.front(), 0, 0, "", help, choices, nullptr};
}

/// Finds the value of a choice among the declared ones, and returns its index as the enum.
template <class Enum> Enum choiceOf(const ParameterValues& values, std::string_view key) {
    for (const Parameter& parameter : schedulerParameters()) {
        if (parameter.key != key) continue;
        const auto found = std::find(parameter.choices.begin(), parameter.choices.end(), values.text(key));
        if (found != parameter.choices.end()) return Enum(found - parameter.choices.begin());
    }
    throw Error(ErrorKind::BadInput, fmt::format("'{}' is not a value of '{}'", values.text(key), key));
}

} // namespace

const std::vector<Parameter>& schedulerParameters() {
    // The choices of a knob are listed in the order of its enum.
    static const std::vector<Parameter> parameters{
        countKnob("rows", "64", 1, 1024, "requests", "Requests that are admitted at once (R_max of SparseServe)."),
        countKnob("iteration_tokens", "262144", 1, 16777216, "tokens",
                  "Decode tokens and whole prompts of the segments of one iteration (T_max of SparseServe)."),
        timeKnob("iteration_ms", "0", 0,
                 "Predicted time of one iteration, at most 0.8 of tbt_bound_ms; 0 takes those 0.8."),
        timeKnob("tbt_bound_ms", "150", 0.001, "Bound on the time between two tokens of a request."),
        timeKnob("ttft_bound_ms", "10000", 0.001,
                 "Bound on the time to the first token; a request that waits longer is overtaken no more."),
        switchKnob("offload", "true",
                   "On: the host store has every block. Off: all keys and values stay on the device."),
        switchKnob("working_set_control", "true",
                   "Admits and resumes only while the sum of working sets fits the device (Algorithm 1)."),
        choiceKnob("cache", {"partition", "global-lru"},
                   "Slots of the device tier: a fixed part for every row, or one LRU pool for all rows and layers."),
        countKnob("partition_blocks", "0", 0, 65536, "blocks",
                  "Slots of a row per layer and KV head with cache=partition, at least what a step selects; 0: twice "
                  "that."),
        {"transfers",
         ParameterType::Choice,
         "kernel",
         0,
         0,
         "",
         "How missing blocks come to the device: a copy call each, batched calls, one kernel per layer.",
         {"calls", "batched", "kernel"},
         nullptr},
        choiceKnob(
            "d2h", {"runs", "calls", "kernel", "bounce"},
            "How blocks of prompts go to the host: whole runs of a head, a copy call each, stores of a kernel, or "
            "one copy to a buffer from which threads scatter. On a GPU."),
        countKnob("window", "12", 1, 64, "steps",
                  "Steps whose selections together are a request's working set (w of SparseServe)."),
        choiceKnob("prefill", {"layers", "chunks"}, "Prompts are cut by layers (layer-segmented) or by tokens."),
        countKnob("chunk_tokens", "2048", 16, 1048576, "tokens", "Tokens of a chunk with prefill=chunks."),
        countKnob("token_layers", "0", 0, 1e9, "token-layers",
                  "The paper's maxInjectToken: a segment has this many prompt tokens times layers; 0: time decides."),
        choiceKnob("parking", {"device", "device-bf16", "host"},
                   "Where activations of a prompt wait between its segments."),
        countKnob("long_prefills", "1", 1, 64, "prompts", "Long prompts that are read at once."),
        countKnob("short_tokens", "2048", 0, 1048576, "tokens", "Longest prompt of the short lane; 0: no such lane."),
        countKnob("short_turns", "4", 1, 64, "prompts", "Short prompts that are read beside a long segment."),
        timeKnob("aging_ms", "5000", 0,
                 "A long prompt that memory keeps waiting this long, or that had no segment this long, goes before "
                 "short ones."),
        timeKnob("max_suspend_ms", "50", 0, "After this long without a segment a prompt gets one whatever it takes."),
        countKnob("max_skips", "100", 1, 1e6, "iterations",
                  "After this many iterations in which later requests were admitted a request is overtaken no more."),
        countKnob("pause_after", "3", 1, 1000, "iterations",
                  "Iterations that working sets may exceed the device before a request is paused."),
        countKnob("resume_tokens", "16", 0, 65536, "tokens",
                  "Tokens that a resumed request makes before its next pause."),
        countKnob("max_waiting", "1024", 1, 1e6, "requests", "Requests that may wait; further ones are refused."),
        switchKnob("batch_invariant", "false",
                   "On a GPU: a request's tokens never depend on who shares its steps; every row multiplies by itself. "
                   "On the CPU it is always so."),
    };
    return parameters;
}

ParameterValues schedulerDefaults() {
    ParameterValues values;
    for (const Parameter& parameter : schedulerParameters())
        values.set(schedulerParameters(), parameter.key, parameter.defaultValue);
    return values;
}

const std::string& choiceName(std::string_view key, int index) {
    const auto& all = schedulerParameters();
    const auto found = std::find_if(all.begin(), all.end(), [&](const Parameter& knob) { return knob.key == key; });
    if (found == all.end()) throw std::logic_error(fmt::format("there is no knob '{}'", key));
    return found->choices.at(std::size_t(index));
}

SchedulerOptions schedulerOptions(const ParameterValues& values) {
    SchedulerOptions options;
    options.rows = values.integer("rows");
    options.iterationTokens = values.integer("iteration_tokens");
    options.iterationMs = values.number("iteration_ms");
    options.tbtBoundMs = values.number("tbt_bound_ms");
    options.ttftBoundMs = values.number("ttft_bound_ms");
    options.offload = values.boolean("offload");
    options.workingSetControl = values.boolean("working_set_control");
    options.cache = choiceOf<CachePlan>(values, "cache");
    options.partitionBlocks = values.integer("partition_blocks");
    options.transfers = choiceOf<TransferPlan>(values, "transfers");
    options.d2h = choiceOf<StorePlan>(values, "d2h");
    options.window = values.integer("window");
    options.prefill = choiceOf<PrefillPlan>(values, "prefill");
    options.chunkTokens = values.integer("chunk_tokens");
    options.tokenLayers = values.integer("token_layers");
    options.parking = choiceOf<Parking>(values, "parking");
    options.longPrefills = values.integer("long_prefills");
    options.shortTokens = values.integer("short_tokens");
    options.shortTurns = values.integer("short_turns");
    options.agingMs = values.number("aging_ms");
    options.maxSuspendMs = values.number("max_suspend_ms");
    options.maxSkips = values.integer("max_skips");
    options.pauseAfter = values.integer("pause_after");
    options.resumeTokens = values.integer("resume_tokens");
    options.maxWaiting = values.integer("max_waiting");
    options.batchInvariant = values.boolean("batch_invariant");
    return options;
}

} // namespace kvscope::serve
