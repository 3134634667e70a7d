// Attention over tokens chosen by their labels inside listed blocks, in one launch (AsyncTLS): label scores, the choice
// and the attention of a (row, KV head) by the thread blocks of one cluster, each over the chosen tokens of its part.
#pragma once

#include "kernels/cuda/attention.h"
#include "kernels/cuda/labels.h"

namespace kvscope::cuda {

/// Places are the tokens of the listed blocks, one block after the other.
struct CandidateAttentionArgs {
    /// The blocks' values lie by token (turnValues); lists are required, ascending, the newest token's block the last.
    DecodeAttentionArgs attend;
    LabelStore labels;
    const __nv_bfloat16* newKey = nullptr; // [rows, kvHeads*dim] of the newest token, whose label is written first
    int wanted = 0;                        // tokens; equal scores: the first place
    bool listedBefore = false;             // the lists were complete when the kernel before this one was launched
    std::uint16_t* chosen = nullptr;       // [rows, kvHeads, capacity*blockSize/16] bit per listed place; or null
    __nv_bfloat16* keptQ = nullptr;        // a copy of q, for what goes on beside the kernels that follow; or null
    float* logits = nullptr;               // candidateLogitFloats(), work space
    std::uint64_t* marks[3] = {};          // began, scored, chosen
};

/// Blocks that a list may have at most, which a cluster's shared memory decides.
int mostCandidateBlocks(const Launch& launch, const AttentionShape& shape);
/// Work space in memory where logits do not fit the processor's shared memory, else 0. capacity: blocks of a list.
std::size_t candidateLogitFloats(const Launch& launch, const AttentionShape& shape, int rows, int capacity);

/// score = mean over the group of the softmax over the places of scale * q[channels] . label. With four bits the label
/// is rounded, the query is not. Plain KV heads: dim 64 or 128.
void attendCandidates(const Launch& launch, const CandidateAttentionArgs& args);

/// The values of a prompt's blocks from by channel to by token, in place: [dim][blockSize] becomes [blockSize][dim].
struct TurnValuesArgs {
    AttentionShape shape;
    int tokens = 0;
    __nv_bfloat16* blocks = nullptr; // head g's blocks begin at blocks + g*headStride
    std::int64_t headStride = 0;     // in elements
};
void turnValues(const Launch& launch, const TurnValuesArgs& args);

} // namespace kvscope::cuda
