// What a person names as text on a command line: a file, or a device or a pipe, which may have no end.
#pragma once

#include <cstddef>
#include <stop_token>
#include <string>
#include <string_view>

namespace kvscope {

inline constexpr std::size_t kLongestText = std::size_t(1) << 30; // bytes

/// All bytes of `path`; of a pipe, up to the end that its writer gives it. what: how messages call it, e.g. "the
/// workload"
/// @throws Error(BadInput) where it cannot be read, as a folder cannot, is longer than `most` bytes, or is a pipe that
/// no program has opened to write within three seconds; Error(Cancelled) where a stop is requested while a pipe's
/// writer has nothing to say
std::string readTextFile(const std::string& path, std::string_view what, std::size_t most = kLongestText,
                         const std::stop_token& stop = {});

} // namespace kvscope
