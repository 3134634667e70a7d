// Takes over what a caller passes, in the form that this library knows.
#pragma once

#include "base/utf8.h"
#include "sdk/trace/handles.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

namespace kvscope::sdk {

/// A copy of the caller's struct, in which fields that an older caller does not have are 0. @throws Refusal: it is
/// null, has no size, or has fields set that only a newer library knows
template <class Struct> Struct taken(const Struct* given, const char* name) {
    if (given == nullptr) refuse(KVTRACE_INVALID, name, " is null; pass the address of one");
    const std::size_t size = given->size;
    if (size < 2 * sizeof(std::uint32_t))
        refuse(KVTRACE_INVALID, name, " has no size; set its field size to sizeof(", name, ")");
    Struct mine{};
    std::memcpy(&mine, given, std::min(size, sizeof mine));
    const auto* bytes = reinterpret_cast<const unsigned char*>(given);
    for (std::size_t i = sizeof mine; i < size; ++i)
        if (bytes[i] != 0)
            refuse(KVTRACE_UNSUPPORTED, name,
                   " sets fields that this library does not have; install a newer libkvscope_trace");
    return mine;
}

/// The other direction: fills as many fields as the caller's struct has. @throws Refusal: it is null or has no size
template <class Struct> void hand(const Struct& mine, Struct* to, const char* name) {
    if (to == nullptr) refuse(KVTRACE_INVALID, name, " is null; pass the address of one");
    const std::uint32_t size = to->size;
    if (size < 2 * sizeof(std::uint32_t))
        refuse(KVTRACE_INVALID, name, " has no size; set its field size to sizeof(", name, ")");
    std::memcpy(to, &mine, std::min<std::size_t>(size, sizeof mine));
    to->size = size;
}

/// The pointer. @throws Refusal if it is null
template <class Value> Value* required(Value* pointer, const char* name) {
    if (pointer == nullptr) refuse(KVTRACE_INVALID, name, " is null; pass the address of one");
    return pointer;
}

/// @throws Refusal where a time or a duration is farther than nine years from the run's beginning: it is of another
/// clock, such as UTC's, or is no time at all
inline void requireTime(const char* what, std::int64_t ns) {
    constexpr std::int64_t farthest = std::int64_t(1) << 58;
    if (ns < -farthest || ns > farthest)
        refuse(KVTRACE_INVALID, what, " is ", std::to_string(ns),
               " ns; times count from the beginning of the run (kvtrace_run_now)");
}

/// The text. Null reads as empty; bytes that are no UTF-8 are replaced.
inline std::string textOf(const char* text) { return text == nullptr ? std::string() : toValidUtf8(text); }

/// The bytes of item `index`, of texts that lie end to end; empty where there are none. @throws Refusal where an offset
/// is below the one before it
inline std::string pieceOf(const char* text, const std::int64_t* offsets, std::int64_t index) {
    if (text == nullptr || offsets == nullptr) return {};
    const std::int64_t begin = offsets[index], end = offsets[index + 1];
    if (begin < 0 || end < begin)
        refuse(KVTRACE_INVALID, "the offsets of a text fall at item ", std::to_string(index),
               "; they must grow from 0 on");
    return {text + begin, std::size_t(end - begin)};
}

} // namespace kvscope::sdk
