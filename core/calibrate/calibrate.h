// What methods need to learn about a model before they can run on it: Forecast projections (SparDA) and the channels
// that matter (Double Sparsity, AsyncTLS). Base weights never change; the results are files beside the model.
#pragma once

#include "core/calibrate/forecast_trainer.h"
#include "core/select/channel_importance.h"

#include <optional>
#include <string>
#include <vector>

namespace kvscope {

struct CalibrateOptions {
    bool forecast = true, channels = true;
    int texts = 16, tokens = 3000; // so many pieces of so many tokens
    int queriesPerText = 128;      // sampled query positions, evenly spread over the second half and more
    std::string text;          // cut into pieces; empty: the built-in document and prompts with needles, alternating
    ForecastTraining training; // farBlocks 0: as many as the method takes by query
};

struct CalibrateResult {
    std::optional<ForecastWeights> forecast;
    ForecastReport report;
    std::vector<double> losses; // of every training step
    std::optional<select::ChannelImportance> channels;
};

struct CalibrateProgress {
    double fraction = 0; // of everything
    std::string what;
    double loss = 0; // of the newest training step; 0 before the first
};

/// On the CPU. @throws Error(BadInput | Unsupported | Cancelled | OutOfMemory)
CalibrateResult calibrate(const std::shared_ptr<const Model>& model, const CalibrateOptions& options,
                          const std::function<void(const CalibrateProgress&)>& progress = {},
                          const std::stop_token& stop = {});

/// Writes forecast.safetensors and double_sparsity.safetensors, what there is of them. @return the paths
/// @throws Error(Storage)
std::vector<std::string> writeCalibration(const std::string& folder, const Model& model, const CalibrateResult& result);

} // namespace kvscope
