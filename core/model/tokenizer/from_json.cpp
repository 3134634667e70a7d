// tokenizer.json, the file of the Hugging Face `tokenizers` library.
#include "core/model/tokenizer/from.h"
#include "core/model/tokenizer/makers.h"
#include "core/model/tokenizer/spec.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <string_view>
#include <unordered_map>

namespace kvscope::tokenizing {
namespace {

std::vector<AddedToken> readAdded(const Spec& file) {
    std::vector<AddedToken> tokens;
    const Json& list = file.at("added_tokens");
    if (list.is_null()) return tokens;
    if (!list.is_array()) file.malformed("added_tokens is not a list");
    for (const Json& entry : list) {
        const Spec spec = file.part(entry);
        const Json &id = spec.at("id"), &content = spec.at("content");
        if (!id.is_number_unsigned() || id.get<std::uint64_t>() > std::uint64_t(kLargestId) || !content.is_string() ||
            content.get_ref<const std::string&>().empty())
            file.malformed("an added token lacks its id or text");
        AddedToken token{content.get<std::string>(), id.get<std::int32_t>()};
        token.special = spec.flag("special", false);
        token.stripLeft = spec.flag("lstrip", false);
        token.stripRight = spec.flag("rstrip", false);
        token.singleWord = spec.flag("single_word", false);
        token.normalized = spec.flag("normalized", !token.special);
        tokens.push_back(std::move(token));
    }
    return tokens;
}

/// The library numbers added tokens itself, in their order: those of the vocabulary have their ids there, others come
/// behind it. Refuses a file that states others: what transformers computes with it has the library's ids.
void checkAddedIds(const Spec& file, const std::vector<AddedToken>& added, const Vocabulary& vocabulary) {
    const auto size = std::int64_t(member(file.at("model"), "vocab").size());
    std::unordered_map<std::string_view, std::int64_t> ids;
    std::int64_t next = size;
    for (const AddedToken& token : added) {
        const std::int32_t known = vocabulary.find(token.content);
        const auto [at, isNew] = ids.emplace(token.content, known != kNoToken ? known : next);
        if (isNew) next = std::max(next, at->second + 1);
        if (at->second != token.id)
            file.unsupported(fmt::format("the added token '{}' has the id {}, and the tokenizers library gives it {}",
                                         shown(token.content), token.id, at->second));
    }
}

Vocabulary readBpeVocabulary(const Spec& model) {
    const Json& entries = model.at("vocab");
    if (!entries.is_object() || entries.empty()) model.malformed("the vocabulary is missing");
    std::int64_t largest = 0;
    for (const auto& [text, id] : entries.items()) {
        if (!id.is_number_unsigned() || id.get<std::uint64_t>() > std::uint64_t(kLargestId))
            model.malformed(fmt::format("the entry '{}' has no proper id", shown(text)));
        largest = std::max(largest, id.get<std::int64_t>());
    }
    std::vector<std::string> written(std::size_t(largest) + 1);
    std::vector<bool> taken(written.size());
    for (const auto& [text, id] : entries.items()) {
        const auto index = id.get<std::size_t>();
        if (taken[index]) model.malformed(fmt::format("two entries have the id {}", index));
        taken[index] = true;
        written[index] = text;
    }
    return Vocabulary(std::move(written));
}

/// @return the pairs that are merged, as views into the document
std::vector<std::pair<std::string_view, std::string_view>> readMerges(const Spec& model) {
    const Json& list = model.at("merges");
    if (!list.is_array()) model.malformed("the merges are missing");
    std::vector<std::pair<std::string_view, std::string_view>> merges;
    merges.reserve(list.size());
    for (const Json& entry : list) {
        if (entry.is_string()) {
            const std::string_view text = entry.get_ref<const std::string&>();
            const auto space = text.find(' ');
            if (space == text.npos) model.malformed(fmt::format("merge {} is not a pair", merges.size()));
            merges.emplace_back(text.substr(0, space), text.substr(space + 1));
        } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
            merges.emplace_back(entry[0].get_ref<const std::string&>(), entry[1].get_ref<const std::string&>());
        } else {
            model.malformed(fmt::format("merge {} is not a pair", merges.size()));
        }
    }
    return merges;
}

void readBpe(const Spec& model, TokenizerParts& parts) {
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
        if (const Json& value = model.at(key); !value.is_null() && value != Json("") && value != 0.0)
            model.unsupported(fmt::format("'{}' is set", key));
    parts.vocabulary = readBpeVocabulary(model);
    const auto merges = readMerges(model);
    BpeOptions options;
    options.ignoreMerges = model.flag("ignore_merges", false);
    options.onBytes = !parts.preTokenizers.empty() && parts.preTokenizers.back()->makesBytes();
    options.unknown.byteFallback = model.flag("byte_fallback", false) && !options.onBytes;
    options.unknown.fuse = model.flag("fuse_unk", false);
    if (!model.at("unk_token").is_null()) {
        options.unknown.unknown = parts.vocabulary.find(model.text("unk_token"));
        if (options.unknown.unknown == kNoToken) model.malformed("the unknown token is not in the vocabulary");
    }
    parts.model = makeBpe(parts.vocabulary, merges, options, model.origin());
    std::string both;
    const bool wordsStayApart = !options.onBytes && !options.ignoreMerges &&
                                parts.vocabulary.find(kMetaspace) != kNoToken &&
                                std::none_of(merges.begin(), merges.end(), [&](const auto& merge) {
                                    return joinsAcrossWords(both.assign(merge.first).append(merge.second));
                                });
    if (wordsStayApart) parts.preTokenizers.push_back(makeWordCut());
}

void readUnigram(const Spec& model, TokenizerParts& parts) {
    const Json& entries = model.at("vocab");
    if (!entries.is_array() || entries.empty()) model.malformed("the vocabulary is missing");
    if (entries.size() > std::size_t(kLargestId)) model.malformed("the vocabulary is too large");
    std::vector<std::string> written;
    std::vector<double> scores;
    for (const Json& entry : entries) {
        if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number() ||
            !std::isfinite(entry[1].get<double>()))
            model.malformed(fmt::format("token {} is not a pair of text and score", written.size()));
        written.push_back(entry[0].get<std::string>());
        scores.push_back(entry[1].get<double>());
    }
    parts.vocabulary = Vocabulary(std::move(written));
    UnknownText unknown{model.flag("byte_fallback", false), kNoToken, true};
    if (const Json& id = model.at("unk_id"); !id.is_null()) {
        if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= scores.size())
            model.malformed("the unknown token is not in the vocabulary");
        unknown.unknown = id.get<std::int32_t>();
    }
    if (!parts.preTokenizers.empty() && parts.preTokenizers.back()->makesBytes())
        model.unsupported("a Unigram model works on bytes");
    std::vector<bool> usable(scores.size(), true);
    parts.model = makeUnigram(parts.vocabulary, std::move(scores), std::move(usable), unknown);
}

/// Reads the model, by the name that the file gives it. Old files may leave the name out.
void readModel(const Spec& model, TokenizerParts& parts) {
    static constexpr struct {
        const char* type;
        void (*read)(const Spec&, TokenizerParts&);
    } models[] = {{"BPE", readBpe}, {"Unigram", readUnigram}};
    if (!model.json().is_object()) model.malformed("there is no model");
    const Json& type = model.at("type");
    if (type.is_null()) return readBpe(model, parts);
    for (const auto& entry : models)
        if (type == entry.type) return entry.read(model, parts);
    model.unsupported(fmt::format("the model type {} is unknown", shownJson(type)));
}

std::vector<std::int32_t> idsOfSpecial(const Spec& spec, const std::string& name, const TokenizerParts& parts) {
    std::vector<std::int32_t> ids;
    if (const Json& listed = member(member(spec.at("special_tokens"), name.c_str()), "ids"); listed.is_array()) {
        for (const Json& id : listed) {
            if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= parts.tokens.size())
                spec.malformed(fmt::format("the post-processor's token '{}' has no proper id", shown(name)));
            ids.push_back(id.get<std::int32_t>());
        }
        return ids;
    }
    const std::int32_t id = parts.find(name);
    if (id == kNoToken) spec.malformed(fmt::format("the post-processor names the unknown token '{}'", shown(name)));
    return {id};
}

/// templates: how many the file had before this part.
void readPostProcessor(const Spec& spec, TokenizerParts& parts, int& templates) {
    if (spec.json().is_null()) return;
    if (!spec.at("type").is_string()) spec.malformed("the post-processor has no type");
    const std::string type = spec.type();
    if (type == "ByteLevel") return;
    if (type == "Sequence") {
        if (!spec.at("processors").is_array()) spec.malformed("the post-processor sequence has no list");
        for (const Json& part : spec.at("processors")) readPostProcessor(spec.part(part), parts, templates);
        return;
    }
    if (type != "TemplateProcessing")
        spec.unsupported(fmt::format("the post-processor \"{}\" is unknown", shown(type)));
    if (templates++ > 0)
        spec.unsupported("the post-processor has two templates"); // the second one takes a pair of texts
    if (!spec.at("single").is_array()) spec.malformed("the post-processor's template is missing");
    bool seenText = false;
    for (const Json& piece : spec.at("single")) {
        if (!member(piece, "Sequence").is_null()) {
            if (seenText) spec.unsupported("the post-processor repeats the text");
            seenText = true;
            continue;
        }
        const Json& name = member(member(piece, "SpecialToken"), "id");
        if (!name.is_string()) spec.malformed("the post-processor's template is malformed");
        for (const std::int32_t id : idsOfSpecial(spec, name.get<std::string>(), parts))
            (seenText ? parts.after : parts.before).push_back(id);
    }
    if (!seenText) spec.malformed("the post-processor's template leaves the text out");
}

/// tokenizer_config.json is applied last: where it says whether there is a BOS, or an EOS, the template of
/// tokenizer.json is not used there. A token that it asks for and does not name leaves the template as it is.
void applyRules(const SpecialTokenRules& rules, TokenizerParts& parts) {
    const auto apply = [&](std::optional<bool> adds, const std::string& token, std::vector<std::int32_t>& edge) {
        const std::int32_t id = parts.find(token);
        if (!adds || (*adds && id == kNoToken)) return;
        edge.clear();
        if (*adds) edge.push_back(id);
    };
    apply(rules.addBos, rules.bosToken, parts.before);
    apply(rules.addEos, rules.eosToken, parts.after);
}

} // namespace

std::unique_ptr<TokenizerParts> partsFromJson(std::string_view text, const std::string& origin,
                                              const SpecialTokenRules& rules) {
    const Json json = parseJson(text);
    const Spec file(json, origin);
    if (json.is_discarded() || !json.is_object()) file.malformed("this is not valid JSON");
    auto parts = std::make_unique<TokenizerParts>();
    addNormalizers(file.part(file.at("normalizer")), parts->normalizers);
    addPreTokenizers(file.part(file.at("pre_tokenizer")), parts->preTokenizers);
    readModel(file.part(file.at("model")), *parts);
    addDecodeSteps(file.part(file.at("decoder")), parts->decoders);
    if (parts->decoders.empty()) parts->decoders.push_back(makeSpaceJoiner());
    const std::vector<AddedToken> added = readAdded(file);
    checkAddedIds(file, added, parts->vocabulary);
    parts->finish(added);
    int templates = 0;
    readPostProcessor(file.part(file.at("post_processor")), *parts, templates);
    applyRules(rules, *parts);
    return parts;
}

} // namespace kvscope::tokenizing
