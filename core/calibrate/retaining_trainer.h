// Trains Locret's retaining heads on a frozen model: from a token's query, key and value, how strongly the most
// interested of all later queries will look at it.
#pragma once

#include "core/calibrate/retaining_training.h"
#include "core/select/retaining_heads.h"
#include "core/select/selector.h"

#include <cstdint>
#include <functional>
#include <stop_token>
#include <vector>

namespace kvscope {

/// What one text gives: runs of neighbouring tokens, layer by layer.
class RetainingSamples {
public:
    static constexpr int kRun = 16; // neighbours, so that the smoothness of scores can be asked for

    /// `runs` runs spread over the first seven eighths of a text; later tokens have hardly any later queries.
    RetainingSamples(const ModelConfig& config, int tokens, int runs, Kernels& kernels);

    /// Every chunk of every layer, with plain queries and keys.
    void observe(const PromptChunk& chunk);

    struct Layer {
        std::vector<float> inputs;            // [samples, RetainingHeads::inputsOf]
        std::vector<float> labels;            // [samples, kvHeads] largest logit that a later query of the group gives
        std::vector<std::vector<float>> keys; // [kvHead]: [samples, dim] rotated, while the text is read
    };
    int samples() const { return int(positions_.size()); }
    int position(int sample) const { return positions_[std::size_t(sample)]; }
    const Layer& layer(int index) const { return layers_[std::size_t(index)]; }
    void forgetKeys();

private:
    const ModelConfig& config_;
    Kernels& kernels_;
    std::vector<std::int32_t> positions_; // ascending
    std::vector<Layer> layers_;
    std::vector<float> products_;
};

/// The last eighth of the texts is left out for the report. @throws Error(BadInput) with fewer than two texts,
/// Error(Unsupported) for latent attention, Error(Cancelled)
select::RetainingHeads trainRetainingHeads(const ModelConfig& config, const std::vector<RetainingSamples>& texts,
                                           const RetainingTraining& training, RetainingReport& report,
                                           const std::function<void(const RetainingStep&)>& progress = {},
                                           const std::stop_token& stop = {});

} // namespace kvscope
