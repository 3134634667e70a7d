#include "core/chat/lexer.h"

#include "core/chat/value.h"
#include "core/model/tokenizer/unicode.h"

#include <algorithm>
#include <charconv>
#include <fmt/format.h>

namespace kvscope::chat {
namespace {

bool isBlank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f'; }
bool isDigit(char c) { return c >= '0' && c <= '9'; }
bool beginsName(char c) {
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<unsigned char>(c) >= 0x80;
}

class Lexer {
public:
    explicit Lexer(std::string_view text) : text_(text) {}

    std::vector<Token> run() {
        while (at_ < text_.size()) lexText();
        add(Token::Kind::End, "");
        return std::move(tokens_);
    }

private:
    [[noreturn]] void fail(const std::string& what) const {
        throw TemplateError{fmt::format("line {}: {}", line_, what)};
    }
    void add(Token::Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
    void skipTo(std::size_t end) {
        line_ += int(std::count(text_.begin() + long(at_), text_.begin() + long(end), '\n'));
        at_ = end;
    }
    bool follows(std::string_view what) const { return text_.substr(at_).starts_with(what); }

    /// Text up to the next tag, then the tag itself.
    void lexText() {
        std::size_t tag = at_;
        do {
            tag = text_.find('{', tag);
            if (tag == text_.npos || tag + 1 >= text_.size()) {
                tag = text_.size();
                break;
            }
            if (const char c = text_[tag + 1]; c == '{' || c == '%' || c == '#') break;
        } while (++tag);
        std::string_view plain = text_.substr(at_, tag - at_);
        const bool atTag = tag < text_.size();
        const char mark = atTag ? text_[tag + 1] : ' ', sign = tag + 2 < text_.size() ? text_[tag + 2] : ' ';
        if (atTag && sign == '-') {
            while (!plain.empty() && isBlank(plain.back())) plain.remove_suffix(1);
        } else if (atTag && mark != '{' && sign != '+') { // lstrip_blocks: only blanks since the line began
            std::size_t end = plain.size();
            while (end > 0 && (plain[end - 1] == ' ' || plain[end - 1] == '\t')) --end;
            const bool lineBegan = end > 0 ? plain[end - 1] == '\n' : lineStart_;
            if (lineBegan) plain = plain.substr(0, end);
        }
        if (!plain.empty()) add(Token::Kind::Text, std::string(plain));
        skipTo(tag);
        if (!atTag) return;
        skipTo(tag + 2 + (sign == '-' || sign == '+' ? 1 : 0));
        if (mark == '#') return lexComment();
        if (mark == '%' && lexRaw()) return;
        const bool block = mark == '%';
        add(block ? Token::Kind::BlockBegin : Token::Kind::PrintBegin, "");
        lexInside(block);
    }

    void lexComment() {
        const std::size_t end = text_.find("#}", at_);
        if (end == text_.npos) fail("a comment has no end");
        const char sign = end > at_ ? text_[end - 1] : ' ';
        skipTo(end + 2);
        afterTag(sign, true);
    }

    /// {% raw %} ... {% endraw %}: text, whatever is in it.
    bool lexRaw() {
        std::size_t at = at_;
        const auto skipBlanks = [&] {
            while (at < text_.size() && isBlank(text_[at])) ++at;
        };
        const auto endsTag = [&](char& sign) {
            skipBlanks();
            sign = ' ';
            if (at < text_.size() && (text_[at] == '-' || text_[at] == '+')) sign = text_[at++];
            if (!text_.substr(at).starts_with("%}")) return false;
            at += 2;
            return true;
        };
        char sign = ' ';
        skipBlanks();
        if (!text_.substr(at).starts_with("raw")) return false;
        at += 3;
        if (!endsTag(sign)) return false;
        skipTo(at);
        afterTag(sign, true);
        for (std::size_t open = text_.find("{%", at_); open != text_.npos; open = text_.find("{%", open + 2)) {
            at = open + 2;
            const bool trims = at < text_.size() && text_[at] == '-';
            if (at < text_.size() && (text_[at] == '-' || text_[at] == '+')) ++at;
            skipBlanks();
            if (!text_.substr(at).starts_with("endraw")) continue;
            at += 6;
            if (!endsTag(sign)) continue;
            std::string_view plain = text_.substr(at_, open - at_);
            while (trims && !plain.empty() && isBlank(plain.back())) plain.remove_suffix(1);
            if (!plain.empty()) add(Token::Kind::Text, std::string(plain));
            skipTo(at);
            afterTag(sign, true);
            return true;
        }
        fail("{% raw %} has no end");
    }

    /// White space behind a tag that ended with `sign`.
    void afterTag(char sign, bool trimsNewline) {
        std::size_t end = at_;
        if (sign == '-')
            while (end < text_.size() && isBlank(text_[end])) ++end;
        else if (trimsNewline && sign != '+' && end < text_.size() && text_[end] == '\n')
            ++end;
        lineStart_ = end > at_ && text_[end - 1] == '\n';
        skipTo(end);
    }

    void lexInside(bool block) {
        const char* close = block ? "%}" : "}}";
        int open = 0; // braces of the expression: "}}" may end two mappings
        while (true) {
            while (at_ < text_.size() && isBlank(text_[at_])) skipTo(at_ + 1);
            if (at_ >= text_.size()) fail("a tag has no end");
            const char c = text_[at_];
            const bool sign = (c == '-' || c == '+') && text_.substr(at_ + 1).starts_with(close);
            if (open == 0 && (sign || follows(close))) {
                add(block ? Token::Kind::BlockEnd : Token::Kind::PrintEnd, "");
                skipTo(at_ + (sign ? 3 : 2));
                return afterTag(sign ? c : ' ', block);
            }
            if (c == '\'' || c == '"')
                lexString(c);
            else if (isDigit(c))
                lexNumber();
            else if (beginsName(c))
                lexName();
            else
                lexOperator(open);
        }
    }

    void lexName() {
        std::size_t end = at_;
        while (end < text_.size() && (beginsName(text_[end]) || isDigit(text_[end]))) ++end;
        add(Token::Kind::Name, std::string(text_.substr(at_, end - at_)));
        skipTo(end);
    }

    void lexNumber() {
        std::size_t end = at_;
        const auto digits = [&] {
            while (end < text_.size() && (isDigit(text_[end]) || text_[end] == '_')) ++end;
        };
        bool real = false;
        digits();
        if (end + 1 < text_.size() && text_[end] == '.' && isDigit(text_[end + 1])) real = true, ++end, digits();
        if (end + 1 < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
            std::size_t exponent = end + 1;
            if (text_[exponent] == '+' || text_[exponent] == '-') ++exponent;
            if (exponent < text_.size() && isDigit(text_[exponent])) real = true, end = exponent, digits();
        }
        std::string number(text_.substr(at_, end - at_));
        std::erase(number, '_');
        add(real ? Token::Kind::Float : Token::Kind::Integer, number);
        skipTo(end);
    }

    void lexString(char quote) {
        std::string out;
        std::size_t at = at_ + 1;
        for (; at < text_.size() && text_[at] != quote; ++at) {
            if (text_[at] != '\\' || at + 1 >= text_.size()) {
                out += text_[at];
                continue;
            }
            const char escaped = text_[++at];
            static constexpr std::string_view names = "ntrbfva0", meant("\n\t\r\b\f\v\a\0", 8);
            if (const auto found = names.find(escaped); found != names.npos)
                out += meant[found];
            else if (escaped == '\\' || escaped == '\'' || escaped == '"')
                out += escaped;
            else if (escaped == '\n')
                continue;
            else if (escaped == 'x' || escaped == 'u' || escaped == 'U')
                at += lexCodePoint(at + 1, escaped == 'x' ? 2 : escaped == 'u' ? 4 : 8, out);
            else
                out += '\\', out += escaped;
        }
        if (at >= text_.size()) fail("a text has no closing quote");
        add(Token::Kind::String, std::move(out));
        skipTo(at + 1);
    }

    std::size_t lexCodePoint(std::size_t at, std::size_t digits, std::string& out) const {
        std::uint32_t code = 0;
        const std::string_view hex = text_.substr(std::min(at, text_.size()), digits);
        const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
        if (error != std::errc() || end != hex.data() + digits || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
            fail("an escaped character is malformed");
        tokenizing::appendUtf8(out, code);
        return digits;
    }

    void lexOperator(int& open) {
        for (const char* two : {"==", "!=", "<=", ">=", "//", "**"})
            if (follows(two)) {
                add(Token::Kind::Operator, two);
                return skipTo(at_ + 2);
            }
        const char c = text_[at_];
        if (std::string_view("+-*/%~<>=()[]{}.,:|").find(c) == std::string_view::npos)
            fail(fmt::format("'{}' is unexpected", c));
        if (c == '{' || c == '(' || c == '[') ++open;
        if (c == '}' || c == ')' || c == ']') --open;
        if (open < 0) fail(fmt::format("'{}' is unexpected", c));
        add(Token::Kind::Operator, std::string(1, c));
        skipTo(at_ + 1);
    }

    std::string_view text_;
    std::size_t at_ = 0;
    int line_ = 1;
    bool lineStart_ = true; // whether a line begins where the text after the last tag begins
    std::vector<Token> tokens_;
};

} // namespace

std::vector<Token> lex(std::string_view text) {
    std::string lines;
    lines.reserve(text.size());
    for (std::size_t i = 0; i < text.size(); ++i) // as in Jinja, every kind of line end is one newline
        if (text[i] != '\r')
            lines += text[i];
        else if (i + 1 >= text.size() || text[i + 1] != '\n')
            lines += '\n';
    if (!lines.empty() && lines.back() == '\n') lines.pop_back();
    return Lexer(lines).run();
}

} // namespace kvscope::chat
