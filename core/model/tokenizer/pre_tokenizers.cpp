#include "core/model/tokenizer/makers.h"
#include "core/model/tokenizer/pattern.h"
#include "core/model/tokenizer/unicode.h"

#include <fmt/format.h>

namespace kvscope::tokenizing {

void Pieces::rewrite(const std::function<void(std::string_view, bool, std::string&)>& change) {
    std::string rewritten;
    rewritten.reserve(text.size() + text.size() / 4);
    for (Range& range : ranges) {
        const std::size_t begin = rewritten.size();
        change(view(range), startsPrompt && range.begin == 0, rewritten);
        range = {begin, rewritten.size()};
    }
    if (!ranges.empty() && ranges.front().begin != 0) startsPrompt = false;
    text = std::move(rewritten);
}

namespace {

// The split that byte-level BPE applies when it is told to use its own pattern (GPT-2).
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The tokenizers library's punctuation: ASCII's, and what Unicode 8 calls so. What came later is none there (in
// versions up to 16, so that it does not matter which of them PCRE2 knows), and two characters have been reclassified
// since.
constexpr const char* kPunctuation =
    R"((?![\x{61D}\x{9FD}\x{A76}\x{C77}\x{C84}\x{1B4E}\x{1B4F}\x{1B7D}-\x{1B7F}\x{2E43}-\x{2E4F}\x{2E52}-\x{2E5D})"
    R"(\x{10D6E}\x{10EAD}\x{10ED0}\x{10F55}-\x{10F59}\x{10F86}-\x{10F89}\x{113D4}-\x{113D8}\x{1144B}-\x{1144F})"
    R"(\x{1145A}-\x{1145D}\x{11660}-\x{1166C}\x{116B9}\x{1183B}\x{11944}-\x{11946}\x{119E2}\x{11A3F}-\x{11A46})"
    R"(\x{11A9A}-\x{11AA2}\x{11B00}-\x{11B09}\x{11BE1}\x{11C41}-\x{11C45}\x{11C70}\x{11C71}\x{11EF7}\x{11EF8})"
    R"(\x{11F43}-\x{11F4F}\x{11FFF}\x{12FF1}\x{12FF2}\x{16D6D}-\x{16D6F}\x{16E97}-\x{16E9A}\x{16FE2}\x{1E5FF})"
    R"(\x{1E95E}\x{1E95F}])[!-/:-@\[-`{-~\p{P}\x{166D}\x{111C9}])";

enum class Behavior { Isolated, Removed, Contiguous, MergedWithPrevious, MergedWithNext };

class Split final : public PreTokenizer {
public:
    Split(Pattern pattern, Behavior behavior, bool invert)
        : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

    void apply(Pieces& pieces) const override {
        std::vector<Pieces::Range> out;
        out.reserve(pieces.ranges.size() * 2);
        Pattern::Search search(pattern_);
        std::vector<Part> parts;
        for (const Pieces::Range piece : pieces.ranges) {
            parts.clear();
            std::size_t done = piece.begin;
            search.each(pieces.view(piece), [&](std::size_t begin, std::size_t end) {
                begin += piece.begin, end += piece.begin;
                if (begin > done) parts.push_back({{done, begin}, invert_});
                if (end > begin) parts.push_back({{begin, end}, !invert_});
                done = end;
            });
            if (done < piece.end) parts.push_back({{done, piece.end}, invert_});
            join(parts, out);
        }
        pieces.ranges = std::move(out);
    }

private:
    struct Part {
        Pieces::Range range;
        bool delimiter;
    };

    void join(const std::vector<Part>& parts, std::vector<Pieces::Range>& out) const {
        const std::size_t first = out.size();
        bool before = false; // whether the last part was a delimiter that may still be joined
        for (std::size_t i = 0; i < parts.size(); ++i) {
            const auto [range, delimiter] = parts[i];
            bool joins = false;
            switch (behavior_) {
            case Behavior::Isolated:
                break;
            case Behavior::Removed:
                if (delimiter) continue;
                break;
            case Behavior::Contiguous:
                joins = i > 0 && delimiter == parts[i - 1].delimiter;
                break;
            case Behavior::MergedWithPrevious: // only the first of several delimiters
                joins = delimiter && i > 0 && !parts[i - 1].delimiter;
                break;
            case Behavior::MergedWithNext: // only the last of several delimiters
                joins = !delimiter && before;
                break;
            }
            before = delimiter;
            if (joins && out.size() > first)
                out.back().end = range.end;
            else
                out.push_back(range);
        }
    }

    Pattern pattern_;
    Behavior behavior_;
    bool invert_;
};

class PrefixSpace final : public PreTokenizer {
    void apply(Pieces& pieces) const override {
        pieces.rewrite([](std::string_view piece, bool, std::string& out) {
            if (!piece.starts_with(' ')) out += ' ';
            out += piece;
        });
    }
};

class ByteLevel final : public PreTokenizer {
    void apply(Pieces&) const override {}
    bool makesBytes() const override { return true; }
};

class Metaspace final : public PreTokenizer {
public:
    /// `once`: a text that begins with a space gets no other
    Metaspace(std::string replacement, Prepend prepend, bool once)
        : replacement_(std::move(replacement)), prepend_(prepend), once_(once) {}
    void apply(Pieces& pieces) const override {
        pieces.rewrite([this](std::string_view piece, bool first, std::string& out) {
            const bool wanted = prepend_ == Prepend::Always || (prepend_ == Prepend::First && first);
            const bool there = once_ && (piece.starts_with(' ') || piece.starts_with(replacement_));
            if (wanted && !there) out += replacement_;
            for (const char c : piece)
                if (c == ' ')
                    out += replacement_;
                else
                    out += c;
        });
    }

private:
    std::string replacement_;
    Prepend prepend_;
    bool once_;
};

void addSplit(const Spec& spec, PreTokenizerSteps& steps, const char* expression, Behavior behavior,
              bool invert = false) {
    steps.push_back(std::make_unique<Split>(Pattern::regex(expression, spec.origin()), behavior, invert));
}

Behavior behaviorOf(const Spec& spec, const std::string& name) {
    if (name == "Isolated") return Behavior::Isolated;
    if (name == "Removed") return Behavior::Removed;
    if (name == "Contiguous") return Behavior::Contiguous;
    if (name == "MergedWithPrevious") return Behavior::MergedWithPrevious;
    if (name == "MergedWithNext") return Behavior::MergedWithNext;
    spec.unsupported(fmt::format("the split behavior \"{}\" is unknown", shown(name)));
}

} // namespace

void makePreTokenizerSequence(const Spec& spec, PreTokenizerSteps& steps) {
    if (!spec.at("pretokenizers").is_array()) spec.malformed("the pre-tokenizer sequence has no list");
    for (const Json& part : spec.at("pretokenizers")) addPreTokenizers(spec.part(part), steps);
}

void makeByteLevelPreTokenizer(const Spec& spec, PreTokenizerSteps& steps) {
    if (spec.flag("add_prefix_space", true)) steps.push_back(std::make_unique<PrefixSpace>());
    if (spec.flag("use_regex", true)) addSplit(spec, steps, kByteLevelPattern, Behavior::Isolated);
    steps.push_back(std::make_unique<ByteLevel>());
}

void makeSplit(const Spec& spec, PreTokenizerSteps& steps) {
    steps.push_back(std::make_unique<Split>(Pattern::read(spec.part(spec.at("pattern"))),
                                            behaviorOf(spec, spec.text("behavior")), spec.flag("invert", false)));
}

void makeMetaspacePreTokenizer(const Spec& spec, PreTokenizerSteps& steps) {
    const std::string replacement = spec.text("replacement");
    if (replacement.empty()) spec.malformed("the Metaspace replacement is empty");
    Prepend prepend = spec.flag("add_prefix_space", true) ? Prepend::Always : Prepend::Never; // files of old
    if (!spec.at("prepend_scheme").is_null()) {
        const std::string scheme = spec.text("prepend_scheme");
        if (scheme == "always")
            prepend = Prepend::Always;
        else if (scheme == "first")
            prepend = Prepend::First;
        else if (scheme == "never")
            prepend = Prepend::Never;
        else
            spec.unsupported(fmt::format("the prepend scheme \"{}\" is unknown", shown(scheme)));
    }
    steps.push_back(std::make_unique<Metaspace>(replacement, prepend, true));
    if (spec.flag("split", true))
        steps.push_back(std::make_unique<Split>(Pattern::plain(replacement), Behavior::MergedWithNext, false));
}

void makeDigits(const Spec& spec, PreTokenizerSteps& steps) {
    const bool single = spec.flag("individual_digits", false);
    addSplit(spec, steps, "\\p{N}", single ? Behavior::Isolated : Behavior::Contiguous);
}

void makePunctuation(const Spec& spec, PreTokenizerSteps& steps) {
    const Behavior behavior =
        spec.at("behavior").is_null() ? Behavior::Isolated : behaviorOf(spec, spec.text("behavior"));
    addSplit(spec, steps, kPunctuation, behavior);
}

void makeWhitespace(const Spec& spec, PreTokenizerSteps& steps) {
    const std::string words = R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D})"
                              R"(\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189})";
    addSplit(spec, steps, ("[" + words + "]+|[^" + words + "\\s]+").c_str(), Behavior::Removed, true);
}

void makeWhitespaceSplit(const Spec& spec, PreTokenizerSteps& steps) {
    addSplit(spec, steps, "\\s", Behavior::Removed);
}

void makeDelimiterSplit(const Spec& spec, PreTokenizerSteps& steps) {
    steps.push_back(std::make_unique<Split>(Pattern::plain(spec.text("delimiter")), Behavior::Removed, false));
}

std::unique_ptr<PreTokenizer> makeIsolatingSplit(const std::string& expression, const std::string& origin) {
    return std::make_unique<Split>(Pattern::regex(expression, origin), Behavior::Isolated, false);
}
std::unique_ptr<PreTokenizer> makeByteLevel() { return std::make_unique<ByteLevel>(); }
std::unique_ptr<PreTokenizer> makeMetaspace(Prepend prepend) {
    return std::make_unique<Metaspace>(std::string(kMetaspace), prepend, false);
}

} // namespace kvscope::tokenizing
