// CUDA backend: rows that come and go. Every row has the sequences' part of an engine for itself, in memory of its own;
// the passes around the attention are shared.
#pragma once

#include "core/cuda/cuda_row.h"
#include "core/cuda/cuda_row_stages.h"
#include "core/cuda/row_graph.h"
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
    /// abilities, rows, invariant: as in RowEngineSetup. @throws Error(OutOfMemory | Device)
    CudaRowEngine(std::shared_ptr<const DeviceModel> model, const Abilities& abilities, int rows, bool invariant);

    std::string description() const override;
    int pieceTokens() const override { return PromptReader::kPiece; }
    std::optional<RowMemory> memoryOf(const EngineSetup& setup) override { return CudaRow(setup, parts()).memory(); }
    std::optional<std::int64_t> deviceRoom() const override { return DeviceArena::room(); }

    void open(int row, const EngineSetup& setup) override { take(row, std::make_unique<CudaRow>(setup, parts())); }
    /// The same from what the row's engine is made with, for benchmarks. The prompt outlives the row.
    CudaRow& open(int row, const std::vector<std::int32_t>& prompt, CudaEngineOptions options) {
        return take(row, std::make_unique<CudaRow>(prompt, std::move(options), parts()));
    }
    void close(int row) override {
        graph_.leave(row);
        rows_[std::size_t(row)].reset();
    }
    bool readLayers(int row, int layer, int token, const std::stop_token& stop) override {
        return at(row).read({layer, (token + PromptReader::kPiece - 1) / PromptReader::kPiece}, stop);
    }
    bool readChunk(int, int, const std::stop_token&) override {
        throw Error(ErrorKind::Unsupported, "the CUDA backend does not read prompts in chunks", "use prefill=layers");
    }
    void decode(std::span<const RowToken> tokens) override;

    const StepRecord& record(int row) const override { return rows_[std::size_t(row)]->record; }
    const float* logits(int row) const override { return rows_[std::size_t(row)]->hostLogits(); }
    bool samples() const override { return true; }
    std::int32_t chosenToken(int row) const override { return rows_[std::size_t(row)]->chosenToken(); }

private:
    CudaRow& take(int row, std::unique_ptr<CudaRow> opened) {
        opened->open();
        rows_[std::size_t(row)] = std::move(opened);
        return at(row);
    }
    CudaRow& at(int row) { return *rows_[std::size_t(row)]; }
    CudaRowParts parts() { return {model_, unshared_, buffers_, products_, passes_, clock_, ranges_}; }
    void launchTogether();

    const std::shared_ptr<const DeviceModel> model_;
    const bool invariant_;
    cuda::Launch unshared_; // of rows
    cuda::Launch launch_;   // of the passes
    BatchLayout products_;
    StageRanges ranges_{nullptr};
    DeviceArena arena_;
    StepBuffers buffers_;
    LayerPasses passes_;
    GpuClock clock_;
    std::int32_t *ids_ = nullptr, *hostIds_ = nullptr; // [rows] the tokens that a step feeds; hostIds_: host memory
    std::uint64_t* mark_ = nullptr;                    // host memory
    cuda::Stream stream_;
    std::vector<std::unique_ptr<CudaRow>> rows_;
    CudaRowStages stages_;
    RowGraph graph_;
    // Of the present step
    std::vector<RowToken> tokens_;
    std::vector<CudaRow*> step_;
    std::vector<int> numbers_;
};

} // namespace kvscope
