// Describes where the prompts of a session come from. The worker thread builds the prompts, because that needs the
// tokenizer of the model.
#pragma once

#include "core/model/model.h"
#include "core/prompt/prompts.h"

#include <QString>

#include <string>
#include <vector>

namespace kvscope::ui {

struct PromptSource {
    enum class Kind { Needle, LongDocument, Text, File };
    Kind kind = Kind::Needle;
    NeedleOptions needle;
    int documentTokens = 4096;
    QString text;
    QString file; // path of a text file in UTF-8
    int sequences = 1;
    bool chat = false; // whether the model's chat template is applied
    QString system;    // system message of the chat; empty: none

    /// Makes one prompt per sequence. Needle prompts have seeds that grow by one from sequence to sequence, other
    /// prompts are repeated. @throws Error(BadInput | Storage)
    std::vector<std::string> build(const Tokenizer& tokenizer) const;
    /// The text that the model gets for a prompt of build(): the prompt itself, or with `chat` the result of the chat
    /// template. @throws Error
    std::string finalText(const Model& model, const std::string& prompt) const;
    std::vector<std::int32_t> encode(const Model& model, const std::string& prompt) const;
};

} // namespace kvscope::ui
