// What an iteration costs: a small table of numbers in formulas. The scheduler predicts times with it, and the
// simulator takes its times for the real ones.
#pragma once

#include "core/serve/memory_shape.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvscope::serve {

/// A function given by points. It is linear between them, and goes on behind the last one with the last slope. x
/// ascends.
struct Curve {
    std::vector<std::pair<double, double>> points;
    double at(double x) const;
};

/// The defaults are those of the NOSA-8B shape on one H200. Decode steps were measured at 16K tokens per row with
/// everything resident, link rates with blocks of 16 KiB; prefill runs at the 226 TFLOP/s that the engine reached.
struct ServiceCosts {
    Curve decodeMs{{{1, 4.28}, {2, 4.45}, {4, 4.55}, {8, 4.96}, {16, 5.77}, {64, 7.73}}}; // by rows
    double decodeUsPerKtoken = 0.23;   // for every 1,000 tokens of context, because the step reads the index
    double fullUsPerKtoken = 8.6;      // the same where attention reads all keys and values, 32 KiB for each token
    double prefillUsPerToken = 2.097;  // of one layer
    double prefillPsPerToken2 = 36.25; // causal attention of one layer; multiplied by n squared
    /// GB/s (1e9), by TransferPlan. Infinite: loads take no time of their own, as in a table that was fitted to steps
    /// with their loads in them.
    double linkGbps[3] = {5.1, 18.1, 51.3};
    bool overlap = false; // whether loads run beside the computation, as with lookahead
    /// What offloading costs a step beside computation and loads, because each layer looks blocks up and sets transfers
    /// up, whether few blocks are missing or many: ms for the step, and us for each of its rows. By TransferPlan.
    double offloadMs[3] = {0, 0, 0}, offloadUsPerRow[3] = {0, 0, 0};
    /// The host's time in every iteration: for the plan, for everything else, and for each row of the step, whose
    /// selections it takes in.
    double planMs = 0.05, gapMs = 0.02, gapUsPerRow = 0;
    /// The host's time to admit a request, for the request and for each token of its prompt: the engine takes memory
    /// and sets a row up.
    double admitMs = 0, admitUsPerToken = 0;
    /// The host's time between two iterations, while requests are left: in every one, for each row of the step before,
    /// whose token is handed out, and for each request that arrives or ends. The simulator alone uses it: plans know
    /// nothing of it.
    double betweenMs = 0, betweenUsPerRow = 0, requestMs = 0;
    double drift = 0.06; // share of a selection that the step before did not have
    /// Share of selected blocks found on the device. lruHits, of cache=global-lru: by (sum of one step's selections /
    /// M_avl), where the layers take turns and a layer's selection is pinned while it is looked up. partitionHits, of
    /// cache=partition: by (slots of a row / blocks of a selection). Both come from a synthetic stream of 8 layers, 32
    /// of 256 blocks selected, 6 % drift.
    Curve lruHits{{{0.5, 0.956}, {0.75, 0.952}, {0.875, 0.949}, {1.0, 0.940}, {1.125, 0.104}, {1.5, 0.0}, {2.0, 0.0}}};
    Curve partitionHits{{{1.0, 0.94}, {2.0, 0.956}, {4.0, 0.962}, {8.0, 0.962}}};
    MemoryShape shape;

    /// Milliseconds of one decode step; no rows take no time. contextTokens: summed over the rows. missBytes: what
    /// comes over the link. Of the options, `offload` and `transfers` matter.
    double decode(int rows, std::int64_t contextTokens, std::int64_t missBytes, const SchedulerOptions& options) const;
    /// Milliseconds of one decode step where everything is on the device.
    double residentDecode(int rows, std::int64_t contextTokens) const;
    /// Milliseconds in which the tokens [from, to) of a prompt go through one layer. The pieces of a layer add up to
    /// the whole.
    double prefillLayer(int from, int to) const;
    /// Milliseconds in which a whole prompt is read, alone.
    double prefillAll(int tokens) const { return shape.layers * prefillLayer(0, tokens); }
    /// Milliseconds that an iteration with a step of so many rows takes beside prompts, steps and admissions.
    double overhead(int rows) const { return planMs + gapMs + rows * gapUsPerRow * 1e-3; }
    /// Milliseconds that an iteration takes to admit a request with a prompt of so many tokens.
    double admission(int promptTokens) const { return admitMs + promptTokens * admitUsPerToken * 1e-3; }
    /// Milliseconds between an iteration with a step of so many rows and the next one, without requests that come or
    /// go.
    double between(int rows) const { return betweenMs + rows * betweenUsPerRow * 1e-3; }
    /// Share of selected blocks that are on the device, for rows that together select `stepBytes` where the device has
    /// `available` bytes for them. 1 where nothing is offloaded.
    double hitRate(const SchedulerOptions& options, std::int64_t stepBytes, std::int64_t available) const;
    /// Bytes of the union of the last w steps' selections, of a request that has made `steps` steps: its first
    /// selection, and for every later step the share that drifted; at most all blocks of `context` tokens.
    std::int64_t workingSet(const SchedulerOptions& options, int steps, std::int64_t context) const;

    /// The version of the tables that toJson writes. Tables of version 1 have no key `version` and no costs of
    /// admissions and of offloading, a part of which is in their gap_ms; fromJson reads these costs as 0.
    static constexpr int kVersion = 2;

    /// Reads a JSON object; keys that are absent keep their defaults. @throws Error(BadInput) naming what is wrong, an
    /// unknown key and a later version too
    static ServiceCosts fromJson(std::string_view text);
    /// The same for a file: errors begin with its name.
    static ServiceCosts fromJson(std::string_view text, const std::string& origin);
    /// Writes the same object with all keys, for a person to change.
    std::string toJson() const;
};

} // namespace kvscope::serve
