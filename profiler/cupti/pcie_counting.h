// Which of the GPU's own counters a recording holds beside the engine's bytes.
#pragma once

#include "profiler/record/gpu_counters.h"

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace kvscope {

enum class PcieCounting {
    Auto, // PM sampling where the driver allows it, else NVML
    Pm,   // PM sampling or nothing
    Nvml,
    Off
};
constexpr std::array<PcieCounting, 4> kPcieCountings{PcieCounting::Auto, PcieCounting::Pm, PcieCounting::Nvml,
                                                     PcieCounting::Off};
constexpr const char* nameOf(PcieCounting counting) {
    constexpr std::array<const char*, 4> kNames{"auto", "pm", "nvml", "off"};
    return kNames[std::size_t(counting)];
}
/// @throws Error(BadInput) naming what there is
PcieCounting parsePcieCounting(std::string_view text);

/// Begins to count, or says why not.
using OpenCounters = std::function<std::unique_ptr<GpuCounters>(std::string& refusal)>;

struct ChosenCounters {
    std::unique_ptr<GpuCounters> counters; // null: none
    std::string remark;                    // a sentence where it is not what was asked for
};
ChosenCounters chooseCounters(PcieCounting counting, const OpenCounters& pm, const OpenCounters& nvml);

} // namespace kvscope
