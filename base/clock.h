// The one clock that all times of a trace come from, and the clock of a thread's own work.
#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>

namespace kvscope {

/// Nanoseconds of the system's steady clock.
inline std::int64_t steadyNowNs() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

/// Nanoseconds of processor time that the calling thread has used. The clock stands still while the thread waits, and
/// while the machine does other work instead.
inline std::int64_t threadNowNs() {
    std::timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::int64_t(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

} // namespace kvscope
