// Where a session's prompts come from; built on the worker, because it needs the model's tokenizer.
#pragma once

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

    /// One prompt per sequence; the needle's seed grows by one from sequence to sequence, other prompts repeat.
    /// @throws Error(BadInput | Storage)
    std::vector<std::string> build(const Tokenizer& tokenizer) const;
};

} // namespace kvscope::ui
