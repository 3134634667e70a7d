#include "core/http/token_request.h"

#include "base/json_reading.h"
#include "base/utf8.h"
#include "core/http/api_body.h"

#include <algorithm>
#include <fmt/format.h>

namespace kvscope::http {
namespace {

using nlohmann::json;

nlohmann::ordered_json pieceOf(const std::string& bytes) {
    if (toValidUtf8(bytes) == bytes) return bytes;
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const char byte : bytes) list.push_back(static_cast<unsigned char>(byte));
    return list;
}

std::string jsonText(const nlohmann::ordered_json& document) {
    return document.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

} // namespace

TokenizeRequest readTokenizeRequest(std::string_view text) {
    const json body = parseBody(text);
    TokenizeRequest request;
    request.model = textOf(body, "model");
    const bool chat = !member(body, "messages").is_null(), pieces = !member(body, "content").is_null();
    if (int(chat) + int(pieces) + int(!member(body, "prompt").is_null()) != 1)
        refuseBody("tokens are asked for with one of prompt, messages and content", "prompt");
    if (chat)
        request.messages = messagesOf(body);
    else
        request.text = textOf(body, pieces ? "content" : "prompt");
    request.addGenerationPrompt = flagOf(body, "add_generation_prompt", true);
    request.addSpecial = pieces ? flagOf(body, "add_special") : flagOf(body, "add_special_tokens", !chat);
    request.parseSpecial = flagOf(body, "parse_special", true);
    request.strings = flagOf(body, "return_token_strs");
    request.pieces = pieces && flagOf(body, "with_pieces");
    return request;
}

DetokenizeRequest readDetokenizeRequest(std::string_view text) {
    const json body = parseBody(text);
    const json& tokens = member(body, "tokens");
    if (!tokens.is_array()) refuseBody("tokens must be a list of token ids", "tokens");
    return {textOf(body, "model"), idsOf(tokens, "tokens")};
}

std::string tokenizeJson(const Tokenizer& tokenizer, const std::vector<std::int32_t>& tokens, int longest,
                         const TokenizeRequest& asked) {
    using Json = nlohmann::ordered_json;
    Json list = Json::array(), strings = Json::array();
    for (const std::int32_t id : tokens) {
        if (asked.pieces)
            list.push_back({{"id", id}, {"piece", pieceOf(tokenizer.bytesOf(id))}});
        else
            list.push_back(id);
        if (asked.strings) strings.push_back(tokenizer.written(id));
    }
    return jsonText({{"count", tokens.size()},
                     {"max_model_len", longest},
                     {"tokens", std::move(list)},
                     {"token_strs", asked.strings ? std::move(strings) : Json(nullptr)}});
}

std::string detokenizeJson(const Tokenizer& tokenizer, const std::vector<std::int32_t>& tokens) {
    const auto unknown = std::find_if(tokens.begin(), tokens.end(), [&](std::int32_t id) {
        return id >= tokenizer.vocabSize() || tokenizer.written(id).empty();
    });
    if (unknown != tokens.end()) refuseBody(fmt::format("token id {} is not in the vocabulary", *unknown), "tokens");
    // What stands before the first special token is the beginning of a text, from which some tokenizers take a blank.
    const auto special =
        std::find_if(tokens.begin(), tokens.end(), [&](std::int32_t id) { return tokenizer.isSpecial(id); });
    std::string text = tokenizer.decode({tokens.begin(), special});
    for (auto id = special; id != tokens.end(); ++id) text += tokenizer.bytesOf(*id);
    return jsonText({{"prompt", text}, {"content", text}});
}

} // namespace kvscope::http
