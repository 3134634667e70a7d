#include "core/model/fingerprint.h"

#include <algorithm>
#include <cstdint>
#include <fmt/format.h>

namespace kvscope {
namespace {

constexpr std::size_t kPage = 4096, kPages = 64, kOtherHeader = std::size_t(1) << 20;

class Fnv1a {
public:
    void add(std::span<const std::byte> bytes) {
        for (const std::byte byte : bytes) {
            hash_ ^= std::uint64_t(byte);
            hash_ *= 0x100000001b3;
        }
    }
    void add(std::uint64_t number) {
        for (int i = 0; i < 8; ++i, number >>= 8) {
            const auto byte = std::byte(number & 0xff);
            add({&byte, 1});
        }
    }
    std::uint64_t value() const { return hash_; }

private:
    std::uint64_t hash_ = 0xcbf29ce484222325;
};

/// Bytes of a file's tensor header, at most the whole file.
std::size_t headerOf(std::span<const std::byte> file) {
    if (file.size() >= 4 && file[0] == std::byte('G') && file[1] == std::byte('G') && file[2] == std::byte('U') &&
        file[3] == std::byte('F'))
        return std::min(file.size(), kOtherHeader);
    if (file.size() < 8) return file.size();
    std::uint64_t length = 0;
    for (int i = 7; i >= 0; --i) length = length << 8 | std::uint64_t(file[std::size_t(i)]);
    return length <= file.size() - 8 ? std::size_t(length) + 8 : std::min(file.size(), kOtherHeader);
}

} // namespace

std::string fingerprintOf(const std::vector<std::span<const std::byte>>& files) {
    Fnv1a hash;
    std::uint64_t all = 0;
    for (const auto& file : files) {
        hash.add(std::uint64_t(file.size()));
        hash.add(file.first(headerOf(file)));
        all += file.size();
    }
    const std::uint64_t last = all > kPage ? all - kPage : 0; // where the last page begins
    for (std::size_t page = 0; page < kPages; ++page) {
        std::uint64_t at = last / (kPages - 1) * page + last % (kPages - 1) * page / (kPages - 1);
        std::size_t left = kPage;
        for (const auto& file : files) {
            if (at >= file.size()) {
                at -= file.size();
                continue;
            }
            const std::size_t take = std::min<std::size_t>(left, file.size() - std::size_t(at));
            hash.add(file.subspan(std::size_t(at), take));
            left -= take;
            at = 0;
            if (left == 0) break;
        }
    }
    return fmt::format("1:{}:{}:{:016x}", files.size(), all, hash.value());
}

} // namespace kvscope
