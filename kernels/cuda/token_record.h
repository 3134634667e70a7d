// What a step reports of the tokens it chose, for the recorder.
#pragma once

#include "kernels/cuda/select.h"

namespace kvscope::cuda {

/// Null: not wanted. core/cuda/select/token_report.h makes records of it.
struct TokenChoiceRecord {
    SelectionHead* heads = nullptr; // [rows, kvHeads]
    std::int32_t* tokens = nullptr; // [rows, kvHeads, capacity]
    float* scores = nullptr;        // likewise
    std::uint64_t* marks[3] = {};   // stage1, pooling, offloading
};

/// Reports a choice that is ascending, and remembers it for the next step.
struct RecordChoiceArgs {
    int rows = 0, kvHeads = 0;
    const std::int32_t* position = nullptr; // [rows]
    const std::uint8_t* active = nullptr;   // [rows] or null
    const std::int32_t* tokens = nullptr;   // [rows, kvHeads, capacity]
    const float* tokenScores = nullptr;     // likewise; null: NaN
    const std::int32_t* count = nullptr;    // [rows, kvHeads]
    int capacity = 0;
    bool loads = false;                    // all but the newest token come from the host; else nothing does
    std::int32_t* previous = nullptr;      // [rows, kvHeads, capacity] the step before
    std::int32_t* previousCount = nullptr; // [rows, kvHeads] 0: there was none
    TokenChoiceRecord record;
};
void recordChoice(const Launch& launch, const RecordChoiceArgs& args);

} // namespace kvscope::cuda
