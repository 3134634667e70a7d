// Which decode steps say little about a method, and whether rates count them. The one definition that summaries,
// insights, reports, comparisons, the roofline and the tool bar share.
#pragma once

#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope {

enum class StepKind : std::uint8_t {
    Steady,
    Opening, // some sequence begins a new KV block, which moves the window whatever the method does
    Cold     // a sequence selects for the first time: its device tier is empty
};
constexpr const char* nameOf(StepKind kind) {
    return kind == StepKind::Cold ? "cold" : kind == StepKind::Opening ? "opens_block" : "steady";
}

/// The facts that decide the kind of a decode step.
struct StepMark {
    int step = 0;
    bool selects = false;  // some layer selected blocks
    bool saysKept = false; // and every selection had one before it to compare with
    bool opensBlock = false;
};
StepMark markOf(const StepRow& row);
/// The kinds of all decode steps of a run, in their order. A step is cold if some sequence selects for the first time
/// in it. In a run that never says what was kept, the first step that selects is cold; in a run that never selects,
/// step 1 is, the first one after the prefill.
std::vector<StepKind> kindsOf(std::span<const StepMark> steps);
std::vector<StepKind> kindsOf(const std::vector<StepRow>& decodeSteps);
/// The numbers of a run's cold steps, ascending. Reads the rows of all steps.
std::vector<int> coldStepsOf(const TraceReader& reader, int runId);

/// Totals (hits, misses, bytes, exposed time) always count every step. Rates, shares and means leave cold steps out,
/// unless they are asked to count them or a run has no other steps.
enum class ColdSteps : std::uint8_t { LeftOut, Counted };
/// The switch, one for the whole program: --count-cold of kvscope-cli, a setting of the desktop. Any thread.
ColdSteps coldSteps();
void setColdSteps(ColdSteps choice);

} // namespace kvscope
