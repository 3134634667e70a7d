// What an iteration costs: a small table in closed form. The scheduler predicts with it; the simulator takes it for the
// truth.
#pragma once

#include "core/serve/memory_shape.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvscope::serve {

/// A function by points, linear between them and of the last slope behind them. x ascends.
struct Curve {
    std::vector<std::pair<double, double>> points;
    double at(double x) const;
};

/// The defaults are those of the NOSA-8B shape on one H200: decode steps measured at 16K tokens per row, everything
/// resident; link rates of blocks of 16 KiB; prefill at the 226 TFLOP/s that the engine reached.
struct ServiceCosts {
    Curve decodeMs{{{1, 4.28}, {2, 4.45}, {4, 4.55}, {8, 4.96}, {16, 5.77}, {64, 7.73}}}; // by rows
    double decodeUsPerKtoken = 0.23;        // per 1,000 tokens of context: the index is read
    double fullUsPerKtoken = 8.6;           // the same where attention reads all keys and values: 32 KiB a token
    double prefillUsPerToken = 2.097;       // of one layer
    double prefillPsPerToken2 = 36.25;      // of one layer, causal attention: times n squared
    double linkGbps[3] = {5.1, 18.1, 51.3}; // GB/s (1e9), by TransferPlan
    bool overlap = false;                   // whether loads run beside the computation, as with lookahead
    double planMs = 0.05, gapMs = 0.02;     // of the host, per iteration
    double drift = 0.06;                    // share of a selection that the step before did not have
    /// Share of selected blocks found on the device. global-lru by (sum of one step's selections / M_avl): a cyclic
    /// sweep of layers, a layer's selection pinned while it is looked up. partition by (slots of a row / blocks of a
    /// selection). Both come from a synthetic stream of 8 layers, 32 of 256 blocks selected, 6 % drift.
    Curve lruHits{{{0.5, 0.956}, {0.75, 0.952}, {0.875, 0.949}, {1.0, 0.940}, {1.125, 0.104}, {1.5, 0.0}, {2.0, 0.0}}};
    Curve partitionHits{{{1.0, 0.94}, {2.0, 0.956}, {4.0, 0.962}, {8.0, 0.962}}};
    MemoryShape shape;

    /// One decode step. contextTokens: sum over the rows. missBytes: over the link. 0 rows take no time.
    double decode(int rows, std::int64_t contextTokens, std::int64_t missBytes, TransferPlan transfers) const;
    /// Tokens [from, to) of a prompt through one layer, in ms; pieces of a layer add up to the whole.
    double prefillLayer(int from, int to) const;
    /// A whole prompt, alone, in ms.
    double prefillAll(int tokens) const { return shape.layers * prefillLayer(0, tokens); }
    /// Beside all work of an iteration, in ms.
    double overhead() const { return planMs + gapMs; }
    /// Share of selected blocks that are on the device: of rows that select `stepBytes` together while the device has
    /// `available` bytes for them. 1 where nothing is offloaded.
    double hitRate(const SchedulerOptions& options, std::int64_t stepBytes, std::int64_t available) const;
    /// The union of the last w steps of a request that has made `steps` steps: its first selection and, for every step
    /// more, the share that drifted, at most all blocks of `context` tokens. In bytes.
    std::int64_t workingSet(const SchedulerOptions& options, int steps, std::int64_t context) const;

    /// A JSON object; keys that are absent keep their defaults. @throws Error(BadInput) naming what is wrong, unknown
    /// keys too
    static ServiceCosts fromJson(std::string_view text);
    /// The same object, complete, for a person to change.
    std::string toJson() const;
};

} // namespace kvscope::serve
