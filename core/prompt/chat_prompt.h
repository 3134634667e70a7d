// Puts a message into the form on which a chat model was trained.
#pragma once

#include "core/model/text_files.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvscope {

/// What a person asks of a chat model.
struct ChatQuestion {
    std::string message;
    std::string system = {}; // goes before the message; empty: nothing does
};

/// The prompt that the chat template makes of a question. Errors name `model`. @throws Error(Unsupported) when the
/// model has no template that can be used; Error(BadInput) when the template refuses the message
std::string chatPrompt(const TextFiles& text, const std::string& model, const ChatQuestion& question);

/// The ids of such a prompt. Special tokens that are written in it become their ids; no others are added.
std::vector<std::int32_t> encodeChatPrompt(const Tokenizer& tokenizer, const std::string& prompt);

} // namespace kvscope
