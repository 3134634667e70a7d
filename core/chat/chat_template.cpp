#include "core/chat/chat_template.h"

#include "base/error.h"
#include "base/json_reading.h"
#include "base/utf8.h"
#include "core/chat/evaluate.h"
#include "core/chat/syntax.h"

#include <fmt/format.h>

namespace kvscope {

struct ChatTemplate::Parsed {
    chat::Nodes nodes;
};

namespace {

constexpr std::size_t kLongestTemplate = 1 << 20; // published ones have some thousand characters

using Json = nlohmann::ordered_json;

chat::Value valueOf(const Json& json) {
    switch (json.type()) {
    case Json::value_t::boolean:
        return json.get<bool>();
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
        return json.get<std::int64_t>();
    case Json::value_t::number_float:
        return json.get<double>();
    case Json::value_t::string:
        return json.get<std::string>();
    case Json::value_t::array: {
        chat::List list;
        for (const Json& item : json) list.push_back(valueOf(item));
        return list;
    }
    case Json::value_t::object: {
        chat::Dict dict;
        for (const auto& [key, item] : json.items()) dict.set(key, valueOf(item));
        return dict;
    }
    default:
        return chat::None{};
    }
}

/// One line, whatever a template says.
std::string sentence(const std::string& origin, const std::string& what) {
    return fmt::format("{}: {}", origin, shown(what));
}

} // namespace

ChatTemplate::ChatTemplate(const std::string& text, std::map<std::string, std::string> tokens,
                           const std::string& origin)
    : origin_(origin), tokens_(std::move(tokens)) {
    if (text.size() > kLongestTemplate)
        throw Error(ErrorKind::BadInput, origin + ": the chat template has more than 1 MiB", "use another template");
    try {
        auto parsed = std::make_unique<Parsed>();
        parsed->nodes = chat::parseTemplate(toValidUtf8(text));
        parsed_ = std::move(parsed);
    } catch (const chat::TemplateError& error) {
        throw Error(ErrorKind::Unsupported, sentence(origin, "the chat template cannot be read, " + error.message),
                    "write the prompt in the model's form yourself");
    }
}

ChatTemplate::~ChatTemplate() = default;

std::string ChatTemplate::renderJson(std::string_view text) const {
    if (parseJson(text).is_discarded()) // checks depth too
        throw Error(ErrorKind::BadInput, "the conversation is not valid JSON", "give an object with \"messages\"");
    const Json json = Json::parse(text, nullptr, false);
    try {
        chat::Dict names;
        for (const auto& [name, token] : tokens_) names.set(name, token);
        for (const auto& [name, value] : json.items()) names.set(name, valueOf(value));
        return chat::evaluate(parsed_->nodes, names);
    } catch (const chat::TemplateError& error) {
        throw Error(ErrorKind::BadInput, sentence(origin_, "the chat template failed, " + error.message),
                    "leave the chat template off and write the prompt in the model's form");
    } catch (const chat::TemplateRefusal& refusal) {
        throw Error(ErrorKind::BadInput,
                    sentence(origin_, "the chat template refuses this conversation: " + refusal.message),
                    "change the messages, or leave the chat template off");
    }
}

std::string ChatTemplate::render(const std::vector<ChatMessage>& messages, bool addGenerationPrompt) const {
    Json json;
    json["messages"] = Json::array();
    for (const ChatMessage& message : messages)
        json["messages"].push_back(Json{{"role", message.role}, {"content", toValidUtf8(message.content)}});
    json["add_generation_prompt"] = addGenerationPrompt;
    json["tools"] = nullptr; // as transformers passes them
    json["documents"] = nullptr;
    return renderJson(json.dump());
}

} // namespace kvscope
