// 64-bit keys: FNV-1a hashes of the texts and numbers that name a flow or an operation. Among a million flows two get
// the same key by accident with a probability of 3e-8.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvscope {

constexpr std::uint64_t kHashStart = 0xcbf29ce484222325;

/// Continues the hash `before` with a text and its end, so that "ab" followed by "c" differs from "a" followed by "bc".
constexpr std::uint64_t hashOf(std::string_view text, std::uint64_t before = kHashStart) {
    std::uint64_t hash = before;
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    return (hash ^ 0x1f) * 0x100000001b3;
}
constexpr std::uint64_t hashOf(std::uint64_t number, std::uint64_t before) {
    std::uint64_t hash = before;
    for (int byte = 0; byte < 8; ++byte) hash = (hash ^ ((number >> (8 * byte)) & 0xff)) * 0x100000001b3;
    return hash;
}

} // namespace kvscope
