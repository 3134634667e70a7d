// JSON text, piece by piece, without a document in memory.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvscope {

/// A JSON string with its quotes; malformed UTF-8 becomes U+FFFD.
void appendJsonString(std::string& out, std::string_view text);

/// Writes one value in order. The caller closes what it opens, and inside an object gives every value its key first.
class JsonText {
public:
    /// longest: bytes. If the value becomes longer, nothing more is kept and text() is empty.
    explicit JsonText(std::size_t longest) : longest_(longest) {}

    void clear();
    void open(char bracket) { put({&bracket, 1}), first_ = true; } // { or [
    void close(char bracket);                                      // } or ]
    /// Sets the key of the next value. It is written together with that value, and not at all if none follows.
    void key(std::string_view name);
    void dropKey() { hasKey_ = false; }
    void string(std::string_view text);
    void literal(std::string_view text) { put(text); } // a number's digits, true, false, null

    bool tooLong() const { return tooLong_; }
    /// The text. Empty if the value is an empty object, is too long, or was not written.
    std::string_view text() const;

private:
    void put(std::string_view value);

    std::size_t longest_;
    std::string text_, key_;
    bool first_ = true, hasKey_ = false, tooLong_ = false;
};

} // namespace kvscope
