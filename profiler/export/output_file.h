// A file that appears when it is complete: until then it has another name, and it is gone if that never happens.
#pragma once

#include <fstream>
#include <string>

namespace kvscope {

class OutputFile {
public:
    /// Devices and pipes are written to as they are. @throws Error(Storage) if nothing can be written there
    explicit OutputFile(const std::string& path);
    ~OutputFile();
    OutputFile(const OutputFile&) = delete;
    OutputFile& operator=(const OutputFile&) = delete;

    std::ostream& stream() { return stream_; }
    /// @throws Error(Storage): the disk is full
    void commit();

private:
    std::string path_, written_;
    std::ofstream stream_;
};

} // namespace kvscope
