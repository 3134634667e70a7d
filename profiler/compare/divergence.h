// Where the texts of two runs part.
#pragma once

#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <optional>
#include <string>

namespace kvscope {

/// The first token of a sequence that is not the same in both runs, with the text around it as valid UTF-8.
struct TokenDifference {
    int position = 0;           // in the sequence, prompt included
    bool inPrompt = false;      // the runs were given different prompts
    int stepA = -1, stepB = -1; // decode steps that gave the tokens; -1: it is part of the prompt
    std::int32_t idA = -1, idB = -1;
    std::string before;         // what both say up to there
    std::string afterA, afterB; // from the differing token on
};

struct TokenComparison {
    int common = 0;                       // tokens that agree before the first difference, prompt included
    int lengthA = 0, lengthB = 0;         // tokens recorded, prompt included
    std::optional<TokenDifference> first; // none: one is the beginning of the other, or they are equal
};

/// `contextTokens` on either side of the difference are turned into text. @throws Error(BadInput | Storage | Cancelled)
TokenComparison compareTokens(const TraceReader& a, int runA, const TraceReader& b, int runB, int sequence,
                              int contextTokens = 48);

} // namespace kvscope
