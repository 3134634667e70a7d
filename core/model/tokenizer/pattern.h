// A regular expression or a plain text to look for. Matching is thread-safe.
#pragma once

#include "core/model/tokenizer/spec.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace kvscope::tokenizing {

class Pattern {
public:
    /// Regular expression in the dialect of tokenizer.json, matched on characters. @throws Error
    static Pattern regex(const std::string& expression, const std::string& origin);
    /// Looks for the text itself; an empty text is found nowhere.
    static Pattern plain(std::string text);
    /// {"Regex": ...} or {"String": ...}
    static Pattern read(const Spec& spec);
    ~Pattern();
    Pattern(Pattern&&) noexcept;
    Pattern& operator=(Pattern&&) noexcept;

    /// Matching state that may be used for many texts, by one thread.
    class Search;

private:
    struct Compiled;
    Pattern();
    std::unique_ptr<const Compiled> compiled_;
};

class Pattern::Search {
public:
    explicit Search(const Pattern& pattern);
    ~Search();
    Search(const Search&) = delete;
    Search& operator=(const Search&) = delete;
    /// Calls found(begin, end) for every match in valid UTF-8, left to right, not overlapping; empty ones too.
    template <class Found> void each(std::string_view text, const Found& found) {
        std::size_t from = 0, begin = 0, end = 0;
        while (from <= text.size() && next(text, from, begin, end)) {
            found(begin, end);
            from = end > begin ? end : end + 1;
            while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80) ++from;
        }
    }

private:
    bool next(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end);
    const Compiled& compiled_;
    struct State;
    std::unique_ptr<State> state_;
};

} // namespace kvscope::tokenizing
