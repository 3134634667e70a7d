// How the change of a block's queries from one denoising forward to the next is spread over its tokens, layer by layer,
// and how it depends on when a token was written: the locality that LoSA rests on.
#pragma once

#include "profiler/read/trace_reader.h"

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvscope {

/// The tokens of a block in the order of their change in one layer, the most changed one first; means over forwards.
struct ChangeRanks {
    int layer = 0;
    std::int64_t forwards = 0; // with a change. One row each, or one for every KV head that has changes of its own
    std::vector<double> share; // [rank] share of the block's change that the token of this rank has
    double forHalf = 0;        // how many of the most changed tokens have at least half of the block's change
    double cumulated(int tokens) const; // share of the first `tokens` ranks together
};

/// Sums forwards of one layer.
class ChangeRanker {
public:
    /// changes: one a token, NaN or below 0 where it is not known, which counts as 0. Without any above 0 the forward
    /// counts nothing: its change has no shares.
    void add(std::span<const float> changes);
    std::int64_t forwards() const { return forwards_; }
    /// Means over what was added; no shares if nothing was.
    ChangeRanks ranks(int layer) const;

private:
    std::vector<double> sums_; // [rank]
    std::vector<double> sorted_;
    std::int64_t forwards_ = 0, tokensForHalf_ = 0;
};

/// Of what a token's change is.
enum class ChangeOf { Queries, Keys, Values };
/// The layers of a run that have changes, ascending. @throws Error as TraceReader does
std::vector<ChangeRanks> readChangeRanks(const TraceReader& reader, int runId, ChangeOf of = ChangeOf::Queries);

/// One forward of a run with changes of queries, keys and values, in one layer: the middle one of the block with the
/// most forwards, and the middle one of the layers.
struct MiddleForward {
    int block = 0, step = 0, layer = 0;
    std::vector<float> queries, keys, values; // [block's tokens]
};
/// Of the first sequence. Nothing where the run has no such changes. @throws Error as TraceReader does
std::optional<MiddleForward> readMiddleForward(const TraceReader& reader, int runId);

/// Mean change of tokens by the forwards since they were written, over all layers and blocks.
struct ChangeByAge {
    int age = 0; // 0: the forward reads a mask; 1: the token was written after the forward before; and so on
    std::int64_t tokens = 0;
    double mean = 0;
};
/// Ages ascend. Tokens of the prompt, which no forward wrote, are left out. @throws Error as TraceReader does
std::vector<ChangeByAge> readChangeByAge(const TraceReader& reader, int runId);

} // namespace kvscope
