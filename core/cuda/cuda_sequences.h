// What belongs to the sequences of a session on a GPU, or to one request of an engine that serves many: both KV tiers,
// the block index, what the method remembers, and the parts of the engine that work with these.
#pragma once

#include "core/cuda/batch_layout.h"
#include "core/cuda/block_choice.h"
#include "core/cuda/choice_order.h"
#include "core/cuda/cuda_engine_options.h"
#include "core/cuda/cuda_stages.h"
#include "core/cuda/device_memory.h"
#include "core/cuda/device_selector.h"
#include "core/cuda/gpu_clock.h"
#include "core/cuda/layer_passes.h"
#include "core/cuda/prompt_reader.h"
#include "core/cuda/report_reader.h"
#include "core/cuda/row_table.h"
#include "core/cuda/step_buffers.h"
#include "core/cuda/step_report.h"
#include "core/cuda/transfers.h"

#include <memory>
#include <vector>

namespace kvscope {

/// What the sequences use; everything must outlive them.
struct CudaSequencesParts {
    const DeviceModel& model;
    const CudaEngineOptions& options;
    const BatchLayout& layout;
    const StepBuffers& buffers;
    cuda::Launch& launch; // kernels count on fewer multiprocessors where transfers run beside them
    LayerPasses& passes;
    const GpuClock& clock;
    StageRanges& ranges;
};

/// What belongs to the sequences of one session or request; no other session or request shares any of it.
struct CudaSequences {
    /// Takes no memory. @throws Error(Unsupported)
    explicit CudaSequences(const CudaSequencesParts& parts);

    /// Declares the tiers, the index and everything else; what only the reading of prompts needs goes to `prompt`,
    /// which may be the same arena.
    void plan(DeviceArena& arena, DeviceArena& prompt);
    /// Declares only what the steps of a RowBatch need. Keys, values and index lie in the memory of each row, and
    /// RowPlaces tells the kernels where.
    void planSteps(DeviceArena& arena);
    /// Makes everything but the tables and the layers' pointers ready for steps, after planSteps().
    void openSteps();
    ReportNeeds reportNeeds() const;
    /// Fills what the arenas have taken and makes everything ready for prompts. transfers.open() comes before. Waits.
    /// @throws Error(OutOfMemory | Device)
    void open();

private:
    const CudaSequencesParts p_;
    const SelectionSpec& spec_;
    __nv_bfloat16* store_ = nullptr;   // host memory: the host store of all offloaded layers
    PlantedStream* planted_ = nullptr; // [layers]

public:
    std::size_t storeBytes = 0;
    PerLayer<DeviceLayerState> layers;
    std::unique_ptr<DeviceSelector> selector; // null: the method is data
    ChoiceOrder order;
    RowTable rows;
    BlockChoice choice;
    StepReports reports;
    ReportReader reader;
    PromptReader prompts;
    // The last members are destroyed first: the destructor of Transfers waits for the work on its streams, which uses
    // what the members above hold.
    Transfers transfers;
    CudaStages stages;

private:
    void refuseUnsupported() const;
    void makeSelector();
    void leaveRoomForTransfers();
    void planLayer(DeviceArena& arena, DeviceLayerState& layer);
    void describeIndex(DeviceLayerState& layer) const;
    void openStore();
};

/// Which of its arrays a layer has.
struct LayerArrays {
    bool pooledKeys = false, pooledScores = false, ranges = false, tokenScores = false, lastUse = false,
         previous = false;
    LayerArrays(const LayerPlan& layer, const CudaEngineOptions& options, const DeviceModel& model);
};

/// The buffers that all rows of a step share, and a prompt's pieces too.
void planSharedBuffers(DeviceArena& arena, StepBuffers& buffers, const ModelConfig& config, const BatchLayout& layout);
/// The buffers that the attention of the rows uses.
void planAttentionBuffers(DeviceArena& arena, StepBuffers& buffers, const ModelConfig& config,
                          const BatchLayout& layout, const cuda::Launch& launch, bool oracle);

} // namespace kvscope
