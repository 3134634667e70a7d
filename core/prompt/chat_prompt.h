// A prompt in the form a chat model was trained on.
#pragma once

#include "core/model/text_files.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvscope {

/// The prompt that the chat template makes of one message, `system` before it unless empty; `model` is named in errors.
/// @throws Error(Unsupported) when the model has no template that can be used; Error(BadInput) when it refuses
std::string chatPrompt(const TextFiles& text, const std::string& model, const std::string& message,
                       const std::string& system);

/// Ids of such a prompt: its special tokens are written in it, none are added.
std::vector<std::int32_t> encodeChatPrompt(const Tokenizer& tokenizer, const std::string& prompt);

} // namespace kvscope
