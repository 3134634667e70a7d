// A model's weights on the GPU, bf16, arranged for the kernels: q, k and v side by side, gate and up interleaved.
#pragma once

#include "core/cuda/device_memory.h"
#include "core/model/model.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/token.h"

#include <memory>
#include <vector>

namespace kvscope {

struct DeviceLayer {
    cuda::DeviceMatrix qkv, o, gateUp, down;
    const float *inputNorm = nullptr, *postNorm = nullptr;
    const float *qkvBias = nullptr, *oBias = nullptr; // null when the checkpoint has none
    cuda::EvictionHead eviction;
    cuda::HeadNorms headNorms;
    cuda::DeviceMatrix forecast, ownForecast; // SparDA's heads; without rows when absent, see LayerWeights
};

/// Immutable; shared by sessions on the same GPU.
class DeviceModel {
public:
    /// Uploads once per model: later calls share it while any session holds it. f16 and f32 weights are rounded to
    /// bf16.
    /// @throws Error(OutOfMemory | Unsupported)
    static std::shared_ptr<const DeviceModel> of(const std::shared_ptr<const Model>& model,
                                                 const Progress& progress = {});
    /// A shape with seeded random weights, for benchmarks. The embedding is its own tensor (untied).
    static std::shared_ptr<const DeviceModel> random(const ModelConfig& config, bool evictionHead, std::uint64_t seed,
                                                     bool forecastHeads = false);

    ModelConfig config;
    std::vector<DeviceLayer> layers;
    cuda::DeviceMatrix embedding, lmHead;
    const float* finalNorm = nullptr;
    bool evictionHead = false, forecastHeads = false;
    /// Read by a step: every matrix but the embedding table, norms and biases.
    std::size_t weightBytes = 0;

private:
    DeviceModel() = default;
    void planAll(bool biases, bool tied);
    DeviceArena arena_;
    struct Raw; // writable pointers while it is being filled
    std::unique_ptr<Raw> raw_;

public:
    ~DeviceModel();
};

} // namespace kvscope
