// A file that appears when it is complete: until then it has another name, and it is gone if that never happens.
#pragma once

#include "base/error.h"
#include "base/reporting_buffer.h"
#include "base/whole_file.h"
#include "profiler/export/gzip_stream.h"

#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>

namespace kvscope {

class OutputFile {
public:
    /// Whether the path ends in .gz, in small or large letters: the file is then compressed.
    static bool isPacked(std::string_view path);
    /// Devices and pipes are written to as they are; what has a packed name is compressed. @throws Error(Storage) if
    /// nothing can be written there, Error(BadInput) if a database is there, Error(Unsupported) if it should be
    /// compressed and this program was built without zlib
    explicit OutputFile(const std::string& path);
    ~OutputFile();
    OutputFile(const OutputFile&) = delete;
    OutputFile& operator=(const OutputFile&) = delete;

    std::ostream& stream() { return stream_; }
    /// @throws Error(Storage) naming the file and the system's reason, if the stream takes nothing more
    void requireWritten() const;
    /// @throws Error(Storage) likewise
    void commit();

private:
    std::string path_;
    std::optional<WholeFile> whole_; // absent: a device or pipe
    ReportingBuffer file_;
    std::unique_ptr<GzipStream> gzip_; // null: plain
    std::ostream stream_{nullptr};
};

} // namespace kvscope
