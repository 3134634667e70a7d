#include "profiler/cupti/pcie_counting.h"

#include "base/error.h"

#include <fmt/format.h>

namespace kvscope {

PcieCounting parsePcieCounting(std::string_view text) {
    for (const PcieCounting counting : kPcieCountings)
        if (text == nameOf(counting)) return counting;
    throw Error(ErrorKind::BadInput, fmt::format("unknown PCIe counters '{}'", text), "use auto, pm, nvml or off");
}

ChosenCounters chooseCounters(PcieCounting counting, const OpenCounters& pm, const OpenCounters& nvml) {
    if (counting == PcieCounting::Off) return {};
    std::string noSampling, noNvml;
    if (counting != PcieCounting::Nvml)
        if (auto opened = pm(noSampling)) return {std::move(opened), {}};
    if (counting == PcieCounting::Pm)
        return {nullptr, fmt::format("PCIe bytes are not counted by PM sampling, because {}", noSampling)};
    if (auto opened = nvml(noNvml)) {
        if (noSampling.empty()) return {std::move(opened), {}};
        return {std::move(opened),
                fmt::format("PCIe bytes are counted by NVML and not by PM sampling, because {}", noSampling)};
    }
    return {nullptr, fmt::format("PCIe bytes are not counted: {}{}", noNvml,
                                 noSampling.empty() ? "" : "; not by PM sampling either, because " + noSampling)};
}

} // namespace kvscope
