// Trains SparDA's Forecast projections on a frozen model: each layer's input learns to point at the blocks that the
// next layer's queries look at; layer 0's own projection likewise at its own.
#pragma once

#include "core/calibrate/attention_samples.h"
#include "core/select/selection_spec.h"

#include <functional>
#include <memory>
#include <vector>

namespace kvscope {

struct ForecastTraining {
    int steps = 1500, batch = 64; // AdamW steps of so many sampled queries each
    double learningRate = 5e-4;   // constant; betas 0.9 and 0.95, weight decay 0.01, gradient norm at most 0.5
    int farBlocks = 4;            // blocks beside sink and window that the teacher names
    std::uint64_t seed = 1;
    int threads = 0;
};

/// Weights as a checkpoint names them: future[l] scores layer l + 1 (the last layer has none), own scores layer 0.
struct ForecastWeights {
    std::vector<std::vector<float>> future; // [layer]: [kvHeads*dim, hidden]; the last one empty
    std::vector<float> own;                 // [kvHeads*dim, hidden]
};

struct ForecastQuality {
    double loss = 0;   // mean KL
    double recall = 0; // share of the blocks by InfLLM-V2's own score that the Forecast's choice holds
};

struct ForecastReport {
    std::vector<ForecastQuality> before, after; // [target layer], on text that was not trained on
    int trainQueries = 0, testQueries = 0;
};

struct ForecastStep {
    int step = 0, steps = 0;
    double loss = 0; // mean over layers of this step's batch
};

/// Starts from the mean of the target layer's query heads of each group. `spec`: grid, block size, sink and window that
/// the weights will be used with. The last eighth of the texts is left out for the report.
/// @throws Error(BadInput) with fewer than two texts or without a query that sees a block beyond sink and window,
/// Error(Unsupported) for latent attention, Error(Cancelled)
ForecastWeights trainForecast(const std::shared_ptr<const Model>& model, const std::vector<TextSamples>& texts,
                              const SelectionSpec& spec, const ForecastTraining& training, ForecastReport& report,
                              const std::function<void(const ForecastStep&)>& progress = {},
                              const std::stop_token& stop = {});

} // namespace kvscope
