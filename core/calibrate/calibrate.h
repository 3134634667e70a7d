// Learns what some methods must know about a model before they can run on it: Forecast projections (SparDA), retaining
// heads (Locret) and channel importance (Double Sparsity, AsyncTLS). The model's own weights do not change; the results
// are files beside the model.
#pragma once

#include "base/progress.h"
#include "core/calibrate/forecast_training.h"
#include "core/calibrate/retaining_training.h"
#include "core/model/model.h"
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
    int texts = 16, tokens = 3000;   // number of pieces of text, and tokens of each
    int queriesPerText = 128;        // sampled query positions, evenly spread over the last three quarters
    std::optional<std::string> text; // cut into pieces; else pieces of the built-in document and prompts with needles
    ForecastTraining training;       // farBlocks 0: the method's query-aware budget
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
    double fraction = 0; // share of all work that is done, 0..1
    std::string what;
    int step = 0;        // of the current stage's training; 0: none yet
    double loss = 0;     // of the newest training step; 0 before the first
    double testLoss = 0; // on the texts left out, measured from time to time; NaN otherwise
};

/// Calibrates on the CPU. @throws Error(BadInput | Unsupported | Cancelled | OutOfMemory)
CalibrateResult calibrate(const std::shared_ptr<const Model>& model, const CalibrateOptions& options,
                          const std::function<void(const CalibrateProgress&)>& progress = {},
                          const std::stop_token& stop = {});

/// Checks that a calibration can be read from the folder: the folder holds at least one of the files that calibrations
/// write, and the headers of those that it holds are whole. Called before a model is loaded with the folder.
/// @throws Error(BadInput | Storage) naming the folder or the file
void checkCalibration(const std::string& folder);

/// The files that a calibration with these options writes, in this order.
std::vector<std::string> calibrationFiles(const CalibrateOptions& options);

/// Checks, before minutes of training, whether files can be written to the folder. Makes nothing. @throws
/// Error(Storage)
void checkCalibrationFolder(const std::string& folder);

/// Writes forecast.safetensors, locret.safetensors and double_sparsity.safetensors, each if the result has it. @return
/// the paths
/// @throws Error(Storage)
std::vector<std::string> writeCalibration(const std::string& folder, const Model& model, const CalibrateResult& result);

} // namespace kvscope
