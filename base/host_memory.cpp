#include "base/host_memory.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>

namespace kvscope {

std::size_t availableHostMemory() {
    constexpr std::size_t kUnknown = std::numeric_limits<std::size_t>::max();
    std::size_t available = kUnknown;
    std::ifstream info("/proc/meminfo");
    for (std::string line; std::getline(info, line);)
        if (unsigned long long kib = 0; std::sscanf(line.c_str(), "MemAvailable: %llu kB", &kib) == 1)
            available = std::size_t(kib) * 1024;
    // A container may be allowed less than the machine has.
    std::size_t limit = 0, used = 0, cached = 0;
    if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit && std::ifstream("/sys/fs/cgroup/memory.current") >> used) {
        std::ifstream statistics("/sys/fs/cgroup/memory.stat");
        for (std::string name; statistics >> name;)
            if (name == "inactive_file") statistics >> cached; // given back on demand
        used -= std::min(used, cached);
        available = std::min(available, limit - std::min(limit, used));
    }
    return available;
}

} // namespace kvscope
