#include "base/utf8.h"

#include <algorithm>
#include <fmt/format.h>
#include <iterator>

namespace kvscope {

std::string toValidUtf8(std::string_view bytes) {
    std::string out;
    out.reserve(bytes.size());
    for (std::size_t i = 0; i < bytes.size();) {
        const auto lead = static_cast<unsigned char>(bytes[i]);
        if (lead < 0x80) {
            const std::size_t begin = i;
            while (i < bytes.size() && static_cast<unsigned char>(bytes[i]) < 0x80) ++i;
            out += bytes.substr(begin, i - begin);
            continue;
        }
        // Allowed range of the second byte (Unicode, table 3-7); the following ones are 80..BF.
        const std::size_t length = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
        const unsigned low = lead == 0xE0   ? 0xA0
                             : lead == 0xF0 ? 0x90
                                            : 0x80,
                       high = lead == 0xED   ? 0x9F
                              : lead == 0xF4 ? 0x8F
                                             : 0xBF;
        std::size_t good = length == 0 ? 0 : 1;
        while (good > 0 && good < length && i + good < bytes.size()) {
            const auto c = static_cast<unsigned char>(bytes[i + good]);
            if (good == 1 ? c < low || c > high : c < 0x80 || c > 0xBF) break;
            ++good;
        }
        if (length > 0 && good == length)
            out += bytes.substr(i, length), i += length;
        else
            out += "\xEF\xBF\xBD", i += std::max<std::size_t>(good, 1);
    }
    return out;
}

std::string withDirectionsShown(std::string_view text) {
    std::string shown;
    shown.reserve(text.size());
    for (std::size_t i = 0; i < text.size(); ++i) {
        const std::string_view rest = text.substr(i);
        const auto third = rest.size() > 2 ? static_cast<unsigned char>(rest[2]) : 0u;
        unsigned code = 0; // of the control that begins here
        if (rest.starts_with("\xd8\x9c"))
            code = 0x061c;
        else if (rest.starts_with("\xe2\x80") && (third == 0x8e || third == 0x8f || (third >= 0xaa && third <= 0xae)))
            code = 0x2000 + (third & 0x3f);
        else if (rest.starts_with("\xe2\x81") && third >= 0xa6 && third <= 0xa9)
            code = 0x2040 + (third & 0x3f);
        if (code == 0) {
            shown += text[i];
            continue;
        }
        fmt::format_to(std::back_inserter(shown), "\\u{:04x}", code);
        i += code == 0x061c ? 1 : 2;
    }
    return shown;
}

std::size_t incompleteUtf8(std::string_view bytes) {
    for (std::size_t back = 1; back <= std::min<std::size_t>(3, bytes.size()); ++back) {
        const auto c = static_cast<unsigned char>(bytes[bytes.size() - back]);
        if ((c & 0xC0) == 0x80) continue;
        if (c < 0xC2 || c > 0xF4 || (c < 0xE0 ? 2u : c < 0xF0 ? 3u : 4u) <= back) return 0;
        // A start that no valid character has is replaced at once: its replacement differs from a lone U+FFFD.
        return toValidUtf8(bytes.substr(bytes.size() - back)) == "\xEF\xBF\xBD" ? back : 0;
    }
    return 0;
}

} // namespace kvscope
