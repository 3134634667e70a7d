// Chooses method, budget and block size for a model, a memory, a link and a load: predicts every candidate, really runs
// the best predicted, and recommends one that was run and whose answers are good enough. docs/tune.md says how.
#pragma once

#include "profiler/tune/prediction.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvscope {

struct TuneRequest {
    std::string modelName; // as --model takes it; empty: the model's own path
    TuneGrid grid;
    Backend backend = Backend::Cpu;
    Link link;                    // on a GPU only for predictions
    std::int64_t deviceBytes = 0; // for the KV cache of all sequences; 0: no limit
    int batch = 1, newTokens = 32, threads = 0;
    QualityMeasure measure = QualityMeasure::Answered;
    double floor = 0.9;              // of the share, 0..1
    bool sure = false;               // the lower end of the share's interval must reach the floor
    int runs = 3;                    // rows that are run in any case, the best predicted ones
    int more = 6;                    // rows that are run after these at most, while none reaches the floor
    std::vector<std::string> traces; // whose runs are replayed
    std::optional<GpuSpec> machine;  // none: this one's entry of the GPU table, or ordinary rates
};

struct TuneRow {
    TuneCandidate candidate;
    TunePrediction predicted;
    std::optional<TuneMeasurement> measured;
    bool reaches = false; // measured, and its quality reaches the floor
    bool front = false;   // measured, and no other measured one is both better and faster
};

struct TuneResult {
    TuneRequest request;
    std::string model, modelPath, prompts; // modelPath: as --model takes it; prompts: name of the set
    int promptCount = 0, context = 0;      // context: tokens of the longest prompt
    TuneMachine machine;
    std::vector<TuneRow> rows; // fastest predicted first
    std::vector<LeftOut> leftOut;
    std::vector<std::size_t> order; // rows in the order in which they were run
    std::optional<std::size_t> recommended;
    bool cancelled = false; // somebody ended it; what was measured is here
};

/// Called on the working thread whenever a row was predicted or measured.
using TuneObserver = std::function<void(const TuneResult&)>;

/// Rows are run in the order of their predicted time, `runs` of them. While none of these reaches the floor, up to
/// `more` others follow: of each method and block size the largest budget first, fastest predicted first, and not what
/// is smaller than a budget that missed the floor, or predicted to be slower than one that reaches it. Such a run ends
/// as soon as it cannot reach the floor. The fastest measured one that reaches the floor is recommended.
/// @throws Error(BadInput) for what cannot be tried, what a session throws; Error(Cancelled) before anything was
/// measured
TuneResult tune(const std::shared_ptr<const Model>& model, const PromptSet& prompts, const TuneRequest& request,
                const TuneObserver& observer = {}, const Progress& progress = {}, const std::stop_token& stop = {});

/// The row to run next; nothing: enough were run. For tests and for tune().
std::optional<std::size_t> nextRow(const TuneResult& result);

/// Marks the front and the recommended row anew.
void judge(TuneResult& result);

} // namespace kvscope
