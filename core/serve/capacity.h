// The largest rate of arrivals at which a server keeps its bounds, found in the simulator.
#pragma once

#include "core/serve/simulation.h"

#include <functional>
#include <string>
#include <vector>

namespace kvscope::serve {

/// What a run has to keep besides the bound on gaps and a backlog that does not grow: the mean of the queue delays
/// (SparseServe), their median (Sarathi-Serve), or a share of good requests (DistServe).
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

/// Which bound the run breaks, in a few words; empty: it keeps all. A run with refused requests breaks every rule.
std::string brokenBound(const ServingResult& result, const SimulationOptions& simulation,
                        const CapacityOptions& options);

struct CapacityPoint {
    double rate = 0;
    std::string broken; // empty: it holds
    ServingResult result;
};
struct Capacity {
    double rate = 0;                   // the largest rate that holds; 0: not even the lowest rate that was tried
    std::string broken;                // which bound broke first above that rate
    std::vector<CapacityPoint> points; // in the order in which they were tried, without outcomes
};
/// Doubles or halves the rate from `firstRate` on until one rate holds and the next does not, then halves the interval
/// until it is as narrow as the tolerance. Stops at a rate at which requests hardly meet if a bound breaks even there,
/// for example a bound below the time of a single step. at(rate): the numbers of that rate, of which `counted` and
/// `busy` matter, and the bound that breaks; it may throw. The same firstRate and the same answers of `at` give the
/// same rates.
Capacity searchCapacity(double firstRate, double tolerance, const std::function<CapacityPoint(double rate)>& at);
/// The rate at which the requests need half of the server.
double halfUsed(const Workload& workload, const SimulationOptions& simulation);
/// Searches in the simulator, from halfUsed() on. The workload keeps its lengths and the shape of its arrivals; its
/// times are scaled. `tried` is called with every point and may throw.
Capacity findCapacity(const Workload& workload, const SimulationOptions& simulation, const CapacityOptions& options,
                      const std::function<void(const CapacityPoint&)>& tried = {});
/// Simulates one rate.
CapacityPoint simulatePoint(const Workload& workload, double rate, const SimulationOptions& simulation,
                            const CapacityOptions& options);

} // namespace kvscope::serve
