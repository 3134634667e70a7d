#include "core/model/whole_file.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <fstream>
#include <unistd.h>

namespace kvscope {

namespace fs = std::filesystem;

WholeFile::WholeFile(std::string path) : path_(std::move(path)) {
    static std::atomic<unsigned> number{0}; // threads may write the same file
    aside_ = fmt::format("{}{}{}-{}", path_, kMark, getpid(), number++);
}

WholeFile::~WholeFile() {
    for (const char* suffix : {"", "-wal", "-shm", "-journal"}) {
        std::error_code ignored;
        fs::remove(aside_ + suffix, ignored);
    }
}

std::string WholeFile::appear() {
    std::error_code failure;
    fs::rename(aside_, path_, failure);
    return failure ? failure.message() : std::string();
}

std::string writeWholeFile(const std::string& path, const std::function<void(std::ostream&)>& write) {
    WholeFile whole(path);
    std::ofstream file(whole.aside(), std::ios::binary | std::ios::trunc);
    if (!file) return std::strerror(errno);
    write(file);
    file.close();
    return file ? whole.appear() : "the disk may be full";
}

} // namespace kvscope
