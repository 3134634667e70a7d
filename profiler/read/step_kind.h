// Which decode steps say little about a method, and whether rates count them. The one definition that summaries,
// insights, reports, comparisons, the roofline and the tool bar share.
#pragma once

#include "profiler/read/trace_reader.h"

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

enum class StepKind : std::uint8_t {
    Steady,
    Opening, // some sequence begins a new KV block, which moves the window whatever the method does
    Cold,    // a sequence selects for the first time: its device tier is empty
    Mixed    // reads pieces of prompts as well: its time is not that of decoding
};
constexpr const char* nameOf(StepKind kind) {
    constexpr const char* names[] = {"steady", "opens_block", "cold", "mixed"};
    return names[int(kind)];
}
/// Whether rates, shares and means leave steps of the kind out, unless they are asked to count them.
constexpr bool isLeftOut(StepKind kind) { return kind == StepKind::Cold || kind == StepKind::Mixed; }

/// The facts that decide the kind of a decode step.
struct StepMark {
    int step = 0;
    bool selects = false;  // some layer selected blocks
    bool newcomer = false; // and some selection has none before it to compare with: its sequence, or its request where
                           // rows serve requests, selects for the first time
    bool opensBlock = false;
    bool mixed = false;  // reads pieces of prompts as well
    int firstDecode = 1; // number of the first step behind the prompts that the run begins with
};

/// Makes the marks of a run's steps. In a denoising run a selection is compared only with earlier ones of the same
/// block, so that the first selection of every block has none before it. In such a run the selections themselves say
/// whether a sequence is new; they are read when the object is made, up to the last step that is recorded then.
class StepMarks {
public:
    StepMarks(const TraceReader& reader, const RunRow& run);
    StepMark of(const StepRow& row) const;

private:
    bool denoises_ = false;
    int firstDecode_ = 1;
    std::vector<int> first_; // of a denoising run: steps in which a sequence selects for the first time, ascending
};

/// Tells which decode steps of a run are cold: those in which some sequence selects for the first time. In a run that
/// never says what was kept, the first step that selects is cold; in a run that never selects, the first one behind its
/// prompts, which is step 1 where these are read in step 0. Which of these three a run is can change until its last
/// step, so that next() answers for all three. A mixed step is called mixed, not cold, and next() answers yes for it.
class ColdRule {
public:
    enum Reading : std::uint8_t { NeverSelects, NeverCompares, Compares };
    static constexpr std::size_t kReadings = 3;
    /// Takes the next decode step. @return in which readings of the run it is cold: in all, where it is mixed
    std::array<bool, kReadings> next(const StepMark& step);
    /// The reading that holds for the steps so far.
    Reading reading() const { return !selects_ ? NeverSelects : compares_ ? Compares : NeverCompares; }

private:
    bool selects_ = false, compares_ = false;
};

/// The kinds of all decode steps of a run, in their order.
std::vector<StepKind> kindsOf(std::span<const StepMark> steps);
std::vector<StepKind> kindsOf(const TraceReader& reader, const RunRow& run, std::span<const StepRow> decodeSteps);
/// The numbers of a run's cold and mixed steps, which rates leave out, ascending. Reads a few columns of all steps.
/// @throws Error(BadInput) if there is no such run
std::vector<int> coldStepsOf(const TraceReader& reader, int runId);

/// Totals (hits, misses, bytes, exposed time) always count every step. Rates, shares and means leave cold and mixed
/// steps out, unless they are asked to count them or a run has no other steps.
enum class ColdSteps : std::uint8_t { LeftOut, Counted };
/// The switch, one for the whole program: --count-cold of kvscope-cli, a setting of the desktop. Any thread.
ColdSteps coldSteps();
void setColdSteps(ColdSteps choice);

} // namespace kvscope
