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

/// The document {"error": {...}}, with the type that belongs to the status. Bytes that are no UTF-8 become U+FFFD.
std::string errorJson(const ApiError& error);

/// What all parts of one answer share.
struct Answer {
    ApiKind kind = ApiKind::Completion;
    std::string id, model;
    std::int64_t created = 0;                        // seconds since 1970
    bool includeUsage = false, usageInParts = false; // as in ApiRequest
};
struct Usage {
    int prompt = 0, completion = 0; // tokens
};

/// A whole answer that is not streamed. finish: why it ended, "stop" or "length".
std::string answerJson(const Answer& answer, std::string_view text, std::string_view finish, const Usage& usage);
/// The part of a stream that stands for one token. first: it is the answer's first part, which in a chat says who
/// speaks. finish: why the answer ended, in the last token's part; empty in all others. usage: of the answer so far,
/// which is written where usageInParts asks for it.
std::string chunkJson(const Answer& answer, std::string_view text, bool first, std::string_view finish,
                      const Usage& usage = {});

/// The parts of one answer's stream, with the bytes of chunkJson(). What all parts between the first and the last have
/// alike is written once, because a server of many streams writes a part for every token.
class AnswerParts {
public:
    /// The text of the next part as an event. finish, usage: as in chunkJson().
    std::string next(const Answer& answer, std::string_view text, std::string_view finish = {},
                     const Usage& usage = {});

private:
    std::string before_, after_; // what stands around the text in a part between the first and the last, or empty
    bool begun_ = false;
};
/// The part of a stream that has the usage and no choices.
std::string usageJson(const Answer& answer, const Usage& usage);

} // namespace kvscope::http
