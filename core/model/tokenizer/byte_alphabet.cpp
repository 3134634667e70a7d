#include "core/model/tokenizer/byte_alphabet.h"

#include "core/model/tokenizer/unicode.h"

#include <charconv>

namespace kvscope::tokenizing {

const std::array<std::string, 256>& byteAlphabet() {
    static const auto alphabet = [] {
        std::array<std::string, 256> table;
        std::uint32_t next = 256;
        for (std::uint32_t b = 0; b < 256; ++b) {
            const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
            appendUtf8(table[b], printable ? b : next++);
        }
        return table;
    }();
    return alphabet;
}

std::optional<std::string> bytesOfAlphabet(std::string_view written) {
    static const auto byteOf = [] {
        std::array<int, 512> table;
        table.fill(-1);
        for (std::size_t b = 0; b < 256; ++b) {
            std::size_t at = 0;
            table[nextCodePoint(byteAlphabet()[b], at)] = int(b);
        }
        return table;
    }();
    std::string bytes;
    for (std::size_t at = 0; at < written.size();) {
        const std::uint32_t c = nextCodePoint(written, at);
        if (c >= byteOf.size() || byteOf[c] < 0) return std::nullopt;
        bytes += char(byteOf[c]);
    }
    return bytes;
}

int byteOfFallbackToken(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
    int value = 0;
    const auto [end, code] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
    return code == std::errc() && end == token.data() + 5 && value >= 0 ? value : -1;
}

} // namespace kvscope::tokenizing
