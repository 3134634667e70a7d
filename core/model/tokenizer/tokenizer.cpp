#include "core/model/tokenizer/tokenizer.h"

#include "base/utf8.h"
#include "core/model/tokenizer/byte_alphabet.h"
#include "core/model/tokenizer/from.h"
#include "core/model/tokenizer/parts.h"
#include "core/model/tokenizer/spec.h"
#include "core/model/tokenizer/unicode.h"

#include <algorithm>

namespace kvscope {
namespace tokenizing {

void refuseMalformed(const std::string& origin, const std::string& what) {
    throw Error(ErrorKind::BadInput, origin + ": " + what, "the file is damaged: download it again");
}
void refuseUnsupported(const std::string& origin, const std::string& what) {
    throw Error(ErrorKind::Unsupported, origin + ": " + what,
                "docs/tokenizers.md lists what tokenizers may be made of");
}

std::string TokenizerParts::normalize(std::string_view text) const {
    std::string out(text);
    for (const auto& normalizer : normalizers) normalizer->apply(out);
    return out;
}

std::int32_t TokenizerParts::find(std::string_view written) const {
    const auto added = addedIds_.find(std::string(written));
    return added != addedIds_.end() ? added->second : vocabulary.find(written);
}

void TokenizerParts::finish(const std::vector<AddedToken>& added) {
    tokens.resize(vocabulary.size());
    for (std::size_t id = 0; id < tokens.size(); ++id) {
        std::string spelled = vocabulary.at(std::int32_t(id));
        tokens[id].written = spelled;
        for (const auto& step : decoders) spelled = step->spelled(std::move(spelled));
        tokens[id].bytes = std::move(spelled);
    }
    for (const AddedToken& token : added) {
        if (tokens.size() <= std::size_t(token.id)) tokens.resize(std::size_t(token.id) + 1);
        Token& entry = tokens[token.id];
        entry = {token.content, token.content, entry.special || token.special};
        addedIds_.emplace(token.content, token.id);
        if (token.normalized)
            normalizedAdded.insert(token, normalize(token.content));
        else
            rawAdded.insert(token, token.content);
    }
}

void TokenizerParts::encodeSegment(std::string_view raw, bool startsPrompt, bool parseSpecial,
                                   std::vector<std::int32_t>& ids) const {
    std::string text = normalize(raw);
    if (normalizedAdded.empty()) return encodePieces(std::move(text), startsPrompt, ids);
    normalizedAdded.split(
        text, parseSpecial,
        [&](std::size_t begin, std::size_t end) {
            encodePieces(text.substr(begin, end - begin), startsPrompt && begin == 0, ids);
        },
        [&](std::int32_t id) { ids.push_back(id); });
}

void TokenizerParts::encodePieces(std::string text, bool startsPrompt, std::vector<std::int32_t>& ids) const {
    if (text.empty()) return;
    Pieces pieces{std::move(text), {}, startsPrompt};
    pieces.ranges.push_back({0, pieces.text.size()});
    for (const auto& step : preTokenizers) step->apply(pieces);
    constexpr std::size_t longestRemembered = 64;
    struct Place {
        std::size_t begin, count;
    };
    std::unordered_map<std::string_view, Place> seen; // words come again: where their ids are
    const bool remember = pieces.ranges.size() > 16;
    for (const Pieces::Range range : pieces.ranges) {
        const std::string_view piece = pieces.view(range);
        if (piece.empty()) continue;
        if (!remember || piece.size() > longestRemembered) {
            model->encode(piece, ids);
            continue;
        }
        const auto [entry, isNew] = seen.try_emplace(piece, Place{ids.size(), 0});
        if (isNew) {
            model->encode(piece, ids);
            entry->second.count = ids.size() - entry->second.begin;
        } else {
            for (std::size_t i = 0; i < entry->second.count; ++i) {
                const std::int32_t id = ids[entry->second.begin + i];
                ids.push_back(id);
            }
        }
    }
}

} // namespace tokenizing

Tokenizer::Tokenizer(std::string_view json, const std::string& origin, const SpecialTokenRules& rules)
    : parts_(tokenizing::partsFromJson(json, origin, rules)) {}
Tokenizer::Tokenizer(std::unique_ptr<tokenizing::TokenizerParts> parts) : parts_(std::move(parts)) {}
Tokenizer Tokenizer::fromSentencePiece(std::string_view file, const std::string& origin) {
    return fromArrays(tokenizing::readSentencePiece(file, origin), origin);
}
Tokenizer Tokenizer::fromArrays(TokenizerArrays arrays, const std::string& origin) {
    return Tokenizer(tokenizing::partsFromArrays(std::move(arrays), origin));
}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<std::int32_t> Tokenizer::encode(std::string_view raw, bool addSpecial, bool parseSpecial) const {
    constexpr std::size_t longest = std::size_t(1) << 30;
    if (raw.size() > longest)
        throw Error(ErrorKind::BadInput, "a text of more than 1 GiB is too long for a prompt", "shorten it");
    std::string text = toValidUtf8(raw);
    for (const auto& normalizer : parts_->wholeText) normalizer->apply(text);
    std::vector<std::int32_t> ids;
    if (addSpecial) ids = parts_->before;
    parts_->rawAdded.split(
        text, parseSpecial,
        [&](std::size_t begin, std::size_t end) {
            parts_->encodeSegment(std::string_view(text).substr(begin, end - begin), begin == 0, parseSpecial, ids);
        },
        [&](std::int32_t id) { ids.push_back(id); });
    if (addSpecial) ids.insert(ids.end(), parts_->after.begin(), parts_->after.end());
    return ids;
}

std::string Tokenizer::decode(const std::vector<std::int32_t>& ids) const {
    TokenStream stream(*this);
    std::string out;
    for (const std::int32_t id : ids) out += stream.push(id);
    return out + stream.finish();
}

std::string Tokenizer::bytesOf(std::int32_t id) const {
    return id >= 0 && id < vocabSize() ? parts_->tokens[id].bytes : std::string();
}
std::string Tokenizer::written(std::int32_t id) const {
    return id >= 0 && id < vocabSize() ? parts_->tokens[id].written : std::string();
}
std::optional<std::int32_t> Tokenizer::find(std::string_view written) const {
    const std::int32_t id = parts_->find(written);
    return id == tokenizing::kNoToken ? std::nullopt : std::optional(id);
}
bool Tokenizer::isSpecial(std::int32_t id) const { return id >= 0 && id < vocabSize() && parts_->tokens[id].special; }
int Tokenizer::vocabSize() const { return int(parts_->tokens.size()); }

TokenStream::TokenStream(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {
    for (const auto& step : tokenizer.parts_->decoders) steps_.push_back(step->fresh());
}
TokenStream::~TokenStream() = default;
TokenStream::TokenStream(TokenStream&&) noexcept = default;
TokenStream& TokenStream::operator=(TokenStream&&) noexcept = default;

void TokenStream::pushThrough(std::size_t step, std::string_view text, std::string& out) {
    if (step == steps_.size())
        out += text;
    else
        steps_[step]->push(text, [&](std::string_view part) { pushThrough(step + 1, part, out); });
}

std::string TokenStream::push(std::int32_t id) {
    std::string out;
    if (id < 0 || id >= tokenizer_->vocabSize() || tokenizer_->isSpecial(id)) return out;
    const std::string& written = tokenizer_->parts_->tokens[id].written;
    if (!written.empty()) pushThrough(0, written, out);
    return out;
}

std::string TokenStream::finish() {
    std::string out;
    for (std::size_t step = 0; step < steps_.size(); ++step)
        steps_[step]->finish([&](std::string_view part) { pushThrough(step + 1, part, out); });
    return out;
}

} // namespace kvscope
