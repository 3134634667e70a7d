// The counts of the GPU's own counters on its link, beside the bytes that the engine says it moved.
#include "profiler/report/report.h"

#include <cmath>

namespace kvscope::reports {
namespace {

struct Direction {
    const char* name;
    std::int64_t PcieTraffic::*counted;
    std::int64_t PcieTraffic::*engine;
    std::int64_t (PcieTraffic::*expected)() const;
};
/// Wraps around: a damaged trace may hold any number.
std::int64_t difference(std::int64_t a, std::int64_t b) { return std::int64_t(std::uint64_t(a) - std::uint64_t(b)); }

constexpr Direction kDirections[] = {
    {"to device", &PcieTraffic::countedToDevice, &PcieTraffic::engineToDevice, &PcieTraffic::expectedToDevice},
    {"to host", &PcieTraffic::countedToHost, &PcieTraffic::engineToHost, &PcieTraffic::expectedToHost},
};

} // namespace

Table pcieCounters(const std::vector<RunData>& runs) {
    Table table{
        "pcie_counters",
        "PCIe bytes: the GPU's count beside the engine's",
        "Decode steps. The engine counts the KV blocks it moved. On the link each 128 bytes of them are a packet "
        "with a header of 12 bytes to the device and 16 to the host, and what is read was asked for in a packet "
        "of 16 bytes; NVML counts 8 bytes more of each packet. What is left then are the steps' reports, commands "
        "of launches, records of kernels and other programs. Single steps are compared where they last at least "
        "four samples.",
        {{"run", "Run", "", false},
         {"direction", "Direction", "", false},
         {"counted_by", "Counted by", "", false},
         {"engine_bytes", "Engine", "", false},
         {"counted_bytes", "Counter", "", false},
         {"difference_bytes", "Difference", "counter minus engine", false},
         {"expected_bytes", "Engine, in packets", "", false},
         {"left_bytes", "Left", "counter minus the engine's packets", false},
         {"counted_over_expected", "Counter / packets", "", false},
         {"steps", "Steps compared", "", false},
         {"mean_left_bytes", "Mean left", "of a step that was compared", false},
         {"largest_left_bytes", "Largest left", "of such a step", false},
         {"largest_left_step", "In step", "", false}},
        {}};
    for (const RunData& run : runs) {
        if (!run.pcie) continue;
        for (const Direction& direction : kDirections) {
            const auto left = [&](const PcieTraffic& traffic) {
                return difference(traffic.*direction.counted, (traffic.*direction.expected)());
            };
            const std::int64_t engine = (*run.pcie).*direction.engine, counted = (*run.pcie).*direction.counted,
                               expected = ((*run.pcie).*direction.expected)();
            double sum = 0;
            const PcieStep* largest = nullptr;
            for (const PcieStep& step : run.pcieSteps) {
                sum += double(left(step.traffic));
                if (largest == nullptr ||
                    std::abs(double(left(step.traffic))) > std::abs(double(left(largest->traffic))))
                    largest = &step;
            }
            const auto steps = double(run.pcieSteps.size());
            const auto measured = [](std::int64_t bytes) { return whole(bytes, Quantity::Bytes, Basis::Measured); };
            table.rows.push_back(
                {text(run.row.name), text(direction.name), text(run.pcie->sampled ? "PM sampling" : "NVML"),
                 whole(engine, Quantity::Bytes), measured(counted), measured(difference(counted, engine)),
                 whole(expected, Quantity::Bytes), measured(difference(counted, expected)),
                 real(expected > 0 ? double(counted) / double(expected) : std::nan(""), Quantity::Ratio),
                 count(std::int64_t(run.pcieSteps.size())),
                 real(steps > 0 ? sum / steps : std::nan(""), Quantity::Bytes, Basis::Measured),
                 largest ? measured(left(largest->traffic)) : Cell{}, largest ? count(largest->step) : Cell{}});
        }
    }
    return table;
}

} // namespace kvscope::reports
