// Keeps texts of any length until they are read back: in memory while they are few, beyond that in a nameless file.
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

    /// `folder`: where the file is made once the texts exceed `atOnce` bytes, the most that stays in memory.
    explicit DetailStore(std::string folder, std::size_t atOnce = std::size_t(32) << 20)
        : folder_(std::move(folder)), atOnce_(atOnce) {}

    /// Stores a text. A text equal to the one stored before it takes no room of its own, as long as that one is still
    /// in memory. @throws Error(Storage) if the disk is full
    Ref add(std::string_view text);
    std::string read(Ref ref) const;

private:
    std::string folder_;
    std::size_t atOnce_;
    SpillFile file_;
    std::string buffer_; // the texts after the `spilled_` bytes that lie in the file
    std::uint64_t spilled_ = 0;
    Ref last_;
};

} // namespace kvscope
