// Texts of any length until they are wanted again: in memory while they are few, then in a file without a name.
#pragma once

#include "profiler/import/spill_file.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kvscope {

class DetailStore {
public:
    struct Ref {
        std::uint64_t at = 0;
        std::uint32_t length = 0; // 0: no text
    };

    /// `folder`: where the file goes when one is needed. `atOnce`: bytes kept in memory.
    explicit DetailStore(std::string folder, std::size_t atOnce = std::size_t(32) << 20)
        : folder_(std::move(folder)), atOnce_(atOnce) {}

    /// The same as the one before takes no room. @throws Error(Storage) if the disk is full
    Ref add(std::string_view text);
    std::string read(Ref ref) const;

private:
    std::string folder_;
    std::size_t atOnce_;
    SpillFile file_;
    std::string buffer_; // what follows `spilled_` bytes of the file
    std::uint64_t spilled_ = 0;
    Ref last_;
};

} // namespace kvscope
