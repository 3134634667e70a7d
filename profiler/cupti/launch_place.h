// Where in a run a launch stands, as one number: CUPTI carries it from the thread that launches to the record of the
// launch (an "external correlation id").
#pragma once

#include "core/trace/stage.h"

#include <cstdint>

namespace kvscope {

struct LaunchPlace {
    std::int32_t step = -1, layer = -1; // -1: none
    StageId stage;

    /// step + 1 in the upper 32 bits, layer + 1 in the next 16, the stage's number in the lowest 16.
    std::uint64_t packed() const {
        return std::uint64_t(std::uint32_t(step + 1)) << 32 | std::uint64_t((layer + 1) & 0xffff) << 16 |
               std::uint64_t(stage.number() & 0xffff);
    }
    static LaunchPlace unpacked(std::uint64_t id) {
        return {std::int32_t(id >> 32) - 1, std::int32_t(id >> 16 & 0xffff) - 1, StageId::of(int(id & 0xffff))};
    }
    bool operator==(const LaunchPlace&) const = default;
};

} // namespace kvscope
