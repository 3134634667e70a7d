#include "base/json_text.h"

#include "base/utf8.h"

#include <fmt/format.h>
#include <iterator>

namespace kvscope {

void appendJsonString(std::string& out, std::string_view text) {
    out += '"';
    for (const char c : toValidUtf8(text)) {
        const auto byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\')
            (out += '\\') += c;
        else if (c == '\n')
            out += "\\n";
        else if (c == '\r')
            out += "\\r";
        else if (c == '\t')
            out += "\\t";
        else if (byte < 0x20 || byte == 0x7f)
            fmt::format_to(std::back_inserter(out), "\\u{:04x}", unsigned(byte));
        else
            out += c;
    }
    out += '"';
}

void JsonText::clear() {
    text_.clear();
    first_ = true;
    hasKey_ = tooLong_ = false;
}

void JsonText::put(std::string_view value) {
    if (tooLong_) return;
    if (!first_) text_ += ',';
    first_ = false;
    if (hasKey_) {
        appendJsonString(text_, key_);
        text_ += ':';
        hasKey_ = false;
    }
    text_ += value;
    tooLong_ = text_.size() > longest_;
}

void JsonText::key(std::string_view name) {
    key_.assign(name);
    hasKey_ = true;
}

void JsonText::string(std::string_view text) {
    if (tooLong_) return;
    std::string quoted;
    appendJsonString(quoted, text);
    put(quoted);
}

void JsonText::close(char bracket) {
    if (!tooLong_) text_ += bracket;
    first_ = hasKey_ = false;
}

std::string_view JsonText::text() const { return tooLong_ || text_ == "{}" ? std::string_view() : text_; }

} // namespace kvscope
