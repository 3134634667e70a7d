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
    if (path.ends_with(".gz")) gzip_ = std::make_unique<GzipStream>(file_);
    std::error_code ignored;
    const fs::file_status status = fs::status(path, ignored);
    if (!fs::exists(status) || fs::is_regular_file(status)) written_ += fmt::format(".writing-{}", getpid());
    if (!file_.open(written_, std::ios::out | std::ios::binary | std::ios::trunc))
        throw Error(ErrorKind::Storage, fmt::format("cannot write {}: {}", path, std::strerror(errno)),
                    "choose a folder that exists and is writable");
    stream_.rdbuf(gzip_ ? static_cast<std::streambuf*>(gzip_.get()) : &file_);
}

OutputFile::~OutputFile() {
    file_.close();
    std::error_code ignored;
    if (written_ != path_) fs::remove(written_, ignored);
}

void OutputFile::commit() {
    const bool packed = !gzip_ || gzip_->finish(), closed = file_.close() != nullptr;
    if (!packed || !closed || !stream_)
        throw Error(ErrorKind::Storage, fmt::format("cannot finish {}", path_), "the disk may be full");
    if (written_ == path_) return;
    std::error_code failure;
    fs::rename(written_, path_, failure);
    if (failure)
        throw Error(ErrorKind::Storage, fmt::format("cannot write {}: {}", path_, failure.message()),
                    "choose a folder that exists and is writable");
}

} // namespace kvscope
