// Double Sparsity, InfiniGen by token, H2O, SnapKV, Locret, DMA by token and DSA: what a step reports to the recorder
// of the tokens that it has chosen.
#pragma once

#include "kernels/cuda/choice/select.h"

namespace kvscope::cuda {

/// Where a step's report of chosen tokens goes; null: not wanted. core/cuda/select/token_report.h makes records of it.
struct TokenChoiceRecord {
    SelectionHead* heads = nullptr; // [rows, kvHeads]
    std::int32_t* tokens = nullptr; // [rows, kvHeads, capacity]
    float* scores = nullptr;        // likewise
    std::uint64_t* marks[3] = {};   // stage1, pooling, offloading
};

/// Reports a choice of tokens in ascending order, and remembers it for the next step's comparison.
struct RecordChoiceArgs {
    int rows = 0, kvHeads = 0;
    const std::int32_t* position = nullptr; // [rows]
    const std::uint8_t* active = nullptr;   // [rows] or null
    const std::int32_t* tokens = nullptr;   // [rows, kvHeads, capacity]
    const float* tokenScores = nullptr;     // likewise; null: NaN
    const std::int32_t* count = nullptr;    // [rows, kvHeads]
    int capacity = 0;
    bool loads = false;                    // all tokens but the newest come from the host; false: none does
    std::int32_t* previous = nullptr;      // [rows, kvHeads, capacity] tokens that the step before chose
    std::int32_t* previousCount = nullptr; // [rows, kvHeads] 0: there was no step before
    TokenChoiceRecord record;
};
void recordChoice(const Launch& launch, const RecordChoiceArgs& args);

} // namespace kvscope::cuda
