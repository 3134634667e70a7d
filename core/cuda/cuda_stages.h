// The stages of a decode step on the CUDA backend. Each stage launches kernels; the engine captures the kernels of all
// stages into a step graph.
#pragma once

#include "core/cuda/block_choice.h"
#include "core/cuda/device_pool.h"
#include "core/cuda/layer_passes.h"
#include "core/cuda/row_table.h"
#include "core/cuda/transfers.h"
#include "core/engine/step_order.h"
#include "kernels/cuda/attention/attention.h"

#include <memory>
#include <vector>

namespace kvscope {

/// What the stages use; everything must outlive them. selector: null where the method is data.
struct CudaStagesParts {
    const DeviceModel& model;
    const CudaEngineOptions& options;
    const BatchLayout& layout;
    const PerLayer<DeviceLayerState>& layers;
    const std::unique_ptr<DeviceSelector>& selector;
    const ChoiceOrder& order;
    const RowTable& rows;
    const StepBuffers& buffers;
    const BlockChoice& choice;
    const cuda::Launch& launch;
    LayerPasses& passes;
    Transfers& transfers;
    StageRanges& ranges;
};

class CudaStages final : public Stages {
public:
    explicit CudaStages(const CudaStagesParts& parts) : p_(parts), spec_(parts.options.spec) {}

    /// The kernels launched from now on write to this report, and logits to `logits` [rows, vocab].
    void begin(const StepReport& report, float* logits) { report_ = &report, logits_ = logits; }
    /// From now on choose() asks this pool for slots as soon as a layer has chosen its blocks. Where
    /// CudaEngineOptions::pooled is set and usePool() was not called, the caller asks the pool after choose(), and then
    /// calls fetch().
    void usePool(const DevicePool& pool) { pool_ = &pool; }
    /// What these rows' next choice is followed by is another part's attention, which waits for blocks: the choice ends
    /// at this mark of the other part. Null: no part waits. For one choice.
    void endChoiceAt(std::uint64_t* mark) { choiceEnd_ = mark; }
    /// Where the other part's choice has not ended at the layer's mark kReady, load() writes it.
    void stampWhenReady() { stampsReady_ = true; }
    /// Launches the transfers that the pool has listed for a layer.
    void fetch(LayerId layer) { p_.transfers.onDemand(layer, *report_); }

    void embed() override;
    void project(LayerId layer) override;
    /// Called in place of project() where the products of several requests were made together: takes the products of
    /// row `row`.
    void takeProducts(LayerId layer, int row);
    void append(LayerId layer) override;
    /// Chooses the layer's blocks and starts their transfers. Where the layer before has done both, this only gives the
    /// lists to the attention.
    void choose(LayerId layer) override;
    /// Chooses the next layer's blocks and starts their transfers, so that the blocks travel on a second stream while
    /// this layer attends and runs its feed-forward.
    void lookAhead(LayerId layer) override;
    /// Makes the attention wait until the layer's blocks have arrived on the second stream.
    void load(LayerId layer) override;
    void attend(LayerId layer) override;
    /// Launches the oracle's kernels before the method's, because methods read the oracle's sums.
    void after(LayerId layer) override;
    void measure(LayerId) override {} // after() launches the oracle's kernels
    void finish(LayerId layer) override;
    void head() override;

private:
    const DeviceLayerState& stateOf(LayerId layer) const { return p_.layers[layer]; }
    /// Whether the method has a selector and the layer chooses what it attends to.
    bool isMethods(LayerId layer) const { return stateOf(layer).sparse && p_.selector != nullptr; }
    void beginAttention(LayerId layer);
    cuda::AppendArgs appendArgs(LayerId layer) const;
    cuda::DecodeAttentionArgs attentionArgs(LayerId layer) const;
    DeviceStep deviceStep(LayerId layer) const;
    void chooseInLayer(LayerId layer);
    void startTransfers(LayerId layer);
    void attendToList(LayerId layer);
    void chooseNext(LayerId layer);
    void measureMass(LayerId layer);
    void roundNewest(LayerId layer) const;
    void quantiseFull(LayerId layer) const;

    const CudaStagesParts p_;
    const SelectionSpec& spec_;
    const DevicePool* pool_ = nullptr;
    const StepReport* report_ = nullptr;
    float* logits_ = nullptr;
    std::uint64_t* choiceEnd_ = nullptr;
    bool stampsReady_ = false;
    // The attention of the layer that is being launched.
    cuda::DecodeAttentionArgs attention_;
    cuda::Launch attentionLaunch_;
};

} // namespace kvscope
