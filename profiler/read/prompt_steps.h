// Which steps of a run read prompts, where they are not read in step 0 as a whole: table prompt_piece. Also which
// prompt a sequence has in a step, where one request after another has its row.
#pragma once

#include "profiler/format/trace_keys.h"

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace kvscope {

class Connection;

/// What a step reads. Prompt: prompts only. Mixed: some sequences read pieces of theirs, others decode.
enum class StepReads : std::uint8_t { Prompt, Mixed, Decode };
constexpr std::string_view nameOf(StepReads reads) {
    return reads == StepReads::Prompt ? "prompt" : reads == StepReads::Mixed ? "mixed" : "decode";
}

/// The names of steps in a timeline: that of their phase, but `mixed` where a step does both.
constexpr std::string_view kMixedName = nameOf(StepReads::Mixed);
constexpr bool isStepName(std::string_view name) { return name == "prefill" || name == "decode" || name == kMixedName; }

/// A run without rows in table prompt_piece reads its prompts in step 0. Copies share what was read.
class PromptSteps {
public:
    struct Step {
        int step = 0;
        bool decodes = false;    // some sequence decodes beside the pieces
        std::int64_t tokens = 0; // of the pieces
    };
    /// A piece that begins a prompt, or the first step of a request of another engine.
    struct Begin {
        int step = 0, sequence = 0;
    };

    PromptSteps() = default; // step 0 alone
    /// Reads the rows of the run, of steps [firstStep, lastStep] alone if these are given. The rows bound the work.
    PromptSteps(Connection& connection, int runId, int firstStep = 0, int lastStep = trace::kMaxStep);

    /// Whether the run has rows in the table.
    bool inPieces() const { return read_ && !read_->steps.empty(); }
    StepReads reads(int step) const;
    bool readsPrompt(int step) const { return reads(step) == StepReads::Prompt; }
    /// Tokens of prompts that the step reads beside its decoding sequences; 0 where it reads prompts only, or none.
    std::int64_t mixedTokens(int step) const;
    /// How many steps within [first, last] read prompts only.
    int promptsWithin(int first, int last) const;
    /// How many of the run's steps with numbers below `steps` decode.
    int decodesBelow(int steps) const { return steps > 0 ? steps - promptsWithin(0, steps - 1) : 0; }
    /// The number of the first step behind the prompts that the run begins with: 1, or more where these are in pieces.
    int firstDecode() const;
    /// The last step before `step` that does not read prompts only; -1: there is none.
    int decodeBefore(int step) const;
    /// The number of the prompt that a sequence has in a step, from 0: how many it has begun up to there, without its
    /// first one.
    int promptAt(int sequence, int step) const;
    /// Whether the step reads a piece of the sequence's prompt.
    bool readsPieceOf(int sequence, int step) const;
    /// What begins a prompt, by sequence, then by step.
    const std::vector<Begin>& begins() const;
    /// Whether some sequence has begun more than one prompt.
    bool severalPrompts(int sequence) const;
    bool severalPrompts() const;
    /// The steps with pieces, ascending.
    const std::vector<Step>& steps() const;

private:
    struct Read {
        bool wholeFirst = false;          // step 0 has read a prompt of every sequence, without pieces
        std::vector<Step> steps;          // ascending
        std::vector<int> prompts{0};      // of them and step 0: those that read prompts only, ascending
        std::vector<Begin> begins;        // by sequence, then by step
        std::vector<std::int64_t> pieces; // step << 10 | sequence, ascending
    };
    const Step* find(int step) const;
    static void readPieces(Connection& connection, int runId, int firstStep, int lastStep, Read& read);
    static void readRequests(Connection& connection, int runId, int firstStep, int lastStep, Read& read);
    static void sortBegins(Read& read);
    std::shared_ptr<const Read> read_;
};

} // namespace kvscope
