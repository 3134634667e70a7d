// Bodies of /tokenize and /detokenize, in the forms of vLLM's clients and of llama.cpp's.
#pragma once

#include "core/chat/chat_template.h"
#include "core/model/tokenizer/tokenizer.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope::http {

/// A text, or the messages of a chat, whose tokens are asked for.
struct TokenizeRequest {
    std::string model; // empty: the model that the server has
    std::string text;
    std::vector<ChatMessage> messages; // not empty: a chat, and `text` is empty
    bool addGenerationPrompt = true;   // of a chat: the prompt goes on to where the answer begins
    bool addSpecial = true;            // with the tokens that the tokenizer puts around a text
    bool parseSpecial = true;          // special tokens that are written in the text become their ids
    bool strings = false;              // the tokens as the vocabulary writes them as well (vLLM)
    bool pieces = false;               // each token with its text (llama.cpp)
};
/// Reads vLLM's form, {"prompt" | "messages", "add_special_tokens", "add_generation_prompt", "return_token_strs"}, or
/// llama.cpp's, {"content", "add_special", "parse_special", "with_pieces"}. The defaults are those of each: a chat and
/// llama.cpp's form add no special tokens. Other members are ignored.
/// @throws ApiError(400) naming what is wrong, as readApiRequest does
TokenizeRequest readTokenizeRequest(std::string_view body);

/// Token ids whose text is asked for: {"tokens"}, in both forms.
struct DetokenizeRequest {
    std::string model;
    std::vector<std::int32_t> tokens;
};
/// @throws ApiError(400) naming what is wrong
DetokenizeRequest readDetokenizeRequest(std::string_view body);

/// The answer to /tokenize: {"count", "max_model_len", "tokens", "token_strs"}. With `pieces` the tokens are objects
/// {"id", "piece"}, whose piece is a text, or a list of bytes where it is a part of a character.
std::string tokenizeJson(const Tokenizer& tokenizer, const std::vector<std::int32_t>& tokens, int longest,
                         const TokenizeRequest& asked);
/// The answer to /detokenize, under the names of both forms: {"prompt", "content"}. Special tokens are in the text as
/// they are written. @throws ApiError(400) naming an id that the vocabulary does not have
std::string detokenizeJson(const Tokenizer& tokenizer, const std::vector<std::int32_t>& tokens);

} // namespace kvscope::http
