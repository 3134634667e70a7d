// Inner loops. Highway compiles them once for each instruction set and chooses one at run time. They run on the
// caller's thread: cpu_kernels.cpp splits the work over threads.
#pragma once

#include "kernels/kernels.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvscope::cpu {

/// Name of the instruction set the machine got, e.g. "AVX3_ZEN4" or "AVX2".
std::string instructionSet();

/// y[i] = x[i] * weight[i] / sqrt(mean(x^2) + eps)
void rmsNormRow(const float* x, const float* weight, float eps, int n, float* y);

/// Brings an input row into the order in which smallBatchRows reads it. bf16 weights are read two at a time, so that
/// the inputs of a vector's width come as its even columns and then its odd ones. Other types keep their order.
/// @return floats per arranged row
std::int64_t arrangedStride(DType type, int cols);
void arrangeInput(DType type, const float* x, int cols, float* arranged);

/// y[i, r] = W[r] . x_i for the rows [begin, end) and few inputs, or y[i, r] += where the target accumulates. A weight
/// is read once for up to four inputs. x: `n` arranged rows.
void smallBatchRows(const LinearTarget& target, const float* x, int n, std::int64_t begin, std::int64_t end);

/// out[i] = from[i] as float32, exactly; `from` of any alignment.
void widenRow(DType type, const void* from, int n, float* out);

/// How many outputs panelMultiply computes together. Weights are packed in panels of as many rows.
int panelRows();
/// Packs the rows [begin, begin + panelRows()) and the columns [k0, k0 + depth) of W as float32 [depth, panelRows()].
/// Rows past the end of W become zeros.
void packPanel(const WeightMatrix& weight, int begin, int k0, int depth, float* panel);
/// y[0..n, begin..) (+)= x[0..n, 0..depth) panel; x rows xStride apart; `add` adds to y, else overwrites.
void panelMultiply(const float* x, std::int64_t xStride, int n, const float* panel, int depth, float* y,
                   std::int64_t yStride, int outputs, bool add);

/// out = silu(gate) * up, elementwise.
void siluMultiply(const float* gate, const float* up, std::int64_t n, float* out);
/// out = g * sigmoid(slope * g) * (u + 1), elementwise, with g = min(gate, limit) and u = up within [-limit, limit].
void boundedGate(const float* gate, const float* up, float slope, float limit, std::int64_t n, float* out);

/// out[rows, width] = left[rows, depth] right[depth, width]; the rows of each lie its stride apart, in floats.
void multiplyRows(const float* left, std::int64_t leftStride, int rows, const float* right, std::int64_t rightStride,
                  int depth, int width, float* out, std::int64_t outStride);
/// out += left right, of the same shapes.
void addMultipliedRows(const float* left, std::int64_t leftStride, int rows, const float* right,
                       std::int64_t rightStride, int depth, int width, float* out, std::int64_t outStride);

/// Most query heads that may share a KV head.
constexpr int kMostGroup = 128;

/// Work space of the attention on one thread. It grows when a call needs more.
struct AttentionScratch {
    std::vector<float> scores, rows, out, sums, values;
    std::vector<float> readKeys, readValues; // of a quantised block
};

/// Unnormalised softmax attention of one item over blocks [first, last): out[h] = sum_t exp(s_t - max_h) v_t.
void attendBlocks(const AttentionArgs& args, const AttentionItem& item, int first, int last, float* out,
                  std::int64_t outStride, float* maxima, float* sums, AttentionScratch& scratch);

/// Attention of the query tokens [begin, end) with KV head `kvHead`; see PrefillAttentionArgs.
void prefillTile(const PrefillAttentionArgs& args, int kvHead, int begin, int end, AttentionScratch& scratch);

/// Adds to received[h][p], for the positions p of block `block` and the query heads h of KV head `kvHead`, what the
/// queries of `args` give to p; see Kernels::attentionReceived.
void receivedByBlock(const PrefillAttentionArgs& args, int kvHead, int block, double* const* received,
                     AttentionScratch& scratch);

/// Kernels::groupScores and Kernels::rangeBound for one item.
void groupScoreItem(const GroupScoreArgs& args, const GroupScoreItem& item, AttentionScratch& scratch);
void rangeBoundItem(const RangeBoundArgs& args, const RangeBoundItem& item);

} // namespace kvscope::cpu
