// What a backend does in a block-diffusion run: it owns the prefix's keys and values and what a method remembers of the
// block. The session follows the blocks, writes tokens and hands records over.
#pragma once

#include "base/ids.h"
#include "core/diffusion/unmasking.h"
#include "core/kv/kv_cache.h"
#include "core/model/model.h"
#include "core/select/denoising.h"
#include "core/trace/gpu_trace.h"
#include "core/trace/trace_sink.h"
#include "core/transfer/link.h"

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
    virtual void attended(LayerId layer, RowId sequence, std::span<const float> merged,
                          std::span<const float> prefixLogSums) = 0;
    /// After a sequence's forward: logits [block, vocab].
    virtual void logits(RowId sequence, std::span<const float> logits) = 0;
};

/// One sequence of a forward.
struct DenoiseRow {
    RowId sequence{};
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
    DenoiseObserver* observer = nullptr;        // outlives the engine
    std::span<const std::uint8_t> allowed = {}; // [vocab] nonzero for ids that may be written; outlives the engine
    CandidateSampling sampling = {};
    GpuTrace* gpuTrace = nullptr; // who records a GPU's kernels; null: nobody
    int slots = 0;                // pages of a KV head's prefix that are on the device; 0: all, and nothing travels
    std::string cachePolicy = "keep-selected";
    Link link = {};
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
    /// The logits [vocab] of a wanted token of the last forward's `row`-th row.
    virtual std::span<const float> logits(int row, int token) const = 0;
    /// Likewise, where the engine chooses candidates: the candidate of the token; its `position` is not set. Null: the
    /// session chooses among the logits.
    virtual const Candidate* candidate(int /*row*/, int /*token*/) const { return nullptr; }
    virtual Timing linkTiming() const { return Timing::Modelled; }
    /// Waits until the device is idle.
    virtual void settle() {}
};

/// @throws Error(OutOfMemory) with the numbers
std::unique_ptr<DenoiseEngine> makeCpuDenoiser(const DenoiseSetup& setup);
/// @throws Error(Unsupported | OutOfMemory | Device)
std::unique_ptr<DenoiseEngine> makeCudaDenoiser(const DenoiseSetup& setup);

} // namespace kvscope
