#include "profiler/import/byte_source.h"

#include "base/error.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fmt/format.h>
#ifdef KVSCOPE_ZLIB
#include <zlib.h>
#endif

namespace kvscope {
namespace {

constexpr std::size_t kBufferBytes = 1 << 20;

} // namespace

#ifdef KVSCOPE_ZLIB

/// A file read through zlib: gzread unpacks a gzip file and hands over any other file unchanged.
struct ByteSource::File {
    explicit File(const std::string& path) : handle(gzopen(path.c_str(), "rb")) {
        if (handle) gzbuffer(handle, 1 << 17);
    }
    ~File() {
        if (handle) gzclose(handle);
    }
    bool opened() const { return handle != nullptr; }
    /// @throws Error(BadInput): the packed data end early or are damaged. Error(Storage): the disk failed.
    std::size_t read(char* bytes, std::size_t count, const std::string& path) {
        const int got = gzread(handle, bytes, unsigned(count));
        int code = Z_OK;
        const char* said = gzerror(handle, &code);
        if (got >= 0 && (code == Z_OK || code == Z_STREAM_END)) return std::size_t(got);
        if (code == Z_ERRNO)
            throw Error(ErrorKind::Storage, fmt::format("reading {} failed: {}", path, std::strerror(errno)),
                        "check the disk");
        throw Error(ErrorKind::BadInput,
                    code == Z_BUF_ERROR
                        ? fmt::format("{} is cut short: its gzip data end too early", path)
                        : fmt::format("{} is damaged: its gzip data cannot be unpacked ({})", path, said),
                    "copy or record it again");
    }
    std::int64_t position() const { return gzoffset(handle); }
    gzFile handle;
};

#else

struct ByteSource::File {
    explicit File(const std::string& path) : handle(std::fopen(path.c_str(), "rb")) {}
    ~File() {
        if (handle) std::fclose(handle);
    }
    bool opened() const { return handle != nullptr; }
    std::size_t read(char* bytes, std::size_t count, const std::string& path) {
        const bool first = std::ftell(handle) == 0;
        const std::size_t got = std::fread(bytes, 1, count, handle);
        if (std::ferror(handle))
            throw Error(ErrorKind::Storage, fmt::format("reading {} failed: {}", path, std::strerror(errno)),
                        "check the disk");
        if (first && isGzip({bytes, got}))
            throw Error(ErrorKind::Unsupported,
                        fmt::format("{} is compressed and this program was built without zlib", path),
                        "unpack it with gunzip first");
        return got;
    }
    std::int64_t position() const { return std::ftell(handle); }
    std::FILE* handle;
};

#endif

ByteSource::ByteSource(const std::string& path, const Progress& progress, const std::stop_token& stop)
    : path_(path), progress_(progress), stop_(stop), file_(std::make_unique<File>(path)), buffer_(kBufferBytes) {
    if (!file_->opened())
        throw Error(ErrorKind::Storage, fmt::format("{} cannot be opened: {}", path, std::strerror(errno)),
                    "check its name and permissions");
    std::error_code ignored;
    const auto bytes = std::filesystem::file_size(path, ignored);
    size_ = ignored ? 0 : std::int64_t(bytes);
}

ByteSource::~ByteSource() = default;

ByteSource::int_type ByteSource::underflow() {
    throwIfCancelled(stop_);
    const std::size_t count = file_->read(buffer_.data(), buffer_.size(), path_);
    setg(buffer_.data(), buffer_.data(), buffer_.data() + count);
    if (count == 0) return traits_type::eof();
    if (size_ > 0) report(progress_, double(file_->position()) / double(size_), "reading events");
    return traits_type::to_int_type(*gptr());
}

std::string ByteSource::unpackedHead(const std::string& path, std::size_t count) noexcept {
    try {
        File file(path);
        std::string head(count, '\0');
        if (!file.opened()) return {};
        head.resize(file.read(head.data(), count, path));
        return head;
    } catch (const std::exception&) {
        return {};
    }
}

} // namespace kvscope
