// Buffered text output that notices when the stream fails.
#pragma once

#include <cstdint>
#include <fmt/format.h>
#include <iosfwd>
#include <string>
#include <string_view>

namespace kvscope {

/// Times of a damaged file may be any number: the sum wraps around, which is wrong and harmless.
inline std::int64_t sumOf(std::int64_t a, std::int64_t b) { return std::int64_t(std::uint64_t(a) + std::uint64_t(b)); }

class LineWriter {
public:
    explicit LineWriter(std::ostream& out) : out_(out) {}
    template <class... Values> void add(fmt::format_string<Values...> format, Values&&... values) {
        fmt::format_to(std::back_inserter(buffer_), format, std::forward<Values>(values)...);
    }
    void addText(std::string_view text) { buffer_ += text; }
    /// A CSV field: quoted when it holds a comma, a quote, a line break or space at its ends.
    void addCsv(std::string_view text);
    /// From now on addCsv puts an apostrophe before text that a spreadsheet would take for a formula.
    void guardFormulas() { guardsFormulas_ = true; }
    /// A JSON string with its quotes; malformed UTF-8 becomes U+FFFD.
    void addJson(std::string_view text);
    /// Hands full buffers to the stream. Call once a row.
    void endRow() {
        if (buffer_.size() >= kBufferBytes) flush();
    }
    /// @throws Error(Storage) if the stream does not take it
    void flush();

private:
    static constexpr std::size_t kBufferBytes = 1 << 18;
    std::ostream& out_;
    std::string buffer_;
    bool guardsFormulas_ = false;
};

} // namespace kvscope
