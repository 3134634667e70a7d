// Finds where the texts of two runs begin to differ.
#pragma once

#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <optional>
#include <string>

namespace kvscope {

/// The first token of a sequence that differs between two runs, with the text around it as valid UTF-8.
struct TokenDifference {
    int position = 0;           // in the sequence, prompt included
    bool inPrompt = false;      // the token is part of a prompt: the runs have different prompts
    int stepA = -1, stepB = -1; // decode steps that gave the tokens; -1: the token is part of the prompt
    std::int32_t idA = -1, idB = -1;
    std::string before;         // the common text in front of the token
    std::string afterA, afterB; // each run's text from the token on
};

struct TokenComparison {
    int common = 0;                       // tokens that agree before the first difference, prompt included
    int lengthA = 0, lengthB = 0;         // tokens recorded, prompt included
    std::optional<TokenDifference> first; // none: the texts are equal, or one is the beginning of the other
};

/// Compares the tokens of one sequence. `contextTokens` tokens on either side of the difference become text.
/// @throws Error(BadInput | Storage | Cancelled)
TokenComparison compareTokens(const TraceReader& a, int runA, const TraceReader& b, int runB, int sequence,
                              int contextTokens = 48);

} // namespace kvscope
