// Turns a conversation into the prompt a chat model was trained on, by the template that comes with the model.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvscope {

struct ChatMessage {
    std::string role, content; // "system", "user" or "assistant"
};

/// A template in the subset of Jinja that chat templates use, in the setting of Hugging Face transformers. It is data:
/// it reads no files, its steps, depth and output are limited. Immutable; several threads may render.
class ChatTemplate {
public:
    /// tokens: names that the template may use for special tokens, such as "bos_token". @throws Error(Unsupported)
    /// naming `origin` and the line
    ChatTemplate(const std::string& text, std::map<std::string, std::string> tokens, const std::string& origin);
    ~ChatTemplate();

    /// The prompt up to where the model's answer begins. It holds the special tokens already: encode it without adding
    /// any. @throws Error(BadInput) when the template refuses the conversation or fails on it
    std::string render(const std::vector<ChatMessage>& messages, bool addGenerationPrompt = true) const;
    /// Renders with any names, as JSON ({"messages": [...], "tools": ...}); those of the special tokens are added.
    std::string renderJson(std::string_view names) const;
    /// With what its errors begin: where it was read.
    const std::string& origin() const { return origin_; }

private:
    struct Parsed;
    std::string origin_;
    std::map<std::string, std::string> tokens_;
    std::unique_ptr<const Parsed> parsed_;
};

} // namespace kvscope
