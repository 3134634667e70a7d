// A prompt in the form a chat model was trained on.
#pragma once

#include "core/model/model.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvscope {

/// The prompt that the model's chat template makes of one message, `system` before it unless empty.
/// @throws Error(Unsupported) when the model has no template that can be used; Error(BadInput) when it refuses
std::string chatPrompt(const Model& model, const std::string& message, const std::string& system);

/// Ids of such a prompt: its special tokens are written in it, none are added.
std::vector<std::int32_t> encodeChatPrompt(const Model& model, const std::string& prompt);

} // namespace kvscope
