#define PCRE2_CODE_UNIT_WIDTH 8
#include "core/model/tokenizer/pattern.h"

#include <fmt/format.h>
#include <pcre2.h>

namespace kvscope::tokenizing {
namespace {

struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
    void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
    void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
template <class T> using Owned = std::unique_ptr<T, Free>;

/// Class intersections ([a&&b]) mean something else to PCRE2: silently other matches would be worse than a refusal.
bool hasClassIntersection(const std::string& expression) {
    bool inClass = false;
    for (std::size_t i = 0; i < expression.size(); ++i) {
        const char c = expression[i];
        if (c == '\\')
            ++i;
        else if (c == '[')
            inClass = true;
        else if (c == ']')
            inClass = false;
        else if (inClass && c == '&' && i + 1 < expression.size() && expression[i + 1] == '&')
            return true;
    }
    return false;
}

/// \s as Unicode's White_Space: PCRE2's own also takes U+180E, which is none since Unicode 6.3. \w as Oniguruma has it:
/// with marks (PCRE2 learned of them in 10.43), connectors and the symbols that count as letters, and outside of
/// classes also with the superscripts and fractions of Latin-1.
std::string withUnicodeClasses(const std::string& expression) {
    static const std::string spaces =
        R"(\x09-\x0D\x20\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
    static const std::string words = R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc})"
                                     R"(\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";
    static const std::string word = "[" + words + R"(\x{B2}\x{B3}\x{B9}\x{BC}-\x{BE}])", noWord = "[^" + word.substr(1);
    static const std::string edge = "(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))",
                             noEdge = "(?:(?<=" + word + ")(?=" + word + ")|(?<!" + word + ")(?!" + word + "))";
    std::string out;
    bool inClass = false;
    for (std::size_t i = 0; i < expression.size(); ++i) {
        const char c = expression[i];
        if (c != '\\' || i + 1 == expression.size()) {
            if (c == '[')
                inClass = true;
            else if (c == ']')
                inClass = false;
            out += c;
            continue;
        }
        const char escaped = expression[++i];
        if (escaped == 's')
            out += inClass ? spaces : "[" + spaces + "]";
        else if (escaped == 'w')
            out += inClass ? words : word;
        else if (escaped == 'S' && !inClass)
            out += "[^" + spaces + "]";
        else if (escaped == 'W' && !inClass)
            out += noWord;
        else if (escaped == 'b' && !inClass)
            out += edge;
        else if (escaped == 'B' && !inClass)
            out += noEdge;
        else
            out += c, out += escaped;
    }
    return out;
}

} // namespace

struct Pattern::Compiled {
    std::string text; // looked for as it is, when there is no code
    Owned<pcre2_code> code;
    Owned<pcre2_match_context> limits;
};

struct Pattern::Search::State {
    Owned<pcre2_match_data> match;
};

Pattern::Pattern() = default;
Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;

Pattern Pattern::plain(std::string text) {
    auto compiled = std::make_unique<Compiled>();
    compiled->text = std::move(text);
    Pattern pattern;
    pattern.compiled_ = std::move(compiled);
    return pattern;
}

Pattern Pattern::regex(const std::string& expression, const std::string& origin) {
    if (hasClassIntersection(expression)) refuseUnsupported(origin, "a pattern intersects character classes");
    const std::string translated = withUnicodeClasses(expression);
    auto compiled = std::make_unique<Compiled>();
    const Owned<pcre2_compile_context> dialect(pcre2_compile_context_create(nullptr));
    compiled->limits.reset(pcre2_match_context_create(nullptr));
    if (!dialect || !compiled->limits)
        throw Error(ErrorKind::OutOfMemory, origin + ": there is no memory for the split pattern");
    // Such files are written for Oniguruma's Ruby syntax, in which ^ and $ match at lines, and only
    // ends a line.
    pcre2_set_newline(dialect.get(), PCRE2_NEWLINE_LF);
    int code = 0;
    PCRE2_SIZE where = 0;
    compiled->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                       PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &where,
                                       dialect.get()));
    if (!compiled->code)
        refuseUnsupported(origin, fmt::format("the split pattern does not compile at character {}", where));
    pcre2_jit_compile(compiled->code.get(), PCRE2_JIT_COMPLETE);  // without it the interpreter matches the same
    pcre2_set_match_limit(compiled->limits.get(), 1'000'000'000); // long runs are no mistake
    Pattern pattern;
    pattern.compiled_ = std::move(compiled);
    return pattern;
}

Pattern Pattern::read(const Spec& spec) {
    if (spec.at("Regex").is_string()) return regex(spec.text("Regex"), spec.origin());
    if (spec.at("String").is_string()) return plain(spec.text("String"));
    spec.malformed("a pattern is neither a text nor a regular expression");
}

Pattern::Search::Search(const Pattern& pattern) : compiled_(*pattern.compiled_), state_(std::make_unique<State>()) {
    if (!compiled_.code) return;
    state_->match.reset(pcre2_match_data_create_from_pattern(compiled_.code.get(), nullptr));
    if (!state_->match) throw Error(ErrorKind::OutOfMemory, "there is no memory to look for the tokenizer's pattern");
}

Pattern::Search::~Search() = default;

bool Pattern::Search::next(std::string_view text, std::size_t from, std::size_t& begin, std::size_t& end) {
    if (!compiled_.code) {
        if (compiled_.text.empty()) return false;
        begin = text.find(compiled_.text, from);
        end = begin + compiled_.text.size();
        return begin != text.npos;
    }
    const auto find = [&](std::uint32_t options) {
        return pcre2_match(compiled_.code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                           PCRE2_NO_UTF_CHECK | options, state_->match.get(), compiled_.limits.get());
    };
    int found = find(0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = find(PCRE2_NO_JIT); // the JIT's stack alone is limited
    if (found == PCRE2_ERROR_NOMATCH) return false;
    if (found < 0)
        throw Error(ErrorKind::OutOfMemory, "the tokenizer's pattern ran out of memory on this text",
                    "use a shorter text");
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(state_->match.get());
    begin = range[0], end = std::max(range[0], range[1]); // \K may turn them around
    return true;
}

} // namespace kvscope::tokenizing
