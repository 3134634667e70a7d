#include "core/model/tokenizer/unicode.h"

#include "base/error.h"
#include "core/model/tokenizer/tokenizer.h"

#include <algorithm>
#include <memory>
#ifdef KVSCOPE_HAVE_UTF8PROC
#include <cstdlib>
#include <utf8proc.h>
#endif

namespace kvscope {
namespace tokenizing {

void appendUtf8(std::string& out, std::uint32_t c) {
    if (c < 0x80)
        out += char(c);
    else if (c < 0x800)
        out += char(0xC0 | c >> 6), out += char(0x80 | (c & 63));
    else if (c < 0x10000)
        out += char(0xE0 | c >> 12), out += char(0x80 | (c >> 6 & 63)), out += char(0x80 | (c & 63));
    else
        out += char(0xF0 | c >> 18), out += char(0x80 | (c >> 12 & 63)), out += char(0x80 | (c >> 6 & 63)),
            out += char(0x80 | (c & 63));
}

std::uint32_t nextCodePoint(std::string_view text, std::size_t& at) {
    const std::size_t length = std::min(utf8Length(text[at]), text.size() - at);
    const auto lead = static_cast<unsigned char>(text[at]);
    std::uint32_t c = length == 1 ? lead : lead & (0xFFU >> (length + 1));
    for (std::size_t i = 1; i < length; ++i) c = c << 6 | (static_cast<unsigned char>(text[at + i]) & 0x3FU);
    at += length;
    return c;
}

bool isWhiteSpace(std::uint32_t c) {
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::size_t trailingWhiteSpace(std::string_view text) {
    std::size_t begin = text.size();
    while (begin > 0) {
        std::size_t last = begin - 1;
        while (last > 0 && (static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
        std::size_t at = last;
        if (!isWhiteSpace(nextCodePoint(text, at))) break;
        begin = last;
    }
    return text.size() - begin;
}

std::size_t leadingWhiteSpace(std::string_view text) {
    std::size_t end = 0;
    for (std::size_t at = 0; at < text.size() && isWhiteSpace(nextCodePoint(text, at));) end = at;
    return end;
}

std::string replaceAll(std::string_view text, std::string_view from, std::string_view to) {
    std::string out;
    out.reserve(text.size());
    std::size_t at = 0;
    for (std::size_t found; (found = text.find(from, at)) != text.npos; at = found + from.size())
        out.append(text, at, found - at).append(to);
    return out.append(text, at);
}

#ifdef KVSCOPE_HAVE_UTF8PROC

namespace {

std::string mapped(std::string_view text, int options) {
    utf8proc_uint8_t* raw = nullptr;
    const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                               utf8proc_ssize_t(text.size()), &raw, utf8proc_option_t(options));
    const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(raw, &std::free);
    if (size < 0) throw Error(ErrorKind::OutOfMemory, "the text could not be normalised", "use a shorter text");
    return {reinterpret_cast<const char*>(raw), std::size_t(size)};
}

} // namespace

bool hasUnicodeTables() { return true; }

std::string normalized(std::string_view text, NormalForm form) {
    // Nothing below U+0300 combines, and below U+0080 nothing decomposes: most text is returned as it is.
    const bool composed = form == NormalForm::Nfc;
    if (std::all_of(text.begin(), text.end(), [composed](char c) {
            const auto byte = static_cast<unsigned char>(c);
            return byte < 0x80 || (composed && byte < 0xCC);
        }))
        return std::string(text);
    switch (form) {
    case NormalForm::Nfc:
        return mapped(text, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    case NormalForm::Nfd:
        return mapped(text, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
    case NormalForm::Nfkc:
        return mapped(text, UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
    case NormalForm::Nfkd:
        return mapped(text, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT);
    }
    return std::string(text);
}

std::string lowercased(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
        const std::uint32_t c = nextCodePoint(text, at);
        if (c == 0x130)
            out += "i\xCC\x87"; // the one character whose lower case is two
        else
            appendUtf8(out, std::uint32_t(utf8proc_tolower(utf8proc_int32_t(c))));
    }
    return out;
}

std::string uppercased(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
        const std::uint32_t c = nextCodePoint(text, at);
        if (c == 0xDF)
            out += "SS";
        else
            appendUtf8(out, std::uint32_t(utf8proc_toupper(utf8proc_int32_t(c))));
    }
    return out;
}

std::string withoutMarks(std::string_view text) {
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
        const std::uint32_t c = nextCodePoint(text, at);
        const auto category = utf8proc_category(utf8proc_int32_t(c));
        if (category != UTF8PROC_CATEGORY_MN && category != UTF8PROC_CATEGORY_MC && category != UTF8PROC_CATEGORY_ME)
            appendUtf8(out, c);
    }
    return out;
}

bool isWordCharacter(std::uint32_t c) {
    switch (utf8proc_category(utf8proc_int32_t(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default: // joiners, and symbols that count as letters: circled and squared ones
        return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
               (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
    }
}

#else

bool hasUnicodeTables() { return false; }
std::string normalized(std::string_view text, NormalForm) { return std::string(text); }
std::string lowercased(std::string_view text) {
    std::string out(text);
    for (char& c : out)
        if (c >= 'A' && c <= 'Z') c = char(c + ('a' - 'A'));
    return out;
}
std::string uppercased(std::string_view text) {
    std::string out(text);
    for (char& c : out)
        if (c >= 'a' && c <= 'z') c = char(c - ('a' - 'A'));
    return out;
}
std::string withoutMarks(std::string_view text) { return std::string(text); }
bool isWordCharacter(std::uint32_t c) {
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

#endif

} // namespace tokenizing

} // namespace kvscope
