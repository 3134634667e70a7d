#include "core/model/text_files.h"

#include "base/error.h"
#include "base/json_reading.h"
#include "core/model/safetensors.h"
#include "core/model/tokenizer/from.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvscope {
namespace fs = std::filesystem;

namespace {

std::optional<bool> flagOf(const nlohmann::json& json, const char* key) {
    const auto& value = member(json, key);
    return value.is_boolean() ? std::optional(value.get<bool>()) : std::nullopt;
}

/// The chat template in `value`, which is a template's text or a list of named templates, of which the one named
/// "default" is meant. Empty: there is none.
std::string templateOf(const nlohmann::json& value) {
    if (value.is_string()) return value.get<std::string>();
    if (value.is_array())
        for (const auto& entry : value)
            if (member(entry, "name") == "default" && member(entry, "template").is_string())
                return member(entry, "template").get<std::string>();
    return {};
}

/// Reads tokenizer.model. What tokenizer_config.json says about BOS and EOS comes before what the file's kind means. A
/// token that it asks for and does not name, or that the file does not have, is the file's own.
Tokenizer tokenizerOfModel(const fs::path& path, const SpecialTokenRules& rules) {
    TokenizerArrays arrays = tokenizing::readSentencePiece(textOfFile(path), path.string());
    const auto apply = [&](std::optional<bool> adds, const std::string& token, std::optional<bool>& add,
                           std::optional<std::int32_t>& id) {
        if (adds) add = adds;
        for (std::size_t i = 0; i < arrays.tokens.size(); ++i)
            if (!token.empty() && arrays.tokens[i] == token) id = std::int32_t(i);
    };
    apply(rules.addBos, rules.bosToken, arrays.addBos, arrays.bosId);
    apply(rules.addEos, rules.eosToken, arrays.addEos, arrays.eosId);
    return Tokenizer::fromArrays(std::move(arrays), path.string());
}

/// The names of a list of templates.
std::string templateNames(std::string_view tokenizerConfig) {
    std::vector<std::string> names;
    const auto json = parseJson(tokenizerConfig);
    if (const auto& list = member(json, "chat_template"); list.is_array())
        for (const auto& entry : list)
            if (const auto& name = member(entry, "name"); name.is_string())
                names.push_back(shown(name.get<std::string>()));
    return fmt::format("{}", fmt::join(names, ", "));
}

} // namespace

TokenizerConfig TokenizerConfig::parse(std::string_view text, const std::string& origin) {
    const auto json = parseJson(text);
    if (!json.is_object())
        throw Error(ErrorKind::BadInput, origin + ": this is not valid JSON", "the file is damaged: download it again");
    TokenizerConfig config;
    for (const auto& [key, value] : json.items()) {
        if (!key.ends_with("_token")) continue;
        const auto& content = value.is_object() ? member(value, "content") : value;
        if (content.is_string()) config.specialTokens[key] = content.get<std::string>();
    }
    const auto token = [&](const char* key) {
        const auto found = config.specialTokens.find(key);
        return found == config.specialTokens.end() ? std::string() : found->second;
    };
    config.rules = {token("bos_token"), token("eos_token"), flagOf(json, "add_bos_token"),
                    flagOf(json, "add_eos_token")};
    config.chatTemplate = templateOf(member(json, "chat_template"));
    return config;
}

TextFiles readTextFiles(const fs::path& folder) {
    std::error_code ignored;
    const auto there = [&](const char* name) { return fs::exists(folder / name, ignored); };
    TokenizerConfig config;
    std::string names;
    if (const fs::path path = folder / "tokenizer_config.json"; fs::exists(path, ignored)) {
        const std::string stated = textOfFile(path);
        config = TokenizerConfig::parse(stated, path.string());
        if (config.chatTemplate.empty()) names = templateNames(stated);
    }
    const bool json = there("tokenizer.json");
    if (!json && !there("tokenizer.model"))
        throw Error(ErrorKind::BadInput,
                    fmt::format("{} has no tokenizer.json and no tokenizer.model", folder.string()),
                    "download the checkpoint again, with all its files");
    const fs::path path = folder / (json ? "tokenizer.json" : "tokenizer.model");
    TextFiles files{json ? Tokenizer(textOfFile(path), path.string(), config.rules)
                         : tokenizerOfModel(path, config.rules),
                    nullptr,
                    {}};
    std::string origin = (folder / "tokenizer_config.json").string(), text = config.chatTemplate;
    if (there("chat_template.jinja")) { // newer folders keep it apart
        origin = (folder / "chat_template.jinja").string();
        text = textOfFile(origin);
    }
    if (text.empty() && !names.empty())
        files.chatProblem = fmt::format("{}: of its chat templates ({}) none is named 'default'", origin, names);
    if (text.empty()) return files;
    try {
        files.chat = std::make_shared<const ChatTemplate>(text, config.specialTokens, origin);
    } catch (const Error& error) {
        files.chatProblem = oneLine(error);
    }
    return files;
}

} // namespace kvscope
