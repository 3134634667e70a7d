// The files of a model's folder that concern text: tokenizer and chat template.
#pragma once

#include "core/chat/chat_template.h"
#include "core/model/tokenizer/tokenizer.h"

#include <filesystem>
#include <memory>
#include <string_view>

namespace kvscope {

struct TextFiles {
    Tokenizer tokenizer;
    std::shared_ptr<const ChatTemplate> chat; // none: a base model, or see chatProblem
    std::string chatProblem;                  // why the model's template cannot be used; empty when it can
};

/// Reads tokenizer.json, or else tokenizer.model, with what tokenizer_config.json and chat_template.jinja state.
/// @throws Error naming the file. A template that cannot be used is no error: the model runs without it
TextFiles readTextFiles(const std::filesystem::path& folder);

/// The parts of tokenizer_config.json that are used.
struct TokenizerConfig {
    SpecialTokenRules rules;
    std::map<std::string, std::string> specialTokens; // "bos_token" -> "<s>", as templates name them
    std::string chatTemplate;                         // empty: none
    static TokenizerConfig parse(std::string_view json, const std::string& origin);
};

} // namespace kvscope
