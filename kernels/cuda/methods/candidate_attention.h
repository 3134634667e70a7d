// AsyncTLS: the attention to tokens that are chosen by their labels inside listed blocks, in one launch. The thread
// blocks of one cluster take a (row, KV head): they score the labels, choose the tokens, and each attends to the chosen
// tokens of its part.
#pragma once

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/methods/labels.h"

namespace kvscope::cuda {

/// A place is the number of a token among those of the listed blocks, one block after the other.
struct CandidateAttentionArgs {
    /// Lists must be set, in ascending order, with the newest token's block as the last. Values lie by token
    /// (turnValues).
    DecodeAttentionArgs attend;
    LabelStore labels;
    const __nv_bfloat16* newKey = nullptr; // [rows, kvHeads*dim] of the newest token; its label is written first
    int wanted = 0;                        // tokens to choose; equal scores: the first place
    bool listedBefore = false;             // lists were complete before the kernel before was launched
    std::uint16_t* chosen = nullptr;       // [rows, kvHeads, capacity*blockSize/16] out: a bit for each place; or null
    __nv_bfloat16* keptQ = nullptr;        // out: a copy of q, for kernels that run beside the following ones; or null
    float* logits = nullptr;               // candidateLogitFloats(), work space
    std::uint64_t* marks[3] = {};          // when the kernel began, had scored, had chosen
};

/// The most blocks that a list may have: a cluster's shared memory sets the limit.
int mostCandidateBlocks(const Launch& launch, const AttentionShape& shape);
/// Floats of work space for logits that do not fit shared memory; 0 where they fit. capacity: most blocks of a list.
std::size_t candidateLogitFloats(const Launch& launch, const AttentionShape& shape, int rows, int capacity);

/// A place's score is the mean over the group of the softmax over all places of scale * q[channels] . label. Labels of
/// four bits are rounded, queries are not. For KV heads that are not latent, with dim 64 or 128.
void attendCandidates(const Launch& launch, const CandidateAttentionArgs& args);

/// Transposes the values of a prompt's blocks in place: [dim][blockSize] becomes [blockSize][dim].
struct TurnValuesArgs {
    AttentionShape shape;
    int tokens = 0;
    __nv_bfloat16* blocks = nullptr; // head g's blocks begin at blocks + g*headStride
    std::int64_t headStride = 0;     // in elements
};
void turnValues(const Launch& launch, const TurnValuesArgs& args);

} // namespace kvscope::cuda
