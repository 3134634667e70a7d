// What the engines of diffusion on a GPU have in common, whatever a forward computes: the model, the passes around its
// attention, memory, tables and the clock.
#pragma once

#include "core/cuda/batch_layout.h"
#include "core/cuda/cuda_engine_options.h"
#include "core/cuda/device_model.h"
#include "core/cuda/gpu_clock.h"
#include "core/cuda/layer_passes.h"
#include "core/cuda/row_table.h"
#include "core/cuda/stage_ranges.h"
#include "core/cuda/step_buffers.h"
#include "kernels/cuda/device/owners.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace kvscope {

/// The parts refer to each other, so an object can be neither copied nor moved.
struct DiffusionParts {
    /// options: layouts and tables are made from them. productsOf: gets the layout of the sequences, and returns that
    /// of the tokens that are projected together. mayBeWritten: [vocab] nonzero for ids that may be written, or empty
    /// for all; it outlives this object. how: the GPU's launch without a stream, see gpuLaunch (cuda_engine.h)
    DiffusionParts(std::shared_ptr<const Model> loaded, std::shared_ptr<const DeviceModel> uploaded,
                   CudaEngineOptions options, const std::function<BatchLayout(BatchLayout)>& productsOf,
                   std::span<const std::uint8_t> mayBeWritten, const cuda::Launch& how);
    DiffusionParts(const DiffusionParts&) = delete;
    DiffusionParts& operator=(const DiffusionParts&) = delete;

    /// Asks the arena for memory for the passes, the tables and `allowed`.
    void plan();
    /// Takes all that was declared and fills the tables. The engine launches on this stream from now on.
    void open(const cuda::Stream& stream);
    /// Takes the present time as the origin of the session's times. Waits. mark: host memory that the GPU reaches
    void startClock(std::uint64_t* mark);

    const std::shared_ptr<const Model> owner; // keeps the model from which `model` was uploaded
    const std::shared_ptr<const DeviceModel> model;
    const ModelConfig& config;
    const CudaEngineOptions engine;
    const BatchLayout layout;   // of the sequences
    const BatchLayout products; // of the tokens that are projected together
    cuda::Launch launch;
    StageRanges ranges;
    GpuTrace* const trace; // null: nobody records
    DeviceArena arena;
    StepBuffers buffers;
    LayerPasses passes;
    RowTable table; // rotary tables, and where the sequences' blocks begin
    GpuClock clock;
    std::uint8_t* allowed = nullptr; // device memory [vocab]

private:
    const std::span<const std::uint8_t> allowedIds_;
};

} // namespace kvscope
