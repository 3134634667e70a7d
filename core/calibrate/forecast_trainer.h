// Trains SparDA's Forecast projections on a model that does not change. A layer's projection learns to make, of the
// layer's input, a query that scores the blocks highest to which the next layer's queries attend. Layer 0 has a second
// projection for its own blocks.
#pragma once

#include "core/calibrate/attention_samples.h"
#include "core/calibrate/forecast_training.h"
#include "core/plan/selection_spec.h"

#include <functional>
#include <memory>
#include <vector>

namespace kvscope {

/// Training starts from the mean of the target layer's query heads of each group. `spec`: the pooling grid, block size,
/// sink and local window with which the weights will be used. The last eighth of the texts is not trained on, and the
/// report is measured there.
/// @throws Error(BadInput) with fewer than two texts or without a query that sees a block beyond sink and window,
/// Error(Unsupported) for latent attention, Error(Cancelled)
ForecastWeights trainForecast(const std::shared_ptr<const Model>& model, const std::vector<TextSamples>& texts,
                              const SelectionSpec& spec, const ForecastTraining& training, ForecastReport& report,
                              const std::function<void(const ForecastStep&)>& progress = {},
                              const std::stop_token& stop = {});

} // namespace kvscope
