// What the fuzz targets share. A target gives arbitrary bytes to one loader and uses what comes out; refusing them with
// an Error is right, everything else that is thrown, and every crash, is a finding.
#pragma once

#include "base/error.h"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace kvscope::fuzz {

inline std::string_view text(const std::uint8_t* data, std::size_t size) {
    return {reinterpret_cast<const char*>(data), size};
}
inline std::span<const std::byte> bytes(const std::uint8_t* data, std::size_t size) {
    return {reinterpret_cast<const std::byte*>(data), size};
}

/// Runs body(); an Error must also be fit to be shown: one line that says something.
template <class Body> int expectOnlyErrors(Body&& body) {
    try {
        body();
    } catch (const Error& error) {
        const std::string line = oneLine(error);
        if (line.empty() || line.find('\n') != std::string::npos) std::terminate();
    }
    return 0;
}

} // namespace kvscope::fuzz
