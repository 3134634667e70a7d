// Puts a message into the form on which a chat model was trained.
#pragma once

#include "core/model/text_files.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvscope {

/// The prompt that the chat template makes of one message, with `system` before it unless that is empty. Errors name
/// `model`. @throws Error(Unsupported) when the model has no template that can be used; Error(BadInput) when the
/// template refuses the message
std::string chatPrompt(const TextFiles& text, const std::string& model, const std::string& message,
                       const std::string& system);

/// The ids of such a prompt. Special tokens that are written in it become their ids; no others are added.
std::vector<std::int32_t> encodeChatPrompt(const Tokenizer& tokenizer, const std::string& prompt);

} // namespace kvscope
