#include "profiler/export/output_file.h"

#include "base/writing_end.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>

namespace kvscope {

namespace fs = std::filesystem;

bool OutputFile::isPacked(std::string_view path) {
    constexpr std::string_view kEnd = ".gz";
    if (path.size() < kEnd.size()) return false;
    const std::string_view end = path.substr(path.size() - kEnd.size());
    return std::equal(end.begin(), end.end(), kEnd.begin(),
                      [](char c, char wanted) { return (c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c) == wanted; });
}

OutputFile::OutputFile(const std::string& path) : path_(path) {
    if (const std::string database = databaseInTheWay(path); !database.empty())
        throw Error(ErrorKind::BadInput, fmt::format("cannot write {}: {}", path, database), "choose another name");
    if (isPacked(path)) gzip_ = std::make_unique<GzipStream>(file_);
    std::error_code ignored;
    const fs::file_status status = fs::status(path, ignored);
    if (!fs::exists(status) || fs::is_regular_file(status)) whole_.emplace(path);
    const WritingEnd pipe(path);
    if (!pipe.fault().empty())
        throw Error(ErrorKind::Storage, fmt::format("cannot write {}: {}", path, pipe.fault()),
                    "start the program that does before this one, or choose another name");
    if (!file_.open(whole_ ? whole_->aside() : path, std::ios::out | std::ios::binary | std::ios::trunc))
        throw Error(ErrorKind::Storage, fmt::format("cannot write {}: {}", path, std::strerror(errno)),
                    "choose a folder that exists and is writable");
    stream_.rdbuf(gzip_ ? static_cast<std::streambuf*>(gzip_.get()) : &file_);
}

OutputFile::~OutputFile() { file_.close(); }

void OutputFile::requireWritten() const {
    if (!stream_ || file_.error() != 0)
        throw Error(ErrorKind::Storage, fmt::format("cannot write {}: {}", path_, file_.reason()),
                    "choose another name, in a folder that is writable and has space");
}

void OutputFile::commit() {
    const bool packed = !gzip_ || gzip_->finish(), closed = file_.close() != nullptr;
    if (!packed || !closed) stream_.setstate(std::ios::badbit);
    requireWritten();
    if (!whole_) return;
    if (const std::string failure = whole_->appear(); !failure.empty())
        throw Error(ErrorKind::Storage, fmt::format("cannot write {}: {}", path_, failure),
                    "choose a folder that exists and is writable");
}

} // namespace kvscope
