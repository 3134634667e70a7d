// The largest rate of arrivals at which a server keeps its bounds, found in the simulator.
#pragma once

#include "core/serve/simulation.h"

#include <functional>
#include <string>
#include <vector>

namespace kvscope::serve {

/// What has to hold besides the bound on gaps and a backlog that does not grow. Sarathi-Serve's search asks for the
/// median of the queue delays, SparseServe for their mean, DistServe for a share of good requests.
enum class CapacityRule : std::uint8_t { MeanQueue, MedianQueue, Attainment };
constexpr const char* nameOf(CapacityRule rule) {
    constexpr const char* names[] = {"mean-queue", "median-queue", "attainment"};
    return names[int(rule)];
}

struct CapacityOptions {
    CapacityRule rule = CapacityRule::MeanQueue;
    double queueMs = 2000, attainment = 0.9;
    double tolerance = 0.025; // of the rate, between the last rate that holds and the first that does not
};

/// What the run breaks, as a few words; empty: every bound is kept. Refused requests break every rule.
std::string brokenBound(const ServingResult& result, const SimulationOptions& simulation,
                        const CapacityOptions& options);

struct CapacityPoint {
    double rate = 0;
    std::string broken; // empty: it holds
    ServingResult result;
};
struct Capacity {
    double rate = 0;                   // 0: not even the lowest that was tried
    std::string broken;                // what broke first above it
    std::vector<CapacityPoint> points; // in the order in which they were tried, without outcomes
};
/// Doubles or halves from `firstRate` until one rate holds and the next does not, then halves the interval until it is
/// as narrow as the tolerance. at: the numbers of a rate and what it breaks; it may throw. The rates that are tried
/// follow from firstRate and from which rates hold.
Capacity searchCapacity(double firstRate, double tolerance, const std::function<CapacityPoint(double rate)>& at);
/// The rate at which half of the server is used.
double halfUsed(const Workload& workload, const SimulationOptions& simulation);
/// Searches in the simulator from halfUsed on. The workload's lengths and the shape of its arrivals stay: its times are
/// scaled. `tried` sees every point and may throw.
Capacity findCapacity(const Workload& workload, const SimulationOptions& simulation, const CapacityOptions& options,
                      const std::function<void(const CapacityPoint&)>& tried = {});
/// One rate in the simulator.
CapacityPoint simulatePoint(const Workload& workload, double rate, const SimulationOptions& simulation,
                            const CapacityOptions& options);

} // namespace kvscope::serve
