// Where a session's prompts come from; built on the worker, because it needs the model's tokenizer.
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
    QString file; // UTF-8
    int sequences = 1;
    bool chat = false; // the text goes through the model's chat template
    QString system;    // its system message; empty: none

    /// One prompt per sequence; the needle's seed grows by one from sequence to sequence, other prompts repeat.
    /// @throws Error(BadInput | Storage)
    std::vector<std::string> build(const Tokenizer& tokenizer) const;
    /// What the model is given for one of these: itself, or what the chat template makes of it. @throws Error
    std::string finalText(const Model& model, const std::string& prompt) const;
    std::vector<std::int32_t> encode(const Model& model, const std::string& prompt) const;
};

} // namespace kvscope::ui
