// The one clock that all times of a trace come from.
#pragma once

#include <chrono>
#include <cstdint>

namespace kvscope {

/// Nanoseconds of the system's steady clock.
inline std::int64_t steadyNowNs() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

} // namespace kvscope
