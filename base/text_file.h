// Reads a text that a person names on a command line: a file, or a device or a pipe, which may have no end.
#pragma once

#include <cstddef>
#include <stop_token>
#include <string>
#include <string_view>

namespace kvscope {

inline constexpr std::size_t kLongestText = std::size_t(1) << 30; // bytes

/// Reads all bytes of `path`; of a pipe, all until its writer closes it.
/// @param what how messages call the text, e.g. "the workload"
/// @throws Error(BadInput) where the text cannot be read (a folder, for example), is longer than `most` bytes, or comes
/// from a pipe that no program opens for writing within three seconds; Error(Cancelled) where a stop is requested while
/// the pipe's writer writes nothing
std::string readTextFile(const std::string& path, std::string_view what, std::size_t most = kLongestText,
                         const std::stop_token& stop = {});

} // namespace kvscope
