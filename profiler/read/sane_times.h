// Cuts times of a trace to a range in which arithmetic is safe, because a damaged file may hold any number: the
// difference of two such times fits into 64 bits, and so does a time plus a duration. The range is wide enough for
// clocks that count from 1970.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvscope {

inline constexpr std::int64_t kFarthestNs = std::int64_t(1) << 62;    // 146 years
inline constexpr std::int64_t kEarliestNs = -(std::int64_t(1) << 53); // 104 days before the clock's zero
inline constexpr std::int64_t kLongestNs = std::int64_t(1) << 53;

constexpr std::int64_t saneTime(std::int64_t ns) { return std::clamp(ns, kEarliestNs, kFarthestNs); }
constexpr std::int64_t saneDuration(std::int64_t ns) { return std::clamp<std::int64_t>(ns, 0, kLongestNs); }

} // namespace kvscope
