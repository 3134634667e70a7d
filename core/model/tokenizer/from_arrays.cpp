// Tokenizers given as arrays: GGUF metadata and SentencePiece files.
#include "base/utf8.h"
#include "core/model/tokenizer/from.h"
#include "core/model/tokenizer/gguf_patterns.h"
#include "core/model/tokenizer/spec.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>

namespace kvscope::tokenizing {
namespace {

using Type = TokenizerArrays::Type;

Type typeOf(const TokenizerArrays& arrays, std::size_t id) {
    return arrays.types.empty() ? Type::Normal : Type(arrays.types[id]);
}

void check(const TokenizerArrays& arrays, const std::string& origin) {
    const std::size_t count = arrays.tokens.size();
    if (count == 0) refuseMalformed(origin, "the vocabulary is empty");
    if (count > std::size_t(kLargestId)) refuseMalformed(origin, "the vocabulary is too large");
    if (!arrays.types.empty() && arrays.types.size() != count)
        refuseMalformed(origin, fmt::format("{} token types for {} tokens", arrays.types.size(), count));
    for (const auto& [name, id] :
         {std::pair("BOS", arrays.bosId), std::pair("EOS", arrays.eosId), std::pair("unknown", arrays.unknownId)})
        if (id && (*id < 0 || std::size_t(*id) >= count))
            refuseMalformed(origin, fmt::format("the {} token {} is not in the vocabulary of {}", name, *id, count));
}

void checkScores(const TokenizerArrays& arrays, const std::string& origin) {
    if (arrays.scores.size() != arrays.tokens.size())
        refuseMalformed(origin, fmt::format("{} scores for {} tokens", arrays.scores.size(), arrays.tokens.size()));
    for (const float score : arrays.scores)
        if (!std::isfinite(score)) refuseMalformed(origin, "a token's score is not a number");
}

/// Byte-level BPE with the pattern that the file names.
void buildByteLevel(const TokenizerArrays& arrays, TokenizerParts& parts, bool& addsBos, const std::string& origin) {
    const NamedPattern* pattern = findGgufPattern(arrays.pre.empty() ? "default" : arrays.pre);
    if (!pattern)
        throw Error(ErrorKind::Unsupported,
                    fmt::format("{}: the pre-tokenizer '{}' is unknown", origin, shown(arrays.pre)),
                    "use the model's folder with tokenizer.json instead");
    if (pattern->composed) parts.normalizers.push_back(makeNfc(origin));
    for (const char* cut : pattern->cuts) parts.preTokenizers.push_back(makeIsolatingSplit(cut, origin));
    parts.preTokenizers.push_back(makeByteLevel());
    std::vector<std::pair<std::string_view, std::string_view>> merges;
    merges.reserve(arrays.merges.size());
    for (const std::string_view merge : arrays.merges) {
        const std::size_t space = merge.find(' ', 1);
        if (space == merge.npos) refuseMalformed(origin, fmt::format("merge {} is not a pair", merges.size()));
        merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
    }
    BpeOptions options;
    options.onBytes = true;
    options.ignoreMerges = pattern->ignoreMerges;
    parts.model = makeBpe(parts.vocabulary, merges, options, origin);
    parts.decoders.push_back(makeByteLevelDecoder());
    addsBos = pattern->addsBos;
}

void buildSentencePiece(const TokenizerArrays& arrays, TokenizerParts& parts, const std::string& origin) {
    checkScores(arrays, origin);
    const bool prefix = arrays.addSpacePrefix.value_or(true);
    if (arrays.removeExtraWhitespaces.value_or(false)) parts.wholeText.push_back(makeCollapseSpaces());
    parts.preTokenizers.push_back(makeMetaspace(!prefix                      ? Prepend::Never
                                                : arrays.prefixAfterSpecials ? Prepend::Always
                                                                             : Prepend::First));
    const std::size_t count = arrays.tokens.size();
    std::vector<bool> usable(count), unused(count);
    bool wordsStayApart = parts.vocabulary.find(kMetaspace) != kNoToken;
    for (std::size_t id = 0; id < count; ++id) {
        const Type type = typeOf(arrays, id);
        usable[id] = type == Type::Normal || type == Type::UserDefined || type == Type::Unused;
        unused[id] = type == Type::Unused;
        wordsStayApart = wordsStayApart && !(usable[id] && joinsAcrossWords(arrays.tokens[id]));
    }
    const UnknownText unknown{arrays.byteFallback, arrays.unknownId.value_or(kNoToken), true};
    if (wordsStayApart) parts.preTokenizers.push_back(makeWordCut());
    if (arrays.model == "t5") {
        for (std::size_t id = 0; id < count; ++id) usable[id] = usable[id] && !unused[id];
        parts.model =
            makeUnigram(parts.vocabulary, {arrays.scores.begin(), arrays.scores.end()}, std::move(usable), unknown);
    } else {
        parts.model = makeScoredBpe(parts.vocabulary, arrays.scores, std::move(usable), std::move(unused), unknown);
    }
    parts.decoders.push_back(makeReplaceDecoder(std::string(kMetaspace), " ", false));
    parts.decoders.push_back(makeByteFallbackDecoder());
    parts.decoders.push_back(makeFuseDecoder());
    if (prefix) parts.decoders.push_back(makeStripFront(" ", 1));
}

/// The model of a tokenizer that only knows names of ids: it encodes no text.
class NamesOnly final : public TokenModel {
public:
    explicit NamesOnly(std::string origin) : origin_(std::move(origin)) {}
    void encode(std::string_view, std::vector<std::int32_t>&) const override {
        throw Error(ErrorKind::BadInput, origin_ + " has no tokenizer.json and no tokenizer.model",
                    "give token ids (--prompt-ids), or put the model's tokenizer beside it");
    }

private:
    const std::string origin_;
};

} // namespace

std::unique_ptr<TokenizerParts> partsFromArrays(TokenizerArrays arrays, const std::string& origin) {
    check(arrays, origin);
    for (std::string& token : arrays.tokens) token = toValidUtf8(token);
    auto parts = std::make_unique<TokenizerParts>();
    parts->vocabulary = Vocabulary(arrays.tokens);
    bool addsBos = false;
    if (arrays.model == "gpt2") {
        buildByteLevel(arrays, *parts, addsBos, origin);
    } else if (arrays.model == "llama" || arrays.model == "t5") {
        buildSentencePiece(arrays, *parts, origin);
        addsBos = arrays.model == "llama";
    } else if (arrays.model == "none") {
        parts->model = std::make_unique<NamesOnly>(origin);
    } else {
        refuseUnsupported(origin, fmt::format("the tokenizer model '{}' is unknown", shown(arrays.model)));
    }
    std::vector<AddedToken> added;
    for (std::size_t id = 0; id < arrays.tokens.size(); ++id) {
        const Type type = typeOf(arrays, id);
        if (arrays.tokens[id].empty() || (type != Type::Control && type != Type::UserDefined && type != Type::Unknown))
            continue;
        AddedToken token{arrays.tokens[id], std::int32_t(id)};
        token.special = type != Type::UserDefined;
        added.push_back(std::move(token));
    }
    parts->finish(added);
    if (arrays.addBos.value_or(addsBos) && arrays.bosId) parts->before.push_back(*arrays.bosId);
    if (arrays.addEos.value_or(false) && arrays.eosId) parts->after.push_back(*arrays.eosId);
    return parts;
}

} // namespace kvscope::tokenizing
