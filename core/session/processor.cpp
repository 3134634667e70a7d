#include "core/session/processor.h"

#include <fstream>

namespace kvscope {

std::string processorName() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
        if (line.rfind("model name", 0) != 0) continue;
        const auto colon = line.find(':');
        if (colon == std::string::npos) continue;
        const auto begin = line.find_first_not_of(" \t", colon + 1);
        const auto end = line.find_last_not_of(" \t\r");
        return begin == std::string::npos ? std::string() : line.substr(begin, end + 1 - begin);
    }
    return {};
}

} // namespace kvscope
