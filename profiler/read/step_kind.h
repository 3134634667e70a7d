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
    Cold     // a sequence selects for the first time: its device cache is empty
};
constexpr const char* nameOf(StepKind kind) {
    return kind == StepKind::Cold ? "cold" : kind == StepKind::Opening ? "opens_block" : "steady";
}

/// What decides the kind of a decode step.
struct StepMark {
    int step = 0;
    bool selects = false;  // some layer selected blocks
    bool saysKept = false; // and every selection had one before it to compare with
    bool opensBlock = false;
};
StepMark markOf(const StepRow& row);
/// Of all decode steps of a run, in their order. Cold is a step in which some sequence selects for the first time. In a
/// run that never says what was kept it is the first step that selects, and in a run that never selects it is step 1,
/// the first one after the prefill.
std::vector<StepKind> kindsOf(std::span<const StepMark> steps);
std::vector<StepKind> kindsOf(const std::vector<StepRow>& decodeSteps);

/// Totals (hits, misses, bytes, exposed time) always count every step. Rates, shares and means leave cold steps out,
/// unless somebody asks for them or a run has no other steps.
enum class ColdSteps : std::uint8_t { LeftOut, Counted };
/// The switch, one for the whole program: --count-cold of kvscope-cli, a setting of the desktop. Any thread.
ColdSteps coldSteps();
void setColdSteps(ColdSteps choice);

} // namespace kvscope
