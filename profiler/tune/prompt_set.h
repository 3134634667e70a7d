// The prompts on which a choice of method is judged, by name.
#pragma once

#include "core/model/model.h"

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

namespace kvscope {

struct TunePrompt {
    std::vector<std::int32_t> ids;
    std::string answer; // with which a right answer begins; empty: the set says none
};

struct PromptSet {
    std::string name; // "needles", "document", or the file
    std::vector<TunePrompt> prompts;

    /// Whether every prompt says its answer.
    bool hasAnswers() const;
    int longest() const; // tokens
};

/// What the built-in sets are made of.
struct PromptSetSize {
    int tokens = 2048; // of each prompt
    int prompts = 10;
    std::uint64_t seed = 1;
};

/// "needles": needle prompts of kvscope-cli eval, with the facts at depths from 0.1 to 0.9. "document": parts of the
/// built-in document, to be continued. Any other name is a file of JSON lines, {"prompt": ..., "answer": ...}, where
/// the answer may be left out in all; its prompts keep their own length.
/// @throws Error(BadInput) naming the file and the line, or what else is wrong; Error(Cancelled) where a stop is
/// requested while a pipe has nothing to read
PromptSet promptSet(const Model& model, const std::string& name, const PromptSetSize& size,
                    const std::stop_token& stop = {});

/// Whether a generated text answers: it begins with the answer, blanks before it left out.
bool answers(const std::string& generated, const std::string& answer);

} // namespace kvscope
