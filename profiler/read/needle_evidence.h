// Whether the facts that a prompt hides were found: what was answered, and which heads had the facts' blocks at each
// step. For runs whose trace says where the facts lie (key `needles` of run_meta).
#pragma once

#include "core/trace/needles.h"
#include "profiler/read/trace_reader.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace kvscope {

/// The facts in the prompts of a run that are inside of its sequences; empty: the trace names none.
std::vector<NeedlePlace> needlesOf(const RunRow& run);

struct NeedleAnswer {
    enum class Verdict : std::uint8_t {
        Correct, // the text begins with the expected value, after spaces
        Other,   // with something else
        Open     // it ends before that can be told
    };
    NeedlePlace needle;   // the one that is asked for
    std::string answered; // the beginning of the text, one line of valid UTF-8
    Verdict verdict = Verdict::Open;
    /// "79930, correct", "48213 instead of 79930", "79, written in part (79930 is expected)"
    std::string text() const;
};
constexpr const char* nameOf(NeedleAnswer::Verdict verdict) {
    constexpr const char* names[] = {"correct", "other", "open"};
    return names[int(verdict)];
}

/// One for every sequence whose prompt asks for a fact.
std::vector<NeedleAnswer> needleAnswers(const TraceReader& reader, const RunRow& run);
/// "79930, correct"; of several sequences "3 of 4 correct". Empty without answers.
std::string answersText(const std::vector<NeedleAnswer>& answers);

/// First and last block of a run that hold tokens of a fact; the run's blocks have a size.
struct BlockSpan {
    int first = 0, last = 0;
    bool has(int block) const { return block >= first && block <= last; }
};
BlockSpan blocksOf(const NeedlePlace& needle, int blockSize);

inline constexpr int kNeedleOrigins = 5; // as the enumeration Origin of kernels/packed_block.h

/// How a fact was seen in one step, over all layers and KV heads that chose blocks.
struct NeedleSight {
    int step = 0;
    int choosing = 0; // (layer, KV head) with a selection in the step
    int heads = 0;    // of those, with one of the fact's blocks
    /// Of `heads`. A head with blocks of two origins counts for the one that comes later in Origin.
    std::array<int, kNeedleOrigins> byOrigin{};
    int missed = 0; // of `heads`, where a block of it had to be loaded
};

/// [needle]: the steps in which a head chose blocks, ascending. Reads every selection of the steps from firstStep to
/// lastStep; needles of one sequence.
/// @throws Error(Storage | Cancelled)
std::vector<std::vector<NeedleSight>> needleSights(const TraceReader& reader, const RunRow& run,
                                                   const std::vector<NeedlePlace>& needles, int firstStep,
                                                   int lastStep);

} // namespace kvscope
