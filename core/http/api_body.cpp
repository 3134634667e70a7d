#include "core/http/api_body.h"

#include "base/json_reading.h"
#include "core/http/api_request.h"

#include <fmt/format.h>
#include <set>

namespace kvscope::http {
namespace {

using nlohmann::json;

constexpr int kDeepest = 32;

} // namespace

void refuseBody(const std::string& message, const std::string& parameter) { throw ApiError(400, message, parameter); }

json parseBody(std::string_view body) {
    std::vector<std::set<std::string>> names; // of each open object, the names that it has so far
    const json::parser_callback_t watch = [&](int depth, json::parse_event_t event, json& value) {
        if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) {
            if (depth >= kDeepest) refuseBody(fmt::format("the body is nested deeper than {} levels", kDeepest));
            if (event == json::parse_event_t::object_start) names.emplace_back();
        } else if (event == json::parse_event_t::object_end) {
            names.pop_back();
        } else if (event == json::parse_event_t::key) {
            if (!names.back().insert(value.get_ref<const std::string&>()).second)
                refuseBody(
                    fmt::format("the body has the name '{}' twice in one object", shown(value.get<std::string>())),
                    shown(value.get<std::string>()));
        }
        return true;
    };
    json document;
    // The library takes a zero byte for the end of the text, whatever follows it.
    if (body.find('\0') != std::string_view::npos) refuseBody("the body is not JSON in UTF-8");
    try {
        document = json::parse(body, watch);
    } catch (const json::out_of_range&) {
        refuseBody("the body has a number that is too large");
    } catch (const json::exception&) {
        refuseBody("the body is not JSON in UTF-8");
    }
    if (!document.is_object()) refuseBody("the body is not a JSON object");
    return document;
}

bool saysNothing(const json& value) {
    if (value.is_number()) return value.get<double>() == 0;
    if (value.is_boolean()) return !value.get<bool>();
    return value.is_string() ? value.get_ref<const std::string&>().empty() : value.empty();
}

bool flagOf(const json& body, const char* name, bool absent) {
    const json& value = member(body, name);
    if (value.is_null()) return absent;
    if (!value.is_boolean()) refuseBody(fmt::format("{} must be true or false", name), name);
    return value.get<bool>();
}

std::string textOf(const json& body, const char* name) {
    const json& value = member(body, name);
    if (value.is_null()) return {};
    if (!value.is_string()) refuseBody(fmt::format("{} must be a text", name), name);
    return value.get<std::string>();
}

std::vector<std::int32_t> idsOf(const json& list, const char* name) {
    std::vector<std::int32_t> ids;
    for (const json& id : list) {
        if (!id.is_number_integer() || id.get<double>() < 0 || id.get<double>() > INT32_MAX)
            refuseBody(fmt::format("{} has a token id that is not a whole number from 0 to 2147483647", name), name);
        ids.push_back(id.get<std::int32_t>());
    }
    return ids;
}

std::vector<ChatMessage> messagesOf(const json& body) {
    std::vector<ChatMessage> out;
    const json& messages = member(body, "messages");
    if (!messages.is_array() || messages.empty())
        refuseBody("messages must be a list with at least one message", "messages");
    for (std::size_t i = 0; i < messages.size(); ++i) {
        const json &message = messages[i], &role = member(message, "role"), &content = member(message, "content");
        const std::string name = fmt::format("messages[{}]", i);
        if (!role.is_string() || role.get_ref<const std::string&>().empty())
            refuseBody(name + ".role must be a text", "messages");
        for (const char* refused : {"tool_calls", "function_call", "tool_call_id", "audio"})
            if (!saysNothing(member(message, refused)))
                refuseBody(fmt::format("{}.{} is not supported", name, refused), "messages");
        ChatMessage& made = out.emplace_back();
        made.role = role.get<std::string>();
        if (made.role == "developer") made.role = "system"; // the newer name of the same
        if (content.is_string()) {
            made.content = content.get<std::string>();
            continue;
        }
        if (!content.is_array()) refuseBody(name + ".content must be a text or a list of texts", "messages");
        for (const json& part : content) {
            const json& text = member(part, "text");
            if (member(part, "type") != "text" || !text.is_string())
                refuseBody(name + ".content must have parts of the type text only", "messages");
            made.content += text.get_ref<const std::string&>();
        }
    }
    return out;
}

} // namespace kvscope::http
