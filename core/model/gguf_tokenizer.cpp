// The tokenizer that GGUF metadata holds as arrays, and the chat template beside it.
#include "core/model/gguf_model.h"

#include "base/error.h"

#include <fmt/format.h>
#include <map>
#include <optional>
#include <string>

namespace kvscope {

TextFiles ggufTextFiles(const GgufFile& file) {
    const auto key = [](const char* name) { return fmt::format("tokenizer.ggml.{}", name); };
    const auto id = [&](const char* name) -> std::optional<std::int32_t> {
        const auto value = file.integer(key(name));
        if (!value) return std::nullopt;
        return *value < 0 || *value > INT32_MAX ? -2 : std::int32_t(*value); // refused as outside the vocabulary
    };
    TokenizerArrays arrays;
    arrays.model = file.text(key("model")).value_or("");
    if (arrays.model.empty())
        throw Error(ErrorKind::BadInput, file.origin() + ": there is no tokenizer (tokenizer.ggml.model)",
                    "use a file with a tokenizer, or the model's folder");
    arrays.pre = file.text(key("pre")).value_or("");
    for (const std::string_view token : file.texts(key("tokens"))) arrays.tokens.emplace_back(token);
    for (const double score : file.numbers(key("scores"))) arrays.scores.push_back(float(score));
    for (const std::int64_t type : file.integers(key("token_type"))) arrays.types.push_back(std::int32_t(type));
    for (const std::string_view merge : file.texts(key("merges"))) arrays.merges.emplace_back(merge);
    arrays.bosId = id("bos_token_id");
    arrays.eosId = id("eos_token_id");
    arrays.unknownId = id("unknown_token_id");
    arrays.addBos = file.flag(key("add_bos_token"));
    arrays.addEos = file.flag(key("add_eos_token"));
    arrays.addSpacePrefix = file.flag(key("add_space_prefix"));
    arrays.removeExtraWhitespaces = file.flag(key("remove_extra_whitespaces"));
    std::map<std::string, std::string> special;
    const auto name = [&](const char* role, const std::optional<std::int32_t>& token) {
        if (token && *token >= 0 && std::size_t(*token) < arrays.tokens.size())
            special[role] = arrays.tokens[std::size_t(*token)];
    };
    name("bos_token", arrays.bosId);
    name("eos_token", arrays.eosId);
    name("unk_token", arrays.unknownId);
    TextFiles files{Tokenizer::fromArrays(std::move(arrays), file.origin()), nullptr, {}};
    if (const auto text = file.text("tokenizer.chat_template"); text && !text->empty()) {
        try {
            files.chat = std::make_shared<const ChatTemplate>(std::string(*text), special, file.origin());
        } catch (const Error& error) {
            files.chatProblem = oneLine(error);
        }
    }
    return files;
}

} // namespace kvscope
