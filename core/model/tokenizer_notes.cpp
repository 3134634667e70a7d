#include "core/model/tokenizer_notes.h"

#include "base/json_reading.h"
#include "core/model/safetensors.h"
#include "core/model/text_files.h"

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>

namespace kvscope {
namespace fs = std::filesystem;

namespace {

using Names = std::set<std::string>;

/// The post-processor of tokenizer.json; null: there is none. Vocabulary and merges are not kept, because they are most
/// of the file.
nlohmann::json postProcessorOf(const std::string& tokenizer) {
    const auto kept = [](int depth, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
        return depth != 1 || event != nlohmann::json::parse_event_t::key || parsed == "post_processor";
    };
    const nlohmann::json file = nlohmann::json::parse(tokenizer, kept, false);
    return member(file, "post_processor");
}

/// The ids that a post-processor puts around a text.
std::vector<std::int32_t> edgesOf(const nlohmann::json& processor) {
    std::vector<std::int32_t> edges;
    for (const nlohmann::json& part : member(processor, "processors"))
        for (const std::int32_t id : edgesOf(part)) edges.push_back(id);
    for (const nlohmann::json& piece : member(processor, "single")) {
        const nlohmann::json& name = member(member(piece, "SpecialToken"), "id");
        if (!name.is_string()) continue;
        const nlohmann::json& ids =
            member(member(member(processor, "special_tokens"), name.get<std::string>().c_str()), "ids");
        for (const nlohmann::json& id : ids)
            if (id.is_number_integer()) edges.push_back(id.get<std::int32_t>());
    }
    return edges;
}

void noteEdges(const fs::path& folder, const Tokenizer& tokenizer, const nlohmann::json& config,
               std::vector<std::string>& notes) {
    std::vector<std::string> flags;
    for (const char* key : {"add_bos_token", "add_eos_token"})
        if (const nlohmann::json& flag = member(config, key); flag.is_boolean())
            flags.push_back(fmt::format("{}: {}", key, flag.get<bool>()));
    if (flags.empty()) return;
    std::vector<std::int32_t> own = tokenizer.encode("");
    std::erase_if(own, [&](std::int32_t id) { return !tokenizer.isSpecial(id); });
    if (own == edgesOf(postProcessorOf(textOfFile(folder / "tokenizer.json")))) return;
    notes.push_back(
        fmt::format("tokenizer_config.json ({}) and the post-processor of tokenizer.json disagree about the "
                    "tokens around a text: the former is followed; transformers 5 "
                    "follows the latter",
                    fmt::join(flags, ", ")));
}

/// Adds the token's text, where the value is one.
void addToken(const nlohmann::json& token, Names& names) {
    const nlohmann::json& text = token.is_object() ? member(token, "content") : token;
    if (text.is_string() && text != "") names.insert(text.get<std::string>());
}

void noteMissing(const Tokenizer& tokenizer, const nlohmann::json& config, std::vector<std::string>& notes) {
    Names special, any;
    for (const auto& [key, value] : config.items())
        if (key.ends_with("_token")) addToken(value, special);
    for (const char* key : {"extra_special_tokens", "additional_special_tokens"})
        for (const nlohmann::json& token : member(config, key)) addToken(token, special);
    for (const nlohmann::json& token : member(config, "added_tokens_decoder"))
        addToken(token, member(token, "special") == true ? special : any);
    std::vector<std::string> missing;
    for (const std::string& name : special)
        if (const auto id = tokenizer.find(name); !id || !tokenizer.isSpecial(*id)) missing.push_back(shown(name));
    for (const std::string& name : any)
        if (!tokenizer.find(name)) missing.push_back(shown(name));
    if (missing.empty()) return;
    constexpr std::size_t kMost = 5;
    const std::size_t more = missing.size() - std::min(missing.size(), kMost);
    missing.resize(missing.size() - more);
    notes.push_back(fmt::format("tokenizer_config.json names tokens that are not special in tokenizer.json: {}{}; "
                                "transformers adds them, and a text that has one of them gets other ids there",
                                fmt::join(missing, ", "), more > 0 ? fmt::format(" and {} more", more) : ""));
}

} // namespace

std::vector<std::string> tokenizerNotes(const fs::path& folder, const Tokenizer& tokenizer) {
    std::vector<std::string> notes;
    std::error_code ignored;
    const fs::path stated = folder / "tokenizer_config.json";
    if (!fs::exists(stated, ignored) || !fs::exists(folder / "tokenizer.json", ignored)) return notes;
    const nlohmann::json config = parseJson(textOfFile(stated));
    noteEdges(folder, tokenizer, config, notes);
    noteMissing(tokenizer, config, notes);
    if (member(config, "split_special_tokens") == true)
        notes.emplace_back(
            "tokenizer_config.json has split_special_tokens, by which transformers reads a special token "
            "that a text has as ordinary text: nothing here does");
    return notes;
}

} // namespace kvscope
