// The reversible byte -> character table of byte-level BPE (GPT-2): printable Latin-1 stands for itself, the other
// bytes for U+0100 and following, so that a vocabulary of texts can hold any bytes.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace kvscope::tokenizing {

const std::array<std::string, 256>& byteAlphabet();

/// The bytes a text of the alphabet stands for; nothing when a character lies outside it.
std::optional<std::string> bytesOfAlphabet(std::string_view written);

/// The byte of a token written "<0x41>"; -1 when it is none.
int byteOfFallbackToken(std::string_view token);

} // namespace kvscope::tokenizing
