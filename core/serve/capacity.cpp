#include "core/serve/capacity.h"

#include <fmt/format.h>

namespace kvscope::serve {

std::string brokenBound(const ServingResult& r, const SimulationOptions& simulation, const CapacityOptions& options) {
    if (r.refused + r.unfinished > 0) return fmt::format("{} requests refused", r.refused + r.unfinished);
    if (options.rule == CapacityRule::Attainment) {
        if (r.attainment < options.attainment)
            return fmt::format("attainment {:.3f} below {:.3f}", r.attainment, options.attainment);
    } else {
        if (r.tbt.p99 > simulation.slo.tbtMs)
            return fmt::format("P99 between tokens {:.1f} ms above {:.1f}", r.tbt.p99, simulation.slo.tbtMs);
        const bool mean = options.rule == CapacityRule::MeanQueue;
        const double queue = mean ? r.queue.mean : r.queue.median;
        if (queue > options.queueMs)
            return fmt::format("{} queue delay {:.0f} ms above {:.0f}", mean ? "mean" : "median", queue,
                               options.queueMs);
    }
    if (r.trend.grows()) return fmt::format("backlog grows by {:.3g} requests per second", r.trend.slope);
    return {};
}

Capacity findCapacity(const Workload& workload, const SimulationOptions& simulation, const CapacityOptions& options,
                      const std::function<void(const CapacityPoint&)>& tried) {
    Capacity capacity;
    const auto holds = [&](double rate) {
        Workload scaled = workload;
        changeRate(scaled, rate / workload.rate());
        CapacityPoint point{rate, {}, simulate(scaled, simulation)};
        point.broken = brokenBound(point.result, simulation, options);
        point.result.outcomes.clear();
        if (tried) tried(point);
        const bool kept = point.broken.empty();
        if (kept)
            capacity.rate = rate;
        else
            capacity.broken = point.broken;
        capacity.points.push_back(std::move(point));
        return kept;
    };
    constexpr int kMostSteps = 40; // a factor of 1e12
    const double load = utilisationOf(workload, simulation);
    double low = 0, high = 0, rate = workload.rate() * 0.5 / (load > 0 ? load : 1);
    for (int i = 0; i < kMostSteps && (low == 0 || high == 0); ++i) {
        if (holds(rate))
            low = rate, rate = high > 0 ? high : rate * 2;
        else
            high = rate, rate = low > 0 ? low : rate / 2;
        if (low > 0 && high > 0) break;
    }
    if (low == 0 || high == 0) return capacity;
    while (high - low > options.tolerance * low) {
        const double middle = (low + high) / 2;
        (holds(middle) ? low : high) = middle;
    }
    return capacity;
}

} // namespace kvscope::serve
