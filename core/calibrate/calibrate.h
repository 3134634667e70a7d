// What methods need to learn about a model before they can run on it: Forecast projections (SparDA), retaining heads
// (Locret) and the channels that matter (Double Sparsity, AsyncTLS). Base weights never change; the results are files
// beside the model.
#pragma once

#include "core/calibrate/forecast_training.h"
#include "core/calibrate/retaining_training.h"
#include "core/model/model.h"
#include "core/model/progress.h"
#include "core/select/channel_table.h"
#include "core/select/retaining_heads.h"

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

namespace kvscope {

struct CalibrateOptions {
    bool forecast = true, channels = true, retaining = true;
    int texts = 16, tokens = 3000;   // so many pieces of so many tokens
    int queriesPerText = 128;        // sampled query positions, evenly spread over the second half and more
    std::optional<std::string> text; // cut into pieces; else: built-in document and prompts with needles, alternating
    ForecastTraining training;       // farBlocks 0: as many as the method takes by query
    RetainingTraining heads;         // steps, seed and threads are those of `training`
};

struct CalibrateResult {
    std::optional<ForecastWeights> forecast;
    ForecastReport report;
    std::vector<double> losses; // of every training step
    std::optional<select::RetainingHeads> retaining;
    RetainingReport retainingReport;
    std::vector<double> retainingLosses;
    std::optional<select::ChannelImportance> channels;
};

enum class CalibrateStage { Reading, Forecast, Retaining, Done };

struct CalibrateProgress {
    CalibrateStage stage = CalibrateStage::Reading;
    double fraction = 0; // of everything
    std::string what;
    int step = 0;        // of the stage's training; 0: none yet
    double loss = 0;     // of the newest training step; 0 before the first
    double testLoss = 0; // of the texts left out, from time to time; NaN otherwise
};

/// On the CPU. @throws Error(BadInput | Unsupported | Cancelled | OutOfMemory)
CalibrateResult calibrate(const std::shared_ptr<const Model>& model, const CalibrateOptions& options,
                          const std::function<void(const CalibrateProgress&)>& progress = {},
                          const std::stop_token& stop = {});

/// Files that these options lead to, in the order they are written.
std::vector<std::string> calibrationFiles(const CalibrateOptions& options);

/// Before minutes of training: whether its files can be written there. Makes nothing. @throws Error(Storage)
void checkCalibrationFolder(const std::string& folder);

/// Writes forecast.safetensors, locret.safetensors and double_sparsity.safetensors, what there is of them. @return the
/// paths
/// @throws Error(Storage)
std::vector<std::string> writeCalibration(const std::string& folder, const Model& model, const CalibrateResult& result);

} // namespace kvscope
