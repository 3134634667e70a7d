// A temporary file without a name. The system frees its space when this object is destroyed, and also when the program
// is killed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace kvscope {

class SpillFile {
public:
    SpillFile() = default;
    ~SpillFile();
    SpillFile(const SpillFile&) = delete;
    SpillFile& operator=(const SpillFile&) = delete;

    bool isOpen() const { return descriptor_ >= 0; }
    /// Makes the file. @throws Error(Storage): no space or no permission; append and read throw it too.
    void open(const std::string& folder);
    void append(const void* bytes, std::size_t count);
    void read(void* bytes, std::size_t count, std::int64_t at) const;

private:
    int descriptor_ = -1;
    std::string folder_;
};

} // namespace kvscope
