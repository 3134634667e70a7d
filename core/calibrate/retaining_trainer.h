// Trains Locret's retaining heads on a model that does not change. From a token's query, key and value a head learns to
// predict the largest logit that any later query will give the token.
#pragma once

#include "base/indexed.h"
#include "core/calibrate/retaining_training.h"
#include "core/select/retaining_heads.h"
#include "core/select/selector.h"

#include <cstdint>
#include <functional>
#include <stop_token>
#include <vector>

namespace kvscope {

/// The samples of one text: in every layer, runs of neighbouring tokens.
class RetainingSamples {
public:
    static constexpr int kRun = 16; // tokens of a run; scores of neighbours are trained to differ little

    /// Spreads `runs` runs over the first seven eighths of a text: tokens of the last eighth have few later queries.
    RetainingSamples(const ModelConfig& config, int tokens, int runs, Kernels& kernels);

    /// Called for every piece of the text in every layer, with queries and keys before rotation.
    void observe(const PromptPiece& piece);

    struct Layer {
        std::vector<float> inputs;         // [samples, RetainingHeads::inputsOf]
        std::vector<float> labels;         // [samples, kvHeads] largest logit that a later query of the group gives
        Numbered<std::vector<float>> keys; // [kvHead]: [samples, dim] rotated; only while the text is read
    };
    int samples() const { return int(positions_.size()); }
    int position(int sample) const { return positions_[sample]; }
    const Layer& layer(int index) const { return layers_[index]; }
    void forgetKeys();

private:
    const ModelConfig& config_;
    Kernels& kernels_;
    Numbered<std::int32_t> positions_; // ascending
    Numbered<Layer> layers_;
    Numbered<float> products_;
};

/// The last eighth of the texts is not trained on, and the report is measured there.
/// @throws Error(BadInput) with fewer than two texts, Error(Unsupported) for latent attention, Error(Cancelled)
select::RetainingHeads trainRetainingHeads(const ModelConfig& config, const std::vector<RetainingSamples>& texts,
                                           const RetainingTraining& training, RetainingReport& report,
                                           const std::function<void(const RetainingStep&)>& progress = {},
                                           const std::stop_token& stop = {});

} // namespace kvscope
