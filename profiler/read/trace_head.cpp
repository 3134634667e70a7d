#include "profiler/read/trace_head.h"

#include "profiler/format/trace_keys.h"

#include <filesystem>
#include <fstream>
#include <system_error>

namespace kvscope {

/// SQLite keeps the application id at a fixed place of the first page.
bool isTraceFile(const std::string& path) {
    constexpr std::streamoff kPlace = 68;
    unsigned char id[4] = {};
    std::error_code unknown;
    if (!std::filesystem::is_regular_file(path, unknown)) return false; // a pipe would wait for its writer
    std::ifstream file(path, std::ios::binary);
    file.seekg(kPlace).read(reinterpret_cast<char*>(id), sizeof id);
    return file && (int(id[0]) << 24 | id[1] << 16 | id[2] << 8 | id[3]) == trace::kApplicationId;
}

} // namespace kvscope
