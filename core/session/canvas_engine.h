// What a backend does in a masked-diffusion run: forwards over a canvas, or over a part of it with keys and values of
// the rest from an earlier forward. The session follows the canvases, writes tokens and hands records over.
#pragma once

#include "base/ids.h"
#include "core/diffusion/unmasking.h"
#include "core/model/model.h"
#include "core/select/canvas.h"
#include "core/trace/gpu_trace.h"
#include "core/trace/trace_sink.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kvscope {

/// One sequence of a forward, which computes the positions [first, first + ids.size()). All other positions still have
/// the keys and values of the last forward that computed them (there always is one), unless they were evicted.
struct CanvasRow {
    RowId sequence{};
    int first = 0;
    std::span<const std::int32_t> ids; // of the positions that are computed
    /// The positions, ascending, at which logits are wanted; all of them are computed. (Dream's models predict the
    /// token of the position behind.)
    std::vector<std::int32_t> wanted;
    int block = 0; // position of the first token of the block that is being written
    /// What the computed tokens attend to. All: prompt and canvas. AllAndChoose: the same, and every layer chooses, for
    /// later forwards, the tokens outside the block that are kept or the tiles of the masks. Kept: the block, which is
    /// all that is computed, and the kept tokens. Masked: the tiles of the masks. Computed: prompt and canvas, but
    /// every layer computes only some of the tokens (CanvasCache::Features).
    enum class Keys : std::uint8_t { All, AllAndChoose, Kept, Masked, Computed } keys = Keys::All;
    bool maskUsed = false; // Masked: an earlier forward has attended to the tiles already
    bool
        wholePrompt = true,
        wholeCanvas =
            true; // Computed: every layer computes all tokens of the prompt, of the canvas; the first layer always does
};

/// Resolved and checked by the session.
struct CanvasSetup {
    std::shared_ptr<const Model> model;
    std::vector<int> promptTokens, maxTokens; // [sequence] of the prompt; of prompt and canvas
    std::size_t mostWanted = 0;               // most positions of one forward whose logits are wanted
    CanvasOptions options;
    int threads = 0;
    RecordLevel level = RecordLevel::Counters;
    std::span<const std::uint8_t> allowed = {}; // [vocab] nonzero for ids that may be written; outlives the engine
    CandidateSampling sampling = {};
    GpuTrace* gpuTrace = nullptr; // who records a GPU's kernels; null: nobody
};

class CanvasEngine {
public:
    virtual ~CanvasEngine() = default;
    /// Short text for traces, e.g. "cpu: AVX3, 2 threads".
    virtual std::string description() const = 0;
    /// One forward of every row. Fills times, layers and selections of the record, and of its `denoise` the layers.
    virtual void forward(std::span<const CanvasRow> rows, StepRecord& record) = 0;
    /// Of the last forward: the logits [vocab] of the index-th wanted position of its `row`-th row.
    virtual std::span<const float> logits(int row, int index) const = 0;
    /// Likewise, where the engine chooses candidates: the candidate at the wanted position; its `position` is not set.
    /// Null: the session chooses among the logits.
    virtual const Candidate* candidate(int /*row*/, int /*index*/) const { return nullptr; }
    virtual Timing linkTiming() const { return Timing::Modelled; }
    /// Waits until the device is idle.
    virtual void settle() {}
};

/// @throws Error(OutOfMemory) with the numbers
std::unique_ptr<CanvasEngine> makeCpuCanvas(const CanvasSetup& setup);
/// @throws Error(Unsupported | OutOfMemory | Device)
std::unique_ptr<CanvasEngine> makeCudaCanvas(const CanvasSetup& setup);

} // namespace kvscope
