// What the bodies of all endpoints have in common: JSON, its checked members, and the messages of a chat.
#pragma once

#include "core/chat/chat_template.h"

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope::http {

/// @throws ApiError(400) always. parameter: the member of the body that is refused; empty: none
[[noreturn]] void refuseBody(const std::string& message, const std::string& parameter = {});

/// The object in a body. @throws ApiError(400) if it is no JSON in UTF-8, is deeper than 32 levels, has a name twice in
/// one object, or is not an object
nlohmann::json parseBody(std::string_view body);

/// Whether a member has a value that asks for nothing: null, 0, false, or empty.
bool saysNothing(const nlohmann::json& value);

/// Read a member that may be absent or null: flagOf then returns `absent`, and textOf an empty text. @throws
/// ApiError(400) naming a member of another type
bool flagOf(const nlohmann::json& body, const char* name, bool absent = false);
std::string textOf(const nlohmann::json& body, const char* name);
/// The elements of a list, whole numbers from 0 to 2147483647. name: how messages call the list. @throws ApiError(400)
/// for other elements
std::vector<std::int32_t> idsOf(const nlohmann::json& list, const char* name);

/// The member `messages`: a list with at least one message, each of a role and a text or a list of parts of the type
/// text. @throws ApiError(400) for anything else
std::vector<ChatMessage> messagesOf(const nlohmann::json& body);

} // namespace kvscope::http
