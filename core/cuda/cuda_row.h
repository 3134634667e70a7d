// One request of an engine that serves many on a GPU: what belongs to its sequence, in memory of its own, which is
// taken when the request joins and given back when it leaves.
#pragma once

#include "core/cuda/cuda_sequences.h"
#include "core/cuda/device_pool.h"
#include "core/cuda/host_stores.h"
#include "core/session/row_engine.h"
#include "kernels/cuda/device/owners.h"

#include <cstdint>
#include <memory>
#include <stop_token>
#include <vector>

namespace kvscope {

/// What all rows of an engine use. Everything must outlive the rows.
struct CudaRowParts {
    const std::shared_ptr<const DeviceModel>& model;
    const cuda::Launch& launch; // of the engine
    const StepBuffers& shared;  // row i of a step has the i-th part of every buffer
    BatchLayout& products;      // how many rows the passes multiply together
    LayerPasses& passes;
    const GpuClock& clock;
    StageRanges& ranges;
    RowTransfers transfers = {};
    Scatter* scatter = nullptr;   // with StorePlan::Bounce
    DevicePool* pool = nullptr;   // null: rows have slots of their own
    HostStores* stores = nullptr; // null: every row takes host memory of its own

    /// The options of a row with these parts.
    CudaEngineOptions rowOptions(CudaEngineOptions options) const;
};

class CudaRow {
public:
    /// Declares what the row takes, and takes nothing. What `setup` refers to outlives the row. @throws
    /// Error(Unsupported)
    CudaRow(const EngineSetup& setup, const CudaRowParts& parts);
    CudaRow(const std::vector<std::int32_t>& prompt, CudaEngineOptions options, const CudaRowParts& parts);
    RowMemory memory() const;
    /// Takes the memory that was declared, and waits until it is ready. @throws Error(OutOfMemory | Device)
    void open();
    /// Tells the row its number in its engine. Where slots are in a pool, the row's layers use the pool's memory from
    /// now on. Call it after open().
    void joinPool(int row);
    int number() const { return number_; }
    /// Launches, on the engine's stream, the return of the row's slots to the pool.
    void leavePool() const;
    /// Puts the row into the tables of the pool for the next step. at: the row's place in the order in which rows get
    /// their slots
    void putIntoPool(int at) const;

    /// Goes on reading the prompt layer by layer, see RowEngine::readLayers.
    bool readLayers(LayerId layer, int token, const std::stop_token& stop);
    /// Goes on reading the prompt in chunks, see RowEngine::readChunk.
    bool readChunk(int token, const std::stop_token& stop);

    /// Clears the record for the row's next step. The record of the prompt has step 0, every later one a step more.
    void begin(Phase phase);
    /// The next step feeds this token. @throws std::logic_error for a position that is not the row's next
    void beginStep(const RowToken& token);
    /// Called before a step in which kernels read this row's own memory. If the steps before worked on many rows
    /// (RowBatch), that memory still has the position of an earlier step: copies the token's position there.
    void takePosition(const RowToken& token);
    /// Sets the token that a step of this row alone feeds. Copies nothing where the row's memory holds it.
    void feed(const RowToken& token);
    /// From now on the row has place `place` in the shared buffers.
    void takePlace(int place);
    /// Launches all kernels of a step in which this row is alone.
    void launchStep();
    /// Launches the choice of the next token. how: the stream, and Launch::joined where a copy comes right before
    void launchSample(const cuda::Launch& how);
    /// After the step's kernels: copies the report to the host, on the step's stream.
    void copyReport() const { sequences.reports.copyOut(0, launch.stream); }
    /// Fills the row's record from the report, which has arrived on the host. apart: no other row's kernels ran between
    /// the report's marks; otherwise the record gets no times
    void finishStep(bool apart);
    /// Fills the row's record after a step whose kernels worked on many rows (RowBatch). report: of the step; `reader`
    /// reads it. place: the row's place in the report. alone: the step had no other row. logits: the row's, in device
    /// memory that is not the row's
    void finishStep(const StepReport& report, const ReportReader& reader, int place, bool alone, const float* logits);
    /// Copies logits that lie elsewhere into the row's memory, on the engine's stream.
    void keepLogits();

    const CudaEngineOptions& options() const { return options_; }
    const BatchLayout& layout() const { return layout_; }
    const StepReport& report() const { return sequences.reports.device(0); }
    std::int32_t chosenToken() const { return sequences.reports.host(0).tokens[0]; }
    const float* hostLogits();

    const std::vector<std::int32_t>& prompt;
    StepRecord record;
    cuda::Launch launch;     // its stream: the engine's, or the row's own
    float* logits = nullptr; // device memory, [vocab]

private:
    friend void fillContext(CudaRow& row, int tokens, std::uint64_t seed); // core/cuda/testing
    const CudaRowParts p_;
    const CudaEngineOptions options_;
    const BatchLayout layout_;
    StepBuffers buffers_;
    HostStores::Part store_; // given back when nothing of the row uses it any more
    DeviceArena arena_;
    std::unique_ptr<DeviceArena> promptArena_; // null as soon as the prompt is read
    std::vector<float> logitsHost_;
    bool logitsFetched_ = false;
    const float* logitsAt_ = nullptr; // of the last step
    int number_ = 0;
    int steps_ = 0, position_ = 0; // position_: of the token that is fed next
    bool behind_ = false;          // the position in the row's memory is that of an earlier step

    void beginReading();
    bool finishPrompt(bool read);

public:
    CudaSequences sequences;
    cuda::Event attended; // recorded when the row's part of a layer is launched on the row's own stream
    cuda::Stream own;     // for steps in which rows attend beside each other
};

} // namespace kvscope
