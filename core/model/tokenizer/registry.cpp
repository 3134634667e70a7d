// Every component of tokenizer.json that is understood, by the name the file gives it.
#include "core/model/tokenizer/components.h"
#include "core/model/tokenizer/makers.h"

#include <fmt/format.h>

namespace kvscope::tokenizing {

std::span<const ComponentEntry<Normalizer>> normalizers() {
    static constexpr ComponentEntry<Normalizer> entries[] = {
        {"Sequence", makeNormalizerSequence},
        {"NFC", makeNormalForm},
        {"NFD", makeNormalForm},
        {"NFKC", makeNormalForm},
        {"NFKD", makeNormalForm},
        {"Lowercase", makeLowercase},
        {"StripAccents", makeStripAccents},
        {"Strip", makeStripSpaces},
        {"Prepend", makePrepend},
        {"Replace", makeReplaceNormalizer},
        {"Precompiled", makePrecompiled},
    };
    return entries;
}

std::span<const ComponentEntry<PreTokenizer>> preTokenizers() {
    static constexpr ComponentEntry<PreTokenizer> entries[] = {
        {"Sequence", makePreTokenizerSequence},
        {"ByteLevel", makeByteLevelPreTokenizer},
        {"Split", makeSplit},
        {"Metaspace", makeMetaspacePreTokenizer},
        {"Digits", makeDigits},
        {"Punctuation", makePunctuation},
        {"Whitespace", makeWhitespace},
        {"WhitespaceSplit", makeWhitespaceSplit},
        {"CharDelimiterSplit", makeDelimiterSplit},
    };
    return entries;
}

std::span<const ComponentEntry<DecodeStep>> decodeSteps() {
    static constexpr ComponentEntry<DecodeStep> entries[] = {
        {"Sequence", makeDecoderSequence},
        {"ByteLevel", makeByteLevelDecodeStep},
        {"Metaspace", makeMetaspaceDecoder},
        {"ByteFallback", makeByteFallbackStep},
        {"Fuse", makeFuse},
        {"Strip", makeStripDecoder},
        {"Replace", makeReplaceStep},
    };
    return entries;
}

namespace {

template <class Component>
void add(const Spec& spec, const char* what, std::span<const ComponentEntry<Component>> entries,
         std::vector<std::unique_ptr<Component>>& steps) {
    if (spec.json().is_null()) return;
    if (!spec.at("type").is_string()) spec.malformed(fmt::format("the {} has no type", what));
    const std::string type = spec.type();
    for (const auto& entry : entries)
        if (type == entry.type) return entry.make(spec, steps);
    spec.unsupported(fmt::format("the {} \"{}\" is unknown", what, shown(type)));
}

} // namespace

void addNormalizers(const Spec& spec, std::vector<std::unique_ptr<Normalizer>>& steps) {
    add(spec, "normalizer", normalizers(), steps);
}
void addPreTokenizers(const Spec& spec, std::vector<std::unique_ptr<PreTokenizer>>& steps) {
    if (!spec.json().is_null() && !steps.empty() && steps.back()->makesBytes())
        spec.unsupported("a pre-tokenizer follows ByteLevel");
    add(spec, "pre-tokenizer", preTokenizers(), steps);
}
void addDecodeSteps(const Spec& spec, std::vector<std::unique_ptr<DecodeStep>>& steps) {
    add(spec, "decoder", decodeSteps(), steps);
}

} // namespace kvscope::tokenizing
