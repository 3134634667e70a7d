// Fits a table of costs to the times that an engine took.
#pragma once

#include "core/serve/engine.h"

#include <cstdint>
#include <map>
#include <vector>

namespace kvscope::serve {

/// Collects iterations and fits to them what a layer of a prompt costs by its length (least squares, without prompts
/// that took far longer than the others) and what a decode step costs by rows and
/// context (medians). What is moved between the tiers is in these times, so the fitted table has links that cost
/// nothing.
class CostFit {
public:
    /// shape: the engine's. promptTokens: the prompt lengths of the plan's segments, in their order.
    void add(const IterationReport& report, const MemoryShape& shape, bool chunks,
             const std::vector<int>& promptTokens);

    std::int64_t decodes() const { return decodes_; }
    std::int64_t segments() const { return std::int64_t(prefills_.size()); }
    /// `base`, with fitted numbers wherever there were samples for them.
    ServiceCosts fit(ServiceCosts base, const SchedulerOptions& options) const;

private:
    struct Prefill {
        double tokens = 0, squares = 0, ms = 0; // sums over layers of n and of to^2 - from^2
    };
    struct PrefillCost {
        double perToken = 0, perSquare = 0; // ms of a layer
    };
    struct Step {
        double context = 0, ms = 0;
    };
    static PrefillCost leastSquares(const std::vector<Prefill>& prefills);
    PrefillCost prefillCost() const;

    std::vector<Prefill> prefills_;
    std::map<int, std::vector<Step>> steps_; // by rows
    double overheadMs_ = 0, selected_ = 0, missed_ = 0;
    std::int64_t iterations_ = 0, decodes_ = 0;
};

} // namespace kvscope::serve
