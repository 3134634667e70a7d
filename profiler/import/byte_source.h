// Reads a file byte after byte for a parser, and unpacks the file on the way if it is a gzip file.
#pragma once

#include "base/progress.h"

#include <cstdint>
#include <memory>
#include <streambuf>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

class ByteSource final : public std::streambuf {
public:
    /// @throws Error(Storage): the file cannot be opened. Error(Unsupported): the file is gzip and this program was
    /// built without zlib.
    ByteSource(const std::string& path, const Progress& progress, const std::stop_token& stop);
    ~ByteSource() override;

    static bool isGzip(std::string_view head) { return head.substr(0, 2) == "\x1f\x8b"; }
    /// The first `count` bytes of the unpacked file; empty if the file cannot be read or unpacked. Never throws.
    static std::string unpackedHead(const std::string& path, std::size_t count) noexcept;

protected:
    /// @throws Error(Storage | BadInput | Cancelled)
    int_type underflow() override;

private:
    struct File;
    std::string path_;
    Progress progress_;
    std::stop_token stop_;
    std::unique_ptr<File> file_;
    std::vector<char> buffer_;
    std::int64_t size_ = 0; // bytes of the file on disk, still packed
};

} // namespace kvscope
