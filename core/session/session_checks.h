// What is checked of a session, or of a request to an engine that serves, before anything is planned.
#pragma once

#include "core/session/decode_session.h"

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvscope {

/// @throws Error(BadInput), always: what was asked for cannot be done; `hint` says what to ask for instead
[[noreturn]] void refuse(const std::string& message, const std::string& hint);

/// @throws Error(BadInput) where the new tokens, the sampling or the threads are out of range
void checkSessionOptions(const SessionOptions& options);

/// Every prompt has tokens of the vocabulary and room for `added` more; newTokens: as they were asked for.
/// @throws Error(BadInput) naming the prompt
void checkPrompts(std::span<const std::vector<std::int32_t>> prompts, const Model& model, int newTokens, int added);

using Settings = std::vector<std::pair<std::string, std::string>>; // key and value

/// The method's parameters for the model, with a session's settings. @throws Error(BadInput | Unsupported)
ParameterValues methodParameters(const MethodEntry& method, const Model& model, const Settings& settings);

} // namespace kvscope
