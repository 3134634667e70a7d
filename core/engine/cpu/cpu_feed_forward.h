// CPU backend: the feed-forward of one layer, dense or a mixture of experts, added to the residual stream.
#pragma once

#include "base/aligned_buffer.h"
#include "base/extents.h"
#include "base/ids.h"
#include "base/indexed.h"
#include "core/model/model.h"

#include <cstdint>
#include <vector>

namespace kvscope {

/// The experts one token uses and their weights; see ExpertConfig.
struct ExpertChoice {
    std::int32_t expert = 0;
    float weight = 0;
};

/// Chooses experts by the router's logits [count]. Of equal scores the expert with the lower number is chosen.
/// @param choiceBias [count] or null
void chooseExperts(const ExpertConfig& config, const float* logits, const float* choiceBias,
                   std::vector<ExpertChoice>& chosen);

/// All scratch memory is taken once.
class CpuFeedForward {
public:
    /// rows: most tokens at a time. The model must outlive this object.
    CpuFeedForward(Kernels& kernels, const Model& model, std::size_t rows);
    /// x [n, hidden] += the layer's feed-forward of its norm.
    void run(LayerId layer, float* x, int n);
    /// Writes what run would add to `out`, [n, hidden]. Without experts.
    void output(LayerId layer, const float* x, int n, float* out);

private:
    void runExperts(const LayerWeights& weights, float* x, int n);
    void apply(const FeedForwardWeights& mlp, const std::vector<float>& norm, const float* x, int n, float* out,
               bool accumulate);

    Kernels& kernels_;
    const Model& model_;
    const ModelConfig& config_;
    AlignedBuffer<float> hidden_;
    Extents<int, int> streamAt_, logitAt_; // experts only: [rows, hidden], [rows, experts]
    AlignedBuffer<float> logits_, gathered_, result_, sum_, sharedGate_; // experts only
    Numbered<std::vector<ExpertChoice>> choices_;                        // [row]
    Numbered<std::vector<std::int32_t>> rowsOf_;                         // [expert]
};

} // namespace kvscope
