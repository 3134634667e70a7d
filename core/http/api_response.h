// What the server writes: HTTP answers, the JSON documents in them and events of a stream.
#pragma once

#include "core/http/api_request.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvscope::http {

using Headers = std::vector<std::pair<std::string, std::string>>;

/// "OK", "Not Found": the words behind a status.
const char* reasonOf(int status);

/// The answer with its head. keepAlive: another request may come on the connection.
std::string response(int status, std::string_view type, std::string_view body, bool keepAlive,
                     const Headers& headers = {});
/// The head of a stream of events. chunked: HTTP/1.1; older clients read until the connection closes.
std::string streamHead(bool chunked, bool keepAlive, const Headers& headers);
/// A piece of a chunked body; an empty one ends it.
std::string chunk(std::string_view bytes);
/// An event of a stream with one line of data.
std::string event(std::string_view data);
inline constexpr std::string_view kDone = "data: [DONE]\n\n";

/// {"error": {...}} of the type that goes with the status. Bytes that are no UTF-8 become U+FFFD.
std::string errorJson(const ApiError& error);

/// What all parts of one answer share.
struct Answer {
    ApiKind kind = ApiKind::Completion;
    std::string id, model;
    std::int64_t created = 0; // seconds since 1970
    bool includeUsage = false;
};
struct Usage {
    int prompt = 0, completion = 0; // tokens
};

/// finish: "stop" or "length".
std::string answerJson(const Answer& answer, std::string_view text, std::string_view finish, const Usage& usage);
/// One token's part of a stream. first: of this answer; a chat's first part says who speaks. finish: empty but in the
/// last token's part.
std::string chunkJson(const Answer& answer, std::string_view text, bool first, std::string_view finish);
/// The part that has the usage and no choices.
std::string usageJson(const Answer& answer, const Usage& usage);

} // namespace kvscope::http
