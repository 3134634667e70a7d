#include "core/model/tokenizer/makers.h"
#include "core/model/tokenizer/pattern.h"
#include "core/model/tokenizer/unicode.h"

namespace kvscope::tokenizing {
namespace {

void needUnicodeTables(const std::string& origin, const std::string& what) {
    if (!hasUnicodeTables())
        throw Error(ErrorKind::Unsupported, origin + ": " + what + " needs Unicode's tables, which this build lacks",
                    "install libutf8proc-dev and build again");
}

class Form final : public Normalizer {
public:
    explicit Form(NormalForm form) : form_(form) {}
    void apply(std::string& text) const override { text = normalized(text, form_); }

private:
    NormalForm form_;
};

class Lowercase final : public Normalizer {
    void apply(std::string& text) const override { text = lowercased(text); }
};

class StripAccents final : public Normalizer {
    void apply(std::string& text) const override { text = withoutMarks(text); }
};

class StripSpaces final : public Normalizer {
public:
    StripSpaces(bool left, bool right) : left_(left), right_(right) {}
    void apply(std::string& text) const override {
        if (right_) text.resize(text.size() - trailingWhiteSpace(text));
        if (left_) text.erase(0, leadingWhiteSpace(text));
    }

private:
    bool left_, right_;
};

class Prefix final : public Normalizer {
public:
    explicit Prefix(std::string prefix) : prefix_(std::move(prefix)) {}
    void apply(std::string& text) const override {
        if (!text.empty()) text.insert(0, prefix_);
    }

private:
    std::string prefix_;
};

class Replace final : public Normalizer {
public:
    Replace(Pattern pattern, std::string to) : pattern_(std::move(pattern)), to_(std::move(to)) {}
    void apply(std::string& text) const override {
        std::string out;
        std::size_t done = 0;
        Pattern::Search(pattern_).each(text, [&](std::size_t begin, std::size_t end) {
            out.append(text, done, begin - done).append(to_);
            done = end;
        });
        text = out.append(text, done);
    }

private:
    Pattern pattern_;
    std::string to_;
};

/// SentencePiece's remove_extra_whitespaces: no spaces around the text, one between words.
class CollapseSpaces final : public Normalizer {
    void apply(std::string& text) const override {
        std::string out;
        for (const char c : text)
            if (c != ' ' || (!out.empty() && out.back() != ' ')) out += c;
        // A written U+2581 is no space, but at the end it goes as one: SentencePiece looks there after replacing
        // spaces.
        for (bool more = true; more;) {
            more = false;
            for (const std::string_view space : {std::string_view(" "), std::string_view(kMetaspace)})
                if (out.ends_with(space)) out.resize(out.size() - space.size()), more = true;
        }
        text = std::move(out);
    }
};

} // namespace

void makeNormalizerSequence(const Spec& spec, NormalizerSteps& steps) {
    if (!spec.at("normalizers").is_array()) spec.malformed("the normalizer sequence has no list");
    for (const Json& part : spec.at("normalizers")) addNormalizers(spec.part(part), steps);
}

void makeNormalForm(const Spec& spec, NormalizerSteps& steps) {
    const std::string type = spec.type();
    needUnicodeTables(spec.origin(), "the normalizer " + type);
    steps.push_back(std::make_unique<Form>(type == "NFC"    ? NormalForm::Nfc
                                           : type == "NFD"  ? NormalForm::Nfd
                                           : type == "NFKC" ? NormalForm::Nfkc
                                                            : NormalForm::Nfkd));
}

void makeLowercase(const Spec& spec, NormalizerSteps& steps) {
    needUnicodeTables(spec.origin(), "the normalizer Lowercase");
    steps.push_back(std::make_unique<Lowercase>());
}

void makeStripAccents(const Spec& spec, NormalizerSteps& steps) {
    needUnicodeTables(spec.origin(), "the normalizer StripAccents");
    steps.push_back(std::make_unique<StripAccents>());
}

void makeStripSpaces(const Spec& spec, NormalizerSteps& steps) {
    steps.push_back(std::make_unique<StripSpaces>(spec.flag("strip_left", true), spec.flag("strip_right", true)));
}

void makePrepend(const Spec& spec, NormalizerSteps& steps) {
    steps.push_back(std::make_unique<Prefix>(spec.text("prepend")));
}

void makeReplaceNormalizer(const Spec& spec, NormalizerSteps& steps) {
    steps.push_back(std::make_unique<Replace>(Pattern::read(spec.part(spec.at("pattern"))), spec.text("content")));
}

void makePrecompiled(const Spec& spec, NormalizerSteps&) {
    if (!spec.at("precompiled_charsmap").is_null() && !spec.text("precompiled_charsmap").empty())
        spec.unsupported("the normalizer \"Precompiled\" has a character map");
}

std::unique_ptr<Normalizer> makeNfc(const std::string& origin) {
    needUnicodeTables(origin, "its normalisation (NFC)");
    return std::make_unique<Form>(NormalForm::Nfc);
}
std::unique_ptr<Normalizer> makeReplaceText(std::string from, std::string to) {
    return std::make_unique<Replace>(Pattern::plain(std::move(from)), std::move(to));
}
std::unique_ptr<Normalizer> makeCollapseSpaces() { return std::make_unique<CollapseSpaces>(); }

} // namespace kvscope::tokenizing
