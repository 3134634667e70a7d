// Numbers of whole steps as columns of a tile: the time of every stage, or what was selected and transferred.
#pragma once

#include "profiler/read/filtered.h"

#include <vector>

namespace kvscope {

/// Rows of StepNumbers::Stages, from the top: the stages of the layers, those outside them, the rest of the step, and
/// the whole step. Nanoseconds.
inline constexpr int kStageRows = kStageCount + kStepStageCount + 1;
/// Rows of StepNumbers::Transfers. Three are undefined: the locality of a step without a step before it, a share of
/// nothing, and what the run does not know.
enum class TransferNumber {
    HitRatePercent,
    Hits,
    Misses,
    H2dBytes,
    D2hBytes,
    LinkNs,
    ExposedNs,
    OpensBlock, // 0 or 1
    Locality,   // of all layers and heads
    Count
};

enum class StepNumbers { Stages, Transfers };

/// One matrix with a column per step.
struct StepRequest {
    int runId = 0;
    StepNumbers numbers = StepNumbers::Stages;
    Phase phase = Phase::Decode; // steps of the other phase are undefined: the two phases are never mixed
    ReadFilter filter{};         // left-out steps are undefined; sums count its layers only
    int only = -1;               // Stages: the one stage that counts, the others are 0; -1: all count
    bool stagesKnown = true;     // Stages; false: all of a step is its rest, whatever the stages' columns hold
    /// Whether nothing of the run is left out. Such numbers are kept in the cache.
    bool plain() const { return phase == Phase::Decode && filter.empty() && only < 0 && stagesKnown; }
};

int rowsOf(StepNumbers numbers);
/// Columns of steps [first, last], step-major; NaN: undefined. @throws Error as TraceReader does
std::vector<float> stepColumns(const TraceReader& reader, const StepRequest& request, int first, int last);

} // namespace kvscope
