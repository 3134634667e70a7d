// Describes where the prompts of a session come from. The worker thread builds the prompts, because that needs the
// tokenizer of the model.
#pragma once

#include "core/model/model.h"
#include "core/prompt/prompts.h"

#include <QString>

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

namespace kvscope::ui {

struct PromptSource {
    enum class Kind { Needle, LongDocument, Text, File, Recorded };
    Kind kind = Kind::Needle;
    NeedleOptions needle;
    int documentTokens = 4096;
    QString text;
    QString file;  // UTF-8; of Recorded a trace
    int runId = 0; // of Recorded: whose prompts these are, token by token
    int sequences = 1;
    bool chat = false; // whether the model's chat template is applied
    QString system;    // system message of the chat; empty: none

    /// One prompt per sequence; the needle's seed grows by one from sequence to sequence, other prompts repeat.
    /// @throws Error(BadInput | Storage)
    /// Not for Recorded, which has no texts.
    std::vector<std::string> build(const Tokenizer& tokenizer) const;
    /// The prompts as the model reads them, of every kind, one per sequence. @throws Error(BadInput | Storage |
    /// Cancelled)
    /// needles: gets the facts that the prompts hide, where the source knows them; null: nobody asks.
    std::vector<std::vector<std::int32_t>> ids(const Model& model, const std::stop_token& stop = {},
                                               std::vector<NeedlePlace>* needles = nullptr) const;
    /// The text that the model is given for one of the prompts: the prompt itself, or what the chat template makes of
    /// it. @throws Error
    std::string finalText(const Model& model, const std::string& prompt) const;
    /// The needle prompt of one of the sequences.
    NeedlePrompt needlePrompt(const Tokenizer& tokenizer, int sequence) const;
    std::vector<std::int32_t> encode(const Model& model, const std::string& prompt) const;
};

} // namespace kvscope::ui
