// A reading of another clock beside the run's own: table clock_sync.
#pragma once

#include <cstdint>
#include <string>

namespace kvscope {

struct ClockReading {
    std::string clock;        // clocks of one name are one clock: "utc", "monotonic:" and a hash, "gpu 0"
    std::int64_t ownNs = 0;   // on the run's clock
    std::int64_t otherNs = 0; // what the other clock showed then
    std::int64_t errorNs = 0; // by how much the two moments may be apart, at most
};

} // namespace kvscope
