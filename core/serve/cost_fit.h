// Fits a table of costs to the times that an engine took.
#pragma once

#include "core/serve/engine.h"
#include "core/serve/least_deviations.h"

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace kvscope::serve {

/// Collects iterations and fits to them what a layer of a prompt costs by its length (least squares, without prompts
/// that took far longer than the others), what a decode step costs by rows and context (medians), and what the host
/// takes: in every iteration, for every row, and for a request that is admitted; and between two iterations (least
/// deviations).
class CostFit {
public:
    /// Adds an iteration. shape: the engine's. chunks: whether prompts are read in chunks, each through all layers.
    /// promptTokens: the prompt lengths of the plan's segments, in their order. admittedTokens: the prompt lengths of
    /// the requests that the plan admits.
    void add(const IterationReport& report, const MemoryShape& shape, bool chunks, std::span<const int> promptTokens,
             std::span<const int> admittedTokens);

    std::int64_t decodes() const { return decodes_; }
    std::int64_t segments() const { return std::int64_t(prefills_.size()); }
    /// @return `base` with the fitted numbers in place of those for which there were samples. If the server offloads
    /// (`options`), the times of its steps include what offloading and loads cost; in the result loads therefore take
    /// no time, and offloading costs nothing beside decode_ms.
    ServiceCosts fit(ServiceCosts base, const SchedulerOptions& options) const;
    /// The keys of a table (ServiceCosts::toJson) whose numbers fit() takes from the iterations, not from `base`.
    std::vector<std::string> fittedKeys(const SchedulerOptions& options) const;
    /// For the iterations of a server that offloads. resident: the table of the same server with everything on the
    /// device, whose costs of prompts, steps and hits stay. What the steps took beyond these costs is divided (least
    /// deviations) into a time for each byte that they missed, a time for every step and a time for each row; they
    /// become the link's rate, offloadMs and offloadUsPerRow for the transfers of `options`. Where the steps missed
    /// about the same number of bytes, the link keeps the rate of `resident`. @return that table with the host's costs
    /// fitted as well
    ServiceCosts fitOffload(ServiceCosts resident, const SchedulerOptions& options) const;

private:
    struct Prefill {
        double tokens = 0, squares = 0, ms = 0; // sums over layers of n and of to^2 - from^2
    };
    struct PrefillCost {
        double perToken = 0, perSquare = 0; // ms of a layer
    };
    struct Step {
        double context = 0, missedBytes = 0, ms = 0;
    };
    static PrefillCost leastSquares(const std::vector<Prefill>& prefills);
    PrefillCost prefillCost() const;
    double contextSlope() const;
    void fitHost(ServiceCosts& costs) const;
    void fitGaps(ServiceCosts& costs) const;

    std::vector<Prefill> prefills_;
    std::map<int, std::vector<Step>> steps_; // by rows
    // The host's time in an iteration, in ms: of those that admit nobody by 1 and rows, of the others by rows, admitted
    // requests and their tokens.
    std::vector<Deviation> quiet_, admitting_;
    // The time between iterations, in ms: where no request came or went by 1 and rows, else by rows and those requests.
    std::vector<Deviation> quietGaps_, requestGaps_;
    double selected_ = 0, missed_ = 0;
    std::int64_t decodes_ = 0;
};

} // namespace kvscope::serve
