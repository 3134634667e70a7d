// Predicts what a candidate's decode step takes, before it is run: by replaying a recorded run of the candidate where
// there is one; else by the model of costs of docs/roofline.md, scaled by what full attention took on this machine.
#pragma once

#include "base/progress.h"
#include "core/transfer/link.h"
#include "profiler/read/trace_reader.h"
#include "profiler/roofline/cost_model.h"
#include "profiler/tune/measurement.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace kvscope {

struct TunePrediction {
    double stepNs = 0;        // with the time of the link
    double exposedNs = 0;     // part of it
    double bytesPerToken = 0; // host to device
    double hitRate = 1;
    bool replayed = false;
    std::string from; // in words: "replay of run 2 of a.kvtrace", "roofline"
};

/// The machine of the predictions: rates of the table, and how far a real step was from them.
struct TuneMachine {
    GpuSpec gpu;
    double projections = 1, attention = 1; // measured time by predicted time, of full attention
    bool scaled = false;                   // scaled by a measurement; false: predictions are floors
    /// The share of the blocks chosen by the query that the step before had not chosen, 0..1: (1 - hit rate) / (k_q /
    /// k).
    double change = 1;
    std::string changeFrom; // in words; empty: nothing is known, and 1 is taken
};

/// Times two short runs of full attention (a short prompt and the set's first prompts, `batch` of them) and sets the
/// machine's scale. Leaves the machine as it is where they do not fit into its memory.
/// @throws what a session throws otherwise; Error(Cancelled)
void scaleByFull(TuneMachine& machine, const std::shared_ptr<const Model>& model, const PromptSet& set,
                 const MeasureOptions& options, const Progress& progress, const std::stop_token& stop);

/// Decodes some steps of the candidate with the fewest slots and sets how much of its query's choice changes. For
/// candidates with blocks that the query chooses. @throws as scaleByFull
void learnChange(TuneMachine& machine, const std::shared_ptr<const Model>& model, const TuneCandidate& candidate,
                 const PromptSet& set, const MeasureOptions& options, const Progress& progress,
                 const std::stop_token& stop);

/// A recorded run that can stand for candidates.
struct RecordedRun {
    std::shared_ptr<const TraceReader> reader;
    RunRow row;
};

/// The runs of a trace. @throws Error(BadInput | Storage)
std::vector<RecordedRun> recordedRuns(const std::string& trace);

struct PredictionInput {
    const Model& model;
    const TuneMachine& machine;
    TuneLoad load;
    Link link;
    int threads = 0;
    std::vector<RecordedRun> recorded;
};

/// @throws Error(BadInput) for an impossible machine, Error(Storage) for a trace that cannot be read, Error(Cancelled)
TunePrediction predict(const TuneCandidate& candidate, const PredictionInput& input, const std::stop_token& stop);

} // namespace kvscope
