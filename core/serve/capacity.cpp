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

CapacityPoint simulatePoint(const Workload& workload, double rate, const SimulationOptions& simulation,
                            const CapacityOptions& options) {
    Workload scaled = workload;
    changeRate(scaled, rate / workload.rate());
    CapacityPoint point{rate, {}, simulate(scaled, simulation)};
    point.broken = brokenBound(point.result, simulation, options);
    point.result.outcomes.clear();
    return point;
}

namespace {

/// Whether the requests of the run met hardly any other, so that a lower rate changes nothing.
bool ranAlone(const ServingResult& result) {
    constexpr double kIdle = 0.02; // share of the window in which the server worked
    return result.counted > 0 && result.busy < kIdle;
}

} // namespace

Capacity searchCapacity(double firstRate, double tolerance, const std::function<CapacityPoint(double rate)>& at) {
    Capacity capacity;
    bool noneHolds = false;
    const auto holds = [&](double rate) {
        CapacityPoint point = at(rate);
        const bool kept = point.broken.empty();
        if (!kept && ranAlone(point.result)) noneHolds = true;
        if (kept)
            capacity.rate = rate;
        else
            capacity.broken = point.broken;
        capacity.points.push_back(std::move(point));
        return kept;
    };
    constexpr int kMostSteps = 40; // a factor of 1e12
    double low = 0, high = 0, rate = firstRate;
    for (int i = 0; i < kMostSteps && (low == 0 || high == 0); ++i) {
        if (holds(rate))
            low = rate, rate = high > 0 ? high : rate * 2;
        else
            high = rate, rate = low > 0 ? low : rate / 2;
        if ((low > 0 && high > 0) || noneHolds) break;
    }
    if (low == 0 || high == 0) return capacity;
    while (high - low > tolerance * low) {
        const double middle = (low + high) / 2;
        (holds(middle) ? low : high) = middle;
    }
    return capacity;
}

double halfUsed(const Workload& workload, const SimulationOptions& simulation) {
    const double load = utilisationOf(workload, simulation);
    return workload.rate() * 0.5 / (load > 0 ? load : 1);
}

Capacity findCapacity(const Workload& workload, const SimulationOptions& simulation, const CapacityOptions& options,
                      const std::function<void(const CapacityPoint&)>& tried) {
    return searchCapacity(halfUsed(workload, simulation), options.tolerance, [&](double rate) {
        CapacityPoint point = simulatePoint(workload, rate, simulation, options);
        if (tried) tried(point);
        return point;
    });
}

} // namespace kvscope::serve
