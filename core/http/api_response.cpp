#include "core/http/api_response.h"

#include <fmt/format.h>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

namespace kvscope::http {
namespace {

using Json = nlohmann::ordered_json;

std::string textOf(const Json& document) { return document.dump(-1, ' ', false, Json::error_handler_t::replace); }

const char* typeOf(int status) {
    switch (status) {
    case 401:
    case 403:
        return "authentication_error";
    case 404:
        return "not_found_error";
    case 429:
        return "rate_limit_error";
    case 503:
        return "unavailable_error";
    case 504:
        return "timeout_error";
    case 500:
        return "server_error";
    case 507:
        return "insufficient_memory_error";
    default:
        return "invalid_request_error";
    }
}

Json headOf(const Answer& answer, const char* object) {
    return {{"id", answer.id}, {"object", object}, {"created", answer.created}, {"model", answer.model}};
}

Json jsonOf(const Usage& usage) {
    return {{"prompt_tokens", usage.prompt},
            {"completion_tokens", usage.completion},
            {"total_tokens", usage.prompt + usage.completion},
            {"prompt_tokens_details", {{"cached_tokens", 0}}}};
}

const char* chunkObject(const Answer& answer) {
    return answer.kind == ApiKind::Chat ? "chat.completion.chunk" : "text_completion";
}

} // namespace

const char* reasonOf(int status) {
    switch (status) {
    case 200:
        return "OK";
    case 400:
        return "Bad Request";
    case 401:
        return "Unauthorized";
    case 403:
        return "Forbidden";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 408:
        return "Request Timeout";
    case 411:
        return "Length Required";
    case 413:
        return "Content Too Large";
    case 415:
        return "Unsupported Media Type";
    case 417:
        return "Expectation Failed";
    case 429:
        return "Too Many Requests";
    case 431:
        return "Request Header Fields Too Large";
    case 500:
        return "Internal Server Error";
    case 503:
        return "Service Unavailable";
    case 504:
        return "Gateway Timeout";
    case 505:
        return "HTTP Version Not Supported";
    case 507:
        return "Insufficient Storage";
    default:
        return "Unknown";
    }
}

std::string response(int status, std::string_view type, std::string_view body, bool keepAlive, const Headers& headers) {
    std::string out = fmt::format("HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: {}\r\n",
                                  status, reasonOf(status), type, body.size(), keepAlive ? "keep-alive" : "close");
    for (const auto& [name, value] : headers) fmt::format_to(std::back_inserter(out), "{}: {}\r\n", name, value);
    out += "\r\n";
    out += body;
    return out;
}

std::string streamHead(bool chunked, bool keepAlive, const Headers& headers) {
    std::string out = fmt::format("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
                                  "{}Connection: {}\r\n",
                                  chunked ? "Transfer-Encoding: chunked\r\n" : "", keepAlive ? "keep-alive" : "close");
    for (const auto& [name, value] : headers) fmt::format_to(std::back_inserter(out), "{}: {}\r\n", name, value);
    return out + "\r\n";
}

std::string chunk(std::string_view bytes) { return fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes); }

std::string event(std::string_view data) { return fmt::format("data: {}\n\n", data); }

std::string errorJson(const ApiError& error) {
    Json code = nullptr;
    if (!error.code.empty())
        code = error.code;
    else if (error.status == 503)
        code = 503; // as llama.cpp's clients expect it
    return textOf({{"error",
                    {{"message", error.what()},
                     {"type", typeOf(error.status)},
                     {"param", error.parameter.empty() ? Json(nullptr) : Json(error.parameter)},
                     {"code", code}}}});
}

std::string answerJson(const Answer& answer, std::string_view text, std::string_view finish, const Usage& usage) {
    const bool chat = answer.kind == ApiKind::Chat;
    Json document = headOf(answer, chat ? "chat.completion" : "text_completion");
    Json choice{{"index", 0}};
    if (chat)
        choice["message"] = {{"role", "assistant"}, {"content", text}};
    else
        choice["text"] = text;
    choice["logprobs"] = nullptr;
    choice["finish_reason"] = finish;
    document["choices"] = Json::array({std::move(choice)});
    document["usage"] = jsonOf(usage);
    return textOf(document);
}

std::string chunkJson(const Answer& answer, std::string_view text, bool first, std::string_view finish,
                      const Usage& usage) {
    Json document = headOf(answer, chunkObject(answer));
    Json choice{{"index", 0}};
    if (answer.kind == ApiKind::Chat) {
        Json delta = Json::object();
        if (first) delta["role"] = "assistant";
        delta["content"] = text;
        choice["delta"] = std::move(delta);
    } else {
        choice["text"] = text;
    }
    choice["logprobs"] = nullptr;
    choice["finish_reason"] = finish.empty() ? Json(nullptr) : Json(finish);
    document["choices"] = Json::array({std::move(choice)});
    if (answer.includeUsage) document["usage"] = answer.usageInParts ? jsonOf(usage) : Json(nullptr);
    return textOf(document);
}

std::string AnswerParts::next(const Answer& answer, std::string_view text, std::string_view finish,
                              const Usage& usage) {
    if (!begun_ || !finish.empty() || answer.usageInParts)
        return event(chunkJson(answer, text, !std::exchange(begun_, true), finish, usage));
    if (before_.empty()) {
        before_ = event(chunkJson(answer, {}, false, {}));
        // Within a string of the document a quotation mark has a backslash before it, so that this is the member
        // itself.
        const std::string_view member = answer.kind == ApiKind::Chat ? R"("content":"")" : R"("text":"")";
        const std::size_t at = before_.find(member) + member.size() - 2;
        after_ = before_.substr(at + 2);
        before_.resize(at);
    }
    return before_ + textOf(Json(text)) + after_;
}

std::string usageJson(const Answer& answer, const Usage& usage) {
    Json document = headOf(answer, chunkObject(answer));
    document["choices"] = Json::array();
    document["usage"] = jsonOf(usage);
    return textOf(document);
}

} // namespace kvscope::http
