// What a backend does in a block-diffusion run: it owns the prefix's keys and values and what a method remembers of the
// block. The session follows the blocks, writes tokens and hands records over.
#pragma once

#include "core/kv/kv_cache.h"
#include "core/model/model.h"
#include "core/select/denoising.h"
#include "core/trace/trace_sink.h"

#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

namespace kvscope {

/// Told what the attention of every forward came to, for tests and studies. The engine then also makes the logits of
/// every position.
class DenoiseObserver {
public:
    virtual ~DenoiseObserver() = default;
    /// One layer of one sequence's forward. merged [block, query heads, value channels]: what goes into the output
    /// projection; prefixLogSums [block, query heads]: natural logarithms, -inf where there is no prefix.
    virtual void attended(int layer, int sequence, std::span<const float> merged,
                          std::span<const float> prefixLogSums) = 0;
    /// After a sequence's forward: logits [block, vocab].
    virtual void logits(int sequence, std::span<const float> logits) = 0;
};

/// One sequence of a forward.
struct DenoiseRow {
    int sequence = 0;
    int first = 0;                     // position of the block's first token: the prefix is everything before it
    int block = 0, step = 0;           // as DenoiseForward has them
    bool clean = false;                // keys and values become part of the prefix
    std::span<const std::int32_t> ids; // [block]
    std::uint64_t wanted = 0;          // bit i: the logits of token i are wanted
};

/// Resolved and checked by the session.
struct DenoiseSetup {
    std::shared_ptr<const Model> model;
    const std::vector<std::vector<std::int32_t>>& prompts; // outlive the engine
    DenoiseOptions options;
    SelectionSpec spec;
    std::vector<int> maxTokens; // [sequence] positions a sequence may reach, whole blocks
    int threads = 0;
    RecordLevel level = RecordLevel::Counters;
    DenoiseObserver* observer = nullptr; // outlives the engine
};

class DenoiseEngine {
public:
    virtual ~DenoiseEngine() = default;
    /// Short text for traces, e.g. "cpu: AVX3, 2 threads".
    virtual std::string description() const = 0;
    /// Reads the blocks that the prompts fill. Fills everything of the record but the step number, phase and tokens.
    /// @throws Error(Cancelled)
    virtual void prefill(StepRecord& record, const Progress& progress, const std::stop_token& stop) = 0;
    /// One forward of every row's block, sequences ascending. Of the record's `denoise` it fills layers and changes.
    virtual void forward(std::span<const DenoiseRow> rows, StepRecord& record) = 0;
    /// Of the last forward: logits [vocab] of a wanted token of its `row`-th row.
    virtual std::span<const float> logits(int row, int token) const = 0;
};

/// @throws Error(OutOfMemory) with the numbers
std::unique_ptr<DenoiseEngine> makeCpuDenoiser(const DenoiseSetup& setup);

} // namespace kvscope
