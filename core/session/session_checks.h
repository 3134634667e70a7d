// Checks of a session's options, and of a request's to an engine that serves, before anything is planned.
#pragma once

#include "core/session/decode_session.h"

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvscope {

/// Throws Error(BadInput) in any case. message: what was asked for and cannot be done; hint: what to ask for instead
[[noreturn]] void refuse(const std::string& message, const std::string& hint);

/// @throws Error(BadInput) where the new tokens, the sampling or the threads are out of range
void checkSessionOptions(const SessionOptions& options);

/// Checks that every prompt has tokens, that they are in the vocabulary, and that `added` more fit. newTokens: the
/// number that was asked for.
/// @throws Error(BadInput) naming the prompt
void checkPrompts(std::span<const std::vector<std::int32_t>> prompts, const Model& model, int newTokens, int added);

/// Checks the tokens that sequences are given (SessionOptions::given). @throws Error(BadInput)
void checkGiven(std::span<const std::vector<std::int32_t>> given, std::size_t sequences, int vocab, int newTokens);

using Settings = std::vector<std::pair<std::string, std::string>>; // key and value

/// The method's parameters for the model, with a session's settings. @throws Error(BadInput | Unsupported)
ParameterValues methodParameters(const MethodEntry& method, const Model& model, const Settings& settings);

} // namespace kvscope
