// Inner loops, compiled once per instruction set and chosen at run time (Highway). Single-threaded: cpu_kernels.cpp
// splits the work.
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

/// Input rows arranged for smallBatchRows: bf16 weights are read two at a time, so their inputs are split into even and
/// odd columns, vector by vector. @return floats per arranged row
std::int64_t arrangedStride(DType type, int cols);
void arrangeInput(DType type, const float* x, int cols, float* arranged);

/// y[i, r] (+)= W[r] . x_i for rows [begin, end) and few inputs: each weight is read once for up to four inputs.
/// x: `n` arranged rows.
void smallBatchRows(const LinearTarget& target, const float* x, int n, std::int64_t begin, std::int64_t end);

/// out[i] = from[i] as float32, exactly; `from` of any alignment.
void widenRow(DType type, const void* from, int n, float* out);

/// Outputs computed together by the matrix-multiply tile; weights come in panels of this many rows.
int panelRows();
/// Packs rows [begin, begin + panelRows()) x columns [k0, k0 + depth) of W as float32 [depth, panelRows()], zero past
/// the end.
void packPanel(const WeightMatrix& weight, int begin, int k0, int depth, float* panel);
/// y[0..n, begin..) (+)= x[0..n, 0..depth) panel; x rows xStride apart; `add` adds to y, else overwrites.
void panelMultiply(const float* x, std::int64_t xStride, int n, const float* panel, int depth, float* y,
                   std::int64_t yStride, int outputs, bool add);

/// out = silu(gate) * up, elementwise.
void siluMultiply(const float* gate, const float* up, std::int64_t n, float* out);

/// Query heads that may share a KV head.
constexpr int kMostGroup = 128;

/// Scratch of attention on one thread; grows to what is needed.
struct AttentionScratch {
    std::vector<float> scores, rows, out, sums, values;
};

/// Unnormalised softmax attention of one item over blocks [first, last): out[h] = sum_t exp(s_t - max_h) v_t.
void attendBlocks(const AttentionArgs& args, const AttentionItem& item, int first, int last, float* out,
                  std::int64_t outStride, float* maxima, float* sums, AttentionScratch& scratch);

/// Query tokens [begin, end) of KV head g; see PrefillAttentionArgs.
void prefillTile(const PrefillAttentionArgs& args, int kvHead, int begin, int end, AttentionScratch& scratch);

void groupScoreItem(const GroupScoreArgs& args, const GroupScoreItem& item, AttentionScratch& scratch);
void rangeBoundItem(const RangeBoundArgs& args, const RangeBoundItem& item);

} // namespace kvscope::cpu
