// Everything of a model but the attention, the same for a step and for a prompt: embedding, projections, feed-forward
// and the output head.
#pragma once

#include "core/cuda/batch_layout.h"
#include "core/cuda/device_model.h"
#include "core/cuda/stage_ranges.h"
#include "core/cuda/step_buffers.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/token/latent.h"

#include <memory>
#include <optional>

namespace kvscope {

class LayerPasses {
public:
    /// Everything passed must outlive this object. launch: read at every launch, so that it may change until then.
    LayerPasses(const DeviceModel& model, const BatchLayout& layout, const StepBuffers& buffers,
                const cuda::Launch& launch, StageRanges& stages);
    ~LayerPasses();

    /// Asks the arena for the work space of all products, and for the experts' memory where the model has experts.
    /// useLibrary: many inputs are multiplied by cuBLASLt where it is installed
    void plan(DeviceArena& arena, bool useLibrary);
    /// Begins to use the arena's memory. @throws Error(OutOfMemory | Device)
    void open();
    /// Null before open().
    const std::unique_ptr<cuda::Linear>& linear() const { return linear_; }

    /// Until the next call, a step's rows are the first `rows` of these buffers, which outlive the calls that use them.
    /// At first they are all rows, in the buffers of the constructor.
    void workOn(const StepBuffers& buffers, int rows) { buffers_ = &buffers, rows_ = rows; }
    /// All rows again.
    void workOnAll() { buffers_ = &all_, rows_.reset(); }

    /// Writes the embeddings of token ids [n] to the residual stream x [n, hidden]. The same kernel sets `clearCount`
    /// words of `clear` to 0.
    void embed(const std::int32_t* ids, int n, float* x, std::uint32_t* clear = nullptr, int clearCount = 0,
               std::uint64_t* mark = nullptr);
    /// Writes queries, keys and values of x to StepBuffers::qkv; with latent attention also the queries in the latent
    /// space to StepBuffers::q.
    void project(const DeviceLayer& weights, const float* x, int n, std::uint64_t* mark);
    /// Writes the values of x [n, hidden] where project() would write them if `qkv` were StepBuffers::qkv; what lies
    /// before them in a row may be overwritten. Without latent attention.
    void projectValues(const DeviceLayer& weights, const float* x, int n, float* qkv, std::uint64_t* mark);
    /// Makes a step's queries, keys and values, rotates them and writes keys and values to the cache; in one launch
    /// where the kernels can.
    /// @param keepsPlain the one launch also writes StepBuffers::qkv, for a method that reads it
    void projectAndAppend(LayerId layer, const cuda::AppendArgs& append, bool keepsPlain, std::uint64_t* mark);
    /// The second half of project() for one sequence, where project() has made the products of several sequences:
    /// rotates the key and query of row `row` and writes its key and value to the cache. The pointers of args are those
    /// of the row.
    void appendRow(const cuda::AppendArgs& args, int row);
    /// Rotates what project() has made of a prompt and writes keys and values to the cache.
    void placePrompt(const cuda::PromptArgs& args);
    /// Adds the output projection of the attention's output to x, and then the feed-forward.
    void finish(LayerId layer, float* x, int n, std::uint64_t* oMark, std::uint64_t* ffnMark);
    /// The two halves of finish(): the output projection of the attention's output and the feed-forward of `from`
    /// [n, hidden] are added to x [n, hidden] or, where `adds` is false, written there. The model has no experts.
    void outputOf(LayerId layer, float* x, int n, bool adds, std::uint64_t* mark);
    void feedForwardOf(LayerId layer, const float* from, float* x, int n, bool adds, std::uint64_t* mark);
    /// Writes the logits of StepBuffers::x, of its first n rows.
    void head(float* logits, int n, std::uint64_t* mark);
    void head(float* logits, std::uint64_t* mark = nullptr) { head(logits, rows(), mark); }

private:
    static constexpr int kExpertRows = 512; // tokens that go through the experts together

    int rows() const { return rows_.value_or(layout_.rows); }
    cuda::Norm norm(const float* weight) const { return {weight, config_.streamNormEps()}; }
    void append(const cuda::AppendArgs& args, const cuda::LatentTokens& latent);
    void planExperts(DeviceArena& arena);
    cuda::LinearNeeds productNeeds() const;
    const __nv_bfloat16* leaveLatent(const DeviceLayer& weights, int n);
    void applyExperts(const DeviceLayer& weights, float* x, int n, std::uint64_t* mark);

    const DeviceModel& model_;
    const ModelConfig& config_;
    const BatchLayout& layout_;
    const StepBuffers& all_;
    const StepBuffers* buffers_;
    std::optional<int> rows_; // nothing: those of the layout, which may change
    const cuda::Launch& launch_;
    StageRanges& stages_;
    cuda::LinearNeeds needs_;
    cuda::LinearSpace space_;
    std::unique_ptr<cuda::MatrixLibrary> library_; // until open() hands it to linear_
    std::unique_ptr<cuda::Linear> linear_;
    cuda::LatentTokens latent_; // what the last call of project() made
    // For mixtures of experts, which take expertRows_ tokens at a time
    int expertRows_ = 0;
    __nv_bfloat16 *expertInput_ = nullptr, *expertHidden_ = nullptr;
    float *routerLogits_ = nullptr, *expertWeights_ = nullptr, *expertResults_ = nullptr, *sharedResult_ = nullptr;
    std::int32_t *expertChosen_ = nullptr, *expertCounts_ = nullptr, *expertPairs_ = nullptr;
};

} // namespace kvscope
