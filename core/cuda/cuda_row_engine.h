// CUDA backend: rows that come and go. Every row has CudaSequences of its own, in memory of its own. Where the method
// is data, kernels work on all rows at once and find the rows' memory by tables (RowBatch). With other methods the rows
// share the passes around the attention, and each row launches the kernels of its attention.
#pragma once

#include "core/cuda/cuda_row.h"
#include "core/cuda/cuda_row_stages.h"
#include "core/cuda/row_batch.h"
#include "core/cuda/row_graph.h"
#include "core/cuda/scatter.h"
#include "core/session/row_engine.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvscope {

class CudaRowEngine final : public RowEngine {
public:
    /// abilities, rows, invariant, transfers: as in RowEngineSetup. usual: what a row is made with, whatever its
    /// prompt; null: rows may differ in everything, and each launches kernels of its own. poolSlots, hostBytes: as in
    /// RowEngineSetup; poolSlots needs `usual`. @throws Error(OutOfMemory | Device)
    CudaRowEngine(std::shared_ptr<const DeviceModel> model, const Abilities& abilities, int rows, bool invariant,
                  const CudaEngineOptions* usual = nullptr, RowTransfers transfers = {}, std::int64_t poolSlots = 0,
                  std::int64_t hostBytes = 0);

    std::string description() const override;
    int pieceTokens() const override { return PromptReader::pieceTokens(transfers_.chunkTokens); }
    std::optional<RowMemory> memoryOf(const EngineSetup& setup) override { return CudaRow(setup, parts()).memory(); }
    std::optional<std::int64_t> deviceRoom() const override { return DeviceArena::room(); }

    void open(RowId row, const EngineSetup& setup) override { take(row, std::make_unique<CudaRow>(setup, parts())); }
    /// Opens a row from the options of its engine, for benchmarks. The prompt outlives the row.
    CudaRow& open(RowId row, const std::vector<std::int32_t>& prompt, CudaEngineOptions options) {
        return take(row, std::make_unique<CudaRow>(prompt, std::move(options), parts()));
    }
    void close(RowId row) override {
        graph_.leave(int(row));
        at(row).leavePool();
        if (pool_ || stores_) cuda::check(cudaStreamSynchronize(stream_.get()), "giving a row's memory back");
        if (batch_) batch_->leave(at(row));
        rows_[index(row)].reset();
    }
    bool readLayers(RowId row, LayerId layer, int token, const std::stop_token& stop) override {
        return at(row).readLayers(layer, token, stop);
    }
    bool readChunk(RowId row, int token, const std::stop_token& stop) override {
        if (transfers_.chunkTokens == 0)
            throw Error(ErrorKind::Unsupported, "these rows read prompts layer by layer, not in chunks",
                        "make them with prefill=chunks and chunk_tokens");
        return at(row).readChunk(token, stop);
    }
    void decode(std::span<const RowToken> tokens) override;
    void setPoolSlots(std::int64_t slots) override {
        if (pool_) pool_->setSlots(slots);
    }
    void leavePool(RowId row) override { at(row).leavePool(); }

    const StepRecord& record(RowId row) const override { return rows_[index(row)]->record; }
    const float* logits(RowId row) const override { return rows_[index(row)]->hostLogits(); }
    bool samples() const override { return true; }
    std::int32_t chosenToken(RowId row) const override { return rows_[index(row)]->chosenToken(); }
    std::int64_t rowsApart() const override { return apart_; }
    /// Where the time of the last step went; null: its rows launched kernels of their own.
    const RowStepTimes* stepTimes() const { return step_.batched ? &batch_->times() : nullptr; }

private:
    CudaRow& take(RowId row, std::unique_ptr<CudaRow> opened) {
        opened->open();
        opened->joinPool(int(row));
        placed_[index(row)] = batch_ && batch_->takes(*opened);
        if (!placed_[index(row)]) ++apart_;
        rows_[index(row)] = std::move(opened);
        return at(row);
    }
    CudaRow& at(RowId row) { return *rows_[index(row)]; }
    CudaRowParts parts() {
        return {model_,  unshared_,  buffers_,       products_,   passes_,      clock_,
                ranges_, transfers_, scatter_.get(), pool_.get(), stores_.get()};
    }
    bool allPlaced() const;
    void launchTogether();

    const std::shared_ptr<const DeviceModel> model_;
    const bool invariant_;
    const RowTransfers transfers_;
    const std::unique_ptr<Scatter> scatter_;   // null: blocks go to the host without it
    const std::unique_ptr<DevicePool> pool_;   // null: rows have slots of their own
    const std::unique_ptr<HostStores> stores_; // null: rows take host memory of their own
    cuda::Launch unshared_;                    // for kernels of single rows
    cuda::Launch launch_;                      // for the passes, which rows share
    BatchLayout products_;
    StageRanges ranges_{nullptr};
    DeviceArena arena_;
    StepBuffers buffers_;
    LayerPasses passes_;
    GpuClock clock_;
    std::int32_t *ids_ = nullptr, *hostIds_ = nullptr; // [rows] the tokens that a step feeds; hostIds_: host memory
    std::uint64_t* mark_ = nullptr;                    // host memory
    cuda::Stream stream_;
    std::unique_ptr<RowBatch> batch_; // null: rows launch kernels of their own
    Numbered<std::unique_ptr<CudaRow>> rows_;
    Numbered<bool> placed_;  // [row] whether batch_ takes the row
    std::int64_t apart_ = 0; // rows opened so far that batch_ did not take
    CudaRowStages stages_;
    RowGraph graph_;
    /// The step that runs now, its rows in ascending order.
    struct {
        std::vector<RowToken> tokens;
        Numbered<CudaRow*> rows;
        std::vector<int> numbers; // of the rows
        std::vector<int> order;   // [token, as decode() was given them] its place in rows
        bool batched = false;     // it runs on batch_, whose kernels reach all rows
    } step_;
};

} // namespace kvscope
