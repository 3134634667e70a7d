#include "core/prompt/chat_prompt.h"

#include "kernels/base/error.h"

namespace kvscope {

std::string chatPrompt(const Model& model, const std::string& message, const std::string& system) {
    if (!model.chatProblem().empty()) throw Error(ErrorKind::Unsupported, model.chatProblem());
    if (!model.chatTemplate())
        throw Error(ErrorKind::Unsupported, model.name() + " has no chat template: it continues texts",
                    "leave the chat template off, or choose a chat model");
    std::vector<ChatMessage> messages;
    if (!system.empty()) messages.push_back({"system", system});
    messages.push_back({"user", message});
    return model.chatTemplate()->render(messages);
}

std::vector<std::int32_t> encodeChatPrompt(const Model& model, const std::string& prompt) {
    return model.tokenizer().encode(prompt, false, true);
}

} // namespace kvscope
