// Finds where the texts of two runs with the same prompt part, and which selections differ before that. Used for a fork
// and the run it goes on from. It concludes nothing that the traces do not hold.
#pragma once

#include "profiler/compare/divergence.h"

#include <optional>
#include <string>
#include <vector>

namespace kvscope {

/// One selection that differs.
struct PartedSelection {
    int step = 0, layer = 0, kvHead = 0;
    std::vector<int> onlyA, onlyB; // blocks that one of the runs has selected there and the other not, ascending
};

/// The block of a step that the most heads of run A have selected where those of run B have not.
struct MissingBlock {
    int block = 0, headsA = 0, headsB = 0; // (layer, KV head) that have selected it
    std::string text;                      // valid UTF-8
};

struct Parting {
    int sequence = 0;
    TokenComparison tokens;
    std::optional<PartedSelection> first; // from the first compared step on: by step, then layer, then KV head
    int step = -1;                        // the decode step whose selections are counted below; -1: none
    int heads = 0, differing = 0;         // (layer, KV head) with a selection in both runs, and those that differ
    std::optional<MissingBlock> missing;
    bool offloads = false;   // run B loads what it selects
    std::string notCompared; // why selections are not compared; empty: they are
};

/// firstStep: the step from which on the runs may differ. The counts are those of the step in which the texts part;
/// where the texts do not part, those of the step with the first different selection.
/// @throws Error(BadInput | Storage | Cancelled)
Parting partingOf(const TraceReader& a, int runA, const TraceReader& b, int runB, int sequence, int firstStep);

/// Whole sentences, without names of files. nameA, nameB: "the recorded run", "the fork".
std::vector<std::string> sentencesOf(const Parting& parting, const std::string& nameA, const std::string& nameB);

} // namespace kvscope
