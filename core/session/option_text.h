// Options of a session as the command line writes them: for `run`, `sweep` and the desktop's sweep.
#pragma once

#include "core/session/decode_session.h"
#include "core/session/vain_options.h"

#include <string>
#include <vector>

namespace kvscope {

/// Sets the size of the device tier: "96" block slots per (sequence, layer, KV head), or "256MiB" for all slots
/// together. An empty text changes nothing. @throws Error(BadInput)
void parseDeviceKv(const std::string& text, SessionOptions& options);

/// What decides which options of the session have an effect. denoises: the model does. @throws Error(BadInput) for a
/// method that does not exist
RunChoices choicesOf(const SessionOptions& options, bool denoises);

/// The values of a list with commas between them. @param option as the command line writes it, for messages
/// @throws Error(BadInput) where a value is empty, as in "16,,24" and "16,"
std::vector<std::string> listedValues(const char* option, const std::string& text);

} // namespace kvscope
