// A model's weights on the GPU, arranged for the kernels: q, k and v side by side, gate and up interleaved. Quantised
// weights stay quantised (kernels/cuda/linear/packed.h); all others are bf16.
#pragma once

#include "base/indexed.h"
#include "core/cuda/device_memory.h"
#include "core/model/model.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/token/token.h"

#include <functional>
#include <memory>
#include <vector>

namespace kvscope {

struct DeviceFeedForward {
    cuda::DeviceMatrix gateUp, down; // a matrix without rows is absent
};

struct DeviceExperts {
    const float* router = nullptr;     // [experts, hidden], then the shared expert's gate where it has one
    const float* choiceBias = nullptr; // [experts], or null
    cuda::DeviceMatrix gateUp, down;   // packed; the first expert's, the other experts' follow it in memory
    std::size_t gateUpBytes = 0, downBytes = 0;
    DeviceFeedForward shared;
};

/// Latent attention: the weights between the first projections and the output projection.
struct DeviceLatent {
    cuda::DeviceMatrix queryUp;                               // without rows when queries have no latent
    const float *queryNorm = nullptr, *latentNorm = nullptr;  // norms of the latents
    const __nv_bfloat16 *keyUp = nullptr, *valueUp = nullptr; // [heads, rank, nopeDim], [heads, valueDim, rank]
};

/// A block indexer (ModelConfig::blockIndexer).
struct DeviceBlockIndexer {
    cuda::DeviceMatrix projection;                        // bf16, [(heads + 1) * dim, hidden]: queries, then the key
    const float *queryNorm = nullptr, *keyNorm = nullptr; // [dim]
};

/// A lightning indexer (ModelConfig::indexer).
struct DeviceLightningIndexer {
    cuda::DeviceMatrix query, key;                       // [heads*dim, queryRank] of the queries' latent; [dim, hidden]
    const float *keyNorm = nullptr, *keyShift = nullptr; // [dim]
    const float* headWeight = nullptr; // [heads, hidden] not rounded, because it decides how much each head counts
};

struct DeviceLayer {
    /// Weights of queries, keys and values; with latent attention of the queries (or their latent) and the key.
    /// Neighbours of the same format lie in one matrix, so there are one to three matrices; their rows follow each
    /// other.
    /// The channels of partly rotated heads stand in another order: see PartlyRotated in device_model.cpp.
    std::vector<cuda::DeviceMatrix> qkv;
    cuda::DeviceMatrix o;
    DeviceLatent latent;
    DeviceFeedForward mlp; // without rows where the layer has experts
    DeviceExperts experts;
    const float *inputNorm = nullptr, *postNorm = nullptr;
    const float *qkvBias = nullptr, *oBias = nullptr; // null when the checkpoint has none
    cuda::EvictionHead eviction;
    cuda::HeadNorms headNorms;
    DeviceBlockIndexer blockIndexer;          // without rows where the layer has none
    DeviceLightningIndexer indexer;           // likewise
    cuda::DeviceMatrix forecast, ownForecast; // SparDA's heads; without rows when absent, see LayerWeights
};

/// Where the GPU has a channel of a head of queries or keys: those of partly rotated heads stand in another order.
int deviceChannel(const ModelConfig& config, int channel);

/// Does not change after it is made; sessions on the same GPU share it.
class DeviceModel {
public:
    /// What is begun beside an upload.
    using Beside = std::function<void(const std::shared_ptr<const DeviceModel>& model)>;
    /// Uploads a model once: later calls get the same object while any session holds it. f16 and f32 weights are
    /// rounded to bf16. Routers become float32 without rounding, because small differences decide which experts are
    /// chosen.
    /// beside: called when the memory of all matrices has been taken and cleared, before they are copied; not where an
    /// earlier call has uploaded the model. @throws Error(OutOfMemory | Unsupported)
    static std::shared_ptr<const DeviceModel> of(const std::shared_ptr<const Model>& model,
                                                 const Progress& progress = {}, const Beside& beside = {});
    /// A model with the shapes and types of all matrices and without their contents, for planning. It takes no memory
    /// and needs no GPU, and its pointers are null. @throws Error(Unsupported)
    static std::shared_ptr<const DeviceModel> shapesOf(const Model& model);
    /// The first layers of a model that is on the GPU, or on its way there: matrices of the model itself, which lives
    /// as long as this one.
    static std::shared_ptr<const DeviceModel> firstLayers(std::shared_ptr<const DeviceModel> model, int layers);
    /// A shape with seeded random weights, for benchmarks. The embedding is its own tensor (untied).
    static std::shared_ptr<const DeviceModel> random(const ModelConfig& config, bool evictionHead, std::uint64_t seed,
                                                     bool forecastHeads = false);

    ModelConfig config;
    PerLayer<DeviceLayer> layers;
    cuda::DeviceMatrix embedding, lmHead;
    const float* finalNorm = nullptr;
    bool evictionHead = false, forecastHeads = false;
    /// Bytes of weights that a step of one token reads: all matrices but the embedding table, and of the experts only
    /// those that one token uses.
    std::size_t weightBytes = 0;

private:
    DeviceModel() = default;
    explicit DeviceModel(const Model& model);
    void planIndexer(DeviceLayer& layer);
    void planIndexer(DeviceLayer& layer, const IndexerWeights& from);
    void planForecast(DeviceLayer& layer, const LayerWeights* from, int index);
    void planAll(const Model* from);
    void takeAll();
    void planLayer(DeviceLayer& layer, const LayerWeights* from, bool experts, bool biases);
    void planMatrix(cuda::DeviceMatrix& matrix, DType type, int rows, int cols);
    void planPacked(cuda::DeviceMatrix& matrix, DType type, int rows, int cols, int count = 1);
    void planAttention(DeviceLayer& layer, const LayerWeights* from, bool biases);
    void planFloats(const float*& to, std::size_t count);
    DeviceArena arena_;
    bool tied_ = false;                        // the output head is the embedding table
    std::shared_ptr<const DeviceModel> whole_; // of firstLayers
};

} // namespace kvscope
