// Trains SparDA's Forecast projections on a frozen model: each layer's input learns to point at the blocks that the
// next layer's queries look at; layer 0's own projection likewise at its own.
#pragma once

#include "core/calibrate/attention_samples.h"
#include "core/calibrate/forecast_training.h"
#include "core/plan/selection_spec.h"

#include <functional>
#include <memory>
#include <vector>

namespace kvscope {

/// Starts from the mean of the target layer's query heads of each group. `spec`: grid, block size, sink and window that
/// the weights will be used with. The last eighth of the texts is left out for the report.
/// @throws Error(BadInput) with fewer than two texts or without a query that sees a block beyond sink and window,
/// Error(Unsupported) for latent attention, Error(Cancelled)
ForecastWeights trainForecast(const std::shared_ptr<const Model>& model, const std::vector<TextSamples>& texts,
                              const SelectionSpec& spec, const ForecastTraining& training, ForecastReport& report,
                              const std::function<void(const ForecastStep&)>& progress = {},
                              const std::stop_token& stop = {});

} // namespace kvscope
