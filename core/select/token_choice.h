// What the methods share that choose single tokens: the best of a score, attention probabilities over KV blocks, and
// the form in which the engine and the trace take a choice of tokens.
#pragma once

#include "base/aligned_buffer.h"
#include "core/select/selector.h"

#include <cstdint>
#include <span>
#include <vector>

namespace kvscope::select {

/// Positions [begin, end).
struct TokenRange {
    int begin = 0, end = 0;
};

/// The `count` positions of the highest scores, ascending. scores: one for each position of `ranges` (ascending, not
/// overlapping), in order. Equal scores: the lower position; NaN counts as -inf. `order` is scratch.
void bestTokens(std::span<const TokenRange> ranges, std::span<const float> scores, int count,
                std::vector<std::int32_t>& order, std::vector<std::int32_t>& tokens);

/// x = softmax(x); nothing but -inf becomes zeros.
void softmax(std::span<float> x);

/// logits[i] = scale * q.k + biasScale * bias for the valid tokens of the views, in order. q: [dim].
/// @return how many
std::size_t attentionLogits(std::span<const KvBlockView> views, const float* q, int dim, int blockSize, float scale,
                            float biasScale, float* logits);

/// out[c] = sum of weights[i] * value[i][c] over the valid tokens of the views, in order. out: [valueDim].
void weightedValues(std::span<const KvBlockView> views, const float* weights, int valueDim, int blockSize, float* out);

/// A choice of tokens as units of the trace (SelectionSpec::traceUnit 1): item.tokens is set, `scores` has one entry
/// for each, those from `firstRecent` on are labelled as window.
void chooseTokens(HeadStep& item, std::span<const float> scores, Origin origin, std::int32_t firstRecent);

/// Blocks that hold positions [begin, end) of a prompt that is being read, or of a store of float32 blocks.
void storeViews(const SelectorContext& context, LayerId layer, RowId sequence, KvHeadId kvHead, TokenRange range,
                std::vector<KvBlockView>& views);

/// Packs tokens of the store, positions ascending, into blocks of their own. `packed` grows where it is too small.
void packStored(const SelectorContext& context, LayerId layer, RowId sequence, KvHeadId kvHead,
                std::span<const std::int32_t> tokens, AlignedBuffer<float>& packed, std::vector<KvBlockView>& views);

/// Bytes of one token of one KV head, as the device tier moves it.
std::int64_t tokenBytes(const BlockLayout& layout);

/// Budget of a method that attends to `tokens` tokens of its own choice and keeps its own device tier.
void setTokenBudget(SelectionSpec& spec, int tokens);

} // namespace kvscope::select
