#include "core/prompt/chat_prompt.h"

#include "base/error.h"

namespace kvscope {

std::string chatPrompt(const TextFiles& text, const std::string& model, const ChatQuestion& question) {
    if (!text.chatProblem.empty()) throw Error(ErrorKind::Unsupported, text.chatProblem);
    if (!text.chat)
        throw Error(ErrorKind::Unsupported, model + " has no chat template: it continues texts",
                    "leave the chat template off, or choose a chat model");
    std::vector<ChatMessage> messages;
    if (!question.system.empty()) messages.push_back({"system", question.system});
    messages.push_back({"user", question.message});
    return text.chat->render(messages);
}

std::vector<std::int32_t> encodeChatPrompt(const Tokenizer& tokenizer, const std::string& prompt) {
    return tokenizer.encode(prompt, false, true);
}

} // namespace kvscope
