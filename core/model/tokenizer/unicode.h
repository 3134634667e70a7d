// What tokenizers need of Unicode: code points in UTF-8, white space, letter case and the normalisation forms.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvscope::tokenizing {

/// Appends the character in UTF-8.
void appendUtf8(std::string& out, std::uint32_t codePoint);

/// Bytes of the character that begins with `lead`, in valid UTF-8.
inline std::size_t utf8Length(char lead) {
    const auto byte = static_cast<unsigned char>(lead);
    return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

/// The character at `at` of valid UTF-8; moves `at` behind it.
std::uint32_t nextCodePoint(std::string_view text, std::size_t& at);

/// Unicode's White_Space property.
bool isWhiteSpace(std::uint32_t codePoint);

/// Bytes of white space at the end, or at the start, of valid UTF-8.
std::size_t trailingWhiteSpace(std::string_view text);
std::size_t leadingWhiteSpace(std::string_view text);

/// Letters, marks, decimal digits, connectors: what a regular expression calls \w.
bool isWordCharacter(std::uint32_t codePoint);

enum class NormalForm { Nfc, Nfd, Nfkc, Nfkd };
/// Whether this build has libutf8proc. Without it normalized, lowercased, uppercased and withoutMarks change ASCII
/// only.
bool hasUnicodeTables();
std::string normalized(std::string_view text, NormalForm form);
std::string lowercased(std::string_view text);
std::string uppercased(std::string_view text);
/// The text without marks: non-spacing, spacing and enclosing ones (Mn, Mc, Me), like the tokenizers library's
/// StripAccents.
std::string withoutMarks(std::string_view text);

/// Text of a message or file where every occurrence of `from` (not empty) is `to`.
std::string replaceAll(std::string_view text, std::string_view from, std::string_view to);

} // namespace kvscope::tokenizing
