#include "profiler/export/output_file.h"

#include "kernels/base/error.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#include <unistd.h>

namespace kvscope {

namespace fs = std::filesystem;

OutputFile::OutputFile(const std::string& path) : path_(path), written_(path) {
    std::error_code ignored;
    const fs::file_status status = fs::status(path, ignored);
    if (!fs::exists(status) || fs::is_regular_file(status)) written_ += fmt::format(".writing-{}", getpid());
    stream_.open(written_, std::ios::binary | std::ios::trunc);
    if (!stream_)
        throw Error(ErrorKind::Storage, fmt::format("cannot write {}: {}", path, std::strerror(errno)),
                    "choose a folder that exists and is writable");
}

OutputFile::~OutputFile() {
    stream_.close();
    std::error_code ignored;
    if (written_ != path_) fs::remove(written_, ignored);
}

void OutputFile::commit() {
    stream_.close();
    if (!stream_) throw Error(ErrorKind::Storage, fmt::format("cannot finish {}", path_), "the disk may be full");
    if (written_ == path_) return;
    std::error_code failure;
    fs::rename(written_, path_, failure);
    if (failure)
        throw Error(ErrorKind::Storage, fmt::format("cannot write {}: {}", path_, failure.message()),
                    "choose a folder that exists and is writable");
}

} // namespace kvscope
