// What surrounds the attention of a layer, the same for a step and for a prompt: embedding, projections, feed-forward
// and the output head.
#pragma once

#include "core/cuda/batch_layout.h"
#include "core/cuda/device_model.h"
#include "core/cuda/stage_ranges.h"
#include "core/cuda/step_buffers.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/token/latent.h"

#include <memory>

namespace kvscope {

class LayerPasses {
public:
    /// All outlive it. launch: as it is when something is launched.
    LayerPasses(const DeviceModel& model, const BatchLayout& layout, const StepBuffers& buffers,
                const cuda::Launch& launch, StageRanges& stages)
        : model_(model), config_(model.config), layout_(layout), buffers_(buffers), launch_(launch), stages_(stages) {}

    /// Asks for the experts' memory, where there are experts.
    void plan(DeviceArena& arena);
    /// Takes the linear layers' own memory, which is not the arena's. @throws Error(OutOfMemory | Device)
    void open(bool useLibrary);
    /// Null before open().
    const std::unique_ptr<cuda::Linear>& linear() const { return linear_; }

    /// Token ids [n] into the residual stream x [n, hidden]; sets `clearCount` words of `clear` to 0 beside.
    void embed(const std::int32_t* ids, int n, float* x, std::uint32_t* clear = nullptr, int clearCount = 0,
               std::uint64_t* mark = nullptr);
    /// Queries, keys and values of x into StepBuffers::qkv; with latent attention queries into q as well.
    void project(const DeviceLayer& weights, const float* x, int n, std::uint64_t* mark);
    /// A step's queries, keys and values into the cache: where the kernels can, in one launch.
    /// @param keepsPlain also leave them in qkv, for a method that reads them
    void projectAndAppend(int layer, const cuda::AppendArgs& append, bool keepsPlain, std::uint64_t* mark);
    /// A prompt's, after project().
    void placePrompt(const cuda::PromptArgs& args);
    /// From the attention's output to the next layer's input: output projection and feed-forward, added to x.
    void finish(int layer, float* x, int n, std::uint64_t* oMark, std::uint64_t* ffnMark);
    /// Logits of StepBuffers::x.
    void head(float* logits, std::uint64_t* mark = nullptr);

private:
    static constexpr int kExpertRows = 512; // tokens that go through the experts together

    cuda::Norm norm(const float* weight) const { return {weight, config_.streamNormEps()}; }
    void append(const cuda::AppendArgs& args);
    const __nv_bfloat16* leaveLatent(const DeviceLayer& weights, int n);
    void applyExperts(const DeviceLayer& weights, float* x, int n, std::uint64_t* mark);

    const DeviceModel& model_;
    const ModelConfig& config_;
    const BatchLayout& layout_;
    const StepBuffers& buffers_;
    const cuda::Launch& launch_;
    StageRanges& stages_;
    std::unique_ptr<cuda::Linear> linear_;
    cuda::LatentTokens latent_; // what the last projections made
    // Mixtures of experts: expertRows_ tokens at a time
    int expertRows_ = 0;
    __nv_bfloat16 *expertInput_ = nullptr, *expertHidden_ = nullptr;
    float *routerLogits_ = nullptr, *expertWeights_ = nullptr, *expertResults_ = nullptr, *sharedResult_ = nullptr;
    std::int32_t *expertChosen_ = nullptr, *expertCounts_ = nullptr, *expertPairs_ = nullptr;
};

} // namespace kvscope
