// Times of a trace within what can be reckoned with: a damaged file may say anything, a clock that counts from 1970 may
// not be cut. Any two times differ by less than 2^63, and a time plus a duration is one.
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
