// UTF-8 that may be malformed or cut.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvscope {

/// Replaces malformed UTF-8 by U+FFFD, one per maximal ill-formed part, like Unicode's recommended practice.
std::string toValidUtf8(std::string_view bytes);

/// The text with its controls of writing direction, which would turn round what stands beside it, written as \u202e.
std::string withDirectionsShown(std::string_view text);

/// Bytes at the end that begin a character which is not complete; 0 when there are none.
std::size_t incompleteUtf8(std::string_view bytes);

} // namespace kvscope
