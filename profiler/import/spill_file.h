// A file without a name: its space is free again when this object goes, however the program ends.
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
    /// @throws Error(Storage), as all that follows: no space, no permission
    void open(const std::string& folder);
    void append(const void* bytes, std::size_t count);
    void read(void* bytes, std::size_t count, std::int64_t at) const;

private:
    int descriptor_ = -1;
    std::string folder_;
};

} // namespace kvscope
