// Everything a report or a figure needs of one recorded run, read once.
#pragma once

#include "profiler/read/active_sets.h"
#include "profiler/read/counters.h"
#include "profiler/read/lookahead.h"
#include "profiler/read/served_load.h"
#include "profiler/read/step_kind.h"
#include "profiler/read/summary.h"
#include "profiler/read/token_changes.h"
#include "profiler/read/trace_reader.h"
#include "profiler/report/table.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace kvscope::reports {

/// Decode steps of one layer, summed.
struct LayerTotals {
    int layer = 0;
    std::int64_t steps = 0, durationNs = 0;
    std::array<std::int64_t, kStageCount> stageNs{};
    std::int64_t selected = 0, hits = 0, misses = 0, h2dBlocks = 0, h2dBytes = 0, h2dNs = 0, exposedNs = 0;
    // Sums over the steps that rates and means count.
    std::int64_t warmSteps = 0, warmDurationNs = 0, warmHits = 0, warmMisses = 0, warmExposedNs = 0;
    std::array<std::int64_t, kStageCount> warmStageNs{};
    double localityMean = 0, localityMin = 0; // NaN: none; steps that open a block left out
    std::int64_t localityCount = 0;
};

/// Rows of v_transfer of one phase and direction, summed.
struct TransferTotals {
    Phase phase = Phase::Decode;
    bool toDevice = true;
    std::int64_t transfers = 0, blocks = 0, bytes = 0, durationNs = 0;
};

struct RunData {
    std::string path, file; // absolute; its last part
    RunRow row;             // names are unique within a report
    RunSummary summary;
    std::string program;                  // name and version of the writer
    std::vector<StepRow> steps;           // decode steps
    std::vector<StepKind> kinds;          // of them
    std::vector<BreakdownStep> stepParts; // the same steps
    std::vector<LayerTotals> layers;
    std::vector<TransferTotals> transfers;
    std::int64_t lostGpuRecords = 0, lostPmSamples = 0;
    std::vector<std::string> notes;           // what the recorder had to say, e.g. why kernels are missing
    std::optional<PcieTraffic> pcie;          // where the GPU's counters were recorded
    std::vector<PcieStep> pcieSteps;          // where they are fine enough for single steps, in the order of the steps
    std::optional<LookaheadTotals> lookahead; // where blocks were asked for ahead
    std::vector<ActiveSets> activeSets;       // where blocks that are denoised chose pages
    std::vector<ChangeRanks> changeRanks;     // where the changes of their queries were recorded
    std::vector<ChangeRanks> keyRanks;        // where the changes of keys were recorded too
    std::vector<ChangeRanks> valueRanks;      // where the changes of values were recorded too
    std::optional<ServedLoad> served;         // where it served requests
    bool tokensBroken = false;                // rows about tokens break rules of the format

    std::int64_t decodeSum(std::int64_t StepRow::*member) const;
    /// The cell where the run knows its number, else one that says "not known".
    Cell ifKnown(Known what, Cell cell) const;
    /// Whether rates and means count a decode step, as coldSteps() says.
    bool counts(std::size_t step) const;
    std::vector<StepRow> countedSteps() const;
    /// Mean time of a component (or "other") in the counted steps; 0 without any.
    double componentMeanNs(std::string_view component) const;
    /// Mean tokens in a sequence's KV cache over the decode steps.
    double meanContext() const;
};

/// The model's name; of a path that another engine recorded its last part, because a report does not tell where things
/// lie.
std::string modelName(const RunRow& row);
/// Whether some run has steps that read pieces of prompts and decode.
bool haveMixed(const std::vector<RunData>& runs);

/// Time of a component in a step: a stage by its name, anything else is the rest.
std::int64_t partOf(const BreakdownStep& step, std::string_view component);

/// One run. @throws Error
RunData readRun(TraceReader& reader, const RunRow& row, const Progress& progress = {});
/// Every run of the files, with names made unique. @throws Error naming the file; also when it holds no run
std::vector<RunData> readRuns(const std::vector<std::string>& traces, const Progress& progress = {});

} // namespace kvscope::reports
