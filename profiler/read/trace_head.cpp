#include "profiler/read/trace_head.h"

#include "profiler/format/trace_keys.h"

#include <fstream>

namespace kvscope {

/// SQLite keeps the application id at a fixed place of the first page.
bool isTraceFile(const std::string& path) {
    constexpr std::streamoff kPlace = 68;
    unsigned char id[4] = {};
    std::ifstream file(path, std::ios::binary);
    file.seekg(kPlace).read(reinterpret_cast<char*>(id), sizeof id);
    return file && (int(id[0]) << 24 | id[1] << 16 | id[2] << 8 | id[3]) == trace::kApplicationId;
}

} // namespace kvscope
