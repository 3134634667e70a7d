// Finds which steps of two runs are compared with each other, or says why none can be.
#pragma once

#include "profiler/read/trace_reader.h"

#include <string>
#include <vector>

namespace kvscope {

enum class AlignBy {
    Step, // the same number of the decode step
    Token // the step that gives the token at the same position of one sequence, prompt included
};

/// A decode step of A and one of B.
struct StepPair {
    int at = 0; // the number that both have in common: of the step, or of the token's position
    int a = 0, b = 0;
    /// In neither run the step is cold (coldSteps()) or opens a block. Averages use such pairs only.
    bool steady = false;
    bool operator==(const StepPair&) const = default;
};

/// The steps of a run, as an alignment needs them.
struct StepIndex {
    struct Step {
        int step = 0, position = -1; // position of the first token the sequence gets in it; -1: it gets none
        bool opensBlock = false, cold = false;
    };
    RunRow run;
    std::vector<Step> steps; // decode steps, ascending
};
/// @throws Error(BadInput | Storage | Cancelled)
StepIndex loadStepIndex(const TraceReader& reader, int runId, int sequence = 0);

struct Alignment {
    std::vector<StepPair> pairs;    // ascending in `at`, a and b
    int onlyA = 0, onlyB = 0;       // decode steps without a counterpart
    std::string refusal;            // a sentence without a full stop; then there are no pairs. Empty: aligned
    bool tooEarly = false;          // refused only because a run has no decode step yet
    std::vector<std::string> notes; // differences that a reader should know, sentences without a full stop
};

/// Both runs must have the same number of layers. Lengths, block sizes, heads and models may differ, and notes say so.
/// other: the name of b in sentences.
Alignment align(const StepIndex& a, const StepIndex& b, AlignBy by, const std::string& other = "B");

} // namespace kvscope
